"""Everything that is in a save, as plain data and tensors, whatever network it is of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from enn_trainer.checkpoints.checkpoint import Checkpoint
from enn_trainer.checkpoints.find_save import find
from enn_trainer.checkpoints.saved_state import read_state
from enn_trainer.checkpoints.state_files import read_tensors
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.settings.config_files import parsed
from enn_trainer.settings.config_io import dump_config, load_config
from entity_env.spaces import ActionSpace, ObsSpace


class Contents(NamedTuple):
    """What a save contains.

    Attributes:
        path: its folder.
        manifest: what its manifest says.
        config: the configuration as RON, in the words of today if it is one of ours.
        settings: the configuration; None if it is of a class of the user's own.
        state: the readable part of the state, without the spaces.
        obs_space: what the agent sees.
        action_space: what it does.
        tensors: by name, by file.
    """

    path: Path
    manifest: Mapping[str, Any]
    config: str
    settings: TrainConfig | None
    state: Mapping[str, Any]
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    tensors: dict[str, dict[str, Tensor]]


def read_contents(path: Path) -> Contents:
    """What is in the save that a path means, see `find_save.find`.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    saved = find(path)
    state = read_state(saved)
    spaces = {name: state.pop(name) for name in ("obs_space", "action_space")}
    names = [name for name in saved.manifest["files"] if name.endswith(".safetensors")]
    settings = _settings(saved)
    return Contents(
        saved.path,
        saved.manifest,
        saved.text("config.ron") if settings is None else dump_config(settings),
        settings,
        state,
        tensors={name: read_tensors(saved, name) for name in names},
        **spaces,
    )


def _settings(saved: Checkpoint) -> TrainConfig | None:
    text = saved.text("config.ron")
    try:
        return load_config(TrainConfig, None, text=text)
    except ConfigError as error:
        if _has_fields(text):  # of a class of the user's own
            return None
        raise CheckpointError(f"{saved.path}: config.ron cannot be read: {error}") from None


def _has_fields(text: str) -> bool:
    try:
        return isinstance(parsed(text), dict)
    except ConfigError:
        return False
