"""Rock, paper, scissors with uneven stakes and a non-uniform Nash equilibrium."""

from collections.abc import Mapping, Sequence

import numpy as np

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Observation
from entity_env.examples.draw import BLUE, PALE, RED, Drawn, Mark, Scene, as_hex
from entity_env.kinds import Kind
from entity_env.match import Match
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_THROWS = ["rock", "paper", "scissors"]
_PAYS = (1.0, 5.0, 2.0)  # a win by each of them

_OBS_SPACE = ObsSpace(entities={"Player": Entity([]), "Throw": Entity([Kind("throw", _THROWS)])})
_ACTION_SPACE: dict[str, ActionSpace] = {"throw": CategoricalActionSpace(_THROWS)}
_THROW = {"throw": CategoricalActionMask(actor_types=["Player"])}
_PLAYER = np.zeros((1, 0), dtype=np.float32)


class UnevenThrows(PlainState, Drawn, Match):
    """One round of rock, paper, scissors, where the stakes depend on the winning throw.

    A win by rock pays 1, by scissors 2, by paper 5, and the loser pays the same; equal throws are a
    draw. The metric `win` of the last observation is 1 for a win, else 0. The only Nash equilibrium
    is rock with probability 1/4, paper with 1/8, scissors with 5/8; paper wins 1 on average against
    the uniform policy.
    """

    num_sides = 2

    def obs_space(self) -> ObsSpace:
        """Return the space of the player, and the throw of the other side at the end."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the throw of each side."""
        return _ACTION_SPACE

    def reset(self) -> list[Observation]:
        """Begin a game."""
        self.throws: list[int] = []
        return [self._view(side) for side in (0, 1)]

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Compare the throws."""
        for own in actions:
            throw = own["throw"]
            assert isinstance(throw, CategoricalAction)
            self.throws.append(int(throw.indices[0]))
        return [self._view(side) for side in (0, 1)]

    def view(self) -> View:
        """Return the shapes and colours of the player and of the other side's throw."""
        player = EntityView(shape="circle", colour=as_hex(BLUE))
        throw = EntityView(shape="square", colour=as_hex(RED), label=("throw",))
        return View({"Player": player, "Throw": throw})

    def scene(self) -> Scene:
        """Return the first side's throw on the left, the second's on the right, in three rows."""
        marks = [Mark(side, -t, ".", PALE) for side in (0, 1) for t in range(3)]
        thrown = enumerate(zip(self.throws, (BLUE, RED), strict=False))
        marks += [Mark(side, -t, _THROWS[t][0], colour) for side, (t, colour) in thrown]
        caption = "first side, second side: rock, paper or scissors"
        return Scene((-0.5, -2.5), (1.5, 0.5), marks, caption=caption)

    def _view(self, side: int) -> Observation:
        """Return the observation of a side."""
        if not self.throws:
            return Observation(features={"Player": _PLAYER, "Throw": []}, actions=_THROW)
        own, other = self.throws[side], self.throws[1 - side]
        # Each throw beats the one before it: paper beats rock, scissors paper, rock scissors.
        won, lost = own == (other + 1) % 3, other == (own + 1) % 3
        return Observation(
            features={"Player": _PLAYER, "Throw": [[_THROWS[other]]]},
            reward=_PAYS[own] * won - _PAYS[other] * lost,
            done=True,
            metrics={"win": float(won)},
        )
