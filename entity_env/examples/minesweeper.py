"""Clearing of mines by several robots and a cannon."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, DARK, RED, Drawn, Mark, Scene, as_hex, board
from entity_env.plain_state import PlainState
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.view import EntityView, View

_MOVES = {"Up": (0, 1), "Down": (0, -1), "Left": (-1, 0), "Right": (1, 0), "Defuse Mines": (0, 0)}
_STEPS = list(_MOVES.values())

_OBS_SPACE = ObsSpace(
    entities={
        "Mine": Entity(["x", "y"]),
        "Robot": Entity(["x", "y"]),
        "Orbital Cannon": Entity(["cooldown"]),
    }
)
_ACTION_SPACE: dict[str, ActionSpace] = {
    "Move": CategoricalActionSpace(list(_MOVES)),
    "Fire Orbital Cannon": SelectEntityActionSpace(),
}


class MineSweeper(PlainState, Drawn, Environment):
    """Robots that move by one cell, or defuse the mines on their cell and adjacent cells.

    Diagonal cells are not adjacent. Robots move in turn; then robots on a remaining mine are
    removed. The episode ends with a reward of 1 when no mine is left, or without reward when no
    robot is left. Robots cannot leave the board, and can share a cell.

    The optional orbital cannon removes a mine before the robots move, or a robot after its move. It
    is ready when its cooldown, which decreases by 1 per step, is 0.

    Args:
        width: width of the board.
        height: height of the board.
        nmines: number of mines.
        nrobots: number of robots.
        orbital_cannon: add a cannon.
        cooldown_period: the cooldown at the start and after a shot.

    Raises:
        ValueError: there is no mine or no robot, or the board is too small for them.
    """

    def __init__(
        self,
        width: int = 6,
        height: int = 6,
        nmines: int = 5,
        nrobots: int = 2,
        orbital_cannon: bool = False,
        cooldown_period: int = 5,
    ) -> None:
        if nmines < 1 or nrobots < 1 or nmines + nrobots > width * height:
            raise ValueError(
                f"nmines, nrobots: expected both at least 1, together at most {width} * {height}, "
                f"got {nmines} and {nrobots}"
            )
        self.width = width
        self.height = height
        self.nmines = nmines
        self.nrobots = nrobots
        self.orbital_cannon = orbital_cannon
        self.cooldown_period = cooldown_period

    def obs_space(self) -> ObsSpace:
        """Return the space of the mines, the robots and the cannon."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: robots move or defuse, the cannon selects a mine or a robot."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Place mines and robots on different cells."""
        cells = [(x, y) for x in range(self.width) for y in range(self.height)]
        places = self.rng.sample(cells, self.nmines + self.nrobots)
        self.mines, self.robots = places[: self.nmines], places[self.nmines :]
        self.cooldown = self.cooldown_period
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Fire the cannon, move the robots, and defuse mines."""
        fire, move = actions["Fire Orbital Cannon"], actions["Move"]
        assert isinstance(fire, SelectEntityAction)
        assert isinstance(move, CategoricalAction)
        self.cooldown = self.cooldown_period if fire.actees else max(self.cooldown - 1, 0)
        target, row = cast(tuple[str, int], fire.actees[0]) if fire.actees else (None, 0)
        mines, robots = list(self.mines), list(self.robots)
        if target == "Mine":
            del mines[row]
        actors = cast(Sequence[tuple[str, int]], move.actors)
        for (_, i), choice in zip(actors, move.indices, strict=True):
            (x, y), (dx, dy) = robots[i], _STEPS[choice]
            robots[i] = (x + dx, y + dy)
            if (dx, dy) == (0, 0):
                mines = [mine for mine in mines if abs(mine[0] - x) + abs(mine[1] - y) > 1]
        if target == "Robot":
            del robots[row]
        self.mines = mines
        self.robots = [robot for robot in robots if robot not in mines]
        return self._observe()

    def view(self) -> View:
        """Return the board."""
        return View(
            {
                "Mine": EntityView(shape="star", colour=as_hex(RED), size=0.25),
                "Robot": EntityView(shape="square", colour=as_hex(BLUE), size=0.3),
                "Orbital Cannon": EntityView(colour=as_hex(DARK), label=("cooldown",)),
            },
            bounds=((-0.5, self.width - 0.5), (-0.5, self.height - 0.5)),
        )

    def scene(self) -> Scene:
        """Return the board."""
        marks = [
            *(Mark(x, y, "*", RED, 0.25) for x, y in self.mines),
            *(Mark(x, y, "R", BLUE, 0.3, square=True) for x, y in self.robots),
        ]
        caption = f"cannon: {self.cooldown}" if self.orbital_cannon else ""
        return board(self.width, self.height, marks, caption)

    def _observe(self) -> Observation:
        ready = self.orbital_cannon and self.cooldown == 0
        return Observation(
            features={
                "Mine": self.mines,
                "Robot": self.robots,
                "Orbital Cannon": [[self.cooldown]] * self.orbital_cannon,
            },
            actions={
                "Move": CategoricalActionMask(actor_types=["Robot"], mask=self._moves_on_board()),
                "Fire Orbital Cannon": SelectEntityActionMask(
                    actor_types=["Orbital Cannon"] * ready, actee_types=["Mine", "Robot"]
                ),
            },
            reward=float(not self.mines),
            done=not self.mines or not self.robots,
        )

    def _moves_on_board(self) -> npt.NDArray[np.bool_]:
        rows = [
            (y < self.height - 1, y > 0, x > 0, x < self.width - 1, True) for x, y in self.robots
        ]
        return np.array(rows, dtype=np.bool_).reshape(-1, len(_MOVES))
