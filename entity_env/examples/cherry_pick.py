"""Selection of the best half of all entities."""

from collections.abc import Mapping
from typing import cast

import numpy as np

from entity_env.actions import Action, SelectEntityAction, SelectEntityActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GREEN, RED, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.view import EntityView, View

_OBS_SPACE = ObsSpace(entities={"Cherry": Entity(["quality"]), "Player": Entity([])})
_ACTION_SPACE: dict[str, ActionSpace] = {"Pick Cherry": SelectEntityActionSpace()}
_PICK = {"Pick Cherry": SelectEntityActionMask(actor_types=["Player"], actee_types=["Cherry"])}
_PLAYER = np.zeros((1, 0), dtype=np.float32)


class CherryPick(PlainState, Drawn, Environment):
    """Pick cherries one by one; the reward is the quality of the cherry.

    Qualities are normally distributed, and shifted so that the better half sums to 1. An episode
    ends when half of the cherries are picked, so the maximum return is 1.

    Args:
        num_cherries: number of cherries, at least 2.

    Raises:
        ValueError: `num_cherries` is below 2.
    """

    def __init__(self, num_cherries: int = 32) -> None:
        if num_cherries < 2:
            raise ValueError(f"num_cherries: expected at least 2, got {num_cherries}")
        self.num_cherries = num_cherries

    def obs_space(self) -> ObsSpace:
        """Return the space of the cherries that are left, and the player."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player selects a cherry."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the qualities."""
        cherries = [self.rng.gauss() for _ in range(self.num_cherries)]
        half = self.num_cherries // 2
        shift = (1 - sum(sorted(cherries)[-half:])) / half
        self.cherries = [cherry + shift for cherry in cherries]
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take a cherry away."""
        pick = actions["Pick Cherry"]
        assert isinstance(pick, SelectEntityAction)
        return self._observe(self.cherries.pop(cast(int, pick.actees[0])))

    def view(self) -> View:
        """Return the shapes and colours; the label of a cherry is its quality."""
        cherry = EntityView(shape="circle", colour=as_hex(RED), label=("quality",))
        return View({"Cherry": cherry, "Player": EntityView(shape="square", colour=as_hex(BLUE))})

    def scene(self) -> Scene:
        """Return the cherries that are left, large and green if they are good."""
        least, most = min(self.cherries), max(self.cherries)
        marks = []
        for i, cherry in enumerate(self.cherries):
            good = (cherry - least) / ((most - least) or 1.0)
            colour = (GREEN, RED)[cherry < 0]
            marks.append(Mark(i % 8, -(i // 8), str(int(9 * good)), colour, 0.1 + 0.3 * good))
        return Scene(
            (-0.5, 0.5 - (self.num_cherries + 7) // 8), (7.5, 0.5), marks, caption="quality, 9 best"
        )

    def _observe(self, reward: float) -> Observation:
        return Observation(
            features={
                "Cherry": np.array(self.cherries, dtype=np.float32)[:, None],
                "Player": _PLAYER,
            },
            ids={"Cherry": range(len(self.cherries))},
            actions=_PICK,
            reward=reward,
            done=self.num_cherries - len(self.cherries) == self.num_cherries // 2,
        )
