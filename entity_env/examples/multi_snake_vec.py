"""Many `MultiSnake` environments in array operations."""

import numpy as np
import numpy.typing as npt

from entity_env.examples.array_envs import ArrayEnvs, Bools, Floats, Ints
from entity_env.examples.multi_snake import STEPS, MultiSnake
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, EntityName

_NONE = 0
"""No cell: a corner of the rim, where no snake gets."""


class VecMultiSnake(ArrayEnvs):
    """B `MultiSnake` environments with the same rules; seeds give other episodes.

    Cells are flat indices of the board with a border, which a snake enters when it leaves the
    board.

    Args:
        num_envs: B.
        first_env_index: index of the first one among all environments of the run.
        board_size: as in `MultiSnake`, like the following arguments.
        num_snakes: number of snakes.
        num_players: number of players, with an equal number of snakes each.
        max_snake_length: maximum length of a snake.
        max_steps: maximum number of steps per episode.

    Attributes:
        cells: (B, snakes, max_snake_length) int64, the segments of each snake, head last, padded
            with 0 at the tail.
        food: (B, snakes) int64, cells in the order of observations, padded with 0 at the end.
        food_colors: (B, snakes) int64.

    Raises:
        ValueError: there are too many snakes, or they cannot be divided evenly.
    """

    state_arrays = ("cells", "food", "food_colors")

    def __init__(
        self,
        num_envs: int,
        first_env_index: int = 0,
        board_size: int = 10,
        num_snakes: int = 2,
        num_players: int = 1,
        max_snake_length: int = 11,
        max_steps: int = 180,
    ) -> None:
        plain = MultiSnake(board_size, num_snakes, num_players, max_snake_length, max_steps)
        super().__init__(plain, "SnakeHead", num_snakes, num_envs, first_env_index)
        self.plain = plain
        wide = board_size + 2
        x, y = np.divmod(np.arange(wide**2), wide)
        self._places = np.stack([x - 1, y - 1], axis=1)  # (cells, 2)
        self._is_inside = ((self._places >= 0) & (self._places < board_size)).all(axis=1)
        self._moves = np.array([dx * wide + dy for dx, dy in STEPS])
        self._colors = np.arange(num_snakes)
        self.cells = np.zeros((num_envs, num_snakes, max_snake_length), dtype=np.int64)
        self.food = np.zeros((num_envs, num_snakes), dtype=np.int64)
        self.food_colors = np.zeros((num_envs, num_snakes), dtype=np.int64)

    def begin(self, envs: Ints) -> None:
        """Place snakes of one segment and their food on different cells."""
        self.cells[envs], self.food[envs], self.food_colors[envs] = _NONE, _NONE, self._colors
        num_snakes = len(self._colors)
        drawn = self.draw(envs[:, None], np.arange(2 * num_snakes))
        for color in self._colors:
            self.cells[envs, color, -1] = self._free_cells(envs, drawn[:, color])
        for color in self._colors:
            self.food[envs, color] = self._free_cells(envs, drawn[:, num_snakes + color])

    def move(self, choices: Ints) -> tuple[Floats, Bools]:
        """Move the snakes in turn."""
        longest = self.plain.max_snake_length
        lengths = (self.cells != _NONE).sum(axis=2)  # (B, snakes)
        segments = np.arange(longest)
        over = self.steps >= self.plain.max_steps
        eats = np.zeros(self.food.shape, dtype=np.bool_)
        num_grown = np.zeros(len(self), dtype=np.int64)
        for color in self._colors:
            # The head moves; walls and segments end the game.
            head = self.cells[:, color, -1] + self._moves[choices[:, color]]
            over |= ~self._is_inside[head]
            over |= (self.cells == head[:, None, None]).any(axis=(1, 2))

            # Food of the same colour makes the snake grow, other food ends the game.
            found = self.food == head[:, None]
            over |= (found & (self.food_colors != color)).any(axis=1)
            grows = (found & (self.food_colors == color)).any(axis=1) & (
                lengths[:, color] < longest
            )
            lengths[:, color] += grows
            num_grown += grows & (color < self.plain.snakes_per_player)
            snake = np.concatenate([self.cells[:, color, 1:], head[:, None]], axis=1)
            is_snake = segments >= longest - lengths[:, color, None]
            self.cells[:, color] = np.where(is_snake, snake, _NONE)
            self.food[found] = _NONE
            eats[:, color] = found.any(axis=1)
        of_players = lengths.reshape(len(self), -1, self.plain.snakes_per_player)
        over |= (of_players >= longest).all(axis=2).any(axis=1)
        eats[over] = False
        if eats.any():
            self._replace_food(eats)
        return num_grown / (longest - 1) / self.plain.num_snakes, over

    def features(self) -> dict[EntityName, Ragged]:
        """Return the features of the segments of all snakes, the food, and the step."""
        heads, bodies = self.cells[:, :, -1:], self.cells[:, :, :-1]
        num_snakes = np.full(len(self), len(self._colors))
        return {
            "SnakeHead": Ragged(self._rows(heads, self._colors[:, None]), num_snakes),
            "SnakeBody": self._shown(bodies, self._colors[:, None]),
            "Food": self._shown(self.food, self.food_colors),
            GLOBAL: Ragged(self.steps[:, None].astype(np.float32), np.ones_like(self.steps)),
        }

    def identity(self) -> dict[EntityName, Ragged]:
        """Return the identity numbers of heads, the only entities with ids in `MultiSnake`."""
        numbers = np.tile(self._colors, len(self))
        return {"SnakeHead": Ragged(numbers, np.full(len(self), len(self._colors)))}

    def world(self, i: int) -> MultiSnake:
        """Return environment i as a single environment in the same state."""
        args = self.plain
        num_players = args.num_snakes // args.snakes_per_player
        world = MultiSnake(
            args.board_size, args.num_snakes, num_players, args.max_snake_length, args.max_steps
        )
        world.snakes = [
            [(*self._places[cell].tolist(), color) for cell in snake if cell != _NONE]
            for color, snake in enumerate(self.cells[i])
        ]
        world.food = [
            (*self._places[cell].tolist(), int(color))
            for cell, color in zip(self.food[i], self.food_colors[i], strict=True)
            if cell != _NONE
        ]
        world.step = int(self.steps[i])
        return world

    def _replace_food(self, eats: Bools) -> None:
        """Append food for the snakes that ate, (B, snakes) bool, to the remaining food."""
        eaters = np.flatnonzero(eats.any(axis=1))
        order = np.argsort(self.food[eaters] == _NONE, axis=1, kind="stable")
        self.food[eaters] = np.take_along_axis(self.food[eaters], order, axis=1)
        self.food_colors[eaters] = np.take_along_axis(self.food_colors[eaters], order, axis=1)
        drawn = self.draw(eaters[:, None], self._colors)
        for color in self._colors:
            rows = np.flatnonzero(eats[eaters, color])
            envs = eaters[rows]
            before = eats[envs, :color].sum(axis=1)
            behind = (self.food[envs] != _NONE).sum(axis=1)
            self.food[envs, behind] = self._free_cells(envs, drawn[rows, before])
            self.food_colors[envs, behind] = color

    def _free_cells(self, envs: Ints, drawn: Floats) -> Ints:
        """Map numbers in [0, 1) to an empty cell of each environment, 0 if the board is full."""
        free = np.repeat(self._is_inside[None], len(envs), axis=0)
        rows = np.arange(len(envs))[:, None]
        free[rows[:, :, None], self.cells[envs]] = False
        free[rows, self.food[envs]] = False
        chosen = (drawn * free.sum(axis=1)).astype(np.int64)
        cells: Ints = (free.cumsum(axis=1) > chosen[:, None]).argmax(axis=1)
        return cells

    def _shown(self, cells: Ints, colors: Ints) -> Ragged:
        """Return the cells (B, ...) without padding, in order."""
        there = cells != _NONE
        lengths = there.reshape(len(self), -1).sum(axis=1)
        return Ragged(
            self._rows(cells[there], np.broadcast_to(colors, cells.shape)[there]), lengths
        )

    def _rows(self, cells: Ints, colors: Ints) -> npt.NDArray[np.float32]:
        """Return the column, row and colour of each cell, (cells, 3)."""
        rows = np.empty((*cells.shape, 3), dtype=np.float32)
        rows[..., :2] = self._places[cells]
        rows[..., 2] = colors
        return rows.reshape(-1, 3)
