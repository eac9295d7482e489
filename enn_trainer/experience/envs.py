"""Factories of vectorised environments, from the environment argument of `train`."""

import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import EnvConfig
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError, short_repr
from entity_env.match import FreshPartial, Match
from entity_env.seeding import global_randomness_kept
from entity_env.vec.parallel import ParallelEnvList
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.worker import Worker, WorkerProcess, WorkerSetup

EnvFactory: TypeAlias = Callable[[EnvConfig, int, int, int], VecEnv]
"""(configuration, num_envs, processes, first_env_index) -> environments."""
EnvSource: TypeAlias = (
    type[Environment | Match | VecEnv] | Callable[..., Environment | Match] | EnvFactory
)
"""Types of the environment argument of `train`; `env_factory` distinguishes them."""
T = TypeVar("T")
_FACTORY = "a factory of vectorised environments takes " + (
    "(EnvConfig, num_envs, processes, first_env_index) and returns a VecEnv"
)


@dataclass(frozen=True)
class WorkerOptions:
    """Settings of the worker processes that factories of this module start.

    Attributes:
        recover: see `RolloutConfig`.
        new_worker: starts a worker elsewhere; None for processes of this machine.
    """

    recover: str = "exact"
    new_worker: Callable[[WorkerSetup], Worker] | None = None


_DEFAULTS = WorkerOptions()
_OPTIONS: ContextVar[WorkerOptions] = ContextVar("worker_options", default=_DEFAULTS)


@contextmanager
def worker_options(options: WorkerOptions) -> Iterator[None]:
    """Return a context in which environments are made with workers of these options.

    Factories of users have no argument for them, and may call those of this module.
    """
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def current_options() -> WorkerOptions:
    """Return the options of the innermost context.

    Factories that are sent to other processes name this function, as the variable cannot be sent.
    """
    return _OPTIONS.get()


def env_factory(
    env: EnvSource, kind: type[Any] | None = None, sent: Callable[..., Any] | None = None
) -> EnvFactory:
    """Return a factory of vectorised environments.

    Args:
        env: the class of an environment or match, or a partial of it; a function that makes one
            from `env.kwargs`; the class of a vectorised environment, which takes (num_envs,
            first_env_index) before other arguments; or a factory, also one written for entity-gym.
            A function is a factory if it takes four positional arguments of which one is required,
            unless its return annotation is an environment or match.
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
        )

    # Functions: of one environment, or of many.
    if not callable(env):
        raise TypeError(
            "env: expected a class or a factory, or a function that makes one world, got "
            f"{short_repr(env)}"
        )
    if makes_one_environment(env):
        return _list_factory(None, env, sent or env)
    return _checked_factory(env)


class IncompleteMatchError(ConfigError):
    """A number of environments that is not one of whole matches.

    Args:
        num_envs: the number.
        sides: of a match.
        name: of the environment.
    """

    def __init__(self, num_envs: int, sides: int, name: str) -> None:
        expected = f"expected multiples of {sides}, the sides of {name}"
        super().__init__(f"num_envs: {expected}, got {num_envs}")
        self.sides = sides


def check_whole_matches(num_envs: int, sides: int, name: str = "a match") -> None:
    """Raise unless a number of environments is one of whole matches.

    Raises:
        IncompleteMatchError: it is not.
    """
    if num_envs % sides:
        raise IncompleteMatchError(num_envs, sides, name)


def _round_up(num_envs: int, sides: int) -> int:
    """Return the smallest number of environments of whole matches that is not below a number."""
    return -(-num_envs // sides) * sides


def in_whole_matches(make: Callable[[int], T], num_envs: int, is_chosen: bool) -> tuple[T, int]:
    """Return what makes environments of a number, which is rounded up unless it was chosen.

    Args:
        make: makes as many environments.
        num_envs: their number.
        is_chosen: somebody chose it.

    Returns:
        What was made, and the number.

    Raises:
        IncompleteMatchError: a number that was chosen is not one of whole matches.
    """
    try:
        return make(num_envs), num_envs
    except IncompleteMatchError as error:
        if is_chosen:
            raise
        num_envs = _round_up(num_envs, error.sides)
        return make(num_envs), num_envs


def sides_of(make: Callable[[int, int, int], VecEnv], num_envs: int) -> int:
    """Return the number of sides of a match, by environments that are closed again.

    Args:
        make: (num_envs, processes, first_env_index) -> environments.
        num_envs: a number of environments that is valid.
    """
    for count in (1, num_envs):  # one, as most worlds have a side; else as many as are valid
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
    """Return True if a function makes a single environment or match, False for a factory."""
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
    """Return the class of a function's return annotation, or None without one."""
    inner: Any = function.func if isinstance(function, functools.partial) else function
    try:
        returned = typing.get_type_hints(inner).get("return")
    except Exception:  # a name that is imported for type checkers only, or not a function
        return None
    return returned if inspect.isclass(returned) else None


