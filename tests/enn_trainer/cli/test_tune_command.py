"""The command `enn tune`."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from enn_trainer.checkpoints.run_lock import LOCK, is_locked
from enn_trainer.cli import run
from enn_trainer.cli.tune_command import _plan, parser
from enn_trainer.cli.typed_settings import parse_typed
from enn_trainer.config import TrainConfig
from enn_trainer.tuning import search as search_module
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.study import Limits, Plan, read_plan, write_plan
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused
from tests.enn_trainer.tuning.builders import reopened, toy_plan, toy_search
from tests.fork_server import ENN, start_program

pytest.importorskip("optuna", reason="the extra tune is not installed")

METRIC = ["--metric", "eval/episodic_reward.mean max"]
EVAL = ["eval.episodes=8", "eval.interval=24"]
LINE = ["Xor", *SMALL, "optim.lr=loguniform 1e-4 1e-2", *EVAL, *METRIC]


def plan_of(*words: str) -> Plan:
    return _plan(parse_typed(parser(), [*words, *METRIC], TrainConfig))


def test_words_are_ranges_or_settings(tmp_path: Path) -> None:
    (tmp_path / "ranges.yaml").write_text("ranges: {ppo.gamma: 1-loguniform 0.01 0.1}")
    ranges = ["--ranges", str(tmp_path / "ranges.yaml"), "optim.lr=loguniform 1e-4 1e-2"]
    plan = plan_of("Xor", *ranges, "env.vary.x=int 0 2", "--ppo.vf-coef", "0.25", "--seeds", "2")
    assert plan.ranges == {
        "ppo.gamma": "1-loguniform 0.01 0.1",
        "optim.lr": "loguniform 1e-4 1e-2",
    }
    assert plan.base.env.vary == {"x": "int 0 2"}
    assert (plan.base.ppo.vf_coef, plan.base.optim.bs) == (0.25, 2048)  # of the shipped one
    assert (plan.seeds, plan.sampler, plan.prune) == (2, "tpe", "median")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("20m", 1200), ("1.5h", 5400), ("1d", 86400)]
)
def test_budgets_have_units(text: str, seconds: float) -> None:
    assert parser().parse_args(["--budget", text]).budget == seconds


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["tune", "Xor", "--budget", "20 minutes"], "expected a time, as in 20m"),
        (["tune", "Xor", "--trials", "3"], "--metric: expected 'TAG max' or 'TAG min'"),
        (["tune", "Xor", *METRIC, "--trials", "3"], "ranges: expected FIELD=RANGE"),
        (["tune", *LINE], "--trials, --budget: expected one of them, got neither"),
        (["tune", "nothing", "--show"], "nothing"),
        (["tune", "--show"], "DIR: expected the folder of a search"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert problem in refused(words, capsys)
    assert not [*tmp_path.iterdir()]


def test_a_search_is_shown_and_refuses_options_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_search(tmp_path / "s", trials=3)
    capsys.readouterr()
    assert run(["tune", str(tmp_path / "s"), "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["trial", "state", "score"]
    assert lines[-1] == f"enn train --config {tmp_path / 's' / 'best.ron'}"
    for words in (["--seeds", "2"], ["--show", "--trials", "3"], METRIC, ["optim.lr=0.1"]):
        assert "expected nothing that the search in" in refused(
            ["tune", str(tmp_path / "s"), *words], capsys
        )


def test_limits_of_a_search_are_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy_search(tmp_path / "s", trials=1)
    monkeypatch.setattr(Driver, "run", lambda driver: 0)
    words = ["--trials", "5", "--jobs", "2", "--budget", "1h", "--keep", "all"]
    assert run(["tune", str(tmp_path / "s"), *words]) == 0
    _, limits, _ = read_plan(tmp_path / "s")
    assert (limits.trials, limits.jobs, limits.budget_s, limits.keep) == (5, 2, 3600, "all")


@pytest.mark.parametrize("named_in", ["configuration", "range"])
def test_code_that_only_the_folder_names_is_not_imported(
    named_in: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = tmp_path / "code.py"
    code.write_text("raise SystemExit('imported')")
    folder, env = tmp_path / "s", f"{code}:World"
    is_range = named_in == "range"
    choice = json.dumps(env)
    folder.mkdir()
    ranges = {"env.id": f'choice "Xor" {choice}'} if is_range else {"optim.lr": "uniform 0.1 0.2"}
    plan = toy_plan(*([] if is_range else [f"env.id={env}"]), ranges=ranges)
    write_plan(folder, plan, Limits(trials=1), {})
    text = refused(["tune", str(folder)], capsys)
    assert "env.id: expected an environment of `enn envs` or one named on the command" in text
    assert f"enn tune --trust {folder}" in text
    monkeypatch.setattr(search_module, "versions_of", lambda config: {})
    monkeypatch.setattr(Driver, "run", lambda driver: 0)
    assert run(["tune", str(folder), "--trust"]) == 0


@pytest.mark.alone
@pytest.mark.slow
def test_a_real_search_survives_kills(tmp_path: Path) -> None:
    """Of three trials, the second one is killed together with the driver."""
    folder = tmp_path / "runs" / "xor"
    limits = ["--trials", "3", "--confirm", "0", "--prune", "none", "--keep", "all"]
    words = ["tune", *LINE, "checkpoint.every_seconds=0", *limits, "--to", str(folder)]
    second = folder / "trial-0001" / "seed-1"
    with start_program([*ENN, *words], cwd=tmp_path) as driver:
        end_s = time.monotonic() + 200
        while not any(second.glob("step-*")) and driver.poll() is None:
            assert time.monotonic() < end_s
            time.sleep(0.01)
        driver.kill()
        if is_locked(second):
            os.kill(json.loads((second / LOCK).read_text())["pid"], signal.SIGKILL)
    assert reopened(folder).trials()[1].state.name == "RUNNING"
    with start_program([*ENN, "tune", str(folder)], cwd=tmp_path) as driver:
        assert driver.wait(200) == 0
    trials = reopened(folder).trials()
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    assert [*trials[1].intermediate_values] == [*trials[0].intermediate_values]
    # The same trial without a kill, from its recorded line.
    overrides = trials[1].user_attrs["overrides"]
    line = ["train", "--config", str(folder / "config.ron"), *overrides, "trial=1"]
    with start_program([*ENN, *line, "--checkpoint-dir", "again"], cwd=tmp_path) as again:
        assert again.wait(200) == 0
    rows = map(json.loads, (tmp_path / "again" / "metrics.jsonl").read_text().splitlines())
    tag = "eval/episodic_reward.mean"
    assert {r["step"]: r[tag] for r in rows if tag in r} == trials[1].intermediate_values
