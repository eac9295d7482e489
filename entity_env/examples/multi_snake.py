"""Snakes of different colours, which eat food of their own colour only."""

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeAlias

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import COLOURS, DARK, Drawn, Mark, Scene, board
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_MOVES = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}
STEPS = list(_MOVES.values())
_MOST_SNAKES = 9

_OBS_SPACE = ObsSpace(
    global_features=["step"],
    entities={name: Entity(["x", "y", "color"]) for name in ("SnakeHead", "SnakeBody", "Food")},
)
_ACTION_SPACE: dict[str, ActionSpace] = {"move": CategoricalActionSpace(list(_MOVES))}
_MOVE = {"move": CategoricalActionMask(actor_types=["SnakeHead"])}

_Cell: TypeAlias = tuple[int, int, int]  # x, y and colour of the object


class MultiSnake(PlainState, Drawn, Environment):
    """Snakes on a square board, with one piece of food per snake, of the same colour.

    Snakes move in turn. A snake that eats grows by one segment, up to `max_snake_length`, and new
    food of its colour appears on a free cell after all moves. Growing is rewarded; the rewards for
    growing all snakes from one segment to `max_snake_length` sum to 1.

    The episode ends when a snake leaves the board, moves onto a segment of any snake (at its
    position before the move) or eats food of another colour, when all snakes have
    `max_snake_length`, or after `max_steps`.

    Args:
        board_size: width and height of the board.
        num_snakes: number of snakes, at most 9.
        num_players: number of players, which control equal numbers of consecutive snakes. Only the
            first player is rewarded. The episode ends when all snakes of any player have
            `max_snake_length`.
        max_snake_length: maximum length of a snake.
        max_steps: maximum number of steps per episode.

    Raises:
        ValueError: there are too many snakes, or they cannot be divided evenly.
    """

    def __init__(
        self,
        board_size: int = 10,
        num_snakes: int = 2,
        num_players: int = 1,
        max_snake_length: int = 11,
        max_steps: int = 180,
    ) -> None:
        most = min(_MOST_SNAKES, board_size**2 // 2)
        if not 1 <= num_snakes <= most:
            raise ValueError(f"num_snakes: expected 1 to {most}, got {num_snakes}")
        if num_players < 1 or num_snakes % num_players:
            raise ValueError(
                f"num_players: expected a divisor of num_snakes={num_snakes}, got {num_players}"
            )
        if max_snake_length < 2:
            raise ValueError(f"max_snake_length: expected at least 2, got {max_snake_length}")
        self.board_size = board_size
        self.num_snakes = num_snakes
        self.snakes_per_player = num_snakes // num_players
        self.max_snake_length = max_snake_length
        self.max_steps = max_steps
        self.ids = list(range(num_snakes))

    def obs_space(self) -> ObsSpace:
        """Return the space of the segments of all snakes, and the food."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: every snake moves in one of four directions."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Place snakes of one segment and their food on different cells."""
        cells = [divmod(i, self.board_size) for i in range(self.board_size**2)]
        places = self.rng.sample(cells, 2 * self.num_snakes)
        placed = [(*place, i % self.num_snakes) for i, place in enumerate(places)]
        self.snakes: list[list[_Cell]] = [[head] for head in placed[: self.num_snakes]]
        self.food: list[_Cell] = placed[self.num_snakes :]
        self.step = 0
        return self._observe(False, 0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Move the snakes in turn."""
        move = actions["move"]
        assert isinstance(move, CategoricalAction)
        self.step += 1
        over, num_grown, eaters = self.step >= self.max_steps, 0, []
        for color, direction in zip(move.actors, move.indices.tolist(), strict=True):
            assert isinstance(color, int)
            # The head moves; walls and segments end the game.
            snake = self.snakes[color]
            x, y, _ = snake[-1]
            dx, dy = STEPS[direction]
            x, y = x + dx, y + dy
            inside = 0 <= x < self.board_size and 0 <= y < self.board_size
            if not inside or any((x, y, i) in cells for i, cells in enumerate(self.snakes)):
                over = True
            snake.append((x, y, color))

            # Food of the same colour makes the snake grow, other food ends the game.
            grows = False
            for food in self.food:
                if food[:2] == (x, y):
                    if food[2] != color:
                        over = True
                    elif len(snake) <= self.max_snake_length:
                        grows = True
                        num_grown += color < self.snakes_per_player
                    self.food.remove(food)
                    eaters.append(color)
                    break
            if not grows:
                del snake[0]
        for color in eaters:
            self._place_food(color)
        return self._observe(
            over or self._any_player_is_done(),
            num_grown / (self.max_snake_length - 1) / self.num_snakes,
        )

    def view(self) -> View:
        """Return the board, in the colours of the snakes."""
        edges = (-0.5, self.board_size - 0.5)
        return View(
            {
                "SnakeHead": EntityView(shape="circle", colour="color", size=0.38),
                "SnakeBody": EntityView(shape="square", colour="color", size=0.3),
                "Food": EntityView(shape="star", colour="color", size=0.22),
            },
            bounds=(edges, edges),
        )

    def scene(self) -> Scene:
        """Return the board; a head has an eye."""
        marks = [Mark(x, y, "*", COLOURS[color], 0.22) for x, y, color in self.food]
        for color, snake in enumerate(self.snakes):
            for (x, y, _), (to_x, to_y, _) in pairwise(snake):
                marks.append(Mark(x, y, str(color), COLOURS[color], 0.3, to=(to_x, to_y)))
        for x, y, color in (snake[-1] for snake in self.snakes):
            marks.append(Mark(x, y, "@", COLOURS[color], 0.38))
            marks.append(Mark(x, y, "@", DARK, 0.14))
        return board(self.board_size, self.board_size, marks, f"step {self.step}")

    def _any_player_is_done(self) -> bool:
        n = self.snakes_per_player
        return any(
            all(len(snake) >= self.max_snake_length for snake in self.snakes[i : i + n])
            for i in range(0, self.num_snakes, n)
        )

    def _place_food(self, color: int) -> None:
        taken = {cell[:2] for cells in (self.food, *self.snakes) for cell in cells}
        if len(taken) >= self.board_size**2:
            return
        while True:
            x, y = self.rng.randrange(self.board_size), self.rng.randrange(self.board_size)
            if (x, y) not in taken:
                self.food.append((x, y, color))
                return

    def _observe(self, done: bool, reward: float) -> Observation:
        return Observation(
            global_features=[self.step],
            features={
                "SnakeHead": [snake[-1] for snake in self.snakes],
                "SnakeBody": [cell for snake in self.snakes for cell in snake[:-1]],
                "Food": list(self.food),
            },
            ids={"SnakeHead": self.ids},
            actions=_MOVE,
            reward=reward,
            done=done,
        )
