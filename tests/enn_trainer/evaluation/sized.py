"""A world with arguments, without imports of torch, which each worker would repeat."""

from collections.abc import Mapping

from entity_env import (
    Action,
    ActionSpace,
    Environment,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)


class Sized(Environment):
    """Pays its size at once."""

    def __init__(self, size: int = 5, offset: int = 0) -> None:
        self.size, self.offset = size, offset

    def obs_space(self) -> ObsSpace:
        return ObsSpace(global_features=["one"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"go": GlobalCategoricalActionSpace(["on", "off"])}

    def set_parameters(self, size: int = 5, offset: int = 0) -> None:
        self.size, self.offset = size, offset

    def reset(self) -> Observation:
        return self._frame(done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        assert isinstance(actions["go"], GlobalCategoricalAction)
        return self._frame(done=True)

    def _frame(self, done: bool) -> Observation:
        mask = {"go": GlobalCategoricalActionMask()}
        reward = float(self.size + self.offset) if done else 0.0
        return Observation(global_features=[1.0], actions=mask, done=done, reward=reward)
