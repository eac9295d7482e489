"""Autoregressive actions: a medic chooses a command, then a unit given the command."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env.actions import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, COLOURS, Drawn, Mark, Scene, as_hex
from entity_env.kinds import Kind
from entity_env.plain_state import PlainState
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.view import EntityView, View

COMMANDS = ["bandage", "splint", "cool", "warm", "feed", "rest", "inject", "evacuate"]
_AILMENTS = ["wound", "fracture", "fever", "cold", "hunger", "fatigue", "poison", "coma"]
_FEWEST, _MOST = 3, 10
_EPISODE_STEPS = 8


class Medics(PlainState, Drawn, Environment):
    """A medic treats one of 3 to 10 units in each step.

    Each of eight commands treats one ailment. The reward is the severity of the treated ailment;
    the unit then gets a new one.

    Args:
        chained: the unit is chosen given the command, among units with its ailment. Otherwise both
            are chosen independently, and a command that does not match has no effect.
    """

    def __init__(self, chained: bool = True) -> None:
        self.chained = chained

    def obs_space(self) -> ObsSpace:
        """Return the space of the medic and the units."""
        unit = Entity(["severity", Kind("ailment", _AILMENTS)])
        return ObsSpace(entities={"Medic": Entity([]), "Unit": unit})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: a command and a unit."""
        whom = SelectEntityActionSpace()
        if self.chained:
            whom = SelectEntityActionSpace(after="command", when=COMMANDS)
        return {"command": CategoricalActionSpace(COMMANDS), "whom": whom}

    def reset(self) -> Observation:
        """Draw the ailments of the units."""
        self.units = [self._unit() for _ in range(self.rng.randint(_FEWEST, _MOST))]
        self.step, self.treated = 0, -1
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Treat a unit."""
        command, whom = actions["command"], actions["whom"]
        assert isinstance(command, CategoricalAction)
        assert isinstance(whom, SelectEntityAction)
        self.treated = int(whom.actees[0])  # type: ignore[call-overload]
        severity, ailment = self.units[self.treated]
        fits = ailment == int(command.indices[0])
        if fits:
            self.units[self.treated] = self._unit()
        self.step += 1
        return self._observe(severity if fits else 0.0)

    @property
    def best(self) -> float:
        """The largest reward of the next step."""
        return float(max(severity for severity, _ in self.units))

    def view(self) -> View:
        """Return the medic, and the units in the colours of their ailments."""
        unit = EntityView(shape="circle", colour="ailment", label=("severity",))
        return View({"Medic": EntityView(shape="cross", colour=as_hex(BLUE)), "Unit": unit})

    def scene(self) -> Scene:
        """Return the units, higher for more severe ailments."""
        marks = [Mark(-1, 0, "M", BLUE, 0.3)]
        for x, (severity, ailment) in enumerate(self.units):
            text = "U" if x == self.treated else "u"
            marks.append(Mark(x, 3 * severity, text, COLOURS[ailment % len(COLOURS)], 0.3))
        return Scene((-1.5, -0.5), (_MOST - 0.5, 3.5), marks, caption=f"step {self.step}")

    def _unit(self) -> list[Any]:
        return [self.rng.random(), self.rng.randrange(len(_AILMENTS))]

    def _observe(self, reward: float) -> Observation:
        mask = None
        if self.chained:  # of the medic, by command and unit
            ailments = np.array([ailment for _, ailment in self.units])
            mask = (ailments == np.arange(len(COMMANDS))[:, None])[None]
        return Observation(
            features={"Medic": [[]], "Unit": [[*unit] for unit in self.units]},
            ids={"Medic": ["medic"], "Unit": [*range(len(self.units))]},
            actions={
                "command": CategoricalActionMask(actor_types=["Medic"]),
                "whom": SelectEntityActionMask(
                    actor_types=["Medic"], actee_types=["Unit"], mask=mask
                ),
            },
            reward=reward,
            done=self.step == _EPISODE_STEPS,
        )
