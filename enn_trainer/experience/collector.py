"""Stepping of environments with players: rollouts for training, and episodes for evaluation.

Watchers observe each step; recordings are written by one of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.episodes import NO_EPISODES, Episodes
from enn_trainer.experience.memories import sequences
from enn_trainer.experience.players import Decisions, Players
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from enn_trainer.runtime.shards import UNCUT, Shards
from entity_env.arrays import IntArray
from entity_env.frame_data import FrameData, cat_leaves
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import (
    AddMetricsWrapper,
    Metric,
    VecEnv,
    VecEnvWrapper,
    VecObs,
    add_metrics,
)
from rogue_net.actions.parts import independent
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device


class Watcher(Protocol):
    """Observer of the steps of a collector, which must not change anything."""

    def begin(self, obs: VecObs, obs_space: ObsSpace, state: Mapping[str, Any] | None) -> None:
        """Process the first frames.

        Args:
            obs: the frames of all environments.
            obs_space: observation space of the frames.
            state: saved state of environments and watchers if episodes are resumed; else None.
        """

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: Decisions, run_step: int | None
    ) -> None:
        """Process the decisions in the current frames; their memory may be reused afterwards.

        Args:
            obs: the frames.
            batch: the same frames on the device.
            decisions: the decisions in these frames.
            run_step: number of frames of the run before this step; None outside of runs.
        """

    def after_step(self, obs: VecObs) -> None:
        """Process the outcome of the step: rewards, episode ends and the next frames."""

    def get_state(self) -> dict[str, Any]:
        """Return the state for `begin` as plain data, under a key that is unique to the watcher."""


class Collector(VecEnvWrapper):
    """Environments with the players that act in them, and with watchers.

    `reset` or `set_state` begins episodes, and `step` continues them. `act` is the method of the
    environments, which watchers do not observe.

    Args:
        env: B environments.
        players: players that choose the actions.
        device: device of the frames.
        watchers: observers of the steps.

    Attributes:
        obs: the current frames.
    """

    def __init__(
        self,
        env: VecEnv,
        players: Players,
        device: torch.device | str = "cpu",
        watchers: Sequence[Watcher] = (),
    ) -> None:
        super().__init__(env)
        self.players = players
        self.device = torch.device(device)
        self.watchers = watchers
        self.obs: VecObs
        self._obs_space: ObsSpace
        self._has_begun = False

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode in every environment; frames have the features of `obs_config`."""
        self._track()
        return self._begin(self.env.reset(obs_config), obs_config, None)

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of environments and watchers; None if it cannot be saved."""
        state = self.env.get_state()
        if state is not None:
            for watcher in self.watchers:
                state = {**state, **watcher.get_state()}
        return state

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Resume saved episodes; None if the environments do not support it."""
        self._track()
        obs = self.env.set_state(state, obs_config)
        return None if obs is None else self._begin(obs, obs_config, state)

    def step(
        self, t: int, run_step: int | None, context: ExecutionContext = DEFAULT_CONTEXT
    ) -> tuple[EntityBatch, Decisions, VecObs]:
        """Step every environment once with the actions of the players.

        Args:
            t: a number that differs in each step, from which random numbers are derived.
            run_step: frames of the run before this step, for watchers; None outside of runs.
            context: interrupt check and timers.

        Returns:
            The frames, the decisions in them, and the outcome with the next frames.
        """
        context.check()
        obs, spans = self.obs, context.spans
        with spans.span("batch"):
            batch = EntityBatch.of(obs, self.device)
        with spans.span("act"):
            decisions = self.players.act(obs, batch, t)
        with spans.span("env"):
            actions = decisions.chosen_on_host()
            for watcher in self.watchers:
                watcher.before_step(obs, batch, decisions, run_step)
            self.obs = self.env.act(actions, self._obs_space)
            for watcher in self.watchers:
                watcher.after_step(self.obs)
        self.players.after_step(self.obs)
        return batch, decisions, self.obs

    def metrics_of_shards(self) -> list[dict[str, Metric]]:
        """Return the metrics of the last step for each shard."""
        env = self.env
        return env.group_metrics if isinstance(env, AddMetricsWrapper) else [self.obs.metrics]

    def running_of_shards(self) -> list[dict[str, Metric]]:
        """Return the metrics of the running episodes for each shard."""
        return self.env.running_group_metrics() if isinstance(self.env, AddMetricsWrapper) else [{}]

    def _track(self) -> None:
        """Enable the identity of entities in the frames if players need it."""
        if not self._has_begun and self.players.needs_identity:
            self.env.track()
        self._has_begun = True

    def _begin(self, obs: VecObs, obs_space: ObsSpace, state: Mapping[str, Any] | None) -> VecObs:
        self.obs, self._obs_space = obs, obs_space
        for watcher in self.watchers:
            watcher.begin(obs, obs_space, state)
        self.players.begin(obs, is_resumed=state is not None)
        return obs


