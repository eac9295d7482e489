"""A choice that is mostly punished at first is learnt, and is given up without an entropy bonus.

The settings differ in the size of minibatches as well: in small ones, frames are told apart before
the choice is gone, and some seeds learn it without a bonus.
"""

from typing import Any

import pytest

from enn_trainer import StateManager

NAME = "a-choice-that-is-never-taken"


def mean_return(symptoms: Any, *settings: str) -> float:
    """Return the mean return of the last tenth of a run in the corridor."""
    symptom = symptoms.BY_NAME[NAME]
    (case,) = (case for case in symptom.cases if case.settings == settings)
    return float(symptoms.run(symptom, case, seed=1)["metrics"]["episodic_reward.mean"])


@pytest.mark.slow
def test_a_choice_that_is_mostly_punished_is_learnt(benchmark: Any) -> None:
    default = StateManager().config.ppo.ent_coef
    assert mean_return(benchmark("symptoms"), "optim.bs=128", f"ppo.ent_coef={default}") > 0.5


@pytest.mark.slow
def test_it_is_given_up_in_large_minibatches_without_an_entropy_bonus(benchmark: Any) -> None:
    assert mean_return(benchmark("symptoms"), "optim.bs=1024", "ppo.ent_coef=0.0") < 0.2
