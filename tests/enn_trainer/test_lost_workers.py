"""A training run whose workers are killed learns what an undisturbed one learns, bit for bit."""

from pathlib import Path

import pytest

from tests.enn_trainer.losing_workers import with_losses_and_without
from tests.enn_trainer.resuming import assert_same


@pytest.mark.slow
def test_a_run_that_loses_ten_workers_learns_the_same_bits(
    tmp_path: Path,
) -> None:
    disturbed, undisturbed, losses = with_losses_and_without(tmp_path, 10)
    assert losses >= 10
    assert_same(disturbed, undisturbed)
