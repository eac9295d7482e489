"""Stepping of environments by players: rollouts to learn from, and episodes to evaluate.

Watchers follow each step. Recordings are made by one; this module does not know it.
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
    """Follower of the steps of a collector, which changes nothing of them."""

    def begin(self, obs: VecObs, shown: ObsSpace, state: Mapping[str, Any] | None) -> None:
        """Take the first frames.

        Args:
            obs: the frames of all environments.
            shown: the features in them.
            state: of environments and watchers, if saved episodes go on; None for new ones.
        """

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: Decisions, run_step: int | None
    ) -> None:
        """Take the decisions in the current frames. The environments may reuse `obs` afterwards.

        Args:
            obs: the frames.
            batch: the same on the device.
            decisions: of these frames.
            run_step: the number of frames of the run before this step; None outside of runs.
        """

    def after_step(self, obs: VecObs) -> None:
        """Take the outcome: rewards, ends, and the next frames."""

    def get_state(self) -> dict[str, Any]:
        """Return what `begin` needs to go on, by a name of its own, as plain data."""


class Collector(VecEnvWrapper):
    """Environments with the players who act in them, and with watchers.

    `reset` or `set_state` begins episodes, `step` goes on with them. Watchers do not see what `act`
    does, which is that of the environments.

    Args:
        env: B environments.
        players: choose the actions.
        device: device of the frames.
        watchers: follow the steps.

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
        self._shown: ObsSpace
        self._has_begun = False

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode in every environment; frames show the features of `obs_config`."""
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
        """Go on with saved episodes; None if the environments cannot."""
        self._track()
        obs = self.env.set_state(state, obs_config)
        return None if obs is None else self._begin(obs, obs_config, state)

    def step(
        self, t: int, run_step: int | None, context: ExecutionContext = DEFAULT_CONTEXT
    ) -> tuple[EntityBatch, Decisions, VecObs]:
        """Let the players act once in every environment.

        Args:
            t: a number that earlier steps did not have, of which random choices are a function.
            run_step: the number of frames of the run before this step, for watchers; None outside
                of runs.
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
            self.obs = self.env.act(actions, self._shown)
            for watcher in self.watchers:
                watcher.after_step(self.obs)
        self.players.after_step(self.obs)
        return batch, decisions, self.obs

    def metrics_of_shards(self) -> list[dict[str, Metric]]:
        """Return the metrics of the last step, of the environments of each shard."""
        return self.env.of_groups if isinstance(self.env, AddMetricsWrapper) else [self.obs.metrics]

    def running_of_shards(self) -> list[dict[str, Metric]]:
        """Return metrics of the episodes that are running, of the environments of each shard."""
        return self.env.running_of_groups() if isinstance(self.env, AddMetricsWrapper) else [{}]

    def _track(self) -> None:
        """Let environments number their entities if players remember some."""
        if not self._has_begun and self.players.identifies:
            self.env.track()
        self._has_begun = True

    def _begin(self, obs: VecObs, shown: ObsSpace, state: Mapping[str, Any] | None) -> VecObs:
        self.obs, self._shown = obs, shown
        for watcher in self.watchers:
            watcher.begin(obs, shown, state)
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
    """Play new episodes for some steps.

    Args:
        collector: environments and players.
        obs_space: the observation space to select features by.
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
    """T steps of the B environments that are learnt from. Frame t * B + b is step t of the b-th.

    In a run of several processes, `batch`, `actions`, `logprobs`, `entropies` and `next_obs` are of
    the environments of this process, everything else is of all.

    Attributes:
        batch: the T * B frames.
        actions: per action int64 (actors,) per frame, the choices.
        logprobs: per action float32 (actors,) per frame, of the choices.
        entropies: per action float32 (actors,) per frame, of all that could be chosen.
        values: (T, B) float32.
        rewards: (T, B) float32, of the step from each frame.
        terminated: (T, B) bool, the episode ended by itself in that step.
        truncated: (T, B) bool, the episode was cut off in that step.
        last_values: (B,) float32, of the frames after the last step; 0 where an episode ended.
        final_values: (truncated episodes,) float32, of their last observations, in the order of
            `truncated`.
        metrics: of these environments, over all steps.
        next_obs: the frames after the last step, of all environments.
        episodes: those that ended, of all environments.
        shards: groups of the environments that are learnt from.
        metrics_of_shards: the metrics of each group.
        decisions: see `num_decisions`; None to count those of `batch`.
        actors: see `num_actors`; None to count those of `actions`.
        padding: (T, B) bool, frames between two episodes, which are not learnt from; see
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
        """Return the numbers of the frames that are of an episode, (T, B) -> (frames,)."""
        return x.flatten() if self.padding is None else x[~self.padding]

    def played_frames(self) -> IntArray:
        """Return the positions of the frames that are of an episode, (frames,) int64."""
        if self.padding is None:
            return np.arange(self.num_frames)
        return np.flatnonzero(~self.padding.cpu().numpy())

    def sequences(self, seq_len: int) -> list[IntArray]:
        """Return the positions of the frames of each sequence that are of an episode."""
        steps, num_envs = self.rewards.shape
        whole = sequences(steps, num_envs, seq_len)
        if self.padding is None:
            return whole
        is_padding = self.padding.cpu().numpy().flatten()
        return [own for one in whole if len(own := one[~is_padding[one]])]

    def num_decisions(self) -> IntArray:
        """Return (T * B,) int64, the actors of each frame; those of a chain count once."""
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
    def of_shards(self) -> "list[Rollout]":
        """Frames of episodes, with actions, entropies and rewards, of each shard of this process.

        They are in the order of steps; rewards are (frames,).
        """
        return [self] if self.shards.count == 1 and self.padding is None else self._parts

    @cached_property
    def _parts(self) -> "list[Rollout]":
        found, frames = [], self.played_frames()
        for positions in self.shards.positions(frames):
            of_all = to_device(frames[positions], self.rewards.device)
            own = self.shards.rows(frames[positions])
            one = replace(
                self,
                batch=self.batch.take(own),
                actions={name: chosen.take(own) for name, chosen in self.actions.items()},
                entropies={name: of_rows.take(own) for name, of_rows in self.entropies.items()},
                rewards=self.rewards.flatten()[of_all],
                padding=None,
            )
            found.append(one)
        return found

    def frames_of_shards(self) -> list[EntityBatch]:
        """Return the frames of episodes of each shard, step after step."""
        return [one.batch for one in self.of_shards]


