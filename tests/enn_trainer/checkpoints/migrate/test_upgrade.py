"""Old checkpoints are written anew, and are then as good as if they had been saved today."""

import shutil
from pathlib import Path

import pytest
import torch

from enn_trainer import CheckpointError, StateManager, load_agent, train
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import upgrade_checkpoint
from enn_trainer.checkpoints.saved_state import REST
from enn_trainer.checkpoints.state_files import to_files
from entity_env.examples import CherryPick
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.checkpoints.builders import NEWEST, VERSIONS, resaved
from tests.enn_trainer.checkpoints.published import GOLDEN, NAMES, moments_of, published
from tests.golden.make_checkpoint import Farm, said


def same(one: StateManager, other: StateManager) -> None:
    """Weights, statistics, moments, clocks, spaces and settings, to the last bit.

    But for whose logs they continue: an upgraded run has its own.
    """
    for manager in (one, other):
        manager.state.run_name, manager.state.tracker_ids = "", {}
    files = to_files(one.config, one.state)
    assert files.keys() == (others := to_files(other.config, other.state)).keys()
    for name, data in files.items():
        if name != REST:  # it says how long things took
            assert data == others[name], name


@pytest.mark.slow
@pytest.mark.parametrize("path", [GOLDEN, *VERSIONS], ids=lambda path: path.name)
def test_upgraded_checkpoint_keeps_the_whole_state(path: Path, tmp_path: Path) -> None:
    saved = upgrade_checkpoint(path, tmp_path / "new")
    assert checkpoint.verify(saved.path).step == find(path).step
    assert saved.manifest["why"] == f"upgraded from {find(path).path.name}"
    same(StateManager(init_path=path), StateManager(init_path=tmp_path / "new"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES[::3])
def test_every_published_network_is_upgraded(name: str, tmp_path: Path) -> None:
    """Some of them: all are written alike, and `test_legacy_0_1_16.py` reads each."""
    path = published(tmp_path / "latest-step000000000512", name)
    saved = upgrade_checkpoint(tmp_path, tmp_path / "new")
    one, other = StateManager(init_path=path), StateManager(init_path=saved.path)
    for key, tensor in moments_of(one).items():
        assert torch.equal(moments_of(other)[key], tensor)
    same(one, other)


@pytest.mark.slow
def test_upgraded_run_continues_like_the_original(tmp_path: Path) -> None:
    upgrade_checkpoint(GOLDEN, tmp_path / "new")
    runs = []
    for path in (GOLDEN, tmp_path / "new"):
        settings = ["total_timesteps=4608", f"data_dir={tmp_path}"]
        manager = StateManager(init_path=path, overrides=settings)
        train(manager, CherryPick)
        manager.state.time_used = 0.0
        runs.append(manager)
    same(*runs)


def test_save_of_the_first_version_is_upgraded(tmp_path: Path) -> None:
    old = resaved(tmp_path)
    saved = upgrade_checkpoint(old, tmp_path / "new")
    assert set(saved.manifest["files"]) >= set(find(NEWEST).manifest["files"])
    frame = {"hour": 0, "Sheep": [[0.5, 1.0, 2.0]], "Wolf": [[1.0, 1.0]], "Stone": 1}
    frame["allowed"] = None
    assert said(saved.path, [frame]) == said(old, [frame])
    assert load_agent(saved.path).act(Farm().reset()).actions


@pytest.mark.slow
def test_upgrade_keeps_the_old_checkpoint_and_refuses_an_existing_run(tmp_path: Path) -> None:
    old = Path(shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096"))
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    saved = upgrade_checkpoint(tmp_path / "run", tmp_path / "new")
    assert saved.path == tmp_path / "new/step-000000004096"
    other = writer.save(tmp_path, 7, {}, "of another step")
    for used in (tmp_path / "run", tmp_path / "new", tmp_path, old, saved.path, other.path):
        with pytest.raises(CheckpointError, match="expected a folder for a new run, got "):
            upgrade_checkpoint(old, used)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_upgraded_run_does_not_write_into_the_logs_of_the_old_one(tmp_path: Path) -> None:
    settings = [*SMALL, f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    train(manager, CherryPick)
    assert manager.state.run_name
    manager.state.tracker_ids = {"wandb": "abc"}
    manager.checkpoint(str(tmp_path / "other"))
    metrics = tmp_path / "run/metrics.jsonl"
    before = metrics.read_bytes()
    upgrade_checkpoint(tmp_path / "other", tmp_path / "new")
    more = [f"total_timesteps={manager.state.step + 24}"]
    upgraded = StateManager(checkpoint_dir=tmp_path / "new", overrides=more)
    assert (upgraded.state.run_name, upgraded.state.tracker_ids) == ("", {})
    train(upgraded, CherryPick)
    assert upgraded.state.step == manager.state.step + 24
    assert metrics.read_bytes() == before


def test_invalid_checkpoint_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint directory, got none"):
        upgrade_checkpoint(tmp_path / "nothing", tmp_path / "new")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="got neither"):
        upgrade_checkpoint(tmp_path / "empty", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_custom_network_is_upgraded(tmp_path: Path) -> None:
    def network() -> RogueNet:
        world = CherryPick()
        config = RogueNetConfig(d_model=12, n_layer=1)
        return RogueNet(config, world.obs_space(), world.action_space(), {"value": 1})

    manager = StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}"], checkpoint_dir=tmp_path / "run"
    )
    train(manager, CherryPick, agent=network())
    saved = upgrade_checkpoint(tmp_path / "run", tmp_path / "new", agent=network())
    assert load_agent(saved.path, agent=network()).act(CherryPick().reset()).actions
