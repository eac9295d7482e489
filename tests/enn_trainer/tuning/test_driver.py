"""Searches with a stand-in for `enn train`: what is found, seeds, pruning, failures, limits."""

import json
from pathlib import Path

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.report import verdict, winner
from enn_trainer.tuning.search import open_search
from enn_trainer.tuning.study import Limits
from tests.enn_trainer.tuning.builders import content, reopened, toy_plan, toy_search

optuna = pytest.importorskip("optuna", reason="the extra tune is not installed")


def stub(monkeypatch: pytest.MonkeyPatch, **options: object) -> None:
    monkeypatch.setenv("STUB", json.dumps(options))


def test_a_search_approaches_the_maximum_of_a_parabola(tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", trials=30)
    assert abs(study.optuna.best_params["ppo.ent_coef"] - 2) < 0.2
    first = study.trials()[0]
    assert first.params == {"ppo.ent_coef": 0.2}
    assert first.user_attrs["overrides"] == []


def test_a_search_is_a_function_of_its_plan(tmp_path: Path) -> None:
    first, second = (toy_search(tmp_path / name, trials=12) for name in "ab")
    assert content(first) == content(second)
    other = toy_search(tmp_path / "c", toy_plan("seed=2"), trials=2)
    assert content(other)[1] != content(first)[1]


@pytest.mark.parametrize("sampler", ["random", "qmc"])
def test_samplers_continue_where_they_were(sampler: str, tmp_path: Path) -> None:
    ranges = {"ppo.ent_coef": "uniform 0 5", "net.d_model": "choice 16 32"}
    plan = toy_plan(ranges=ranges, sampler=sampler)
    straight = toy_search(tmp_path / "a", plan, trials=6)
    toy_search(tmp_path / "b", plan, trials=3)
    continued = toy_search(tmp_path / "b", trials=6)
    assert content(continued) == content(straight)
    params = [trial.params["ppo.ent_coef"] for trial in straight.trials()[1:]]
    assert len(set(params)) == 5


def test_jobs_train_each_trial_once(tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", trials=6, jobs=3)
    assert [trial.number for trial in study.trials("COMPLETE")] == [*range(6)]
    starts = [path.read_text().split() for path in tmp_path.rglob("starts.txt")]
    assert [len(pids) for pids in starts] == [1] * 6


def test_runs_are_reproducible_by_their_overrides(tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", trials=2)
    overrides = study.trials()[1].user_attrs["overrides"]
    assert overrides == [f"ppo.ent_coef={study.trials()[1].params['ppo.ent_coef']!r}"]
    arguments = study.arguments(1, 1)
    assert arguments == [
        "--config",
        str(tmp_path / "s/config.ron"),
        *overrides,
        "seed=1",
        "trial=1",
    ]


def test_further_seeds_are_for_the_better_half(tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", toy_plan(seeds=3), trials=8)
    num_seeds = {trial.number: len(study.runs(trial.number)) for trial in study.trials()}
    assert num_seeds[0] == 3
    assert 1 in num_seeds.values()
    best = study.optuna.best_trial.number
    assert num_seeds[best] == 3
    assert sorted(study.runs(best)) == [1, 2, 3]


def test_runs_below_the_median_are_pruned(tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", toy_plan(prune="median"), trials=12)
    pruned = study.trials("PRUNED")
    assert pruned
    for trial in pruned:
        # The first evaluation after a fifth of the frames; nothing is reported after it.
        assert [*trial.intermediate_values] == [0, 100]
        assert study.runs(trial.number)[1].ending == "pruned"
    assert study.optuna.best_trial.state.name == "COMPLETE"


def test_a_failed_run_is_tried_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, fails=[1], diverges=[2])
    study = toy_search(tmp_path / "s", trials=4)
    states = [trial.state.name for trial in study.trials()]
    assert states == ["COMPLETE", "FAIL", "PRUNED", "COMPLETE"]
    assert study.runs(1)[1].error == "no space left on device"
    assert len((study.run_dir(1, 1) / "starts.txt").read_text().split()) == 3
    # Of NaN, the first time is enough.
    assert len((study.run_dir(2, 1) / "starts.txt").read_text().split()) == 1
    assert "not finite" in study.runs(2)[1].error


def test_refused_combinations_count_for_nothing(tmp_path: Path) -> None:
    ranges = {"optim.bs": "choice 64 4096", "rollout.num_envs": "choice 32 64"}
    study = toy_search(tmp_path / "s", toy_plan(ranges=ranges), trials=6)
    assert len(study.trials()) == 6
    refused = [t for t in study.optuna.get_trials() if "refused" in t.user_attrs]
    assert refused
    assert all("optim.bs: expected at most" in t.user_attrs["refused"] for t in refused)
    assert not any(study.trial_dir(trial.number).exists() for trial in refused)


def test_a_search_ends_if_nearly_all_combinations_are_refused(tmp_path: Path) -> None:
    # Each range is valid with the other setting as it is; of their combinations, one in 300.
    base = ["rollout.steps=1", "rollout.num_envs=3200", "optim.bs=2"]
    ranges = {"optim.bs": "int 3190 3200", "rollout.num_envs": "int 2 3200"}
    plan = toy_plan(*base, ranges=ranges)
    with pytest.raises(ConfigError, match=r"got 50 others in a row; the last one: optim.bs="):
        toy_search(tmp_path / "s", plan, trials=60)
    assert reopened(tmp_path / "s").trials()


def test_fresh_seeds_decide_and_a_lucky_best_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(monkeypatch, noise=1.0, flat=True)
    study = toy_search(tmp_path / "s", trials=12, confirm=3)
    confirmed = study.confirmed()
    best = sorted(study.trials(), key=lambda trial: -trial.value)[:3]
    assert confirmed.keys() == {0, *(trial.number for trial in best)}
    assert all([*runs] == [2, 3, 4] for runs in confirmed.values())
    assert "nothing beats it" in verdict(study)
    assert f"(in the search {study.optuna.get_trials()[winner(study) or 0].value:.4g})" in verdict(
        study
    )


def test_a_better_trial_is_confirmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, noise=0.01)
    study = toy_search(tmp_path / "s", trials=8, confirm=3)
    assert winner(study) == study.optuna.best_trial.number
    assert "trial 0, the configuration as it is, has -3.2" in verdict(study)
    assert "nothing beats" not in verdict(study)


@pytest.mark.parametrize(("keep", "count"), [("best", 3), ("all", 6), ("none", 0)])
def test_saves_of_the_best_are_kept(keep: str, count: int, tmp_path: Path) -> None:
    study = toy_search(tmp_path / "s", trials=6, keep=keep)
    kept = {path.parent.parent.name for path in tmp_path.rglob("step-*")}
    assert len(kept) == count
    if keep == "best":
        assert f"trial-{study.optuna.best_trial.number:04}" in kept


def test_saves_of_a_winner_that_only_fresh_seeds_show_are_kept(tmp_path: Path) -> None:
    """Trial 0 is far from the best in the search, but wins on fresh seeds."""
    study = toy_search(tmp_path / "s", trials=6)
    run = study.runs(0)[1]
    for number in study.completed_scores():
        study.record_confirmed(number, 2, run._replace(score=float(number == 0)))
    (study.run_dir(0, 2) / "step-000000000100").mkdir(parents=True)
    toy_search(tmp_path / "s", trials=6)
    assert winner(study) == 0
    assert [*study.run_dir(0, 2).glob("step-*")]


def test_a_search_without_a_result_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub(monkeypatch, fails=[0])
    study, limits = open_search(tmp_path / "s", toy_plan(), {"trials": 1})
    assert Driver(study, limits).run() == 1


def test_no_trial_begins_after_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, seconds=0.05)
    study = toy_search(tmp_path / "s", trials=50, budget_s=0.2)
    assert 1 <= len(study.trials()) < 5
    more = toy_search(tmp_path / "s", trials=3, budget_s=60)
    assert len(more.trials()) == max(3, len(study.trials()))


def test_smaller_is_better_for_a_metric_to_minimise(tmp_path: Path) -> None:
    plan = toy_plan(metric="eval/episodic_reward.mean min", seeds=2, prune="median")
    study = toy_search(tmp_path / "s", plan, trials=12)
    assert winner(study) == min(study.trials("COMPLETE"), key=lambda trial: trial.value).number


def test_trials_of_other_hosts_are_left_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = toy_search(tmp_path / "s", trials=1)
    study.host = "elsewhere"
    with study.next_trial(Limits(trials=2), anyway=False) as number:
        assert number == 1
    capsys.readouterr()
    study = toy_search(tmp_path / "s", trials=3, confirm=2)
    output = capsys.readouterr().out
    assert "running in other processes: trial 1 on elsewhere; the last process" in output
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE", "RUNNING", "COMPLETE"]
    assert not study.confirmed()
    Driver(study, Limits(trials=3, confirm=2), anyway=True).run()
    assert [trial.state.name for trial in study.trials()] == ["COMPLETE"] * 3
    assert study.confirmed()
