"""Classification of an entity by a feature, or by its type alone."""

from collections.abc import Mapping

import numpy as np

from entity_env.actions import Action, CategoricalAction, CategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, BROWN, RED, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import ActionSpace, CategoricalActionSpace, Entity, ObsSpace
from entity_env.view import EntityView, View

_OBS_SPACE = ObsSpace(
    entities={
        "Player": Entity(["step"]),
        "Object": Entity(["is_hotdog"]),
        "Hotdog": Entity([]),
    }
)
_ACTION_SPACE: dict[str, ActionSpace] = {
    "classify": CategoricalActionSpace(["hotdog", "not_hotdog"]),
    "unused_action": CategoricalActionSpace(["0", "1"]),
}
_IDS = {"Player": [0]}
_PLAYER_ACTS = {
    "classify": CategoricalActionMask(actor_ids=[0]),
    "unused_action": CategoricalActionMask(actor_ids=[]),
}
_ONE_HOTDOG = np.zeros((1, 0), dtype=np.float32)


class NotHotdog(PlainState, Drawn, Environment):
    """Classify an object that is a hotdog with probability 0.5.

    In half of the episodes hotdogs have the type Hotdog, without features; otherwise all objects
    have the type Object, with the feature `is_hotdog`. The reward is 1 if the index of the choice
    equals `is_hotdog`, else 0; as in entity-gym, the labels of the choices are swapped. An episode
    is one step. `unused_action` has no actors.
    """

    def obs_space(self) -> ObsSpace:
        """Return the space of the player and the object."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: the player's classification, and one without actors."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the object and its type."""
        self.step = 0
        self.is_hotdog = self.rng.getrandbits(1)
        self.has_own_type = self.is_hotdog == 1 and self.rng.random() < 0.5
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Compare the choice."""
        choice = actions["classify"]
        assert isinstance(choice, CategoricalAction)
        self.step += 1
        return self._observe(done=True, reward=float(choice.indices[0] == self.is_hotdog))

    def view(self) -> View:
        """Return the shapes and colours of the player and the object."""
        thing = EntityView(shape="square", colour=as_hex(BROWN), label=("is_hotdog",))
        hotdog = EntityView(shape="hexagon", colour=as_hex(RED))
        player = EntityView(shape="circle", colour=as_hex(BLUE))
        return View({"Player": player, "Object": thing, "Hotdog": hotdog})

    def scene(self) -> Scene:
        """Return the player, and the object: round for a hotdog, red for the type Hotdog."""
        colour = RED if self.has_own_type else BROWN
        end = (2.4, 0.0) if self.is_hotdog else None
        thing = Mark(1.6, 0, "#H"[self.is_hotdog], colour, 0.3, end, square=not self.is_hotdog)
        return Scene((-0.5, -0.5), (3, 0.5), [Mark(0, 0, "P", BLUE), thing], cell=0.5)

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        player = np.array([[self.step]], dtype=np.float32)
        thing = np.array([[self.is_hotdog]], dtype=np.float32)
        return Observation(
            features={"Player": player, "Hotdog": _ONE_HOTDOG}
            if self.has_own_type
            else {"Player": player, "Object": thing},
            ids=_IDS,
            actions=_PLAYER_ACTS,
            reward=reward,
            done=done,
        )
