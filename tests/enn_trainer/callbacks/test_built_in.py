"""The lines with which a run begins, and the returns that it keeps."""

import functools
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer.callbacks import built_in
from enn_trainer.callbacks.built_in import RETURNS
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli import run
from enn_trainer.cli.work import train
from enn_trainer.run.trainer import Trainer
from enn_trainer.runtime.trust import TYPED
from entity_env.examples import MultiArmedBandit, TreasureHunt, Xor
from rogue_net.native import compiled
from tests.enn_trainer.builders import SMALL, manager_of, run_small
from tests.enn_trainer.worlds import Meadow

BANDIT = ["env.id=MultiArmedBandit", "rollout.steps=32"]
WORLD = """\
from entity_env.examples import Xor

class Failing(Xor):
    def act(self, actions):
        raise SystemExit("no")
"""


def small(tmp_path: Path, *more: str) -> list[str]:
    return ["train", *SMALL, f"data_dir={tmp_path}", *more]


def test_run_starts_with_its_header(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built_in, "advice", lambda: None)
    monkeypatch.setattr(train, "RANDOM_SECONDS", 100.0)
    where = ["--checkpoint-dir", str(tmp_path / "run")]
    assert run(small(tmp_path, "env.id=Duel", "seed=3", *where)) == 0
    lines = capsys.readouterr().out.splitlines()
    parameters = sum(
        p.numel() for p in StateManager(init_path=tmp_path / "run").state.agent.parameters()
    )
    assert lines[:2] == [
        "Duel  entities: Ally, Enemy  actions: attack",
        f"{parameters:,} parameters on cpu  1 process  seed 3  folder {tmp_path}/run",
    ]
    assert lines[2].startswith("random play: return ")
    assert lines[3].startswith("step ")


def test_long_lists_of_types_are_truncated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(built_in, "MOST_NAMES", 1)
    run_small(tmp_path, env=Meadow)
    assert ", ...  actions: " in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize(("extent", "is_large"), [(1, False), (40, True)])
def test_large_relative_position_encoding_is_reported(
    extent: int, is_large: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    relpos = (
        f"net.relpos_encoding=(extent: [{extent}, {extent}], position_features: [x_pos, y_pos])"
    )
    run_small(tmp_path, relpos, "net.d_model=8", env=TreasureHunt)
    out = capsys.readouterr().out
    assert ("net.relpos_encoding has" in out.splitlines()[2]) == is_large


def test_missing_compiled_code_is_reported_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "AVAILABLE", False)
    monkeypatch.setattr(compiled, "PROBLEM", "older than its sources")
    monkeypatch.delenv("ROGUE_NET_NATIVE", raising=False)
    root = Path(compiled.__file__).parents[2]
    run_small(tmp_path, env=Xor)
    line = "compiled part older than its sources: about half as fast; "
    cure = f"with a C compiler, type: pip install -e {root}"
    assert line + cure in capsys.readouterr().out.splitlines()
    monkeypatch.setenv("ROGUE_NET_NATIVE", "0")
    assert str(compiled.advice()).endswith("; type: unset ROGUE_NET_NATIVE")
    monkeypatch.delenv("ROGUE_NET_NATIVE")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "a/b/c.py"))
    assert str(compiled.advice()).endswith("in a checkout, type: pip install .")


@pytest.mark.slow
def test_random_play_does_not_change_the_run(tmp_path: Path) -> None:
    result = []
    for measured in (True, False):
        manager = manager_of(tmp_path, *BANDIT, "total_timesteps=384")
        if measured:
            measure = functools.partial(train._random_return, manager.config.env, TYPED)
            manager.random_return = measure
            assert manager.random_return() is not None
        before = np.random.get_state()[1].copy()  # type: ignore[index,union-attr]  # noqa: NPY002
        with Trainer(manager, MultiArmedBandit) as trainer:
            trainer.run()
            assert np.array_equal(np.random.get_state()[1], before)  # type: ignore[arg-type,index]  # noqa: NPY002
            result.append((trainer.state.agent.state_dict(), trainer.state.memory))
    (weights, memory), (other, same) = result
    assert all(torch.equal(weights[name], other[name]) for name in weights)
    assert memory == same


def test_python_programs_create_only_the_environments_of_the_run(tmp_path: Path) -> None:
    made = []

    class Counted(Xor):
        def __init__(self) -> None:
            made.append(self)

    run_small(tmp_path, env=Counted)
    assert len(made) == 6


def test_environment_that_fails_in_random_play_is_reported_by_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worlds.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="the environment raised SystemExit: no"):
        run(small(tmp_path, "env.id=worlds.py:Failing"))
    assert "random play" not in capsys.readouterr().out


def test_slow_environments_skip_random_play(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "RANDOM_SECONDS", 0.0)
    assert run(small(tmp_path, "env.id=Xor")) == 0
    assert "random play" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("steps", [[], ["step", "step"]])
def test_a_resumed_run_keeps_the_returns_of_the_whole_run(steps: list[str], tmp_path: Path) -> None:
    straight = run_small(tmp_path, "total_timesteps=96", env=Xor)
    folder = tmp_path / "run"
    run_small(tmp_path, "total_timesteps=48", env=Xor, checkpoint_dir=folder)
    manager = manager_of(tmp_path, "total_timesteps=96", checkpoint_dir=folder)
    with Trainer(manager, Xor) as trainer:
        for step in steps:
            getattr(trainer, step)()
        trainer.run()
    assert len(straight.state.memory[RETURNS]["means"]) == 4
    assert manager.state.memory[RETURNS] == straight.state.memory[RETURNS]
