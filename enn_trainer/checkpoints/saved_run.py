"""What of a checkpoint can be played and measured, ours or one of enn_trainer 0.1.16."""

from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints.find_save import find
from enn_trainer.checkpoints.state_files import restore_network
from enn_trainer.config import TrainConfig
from entity_env.spaces import ActionSpace, ObsSpace


class SavedRun(NamedTuple):
    """A network of a save and what is known about it.

    Attributes:
        path: the directory of the save.
        config: of the run.
        step: how many frames it was trained for.
        agent: the network, in evaluation mode.
        obs_space: what it was trained to see.
        action_space: what it was trained to do.
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
    """The run that a path means, without its optimizer.

    Args:
        path: as for `find_save.find`.
        agent: the user's own network, which the weights go into; None for a `RogueNet`.

    Raises:
        CheckpointError: there is no valid checkpoint, or its weights are no finite numbers.
    """
    saved = find(path)
    network, obs_space, action_space, config = restore_network(saved, agent)
    return SavedRun(saved.path, config, saved.step, network, obs_space, action_space)
