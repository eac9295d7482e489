"""Exclusive or of two entities, which no linear policy can represent."""

from collections.abc import Mapping

from entity_env.actions import Action, GlobalCategoricalAction, GlobalCategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import BLUE, GOLD, PALE, Drawn, Mark, Scene, as_hex
from entity_env.plain_state import PlainState
from entity_env.spaces import GLOBAL, ActionSpace, Entity, GlobalCategoricalActionSpace, ObsSpace
from entity_env.view import EntityView, View

_OBS_SPACE = ObsSpace(global_features=["negate"], entities={"Input": Entity(["is_set"])})
_ACTION_SPACE: dict[str, ActionSpace] = {"output": GlobalCategoricalActionSpace(["0", "1"])}
_OUTPUT = {"output": GlobalCategoricalActionMask()}


class Xor(PlainState, Drawn, Environment):
    """Two inputs and a global feature, each randomly 0 or 1.

    The reward is 1 for answering with the exclusive or of the two inputs, negated if the global
    feature `negate` is 1, else 0. An episode is one step.
    """

    def obs_space(self) -> ObsSpace:
        """Return the space of two inputs and the global feature `negate`."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: the player answers with 0 or 1."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Draw the three bits."""
        self.bit1, self.bit2, self.negate = (self.rng.getrandbits(1) for _ in range(3))
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Compare the answer."""
        output = actions["output"]
        assert isinstance(output, GlobalCategoricalAction)
        right = output.index == self.bit1 ^ self.bit2 ^ self.negate
        return self._observe(done=True, reward=float(right))

    def view(self) -> View:
        """Return the labels: the bit of each input, and `negate`."""
        inputs = EntityView(shape="circle", colour=as_hex(BLUE), label=("is_set",))
        return View({"Input": inputs, GLOBAL: EntityView(label=("negate",))})

    def scene(self) -> Scene:
        """Return the two inputs, and `negate` below; a 0 is pale."""
        marks = [
            Mark(x, y, str(bit), colour if bit else PALE)
            for x, y, bit, colour in (
                (0, 1, self.bit1, BLUE),
                (1, 1, self.bit2, BLUE),
                (0.5, 0, self.negate, GOLD),
            )
        ]
        return Scene((-0.5, -0.5), (1.5, 1.5), marks, caption="two inputs, negate")

    def _observe(self, done: bool = False, reward: float = 0.0) -> Observation:
        return Observation(
            features={"Input": [[self.bit1], [self.bit2]]},
            global_features=[self.negate],
            actions=_OUTPUT,
            reward=reward,
            done=done,
        )
