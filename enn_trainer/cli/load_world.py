"""Environments by the names that command lines and configurations have for them."""

import ast
import contextlib
import functools
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import EnvConfig
from enn_trainer.config.validation import dict_of_unique
from enn_trainer.experience.envs import EnvFactory, check_taken, env_factory
from enn_trainer.experience.handed_in import HANDED_IN
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

_EXPECTED = "expected what makes an Environment or a Match"


def load_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Callable[..., Any]:
    """Return a function that makes an environment from its name and arguments; it takes more.

    Args:
        name: `file.py:Name`, `package.module:Name`, `gymnasium:ID`, `pettingzoo:MODULE` or an
            example; a class or a function. Of a class of vectorised environments, a single
            environment is made.
        kwargs: its arguments.
        field: the name of the arguments on the command line, for messages.
        name_field: the name of `name` on the command line, likewise.
        trust: the code that may run; `TYPED` for a name that the user writes.

    Raises:
        ConfigError: there is nothing of this name, it is not trusted, or it does not take these
            arguments.
    """
    env = _find(name, name_field, trust)
    if _is_vectorised(env):
        env = functools.partial(env, 1)
    check_taken(env, name, kwargs, field)
    return FreshPartial(env, **kwargs)


def samplers_of(texts: Sequence[str]) -> dict[str, str]:
    """Return the texts of samplers of `--vary NAME=SAMPLER ...` by the name of the argument.

    Raises:
        ConfigError: one has no name or that of another one, or cannot be read.
    """
    pairs = [text.split("=", 1) for text in texts]
    if wrong := [pair[0] for pair in pairs if len(pair) < 2 or not pair[0].strip()]:
        raise ConfigError(f"--vary: expected NAME=SAMPLER, such as 'size=int 1 9', got {wrong[0]}")
    found: dict[str, str] = {}
    try:
        for name, text in ((name.strip(), text.strip()) for name, text in pairs):
            if name in found:
                raise ConfigError(f"--vary: expected different arguments, got {name} twice")
            read_sampler(text, f"--vary {name}")
            found[name] = text
    except InvalidSampler as error:
        raise ConfigError(str(error)) from None
    return found


def make_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Environment | Match:
    """Make an environment, which the caller closes. The arguments are those of `load_world`.

    Raises:
        ConfigError: there is nothing of this name, it does not take these arguments, or it makes
            something else.
    """
    world = make_any_world(name, kwargs, field, name_field, trust=trust)
    if isinstance(world, VecEnv):
        raise ConfigError(f"{name_field}: {_EXPECTED}, got {name}, which makes many at once")
    return world


