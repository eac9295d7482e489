"""Checks before a search, and changes since its first trials."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from enn_trainer import tune
from enn_trainer.base.errors import ConfigError
from enn_trainer.tuning.search import difference, open_search, versions_of
from enn_trainer.tuning.study import PLAN
from tests.enn_trainer.tuning.builders import METRIC, X, content, toy_plan, toy_search

pytest.importorskip("optuna", reason="the extra tune is not installed")


def rejected(folder: Path, plan: object, trials: int | None = 3) -> str:
    """Return the problem of a new search, which leaves no folder."""
    with pytest.raises(ConfigError) as error:
        open_search(folder, plan, {"trials": trials})  # type: ignore[arg-type]
    assert not folder.exists()
    return str(error.value)


def test_mistakes_are_reported_before_anything_is_trained(tmp_path: Path) -> None:
    folder, plan = tmp_path / "s", toy_plan()
    assert "optim.rl='uniform 0 1': no such field" in rejected(
        folder, replace(plan, ranges={"optim.rl": "uniform 0 1"})
    )
    assert "includes 1.5: ppo.gamma" in rejected(
        folder, replace(plan, ranges={"ppo.gamma": "uniform 0.9 1.5"})
    )
    assert "--trials, --budget: expected one" in rejected(folder, plan, None)
    assert "ranges: expected FIELD=RANGE" in rejected(folder, replace(plan, ranges={}))
    assert "seed: expected another setting" in rejected(
        folder, replace(plan, ranges={"seed": "int 1 9"})
    )
    assert "expected a metric and max or min" in rejected(folder, replace(plan, metric="return"))
    assert (
        rejected(folder, replace(plan, metric="eval/episodic_rewrad.mean max"))
        == "--metric: expected a metric of the run, got eval/episodic_rewrad.mean; the nearest is "
        "eval/episodic_reward.mean"
    )
    # An episode need not have ended: its statistics are those of other metrics.
    assert "the nearest is episodic_reward.mean" in rejected(
        folder, replace(plan, metric="episodic_reward.maen max")
    )
    without = toy_plan("eval=None")
    assert "expected evaluations for eval/episodic_reward.mean, got none" in rejected(
        folder, without
    )
    assert "env.id" in rejected(folder, toy_plan("env.id=Xro"))


def test_an_extra_that_is_missing_is_named_with_its_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entity_env.imports.extras.find_spec", lambda name: None)
    problem = rejected(tmp_path / "s", toy_plan())
    assert "expected the package optuna, which is not installed; pip install" in problem
    assert "[tune]" in problem


def test_a_run_that_fails_is_reported_before_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB", json.dumps({"fails": [-1]}))  # the run of one update
    assert rejected(tmp_path / "s", toy_plan()) == "enn train: no space left on device"


def test_another_search_in_the_folder_is_an_error_with_the_difference(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    toy_search(folder, trials=1)
    for plan, words in [
        (toy_plan(ranges={"ppo.ent_coef": "uniform 0 4"}), "uniform 0 5 before, uniform 0 4 now"),
        (toy_plan("env.id=MineSweeper"), "env.id: Xor before, MineSweeper now"),
        (toy_plan("optim.lr=0.1"), "optim.lr: 0.001 before, 0.1 now"),
        (toy_plan(seeds=2), "--seeds: 1 before, 2 now"),
    ]:
        with pytest.raises(ConfigError, match=words):
            open_search(folder, plan, {})
    open_search(folder, toy_plan("name=other"), {})


def test_limits_can_be_raised_and_stay_raised(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    toy_search(folder, trials=1)
    assert len(toy_search(folder, trials=3).trials()) == 3
    assert open_search(folder, None, {"trials": None})[1].trials == 3


def test_changed_code_and_packages_need_consent(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    study = toy_search(folder, trials=1)
    saved = json.loads((folder / PLAN).read_text())
    saved["versions"]["numpy"] = "0.9"
    (folder / PLAN).write_text(json.dumps(saved))
    with pytest.raises(ConfigError, match=r"numpy: 0.9 before, .* now; --anyway continues"):
        open_search(folder, None, {})
    again, _ = open_search(folder, None, {}, anyway=True)
    assert content(again) == content(study)


ENVIRONMENTS = {
    "class": "class Garden(Xor):\n    bonus = {}\n",
    "function": "def Garden():\n    return Xor() if {} else None\n",
    "constant": "BONUS = {}\nclass Garden(Xor):\n    bonus = BONUS\n",
    "helper": "from helper import Inner\ndef Garden():\n    return Inner()\n",
    "comment": "class Garden(Xor):\n    pass  \n# {}",
}


@pytest.mark.parametrize("changed", ENVIRONMENTS)
def test_changed_code_of_an_environment_is_named(changed: str, tmp_path: Path) -> None:
    versions = []
    for name, value in (("one", "0.0"), ("two", "1.0")):
        folder = tmp_path / name
        folder.mkdir()
        head = "from entity_env.examples import Xor\n"
        (folder / "garden.py").write_text(head + ENVIRONMENTS[changed].replace("{}", value))
        (folder / "helper.py").write_text(f"{head}class Inner(Xor):\n    bonus = {value}\n")
        sys.modules.pop("helper", None)
        versions.append(versions_of(toy_plan(f"env.id={folder / 'garden.py'}:Garden").base))
        sys.path.remove(str(folder))
    expected = {"helper": "code of helper", "comment": ""}.get(changed, "code of garden")
    assert difference(*versions).partition(":")[0] == expected


def test_a_damaged_plan_is_reported(tmp_path: Path) -> None:
    toy_search(tmp_path / "s", trials=1)
    (tmp_path / "s" / PLAN).write_text("{}")
    with pytest.raises(ConfigError, match=r"study.json: damaged, expected the plan of a search"):
        open_search(tmp_path / "s", None, {})


@pytest.mark.parametrize(
    ("text", "damaged"), [(b'"seed 1"', b'"seed x"'), (b'"overrides"', b"{\xff"), (b",400,", b",")]
)
def test_a_damaged_journal_is_reported(text: bytes, damaged: bytes, tmp_path: Path) -> None:
    toy_search(tmp_path / "s", trials=2)
    journal = tmp_path / "s" / "journal.log"
    journal.write_bytes(journal.read_bytes().replace(text, damaged))
    with pytest.raises(ConfigError, match=r"journal.log: damaged, expected a journal of Optuna"):
        open_search(tmp_path / "s", None, {})


def test_tune_returns_a_row_for_each_trial(tmp_path: Path) -> None:
    settings = {"eval.episodes": 8, "total_timesteps": 400}
    rows = tune("xor", X, metric=METRIC, to=tmp_path / "s", settings=settings, trials=2, confirm=0)
    assert [(row["trial"], row["state"]) for row in rows] == [(0, "complete"), (1, "complete")]
    plan = json.loads((tmp_path / "s" / PLAN).read_text())
    assert plan["limits"]["trials"] == 2
    assert 'id: "Xor"' in (tmp_path / "s/config.ron").read_text()


def test_packages_import_no_optuna(tmp_path: Path) -> None:
    code = (
        "import sys, enn_trainer.cli.tune_command, enn_trainer.tuning.search;"
        "sys.exit('optuna' in sys.modules or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ, timeout=120)
