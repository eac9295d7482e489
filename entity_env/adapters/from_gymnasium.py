"""A Gymnasium environment as an `Environment`."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.adapters.agent_translator import AgentTranslator, View
from entity_env.adapters.gymnasium_api import (
    MakeGymnasiumEnv,
    as_reward,
    check_result,
    make_gymnasium,
    names_of,
    partial_class,
    render,
    world_seed,
)
from entity_env.adapters.mapping import FieldMap
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.spaces import ActionName, ActionSpace, ObsSpace


class FromGymnasium(Environment):
    """A Gymnasium environment.

    An episode is reset with the last 31 bits of a seed, which all environments take, if there was
    one since the last reset, and without a seed if not.

    Args:
        make_env: the id of the environment, or a function that makes it.
        mapping: the meaning of the fields of its observations and actions; what it does not name
            is inferred.
        kwargs: for `make_env`.

    Raises:
        InvalidSpace: the mapping does not fit the environment, or something cannot be inferred.
    """

    def __init__(
        self, make_env: MakeGymnasiumEnv, mapping: FieldMap | None = None, **kwargs: Any
    ) -> None:
        self.env = make_gymnasium(make_env, **kwargs)
        try:
            self._translator = AgentTranslator(
                self.env.observation_space, self.env.action_space, mapping, names_of(self.env)
            )
        except BaseException:
            self.env.close()
            raise
        self._seed: int | None = None
        self._view: View | None = None

    @classmethod
    def of(
        cls, make_env: MakeGymnasiumEnv, mapping: FieldMap | None = None, **kwargs: Any
    ) -> type[Self]:
        """Return the class of this world, as `train` takes it; arguments as for the class."""
        return partial_class(cls, {}, make_env, mapping, **kwargs)

    def obs_space(self) -> ObsSpace:
        """Return the entity types and global features."""
        return self._translator.obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the actions."""
        return self._translator.action_space

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def reset(self) -> Observation:
        """Begin an episode."""
        seed, self._seed = self._seed, None
        value, info = check_result("reset", self.env.reset(seed=world_seed(seed)))
        return self._observe(value, 0.0, False, False, info)

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step."""
        if self._view is None:
            raise EntityEnvError("act: call reset first")
        action = self._translator.translate_actions(self._view, actions)
        return self._observe(*check_result("step", self.env.step(action)))

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Return the picture or text of the `render_mode` that the environment was made with."""
        return render(self.env, kwargs.get("mode"))

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _observe(
        self, value: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> Observation:
        is_over = bool(terminated or truncated)
        view = self._translator.translate_observation(value, info, is_over)
        self._view = None if is_over else view
        return view.to_observation(
            reward=as_reward(reward),
            terminated=bool(terminated),
            truncated=bool(truncated),
            metrics=self._translator.metrics(info),
        )
