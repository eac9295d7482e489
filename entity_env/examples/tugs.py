"""Continuous actions with bounds per actor: tugs of unequal power push to their berths."""

import math
from collections.abc import Mapping

import numpy as np

from entity_env.actions import Action, ContinuousAction, ContinuousActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GREEN, PALE, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, ContinuousActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_EPISODE_STEPS = 24
_MOST_SHIPS = 6
_LEAST_POWER, _MOST_POWER = 0.02, 0.1
_DRAG = 0.7  # share of the velocity that is kept
_CURRENT = 0.01


class Tugs(PlainState, Drawn, Environment):
    """Tugs with different power push to their berths, against a current.

    The reward of a step is the mean decrease of the distance between tugs and berths.

    Args:
        ships: number of tugs; 0 to draw 1 to 6 per episode.
        bounded: bound actions by the power of each tug; otherwise excess power is clipped.
    """

    def __init__(self, ships: int = 0, bounded: bool = True) -> None:
        if ships < 0:
            raise ValueError(f"ships: expected at least 0, got {ships}")
        self.ships, self.bounded = ships, bounded

    def obs_space(self) -> ObsSpace:
        """Return the space of the tugs and the current."""
        features = ["x", "y", "x_berth", "y_berth", "x_velocity", "y_velocity"]
        return ObsSpace(["x_current", "y_current"], {"Tug": Entity(features)})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: push along both axes."""
        most = _MOST_POWER
        return {"push": ContinuousActionSpace({"x": (-most, most), "y": (-most, most)})}

    def reset(self) -> Observation:
        """Draw the positions of tugs and berths."""
        count = self.ships or self.rng.randint(1, _MOST_SHIPS)
        self.tugs = [[self.rng.uniform(-1, 1) for _ in range(4)] + [0.0, 0.0] for _ in range(count)]
        self.power = [self.rng.uniform(_LEAST_POWER, _MOST_POWER) for _ in range(count)]
        self.current = [self.rng.uniform(-_CURRENT, _CURRENT) for _ in range(2)]
        self.distance, self.step = self._distance(), 0
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Push, then move by velocity and current."""
        push = actions["push"]
        assert isinstance(push, ContinuousAction)
        for tug, power, (x, y) in zip(self.tugs, self.power, push.values.tolist(), strict=True):
            for axis, asked in enumerate((x, y)):
                given = max(-power, min(power, asked))
                tug[4 + axis] = _DRAG * tug[4 + axis] + given
                tug[axis] += tug[4 + axis] + self.current[axis]
        self.step += 1
        before, self.distance = self.distance, self._distance()
        return self._observe(before - self.distance)

    def scripted(self) -> ContinuousAction:
        """Return the actions of a controller with access to positions, velocities and current."""
        push = [
            [
                max(-p, min(p, 0.3 * (tug[2 + k] - tug[k]) - _DRAG * tug[4 + k] - self.current[k]))
                for k in range(2)
            ]
            for tug, p in zip(self.tugs, self.power, strict=True)
        ]
        return ContinuousAction([*range(len(push))], np.array(push, np.float32), ["x", "y"])

    def view(self) -> View:
        """Return the tugs, with their velocity as heading."""
        heading = ("x_velocity", "y_velocity")
        tug = EntityView(heading=heading, shape="triangle", colour=as_hex(BLUE), size=0.05)
        return View({"Tug": tug}, bounds=((-1.5, 1.5), (-1.5, 1.5)))

    def scene(self) -> Scene:
        """Return tugs and berths, and lines between them."""
        marks = []
        for x, y, x_berth, y_berth, _, _ in self.tugs:
            marks.append(Mark(x_berth, y_berth, "+", GREEN, 0.05))
            marks.append(Mark(x, y, "", PALE, 0.005, to=(x_berth, y_berth)))
            marks.append(Mark(x, y, "T", BLUE, 0.05))
        return Scene((-1.5, -1.5), (1.5, 1.5), marks, caption=f"step {self.step}")

    def _distance(self) -> float:
        distances = [math.hypot(tug[0] - tug[2], tug[1] - tug[3]) for tug in self.tugs]
        return sum(distances) / len(distances)

    def _observe(self, reward: float) -> Observation:
        mask = ContinuousActionMask()
        if self.bounded:
            power = np.array([self.power, self.power], np.float32).T
            mask = ContinuousActionMask(low=-power, high=power)
        return Observation(
            features={"Tug": [[*tug] for tug in self.tugs]},
            ids={"Tug": [*range(len(self.tugs))]},
            global_features=[100 * speed for speed in self.current],
            actions={"push": mask},
            reward=reward,
            done=self.step == _EPISODE_STEPS,
        )
