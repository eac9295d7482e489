"""Saves as small as they get, to damage: ours with every file, and one of enn_trainer 0.1.16."""

import contextlib
import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from enn_trainer import StateManager, train
from enn_trainer.checkpoints.manifest import MANIFEST, new_manifest, own_hash
from tests.enn_trainer.selfplay.joust import run, saves_of
from tests.enn_trainer.worlds import Pasture

GOLDEN = Path(__file__).parents[1] / "golden" / "checkpoint_enn_trainer_0.1.16"
SETTINGS = [
    "rollout.num_envs=2",
    "rollout.steps=4",
    "rollout.processes=1",
    "optim.bs=8",
    "optim.update_epochs=1",
    "net.d_model=2",
    "net.n_head=1",
    "net.n_layer=1",
    "net.d_qk=1",
]
LEARNS_MORE = ["ppo.reward_scaling=true", 'ppo.ent_targets={"walk": 0.5}']


def new_save(folder: Path) -> Path:
    """The last checkpoint of a run of two updates, without empty files.

    It is alone in its folder, so that nothing else can be loaded in its place.
    """
    overrides = [*SETTINGS, *LEARNS_MORE, "total_timesteps=16", f"data_dir={folder}"]
    manager = StateManager(overrides=overrides, checkpoint_dir=folder / "run")
    with contextlib.redirect_stdout(io.StringIO()):
        saved = train(manager, Pasture).checkpoint
    assert saved is not None
    (folder / "saves").mkdir()
    return saved.rename(folder / "saves" / saved.name)


def save_with_pool(folder: Path) -> Path:
    """The last save of a run of two updates with three opponents in it, alone in its folder."""
    with contextlib.redirect_stdout(io.StringIO()):
        run(folder / "run", 2, *SETTINGS[5:], f"data_dir={folder}")
    saved = saves_of(folder / "run")[-1]
    (folder / "saves").mkdir()
    return saved.rename(folder / "saves" / saved.name)


def copy_of_published(folder: Path) -> Path:
    """A save of enn_trainer 0.1.16."""
    names = ("config.ron", "state.ron", "state.agent.msgpack")
    target = folder / "published"
    target.mkdir()
    for name in names:
        shutil.copy(GOLDEN / name, target)
    return target


def write_whole(save: Path, files: Mapping[str, bytes], name: str, damaged: bytes) -> None:
    """Change a file of a checkpoint, and update all hashes.

    Args:
        save: its folder.
        files: their content by name.
        name: of the file to change.
        damaged: its new content.
    """
    if name == MANIFEST:
        with contextlib.suppress(ValueError, RecursionError, TypeError):
            content = json.loads(damaged)
            content["sha256"] = own_hash(content)
            damaged = json.dumps(content, indent=1).encode()
    elif MANIFEST in files:
        before = json.loads(files[MANIFEST])
        changed = {one: files[one] for one in before["files"]} | {name: damaged}
        known = new_manifest(before["step"], changed, before["why"], {})
        facts = {key: value for key, value in before.items() if key not in json.loads(known)}
        (save / MANIFEST).write_bytes(new_manifest(before["step"], changed, before["why"], facts))
    (save / name).write_bytes(damaged)
