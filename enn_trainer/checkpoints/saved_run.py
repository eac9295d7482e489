"""Saves as they are read to be played, measured, shown and compared."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.state_files import WEIGHTS, read_config, read_state, read_tensors
from enn_trainer.checkpoints.weights import fitting_network, load_weights
from enn_trainer.config import TrainConfig
from enn_trainer.config.formats import parse
from enn_trainer.config.load import dump_config
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.policy import PPOAgent
from entity_env.spaces import ActionSpace, ObsSpace


class SavedRun(NamedTuple):
    """Network of a save, and its run.

    Attributes:
        path: the directory of the save.
        config: of the run.
        step: how many frames it was trained for.
        agent: the network, in evaluation mode.
        obs_space: the observations it was trained on.
        action_space: the actions it was trained on.
        run_name: the folder of the run's logs, "" if unknown.
    """

    path: Path
    config: TrainConfig
    step: int
    agent: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    run_name: str = ""


def read_saved_run(path: Path, agent: PPOAgent | None = None) -> SavedRun:
    """Read the network of a save, without its optimizer.

    Args:
        path: as for `lookup.find`.
        agent: the user's own network, which takes the weights; None for a `RogueNet`.

    Raises:
        CheckpointError: there is no valid checkpoint, or its weights are no finite numbers.
    """
    saved = find(path)
    state, config = read_state(saved), read_config(saved)
    spaces = state["obs_space"], state["action_space"]
    where, weights = str(saved.path), read_tensors(saved, WEIGHTS)
    network: Any = agent
    if network is None:
        network = fitting_network(where, config, *spaces, weights)
    load_weights(where, network, weights)
    return SavedRun(saved.path, config, saved.step, network.eval(), *spaces)


class Contents(NamedTuple):
    """All content of a save as plain data and tensors, whatever network it is of.

    Attributes:
        path: its folder.
        manifest: the content of its manifest.
        config: the configuration as RON, with the names of today if it is a `TrainConfig`.
        settings: the configuration; None if it is of a class of the user's own.
        state: the readable part of the state, without the spaces.
        obs_space: the observations of the agent.
        action_space: its actions.
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
    """Read all content of a save.

    Args:
        path: as for `lookup.find`.

    Raises:
        CheckpointError: there is no valid checkpoint.
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
    """Return the configuration; None for one of a class of the user's own."""
    try:
        return read_config(saved)
    except CheckpointError:
        with suppress(ConfigError):
            if isinstance(parse(saved.text("config.ron")), dict):
                return None
        raise
