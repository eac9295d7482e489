"""The environments that `env.id` names, whatever it names."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass

from enn_trainer.config import EnvConfig
from enn_trainer.errors import ConfigError
from enn_trainer.load_world import load_world
from entity_env.env_list import EnvList
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError
from entity_env.match import Match
from entity_env.parallel_env_list import ParallelEnvList
from entity_env.vec_env import VecEnv


@dataclass(frozen=True)
class NamedWorld:
    """Makes one environment; workers can import what it names, also from a file.

    Attributes:
        name: the name of an example, `package.module:Name`, or `file.py:Name`.
        kwargs: its arguments, as a JSON object.
        field: what they are called in messages.
        num_sides: of a match.
    """

    name: str
    kwargs: str
    field: str
    num_sides: int = 1

    def __call__(self) -> Environment | Match:
        """Make it."""
        return _maker(self.name, self.kwargs, self.field)()


def named_worlds(
    config: EnvConfig, num_envs: int, processes: int, first_env_index: int, field: str = "env"
) -> VecEnv:
    """The environments that a configuration names by `id`.

    Args:
        config: the environment.
        num_envs: how many.
        processes: that they are shared by.
        first_env_index: the index of the first of them.
        field: what the configuration is called in messages.

    Raises:
        ConfigError: there is nothing of this name, or it does not take these arguments.
    """
    world = make_one(config, f"{field}.kwargs")
    sides = world.num_sides if isinstance(world, Match) else 1
    world.close()
    if num_envs % sides:
        raise ConfigError(
            f"eval.num_envs: expected a multiple of {sides}, the sides of {config.id}, "
            f"got {num_envs}"
        )
    make = NamedWorld(config.id, config.kwargs, f"{field}.kwargs", sides)
    if processes == 1:
        return EnvList(make, num_envs, first_env_index, config.validate)
    return ParallelEnvList(
        make, num_envs, processes, first_env_index=first_env_index, validate=config.validate
    )


def make_one(config: EnvConfig, field: str) -> Environment | Match:
    """One environment, closed by the caller.

    Args:
        config: the environment.
        field: what its arguments are called in messages.

    Raises:
        ConfigError: there is nothing of this name, or it does not take these arguments.
    """
    try:
        world: object = NamedWorld(config.id, config.kwargs, field)()
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError | EntityEnvError):
            raise
        raise ConfigError(f"{field}: {config.id}: {error}") from None
    if not isinstance(world, Environment | Match):
        raise ConfigError(
            f"ENV: expected what makes an Environment or a Match, got {config.id}, which makes "
            f"{type(world).__name__}"
        )
    return world


@functools.cache
def _maker(name: str, kwargs: str, field: str) -> Callable[[], Environment | Match]:
    """Read once, so that all environments are of one class."""
    return load_world(name, json.loads(kwargs), field)
