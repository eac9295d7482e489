"""Steering of a spaceship to a point."""

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from entity_env.actions import Action, ActionMask, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GOLD, GREEN, PALE, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_EPISODE_STEPS = 32
_ACCELERATIONS = (0.01, 0.001, 0.0, -0.001, -0.01)  # of each choice, along its axis

_OBS_SPACE = ObsSpace(
    entities={"Spaceship": Entity(["x_pos", "y_pos", "x_velocity", "y_velocity", "step"])}
)
_ACTION_SPACE: dict[str, ActionSpace] = {
    "horizontal_thruster": CategoricalActionSpace(
        ["100% right", "10% right", "hold", "10% left", "100% left"]
    ),
    "vertical_thruster": CategoricalActionSpace(
        ["100% up", "10% up", "hold", "10% down", "100% down"]
    ),
}
_IDS = {"Spaceship": [0]}
_EVERYONE_ACTS: dict[str, ActionMask] = {name: CategoricalActionMask() for name in _ACTION_SPACE}


class MoveToOrigin(PlainState, Drawn, Environment):
    """A spaceship that starts at rest at distance 1 from the origin, in a random direction.

    Two thrusters change its velocity along x and y; then it moves by its velocity. The reward of a
    step is the decrease of the distance to the origin, so the return of an episode of 32 steps is
    1 minus the final distance.
    """

    masks: ClassVar[Mapping[str, ActionMask]] = _EVERYONE_ACTS

    def obs_space(self) -> ObsSpace:
        """Return the space of one spaceship: position, velocity and the number of steps taken."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: full, gentle or no thrust, along either axis."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Place the spaceship on the unit circle."""
        angle = self.rng.uniform(0, 2 * math.pi)
        self.x_pos, self.y_pos = math.cos(angle), math.sin(angle)
        self.x_velocity = self.y_velocity = 0.0
        self.distance = math.hypot(self.x_pos, self.y_pos)
        self.step = 0
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Fly with the acceleration of each thruster."""
        horizontal, vertical = actions["horizontal_thruster"], actions["vertical_thruster"]
        assert isinstance(horizontal, CategoricalAction)
        assert isinstance(vertical, CategoricalAction)
        return self.fly(_ACCELERATIONS[horizontal.indices[0]], _ACCELERATIONS[vertical.indices[0]])

    def fly(self, x_acceleration: float, y_acceleration: float) -> Observation:
        """Accelerate along both axes, then move."""
        self.x_velocity += x_acceleration
        self.y_velocity += y_acceleration
        self.x_pos += self.x_velocity
        self.y_pos += self.y_velocity
        self.step += 1
        before, self.distance = self.distance, math.hypot(self.x_pos, self.y_pos)
        return self._observe(before - self.distance)

    def view(self) -> View:
        """Return the spaceship, with its velocity as heading."""
        heading = ("x_velocity", "y_velocity")
        ship = EntityView(heading=heading, shape="triangle", colour=as_hex(BLUE), size=0.06)
        return View({"Spaceship": ship}, bounds=((-1.5, 1.5), (-1.5, 1.5)))

    def scene(self) -> Scene:
        """Return the origin, and the spaceship with a line to its position in five steps."""
        x, y = self.x_pos, self.y_pos
        ahead = (x + 5 * self.x_velocity, y + 5 * self.y_velocity)
        return Scene(
            (-1.5, -1.5),
            (1.5, 1.5),
            [
                Mark(-1.5, 0, "", PALE, 0.005, to=(1.5, 0)),
                Mark(0, -1.5, "", PALE, 0.005, to=(0, 1.5)),
                Mark(0, 0, "+", GREEN, 0.05),
                Mark(x, y, "S", GOLD, 0.02, to=ahead),
                Mark(x, y, "S", BLUE, 0.06),
            ],
            cell=0.2,
            caption=f"step {self.step}, distance {self.distance:.3f}",
        )

    def _observe(self, reward: float) -> Observation:
        spaceship = [self.x_pos, self.y_pos, self.x_velocity, self.y_velocity, self.step]
        return Observation(
            features={"Spaceship": np.array([spaceship], dtype=np.float32)},
            ids=_IDS,
            actions=self.masks,
            reward=reward,
            done=self.step >= _EPISODE_STEPS,
        )
