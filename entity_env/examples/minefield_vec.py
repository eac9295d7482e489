"""Many `Minefield` environments in array operations."""

import math

import numpy as np

from entity_env.examples.array_envs import ArrayEnvs, Bools, Floats, Ints
from entity_env.examples.minefield import CLEARANCE, REACH, SPEED, TURN_RAD, Minefield
from entity_env.ragged import Ragged, row_indices
from entity_env.spaces import EntityName

_FORWARD, _RIGHT = 1, 2


class VecMinefield(ArrayEnvs):
    """B `Minefield` environments with the same rules; seeds give other episodes.

    Args:
        num_envs: B.
        first_env_index: index of the first one among all environments of the run.
        max_mines: as in `Minefield`, like the following arguments.
        max_steps: maximum number of steps per episode.
        translate: observe mines and target relative to the vehicle.
        width: width of the square.

    Attributes:
        places: (B, 2) float64, positions of the vehicles.
        directions: (B,) float64, in radians.
        targets: (B, 2) float64, positions.
        mines: (B, max_mines, 2) float64, positions; infinity for missing mines.

    Raises:
        ValueError: `width` is below 10.
    """

    state_arrays = ("places", "directions", "targets", "mines")

    def __init__(
        self,
        num_envs: int,
        first_env_index: int = 0,
        max_mines: int = 10,
        max_steps: int = 200,
        translate: bool = False,
        width: float = 200.0,
    ) -> None:
        plain = Minefield(max_mines, max_steps, translate, width)
        super().__init__(plain, "Vehicle", 1, num_envs, first_env_index)
        self.plain = plain
        self.places = np.zeros((num_envs, 2))
        self.directions = np.zeros(num_envs)
        self.targets = np.zeros((num_envs, 2))
        self.mines = np.full((num_envs, max_mines, 2), np.inf)

    def begin(self, envs: Ints) -> None:
        """Draw the positions of the vehicle, the target and the mines."""
        num_mines = self.plain.max_mines
        drawn = self.draw(envs[:, None], np.arange(5 + 2 * num_mines))
        places = self._place(drawn[:, :2])
        again, first = np.arange(len(envs)), 2
        while len(again := again[_within(REACH, self._place(drawn[again, 2:4]), places[again])]):
            first += 2  # another target, and other numbers for what comes after it
            numbers = first + np.arange(3 + 2 * num_mines)
            drawn[again, 2:] = self.draw(envs[again, None], numbers)
        targets = self._place(drawn[:, 2:4])
        mines = self._place(drawn[:, 4:-1].reshape(len(envs), num_mines, 2))
        fits = ~_within(CLEARANCE, mines, places[:, None])
        fits &= ~_within(CLEARANCE, mines, targets[:, None])
        for k in range(1, num_mines):
            near = _within(CLEARANCE, mines[:, k, None], mines[:, :k])
            fits[:, k] &= ~(near & fits[:, :k]).any(axis=1)
        mines[~fits] = np.inf
        self.places[envs], self.targets[envs], self.mines[envs] = places, targets, mines
        self.directions[envs] = 2 * math.pi * drawn[:, -1]

    def move(self, choices: Ints) -> tuple[Floats, Bools]:
        """Turn, or move forward."""
        forward = choices[:, 0] == _FORWARD
        headings = np.stack([np.cos(self.directions), np.sin(self.directions)], axis=1)
        self.places += np.where(forward[:, None], SPEED * headings, 0.0)
        turns = np.where(choices[:, 0] == _RIGHT, TURN_RAD, -TURN_RAD)
        turned = (self.directions + turns) % (2 * math.pi)
        self.directions = np.where(forward, self.directions, turned)
        arrived = _within(REACH, self.places, self.targets)
        blown_up = _within(REACH, self.places[:, None], self.mines).any(axis=1)
        return arrived.astype(np.float64), arrived | blown_up | (self.steps >= self.plain.max_steps)

    def features(self) -> dict[EntityName, Ragged]:
        """Return the features of the vehicles, the mines and the targets."""
        there = np.isfinite(self.mines[:, :, 0])
        one = np.ones(len(self), dtype=np.int64)
        mines, targets = self.mines[there], self.targets
        num_mines = there.sum(axis=1)
        if self.plain.translate:
            mines = mines - np.repeat(self.places, num_mines, axis=0)
            targets = targets - self.places
        vehicles = np.column_stack([self.places, self.directions, self.steps])
        return {
            "Vehicle": Ragged(vehicles.astype(np.float32), one),
            "Mine": Ragged(mines.astype(np.float32), num_mines),
            "Target": Ragged(targets.astype(np.float32), one),
        }

    def identity(self) -> dict[EntityName, Ragged]:
        """Return the identity numbers of vehicles, mines and targets, which keep their order."""
        one = np.ones(len(self), dtype=np.int64)
        num_mines = np.isfinite(self.mines[:, :, 0]).sum(axis=1)
        numbers = {"Vehicle": one, "Mine": num_mines, "Target": one}
        return {name: Ragged(row_indices(0 * n, n), n) for name, n in numbers.items()}

    def world(self, i: int) -> Minefield:
        """Return environment i as a single environment in the same state."""
        args = self.plain
        world = Minefield(args.max_mines, args.max_steps, args.translate, args.width)
        mines = self.mines[i][np.isfinite(self.mines[i, :, 0])]
        world.x_pos, world.y_pos = self.places[i].tolist()
        world.direction, world.step = float(self.directions[i]), int(self.steps[i])
        world.put(tuple(self.targets[i].tolist()), [(x, y) for x, y in mines.tolist()])
        return world

    def _place(self, drawn: Floats) -> Floats:
        """Map numbers in [0, 1) to positions in the square."""
        return -self.plain.width / 2 + self.plain.width * drawn


def _within(distance: float, places: Floats, centres: Floats) -> Bools:
    """Return whether positions (..., 2) are within `distance` of centres; False for infinity."""
    apart = places - centres
    near: Bools = apart[..., 0] ** 2 + apart[..., 1] ** 2 < distance**2
    return near