def _checked_factory(factory: Callable[..., Any]) -> EnvFactory:
    """Return a factory of vectorised environments that checks what a user's own returns."""

    def make(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        with _noting_workers() as started:
            envs = factory(config, num_envs, processes, first)
        if not started and hasattr(envs, "close"):
            try:
                _check_here(type(envs).__name__)
            except ConfigError:
                envs.close()
                raise
        if isinstance(envs, Environment | Match) or not hasattr(envs, "obs_space"):
            raise TypeError(
                f"env: expected a VecEnv from {_name_of(factory)}, got {type(envs).__name__}; what "
                "makes one environment takes no positional arguments, or says so by its return "
                "annotation"
            )
        return AnyVecEnv(envs, config.validate)

    return make


def _vectorised_factory(env_cls: type[VecEnv], make: Callable[..., Any]) -> EnvFactory:
    """Return a factory of environments that step together in this process."""

    def make_all(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        _check_here(env_cls.__name__)
        kwargs = _kwargs(config, env_cls.__name__, make, num_envs, first)
        return AnyVecEnv(make(num_envs, first, **kwargs), config.validate)

    return make_all


def _list_factory(
    env_cls: type[Environment | Match] | None, make: Callable[..., Any], sent: Callable[..., Any]
) -> EnvFactory:
    """Return a factory of environments that are stepped one by one, in this process or in workers.

    Args:
        env_cls: their class; None if `make` is a function.
        make: factory of one environment.
        sent: replacement for `make` in worker processes.
    """
    name = _name_of(make) if env_cls is None else env_cls.__name__

    def make_list(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        # The number of sides, for which functions and matches have to make one.
        kwargs = _kwargs(config, name, make, hint="" if env_cls is not None else f"; {_FACTORY}")
        create_env, like = FreshPartial(make, **kwargs), None
        if env_cls is None or issubclass(env_cls, Match):
            like = _one_of(create_env, name)
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
def _noting_workers() -> Iterator[list[bool]]:
    """Return a context whose value is no longer empty once a worker elsewhere was started."""
    started: list[bool] = []
    options = current_options()

    def start(setup: WorkerSetup) -> Worker:
        started[:] = [True]
        assert options.new_worker is not None
        return options.new_worker(setup)

    noting = start if options.new_worker is not None else None
    with worker_options(replace(options, new_worker=noting)):
        yield started


def _check_here(name: str) -> None:
    """Raise ConfigError if vectorised environments of one's own are to step elsewhere."""
    if _OPTIONS.get().new_worker is not None:
        expected = f"environments that step one by one, got {name}, which steps where it is"
        raise ConfigError(f"rollout.ray: expected {expected}; leave rollout.ray out")


def _one_of(create_env: Callable[[], Any], name: str) -> Environment | Match:
    """Make one environment, for its class and number of sides, and close it."""
    with global_randomness_kept():
        world: object = create_env()
    if hasattr(world, "close"):
        world.close()
    if not isinstance(world, Environment | Match):
        raise TypeError(
            f"env: expected what makes an Environment or a Match, got {name}, which makes "
            f"{type(world).__name__}; {_FACTORY}"
        )
    return world


def in_section(problem: str, num_envs_field: str, section: str = "") -> str:
    """Return a problem of an environment factory with the full path of its setting.

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
    config: EnvConfig, name: str, make: Callable[..., Any], *others: int, hint: str = ""
) -> dict[str, Any]:
    """Return `env.kwargs`, after checking that `make` takes them behind the other arguments."""
    kwargs: dict[str, Any] = json.loads(config.kwargs)
    check_taken(make, name, kwargs, "env.kwargs", *others, hint=hint)
    return kwargs


def check_taken(
    make: Callable[..., Any],
    name: str,
    kwargs: Mapping[str, Any],
    field: str,
    *others: int,
    hint: str = "",
) -> None:
    """Raise ConfigError if a function does not take arguments.

    Args:
        make: the function.
        name: of it, for messages.
        kwargs: its arguments; without those that vary, as the spaces are those without them.
        field: setting or option with the arguments, for messages.
        others: arguments before them.
        hint: the end of the message.
    """
    signature = inspect.signature(make)
    try:
        signature.bind(*others, **kwargs)
    except TypeError as error:
        fix = "; one that varies needs a default value" if "missing" in str(error) else ""
        raise ConfigError(f"{field}: {error}; {name} takes {signature}{fix}{hint}") from None
