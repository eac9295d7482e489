"""Checkpoints written by enn_trainer 0.1.16, read as if this project had saved them.

run/
  latest-step000000004096/
    config.ron  state.ron       readable
    state.agent.msgpack         see `published_tensors.py`
    state.optimizer.msgpack

Nothing on the disk is changed, and nothing that is read runs: pickles are refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save as save_tensors

from enn_trainer.checkpoints.checkpoint import Checkpoint, first_valid
from enn_trainer.checkpoints.fitting_network import refuse_larger
from enn_trainer.checkpoints.manifest import FORMAT_VERSION
from enn_trainer.checkpoints.plain_file import MAX_TEXT_BYTES, read_plain_file, refuse_pickles
from enn_trainer.checkpoints.published_tensors import AGENT, published_moments, published_weights
from enn_trainer.checkpoints.saved_state import action_space_of, obs_space_of
from enn_trainer.checkpoints.state_files import OPTIMIZER, WEIGHTS
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.settings import ron
from enn_trainer.settings.config_io import dump_config, load_config

_SAVE_NAME = re.compile(r"latest-step(\d+)")
_PICKLED = ('"<blob:pickle>"', '"<BLOB>"')  # what hyperstate writes for something pickled


@dataclass(frozen=True)
class PublishedCheckpoint(Checkpoint):
    """A published checkpoint with the files of a save.

    Attributes:
        files: what it has in our format, but for the moments: these are read when asked for.
    """

    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes:
        """The bytes of a file of a save.

        Raises:
            CheckpointError: there is no such file, or what it is made of is damaged.
        """
        if name == OPTIMIZER:
            return save_tensors(published_moments(self.path))
        if name not in self.files:
            raise CheckpointError(f"{self.path}: has no {name}")
        return self.files[name]


def find(
    path: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> PublishedCheckpoint | None:
    """The published checkpoint that a path means: its own, or the newest valid one of a run.

    Args:
        path: a directory.
        say: told what was wrong with newer ones.
        to_continue: whether a valid one needs its moments; else they are not looked at.

    Returns:
        None if the directory is no such checkpoint and has none.

    Raises:
        CheckpointError: there are some, but none is valid.
    """
    if not path.is_dir():
        return None
    if is_published(path):
        return _converted(path)
    steps = {child: _SAVE_NAME.fullmatch(child.name) for child in path.iterdir() if child.is_dir()}
    found = sorted((int(match[1]), child) for child, match in steps.items() if match is not None)

    def read(child: Path) -> PublishedCheckpoint:
        checkpoint = _converted(child)
        if to_continue:
            checkpoint.read(OPTIMIZER)
        return checkpoint

    return first_valid(path, [child for _, child in reversed(found)], read, say)


def is_published(path: Path) -> bool:
    """Whether a directory is a published checkpoint, which may be damaged."""
    return (path / AGENT).is_file() or _is_pickled(path)


def _is_pickled(path: Path) -> bool:
    """Whether hyperstate's pickles are in a directory, which it writes for classes of any kind."""
    if any(path.glob("state.*.pickle")):
        return True
    state = path / "state.ron"
    if not state.is_file():
        return False
    text = read_plain_file(state, MAX_TEXT_BYTES).decode(errors="replace")
    return any(mark in text for mark in _PICKLED)


def _converted(path: Path) -> PublishedCheckpoint:
    """Read a published checkpoint, but for the moments.

    Raises:
        CheckpointError: something is missing or damaged, or is no such checkpoint.
    """
    if _is_pickled(path):
        raise CheckpointError(
            f"{path}: expected tensors in {AGENT}, got pickles; reading a pickle runs what is in "
            "it, so none is read; save the weights alone, as safetensors, where the checkpoint is "
            "from"
        )
    refuse_pickles(path)
    try:
        config = load_config(TrainConfig, None, text=_text(path / "config.ron"))
        state = _state(ron.loads(_text(path / "state.ron"), named=True).fields)
        state_text = ron.dumps(ron.Struct("State", state))
        plain = ron.loads(state_text)
        obs_space = obs_space_of(plain["obs_space"])
        action_space = action_space_of(plain["action_space"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: config.ron or state.ron cannot be read: {error}") from None
    if config.vf_net is not None:
        raise CheckpointError(
            f"{path}: expected a run without vf_net, which enn_trainer 0.1.16 did not train as "
            "its configuration says"
        )
    weights = published_weights(path)
    refuse_larger(str(path), config, obs_space, action_space, weights)
    files = {
        "config.ron": dump_config(config).encode(),
        "state.ron": state_text.encode(),
        WEIGHTS: save_tensors(weights),
    }
    manifest = {
        "format": FORMAT_VERSION,
        "step": state["step"],
        "why": "written by enn_trainer 0.1.16",
        "files": {
            **{name: {"size": len(data)} for name, data in files.items()},
            OPTIMIZER: {"size": 0},  # not known before it is asked for
        },
    }
    return PublishedCheckpoint(path, manifest, files)


def _state(published: Mapping[str, Any]) -> dict[str, Any]:
    """What our first `state.ron` says, where the published one says the same otherwise."""
    clocks = {name: published[name] for name in ("step", "restart", "next_eval_step")}
    for name, value in clocks.items():
        if (type(value) is not int or value < 0) and (name, value) != ("next_eval_step", None):
            raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")
    actions = {
        name: ron.Struct("ActionSpace", {"kind": space.name, **space.fields})
        for name, space in published["action_space"].items()
    }
    return {"version": 1, **clocks, "obs_space": published["obs_space"], "action_space": actions}


def _text(path: Path) -> str:
    return read_plain_file(path, MAX_TEXT_BYTES).decode()
