"""`Lessons`: the arguments of the episodes of a run, as a part of its state."""

from typing import Any

from enn_trainer.config.eval_config import EnvConfig
from enn_trainer.state_part import SpaceChange, StateDict, StatePart
from entity_env.errors import InvalidSampler
from entity_env.vec.variation import read_samplers

CURRICULUM = "curriculum"
"""Name of the part."""


class Lessons(StatePart):
    """Changes of arguments by `Trainer.set_parameters`, a part of the state of a run.

    Attributes:
        parameters: samplers by the name of the argument, in place of those of `env.vary`.
    """

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return plain data; nothing if nothing was changed."""
        return {"parameters": dict(self.parameters)} if self.parameters else {}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state.

        Raises:
            ValueError: an entry cannot be used; the message names it.
        """
        parameters = state.get("parameters", {})
        try:
            read_samplers(parameters, "parameters")
        except (InvalidSampler, AttributeError) as error:
            raise ValueError(f"curriculum: {error}") from None
        self.parameters = dict(parameters)

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state, which does not depend on spaces."""
        return dict(state)

    def samplers(self, env: EnvConfig) -> dict[str, str]:
        """Return the texts of the samplers of episodes that begin now, by name of the argument."""
        return {**env.vary, **self.parameters}
