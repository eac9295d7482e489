"""A bandit with one arm that pays: the smallest environment."""

from collections.abc import Mapping

from entity_env.actions import Action, GlobalCategoricalAction, GlobalCategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import GOLD, PALE, Drawn, Mark, Scene
from entity_env.plain_state import PlainState
from entity_env.spaces import GLOBAL, ActionSpace, GlobalCategoricalActionSpace, ObsSpace
from entity_env.view import EntityView, View

_EPISODE_STEPS = 32

_OBS_SPACE = ObsSpace(global_features=["step"])
_ACTION_SPACE: dict[str, ActionSpace] = {
    "pull": GlobalCategoricalActionSpace(["A", "B", "C", "D", "E"])
}
_PULL = {"pull": GlobalCategoricalActionMask()}


class MultiArmedBandit(PlainState, Drawn, Environment):
    """A bandit with five arms and 32 pulls per episode; only arm A pays, 1/32."""

    def obs_space(self) -> ObsSpace:
        """Return the space of the number of pulls so far."""
        return _OBS_SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: an arm to pull."""
        return _ACTION_SPACE

    def reset(self) -> Observation:
        """Start counting."""
        self.step = 0
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Pull an arm."""
        pull = actions["pull"]
        assert isinstance(pull, GlobalCategoricalAction)
        self.step += 1
        return self._observe(1 / _EPISODE_STEPS if pull.label == "A" else 0.0)

    def view(self) -> View:
        """Return the label of the bandit: the number of pulls so far."""
        return View({GLOBAL: EntityView(label=("step",))})

    def scene(self) -> Scene:
        """Return the pulls so far, one disc each."""
        marks = [
            Mark(i % 8, -(i // 8), ".o"[i < self.step], GOLD if i < self.step else PALE)
            for i in range(_EPISODE_STEPS)
        ]
        return Scene((-0.5, -3.5), (7.5, 0.5), marks, caption=f"step {self.step}")

    def _observe(self, reward: float) -> Observation:
        return Observation(
            global_features=[self.step],
            actions=_PULL,
            reward=reward,
            done=self.step >= _EPISODE_STEPS,
        )
