"""Lessons in what commands show of saves, and in upgrades."""

from pathlib import Path

import pytest

from enn_trainer import StateManager, Trainer, load_checkpoint
from enn_trainer.cli import run as enn
from enn_trainer.curriculum.lessons import Lessons
from entity_env.examples import Locks
from tests.enn_trainer.resuming import go

CHAIN = """
from entity_env.examples.locks import Locks

class Chain(Locks):
    def __init__(self, size=12, keys=3):
        super().__init__(size, keys)

    def set_parameters(self, size=None, keys=None):
        super().set_parameters(size, keys)
"""
SETTINGS = [
    *("rollout.num_envs=6", "rollout.steps=8", "rollout.processes=1", "optim.bs=16", "cuda=false"),
    *("net.d_model=8", "net.n_layer=1", "total_timesteps=144", "env.id=Locks"),
    'curricula={"c": (lessons: [(name: "a", vary: {"length": "1"}, until: ["step >= 48"]), (name: '
    '"b", vary: {"length": "int 1 3"}, until: ["opened.mean >= 9"], back: ["parameters/length.mean '
    '<= 0"]), (name: "z", vary: {"length": "9"})])}',
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("taught")
    (folder / "chain.py").write_text(CHAIN)
    go(folder, Locks, *SETTINGS)
    return folder


def said(capsys: pytest.CaptureFixture[str], *command: object, status: int = 0) -> str:
    capsys.readouterr()
    assert enn([*map(str, command)]) == status
    out = capsys.readouterr()
    return out.out + out.err


@pytest.mark.parametrize("command", [["inspect"], ["checkpoints", "show"]])
def test_curriculum_stages_are_listed_with_reasons_and_measurements(
    folder: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    text = said(capsys, *command, folder / "run")
    lines = [" ".join(line.split()) for line in text.splitlines() if line.startswith("c ")]
    assert lines[0] == "c a 0 the run began"
    assert lines[1] == "c b (current) 48 step >= 48: 48"
    assert lines[2].endswith("episodes ended")
    assert lines[3].startswith("c until opened.mean >= 9: ")
    assert lines[3].endswith("of 100 episodes")
    assert lines[4].startswith("c back parameters/length.mean <= 0: ")
    assert lines[5] == "c z not yet"


def test_diff_compares_curriculum_stages(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = folder / "run"
    text = said(capsys, "checkpoints", "diff", f"{run}@0", f"{run}@144", status=1)
    rows = [line.split() for line in text.splitlines() if line.startswith("c.")]
    assert rows[:2] == [["c.lesson", '"a"', '"b"'], ["c.began", "0", "48"]]


@pytest.mark.slow
def test_evolve_keeps_curriculum_stages_and_renames_their_arguments(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    world = ["--env", folder / "chain.py:Chain", "--to", tmp_path / "run"]
    text = said(capsys, "checkpoints", "evolve", folder / "run", *world, status=2)
    assert "curricula['c']: expected an argument of Chain, which can vary size, keys" in text
    assert not (tmp_path / "run").exists()
    text = said(
        capsys, "checkpoints", "evolve", folder / "run", *world, "--rename", "parameter:lngth=size",
        status=2,
    )  # fmt: skip
    assert "did you mean parameter:length" in text
    rename = ["--rename", "parameter:length=size"]
    said(capsys, "checkpoints", "evolve", folder / "run", *world, *rename)
    before, after = (load_checkpoint(path / "run").state for path in (folder, tmp_path))
    old, new = before.parts["curriculum"], after.parts["curriculum"]
    assert isinstance(old, Lessons)
    assert isinstance(new, Lessons)
    assert new.curricula["c"].samplers == {"size": "int 1 3"}
    measured = old.curricula["c"].plain()["complete"]
    assert len(measured["parameters/length.mean"]) > 0
    assert new.curricula["c"].plain()["complete"] == {
        tag.replace("parameters/length", "parameters/size"): x for tag, x in measured.items()
    }
    assert "parameters/length" not in new.curricula["c"].rounds.tallies
    settings = ["total_timesteps=192", f"env.id={folder / 'chain.py'}:Chain"]
    said(capsys, "resume", tmp_path / "run", *settings)
    assert "parameters/size.max" in load_checkpoint(tmp_path / "run").state.metrics


def test_arguments_cannot_be_renamed_to_the_same_name(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also one of a lesson and one that a program set."""
    manager = StateManager(overrides=SETTINGS, checkpoint_dir=tmp_path / "old")
    with Trainer(manager, Locks) as trainer:
        trainer.set_parameters({"keys": "int 2 4"})
        trainer.step()
        trainer.save()
    command = ["checkpoints", "evolve", tmp_path / "old", "--env", folder / "chain.py:Chain"]
    rename = ["--to", tmp_path / "new", "--rename", "parameter:length=keys"]
    text = said(capsys, *command, *rename, status=2)
    assert "rename: expected distinct new names for keys, length" in text
    rename[-1] = "parameter:length=size"
    said(capsys, *command, *rename)
    new = load_checkpoint(tmp_path / "new").state.parts["curriculum"]
    assert isinstance(new, Lessons)
    assert new.parameters == {"keys": "int 2 4"}


@pytest.mark.slow
def test_evolve_keeps_and_checks_the_arguments_of_evaluations(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Those that vary nowhere else have names, too, and are played in the new environment."""
    big = '{"big": (env: (vary: {"keys": "int 3 4"}))}'
    evals = [
        *("eval.episodes=6", "eval.interval=48", 'eval.env.vary.size="int 2 3"'),
        f"eval.suites={big}",
    ]
    old, new = f"{folder / 'chain.py'}:Chain", f"{folder / 'ring.py'}:Ring"
    ring = CHAIN.replace("Chain", "Ring").replace("keys", "shapes")
    (folder / "ring.py").write_text(ring)
    settings = [*SETTINGS[:-2], f"env.id={old}", *evals]
    run = tmp_path / "old"
    said(capsys, "train", *settings, "--checkpoint-dir", run, "total_timesteps=48")
    command = ["checkpoints", "evolve", run, "--env", new, "--to", tmp_path / "new"]
    text = said(capsys, *command, status=2)
    assert "eval.suites['big'].env.vary: expected an argument of Ring" in text
    assert "did you mean" not in text
    assert not (tmp_path / "new").exists()
    said(capsys, *command, "--rename", "parameter:keys=shapes")
    config = load_checkpoint(tmp_path / "new").config
    assert config.eval is not None
    assert config.eval.env is not None
    assert config.eval.env.id == new
    assert config.eval.env.vary == {"size": "int 2 3"}
    said(capsys, "resume", tmp_path / "new", f"env.id={new}", "total_timesteps=96")
    assert "eval/big/opened.mean" in load_checkpoint(tmp_path / "new").state.metrics


def test_initial_weights_do_not_restore_the_curriculum(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    begin = ["--init-from", folder / "run", "--checkpoint-dir", tmp_path / "run"]
    text = said(capsys, "train", *SETTINGS[:-1], *begin, "total_timesteps=48")
    assert "curricul" not in text
    assert load_checkpoint(tmp_path / "run").state.parts["curriculum"].state_dict() == {}
