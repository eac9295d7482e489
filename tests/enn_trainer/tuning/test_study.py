"""The plan of a search on disk, and its trials in the journal."""

from pathlib import Path

import pytest

from enn_trainer.tuning.study import Limits, Study, read_plan, write_plan
from tests.enn_trainer.tuning.builders import toy_plan

pytest.importorskip("optuna", reason="the extra tune is not installed")


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study(tmp_path, toy_plan())


def test_plans_round_trip(tmp_path: Path) -> None:
    plan, limits = toy_plan(seeds=2, sampler="qmc"), Limits(3, 60.0, jobs=2, keep="all")
    write_plan(tmp_path, plan, limits, {"numpy": "1"})
    assert read_plan(tmp_path) == (plan, limits, {"numpy": "1"})
    assert limits.changed({"trials": 5, "jobs": None}).trials == 5
    assert limits.changed({"trials": 5, "jobs": None}).jobs == 2


def test_a_trial_is_claimed_by_one_process_at_a_time(study: Study) -> None:
    limits = Limits(trials=2)
    other = Study(study.folder, study.plan)
    with study.next_trial(limits, False) as first:
        with other.next_trial(limits, False) as second, study.next_trial(limits, False) as third:
            assert (first, second, third) == (0, 1, None)
        with study.next_trial(limits, False) as again:
            assert again == 1  # a running trial without a process
    assert [trial.state.name for trial in study.trials()] == ["RUNNING", "RUNNING"]


def test_a_trial_that_ended_meanwhile_is_not_taken_up(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    with study.next_trial(Limits(trials=1), False):
        running = study.trials("RUNNING")
        study.tell(0, "COMPLETE", 1.0)
    with monkeypatch.context() as patch:
        patch.setattr(study, "trials", lambda *states: running)  # as read before it ended
        with study.next_trial(Limits(trials=1), False) as number:
            assert number is None


def test_values_are_reported_once_for_each_step(study: Study) -> None:
    with study.next_trial(Limits(trials=1), False):
        study.report(0, 100, 1.0)
        study.report(0, 100, 2.0)
    assert study.trials()[0].intermediate_values == {100: 1.0}


def test_the_configuration_as_it_is_need_not_be_in_the_ranges(tmp_path: Path) -> None:
    study = Study(tmp_path, toy_plan(ranges={"ppo.ent_coef": "uniform 1 2"}))
    with study.next_trial(Limits(trials=2), False), study.next_trial(Limits(trials=2), False):
        first, second = study.trials()
    assert (first.params, first.user_attrs["overrides"]) == ({}, [])
    assert 1 <= second.params["ppo.ent_coef"] <= 2
