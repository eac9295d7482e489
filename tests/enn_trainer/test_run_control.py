"""What happens with a run that is in the folder already, and which settings it may change."""

import copy
import dataclasses
import shutil
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from enn_trainer import CheckpointError, ConfigError, StateManager, TrainConfig, train
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.migrate.config_diff import (
    FIXED,
    FREE,
    REPORTED,
    changes,
    fixed_changes,
    reported_changes,
)
from enn_trainer.checkpoints.run_dir import PINS, RunDir
from enn_trainer.cli import run as enn
from enn_trainer.config import BCConfig, CheckpointConfig, EvalConfig
from enn_trainer.config.load import load_config
from entity_env import Observation
from rogue_net import RogueNetConfig
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.checkpoints.failing_disk import failing_disk
from tests.enn_trainer.checkpoints.published import GOLDEN
from tests.enn_trainer.one_line import refused
from tests.enn_trainer.worlds import Meadow


def command(tmp_path: Path, *arguments: str, total: int = 24) -> list[str]:
    settings = [*SMALL[:-1], f"total_timesteps={total}", f"data_dir={tmp_path}"]
    return ["train", "env.id=Xor", *settings, "--checkpoint-dir", str(tmp_path / "run"), *arguments]


def tree(folder: Path) -> dict[str, bytes]:
    """The files of a folder and what is in them."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def steps(run_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in RunDir(run_dir).saved_paths())


# Flags


def test_an_existing_run_is_not_continued_silently(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(command(tmp_path)) == 0
    before = tree(tmp_path / "run")
    for more in ([], ["--resume-from", str(tmp_path / "run")], ["--print-config"], ["--dry-run"]):
        said = refused(command(tmp_path, *more), capsys)
        for word in ("--checkpoint-dir", "--resume", "--force", "--resume-or-start", "0024"):
            assert word in said
    assert tree(tmp_path / "run") == before


def test_resume_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(command(tmp_path)) == 0
    assert enn(command(tmp_path, "--resume", total=48)) == 0
    assert "at step 24" in capsys.readouterr().out
    assert steps(tmp_path / "run")[-1] == 48


@pytest.mark.parametrize("more", [[], ["--resume-from", "other"]])
def test_resume_without_a_run_is_refused(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(tmp_path, "total_timesteps=24", checkpoint_dir=tmp_path / "other")
    more = [str(tmp_path / word) if word == "other" else word for word in more]
    said = refused(command(tmp_path, "--resume", *more), capsys)
    assert "--resume: expected a run to continue" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("flag", ["--resume", "--resume-or-start", "--force"])
def test_a_flag_about_a_folder_requires_a_folder(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{flag}: expected the folder" in refused(["train", *SMALL, flag], capsys)


@pytest.mark.parametrize("other", ["--resume", "--resume-or-start"])
def test_flags_that_contradict_each_other_are_refused(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(command(tmp_path, other, "--force"), capsys)
    assert f"{other} and --force: expected one of them" in said


def test_resume_or_start_starts_and_then_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for total in (24, 48):
        assert enn(command(tmp_path, "--resume-or-start", total=total)) == 0
    assert "at step 24" in capsys.readouterr().out
    assert steps(tmp_path / "run")[-1] == 48


@pytest.mark.slow
def test_force_starts_over_and_sets_aside_the_old_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert enn(command(tmp_path, total=48)) == 0
    (run_dir / "mine.txt").write_text("not of the run")
    before = tree(run_dir)
    assert enn(command(tmp_path, "--force")) == 0
    assert "resumed" not in capsys.readouterr().out.split("the run that was here is in")[1]
    (aside,) = run_dir.glob(".replaced-*")
    assert tree(aside) == {
        name: data for name, data in before.items() if name not in ("mine.txt", ".lock")
    }
    assert (run_dir / "mine.txt").read_text() == "not of the run"
    assert 48 not in steps(run_dir)
    assert enn(command(tmp_path, "--resume", total=48)) == 0
    assert "at step 24" in capsys.readouterr().out
    assert StateManager(init_path=aside).state.step == 48, "it can still be used"


def test_force_twice_within_a_second_keeps_both_runs(tmp_path: Path) -> None:
    for flags in ([], ["--force"], ["--force"]):
        assert enn(command(tmp_path, *flags)) == 0
    asides = list((tmp_path / "run").glob(".replaced-*"))
    assert [steps(aside)[-1] for aside in asides] == [24, 24]


def test_force_without_a_run_starts_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(command(tmp_path, "--force")) == 0
    assert "the run that was here" not in capsys.readouterr().out
    assert not list((tmp_path / "run").glob(".replaced-*"))


@pytest.mark.parametrize("moved", range(5))
def test_failing_to_set_aside_a_run_loses_nothing(
    moved: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is moved before a move fails, the newest saves are those that stay."""
    for step in (1, 2, 3):
        writer.save(tmp_path, step, {"a": b"b"}, "test")
    RunDir(tmp_path).prune(CheckpointConfig())
    rename, count = Path.rename, iter(range(5))

    def failing(path: Path, target: Path) -> Path:
        if next(count) == moved:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    if moved == 4:  # one more than there is
        assert RunDir(tmp_path).set_aside() is not None
        return
    with pytest.raises(CheckpointError, match=r"--force: .* Input/output error"):
        RunDir(tmp_path).set_aside()
    assert steps(tmp_path) == [1, 2, 3][moved:]
    assert sorted(path.parent.name for path in tmp_path.rglob("manifest.json")) == [
        f"step-{step:012d}" for step in (1, 2, 3)
    ]


