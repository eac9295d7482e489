"""A Gymnasium environment as an `Environment`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from entity_env.actions import Action
from entity_env.adapters.agent_translator import AgentTranslator, AgentView, check_metrics
from entity_env.adapters.gymnasium_api import (
    Adapted,
    MakeGymnasiumEnv,
    as_info,
    as_reward,
    check_result,
    make_gymnasium,
    names_of,
    partial_class,
    world_seed,
)
from entity_env.adapters.mapping import FieldMap
from entity_env.arrays import as_flag
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError
from entity_env.match import copy_containers
from entity_env.spaces import ActionName


class FromGymnasium(Adapted, Environment):
    """Adapter from a Gymnasium environment to an `Environment`.

    A seed is passed to the next reset, reduced to its last 31 bits, which all environments accept.
    Further resets get no seed.

    Args:
        make_env: id of the environment, or a function that creates it.
        mapping: mapping of the fields of observations and actions; the fields that it does not name
            are inferred.
        options: names of arguments that are passed to `reset(options={...})`, and can vary by
            episode; an option without a value is omitted.
        kwargs: arguments of `make_env`, and initial values of `options`.

    Attributes:
        translators: list with the translator of observations and actions.

    Raises:
        InvalidSpace: the mapping does not fit the environment, or a field cannot be inferred.
        EntityEnvError: the environment cannot be created, or `options` are not names.
    """

    def __init__(
        self,
        make_env: MakeGymnasiumEnv,
        mapping: FieldMap | None = None,
        *,
        options: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        if isinstance(options, str) or not all(isinstance(n, str) for n in options):
            raise EntityEnvError(f"options: expected a list of names, got {options!r}")
        self._option_names = tuple(options)
        self._options = {name: kwargs.pop(name) for name in options if name in kwargs}
        self.env = make_gymnasium(make_env, **kwargs)
        try:
            self._translator = AgentTranslator(
                self.env.observation_space, self.env.action_space, mapping, names_of(self.env)
            )
        except BaseException:
            self.env.close()
            raise
        self.translators = [self._translator]
        self._spaces = self._translator.obs_space, self._translator.action_space
        self._view: AgentView | None = None

    @classmethod
    def of(
        cls, make_env: MakeGymnasiumEnv, mapping: FieldMap | None = None, **kwargs: Any
    ) -> type[Any]:
        """Create a class for `train`, with the same arguments as the constructor."""
        return partial_class(cls, {}, make_env, mapping, **kwargs)

    @cached_property
    def set_parameters(self) -> Callable[..., None] | None:
        """Function that sets the options of further resets; None without `options`."""
        if not self._option_names:
            return None

        def set_options(**values: Any) -> None:
            signature.bind_partial(**values)  # raises TypeError for unknown names
            self._options |= values

        keyword_only = inspect.Parameter.KEYWORD_ONLY
        parameters = [inspect.Parameter(name, keyword_only) for name in self._option_names]
        signature = inspect.Signature(parameters)
        set_options.__signature__ = signature  # type: ignore[attr-defined]
        return set_options

    def reset(self) -> Observation:
        """Start a new episode."""
        kwargs = {"options": copy_containers(self._options)} if self._options else {}
        result = self.env.reset(seed=world_seed(self.take_seed()), **kwargs)
        value, info = check_result("reset", result)
        return self._observe(value, 0.0, False, False, info)

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Step the environment."""
        if self._view is None:
            raise EntityEnvError("act: call reset first")
        action = self._translator.translate_actions(self._view, actions)
        return self._observe(*check_result("step", self.env.step(action)))

    def _observe(
        self, value: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> Observation:
        reward, info = as_reward(reward), as_info(info)
        terminated = as_flag(terminated, "terminated")
        truncated = as_flag(truncated, "truncated")
        is_over = terminated or truncated
        view = self._translator.translate_observation(value, info, is_over)
        self._view = None if is_over else view
        metrics = self._translator.metrics(info)
        if is_over:
            check_metrics(self.translators)
        return view.to_observation(
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            metrics=metrics,
        )
