"""A world of Gymnasium as an `Environment`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.adapters.bind import bind
from entity_env.adapters.declared import Declared
from entity_env.adapters.mapping import FieldMap
from entity_env.adapters.port import Port, View, metrics_of
from entity_env.environment import Environment, Observation
from entity_env.errors import EntityEnvError, InvalidObservation
from entity_env.real_numbers import real_array, shown
from entity_env.spaces import ActionName, ActionSpace, ObsSpace

GymnasiumEnv: TypeAlias = gymnasium.Env[Any, Any]
MakeGymnasiumEnv: TypeAlias = str | Callable[..., GymnasiumEnv]
"""The id of a registered world, as "id" or "module:id", or what makes one."""


class FromGymnasium(Environment):
    """A world of Gymnasium.

    Every episode whose environment was seeded since the last one is reset with that seed (its last
    31 bits, which all worlds take), the others without one.

    Args:
        make_env: the world's id, or what makes it.
        mapping: what the fields of its observations and actions mean; what it does not name is
            inferred.
        kwargs: for `make_env`.

    Raises:
        InvalidSpace: the mapping does not fit the world, or something cannot be inferred.
    """

    def __init__(
        self, make_env: MakeGymnasiumEnv, mapping: FieldMap | None = None, **kwargs: Any
    ) -> None:
        self.env = make_gymnasium(make_env, **kwargs)
        try:
            self._port = Port(
                self.env.observation_space, self.env.action_space, mapping, Declared.of(self.env)
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
        """The class of this world, as `train` takes it; arguments as for the class itself."""
        return bind(cls, {}, make_env, mapping, **kwargs)

    def obs_space(self) -> ObsSpace:
        """What can be observed."""
        return self._port.obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""
        return self._port.action_space

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def reset(self) -> Observation:
        """Begin an episode."""
        seed, self._seed = self._seed, None
        value, info = answered("reset", self.env.reset(seed=world_seed(seed)))
        self._view = self._port.see(value, info)
        return observation(self._view, metrics=metrics_of(info, self._port.mapping.metrics))

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step."""
        if self._view is None:
            raise EntityEnvError("act: call reset first")
        value, reward, terminated, truncated, info = answered(
            "step", self.env.step(self._port.act(self._view, actions))
        )
        over = bool(terminated or truncated)
        view = self._port.see(value, info, over)
        self._view = None if over else view
        return observation(
            view,
            as_reward(reward),
            bool(terminated),
            bool(truncated),
            metrics_of(info, self._port.mapping.metrics),
        )

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """The world's picture, of the `render_mode` that it was made with."""
        return picture(self.env, kwargs.get("mode"))

    def close(self) -> None:
        """Close the world."""
        self.env.close()


def make_gymnasium(make_env: MakeGymnasiumEnv, **kwargs: Any) -> GymnasiumEnv:
    """Make a world.

    Without Gymnasium's own checks of every step, as what comes is checked here, unless
    `disable_env_checker=False` is given.

    Raises:
        EntityEnvError: `make_env` makes something else.
    """
    if isinstance(make_env, str):
        make_env = functools.partial(
            gymnasium.make, make_env, **({"disable_env_checker": True} | kwargs)
        )
        kwargs = {}
    if not callable(make_env):
        raise EntityEnvError(
            f"make_env: expected a world's id or what makes one, got {make_env!r}; several are made"
        )
    try:
        env = make_env(**kwargs)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise EntityEnvError(f"make_env: {error}") from error
    if not isinstance(env, gymnasium.Env):
        raise EntityEnvError(
            f"make_env: expected a gymnasium.Env, got {type(env).__name__}; vectorised worlds are "
            "for FromGymnasiumVector, those of PettingZoo for FromPettingZoo"
        )
    return env


def world_seed(seed: int | None) -> int | None:
    """A seed that all worlds take: some hand it to generators that refuse more than 32 bits."""
    return None if seed is None else seed % 2**31


def observation(
    view: View,
    reward: float = 0.0,
    terminated: bool = False,
    truncated: bool = False,
    metrics: dict[str, float] | None = None,
) -> Observation:
    """The observation that shows a view."""
    return Observation(
        features=view.frame.features,
        global_features=view.frame.global_features,
        actions=view.actions,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        metrics=metrics,
    )


_ANSWERS = {
    "reset": ("observation", "info"),
    "step": ("observation", "reward", "terminated", "truncated", "info"),
}


def answered(method: str, answer: Any) -> tuple[Any, ...]:
    """What a method of a world returned.

    Raises:
        InvalidObservation: it is not what Gymnasium and PettingZoo ask for.
    """
    wanted = _ANSWERS[method]
    several = isinstance(answer, tuple | list)
    if not several or len(answer) != len(wanted):
        came = f"{len(answer)} parts" if several else type(answer).__name__
        raise InvalidObservation(f"{method}: expected a tuple ({', '.join(wanted)}), got {came}")
    return tuple(answer)


def as_reward(reward: Any) -> float:
    """One number.

    Raises:
        InvalidObservation: it is none, or several.
    """
    if type(reward) is float:
        return reward
    try:
        return float(real_array(reward).reshape(()))
    except (TypeError, ValueError, OverflowError):
        raise InvalidObservation(
            f"reward: expected a number, got {shown(reward)}; a world with several agents is for "
            "FromGymnasiumAgents"
        ) from None


def picture(env: Any, mode: str | None) -> npt.NDArray[np.uint8] | str:
    """What a world renders.

    Args:
        env: the world.
        mode: "rgb_array" or "text"; None for what the world was made for.

    Raises:
        EntityEnvError: the world was made for another mode.
    """
    wanted = "ansi" if mode == "text" else mode
    made_for = getattr(env, "render_mode", None)
    if made_for not in ("rgb_array", "ansi") or wanted not in (None, made_for):
        raise EntityEnvError(
            f"render: expected a world made with render_mode={wanted or 'rgb_array'!r}, got "
            f"{made_for!r}; give render_mode where the world is made"
        )
    shown = env.render()
    if made_for == "ansi":
        return str(shown.getvalue() if hasattr(shown, "getvalue") else shown)
    return np.asarray(shown, dtype=np.uint8)
