"""A bandit with a random paying arm per episode, which takes memory to find."""

from collections.abc import Mapping

from entity_env.actions import Action, GlobalCategoricalAction, GlobalCategoricalActionMask
from entity_env.environment import Environment, Observation
from entity_env.examples.draw import GOLD, PALE, Drawn, Mark, Scene
from entity_env.plain_state import PlainState
from entity_env.spaces import GLOBAL, ActionSpace, GlobalCategoricalActionSpace, ObsSpace
from entity_env.view import EntityView, View

_ARMS = ["A", "B", "C", "D", "E"]
_PULLS = 20


class HiddenArm(PlainState, Drawn, Environment):
    """A bandit with five arms and 20 pulls per episode; a random arm pays 1.

    Observations contain neither the pulled arm nor its reward, so memory needs choices and rewards
    as inputs. Trying all arms in turn until one pays returns 18 on average, a policy without memory
    4.
    """

    def obs_space(self) -> ObsSpace:
        """Return the space of the number of pulls so far."""
        return ObsSpace(global_features=["step"])

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: an arm to pull."""
        return {"pull": GlobalCategoricalActionSpace(_ARMS)}

    def reset(self) -> Observation:
        """Draw the arm that pays."""
        self.step, self.arm, self.pulled = 0, self.rng.randrange(len(_ARMS)), -1
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Pull an arm."""
        pull = actions["pull"]
        assert isinstance(pull, GlobalCategoricalAction)
        self.step, self.pulled = self.step + 1, _ARMS.index(pull.label)
        return self._observe()

    def view(self) -> View:
        """Return the label of the bandit: the number of pulls so far."""
        return View({GLOBAL: EntityView(label=("step",))})

    def scene(self) -> Scene:
        """Return the arms: the one that pays is golden, the one that was pulled a capital."""
        marks = [
            Mark(i, 0, name if i == self.pulled else name.lower(), GOLD if i == self.arm else PALE)
            for i, name in enumerate(_ARMS)
        ]
        return Scene((-0.5, -0.5), (4.5, 0.5), marks, caption=f"step {self.step}")

    def _observe(self) -> Observation:
        return Observation(
            global_features=[self.step],
            actions={"pull": GlobalCategoricalActionMask()} if self.step < _PULLS else {},
            reward=float(self.pulled == self.arm),
            done=self.step == _PULLS,
        )
