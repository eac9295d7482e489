"""A choice that is mostly punished at first is learnt with the default settings."""

from typing import Any

import pytest

NAME = "a-choice-that-is-never-taken"


def mean_return(symptoms: Any, *settings: str) -> float:
    """Return the mean return of the last tenth of a run in the corridor."""
    symptom = symptoms.BY_NAME[NAME]
    (case,) = (case for case in symptom.cases if case.settings == settings)
    return float(symptoms.run(symptom, case, seed=1)["metrics"]["episodic_reward.mean"])


@pytest.mark.slow
def test_a_choice_that_is_mostly_punished_is_learnt_with_the_defaults(benchmark: Any) -> None:
    assert mean_return(benchmark("symptoms")) > 0.5


@pytest.mark.slow
def test_choice_collapses_in_large_minibatches_without_entropy_bonus(benchmark: Any) -> None:
    assert mean_return(benchmark("symptoms"), "optim.bs=1024", "ppo.ent_coef=0.0") < 0.2