@torch.no_grad()
def play(
    collector: Collector,
    obs_space: ObsSpace,
    steps: int,
    seed: int,
    *,
    run_step: int = 0,
    stop: Callable[[], bool] = lambda: False,
) -> Mapping[str, Metric]:
    """Play new episodes for a number of steps.

    Args:
        collector: environments and players.
        obs_space: observation space of the frames.
        steps: number of steps.
        seed: seed of the episodes.
        run_step: number of frames of the run, for watchers.
        stop: called before each step; True ends early.

    Returns:
        The metrics of all steps.
    """
    metrics: dict[str, Metric] = {}
    collector.seed(seed)
    collector.reset(obs_space)
    for t in range(steps):
        if stop():
            break
        _, _, obs = collector.step(t, run_step)
        add_metrics(metrics, obs.metrics)
    return metrics


@dataclass(frozen=True)
class Rollout:
    """T steps of the B environments that are trained on; frame t * B + b is step t of env b.

    In a run of several processes, `batch`, `actions`, `logprobs`, `entropies` and `next_obs` have
    the environments of this process, and everything else has all environments.

    Attributes:
        batch: the T * B frames.
        actions: per action int64 (actors,) per frame, the choices.
        logprobs: per action float32 (actors,) per frame, log-probabilities of the choices.
        entropies: per action float32 (actors,) per frame, entropies of the policy.
        values: (T, B) float32, predicted returns.
        rewards: (T, B) float32, of the step from each frame.
        terminated: (T, B) bool, True if the episode terminated in that step.
        truncated: (T, B) bool, True if the episode was truncated in that step.
        last_values: (B,) float32, values after the last step; 0 where an episode ended.
        final_values: (truncated episodes,) float32, values of the final observations.
        metrics: metrics of the environments over all steps.
        next_obs: the frames after the last step, of all environments.
        episodes: episodes that ended, of all environments.
        shards: groups of the environments that are trained on.
        metrics_of_shards: metrics of each group.
        decisions: see `num_decisions`; None to count in `batch`.
        actors: see `num_actors`; None to count in `actions`.
        padding: (T, B) bool, frames between two episodes, which are not trained on; see
            `VecObs.padding`. None if there are none.
    """

    batch: EntityBatch
    actions: Mapping[str, RaggedTensor]
    logprobs: Mapping[str, RaggedTensor]
    entropies: Mapping[str, RaggedTensor]
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    last_values: Tensor
    final_values: Tensor
    metrics: Mapping[str, Metric]
    next_obs: VecObs
    episodes: Episodes = NO_EPISODES
    shards: Shards = UNCUT
    metrics_of_shards: Sequence[Mapping[str, Metric]] = ()
    decisions: IntArray | None = None
    actors: Mapping[str, int] | None = None
    padding: Tensor | None = None

    @property
    def num_frames(self) -> int:
        """Number of frames, T * B."""
        return self.rewards.numel()

    def of_played(self, x: Tensor) -> Tensor:
        """Select the entries of the frames that belong to an episode, (T, B) -> (frames,)."""
        return x.flatten() if self.padding is None else x[~self.padding]

    def played_frames(self) -> IntArray:
        """Return the positions of the frames that belong to an episode, (frames,) int64."""
        if self.padding is None:
            return np.arange(self.num_frames)
        return np.flatnonzero(~self.padding.cpu().numpy())

    def sequences(self, seq_len: int) -> list[IntArray]:
        """Return the positions of the frames of each sequence that belong to an episode."""
        steps, num_envs = self.rewards.shape
        whole = sequences(steps, num_envs, seq_len)
        if self.padding is None:
            return whole
        is_padding = self.padding.cpu().numpy().flatten()
        return [frames for sequence in whole if len(frames := sequence[~is_padding[sequence]])]

    def num_decisions(self) -> IntArray:
        """Count decisions per frame, (T * B,) int64; dependent actions count with their parent."""
        if self.decisions is not None:
            return self.decisions
        lengths = [action.actors.lengths for action in independent(self.batch.actions)]
        return sum(lengths, start=np.zeros(self.batch.num_frames, np.int64))

    def num_actors(self) -> Mapping[str, int]:
        """Return the number of choices of each action."""
        if self.actors is not None:
            return self.actors
        return {name: len(rows.values) for name, rows in self.actions.items()}

    @property
    def shard_rollouts(self) -> "list[Rollout]":
        """Part of each shard of this process, without frames between episodes.

        Frames, actions, entropies and rewards are in the order of steps; rewards are (frames,).
        """
        return [self] if self.shards.count == 1 and self.padding is None else self._parts

    @cached_property
    def _parts(self) -> "list[Rollout]":
        parts, frames = [], self.played_frames()
        for positions in self.shards.positions(frames):
            rollout_frames = to_device(frames[positions], self.rewards.device)
            local_frames = self.shards.rows(frames[positions])
            part = replace(
                self,
                batch=self.batch.take(local_frames),
                actions={name: chosen.take(local_frames) for name, chosen in self.actions.items()},
                entropies={name: rows.take(local_frames) for name, rows in self.entropies.items()},
                rewards=self.rewards.flatten()[rollout_frames],
                padding=None,
            )
            parts.append(part)
        return parts

    def frames_of_shards(self) -> list[EntityBatch]:
        """Return the frames of each shard that belong to an episode, in the order of steps."""
        return [one.batch for one in self.shard_rollouts]


