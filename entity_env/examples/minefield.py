"""Steering of a vehicle to a target, around mines."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, DARK, GREEN, PALE, RED, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

TURN_RAD = math.pi / 8
SPEED = 3
REACH = 5  # of the target and of a mine
CLEARANCE = 15  # between a mine and everything else, at the start

_OBS_SPACE = ObsSpace(
    entities={
        "Vehicle": Entity(["x_pos", "y_pos", "direction", "step"]),
        "Mine": Entity(["x_pos", "y_pos"]),
        "Target": Entity(["x_pos", "y_pos"]),
    }
)
_ACTION_SPACE: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["turn left", "move forward", "turn right"])
}
_MOVE = {"move": CategoricalActionMask(actor_types=["Vehicle"])}


class Minefield(PlainState, Drawn, Environment):
    """Steer a vehicle to the target, for a reward of 1; target and mines end the episode.

    Vehicle, target and mines are placed randomly in a square. In each step the vehicle turns left
    or right by pi / 8, or moves forward by 3. It reaches the target or a mine at a distance below
    5. The episode also ends after `max_steps`. Mines closer than 15 to anything else are dropped.

    Args:
        max_mines: maximum number of mines.
        max_steps: maximum number of steps per episode.
        translate: observe mines and target relative to the position of the vehicle.
        width: width of the square, centred at the origin; at least 10.

    Raises:
        ValueError: `width` is below 10, which may leave no room for the target.
    """

    def __init__(
        self,
        max_mines: int = 10,
        max_steps: int = 200,
        translate: bool = False,
        width: float = 200.0,
    ) -> None:
        self.translate = translate
        self.set_parameters(max_mines, max_steps, width)

    def set_parameters(
        self,
        max_mines: int | None = None,
        max_steps: int | None = None,
        width: float | None = None,
    ) -> None:
        """Change arguments of the constructor, from the next episode on."""
        if width is not None and width < 2 * REACH:
            raise ValueError(f"width: expected at least {2 * REACH}, got {width}")
        if max_mines is not None:
            self.max_mines = max_mines
        if max_steps is not None:
            self.max_steps = max_steps
        if width is not None:
            self.width = width

    def obs_space(self) -> ObsSpace:
        """Return the space of the vehicle, the mines and the target."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the vehicle turns or goes forward."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the positions of the vehicle, the target and the mines."""
        self.x_pos, self.y_pos = self._random_place()
        target = self._random_place()
        while _any_within(REACH, self.x_pos, self.y_pos, [target]):  # there would be nothing to do
            target = self._random_place()
        places = [(self.x_pos, self.y_pos), target]
        for _ in range(self.max_mines):
            x, y = self._random_place()
            if not _any_within(CLEARANCE, x, y, places):
                places.append((x, y))
        self.put(target, places[2:])
        self.direction = self.rng.uniform(0, 2 * math.pi)
        self.step = 0
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Turn, or move forward."""
        move = actions["move"]
        assert isinstance(move, CategoricalAction)
        choice = move.indices[0]
        if choice == 1:
            self.x_pos += SPEED * math.cos(self.direction)
            self.y_pos += SPEED * math.sin(self.direction)
        else:
            turn = TURN_RAD if choice == 2 else -TURN_RAD
            self.direction = (self.direction + turn) % (2 * math.pi)
        self.step += 1
        return self._observe()

    def put(self, target: tuple[float, float], mines: list[tuple[float, float]]) -> None:
        """Set the positions of the target and the mines."""
        self.target, self.mines = target, mines
        self.target_features = np.array([target], dtype=np.float32)
        self.mine_features = np.array(mines, dtype=np.float32).reshape(-1, 2)

    def view(self) -> View:
        """Return the field, without the vehicle if positions are relative to it."""
        vehicle = EntityView(None, ("direction",), "triangle", as_hex(BLUE), REACH * 0.7)
        mine = EntityView(shape="cross", colour=as_hex(RED), size=REACH)
        target = EntityView(shape="star", colour=as_hex(GREEN), size=REACH)
        if self.translate:
            vehicle = replace(vehicle, position=())
        edges = (-self.width * 0.55, self.width * 0.55)
        bounds = () if self.translate else (edges, edges)
        return View({"Vehicle": vehicle, "Mine": mine, "Target": target}, bounds)

    def scene(self) -> Scene:
        """Return the field, with a margin for vehicles that leave it."""
        half, edge = self.width / 2, self.width * 0.55
        nose = (
            self.x_pos + 2 * REACH * math.cos(self.direction),
            self.y_pos + 2 * REACH * math.sin(self.direction),
        )
        return Scene(
            (-edge, -edge),
            (edge, edge),
            [
                Mark(0, 0, "", PALE, half, square=True),
                Mark(*self.target, "T", GREEN, REACH),
                *(Mark(x, y, "o", RED, REACH) for x, y in self.mines),
                Mark(self.x_pos, self.y_pos, "V", DARK, REACH / 4, to=nose),
                Mark(self.x_pos, self.y_pos, "V", BLUE, REACH * 0.7),
            ],
            cell=edge / 11,
            caption=f"step {self.step}, direction {math.degrees(self.direction):.0f}",
        )

    def _random_place(self) -> tuple[float, float]:
        half = self.width / 2
        return self.rng.uniform(-half, half), self.rng.uniform(-half, half)

    def _observe(self) -> Observation:
        x, y = self.x_pos, self.y_pos
        arrived = _any_within(REACH, x, y, [self.target])
        return Observation(
            features={
                "Vehicle": np.array([[x, y, self.direction, self.step]], dtype=np.float32),
                "Mine": self._shown(self.mines, self.mine_features),
                "Target": self._shown([self.target], self.target_features),
            },
            actions=_MOVE,
            reward=float(arrived),
            done=arrived or self.step >= self.max_steps or _any_within(REACH, x, y, self.mines),
        )

    def _shown(
        self, places: list[tuple[float, float]], features: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        if not self.translate:
            return features
        relative = [(x - self.x_pos, y - self.y_pos) for x, y in places]
        return np.array(relative, dtype=np.float32).reshape(-1, 2)


def _any_within(distance: float, x: float, y: float, places: list[tuple[float, float]]) -> bool:
    for other_x, other_y in places:
        if (x - other_x) ** 2 + (y - other_y) ** 2 < distance**2:
            return True
    return False
