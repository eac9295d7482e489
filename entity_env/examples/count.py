"""Counting of entities without features."""

from collections.abc import Mapping

import numpy as np

from entity_env.actions import Action, BoolMatrix, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, BROWN, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_OBS_SPACE = ObsSpace(entities={"Player": Entity([]), "Bean": Entity([])})
_ACTION_SPACE: dict[str, ActionSpace] = {"count": CategoricalActionSpace(list("0123456789"))}
_PLAYER_ID = ["Player"]
_BEAN_IDS = [f"Bean{i}" for i in range(1, 10)]


class Count(PlainState, Drawn, Environment):
    """Count beans without features: the reward is 1 for the right number, else 0.

    The mask rules out some of the wrong answers. An episode is one step.

    Args:
        masked_choices: exclusive upper bound of the number of beans and of the allowed answers, 1
            to 10.

    Raises:
        ValueError: `masked_choices` is outside of 1 to 10.
    """

    def __init__(self, masked_choices: int = 10) -> None:
        if not 1 <= masked_choices <= 10:
            raise ValueError(f"masked_choices: expected 1 to 10, got {masked_choices}")
        self.masked_choices = masked_choices

    def obs_space(self) -> ObsSpace:
        """Return the space of the player and the beans, all without features."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player answers with a number."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the number of beans, and the wrong answers that the mask allows."""
        self.count = self.rng.randrange(self.masked_choices)
        num_decoys = self.rng.randint(0, self.masked_choices)
        decoys = self.rng.sample(range(self.masked_choices), num_decoys)
        mask = np.zeros((1, 10), dtype=np.bool_)
        mask[0, [self.count, *decoys]] = True
        return self._observe(mask)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Compare the answer."""
        answer = actions["count"]
        assert isinstance(answer, CategoricalAction)
        return self._observe(done=True, reward=float(answer.indices[0] == self.count))

    def view(self) -> View:
        """Return the shapes and colours of the player and the beans."""
        player = EntityView(shape="square", colour=as_hex(BLUE))
        return View({"Player": player, "Bean": EntityView(shape="circle", colour=as_hex(BROWN))})

    def scene(self) -> Scene:
        """Return the player, and the beans in a row."""
        beans = [Mark(i, 0, "o", BROWN) for i in range(1, self.count + 1)]
        return Scene((-0.5, -0.5), (9.5, 0.5), [Mark(0, 0, "P", BLUE), *beans])

    def _observe(
        self, mask: BoolMatrix | None = None, done: bool = False, reward: float = 0.0
    ) -> Observation:
        return Observation(
            features={
                "Player": np.zeros((1, 0), dtype=np.float32),
                "Bean": np.zeros((self.count, 0), dtype=np.float32),
            },
            ids={"Player": _PLAYER_ID, "Bean": _BEAN_IDS[: self.count]},
            actions={"count": CategoricalActionMask(actor_ids=_PLAYER_ID, mask=mask)},
            reward=reward,
            done=done,
        )