@torch.no_grad()
def collect(
    collector: Collector,
    *,
    steps: int,
    first_frame: int,
    seq_len: int | None = None,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> Rollout:
    """Go on for `steps` steps in every environment, and keep them to learn from.

    Args:
        collector: the environments and the players, who say which B frames of a step are learnt
            from; all if they do not.
        steps: T.
        first_frame: number of frames of the run before; the choices depend on it.
        seq_len: steps of a sequence to learn memory from; None for T.
        context: interrupt check and timers.
    """
    # Allocate.
    players, device = collector.players, collector.device
    num_envs = len(players.learnt_among(len(collector)))
    shards = context.learnt or Shards.one(num_envs)
    storage = RolloutStorage(steps * num_envs)
    rewards = np.empty((steps, num_envs), np.float32)
    terminated, truncated, padding = np.empty((3, steps, num_envs), np.bool_)
    metrics: list[dict[str, Metric]] = [{} for _ in shards.own]
    episodes: list[Episodes] = []
    recurrence = players.memory.of_rollout(seq_len or steps)
    finals = [LastObservations(own.stop - own.start) for own in shards.slices]

    # Act for T steps. The last observations of truncated episodes are valued in batches.
    for t in range(steps):
        frame = first_frame + t * shards.num_columns
        learnt = players.learnt_among(len(collector))
        recurrence.add(players.memory, learnt)
        padding[t] = collector.obs.is_padding[learnt]
        batch, decisions, obs = collector.step(frame, frame, context)
        storage.add(*players.learnt_from(batch, decisions))
        rewards[t] = obs.reward[learnt]
        terminated[t], truncated[t] = obs.terminated[learnt], obs.truncated[learnt]
        for of_shard, of_step in zip(metrics, collector.metrics_of_shards(), strict=True):
            add_metrics(of_shard, of_step)
        if obs.done.any():
            episodes.append(Episodes.of(obs, t, learnt))
        if truncated[t].any():
            columns, final = np.flatnonzero(truncated[t]), _final_frames(collector, learnt)
            for run in shards.runs(columns):
                one = final if run.stop - run.start == len(columns) else final.slice(run)
                last = finals[shards.place(int(columns[run.start]))]
                last.add(players, one, learnt[columns[run]], t * num_envs + columns[run])

    for of_shard, of_running in zip(metrics, collector.running_of_shards(), strict=True):
        add_metrics(of_shard, of_running)

    # Values to bootstrap from: of the frames after the last step, and of truncated episodes.
    frames, kept = storage.take()
    with context.spans.span("values"):
        last_values = kept.values.new_zeros(num_envs)
        going_on = np.flatnonzero(~obs.done[learnt])  # the value after the end of an episode is 0
        if len(going_on):
            of_last = EntityBatch.of(obs, device)
            if len(going_on) < len(collector):
                of_last = of_last.take(learnt[going_on])
            values = players.values(of_last, learnt[going_on])
            last_values[to_device(going_on, device)] = values
        of_finals = kept.values.new_zeros(steps * num_envs)
        for last in finals:
            for positions, values in last.values(players):
                of_finals[to_device(positions, device)] = values
    return Rollout(
        batch=recurrence.attach(frames),
        actions=kept.chosen,
        logprobs=kept.logprobs,
        entropies=kept.entropies,
        values=kept.values.view(steps, num_envs),
        rewards=torch.from_numpy(rewards).to(device),
        terminated=torch.from_numpy(terminated).to(device),
        truncated=torch.from_numpy(truncated).to(device),
        last_values=last_values,
        final_values=of_finals[to_device(np.flatnonzero(truncated), device)],
        metrics=merged(metrics),
        next_obs=obs,
        episodes=Episodes.cat(episodes),
        shards=shards,
        metrics_of_shards=metrics,
        padding=torch.from_numpy(padding).to(device) if padding.any() else None,
    )


def _final_frames(collector: Collector, learnt: IntArray) -> EntityBatch:
    """Return the last frames of the episodes that were truncated in the last step.

    Args:
        collector: has stepped.
        learnt: (L,) int64, the environments whose frames are learnt from.
    """
    obs, truncated = collector.obs, np.flatnonzero(collector.obs.truncated)
    assert obs.final is not None
    frames, is_learnt = EntityBatch.of(obs.final, collector.device), np.isin(truncated, learnt)
    frames = frames if is_learnt.all() else frames.take(np.flatnonzero(is_learnt))
    frames, _ = collector.players.memory.attach(frames, truncated[is_learnt], acts=False)
    return frames


class LastObservations:
    """Last observations of truncated episodes of a shard, which are valued in batches.

    Args:
        most: observations after which they are valued, to bound memory.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._frames: list[EntityBatch] = []
        self._environments = self._positions = np.zeros(0, np.int64)
        self._valued: list[tuple[IntArray, Tensor]] = []

    def add(
        self, players: Players, frames: EntityBatch, environments: IntArray, at: IntArray
    ) -> None:
        """Add observations.

        Args:
            players: value them.
            frames: n observations, with a past if the learner remembers.
            environments: (n,) int64.
            at: (n,) int64, positions of their values in the rollout.
        """
        self._frames.append(frames)
        self._environments = np.append(self._environments, environments)
        self._positions = np.append(self._positions, at)
        if len(self._positions) >= self._most:
            self.values(players)

    def values(self, players: Players) -> list[tuple[IntArray, Tensor]]:
        """Return the positions and values of all observations."""
        if self._frames:
            values = players.values(EntityBatch.cat(self._frames), self._environments)
            self._valued.append((self._positions, values))
            self._frames = []
            self._environments = self._positions = np.zeros(0, np.int64)
        return self._valued


def merged(metrics: Sequence[Mapping[str, Metric]]) -> dict[str, Metric]:
    """Return the metrics of all shards, added in their order."""
    total: dict[str, Metric] = {}
    for of_shard in metrics:
        add_metrics(total, of_shard)
    return total


_WORTH_WRITING = 4 * 2**20
"""Bytes of buffered steps at which these are written."""
_SPARE = 9 / 8
"""Memory reserved for each frame to come, relative to the mean frame so far."""


@dataclass(frozen=True)
class DecidedFrames(FrameData):
    """Frames, and the decisions in them."""

    batch: EntityBatch
    decisions: Decisions


class RolloutStorage:
    """Storage that takes the frames of a rollout in their order.

    Args:
        num_frames: number of frames of the whole rollout.
    """

    def __init__(self, num_frames: int) -> None:
        self._num_frames = num_frames
        self._buffer: list[DecidedFrames] = []
        self._bytes_of_one = 0
        self._written: list[DecidedFrames] = []  # none or one, its tensors are `_Rows`

    def add(self, batch: EntityBatch, decisions: Decisions) -> None:
        """Add frames and the decisions in them; the tensors must not be changed afterwards."""
        # Drop what is not stored, to free its memory.
        frames = DecidedFrames(batch, replace(decisions, distributions={}, numbers={}))
        self._buffer.append(frames)
        count = len(self._buffer)
        is_first = count == 1 and not self._written
        if count & (count - 1) == 0 and not is_first:  # as the size of steps changes slowly
            self._bytes_of_one = _num_bytes(frames)
        if count * self._bytes_of_one >= _WORTH_WRITING:
            self._write()

    def take(self) -> tuple[EntityBatch, Decisions]:
        """Return all frames, and the decisions in them."""
        if self._buffer:
            self._join()
        (frames,) = self._written
        frames = frames.map(lambda leaf: leaf.all() if isinstance(leaf, _Rows | _Pieces) else leaf)
        return frames.batch, frames.decisions

    def _write(self) -> None:
        """Append the buffered steps to what was written."""
        self._join()
        self._written = [frames.map(self._stored) for frames in self._written]

    def _join(self) -> None:
        frames = DecidedFrames.cat(self._buffer)
        self._buffer = []
        self._written = [DecidedFrames.cat([*self._written, frames]) if self._written else frames]

    def _stored(self, leaf: Any) -> Any:
        if isinstance(leaf, RaggedTensor | Tensor):
            return _Rows(leaf, self._num_frames)
        return leaf if isinstance(leaf, _Rows | _Pieces) else _Pieces(leaf)


class _Rows:
    """Leaf with the rows or numbers of all frames so far, in one tensor that seldom grows.

    Args:
        first: those of the first frames.
        num_frames: number of all frames that will come.
    """

    def __init__(self, first: RaggedTensor | Tensor, num_frames: int) -> None:
        self._is_ragged, self._num_frames = isinstance(first, RaggedTensor), num_frames
        self._tensor = _as_rows(first).values[:0]
        self._lengths: list[IntArray] = []
        self._frames = self._end = 0
        self.append(first)

    def append(self, leaf: RaggedTensor | Tensor) -> None:
        """Append those of some frames, which the caller must not change afterwards."""
        rows = _as_rows(leaf)
        start = self._end
        self._end += len(rows.values)
        self._frames += len(rows.lengths)
        self._lengths.append(rows.lengths)
        if self._end > len(self._tensor):
            # Expected number of rows in the end, with some reserve. Memory that is never written to
            # costs nothing, as the system allocates by page.
            left = self._num_frames / self._frames - 1
            space = self._end + math.ceil(self._end * left * _SPARE)
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
        """Return those of all frames."""
        return RaggedTensor(self.values, self.lengths) if self._is_ragged else self.values

    def cat(self, leaves: Sequence[Any]) -> "_Rows":
        """Append the leaves behind the first one, which are these rows."""
        for leaf in leaves[1:]:
            self.append(leaf)
        return self


class _Pieces:
    """Leaf on the host, such as numbers of entities, in pieces that are joined once.

    Args:
        first: the piece of the first frames.
    """

    def __init__(self, first: Any) -> None:
        self._pieces = [first]

    def cat(self, leaves: Sequence[Any]) -> "_Pieces":
        """Append the leaves behind the first one, which are these pieces."""
        self._pieces += leaves[1:]
        return self

    def all(self) -> Any:
        """Return the leaf of all frames."""
        return cat_leaves(self._pieces[0], self._pieces)


def _as_rows(leaf: RaggedTensor | Tensor) -> RaggedTensor:
    """Return the rows of frames, of a tensor with one number for each frame as well."""
    if isinstance(leaf, RaggedTensor):
        return leaf
    return RaggedTensor(leaf, np.ones(len(leaf), np.int64))


def _num_bytes(frames: FrameData) -> int:
    """Return the size of all tensors."""
    total = 0

    def add(leaf: Any) -> Any:
        nonlocal total
        if isinstance(leaf, RaggedTensor | Tensor):
            total += _as_rows(leaf).values.nbytes
        return leaf

    frames.map(add)
    return total
