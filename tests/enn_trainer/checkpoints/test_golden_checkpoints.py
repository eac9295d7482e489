"""A save of every released version is readable forever: it plays as it did, and goes on.

`tests/golden/make_checkpoint.py` makes them, one before each release.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, StateManager, load_agent, train
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints import state_files
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from tests.enn_trainer.checkpoints.builders import (
    NEWEST,
    VERSIONS,
    resaved,
)
from tests.golden.make_checkpoint import WITH_KINDS, Farm, LabelledFarm, labelled, said

every_version = pytest.mark.parametrize("path", VERSIONS, ids=lambda path: path.name)
OF_KINDS = sorted(WITH_KINDS.iterdir())


def test_this_version_has_a_golden_checkpoint() -> None:
    assert NEWEST in VERSIONS, "type: python tests/golden/make_checkpoint.py"
    assert WITH_KINDS / NEWEST.name in OF_KINDS, "type: python tests/golden/make_checkpoint.py"


@every_version
def test_golden_checkpoint_is_complete_and_small(path: Path) -> None:
    (save,) = RunDir(path).saved_paths()
    assert saves.verify(save).step == 64
    assert sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) < 300_000


@every_version
def test_golden_agent_reproduces_its_outputs(path: Path) -> None:
    cases = json.loads((path / "expected.json").read_text())
    for case, answer in zip(cases, said(path, [case["frame"] for case in cases]), strict=True):
        assert answer["value"] == pytest.approx(case["value"], abs=1e-6)
        assert answer["probs"].keys() == case["probs"].keys() == {"move", "watch", "call"}
        for name, probs in case["probs"].items():
            np.testing.assert_allclose(answer["probs"][name], probs, atol=1e-6)
    assert load_agent(path).act(Farm().reset()).actions


def resumed(tmp_path: Path, path: Path, world: type[Farm] = Farm) -> StateManager:
    """The run of a save after one more update."""
    manager = StateManager(
        init_path=path,
        checkpoint_dir=tmp_path / "run",
        overrides=["total_timesteps=96", f"data_dir={tmp_path}"],
    )
    before = {name: t.clone() for name, t in manager.state.agent.state_dict().items()}
    count, restart = steps_of(manager), manager.state.restart
    train(manager, world)
    assert (manager.state.step, manager.state.restart) == (96, restart + 1)
    assert steps_of(manager) > count
    after = manager.state.agent.state_dict()
    assert any(not torch.equal(after[name], tensor) for name, tensor in before.items())
    assert find(tmp_path / "run").step == 96
    return manager


def steps_of(manager: StateManager) -> float:
    """How many steps the optimizer took for the parameter that it moved most often."""
    entries = manager.state.optimizer.state.values()
    return max((float(entry["step"]) for entry in entries), default=0.0)


@pytest.mark.slow
@every_version
def test_golden_run_resumes(path: Path, tmp_path: Path) -> None:
    manager = resumed(tmp_path, path)
    assert steps_of(manager) == 18  # three epochs of two minibatches in each of three updates
    assert manager.state.reward_scaling is not None
    assert manager.state.ent_tunings.keys() == {"move"}


@pytest.mark.parametrize("path", OF_KINDS, ids=lambda path: path.name)
def test_golden_checkpoint_with_categorical_features_resumes(path: Path, tmp_path: Path) -> None:
    cases = json.loads((path / "expected.json").read_text())
    frames = [case["frame"] for case in cases]
    for case, answer in zip(cases, said(path, frames, labelled), strict=True):
        assert answer["value"] == pytest.approx(case["value"], abs=1e-6)
        for name, probs in case["probs"].items():
            np.testing.assert_allclose(answer["probs"][name], probs, atol=1e-6)
    manager = resumed(tmp_path, path, LabelledFarm)
    assert manager.state.obs_space == LabelledFarm().obs_space()
    assert steps_of(manager) == 18


# The first version of states


def test_old_golden_checkpoints_resume_with_defaults_of_new_fields(tmp_path: Path) -> None:
    path = resaved(tmp_path)
    assert load_agent(path).act(Farm().reset()).actions
    manager = resumed(tmp_path, path)
    assert steps_of(manager) == 18


@pytest.mark.parametrize("future", [state_files.STATE_VERSION + 1, 10**9])
def test_state_from_the_future_is_refused(future: int, tmp_path: Path) -> None:
    """The published program took what it did not know for its own."""
    path = resaved(tmp_path, version=future)
    for use in (load_agent, lambda path: StateManager(init_path=path).state):
        with pytest.raises(CheckpointError, match="newer version"):
            use(path)
