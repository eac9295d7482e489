"""Entropy coefficients that follow a target."""

import math

import pytest
import torch

from enn_trainer.algorithms.ppo.entropy_targets import (
    LOG_COEF_LIMITS,
    MISS_GAIN,
    coef_of_actor,
    initial_tuning,
    tune,
    tuned_coef,
    tuned_scalars,
)


def test_coefficient_rises_below_the_target_and_falls_above_it_by_hand() -> None:
    tunings = {
        "low": initial_tuning(0.1),
        "high": initial_tuning(0.1),
        "nobody": initial_tuning(0.1),
    }
    entropies = torch.tensor([[0.4, 4.0], [1.8, 2.0], [0.0, 0.0]])  # means 0.1 and 0.9
    targets = {"low": 0.3, "high": 0.3, "nobody": 0.3}
    tune(tunings, entropies, targets, lr=0.5)
    # log 0.1 + lr * 0.2 + gain * 0.2; log 0.1 - lr * 0.6 - gain * 0.6
    assert tuned_coef(tunings["low"]).item() == pytest.approx(0.1 * math.exp(0.1 + MISS_GAIN * 0.2))
    assert tuned_coef(tunings["high"]).item() == pytest.approx(
        0.1 * math.exp(-0.3 - MISS_GAIN * 0.6)
    )
    assert torch.equal(tunings["nobody"], initial_tuning(0.1))
    scalars = tuned_scalars(tunings, entropies)
    assert scalars["losses/normalised_entropy/low"] == pytest.approx(0.1)
    assert "losses/normalised_entropy/nobody" not in scalars
    assert scalars["charts/entropy_coef/nobody"] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("entropy", "limit"), [(1.0, LOG_COEF_LIMITS[0]), (0.0, LOG_COEF_LIMITS[1])]
)
def test_unreachable_target_has_a_bounded_coefficient(entropy: float, limit: float) -> None:
    """So that the coefficient is soon back when the entropy follows again."""
    tunings = {"walk": initial_tuning(0.1)}
    for _ in range(1000):
        tune(tunings, torch.tensor([[entropy, 1.0]]), {"walk": 0.5}, lr=0.1)
    assert tunings["walk"][0].item() == pytest.approx(limit)
    assert tuned_coef(tunings["walk"]).isfinite()


def test_each_actor_has_the_coefficient_of_its_action() -> None:
    tunings = {"walk": initial_tuning(0.5)}
    coefs = coef_of_actor(tunings, 0.25, {"call": 1, "walk": 2, "watch": 0}, like=torch.zeros(0))
    assert coefs.tolist() == [0.25, 0.5, 0.5]