def make_any_world(
    name: str, kwargs: Mapping[str, Any], field: str, name_field: str = "ENV", *, trust: Trust
) -> Environment | Match | VecEnv:
    """Make an environment, also a vectorised one. The arguments are those of `load_world`.

    Raises:
        ConfigError: there is nothing of this name, it does not take these arguments, or it makes
            something else.
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
        raise ConfigError(f"{name_field}: {_EXPECTED}, got {name}, which makes {made}")
    return world


def envs_by_id(
    config: EnvConfig,
    num_envs: int,
    processes: int,
    first_env_index: int,
    trust: Trust = TYPED,
) -> VecEnv:
    """Make the environments that `env.id` names; an `EnvFactory`, see `trusted_envs`.

    Raises:
        ConfigError: there is no such world, or it does not take `env.kwargs`.
    """
    return factory_of(config, "env", trust)(config, num_envs, processes, first_env_index)


def trusted_envs(trust: Trust) -> EnvFactory:
    """Return the factory of the environments that `env.id` names, if they are trusted."""
    return functools.partial(envs_by_id, trust=trust)


def factory_of(config: EnvConfig, field: str, trust: Trust) -> EnvFactory:
    """Return the factory of the environments that the `id` of a configuration names.

    Environments that are not in the registry are imported, here and in workers.

    Args:
        config: configuration of the environments.
        field: path of their section, for messages.
        trust: the code that may run.

    Raises:
        ConfigError: there is no such world, or it is not trusted; names the field.
    """
    env = _find(config.id, f"{field}.id", trust)
    if config.id in ENV_REGISTRY or _is_vectorised(env):
        return env_factory(env)
    is_adapted = config.id.partition(":")[0] in LIBRARIES
    kind = env
    if is_adapted or not inspect.isclass(env):
        kind = _kind_of_result(config, field, trust)
    if not issubclass(kind, Environment | Match):
        expected = "expected an Environment or a Match, or what makes one"
        got = f"{config.id}, which is or makes {kind.__name__}"
        raise ConfigError(f"{field}.id: {expected}, got {got}")
    sides = kind.num_sides if issubclass(kind, Match) else 1
    sent = NamedWorld(config.id, str(start_folder()), sides)
    return env_factory(env, kind, sent)


def _find(name: str, field: str, trust: Trust) -> Any:
    if name == HANDED_IN:
        can = "a program handed it in, and can continue the run with --checkpoint-dir and --resume"
        raise ConfigError(f"{field}: expected the name of a world, got {name!r}: {can}")
    try:
        env = import_named(name, field, trust)
    except UnknownWorld as error:
        raise ConfigError(f"{field}: {error}") from None
    if not callable(env):
        raise ConfigError(f"{field}: expected a class or a function, got {name}: {short_repr(env)}")
    if not is_environment_factory(env):  # calling it could do anything
        shown = getattr(env, "__name__", type(env).__name__)
        hint = "" if inspect.isclass(env) else f"; annotate it, as in def {shown}() -> Environment"
        raise ConfigError(
            f"{field}: expected an Environment or a Match, or a function with one of them as its "
            f"return annotation, got {name}{hint}"
        )
    return env


def _is_vectorised(env: Any) -> bool:
    return inspect.isclass(env) and issubclass(env, VecEnv)


def _kind_of_result(config: EnvConfig, field: str, trust: Trust) -> type:
    """Return the class of the environments of a function or a library, after making one."""
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


def parse_kwargs(pairs: str | Sequence[str], field: str) -> dict[str, Any]:
    """Return the arguments of an environment that are given on the command line.

    Args:
        pairs: a text as `size=3,label=a`, where values are JSON, Python literals, or text; or as
            the JSON `{"size": 3, "label": "a"}`; or several such texts.
        field: name of the arguments on the command line, for messages.

    Raises:
        ConfigError: an argument has another form, or is given twice.
    """
    kwargs: dict[str, Any] = {}
    if isinstance(pairs, str):
        pairs = [pairs] if pairs.lstrip().startswith("{") else split_pairs(pairs)
    for text in pairs:
        for name, value in _arguments_in(text, field):
            if name in kwargs:
                raise ConfigError(f"{field}: expected every argument once, got {name} twice")
            kwargs[name] = value
    return kwargs


def _arguments_in(text: str, field: str) -> Iterator[tuple[str, Any]]:
    form = """an argument of ENV as in size=3, or JSON as in '{"size": 3}'"""
    if text.lstrip().startswith("{"):
        try:
            yield from json.loads(text, object_pairs_hook=dict_of_unique).items()
        except ValueError as error:
            raise ConfigError(f"{field}: expected {form}, got {text!r} ({error})") from None
        return
    parts = split_pairs(text)
    for pair in parts if all("=" in part for part in parts) else [text]:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise ConfigError(f"{field}: expected {form}, got {pair!r}")
        yield name, _value(value)


def _value(text: str) -> Any:
    """Parse a text as JSON or a Python literal, or return the text itself."""
    for read in (json.loads, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError):
            return read(text)
    return text


def split_pairs(text: str) -> list[str]:
    """Split a text at commas that are not within brackets or quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts
