"""From what the user hands to `train` to environments."""

import functools
import inspect
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from enn_trainer.config import EnvConfig
from enn_trainer.errors import ConfigError
from entity_env.any_vec_env import AnyVecEnv
from entity_env.env_list import EnvList
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.parallel_env_list import ParallelEnvList
from entity_env.vec_env import VecEnv

EnvFactory: TypeAlias = Callable[[EnvConfig, int, int, int], VecEnv]
"""(configuration, num_envs, processes, first_env_index) -> environments."""


def env_factory(
    env: type[Environment] | type[Match] | type[VecEnv] | EnvFactory,
    kind: type[Any] | None = None,
    sent: Callable[..., Any] | None = None,
) -> EnvFactory:
    """How to make the environments that a user named.

    Args:
        env: the class of an environment or match, or a partial of it; that of a vectorised
            environment, which takes (num_envs, first_env_index) before other arguments; or a
            factory, also one written for entity-gym.
        kind: the class of what it makes, where it is a function that makes an environment or match.
        sent: what workers are sent in its place.

    Raises:
        TypeError: it is neither.
    """
    env_cls = kind or (env.func if isinstance(env, functools.partial) else env)
    if inspect.isclass(env_cls) and issubclass(env_cls, Environment | Match):
        return functools.partial(_make_list, env_cls, env, sent or env)
    if inspect.isclass(env_cls) and issubclass(env_cls, VecEnv):
        return functools.partial(_make_vectorised, env_cls, env)
    if inspect.isclass(env):
        raise TypeError(
            f"env: expected a subclass of Environment, Match or VecEnv, or a factory "
            f"(EnvConfig, num_envs, processes, first_env_index) -> VecEnv, got class {env.__name__}"
        )
    if not callable(env):
        raise TypeError(f"env: expected a class or a factory, got {env!r}")
    factory: EnvFactory = env
    return lambda config, num_envs, processes, first: AnyVecEnv(
        factory(config, num_envs, processes, first), config.validate
    )


def _make_list(
    env_cls: type[Environment] | type[Match],
    make: Callable[..., Any],
    sent: Callable[..., Any],
    config: EnvConfig,
    num_envs: int,
    processes: int,
    first_env_index: int,
) -> VecEnv:
    kwargs = _kwargs(config, env_cls.__name__, make)
    sides = env_cls.num_sides if issubclass(env_cls, Match) else 1
    if num_envs % sides:
        raise ConfigError(
            f"rollout.num_envs, eval.num_envs: expected multiples of {sides}, the sides of "
            f"{env_cls.__name__}, got {num_envs}"
        )
    if processes > 1:
        return ParallelEnvList(
            functools.partial(sent, **kwargs),
            num_envs,
            processes,
            first_env_index=first_env_index,
            validate=config.validate,
        )
    return EnvList(functools.partial(make, **kwargs), num_envs, first_env_index, config.validate)


def _make_vectorised(
    env_cls: type[VecEnv],
    make: Callable[..., Any],
    config: EnvConfig,
    num_envs: int,
    processes: int,
    first_env_index: int,
) -> VecEnv:
    """Environments that step together in this process, however many there may be."""
    kwargs = _kwargs(config, env_cls.__name__, make, num_envs, first_env_index)
    return AnyVecEnv(make(num_envs, first_env_index, **kwargs), config.validate)


def _kwargs(config: EnvConfig, name: str, make: Callable[..., Any], *others: int) -> dict[str, Any]:
    """The arguments of the configuration, if they can be handed over behind the others."""
    kwargs: dict[str, Any] = json.loads(config.kwargs)
    try:
        inspect.signature(make).bind(*others, **kwargs)
    except TypeError as error:
        raise ConfigError(f"env.kwargs: {error}; {name} takes {inspect.signature(make)}") from None
    return kwargs


@contextmanager
def global_randomness_kept() -> Iterator[None]:
    """Afterwards the generators of `random` and `numpy` are as they were before."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (others use it)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
