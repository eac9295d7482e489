"""Move to the safe tile, where only positions relative to the player matter."""

from collections.abc import Mapping

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GREEN, PALE, RED, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_LIMIT = 1000  # how far from the origin the player can start
_MOVES = {
    "n": (0, 1),
    "ne": (1, 1),
    "e": (1, 0),
    "se": (1, -1),
    "s": (0, -1),
    "sw": (-1, -1),
    "w": (-1, 0),
    "nw": (-1, 1),
}
_STEPS = list(_MOVES.values())
_AROUND = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)]

_OBS_SPACE = ObsSpace(
    entities={name: Entity(["x", "y"]) for name in ("Lava", "HighGround", "Player")}
)
_ACTION_SPACE: dict[str, ActionSpace] = {"move": CategoricalActionSpace(list(_MOVES))}
_MOVE = {"move": CategoricalActionMask(actor_types=["Player"])}


class FloorIsLava(PlainState, Drawn, Environment):
    """Move to the high ground, one of eight adjacent tiles; up to seven are lava.

    The reward is 1 for the high ground, else 0. An episode is one step. The player starts anywhere
    within 1,000 of the origin, along both axes.
    """

    def obs_space(self) -> ObsSpace:
        """Return the space of positions of lava, high ground and player."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player moves in one of eight directions."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the tiles around a place."""
        x, y = self.rng.randint(-_LIMIT, _LIMIT), self.rng.randint(-_LIMIT, _LIMIT)
        around = self.rng.sample(_AROUND, self.rng.randint(1, 8))
        self.lava = [(x + dx, y + dy) for dx, dy in around]
        self.high_ground = self.lava.pop(self.rng.randrange(len(around)))
        self.start = self.player = (x, y)
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Move the player."""
        move = actions["move"]
        assert isinstance(move, CategoricalAction)
        (x, y), (dx, dy) = self.player, _STEPS[move.indices[0]]
        self.player = (x + dx, y + dy)
        return self._observe(done=True, reward=float(self.player == self.high_ground))

    def view(self) -> View:
        """Return the tiles and the player, wherever the episode is."""
        return View(
            {
                "Lava": EntityView(shape="square", colour=as_hex(RED), size=0.47),
                "HighGround": EntityView(shape="triangle", colour=as_hex(GREEN), size=0.47),
                "Player": EntityView(shape="circle", colour=as_hex(BLUE), size=0.25),
            }
        )

    def scene(self) -> Scene:
        """Return the tiles around the place where the player started."""
        x, y = self.start
        return Scene(
            (x - 1.6, y - 1.6),
            (x + 1.6, y + 1.6),
            [
                Mark(x, y, ".", PALE, 0.47, square=True),
                *(Mark(*place, "~", RED, 0.47, square=True) for place in self.lava),
                Mark(*self.high_ground, "^", GREEN, 0.47, square=True),
                Mark(*self.player, "P", BLUE, 0.25),
            ],
            caption=f"around {x}, {y}",
        )

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        return Observation(
            features={
                "Lava": self.lava,
                "HighGround": [self.high_ground],
                "Player": [self.player],
            },
            actions=_MOVE,
            reward=reward,
            done=done,
        )
