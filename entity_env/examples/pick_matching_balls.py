"""Collection of balls of one colour."""

from collections.abc import Mapping
from typing import cast

import numpy as np

from entity_env.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import COLOURS, DARK, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.view import EntityView, View

_NUM_COLOURS = 6
_LEAST_BALLS = 3

_OBS_SPACE = ObsSpace(
    entities={
        "Ball": Entity([*(f"color{i}" for i in range(_NUM_COLOURS)), "selected"]),
        "Player": Entity([]),
    }
)
_ACTION_SPACE: dict[str, ActionSpace] = {"Pick Ball": SelectEntityActionSpace()}
_PLAYER = np.zeros((1, 0), dtype=np.float32)


class PickMatchingBalls(PlainState, Drawn, Environment):
    """Pick all balls of one colour, one by one, among balls of six colours.

    The episode ends with the first ball of another colour, or when no ball is left. The reward at
    the end is the number of balls of the first colour, divided by the number of balls of the most
    frequent colour.

    Args:
        max_balls: number of balls.
        one_hot: one-hot encode the colour; otherwise all six features are its index.
        randomize: draw the number of balls from 3 to `max_balls` per episode.

    Raises:
        ValueError: `max_balls` is below 1, or below 3 with `randomize`.
    """

    def __init__(self, max_balls: int = 32, one_hot: bool = False, randomize: bool = False) -> None:
        least = _LEAST_BALLS if randomize else 1
        if max_balls < least:
            raise ValueError(f"max_balls: expected at least {least}, got {max_balls}")
        self.max_balls = max_balls
        self.one_hot = one_hot
        self.randomize = randomize

    def obs_space(self) -> ObsSpace:
        """Return the space of the player and all balls, including picked ones."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player selects a ball."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the balls."""
        n = self.rng.randint(_LEAST_BALLS, self.max_balls) if self.randomize else self.max_balls
        self.colours = self.rng.choices(range(_NUM_COLOURS), k=n)
        self.ids = self.left = list(range(n))
        self.features = np.zeros((n, _NUM_COLOURS + 1), dtype=np.float32)
        if self.one_hot:
            self.features[self.ids, self.colours] = 1
        else:
            self.features[:, :-1] = np.array(self.colours)[:, None]
        self.colour: int | None = None
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Pick a ball."""
        pick = actions["Pick Ball"]
        assert isinstance(pick, SelectEntityAction)
        picked = cast(int, pick.actees[0])
        colour = self.colours[picked]
        self.left = [ball for ball in self.left if ball != picked]
        self.features = self.features.copy()  # the last observation keeps what it shows
        self.features[picked, -1] = 1
        matches = self.colour is None or self.colour == colour
        self.colour = colour
        if matches and self.left:
            return self._observe()
        count = len(self.ids) - len(self.left) - (not matches)
        most = max(map(self.colours.count, range(_NUM_COLOURS)))
        return self._observe(done=True, reward=count / most)

    def view(self) -> View:
        """Return the balls, coloured unless the colour is one-hot encoded."""
        colour = None if self.one_hot else "color0"
        ball = EntityView(shape="circle", colour=colour, label=("selected",))
        return View({"Ball": ball, "Player": EntityView(shape="square", colour=as_hex(DARK))})

    def scene(self) -> Scene:
        """Return the balls, with a ring around picked ones."""
        left = set(self.left)
        marks = []
        for i, colour in enumerate(self.colours):
            x, y, char = i % 8, -(i // 8), "abcdef"[colour]
            if i not in left:
                marks.append(Mark(x, y, char, DARK, 0.46))
            marks.append(Mark(x, y, char if i in left else char.upper(), COLOURS[colour]))
        return Scene(
            (-0.5, 0.5 - (self.max_balls + 7) // 8),
            (7.5, 0.5),
            marks,
            caption="colours, picked ones in capitals",
        )

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        return Observation(
            features={"Ball": self.features, "Player": _PLAYER},
            ids={"Ball": self.ids},
            actions={
                "Pick Ball": SelectEntityActionMask(actor_types=["Player"], actee_ids=self.left)
            },
            reward=reward,
            done=done,
        )
