"""A vectorised environment of Gymnasium as a `VecEnv`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from entity_env.adapters.action_parts import Flags
from entity_env.adapters.declared import Declared
from entity_env.adapters.from_gymnasium import observation, picture, world_seed
from entity_env.adapters.mapping import FieldMap
from entity_env.adapters.port import Port, View, metrics_of
from entity_env.adapters.space_numbers import as_array
from entity_env.batch import batch_obs
from entity_env.environment import Observation, filter_observation
from entity_env.errors import EntityEnvError, InvalidObservation
from entity_env.features import as_flags
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.unbatch import unbatch_actions
from entity_env.vec_env import VecEnv, VecObs

GymnasiumVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]


@dataclass(frozen=True)
class _Ended:
    """The episodes that end in one step.

    Attributes:
        over: (B,) bool, which.
        truncated: (B,) bool, those of them that were cut off.
        last: their last observations, as far as they are known.
    """

    over: Flags
    truncated: Flags
    last: Mapping[int, View]


class FromGymnasiumVector(VecEnv):
    """A vectorised environment of Gymnasium.

    When an episode ends, its last observation must be seen and the next episode must begin, in
    the order that the `autoreset_mode` in its metadata says. `SAME_STEP` and `DISABLED` do so in
    one step, as here. With `NEXT_STEP` the last observation is shown as one more frame in which
    nothing can be done, and which has the reward; in the next step, which has no reward, the
    episode ends and the first frame of the next one is shown.

    Args:
        vec_env: the environments. It belongs to this object, which closes it.
        mapping: what the fields of one environment's observations and actions mean; what it does
            not name is inferred.
        first_env_index: the index of the first among all environments of the run.

    Raises:
        EntityEnvError: it does not say how it begins new episodes.
        InvalidSpace: the mapping does not fit the world, or something cannot be inferred.
    """

    def __init__(
        self,
        vec_env: GymnasiumVectorEnv,
        mapping: FieldMap | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.vec_env = vec_env
        self._mode = _mode_of(vec_env)
        with _one_world(vec_env) as world:
            declared = Declared.of(world)
        self._port = Port(
            vec_env.single_observation_space, vec_env.single_action_space, mapping, declared
        )
        self._first_env_index = first_env_index
        self._nobody = np.zeros(len(self), dtype=np.bool_)
        self._waiting = _Ended(self._nobody, self._nobody, {})
        self._seed: int | None = None
        self._views: list[View] = []
        self._frames: list[Observation] = []
        self._batch: VecObs | None = None
        self._shown = self.obs_space()

    def obs_space(self) -> ObsSpace:
        """What can be observed."""
        return self._port.obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""
        return self._port.action_space

    def __len__(self) -> int:
        return int(self.vec_env.num_envs)

    def seed(self, seed: int) -> None:
        """Seed the next reset; later episodes are what the environments make of it."""
        self._seed = seed

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        seed, self._seed = self._seed, None
        if seed is not None:
            seed = world_seed(derive_seed(seed, "vector", self._first_env_index))
        values, infos = self.vec_env.reset(seed=seed)
        each = self._each(infos)
        self._waiting = _Ended(self._nobody, self._nobody, {})
        metrics = [metrics_of(info, self._port.mapping.metrics) for info in each]
        rewards = np.zeros(len(self))
        return self._show(self._see(values, each), obs_config, rewards, self._waiting, metrics)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        if self._batch is None:
            raise EntityEnvError("act: call reset first")
        chosen = unbatch_actions(
            actions, self._batch, self._frames, self._shown, self.action_space()
        )
        handed = [
            self._port.nothing_chosen() if waits else self._port.act(view, own)
            for view, own, waits in zip(self._views, chosen, self._waiting.over, strict=True)
        ]
        values, rewards, terminated, truncated, infos = self.vec_env.step(self._join(handed))
        each = self._each(infos)
        rewards = as_array(rewards, (len(self),), "reward", np.float64)[:, 0]
        terminated = as_flags(terminated, "terminated").reshape(len(self))
        truncated = as_flags(truncated, "truncated").reshape(len(self))
        over = (terminated | truncated) & ~self._waiting.over
        cut_off = truncated & ~terminated & over
        rewards = np.where(self._waiting.over, 0.0, rewards)
        paths = self._port.mapping.metrics
        metrics = [metrics_of(info.get("final_info", info), paths) for info in each]
        if self._mode == AutoresetMode.NEXT_STEP:
            views = self._see(values, each, over)
            ended, self._waiting = self._waiting, _Ended(over, cut_off, dict(enumerate(views)))
        else:
            ended = _Ended(over, cut_off, self._last(values, infos, over, cut_off))
            if over.any() and self._mode == AutoresetMode.DISABLED:
                values, begun = self.vec_env.reset(options={"reset_mask": over.copy()})
                for i in np.flatnonzero(over).tolist():
                    each[i] = _of_env(begun, i, len(self))
            views = self._see(values, each)
        return self._show(views, obs_filter, rewards, ended, metrics)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Pictures of all environments, (B, height, width, 3) uint8."""
        pictures = picture(self.vec_env, kwargs.get("mode"))
        return np.asarray(pictures, dtype=np.uint8)

    def close(self) -> None:
        """Close the environments. Safe to call twice."""
        self.vec_env.close()

    def _see(
        self, values: Any, infos: list[dict[str, Any]], over: Flags | None = None
    ) -> list[View]:
        over = self._nobody if over is None else over
        by_env = iterate(self.vec_env.observation_space, values)
        return [self._view(i, v, infos[i], bool(over[i])) for i, v in enumerate(by_env)]

    def _view(self, i: int, value: Any, info: dict[str, Any], over: bool) -> View:
        try:
            return self._port.see(value, info, over)
        except InvalidObservation as error:
            error.env_index = i
            raise

    def _each(self, infos: Any) -> list[dict[str, Any]]:
        """The info of each environment."""
        if not isinstance(infos, Mapping):
            raise InvalidObservation(
                f"infos: expected a dictionary, got {type(infos).__name__}; leave out the wrapper "
                "that makes something else of it"
            )
        return [_of_env(infos, i, len(self)) for i in range(len(self))]

    def _last(
        self, values: Any, infos: Mapping[str, Any], over: Flags, cut_off: Flags
    ) -> dict[int, View]:
        """The last observations of the episodes that ended in this step."""
        ended = np.flatnonzero(over).tolist()
        if self._mode == AutoresetMode.SAME_STEP and ended:
            values = infos.get("final_obs")
            if values is None and cut_off.any():
                raise InvalidObservation(
                    f"infos['final_obs']: expected the last observations of environments "
                    f"{np.flatnonzero(cut_off).tolist()}, which were cut off, got infos with "
                    f"{list(infos)}; give them, or declare another autoreset_mode"
                )
        if not ended or values is None:
            return {}
        is_list = isinstance(values, np.ndarray) and values.dtype == np.object_
        by_env = values if is_list else list(iterate(self.vec_env.observation_space, values))
        return {i: self._view(i, by_env[i], {}, True) for i in ended}

    def _join(self, actions: list[Any]) -> Any:
        space = self.vec_env.single_action_space
        empty: Any = create_empty_array(space, n=len(actions))
        return concatenate(space, actions, empty)

    def _show(
        self,
        views: list[View],
        shown: ObsSpace,
        rewards: npt.NDArray[Any],
        ended: _Ended,
        metrics: list[dict[str, float]],
    ) -> VecObs:
        over, truncated = ended.over.tolist(), ended.truncated.tolist()
        outcomes = [
            observation(
                ended.last.get(i, view) if over[i] else view,
                reward,
                over[i] and not truncated[i],
                truncated[i],
                metrics[i],
            )
            for i, (view, reward) in enumerate(zip(views, rewards.tolist(), strict=True))
        ]
        if shown != self.obs_space():
            outcomes = [filter_observation(o, self.obs_space(), shown) for o in outcomes]
        frames = list(outcomes)
        for i in np.flatnonzero(ended.over).tolist():
            frames[i] = filter_observation(observation(views[i]), self.obs_space(), shown)
        self._batch = batch_obs(frames, shown, self.action_space(), outcomes)
        self._views, self._frames, self._shown = views, frames, shown
        return self._batch


