"""Factories of vectorised environments, from the environment argument of `train`."""

import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import EnvConfig
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, short_repr
from entity_env.examples import ENV_REGISTRY
from entity_env.match import FreshPartial, Match
from entity_env.named_world import likely_name
from entity_env.seeding import preserve_global_rng
from entity_env.vec.parallel import ParallelEnvList
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.worker import Worker, WorkerProcess, WorkerSetup

EnvFactory: TypeAlias = Callable[[EnvConfig, int, int, int], VecEnv]
"""(configuration, num_envs, processes, first_env_index) -> environments."""
EnvSource: TypeAlias = (
    type[Environment | Match | VecEnv] | Callable[..., Environment | Match] | EnvFactory
)
"""Types of the environment argument of `train`; see `env_factory`."""
T = TypeVar("T")
_FACTORY = "a factory of vectorised environments takes " + (
    "(EnvConfig, num_envs, processes, first_env_index) and returns a VecEnv"
)


@dataclass(frozen=True)
class WorkerOptions:
    """Settings of the worker processes that factories of this module start.

    Attributes:
        recover: see `RolloutConfig`.
        new_worker: starts a remote worker; None for processes of this machine.
    """

    recover: str = "exact"
    new_worker: Callable[[WorkerSetup], Worker] | None = None


_DEFAULTS = WorkerOptions()
_OPTIONS: ContextVar[WorkerOptions] = ContextVar("worker_options", default=_DEFAULTS)


@contextmanager
def worker_options(options: WorkerOptions) -> Iterator[None]:
    """Return a context in which factories create environments with these worker options.

    A user's factory has no parameter for them, and may call a factory of this module.
    """
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def current_options() -> WorkerOptions:
    """Return the options of the innermost context.

    Pickled factories refer to this function, because a `ContextVar` cannot be pickled.
    """
    return _OPTIONS.get()


def env_factory(
    env: EnvSource, kind: type[Any] | None = None, sent: Callable[..., Any] | None = None
) -> EnvFactory:
    """Return a factory of vectorised environments.

    Args:
        env: the class of an environment or match, or a partial of it; a function that creates one
            from `env.kwargs`; the class of a vectorised environment, which takes (num_envs,
            first_env_index) before other arguments; or a factory, also one written for entity-gym.
            A function is a factory if it takes four positional arguments, at least one of them
            required, unless its return annotation is an environment or match.
        kind: class of the environments, if known.
        sent: replacement for `env` in worker processes.

    Raises:
        TypeError: `env` is none of these.
    """
    # Classes.
    env_cls = kind or (env.func if isinstance(env, functools.partial) else env)
    if inspect.isclass(env_cls) and issubclass(env_cls, Environment | Match):
        return _list_factory(env_cls, env, sent or env)
    if inspect.isclass(env_cls) and issubclass(env_cls, VecEnv):
        return _vectorised_factory(env_cls, env)
    if inspect.isclass(env):
        raise TypeError(
            f"env: expected a subclass of Environment, Match or VecEnv, or a factory "
            f"(EnvConfig, num_envs, processes, first_env_index) -> VecEnv, got class {env.__name__}"
            f"{_adapter_hint(env, env.__name__)}"
        )

    # Functions: of one environment, or of many.
    if not callable(env):
        raise TypeError(
            "env: expected a class, a factory or a function that creates one environment, got "
            f"{short_repr(env)}{_name_hint(env) or _adapter_hint(type(env), _text_of(env))}"
        )
    if makes_one_environment(env):
        return _list_factory(None, env, sent or env)
    return _checked_factory(env)


class IncompleteMatchError(ConfigError):
    """The number of environments is not a multiple of the sides of a match.

    Args:
        num_envs: number of environments.
        sides: number of sides of a match.
        name: name of the environment.
    """

    def __init__(self, num_envs: int, sides: int, name: str) -> None:
        expected = f"expected multiples of {sides}, the sides of {name}"
        super().__init__(f"num_envs: {expected}, got {num_envs}")
        self.sides = sides


def check_whole_matches(num_envs: int, sides: int, name: str = "a match") -> None:
    """Raise if the number of environments is not a multiple of the sides of a match.

    Raises:
        IncompleteMatchError: the last match is incomplete.
    """
    if num_envs % sides:
        raise IncompleteMatchError(num_envs, sides, name)


def _round_up(num_envs: int, sides: int) -> int:
    """Round a number of environments up to whole matches."""
    return -(-num_envs // sides) * sides


def make_whole_matches(make: Callable[[int], T], num_envs: int, is_explicit: bool) -> tuple[T, int]:
    """Create environments; round their number up to whole matches if it is a default.

    Args:
        make: creates something from a number of environments.
        num_envs: number of environments.
        is_explicit: True if a setting defines `num_envs`, which is then not rounded.

    Returns:
        The result of `make`, and the number of environments.

    Raises:
        IncompleteMatchError: an explicit number is not a multiple of the sides of a match.
    """
    try:
        return make(num_envs), num_envs
    except IncompleteMatchError as error:
        if is_explicit:
            raise
        num_envs = _round_up(num_envs, error.sides)
        return make(num_envs), num_envs


def sides_of(make: Callable[[int, int, int], VecEnv], num_envs: int) -> int:
    """Return the number of sides of a match; creates environments and closes them.

    Args:
        make: (num_envs, processes, first_env_index) -> environments.
        num_envs: a valid number of environments.
    """
    for count in (1, num_envs):  # most environments have one side
        try:
            envs = make(count, 1, 0)
        except IncompleteMatchError as error:
            return error.sides
        except (ConfigError, EntityEnvError):
            if count == num_envs:
                raise
            continue
        sides = envs.sides
        envs.close()
        return sides
    raise AssertionError


def makes_one_environment(function: Callable[..., Any]) -> bool:
    """Return True if a function creates a single environment or match, False for a factory."""
    returned = _returned_class(function)
    if returned is not None and issubclass(returned, Environment | Match | VecEnv):
        return not issubclass(returned, VecEnv)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # such as some callables written in C
        return False
    try:
        signature.bind(None, 1, 1, 0)
    except TypeError:
        return True
    positional = [p for p in signature.parameters.values() if p.kind <= p.VAR_POSITIONAL]
    return all(p.default is not p.empty for p in positional)


def _returned_class(function: Callable[..., Any]) -> type | None:
    """Return the class in a function's return annotation; None without one."""
    inner: Any = function.func if isinstance(function, functools.partial) else function
    try:
        returned = typing.get_type_hints(inner).get("return")
    except Exception:  # a name that is imported for type checkers only, or not a function
        return None
    return returned if inspect.isclass(returned) else None


def _checked_factory(factory: Callable[..., Any]) -> EnvFactory:
    """Wrap a user's factory of vectorised environments with checks of its result."""

    def make(config: EnvConfig, num_envs: int, processes: int, first_env_index: int) -> VecEnv:
        with _detect_remote_workers() as started:
            envs = factory(config, num_envs, processes, first_env_index)
        if not started and hasattr(envs, "close"):
            try:
                _check_local(type(envs).__name__)
            except ConfigError:
                envs.close()
                raise
        if isinstance(envs, Environment | Match) or not hasattr(envs, "obs_space"):
            raise TypeError(
                f"env: expected a VecEnv from {_name_of(factory)}, got {type(envs).__name__}; a "
                "function that creates one environment takes no positional arguments or has a "
                "return annotation"
            )
        return AnyVecEnv(envs, config.validate)

    return make


def _vectorised_factory(env_cls: type[VecEnv], make: Callable[..., Any]) -> EnvFactory:
    """Return a factory of environments that step together in this process."""

    def make_all(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        _check_local(env_cls.__name__)
        kwargs = _kwargs(config, env_cls.__name__, make, num_envs, first)
        return AnyVecEnv(make(num_envs, first, **kwargs), config.validate)

    return make_all


def _list_factory(
    env_cls: type[Environment | Match] | None, make: Callable[..., Any], sent: Callable[..., Any]
) -> EnvFactory:
    """Return a factory of environments that step one by one, in this process or in workers.

    Args:
        env_cls: class of the environments; None if `make` is a function.
        make: factory of one environment.
        sent: replacement for `make` in worker processes.
    """
    name = _name_of(make) if env_cls is None else env_cls.__name__

    def make_list(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        # Number of sides; for functions and matches this requires an instance.
        kwargs = _kwargs(config, name, make, hint="" if env_cls is not None else f"; {_FACTORY}")
        create_env, like = FreshPartial(make, **kwargs), None
        if env_cls is None or issubclass(env_cls, Match):
            like = _create_one(create_env, name)
        sides = like.num_sides if isinstance(like, Match) else 1
        check_whole_matches(num_envs, sides, name)

        # Environments in workers, or in this process.
        options = current_options()
        if processes <= 1 and options.new_worker is None:
            return EnvList(create_env, num_envs, first, config.validate)
        create_env = FreshPartial(sent, **kwargs)
        return ParallelEnvList(
            create_env,
            num_envs,
            processes,
            first_env_index=first,
            validate=config.validate,
            recover=options.recover,
            new_worker=options.new_worker or WorkerProcess,
            like=like,
        )

    return make_list


@contextmanager
def _detect_remote_workers() -> Iterator[list[bool]]:
    """Return a context with a list that is empty until a remote worker is started."""
    started: list[bool] = []
    options = current_options()

    def start(setup: WorkerSetup) -> Worker:
        started[:] = [True]
        assert options.new_worker is not None
        return options.new_worker(setup)

    new_worker = start if options.new_worker is not None else None
    with worker_options(replace(options, new_worker=new_worker)):
        yield started


def _check_local(name: str) -> None:
    """Raise ConfigError if a vectorised environment, which cannot be remote, gets Ray workers."""
    if _OPTIONS.get().new_worker is not None:
        expected = f"environments that step one by one, got {name}, which steps in this process"
        raise ConfigError(f"rollout.ray: expected {expected}; leave rollout.ray out")


def _create_one(create_env: Callable[[], Any], name: str) -> Environment | Match:
    """Create one environment, for its class and number of sides, and close it."""
    with preserve_global_rng():
        env: object = create_env()
    if hasattr(env, "close"):
        env.close()
    if not isinstance(env, Environment | Match):
        hint = _adapter_hint(type(env), "MAKE_ENV") or f"; {_FACTORY}"
        raise TypeError(
            f"env: expected a function that returns an Environment or a Match, got {name}, which "
            "returns "
            f"{type(env).__name__}{hint}"
        )
    return env


def _name_hint(env: object) -> str:
    """Return what to pass instead of the name of an environment, "" for other objects."""
    name = likely_name(env, Path()) if isinstance(env, str) else None
    if name in ENV_REGISTRY:
        return f"; pass its class: from entity_env.examples import {name}"
    library, colon, env_id = (name or "").partition(":")
    if colon and library == "gymnasium":
        return f'; adapt it: FromGymnasium.of("{env_id}") of entity_env.adapters.from_gymnasium'
    return ""


def _text_of(env: object) -> str:
    """Return the argument of an adapter for an environment: its id, or a function to call."""
    env_id = getattr(getattr(env, "spec", None), "id", None)
    return "MAKE_ENV" if env_id is None else f'"{env_id}"'


_ADAPTERS = {
    ("gymnasium", "Env"): "from_gymnasium.FromGymnasium",
    ("gymnasium", "VectorEnv"): "from_gymnasium.FromGymnasium",
    ("pettingzoo", "AECEnv"): "from_pettingzoo_turns.FromPettingZooTurns",
    ("pettingzoo", "ParallelEnv"): "from_pettingzoo.FromPettingZoo",
}
"""Adapters by library and name of the base class that they adapt."""


def _adapter_hint(cls: type, argument: str) -> str:
    """Return "; adapt it: ..." for a class of another library of environments, else ""."""
    for base in cls.__mro__:
        adapter = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if adapter is not None:
            module, _, name = adapter.partition(".")
            line = f"from entity_env.adapters.{module} import {name}"
            return f"; adapt it: {line}, and pass {name}.of({argument})"
    return ""


def in_section(problem: str, num_envs_field: str, section: str = "") -> str:
    """Return an error message of an environment factory with the full path of its setting.

    Args:
        problem: a message that begins with `num_envs`, or with a setting of the section `env`.
        num_envs_field: path of the setting that defines the number of environments.
        section: prefix of the path of `env`.
    """
    if problem.startswith("num_envs: "):
        return problem.replace("num_envs", num_envs_field, 1)
    return f"{section}{problem}"


def _name_of(function: Callable[..., Any]) -> str:
    inner: Any = function.func if isinstance(function, functools.partial) else function
    return getattr(inner, "__name__", type(inner).__name__)


def _kwargs(
    config: EnvConfig, name: str, make: Callable[..., Any], *positional: int, hint: str = ""
) -> dict[str, Any]:
    """Return `env.kwargs`, after checking that `make` accepts them after positional arguments."""
    kwargs: dict[str, Any] = json.loads(config.kwargs)
    check_arguments(make, name, kwargs, "env.kwargs", *positional, hint=hint)
    return kwargs


def check_arguments(
    make: Callable[..., Any],
    name: str,
    kwargs: Mapping[str, Any],
    field: str,
    *positional: int,
    hint: str = "",
) -> None:
    """Raise ConfigError if a function does not accept arguments.

    Args:
        make: the function.
        name: name of the function, for messages.
        kwargs: keyword arguments, without varied ones, as spaces are defined without these.
        field: setting or option with the arguments, for messages.
        positional: positional arguments.
        hint: end of the message.
    """
    signature = inspect.signature(make)
    try:
        signature.bind(*positional, **kwargs)
    except TypeError as error:
        fix = "; a varied argument needs a default value" if "missing" in str(error) else ""
        raise ConfigError(f"{field}: {error}; {name} takes {signature}{fix}{hint}") from None