@torch.no_grad()
def collect(
    collector: Collector,
    *,
    steps: int,
    first_frame: int,
    seq_len: int | None = None,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> Rollout:
    """Collect a rollout of `steps` steps in every environment.

    Args:
        collector: environments and players; `Players.learnt` selects B environments.
        steps: T.
        first_frame: number of frames of the run before; seeds the actions.
        seq_len: steps of a training sequence of a recurrent network; None for T.
        context: interrupt check and timers.
    """
    # Allocate.
    players, device = collector.players, collector.device
    num_envs = len(players.learnt_envs(len(collector)))
    shards = context.learnt or Shards.one(num_envs)
    storage = RolloutStorage(steps * num_envs)
    rewards = np.empty((steps, num_envs), np.float32)
    terminated, truncated, padding = np.empty((3, steps, num_envs), np.bool_)
    metrics: list[dict[str, Metric]] = [{} for _ in shards.local]
    episodes: list[Episodes] = []
    recurrence = players.memory.begin_rollout(seq_len or steps)
    finals = [FinalObservations(part.stop - part.start) for part in shards.slices]

    # Act for T steps. The final observations of truncated episodes are evaluated in batches.
    for t in range(steps):
        frame = first_frame + t * shards.num_columns
        learnt = players.learnt_envs(len(collector))
        recurrence.add(players.memory, learnt)
        padding[t] = collector.obs.is_padding[learnt]
        batch, decisions, obs = collector.step(frame, frame, context)
        storage.add(*players.select_learnt(batch, decisions))
        rewards[t] = obs.reward[learnt]
        terminated[t], truncated[t] = obs.terminated[learnt], obs.truncated[learnt]
        for shard_metrics, step_metrics in zip(metrics, collector.metrics_of_shards(), strict=True):
            add_metrics(shard_metrics, step_metrics)
        if obs.done.any():
            episodes.append(Episodes.of(obs, t, learnt))
        if truncated[t].any():
            columns, final = np.flatnonzero(truncated[t]), _final_frames(collector, learnt)
            for run in shards.runs(columns):
                part = final if run.stop - run.start == len(columns) else final.slice(run)
                last = finals[shards.place(int(columns[run.start]))]
                last.add(players, part, learnt[columns[run]], t * num_envs + columns[run])

    for shard_metrics, running_metrics in zip(metrics, collector.running_of_shards(), strict=True):
        add_metrics(shard_metrics, running_metrics)

    # Values to bootstrap from: of the frames after the last step, and of truncated episodes.
    frames, decided = storage.take()
    with context.spans.span("values"):
        last_values = decided.values.new_zeros(num_envs)
        continuing = np.flatnonzero(~obs.done[learnt])  # the value after the end of an episode is 0
        if len(continuing):
            last_frames = EntityBatch.of(obs, device)
            if len(continuing) < len(collector):
                last_frames = last_frames.take(learnt[continuing])
            values = players.values(last_frames, learnt[continuing])
            last_values[to_device(continuing, device)] = values
        final_values = decided.values.new_zeros(steps * num_envs)
        for last in finals:
            for positions, values in last.values(players):
                final_values[to_device(positions, device)] = values
    return Rollout(
        batch=recurrence.attach(frames),
        actions=decided.chosen,
        logprobs=decided.logprobs,
        entropies=decided.entropies,
        values=decided.values.view(steps, num_envs),
        rewards=torch.from_numpy(rewards).to(device),
        terminated=torch.from_numpy(terminated).to(device),
        truncated=torch.from_numpy(truncated).to(device),
        last_values=last_values,
        final_values=final_values[to_device(np.flatnonzero(truncated), device)],
        metrics=merge_metrics(metrics),
        next_obs=obs,
        episodes=Episodes.cat(episodes),
        shards=shards,
        metrics_of_shards=metrics,
        padding=torch.from_numpy(padding).to(device) if padding.any() else None,
    )


def _final_frames(collector: Collector, learnt: IntArray) -> EntityBatch:
    """Return the final observations of the episodes that were truncated in the last step.

    Args:
        collector: the collector, after the step.
        learnt: (L,) int64, the environments to train on.
    """
    obs, truncated = collector.obs, np.flatnonzero(collector.obs.truncated)
    assert obs.final is not None
    frames, is_learnt = EntityBatch.of(obs.final, collector.device), np.isin(truncated, learnt)
    frames = frames if is_learnt.all() else frames.take(np.flatnonzero(is_learnt))
    frames, _ = collector.players.memory.attach(frames, truncated[is_learnt], acts=False)
    return frames


class FinalObservations:
    """Last observations of truncated episodes of a shard, which are valued in batches.

    Args:
        most: observations after which they are valued, to bound memory.
    """

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self._frames: list[EntityBatch] = []
        self._environments = self._positions = np.zeros(0, np.int64)
        self._valued: list[tuple[IntArray, Tensor]] = []

    def add(
        self, players: Players, frames: EntityBatch, environments: IntArray, positions: IntArray
    ) -> None:
        """Add observations.

        Args:
            players: players with the value network.
            frames: n observations, with a history if the learner has memory.
            environments: (n,) int64.
            positions: (n,) int64, positions of their values in the rollout.
        """
        self._frames.append(frames)
        self._environments = np.append(self._environments, environments)
        self._positions = np.append(self._positions, positions)
        if len(self._positions) >= self._batch_size:
            self.values(players)

    def values(self, players: Players) -> list[tuple[IntArray, Tensor]]:
        """Return the positions and values of all observations."""
        if self._frames:
            values = players.values(EntityBatch.cat(self._frames), self._environments)
            self._valued.append((self._positions, values))
            self._frames = []
            self._environments = self._positions = np.zeros(0, np.int64)
        return self._valued


def merge_metrics(metrics: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return the sum of the metrics of all shards, added in their order."""
    total: dict[str, Metric] = {}
    for shard_metrics in metrics:
        add_metrics(total, shard_metrics)
    return total


_MIN_WRITE_BYTES = 4 * 2**20
"""Bytes of buffered steps at which the buffer is written."""
_GROWTH_RESERVE = 9 / 8
"""Memory reserved for each remaining frame, relative to the mean frame so far."""


@dataclass(frozen=True)
class DecidedFrames(FrameData):
    """Frames and the decisions in them."""

    batch: EntityBatch
    decisions: Decisions


class RolloutStorage:
    """Storage for the frames of a rollout, added in order.

    Args:
        num_frames: number of frames of the whole rollout.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        self._buffer: list[DecidedFrames] = []
        self._bytes_per_step = 0
        self._written: list[DecidedFrames] = []  # at most one, with leaves `_GrowingTensor`

    def add(self, batch: EntityBatch, decisions: Decisions) -> None:
        """Add frames and the decisions in them; the tensors must not be changed afterwards."""
        # Distributions and environment units are not stored; drop them to free memory.
        frames = DecidedFrames(batch, replace(decisions, distributions={}, numbers={}))
        self._buffer.append(frames)
        count = len(self._buffer)
        is_first = count == 1 and not self._written
        if count & (count - 1) == 0 and not is_first:  # as the size of steps changes slowly
            self._bytes_per_step = _num_bytes(frames)
        if count * self._bytes_per_step >= _MIN_WRITE_BYTES:
            self._write()

    def take(self) -> tuple[EntityBatch, Decisions]:
        """Return all frames and the decisions in them."""
        if self._buffer:
            self._join()
        (frames,) = self._written
        frames = frames.map(
            lambda leaf: leaf.all() if isinstance(leaf, _GrowingTensor | _HostLeaf) else leaf
        )
        return frames.batch, frames.decisions

    def _write(self) -> None:
        """Append the buffered steps to the written ones."""
        self._join()
        self._written = [frames.map(self._stored) for frames in self._written]

    def _join(self) -> None:
        frames = DecidedFrames.cat(self._buffer)
        self._buffer = []
        self._written = [DecidedFrames.cat([*self._written, frames]) if self._written else frames]

    def _stored(self, leaf: Any) -> Any:
        if isinstance(leaf, RaggedTensor | Tensor):
            return _GrowingTensor(leaf, self._num_frames)
        return leaf if isinstance(leaf, _GrowingTensor | _HostLeaf) else _HostLeaf(leaf)


class _GrowingTensor:
    """Leaf with the rows of all frames so far, in one tensor that is rarely reallocated.

    Args:
        first: the rows of the first frames.
        num_frames: total number of frames.
    """

    def __init__(self, first: RaggedTensor | Tensor, num_frames: int) -> None:
        self._is_ragged, self._num_frames = isinstance(first, RaggedTensor), num_frames
        self._tensor = _as_rows(first).values[:0]
        self._lengths: list[IntArray] = []
        self._frames = self._end = 0
        self.append(first)

    def append(self, leaf: RaggedTensor | Tensor) -> None:
        """Append the rows of some frames; the caller must not modify them afterwards."""
        rows = _as_rows(leaf)
        start = self._end
        self._end += len(rows.values)
        self._frames += len(rows.lengths)
        self._lengths.append(rows.lengths)
        if self._end > len(self._tensor):
            # Expected total number of rows, with a reserve. Memory that is never written to costs
            # nothing, as the system allocates by page.
            remaining = self._num_frames / self._frames - 1
            space = self._end + math.ceil(self._end * remaining * _GROWTH_RESERVE)
            if space == len(rows.values):
                self._tensor = rows.values
                return
            grown = rows.values.new_empty((space, *rows.values.shape[1:]))
            grown[:start] = self._tensor[:start]
            self._tensor = grown
        self._tensor[start : self._end] = rows.values

    @property
    def values(self) -> Tensor:
        """All rows, a view."""
        return self._tensor[: self._end]

    @property
    def lengths(self) -> IntArray:
        """(frames,) int64, the number of rows of each frame."""
        return np.concatenate(self._lengths)

    def all(self) -> RaggedTensor | Tensor:
        """Return the rows of all frames."""
        return RaggedTensor(self.values, self.lengths) if self._is_ragged else self.values

    def cat(self, leaves: Sequence[Any]) -> "_GrowingTensor":
        """Append all leaves but the first, which is `self`."""
        for leaf in leaves[1:]:
            self.append(leaf)
        return self


class _HostLeaf:
    """Leaf on the host, such as entity counts, with parts that are concatenated once.

    Args:
        first: the part of the first frames.
    """

    def __init__(self, first: Any) -> None:
        self._parts = [first]

    def cat(self, leaves: Sequence[Any]) -> "_HostLeaf":
        """Append all leaves but the first, which is `self`."""
        self._parts += leaves[1:]
        return self

    def all(self) -> Any:
        """Return the leaf of all frames."""
        return cat_leaves(self._parts[0], self._parts)


def _as_rows(leaf: RaggedTensor | Tensor) -> RaggedTensor:
    """Return a leaf as rows; a tensor with one number per frame has one row per frame."""
    if isinstance(leaf, RaggedTensor):
        return leaf
    return RaggedTensor(leaf, np.ones(len(leaf), np.int64))


def _num_bytes(frames: FrameData) -> int:
    """Return the size of all tensors in bytes."""
    total = 0

    def add(leaf: Any) -> Any:
        nonlocal total
        if isinstance(leaf, RaggedTensor | Tensor):
            total += _as_rows(leaf).values.nbytes
        return leaf

    frames.map(add)
    return total
