"""Collection of treasures on a grid with traps."""

from collections.abc import Mapping

from entity_env.actions import Action, GlobalCategoricalAction, GlobalCategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GOLD, RED, Drawn, Mark, Scene, as_hex, board
from entity_env.plain_state import PlainState
from entity_env.spaces import GLOBAL, ActionSpace, Entity, GlobalCategoricalActionSpace, ObsSpace
from entity_env.view import EntityView, View

_LIMIT = 10  # how far from the centre the player can walk
_CELLS = [(x, y) for x in range(-5, 6) for y in range(-5, 6) if (x, y) != (0, 0)]
_MOVES = {"up": (0, 1), "down": (0, -1), "left": (-1, 0), "right": (1, 0)}

_OBS_SPACE = ObsSpace(
    global_features=["x_pos", "y_pos"],
    entities={"Trap": Entity(["x_pos", "y_pos"]), "Treasure": Entity(["x_pos", "y_pos"])},
)
_ACTION_SPACE: dict[str, ActionSpace] = {"move": GlobalCategoricalActionSpace(list(_MOVES))}
_MOVE = {"move": GlobalCategoricalActionMask()}


class TreasureHunt(PlainState, Drawn, Environment):
    """Collect five treasures on a grid with five traps, starting at the centre.

    The reward is 1 for a step onto a treasure, which removes it. The episode ends on a trap, or
    when no treasure is left.
    """

    def obs_space(self) -> ObsSpace:
        """Return the space of positions of the player, the traps and the treasures."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: a step in one of four directions."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Place traps and treasures on different cells within 5 of the centre."""
        self.x_pos = self.y_pos = 0
        cells = self.rng.sample(_CELLS, 10)
        self.traps, self.treasures = cells[:5], cells[5:]
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Move the player, and take a treasure or end on a trap."""
        move = actions["move"]
        assert isinstance(move, GlobalCategoricalAction)
        dx, dy = _MOVES[move.label]
        self.x_pos = min(max(self.x_pos + dx, -_LIMIT), _LIMIT)
        self.y_pos = min(max(self.y_pos + dy, -_LIMIT), _LIMIT)
        here = (self.x_pos, self.y_pos)
        found = here in self.treasures
        if found:
            self.treasures.remove(here)
        return self._observe(done=here in self.traps or not self.treasures, reward=float(found))

    def view(self) -> View:
        """Return all cells that the player can reach; the player is global."""
        return View(
            {
                "Trap": EntityView(shape="cross", colour=as_hex(RED), size=0.35),
                "Treasure": EntityView(shape="diamond", colour=as_hex(GOLD), size=0.35),
                GLOBAL: EntityView(shape="circle", colour=as_hex(BLUE), size=0.35),
            },
            bounds=((-_LIMIT - 0.5, _LIMIT + 0.5),) * 2,
        )

    def scene(self) -> Scene:
        """Return all cells that the player can reach."""
        things = [
            *((place, "x", RED) for place in self.traps),
            *((place, "$", GOLD) for place in self.treasures),
            ((self.x_pos, self.y_pos), "P", BLUE),
        ]
        marks = [Mark(x + _LIMIT, y + _LIMIT, char, colour) for (x, y), char, colour in things]
        return board(2 * _LIMIT + 1, 2 * _LIMIT + 1, marks)

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        return Observation(
            global_features=[self.x_pos, self.y_pos],
            features={"Trap": self.traps, "Treasure": list(self.treasures)},
            actions=_MOVE,
            reward=reward,
            done=done,
        )
