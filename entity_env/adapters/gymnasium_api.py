"""Calls of environments with the Gymnasium API, with checks of the results."""

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from entity_env.arrays import as_flag, real_array
from entity_env.errors import LONG, EntityEnvError, InvalidObservation, short_repr
from entity_env.imports.extras import needs_extra
from entity_env.match import copied
from entity_env.spaces import ActionName, ActionSpace, ObsSpace

with needs_extra():
    import gymnasium

T = TypeVar("T")
GymnasiumEnv: TypeAlias = gymnasium.Env[Any, Any]
MakeGymnasiumEnv: TypeAlias = str | Callable[..., GymnasiumEnv]
"""The id of a registered environment, as "id" or "module:id", or a function that makes one."""

_RESULTS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def make_gymnasium(make_env: MakeGymnasiumEnv, **kwargs: Any) -> GymnasiumEnv:
    """Make an environment.

    Gymnasium's own checks of every step are off, unless `disable_env_checker=False` is given, as
    the results of each step are checked here.

    Raises:
        EntityEnvError: `make_env` makes something else.
    """
    if isinstance(make_env, str):
        make_env = functools.partial(gymnasium.make, make_env)
        kwargs = {"disable_env_checker": True} | kwargs
    if not callable(make_env):
        raise EntityEnvError(
            f"make_env: expected the id of an environment or a function that makes one, got "
            f"{make_env!r}; several are made"
        )
    try:
        env = make_env(**kwargs)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise EntityEnvError(f"make_env: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise EntityEnvError(
            f"make_env: expected a gymnasium.Env, got {type(env).__name__}; vectorised "
            "environments are for FromGymnasiumVector, those of PettingZoo for FromPettingZoo"
        )
    return env


