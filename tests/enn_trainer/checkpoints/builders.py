"""Saves of earlier releases, and damaged ones."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.lookup import find
from enn_trainer.config import ron
from tests.golden.make_checkpoint import CHECKPOINTS

FIRST_FIELDS = ("version", "step", "restart", "next_eval_step", "obs_space", "action_space")
FIRST_FILES = ("config.ron", "state.ron", "state.agent.safetensors", "state.optimizer.safetensors")
NEWEST = CHECKPOINTS / version("enn-trainer")
VERSIONS = sorted(path for path in CHECKPOINTS.iterdir() if path.is_dir())


def resaved(tmp_path: Path, **changes: Any) -> Path:
    """The save of this version with what the first version had, and changes of `state.ron`."""
    saved = find(NEWEST)
    files = {name: saved.read(name) for name in FIRST_FILES}
    state = ron.loads(files["state.ron"].decode())
    first = {name: state[name] for name in FIRST_FIELDS} | {"version": 1} | changes
    files["state.ron"] = ron.dumps(ron.Struct("State", first)).encode()
    (tmp_path / "old").mkdir()
    return writer.save(tmp_path / "old", saved.step, files, "test").path
