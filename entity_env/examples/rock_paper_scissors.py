"""Privileged features: visible to the value function, hidden from the policy."""

from collections.abc import Mapping

import numpy as np

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, RED, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_THROWS = ["rock", "paper", "scissors"]

_OBS_SPACE = ObsSpace(entities={"Player": Entity([]), "Opponent": Entity(_THROWS)})
_ACTION_SPACE: dict[str, ActionSpace] = {"throw": CategoricalActionSpace(_THROWS)}
_THROW = {"throw": CategoricalActionMask(actor_types=["Player"])}
_PLAYER = np.zeros((1, 0), dtype=np.float32)
_OPPONENTS = np.eye(3, dtype=np.float32)[:, None]  # (throw, 1, 3)


class RockPaperScissors(PlainState, Drawn, Environment):
    """Play against an opponent that throws rock, paper, scissors with probabilities .5, .3, .2.

    The reward is 2 for a win, else 0; an episode is one throw. Only the value function observes the
    throw of the opponent, so the optimal policy always throws paper, with a mean return of 1, while
    the value can be predicted exactly.

    Args:
        cheat: the policy also observes the throw of the opponent, and can always get 2.
    """

    def __init__(self, cheat: bool = False) -> None:
        self.cheat = cheat

    def obs_space(self) -> ObsSpace:
        """Return the space of the player, and the opponent's throw."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player's throw."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the opponent's throw."""
        drawn = self.rng.random()
        self.opponent = (drawn >= 0.5) + (drawn >= 0.8)
        self.player: int | None = None
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Compare the throws."""
        throw = actions["throw"]
        assert isinstance(throw, CategoricalAction)
        self.player = int(throw.indices[0])
        wins = self.player == (self.opponent + 1) % 3
        return self._observe(done=True, reward=2.0 * wins)

    def view(self) -> View:
        """Return the shapes and colours of the player and the opponent."""
        player = EntityView(shape="circle", colour=as_hex(BLUE))
        return View({"Player": player, "Opponent": EntityView(shape="square", colour=as_hex(RED))})

    def scene(self) -> Scene:
        """Return the player's throw on the left, the opponent's on the right, in three rows."""
        marks = [Mark(1, -self.opponent, _THROWS[self.opponent][0], RED)]
        if self.player is not None:
            marks.append(Mark(0, -self.player, _THROWS[self.player][0], BLUE))
        caption = "player, opponent: rock, paper or scissors"
        return Scene((-0.5, -2.5), (1.5, 0.5), marks, caption=caption)

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        return Observation(
            features={"Player": _PLAYER, "Opponent": _OPPONENTS[self.opponent]},
            visible={"Opponent": [self.cheat]},
            actions=_THROW,
            reward=reward,
            done=done,
        )
