"""Creation of Gymnasium environments, and checks of the values that their methods return."""

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
from entity_env.match import copy_containers
from entity_env.spaces import ActionName, ActionSpace, ObsSpace

with needs_extra():
    import gymnasium

T = TypeVar("T")
GymnasiumEnv: TypeAlias = gymnasium.Env[Any, Any]
MakeGymnasiumEnv: TypeAlias = str | Callable[..., GymnasiumEnv]
"""Id of a registered environment, "id" or "module:id", or a function that creates one."""

_RESULTS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def make_gymnasium(make_env: MakeGymnasiumEnv, **kwargs: Any) -> GymnasiumEnv:
    """Create an environment.

    Gymnasium's own checks are off unless `disable_env_checker=False`, because the adapters check
    the results of each step.

    Raises:
        EntityEnvError: the environment cannot be created, or is no `gymnasium.Env`.
    """
    if isinstance(make_env, str):
        make_env = functools.partial(gymnasium.make, make_env)
        kwargs = {"disable_env_checker": True} | kwargs
    if not callable(make_env):
        raise EntityEnvError(
            f"make_env: expected the id of an environment or a function that makes one, got "
            f"{make_env!r}; an instance cannot be shared"
        )
    try:
        env = make_env(**kwargs)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise EntityEnvError(f"make_env: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise EntityEnvError(
            f"make_env: expected a gymnasium.Env, got {type(env).__name__}; use "
            "FromGymnasiumVector for vectorised environments, and FromPettingZoo for PettingZoo"
        )
    return env


