"""A world with metrics that are not always numbers. It needs no torch."""

from collections.abc import Mapping
from typing import Any

from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Observation,
    ObsSpace,
)


class Gauges(Environment):
    """Episodes of three steps; the second one has no speed, and the last one a win or loss.

    Args:
        level: added to the metric `level`.
        broken: the speed of the second step.
    """

    def __init__(self, level: int = 0, broken: str = "nan") -> None:
        self.level, self.broken = level, float(broken)

    def obs_space(self) -> ObsSpace:
        """A car."""
        return ObsSpace(entities={"Car": Entity(["t"])})

    def action_space(self) -> dict[str, ActionSpace]:
        """It drives."""
        return {"drive": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        """Begin an episode."""
        self.t = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take a step."""
        self.t += 1
        metrics = {"speed": self.broken if self.t == 2 else float(self.t), "level": self.level}
        if self.t == 3:
            metrics |= {"win": float(self.rng.random() < 0.5), "ratio": self.broken}
        return self.observe(reward=1.0, done=self.t == 3, metrics=metrics)

    def observe(self, **outcome: Any) -> Observation:
        """Show the car."""
        drive = CategoricalActionMask(actor_types=["Car"])
        return Observation(entities={"Car": [[self.t]]}, actions={"drive": drive}, **outcome)
