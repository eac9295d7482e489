"""Environments by name, as on command lines and in configurations."""

import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import EnvFactory, check_arguments, env_factory
from enn_trainer.runtime.start_folder import start_folder
from enn_trainer.runtime.trust import TYPED, Trust, import_named
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, InvalidSampler, UnknownWorld, short_repr
from entity_env.examples import ENV_REGISTRY
from entity_env.imports.extras import remedy
from entity_env.match import FreshPartial, Match
from entity_env.named_world import LIBRARIES, NamedWorld, is_environment_factory
from entity_env.vec.samplers import read_sampler
from entity_env.vec.vec_env import VecEnv

_EXPECTED = "expected a class or function that creates an Environment or a Match"


def load_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Callable[..., Any]:
    """Return a function that creates an environment; it accepts further arguments.

    Args:
        name: `file.py:Name`, `package.module:Name`, `gymnasium:ID`, `pettingzoo:MODULE` or a
            built-in environment; a class or a function. A class of vectorised environments is
            created with a single environment.
        kwargs: arguments of the environment.
        field: name of the arguments on the command line, for messages.
        name_field: name of `name` on the command line, for messages.
        trust: code that may run; `TYPED` for a name that the user typed.

    Raises:
        ConfigError: the name does not exist, is not trusted, or does not accept the arguments.
    """
    env = _find(name, name_field, trust)
    if _is_vectorised(env):
        env = functools.partial(env, 1)
    check_arguments(env, name, kwargs, field)
    return FreshPartial(env, **kwargs)


def samplers_of(texts: Sequence[str]) -> dict[str, str]:
    """Parse `--vary NAME=SAMPLER ...` into the texts of samplers by argument.

    Raises:
        ConfigError: a name is missing or repeated, or a sampler is invalid.
    """
    pairs = [text.split("=", 1) for text in texts]
    if wrong := [pair[0] for pair in pairs if len(pair) < 2 or not pair[0].strip()]:
        raise ConfigError(f"--vary: expected NAME=SAMPLER, such as 'size=int 1 9', got {wrong[0]}")
    samplers: dict[str, str] = {}
    try:
        for name, text in ((name.strip(), text.strip()) for name, text in pairs):
            if name in samplers:
                raise ConfigError(f"--vary: expected different arguments, got {name} twice")
            read_sampler(text, f"--vary {name}")
            samplers[name] = text
    except InvalidSampler as error:
        raise ConfigError(str(error)) from None
    return samplers


def make_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Environment | Match:
    """Create an environment, which the caller closes. For the arguments see `load_world`.

    Raises:
        ConfigError: the name does not exist, does not accept the arguments, or creates something
            else.
    """
    world = make_any_world(name, kwargs, field, name_field, trust=trust)
    if isinstance(world, VecEnv):
        raise ConfigError(f"{name_field}: {_EXPECTED}, got {name}, which is vectorised")
    return world


def make_any_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Environment | Match | VecEnv:
    """Create an environment, also a vectorised one. For the arguments see `load_world`.

    Raises:
        ConfigError: the name does not exist, does not accept the arguments, or creates something
            else.
    """
    create_env = load_world(name, kwargs, field, name_field, trust=trust)
    try:
        world: object = create_env()
    except (TypeError, ValueError) as error:
        if isinstance(error, EntityEnvError):
            raise
        raise ConfigError(f"{name_field}: {name}: {error}") from None
    if not isinstance(world, Environment | Match | VecEnv):
        made = type(world).__name__
        raise ConfigError(f"{name_field}: {_EXPECTED}, got {name}, which creates {made}")
    return world


def envs_by_id(
    config: EnvConfig,
    num_envs: int,
    processes: int,
    first_env_index: int,
    trust: Trust = TYPED,
) -> VecEnv:
    """Create the environments of `env.id`; an `EnvFactory`, see `trusted_envs`.

    Raises:
        ConfigError: the environment does not exist, or does not accept `env.kwargs`.
    """
    return factory_of(config, "env", trust)(config, num_envs, processes, first_env_index)


def trusted_envs(trust: Trust) -> EnvFactory:
    """Return a factory of the environments of `env.id`, if their code is trusted."""
    return functools.partial(envs_by_id, trust=trust)


def factory_of(config: EnvConfig, field: str, trust: Trust) -> EnvFactory:
    """Return a factory of the environments of a configuration.

    Environments that are not built in are imported, here and in workers.

    Args:
        config: configuration of the environments.
        field: path of their section, for messages.
        trust: code that may run.

    Raises:
        ConfigError: the environment does not exist, or is not trusted; names the field.
    """
    env = _find(config.id, f"{field}.id", trust)
    if config.id in ENV_REGISTRY or _is_vectorised(env):
        return env_factory(env)
    is_adapted = config.id.partition(":")[0] in LIBRARIES
    kind = env
    if is_adapted or not inspect.isclass(env):
        kind = _kind_of_result(config, field, trust)
    if not issubclass(kind, Environment | Match):
        got = f"{config.id}, which is or creates {kind.__name__}"
        raise ConfigError(f"{field}.id: {_EXPECTED}, got {got}")
    sides = kind.num_sides if issubclass(kind, Match) else 1
    sent = NamedWorld(config.id, str(start_folder()), sides)
    return env_factory(env, kind, sent)


def _find(name: str, field: str, trust: Trust) -> Any:
    try:
        env = import_named(name, field, trust)
    except UnknownWorld as error:
        raise ConfigError(f"{field}: {error}") from None
    if not callable(env):
        raise ConfigError(f"{field}: expected a class or a function, got {name}: {short_repr(env)}")
    if not is_environment_factory(env):  # a call could have any effect
        label = getattr(env, "__name__", type(env).__name__)
        hint = "" if inspect.isclass(env) else f"; annotate it, as in def {label}() -> Environment"
        raise ConfigError(
            f"{field}: expected an Environment or a Match, or a function with one of them as its "
            f"return annotation, got {name}{hint}"
        )
    return env


def _is_vectorised(env: Any) -> bool:
    return inspect.isclass(env) and issubclass(env, VecEnv)


def _kind_of_result(config: EnvConfig, field: str, trust: Trust) -> type:
    """Create an environment of a function or a library and return its class."""
    kwargs = json.loads(config.kwargs)
    make = load_world(config.id, kwargs, f"{field}.kwargs", f"{field}.id", trust=trust)
    try:
        world: object = make()
    except Exception as error:
        kind = "" if isinstance(error, EntityEnvError) else f"{type(error).__name__}: "
        message = f"{kind}{' '.join(str(error).split())}"
        raise ConfigError(f"{field}.id: calling {config.id}: {message}{remedy(error)}") from None
    if isinstance(world, Environment | Match):
        world.close()
    return type(world)