def test_a_save_with_a_pickle_is_set_aside(tmp_path: Path) -> None:
    save = writer.save(tmp_path, 1, {"a": b"b"}, "test").path
    (save / "state.agent.pickle").write_bytes(b"")
    assert RunDir(tmp_path).all_saves() == [save]
    aside = RunDir(tmp_path).set_aside()
    assert aside is not None
    assert RunDir(aside).all_saves() == [aside / save.name]


def test_pins_are_set_aside_after_a_failed_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the saves of the next run, which have the same names, would be pinned."""
    name = writer.save(tmp_path, 1, {"a": b"b"}, "test").path.name
    RunDir(tmp_path).pin(name, "of the old run")
    RunDir(tmp_path).prune(CheckpointConfig())
    rename = Path.rename

    def failing(path: Path, target: Path) -> Path:
        if path.name == PINS:
            raise OSError(5, "Input/output error")
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", failing)
        with pytest.raises(CheckpointError, match="files that were not moved are there"):
            RunDir(tmp_path).set_aside()
    assert RunDir(tmp_path).all_saves() == []
    aside = RunDir(tmp_path).set_aside()
    assert aside is not None
    assert RunDir(tmp_path).pins() == {}
    assert list(RunDir(aside).pins().values()) == ["of the old run"]
    assert RunDir(tmp_path).set_aside() is None


@pytest.mark.slow
@pytest.mark.parametrize("more", [["--print-config"], ["--dry-run"], ["env.id=Xorr"]])
def test_nothing_is_set_aside_before_the_run_begins(more: list[str], tmp_path: Path) -> None:
    assert enn(command(tmp_path)) == 0
    before = tree(tmp_path / "run")
    enn(command(tmp_path, "--force", *more))
    assert tree(tmp_path / "run") == before


def test_nothing_is_set_aside_for_a_run_that_fails_to_begin(tmp_path: Path) -> None:
    """The file that it would record into is there already."""
    assert enn(command(tmp_path, "capture_samples=a.rec")) == 0
    before = tree(tmp_path / "run")
    assert enn(command(tmp_path, "capture_samples=a.rec", "--force")) == 2
    assert tree(tmp_path / "run") == {**before, ".lock": ANY}


class NoReset(Meadow):
    """A world that cannot begin."""

    def reset(self) -> Observation:
        raise ZeroDivisionError("mine")


def test_nothing_is_set_aside_if_the_environment_fails(tmp_path: Path) -> None:
    train(manager(tmp_path, "continue"), Meadow)
    before = tree(tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(manager(tmp_path, "replace"), NoReset)
    assert tree(tmp_path / "run") == {**before, ".lock": ANY}


def test_the_old_run_is_restored_if_the_new_run_cannot_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(manager(tmp_path, "continue"), Meadow)
    before = tree(tmp_path / "run")
    with monkeypatch.context() as patch:
        failing_disk(patch, lambda call: True)
        with pytest.raises(CheckpointError, match="No space left"):
            train(manager(tmp_path, "replace"), Meadow)
    assert tree(tmp_path / "run") == {**before, ".lock": ANY}
    assert not list((tmp_path / "run").glob(".replaced-*"))


@pytest.mark.slow
def test_force_may_start_from_a_save_of_the_run_that_it_replaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A way back to an earlier save: it is another run, which does not write into the old logs."""
    assert enn(command(tmp_path)) == 0
    assert enn(command(tmp_path, "--resume", total=48)) == 0
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    capsys.readouterr()
    start = ["--resume-from", f"{tmp_path / 'run'}@24"]
    where = ["--checkpoint-dir", str(tmp_path / "run"), "--force", *start]
    assert enn(["train", *where, "total_timesteps=72"]) == 0
    assert "at step 24" in capsys.readouterr().out
    assert steps(tmp_path / "run")[-1] == 72
    assert 48 not in steps(tmp_path / "run")
    (aside,) = (tmp_path / "run").glob(".replaced-*")
    assert (aside / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.slow
def test_a_run_in_the_folder_takes_precedence_over_resume_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(command(tmp_path)) == 0
    other = str(tmp_path / "other")
    assert enn([*command(tmp_path, total=48)[:-1], other]) == 0
    capsys.readouterr()
    assert enn(command(tmp_path, "--resume", "--resume-from", other, total=48)) == 0
    said = capsys.readouterr().out
    assert f"{other} is not used" in said
    assert "at step 24" in said


# What counts as a run


def test_damaged_saves_are_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(command(tmp_path)) == 0
    for path in RunDir(tmp_path / "run").saved_paths():
        (path / "manifest.json").write_text("{")
    assert "has one" in refused(command(tmp_path), capsys)
    assert "no valid checkpoint" in refused(command(tmp_path, "--resume"), capsys)
    assert enn(command(tmp_path, "--force")) == 0


def test_a_run_of_0_1_16_is_not_overwritten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "run/latest-step000000004096"
    shutil.copytree(GOLDEN, old)
    before = tree(old)
    assert "has one" in refused(command(tmp_path), capsys)
    assert enn(command(tmp_path, "--force")) == 0
    (aside,) = (tmp_path / "run").glob(".replaced-*/latest-step*")
    assert tree(aside) == before


def test_other_folders_are_not_runs(tmp_path: Path) -> None:
    """A higher number in a foreign name hides nothing, and is no reason to begin at step 0."""
    run_dir = tmp_path / "run"
    for name in ("best-step000000000099", "step-12", "checkpoint-000000000099", ".writing-x"):
        (run_dir / name).mkdir(parents=True)
    (run_dir / "step-000000000007").write_text("a file")
    assert RunDir(run_dir).all_saves() == []
    assert enn(command(tmp_path)) == 0
    assert enn(command(tmp_path, "--resume", total=48)) == 0
    assert steps(run_dir)[-1] == 48


@pytest.mark.parametrize("flag", [[], ["--resume"], ["--force"]])
def test_a_save_is_refused_as_the_folder_of_a_run(
    flag: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(command(tmp_path)) == 0
    save = str(RunDir(tmp_path / "run").saved_paths()[0])
    said = refused(["train", *SMALL, "--checkpoint-dir", save, *flag], capsys)
    assert "got a checkpoint" in said


# In Python


def manager(tmp_path: Path, existing: Any, total: int = 24) -> StateManager:
    settings = [*SMALL[:-1], f"total_timesteps={total}", f"data_dir={tmp_path}"]
    return StateManager(checkpoint_dir=tmp_path / "run", overrides=settings, existing=existing)


def test_managers_have_the_same_rules(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="--resume: expected a run"):
        manager(tmp_path, "resume").config  # noqa: B018
    train(manager(tmp_path, "refuse"), Meadow)
    with pytest.raises(CheckpointError, match=r"--force \(overwrite=True\) starts over"):
        manager(tmp_path, "refuse").config  # noqa: B018
    for existing in ("resume", "continue"):
        assert manager(tmp_path, existing).state.step == 24
    replacing = manager(tmp_path, "replace")
    train(replacing, Meadow)
    assert replacing.state.restart == 0
    train(replacing, Meadow)
    assert len(list((tmp_path / "run").glob(".replaced-*"))) == 1, "its own saves stay"


def test_an_unknown_value_of_existing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"existing: expected one of continue, .* got 'force'"):
        manager(tmp_path, "force")


# Settings


@pytest.mark.slow
def test_changed_settings_are_reported_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(command(tmp_path)) == 0
    capsys.readouterr()
    more = ["optim.lr=0.003", "eval.steps=4", "rollout.processes=2", "track=false"]
    assert enn(command(tmp_path, "--resume", *more, total=48)) == 0
    (said,) = (line for line in capsys.readouterr().out.splitlines() if "changed from" in line)
    assert said.removeprefix("changed from the save: ").split(", ") == [
        "optim.lr 0.001 -> 0.003",
        "eval None -> (steps: 4)",
    ]


def test_unchanged_settings_are_not_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kwargs = 'env.kwargs={"a":1}'
    config = load_config(TrainConfig, None, [kwargs])
    same = load_config(TrainConfig, None, ['env.kwargs={"a": 1}'])
    assert changes(config, same) == []
    assert enn(command(tmp_path)) == 0
    capsys.readouterr()
    assert enn(command(tmp_path, "--resume", total=48)) == 0
    assert "changed from" not in capsys.readouterr().out


def whole() -> TrainConfig:
    """A configuration in which every section is there."""
    bins = ["ppo.value_loss=hl_gauss", "ppo.clip_vloss=false", "ppo.value_bins.low=-1"]
    config = load_config(TrainConfig, None, [*bins, "ppo.value_bins.high=1"])
    config.eval = EvalConfig(steps=1)
    config.vf_net = RogueNetConfig()
    config.bc = BCConfig("a.rec")
    return config


def leaves(section: Any, path: str = "") -> Iterator[str]:
    for field in dataclasses.fields(section):
        value, where = getattr(section, field.name), f"{path}{field.name}"
        if dataclasses.is_dataclass(value):
            yield from leaves(value, f"{where}.")
        else:
            yield where


WHOLE = whole()
SECTIONS = {path.rpartition(".")[0] for path in leaves(WHOLE)} - {""}


def kind_of(path: str) -> str:
    """What becomes of a change of a field in a run that continues."""
    changed = copy.deepcopy(WHOLE)
    *sections, name = path.split(".")
    section = reduce(getattr, sections, changed)
    other = '{"other": 1}' if name == "kwargs" else "other"
    setattr(section, name, other)
    found = changes(WHOLE, changed)
    assert [change.path for change in found] == [path]
    return "refused" if fixed_changes(found) else "reported" if reported_changes(found) else "free"


@pytest.mark.parametrize("path", list(leaves(WHOLE)))
def test_every_field_is_refused_reported_or_free_for_a_reason(path: str) -> None:
    parents = [path.rsplit(".", i)[0] for i in range(path.count(".") + 1)]
    settled = {"refused": FIXED, "free": FREE}.get(kind_of(path), ())
    if path in REPORTED:  # an exception to what holds for its section
        assert (kind_of(path), parents[-1] in FIXED) == ("reported", True)
        return
    rows = [p for table in (FIXED, FREE) for p in parents if p in table]
    assert rows == [p for p in parents if p in settled], "by one table only"
    assert len(rows) <= 1


def test_documented_reasons_name_existing_fields() -> None:
    known = {*leaves(WHOLE), *SECTIONS, "checkpoint"}
    assert {*FIXED, *FREE, *REPORTED} <= known
    assert {kind_of(path) for path in leaves(WHOLE)} == {"refused", "reported", "free"}
    for path in ("optim.lr", "ppo.gamma", "seed", "env.kwargs", "rollout.steps", "bc.coef"):
        assert kind_of(path) == "reported"
