"""What of a checkpoint can be played and measured, ours or one of enn_trainer 0.1.16."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints import checkpoint, published_checkpoint
from enn_trainer.checkpoints.state_files import restore_network
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.settings.config_io import load_config
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
        path: as for `find_save`.
        agent: the user's own network, which the weights go into; None for a `RogueNet`.

    Raises:
        CheckpointError: there is no valid checkpoint, or its weights are no finite numbers.
    """
    saved = find_save(path)
    network, obs_space, action_space = restore_network(saved, agent)
    refuse_not_finite(saved.path, network)
    config = load_config(TrainConfig, None, text=saved.read("config.ron").decode())
    return SavedRun(saved.path, config, saved.step, network, obs_space, action_space)


def find_save(
    path: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> checkpoint.Checkpoint:
    """The save that a path means: its own, or the newest valid one of a run.

    One of enn_trainer 0.1.16 is taken only where there is none of ours: a run that was continued
    with this program is newer than what it began with.

    Args:
        path: a checkpoint, or the folder of a run.
        say: told what was wrong with newer ones.
        to_continue: whether the run goes on, which needs all of a save.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    if (path / checkpoint.MANIFEST).exists():
        return checkpoint.verify(path)
    saved = newest_save(path, say, to_continue)
    return checkpoint.find(path, say) if saved is None else saved


def newest_save(
    run_dir: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> checkpoint.Checkpoint | None:
    """As `find_save`, of the folder of a run; None without a save.

    Raises:
        CheckpointError: there are saves, but none is valid.
    """
    saved = checkpoint.newest(run_dir, say)
    return published_checkpoint.find(run_dir, say, to_continue) if saved is None else saved


def refuse_not_finite(path: Path, network: nn.Module) -> None:
    """Refuse weights that are no numbers: what they choose would look like a policy."""
    bad = [name for name, p in network.named_parameters() if not p.isfinite().all()]
    # A buffer may be infinite on purpose, as in a mask.
    bad += [name for name, buffer in network.named_buffers() if buffer.isnan().any()]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CheckpointError(
            f"{path}: expected weights that are finite numbers, got others in "
            f"{', '.join(bad[:3])}{more}; take an earlier checkpoint"
        )