class Adapted:
    """Base class of adapters: spaces, seeds, rendering and closing."""

    env: Any
    _spaces: tuple[ObsSpace, dict[ActionName, ActionSpace]]
    _seed: int | None = None

    def obs_space(self) -> ObsSpace:
        """Return the observation space, of each side of a match."""
        return self._spaces[0]

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the action spaces, of each side of a match."""
        return self._spaces[1]

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def take_seed(self) -> int | None:
        """Return the seed for this reset and clear it; None if no new seed was set."""
        seed, self._seed = self._seed, None
        return seed

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Render in the `render_mode` that the environment was created with.

        Returns:
            (height, width, 3) uint8 for "rgb_array", text for "ansi".

        Raises:
            EntityEnvError: the argument `mode`, "rgb_array" or "text", differs from it.
        """
        mode: str | None = kwargs.get("mode")
        expected = "ansi" if mode == "text" else mode
        render_mode = getattr(self.env, "render_mode", None)
        if render_mode not in ("rgb_array", "ansi") or expected not in (None, render_mode):
            raise EntityEnvError(
                "render: expected an environment created with "
                f"render_mode={expected or 'rgb_array'!r}, got {render_mode!r}; pass render_mode "
                "when creating the environment"
            )
        picture = self.env.render()
        if render_mode == "ansi":
            return str(picture.getvalue() if hasattr(picture, "getvalue") else picture)
        return np.asarray(picture, dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def partial_class(cls: type[T], attributes: dict[str, Any], *args: Any, **kwargs: Any) -> type[T]:
    """Create a subclass with arguments of the constructor bound; further keywords override them.

    Args:
        cls: base class.
        attributes: class attributes of the subclass.
        args: positional arguments of the constructor.
        kwargs: keyword arguments of the constructor.
    """

    def init(self: Any, **overrides: Any) -> None:
        cast(Any, cls).__init__(self, *args, **{**copy_containers(kwargs), **overrides})

    members = {"__init__": init, "__doc__": cls.__doc__, "__module__": cls.__module__}
    return cast(type[T], type(cls.__name__, (cls,), members | attributes))


def world_seed(seed: int | None) -> int | None:
    """Return the last 31 bits of a seed, because some environments refuse more than 32 bits."""
    return None if seed is None else seed % 2**31


def check_result(method: str, result: Any) -> tuple[Any, ...]:
    """Check the number of values that `reset` or `step` returned.

    Raises:
        InvalidObservation: the number differs from the API of Gymnasium and PettingZoo.
    """
    expected = _RESULTS[method]
    is_sequence = isinstance(result, tuple | list)
    if not is_sequence or len(result) != len(expected):
        got = f"{len(result)} parts" if is_sequence else type(result).__name__
        raise InvalidObservation(f"{method}: expected a tuple ({', '.join(expected)}), got {got}")
    return tuple(result)


def as_reward(reward: Any, field: str = "reward") -> float:
    """Convert the reward of one agent to a float.

    Args:
        reward: scalar, or an array with one element.
        field: name of the reward, for messages.

    Raises:
        InvalidObservation: the reward is not a single real number.
    """
    if type(reward) is float:
        return reward
    try:
        return float(real_array(reward).reshape(()))
    except (TypeError, ValueError, OverflowError):
        remedy = "; use FromGymnasiumAgents for an environment with several agents"
        hint = remedy if field == "reward" and np.ndim(reward) > 0 else ""
        got = f"{short_repr(reward, LONG)}{hint}"
        raise InvalidObservation(f"{field}: expected a number, got {got}") from None


def as_info(info: Any, field: str = "info") -> Mapping[Any, Any]:
    """Check that an info is a dictionary; None becomes an empty one.

    Args:
        info: info of an environment.
        field: name of the info, for messages.

    Raises:
        InvalidObservation: the info is no dictionary.
    """
    return {} if info is None else by_agent(info, field)


def by_agent(values: Any, field: str) -> Mapping[Any, Any]:
    """Check that values are a dictionary by agent.

    Raises:
        InvalidObservation: the values are no dictionary.
    """
    if type(values) is not dict and not isinstance(values, Mapping):
        raise InvalidObservation(f"{field}: expected a dictionary, got {short_repr(values, LONG)}")
    return values


def flags_of(flags: Any, field: str, agents: Sequence[Any] = ()) -> dict[Any, bool]:
    """Convert flags by agent to bools.

    Args:
        flags: dictionary of flags accepted by `as_flag`.
        field: name of the flags, for messages.
        agents: agents that must have a flag.

    Raises:
        InvalidObservation: the flags are no dictionary, a flag is missing, or one is invalid.
    """
    flags_by_agent = by_agent(flags, field)
    if missing := [agent for agent in agents if agent not in flags_by_agent]:
        raise InvalidObservation(f"{field}: expected a flag of each agent, got none of {missing}")
    return {agent: as_flag(flag, f"{field}[{agent!r}]") for agent, flag in flags_by_agent.items()}


_KEEP_STATE = {"knights_archers_zombies_v11", "ForagingEnv"}
"""Environments that keep state of the previous episode in `reset`.

Knights, archers and zombies keeps its spawn timer; lbforaging keeps the positions of players, which
block new ones.
"""


class EnvNames(NamedTuple):
    """Feature names and labels that an environment defines; empty if it has none."""

    features: Sequence[str] = ()
    labels: Sequence[str] = ()


def names_of(env: Any) -> EnvNames:
    """Read feature names and labels from known attributes of an environment."""
    unwrapped = getattr(env, "unwrapped", env)
    return EnvNames(_features(unwrapped), _labels(unwrapped))


def keeps_state(env: Any) -> bool:
    """Return whether an environment is known to keep state in `reset`."""
    metadata = getattr(env, "metadata", None) or {}
    unwrapped = getattr(env, "unwrapped", env)
    return not _KEEP_STATE.isdisjoint({metadata.get("name"), type(unwrapped).__name__})


def _features(env: Any) -> list[str]:
    # highway-env: features of the observation type, or of the configuration.
    config = getattr(env, "config", None)
    observation = config.get("observation") if isinstance(config, Mapping) else None
    config_features = observation.get("features") if isinstance(observation, Mapping) else None
    observers = _with_parts(env, "observation_type", "agents_observation_types")
    candidates = [*(getattr(one, "features", None) for one in observers), config_features]
    return next(filter(None, map(_names, candidates)), [])


def _labels(env: Any) -> list[str]:
    # highway-env: a dictionary of labels by number.
    for action_type in _with_parts(env, "action_type", "agents_action_types"):
        labels = getattr(action_type, "actions", None)
        if isinstance(labels, Mapping) and list(labels) == list(range(len(labels))):
            return _names(list(labels.values()))
    # Atari.
    meanings = getattr(env, "get_action_meanings", None)
    if callable(meanings):
        return _names(meanings())
    # Minigrid and others: an enumeration.
    actions = getattr(env, "actions", None)
    members: list[enum.Enum] = list(actions) if isinstance(actions, enum.EnumMeta) else []
    if not all(isinstance(member.value, Real) for member in members):
        return []
    members.sort(key=lambda member: member.value)
    is_numbered = [member.value for member in members] == list(range(len(members)))
    return [member.name for member in members] if is_numbered else []


def _with_parts(env: Any, name: str, parts: str) -> list[Any]:
    """Return an attribute of an environment, and the objects in a list attribute of it."""
    parent = getattr(env, name, None)
    values = getattr(parent, parts, None)
    return [parent, *(values if isinstance(values, list | tuple) else [])]


def _names(value: Any) -> list[str]:
    """Return a value if it is a list of unique names, else []."""
    names = list(value) if isinstance(value, list | tuple) else []
    usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if usable else []