def _mode_of(vec_env: GymnasiumVectorEnv) -> AutoresetMode:
    mode = vec_env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        choices = [f"AutoresetMode.{one.name}" for one in AutoresetMode]
        raise EntityEnvError(
            f"metadata['autoreset_mode']: expected one of {choices} of gymnasium.vector, got "
            f"{mode!r}; set vec_env.metadata['autoreset_mode'] to what the environments do after "
            "an episode's end"
        ) from None


@contextmanager
def _one_world(vec_env: GymnasiumVectorEnv) -> Iterator[Any]:
    """One of the environments, to ask for names; one of its own if they are in other processes."""
    bare = vec_env.unwrapped
    envs, env_fns = getattr(bare, "envs", None), getattr(bare, "env_fns", None)
    if envs or not env_fns:
        yield envs[0] if envs else bare
        return
    world = env_fns[0]()
    try:
        yield world
    finally:
        world.close()


def _of_env(infos: Mapping[str, Any], i: int, n: int) -> dict[str, Any]:
    """What of the infos of all `n` environments is of one: `_key` says whether it has a `key`.

    What does not hold a value for each of them is of all.
    """
    found: dict[str, Any] = {}
    for key, value in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        given = infos.get(f"_{key}")
        if given is None or given[i]:
            if isinstance(value, Mapping):
                found[key] = _of_env(value, i, n)
            else:
                is_list = isinstance(value, list | tuple) or np.ndim(value) > 0
                found[key] = value[i] if is_list and len(value) == n else value
    return found
