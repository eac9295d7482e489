"""`Algorithm`: the interface between the training loop and what learns from a rollout."""

from typing import NamedTuple, Protocol

from enn_trainer.ppo.rollout import Rollout
from enn_trainer.runtime.execution import ExecutionContext


class Clock(NamedTuple):
    """The time of an update as it begins; seeds, schedules and annealing are functions of it.

    Attributes:
        step: frames of the run before the update.
        seconds: of training before it.
    """

    step: int
    seconds: float


class Algorithm(Protocol):
    """Learns from rollouts."""

    def begin_update(self, clock: Clock) -> None:
        """Set the rates of an update, before its rollout is collected."""

    def update(self, rollout: Rollout, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Learn from a rollout.

        Returns:
            The metrics of the update by tag.

        Raises:
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
        """
