"""A vectorised Gymnasium environment as a `VecEnv`."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.agent_translator import AgentTranslator, View, check_metrics
from entity_env.adapters.gymnasium_api import Adapted, as_info, check_result, names_of, world_seed
from entity_env.adapters.gymnasium_spaces import as_array
from entity_env.adapters.mapping import FieldMap
from entity_env.arrays import BoolArray, as_flags
from entity_env.environment import Observation, filter_observation
from entity_env.errors import EntityEnvError, InvalidObservation, unexpected
from entity_env.imports.extras import needs_extra
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, EntityName, ObsSpace
from entity_env.vec.batching import batch_obs, unbatch_actions
from entity_env.vec.identity import IdentityTracker, types_to_track
from entity_env.vec.vec_env import VecEnv, VecObs

with needs_extra():
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import concatenate, create_empty_array, iterate

GymnasiumVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]


class _EpisodeEnds(NamedTuple):
    """The episodes that end in one step."""

    done: BoolArray  # (B,)
    truncated: BoolArray  # (B,), those of `done` that were cut off
    final: Mapping[int, View]  # their last observations, as far as they are known


class FromGymnasiumVector(Adapted, VecEnv):
    """A vectorised Gymnasium environment.

    The `autoreset_mode` in the metadata says when the next episode begins after an episode's end.
    `SAME_STEP` and `DISABLED` do so in the same step, as here. With `NEXT_STEP` the last
    observation is shown for one more step, as a frame without actions that is `VecObs.padding`, and
    the step after it has neither reward nor metrics.

    Args:
        vec_env: the environments. They belong to this object, which closes them.
        mapping: the meaning of the fields of one environment's observations and actions; what it
            does not name is inferred.
        first_env_index: the index of the first among all environments of the run.

    Raises:
        EntityEnvError: the metadata have no `autoreset_mode`.
        InvalidSpace: the mapping does not fit the environment, or something cannot be inferred.
    """

    def __init__(
        self,
        vec_env: GymnasiumVectorEnv,
        mapping: FieldMap | None = None,
        first_env_index: int = 0,
    ) -> None:
        self.env = self.vec_env = vec_env
        mode = vec_env.metadata.get("autoreset_mode")
        try:
            self._mode = AutoresetMode(mode)
        except ValueError:
            modes = [f"AutoresetMode.{one.name}" for one in AutoresetMode]
            raise EntityEnvError(
                f"metadata['autoreset_mode']: expected one of {modes} of gymnasium.vector, got "
                f"{mode!r}; set vec_env.metadata['autoreset_mode'] to what the environments do "
                "after an episode's end"
            ) from None

        # The names that one of the environments has; it is made anew if they are elsewhere.
        bare = vec_env.unwrapped
        envs, env_fns = (_items_of(bare, name) for name in ("envs", "env_fns"))
        if env_fns and not envs:
            with closing(env_fns[0]()) as env:
                names = names_of(env)
        else:
            names = names_of(envs[0] if envs else bare)
        self._translator = AgentTranslator(
            vec_env.single_observation_space, vec_env.single_action_space, mapping, names
        )
        self._first_env_index = first_env_index
        nowhere = np.zeros(len(self), dtype=np.bool_)
        self._no_ends = _EpisodeEnds(nowhere, nowhere, {})
        self._padding = nowhere  # the environments that begin an episode in the next step
        self._spaces = self._translator.obs_space, self._translator.action_space
        self._views: list[View] = []
        self._frames: list[Observation] = []
        self._batch: VecObs | None = None
        self._shown_space = self.obs_space()
        self._tracker = IdentityTracker([], 0)

    def __len__(self) -> int:
        return int(self.vec_env.num_envs)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        seed = self.take_seed()
        if seed is not None:
            seed = world_seed(derive_seed(seed, "vector", self._first_env_index))
        values, infos = check_result("reset", self.vec_env.reset(seed=seed))
        each, self._padding = self._split_infos(infos), self._no_ends.done
        self._tracker.begin()
        metrics = [self._translator.metrics(info) for info in each]
        views = self._translate(values, each, self._no_ends.done)
        return self._show(views, obs_config, np.zeros(len(self)), self._no_ends, metrics)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        if self._batch is None:
            raise EntityEnvError("act: call reset first")
        # The actions; a default one for an environment that only begins an episode in this step.
        resets = self._padding
        chosen = unbatch_actions(
            actions, self._batch, self._frames, self._shown_space, self.action_space()
        )
        each_action = [
            self._translator.build_action({})
            if is_reset
            else self._translator.translate_actions(view, own)
            for view, own, is_reset in zip(self._views, chosen, resets, strict=True)
        ]
        space = self.vec_env.single_action_space
        empty: Any = create_empty_array(space, n=len(self))
        result = check_result("step", self.vec_env.step(concatenate(space, each_action, empty)))
        values, rewards, terminated, truncated, infos = result

        # The results of each environment; what comes with a reset belongs to no episode.
        each = self._split_infos(infos)
        rewards = as_array(rewards, (len(self),), "reward", np.float64)[:, 0]
        rewards = np.where(resets, 0.0, rewards)
        terminated = self._flags(terminated, "terminated")
        truncated = self._flags(truncated, "truncated")
        done = (terminated | truncated) & ~resets
        ends = _EpisodeEnds(done, truncated & ~terminated & done, {})
        metrics = [
            {}
            if is_reset
            else self._translator.metrics(as_info(info.get("final_info", info), "final_info"))
            for info, is_reset in zip(each, resets, strict=True)
        ]

        # The frames, and the last observations of the episodes that end in this step.
        ended = np.flatnonzero(done).tolist()
        for i in ended:
            self._check_metrics(i)
        if self._tracker.types:
            self._tracker.begin(np.flatnonzero(resets).tolist())
        if self._mode == AutoresetMode.NEXT_STEP:
            views, self._padding = self._translate(values, each, done), done
            ends = ends._replace(final={i: views[i] for i in ended})
            return self._show(views, obs_filter, rewards, ends, metrics)
        if ended:
            ends = ends._replace(final=self._final_views(values, infos, ends))
        if ended and self._mode == AutoresetMode.DISABLED:
            again = self.vec_env.reset(options={"reset_mask": done.copy()})
            values, infos = check_result("reset", again)
            infos = as_info(infos, "infos")
            for i in ended:
                each[i] = _info_of(infos, i, len(self))
        views = self._translate(values, each, self._no_ends.done)
        return self._show(views, obs_filter, rewards, ends, metrics)

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Give every entity with an identity in the mapping a number."""
        tracked = types_to_track(types, self.obs_space(), self._batch is not None)
        self._tracker = IdentityTracker(tracked, len(self))

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of all environments, (B, height, width, 3) uint8."""
        return np.asarray(super().render(**kwargs), dtype=np.uint8)

    def _flags(self, flags: Any, field: str) -> BoolArray:
        """Return the flags of a step, (B,)."""
        array = as_flags(flags, field)
        if array.shape != (len(self),):
            raise unexpected(None, field, f"shape ({len(self)},)", array.shape)
        return array

    def _translate(self, values: Any, infos: Sequence[Any], is_over: BoolArray) -> list[View]:
        by_env = enumerate(iterate(self.vec_env.observation_space, values))
        return [self._view(i, value, infos[i], bool(is_over[i])) for i, value in by_env]

    def _view(self, i: int, value: Any, info: dict[str, Any], is_over: bool) -> View:
        try:
            return self._translator.translate_observation(value, info, is_over)
        except InvalidObservation as error:
            error.env_index = i
            raise

    def _check_metrics(self, i: int) -> None:
        """Raise if a metric was in no info when an episode of environment `i` ends."""
        try:
            check_metrics([self._translator])
        except InvalidObservation as error:
            error.env_index = i
            raise

    def _split_infos(self, infos: Any) -> list[dict[str, Any]]:
        """Return the info of each environment."""
        infos = {} if infos is None else infos
        if not isinstance(infos, Mapping):
            raise InvalidObservation(
                f"infos: expected a dictionary, got {type(infos).__name__}; leave out the wrapper "
                "that makes something else of it"
            )
        return [_info_of(infos, i, len(self)) for i in range(len(self))]

    def _final_views(
        self, values: Any, infos: Mapping[str, Any], ends: _EpisodeEnds
    ) -> dict[int, View]:
        """Return the last observations of the episodes that ended in this step, if they are known.

        Raises:
            InvalidObservation: one that was cut off has none.
        """
        if self._mode == AutoresetMode.SAME_STEP:
            values = infos.get("final_obs")
            if values is None and ends.truncated.any():
                raise InvalidObservation(
                    f"infos['final_obs']: expected the last observations of environments "
                    f"{np.flatnonzero(ends.truncated).tolist()}, which were cut off, got infos "
                    f"with {list(infos)}; give them, or declare another autoreset_mode"
                )
            if values is None:
                return {}
        is_list = isinstance(values, np.ndarray) and values.dtype == np.object_
        by_env = values if is_list else list(iterate(self.vec_env.observation_space, values))
        return {i: self._view(i, by_env[i], {}, True) for i in np.flatnonzero(ends.done).tolist()}

    def _show(
        self,
        views: list[View],
        shown_space: ObsSpace,
        rewards: npt.NDArray[Any],
        ends: _EpisodeEnds,
        metrics: list[dict[str, float]],
    ) -> VecObs:
        """Return the batch, and keep the frames for the actions of the next step."""
        space, done, truncated = self.obs_space(), ends.done.tolist(), ends.truncated.tolist()
        outcomes = [
            ends.final.get(i, view).to_observation(
                reward=reward, done=done[i], truncated=truncated[i], metrics=metrics[i]
            )
            for i, (view, reward) in enumerate(zip(views, rewards.tolist(), strict=True))
        ]
        frames = [views[i].to_observation() if done[i] else obs for i, obs in enumerate(outcomes)]
        if shown_space != space:
            outcomes = [filter_observation(obs, space, shown_space) for obs in outcomes]
            frames = [filter_observation(obs, space, shown_space) for obs in frames]
        self._batch = batch_obs(frames, shown_space, self.action_space(), outcomes)
        if self._padding.any():
            self._batch.padding = self._padding.copy()
        if self._tracker.types:
            if (final := self._batch.final) is not None:
                self._tracker.number_last(final, self._batch.truncated, outcomes)
            self._tracker.update(self._batch, frames)
        self._views, self._frames, self._shown_space = views, frames, shown_space
        return self._batch


def _items_of(vec_env: Any, name: str) -> Sequence[Any]:
    """Return an attribute that is a sequence, as in Gymnasium's own vectors, or ()."""
    found = getattr(vec_env, name, ())
    return found if isinstance(found, Sequence) else ()


def _last_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the info of the step, that of an episode's end where a new one began in it."""
    return as_info(info["final_info"], "final_info") if "final_info" in info else info


def _info_of(infos: Mapping[str, Any], i: int, n: int) -> dict[str, Any]:
    """Return the info of environment `i` of `n`.

    The flags under `_key` tell which environments have a `key`. A value that is not one for each
    environment belongs to all.
    """
    info: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(key, str) and key.startswith("_") and key[1:] in infos:
            continue
        flags = infos.get(f"_{key}")
        if flags is None or flags[i]:
            if isinstance(value, Mapping):
                info[key] = _info_of(value, i, n)
            else:
                is_list = isinstance(value, list | tuple) or np.ndim(value) > 0
                info[key] = value[i] if is_list and len(value) == n else value
    return info
