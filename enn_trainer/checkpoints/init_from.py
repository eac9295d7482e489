"""Initial state of a run with the weights of another one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import upgrade_network
from enn_trainer.checkpoints.migrate.evolve_rules import Rules, read_renames
from enn_trainer.checkpoints.migrate.evolve_tensors import PARTS
from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.state_files import read_state
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.state import State


@dataclass(frozen=True)
class InitFrom:
    """Save that a run takes its initial weights from.

    Attributes:
        path: a checkpoint, or the folder of a run, of which the newest valid one is taken.
        parts: which of `PARTS` to take: the policy, the value function, the input statistics.
        renames: new names of the world, in the form of `read_renames`.
    """

    path: Path
    parts: Sequence[str] = PARTS
    renames: Sequence[str] = ()

    def __post_init__(self) -> None:
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or not self.parts:
            raise ConfigError(
                f"--init-parts: expected some of {','.join(PARTS)}, got {','.join(self.parts)}"
            )


def state_from(
    source: InitFrom,
    config: TrainConfig,
    context: dict[str, Any],
    initial_state: Callable[[TrainConfig, dict[str, Any]], State],
    say: Callable[[str], None],
) -> State:
    """Return the state of a run at step 0, with the weights of another.

    Args:
        source: where they are, and which to take.
        config: of the run that begins.
        context: of `initial_state`: the spaces, and a network of the user's own if there is one.
        initial_state: makes the state of a run that begins.
        say: prints a line on what was taken.

    Raises:
        CheckpointError: there is no valid checkpoint, or it does not fit.
        ConfigError: the parts cannot be taken, or a rename is of nothing or to nothing.
    """
    own = context.get("agent")
    if own is not None:
        if set(source.parts) != {*PARTS} or source.renames:
            raise ConfigError(
                "--init-parts, --rename: expected neither with a network of your own, as only the "
                "tensors of a RogueNet are matched by name"
            )
        # Tensors of such a network have no names of the world, which has to be the same.
        found = find(source.path)
        plain = read_state(found)
        spaces = plain["obs_space"], plain["action_space"]
        diff = diff_spaces(*spaces, context["obs_space"], context["action_space"])
        if different := [*diff.changed, *diff.reordered]:
            raise CheckpointError(
                f"--init-from: {found.path} is of another world: {'; '.join(different)}; a network "
                "of your own needs the same names in the same order"
            )
        read_saved_run(source.path, own)
        say(f"all weights are those of {source.path}")
        return initial_state(config, context)

    # Tensors of a RogueNet are matched by the names of the world.
    saved = read_saved_run(source.path)
    alone = saved.config.vf_net is None
    if alone and "value" in source.parts and "policy" not in source.parts:
        raise ConfigError(
            "--init-parts: expected policy beside value, as the value function of the save reads "
            "the policy's layers"
        )
    rules = Rules(read_renames(source.renames, saved.obs_space, saved.action_space))
    state = initial_state(config, context)
    rules.check_known(state.obs_space, state.action_space)
    before, now = (saved.config, saved.agent), (config, state.agent)
    _, report = upgrade_network(before, now, rules, source.parts)
    say(f"weights of {saved.path}, step {saved.step}:\n{report.summary()}")
    return state