class Adapted:
    """Base class of environments made of others: what takes no translation."""

    env: Any
    _spaces: tuple[ObsSpace, dict[ActionName, ActionSpace]]
    _seed: int | None = None

    def obs_space(self) -> ObsSpace:
        """Return the entity types and global features, of each side of a match."""
        return self._spaces[0]

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the actions, of each side of a match."""
        return self._spaces[1]

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def take_seed(self) -> int | None:
        """Return the seed for a reset, None if there was none since the last one."""
        seed, self._seed = self._seed, None
        return seed

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Return the picture or text of the `render_mode` that the environment was made with.

        Raises:
            EntityEnvError: `mode`, "rgb_array" or "text", is another one.
        """
        mode: str | None = kwargs.get("mode")
        wanted = "ansi" if mode == "text" else mode
        render_mode = getattr(self.env, "render_mode", None)
        if render_mode not in ("rgb_array", "ansi") or wanted not in (None, render_mode):
            raise EntityEnvError(
                f"render: expected an environment made with render_mode={wanted or 'rgb_array'!r}, "
                f"got {render_mode!r}; give render_mode where the environment is made"
            )
        picture = self.env.render()
        if render_mode == "ansi":
            return str(picture.getvalue() if hasattr(picture, "getvalue") else picture)
        return np.asarray(picture, dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def partial_class(cls: type[T], attributes: dict[str, Any], *args: Any, **kwargs: Any) -> type[T]:
    """Return a subclass with arguments of the constructor given; it takes more by name.

    Args:
        cls: the class.
        attributes: class attributes of the subclass.
        args: of the constructor.
        kwargs: of the constructor.
    """

    def init(self: Any, **more: Any) -> None:
        cast(Any, cls).__init__(self, *args, **{**copied(kwargs), **more})

    members = {"__init__": init, "__doc__": cls.__doc__, "__module__": cls.__module__}
    return cast(type[T], type(cls.__name__, (cls,), members | attributes))


def world_seed(seed: int | None) -> int | None:
    """Return the last 31 bits of a seed: some environments refuse more than 32 bits."""
    return None if seed is None else seed % 2**31


def check_result(method: str, result: Any) -> tuple[Any, ...]:
    """Return the result of a method of an environment.

    Raises:
        InvalidObservation: it has other parts than Gymnasium and PettingZoo ask for.
    """
    expected = _RESULTS[method]
    is_sequence = isinstance(result, tuple | list)
    if not is_sequence or len(result) != len(expected):
        got = f"{len(result)} parts" if is_sequence else type(result).__name__
        raise InvalidObservation(f"{method}: expected a tuple ({', '.join(expected)}), got {got}")
    return tuple(result)


def as_reward(reward: Any, field: str = "reward") -> float:
    """Return a reward as a float.

    Args:
        reward: of one agent.
        field: its name, for the message.

    Raises:
        InvalidObservation: it is not one number.
    """
    if type(reward) is float:
        return reward
    try:
        return float(real_array(reward).reshape(()))
    except (TypeError, ValueError, OverflowError):
        several = "; an environment with several agents is for FromGymnasiumAgents"
        hint = several if field == "reward" and np.ndim(reward) > 0 else ""
        got = f"{short_repr(reward, LONG)}{hint}"
        raise InvalidObservation(f"{field}: expected a number, got {got}") from None


def as_info(info: Any, field: str = "info") -> Mapping[Any, Any]:
    """Return an info; None is an empty one.

    Args:
        info: what came with an observation.
        field: its name, for the message.

    Raises:
        InvalidObservation: it is no dictionary.
    """
    return {} if info is None else by_agent(info, field)


def by_agent(values: Any, field: str) -> Mapping[Any, Any]:
    """Return values by agent.

    Raises:
        InvalidObservation: they are no dictionary.
    """
    if type(values) is not dict and not isinstance(values, Mapping):
        raise InvalidObservation(f"{field}: expected a dictionary, got {short_repr(values, LONG)}")
    return values


def flags_of(flags: Any, field: str, agents: Sequence[Any] = ()) -> dict[Any, bool]:
    """Return the flags of agents, by agent.

    Args:
        flags: by agent, as `as_flag` takes them.
        field: their name, for messages.
        agents: those who need one.

    Raises:
        InvalidObservation: they are not given by agent, one is missing, or one is no flag.
    """
    given = by_agent(flags, field)
    if missing := [agent for agent in agents if agent not in given]:
        raise InvalidObservation(f"{field}: expected a flag of each agent, got none of {missing}")
    return {agent: as_flag(flag, f"{field}[{agent!r}]") for agent, flag in given.items()}


_KEEP_STATE = {"knights_archers_zombies_v11", "ForagingEnv"}
"""Environments whose `reset` keeps something of the episode before.

The clock of the zombies, and the places of the players, on which no other one begins.
"""


class EnvNames(NamedTuple):
    """Names that an environment has for the columns of its tables and for its choices, if any."""

    features: Sequence[str] = ()
    labels: Sequence[str] = ()


def names_of(env: Any) -> EnvNames:
    """Return the names in attributes that environments of Gymnasium and PettingZoo have."""
    bare = getattr(env, "unwrapped", env)
    return EnvNames(_features(bare), _labels(bare))


def keeps_state(env: Any) -> bool:
    """Return whether the `reset` of an environment is known to keep state."""
    metadata = getattr(env, "metadata", None) or {}
    bare = getattr(env, "unwrapped", env)
    return not _KEEP_STATE.isdisjoint({metadata.get("name"), type(bare).__name__})


def _features(env: Any) -> list[str]:
    # highway-env: those of the observer, or of the configuration.
    config = getattr(env, "config", None)
    observation = config.get("observation") if isinstance(config, Mapping) else None
    of_config = observation.get("features") if isinstance(observation, Mapping) else None
    observers = _with_parts(env, "observation_type", "agents_observation_types")
    found = [*(getattr(one, "features", None) for one in observers), of_config]
    return next(filter(None, map(_names, found)), [])


def _labels(env: Any) -> list[str]:
    # highway-env: a dictionary of labels by number.
    for one in _with_parts(env, "action_type", "agents_action_types"):
        labels = getattr(one, "actions", None)
        if isinstance(labels, Mapping) and list(labels) == list(range(len(labels))):
            return _names(list(labels.values()))
    # Atari.
    meanings = getattr(env, "get_action_meanings", None)
    if callable(meanings):
        return _names(meanings())
    # Minigrid and others: an enumeration.
    actions = getattr(env, "actions", None)
    members: list[enum.Enum] = list(actions) if isinstance(actions, enum.EnumMeta) else []
    if not all(isinstance(one.value, Real) for one in members):
        return []
    members.sort(key=lambda one: one.value)
    is_numbered = [one.value for one in members] == list(range(len(members)))
    return [one.name for one in members] if is_numbered else []


def _with_parts(env: Any, name: str, parts: str) -> list[Any]:
    """Return an attribute of an environment, and those in a list of its own."""
    one = getattr(env, name, None)
    several = getattr(one, parts, None)
    return [one, *(several if isinstance(several, list | tuple) else [])]


def _names(value: Any) -> list[str]:
    """Return a value that is a list of different names, [] for any other."""
    names = list(value) if isinstance(value, list | tuple) else []
    usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if usable else []
