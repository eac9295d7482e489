"""A vectorised Gymnasium environment as a `VecEnv`."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.agent_translator import AgentTranslator, AgentView, check_metrics
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
    """Episodes that end in the same step."""

    done: BoolArray  # (B,)
    truncated: BoolArray  # (B,)
    final: Mapping[int, AgentView]  # last observations by environment, where available


class FromGymnasiumVector(Adapted, VecEnv):
    """Adapter from a vectorised Gymnasium environment to a `VecEnv`.

    `metadata["autoreset_mode"]` defines when the next episode starts. With `SAME_STEP` and
    `DISABLED` it starts in the step in which an episode ends. With `NEXT_STEP` the last observation
    is returned again as a padding frame without actions (`VecObs.padding`), and the step after it
    has neither reward nor metrics.

    Args:
        vec_env: the environments; closed together with the adapter.
        mapping: mapping of the fields of single observations and actions; the fields that it does
            not name are inferred.
        first_env_index: index of the first environment among all environments of the run.

    Raises:
        EntityEnvError: the metadata have no `autoreset_mode`.
        InvalidSpace: the mapping does not fit the environment, or a field cannot be inferred.
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
                f"{mode!r}; set vec_env.metadata['autoreset_mode'] to the mode of the environments"
            ) from None

        # Read feature names and labels, from a temporary environment if they run in processes.
        unwrapped = vec_env.unwrapped
        envs, env_fns = (_sequence_attribute(unwrapped, name) for name in ("envs", "env_fns"))
        if env_fns and not envs:
            with closing(env_fns[0]()) as env:
                names = names_of(env)
        else:
            names = names_of(envs[0] if envs else unwrapped)
        self._translator = AgentTranslator(
            vec_env.single_observation_space, vec_env.single_action_space, mapping, names
        )
        self._first_env_index = first_env_index
        no_flags = np.zeros(len(self), dtype=np.bool_)
        self._no_ends = _EpisodeEnds(no_flags, no_flags, {})
        self._padding = no_flags  # environments that reset in the next step
        self._spaces = self._translator.obs_space, self._translator.action_space
        self._views: list[AgentView] = []
        self._frames: list[Observation] = []
        self._batch: VecObs | None = None
        self._obs_filter = self.obs_space()
        self._tracker = IdentityTracker([], 0)

    def __len__(self) -> int:
        return int(self.vec_env.num_envs)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Reset all environments."""
        seed = self.take_seed()
        if seed is not None:
            seed = world_seed(derive_seed(seed, "vector", self._first_env_index))
        values, infos = check_result("reset", self.vec_env.reset(seed=seed))
        env_infos, self._padding = self._split_infos(infos), self._no_ends.done
        self._tracker.begin()
        metrics = [self._translator.metrics(info) for info in env_infos]
        views = self._translate(values, env_infos, self._no_ends.done)
        return self._make_batch(views, obs_config, np.zeros(len(self)), self._no_ends, metrics)

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Step all environments."""
        if self._batch is None:
            raise EntityEnvError("act: call reset first")
        # Actions: the default for environments that only reset in this step.
        resets = self._padding
        env_actions = unbatch_actions(
            actions, self._batch, self._frames, self._obs_filter, self.action_space()
        )
        gym_actions = [
            self._translator.build_action({})
            if is_reset
            else self._translator.translate_actions(view, chosen)
            for view, chosen, is_reset in zip(self._views, env_actions, resets, strict=True)
        ]
        space = self.vec_env.single_action_space
        empty: Any = create_empty_array(space, n=len(self))
        result = check_result("step", self.vec_env.step(concatenate(space, gym_actions, empty)))
        values, rewards, terminated, truncated, infos = result

        # Results of each environment; rewards and metrics of a reset belong to no episode.
        env_infos = self._split_infos(infos)
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
            for info, is_reset in zip(env_infos, resets, strict=True)
        ]

        # Frames, and last observations of the episodes that end in this step.
        ended = np.flatnonzero(done).tolist()
        for i in ended:
            self._check_metrics(i)
        if self._tracker.types:
            self._tracker.begin(np.flatnonzero(resets).tolist())
        if self._mode == AutoresetMode.NEXT_STEP:
            views, self._padding = self._translate(values, env_infos, done), done
            ends = ends._replace(final={i: views[i] for i in ended})
            return self._make_batch(views, obs_filter, rewards, ends, metrics)
        if ended:
            ends = ends._replace(final=self._final_views(values, infos, ends))
        if ended and self._mode == AutoresetMode.DISABLED:
            reset_result = self.vec_env.reset(options={"reset_mask": done.copy()})
            values, infos = check_result("reset", reset_result)
            infos = as_info(infos, "infos")
            for i in ended:
                env_infos[i] = _info_of(infos, i, len(self))
        views = self._translate(values, env_infos, self._no_ends.done)
        return self._make_batch(views, obs_filter, rewards, ends, metrics)

    def track(self, types: Sequence[EntityName] | None = None) -> None:
        """Track the identity of entities that have one in the mapping."""
        tracked = types_to_track(types, self.obs_space(), self._batch is not None)
        self._tracker = IdentityTracker(tracked, len(self))

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of all environments, (B, height, width, 3) uint8."""
        return np.asarray(super().render(**kwargs), dtype=np.uint8)

    def _flags(self, flags: Any, field: str) -> BoolArray:
        """Convert the flags of a step to (B,) bool."""
        array = as_flags(flags, field)
        if array.shape != (len(self),):
            raise unexpected(None, field, f"shape ({len(self)},)", array.shape)
        return array

    def _translate(self, values: Any, infos: Sequence[Any], is_over: BoolArray) -> list[AgentView]:
        by_env = enumerate(iterate(self.vec_env.observation_space, values))
        return [self._view(i, value, infos[i], bool(is_over[i])) for i, value in by_env]

    def _view(self, i: int, value: Any, info: dict[str, Any], is_over: bool) -> AgentView:
        try:
            return self._translator.translate_observation(value, info, is_over)
        except InvalidObservation as error:
            error.env_index = i
            raise

    def _check_metrics(self, i: int) -> None:
        """Raise if no info contained a metric when an episode of environment `i` ends."""
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
                f"infos: expected a dictionary, got {type(infos).__name__}; remove the wrapper "
                "that converts it"
            )
        return [_info_of(infos, i, len(self)) for i in range(len(self))]

    def _final_views(
        self, values: Any, infos: Mapping[str, Any], ends: _EpisodeEnds
    ) -> dict[int, AgentView]:
        """Return the last observations of the episodes that ended, as far as available.

        Raises:
            InvalidObservation: the last observation of a truncated episode is missing.
        """
        if self._mode == AutoresetMode.SAME_STEP:
            values = infos.get("final_obs")
            if values is None and ends.truncated.any():
                raise InvalidObservation(
                    f"infos['final_obs']: expected the last observations of the truncated "
                    f"environments {np.flatnonzero(ends.truncated).tolist()}, got infos with "
                    f"{list(infos)}; add them, or set another autoreset_mode"
                )
            if values is None:
                return {}
        is_list = isinstance(values, np.ndarray) and values.dtype == np.object_
        by_env = values if is_list else list(iterate(self.vec_env.observation_space, values))
        return {i: self._view(i, by_env[i], {}, True) for i in np.flatnonzero(ends.done).tolist()}

    def _make_batch(
        self,
        views: list[AgentView],
        obs_filter: ObsSpace,
        rewards: npt.NDArray[Any],
        ends: _EpisodeEnds,
        metrics: list[dict[str, float]],
    ) -> VecObs:
        """Create the batch, and store its frames to translate the next actions."""
        space, done, truncated = self.obs_space(), ends.done.tolist(), ends.truncated.tolist()
        outcomes = [
            ends.final.get(i, view).to_observation(
                reward=reward, done=done[i], truncated=truncated[i], metrics=metrics[i]
            )
            for i, (view, reward) in enumerate(zip(views, rewards.tolist(), strict=True))
        ]
        frames = [views[i].to_observation() if done[i] else obs for i, obs in enumerate(outcomes)]
        if obs_filter != space:
            outcomes = [filter_observation(obs, space, obs_filter) for obs in outcomes]
            frames = [filter_observation(obs, space, obs_filter) for obs in frames]
        self._batch = batch_obs(frames, obs_filter, self.action_space(), outcomes)
        if self._padding.any():
            self._batch.padding = self._padding.copy()
        if self._tracker.types:
            if (final := self._batch.final) is not None:
                self._tracker.number_last(final, self._batch.truncated, outcomes)
            self._tracker.update(self._batch, frames)
        self._views, self._frames, self._obs_filter = views, frames, obs_filter
        return self._batch


def _sequence_attribute(vec_env: Any, name: str) -> Sequence[Any]:
    """Return an attribute if it is a sequence, as in Gymnasium's vector environments, else ()."""
    items = getattr(vec_env, name, ())
    return items if isinstance(items, Sequence) else ()


def _info_of(infos: Mapping[str, Any], i: int, n: int) -> dict[str, Any]:
    """Return the info of environment `i` of `n`.

    Flags at `_key` mark the environments that have a `key`. A value without an element for each
    environment is shared by all.
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
