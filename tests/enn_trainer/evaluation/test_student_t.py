"""Quantiles of Student's t distribution."""

import math

import pytest

from enn_trainer.evaluation.eval_metrics import t_quantile_975


@pytest.mark.parametrize(
    ("df", "expected"),  # printed tables
    [
        *[(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (29, 2.045)],
        *[(30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980), (10**6, 1.960)],
    ],
)
def test_quantiles_equal_printed_tables(df: int, expected: float) -> None:
    assert t_quantile_975(df) == pytest.approx(expected, abs=5e-4)


def probability_within(t: float, df: int) -> float:
    """Return P(|T| <= t), by Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(df))
    odd, cosine = df % 2, math.cos(angle)
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for i in range(2 + odd, df - 1, 2):
        term *= cosine**2 * (i - 1) / i
        total += term
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total


@pytest.mark.parametrize("df", range(1, 60))
def test_quantiles_cover_95_percent(df: int) -> None:
    assert probability_within(t_quantile_975(df), df) == pytest.approx(
        0.95, abs=1e-14 if df < 30 else 1e-7
    )
