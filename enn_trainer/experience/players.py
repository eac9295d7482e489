"""Players, which choose the actions in the frames of each step, as `Decisions`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.errors import AgentError
from enn_trainer.base.policy import PPOAgent, rogue_nets
from enn_trainer.experience.frame_limits import (
    check_frame_memory,
    rows_of_frames,
    split_within_memory,
)
from enn_trainer.experience.memories import (
    NO_RECURRENCE,
    Recurrence,
    cat_states,
    recurrence_of,
    tracked_types,
)
from enn_trainer.runtime.execution import SINGLE_THREAD, ThreadPool, cost_of_entity
from enn_trainer.runtime.shards import UNCUT, Shards
from enn_trainer.runtime.spans import OFF, Spans
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.frame_data import DROPPED, FrameData, Path, rows_of
from entity_env.ragged import Ragged
from entity_env.seeding import key_of
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_env import VecObs
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.answer import NetOutput
from rogue_net.native import backend
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor


@dataclass(frozen=True)
class Decisions(FrameData):
    """Actions chosen in B frames, indexed and concatenated like the frames.

    Attributes:
        chosen: per action int64 (actors,) per frame, the choices; of continuous actions float32
            (actors, components), the samples of the policy.
        logprobs: per action float32 (actors,) per frame, log-probabilities of the choices.
        entropies: per action float32 (actors,) per frame, entropies of the policy.
        values: (B,) float32, predicted returns; NaN without a value head.
        distributions: per action the distribution of the policy; actions without one are absent.
        by_hand: per action bool (actors,) per frame, True for choices of a person; empty without a
            person. Dropped by indexing and concatenation.
        players: (B,), name of the player of each frame, "" for the agent; empty if it is the agent
            in every frame. Dropped by indexing and concatenation.
        numbers: per continuous action float32 (actors, components) per frame, the choices in units
            of the environment.
    """

    chosen: Mapping[str, RaggedTensor]
    logprobs: Mapping[str, RaggedTensor]
    entropies: Mapping[str, RaggedTensor]
    values: Tensor
    distributions: Mapping[str, ActionDistribution] = field(
        default_factory=dict, metadata=rows_of("chosen")
    )
    by_hand: Mapping[str, Ragged] = field(default_factory=dict, metadata=DROPPED)
    players: Sequence[str] = field(default=(), metadata=DROPPED)
    numbers: Mapping[str, RaggedTensor] = field(default_factory=dict)

    @staticmethod
    def of(out: NetOutput, batch: EntityBatch) -> "Decisions":
        """Create the decisions from the output of a network for these frames.

        Raises:
            AgentError: the output lacks the distribution of a continuous action.
        """

        def per_frame(rows: Mapping[str, Tensor]) -> dict[str, RaggedTensor]:
            actions = batch.actions
            return {name: RaggedTensor(t, actions[name].actors.lengths) for name, t in rows.items()}

        explicit = out.log_probs.keys() | out.distributions.keys()
        distributions = {name: out.distribution(name) for name in out.actions if name in explicit}
        numbers = [name for name, action in batch.actions.items() if action.bounds is not None]
        for name in numbers:
            shape = (len(batch.actions[name].actors.values), batch.actions[name].num_draws)
            chosen = out.actions.get(name)
            if name not in distributions or chosen is None or chosen.shape != shape:
                got = "none" if chosen is None else f"{chosen.dtype} {tuple(chosen.shape)}"
                raise AgentError(
                    f"actions[{name!r}]: expected numbers {shape} with a distribution in "
                    f"NetOutput.distributions, such as SquashedGaussian, got {got}"
                )
        if (values := out.values.get("value")) is None:
            device = next(iter(batch.features.values())).values.device
            values = torch.full((batch.num_frames,), math.nan, device=device)
        return Decisions(
            per_frame(out.actions),
            per_frame(out.logprobs),
            per_frame(out.entropies),
            values.flatten(),
            distributions,
            numbers=per_frame(
                {name: distributions[name].to_env(out.actions[name]) for name in numbers}
            ),
        )

    def missing(self, path: Path, like: Any) -> Any:
        """Return None for a missing distribution, so that concatenation drops the action's."""
        return None if path[0] == "distributions" else super().missing(path, like)

    @classmethod
    def cat(cls, parts: Sequence["Decisions"]) -> "Decisions":
        """Concatenate the frames of several parts; a single part is returned unchanged."""
        return parts[0] if len(parts) == 1 else super().cat(parts)

    def chosen_on_host(self) -> dict[str, Ragged]:
        """Return the choices as NumPy arrays for `VecEnv.act`."""
        return {
            name: Ragged(rows.values.cpu().numpy(), rows.lengths)
            for name, rows in {**self.chosen, **self.numbers}.items()
        }

    def parameters_on_host(self, actions: Mapping[str, ActionBatch]) -> dict[str, Ragged]:
        """Return the parameters of all distributions in the layout of recordings.

        Args:
            actions: the actions of these frames.

        Returns:
            Per action float32 (actors, parameters) per frame, such as the log-probabilities of all
            choices; or (actors * actees,) per frame, row by row.
        """
        parameters = {}
        for name, distribution in self.distributions.items():
            rows = distribution.to_rows(actions[name])
            parameters[name] = Ragged(rows.values.float().cpu().numpy(), rows.lengths)
        return parameters

    def shown_on_host(
        self, actions: Mapping[str, ActionBatch], action_space: Mapping[str, ActionSpace]
    ) -> dict[str, Float32Array]:
        """Return the displayed values of the distributions of all actors, see `ActionSpace.shown`.

        Args:
            actions: the actions of these frames.
            action_space: action space of the environments.
        """
        tables, chosen = {}, self.chosen_on_host()
        for name, rows in self.parameters_on_host(actions).items():
            space = action_space[name]
            mask = actions[name].on_host(space.batch_mask_type)
            if (table := space.shown(rows.values, mask, chosen[name].values)) is not None:
                tables[name] = table
        return tables


class Players(ABC):
    """Base class of the players that act in B environments.

    Attributes:
        learnt: (L,) int64, the environments to train on, with the same L in every step; None for
            all.
    """

    learnt: IntArray | None = None

    @property
    def network(self) -> PPOAgent | None:
        """Network of the learner; None without one."""
        return None

    @property
    def memory(self) -> Recurrence:
        """Recurrent state of the learner."""
        return NO_RECURRENCE

    @property
    def needs_identity(self) -> bool:
        """True if a player needs the identity of entities, `VecObs.identity`."""
        return False

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Start in the first frames of new episodes or, if `is_resumed`, of saved ones."""
        return

    @abstractmethod
    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions in the current frames.

        Args:
            obs: the frames of all environments.
            batch: the same frames on the device.
            t: a number that differs in each step, from which random numbers are derived.
        """

    def select_learnt(
        self, batch: EntityBatch, decisions: Decisions
    ) -> tuple[EntityBatch, Decisions]:
        """Select the frames of the last step that are trained on, and their decisions.

        Args:
            batch: all frames of the last step.
            decisions: the decisions in all these frames.
        """
        if self.learnt is None:
            return batch, decisions
        return batch.take(self.learnt), decisions.take(self.learnt)

    def learnt_envs(self, num_envs: int) -> IntArray:
        """Return the indices of the environments to train on, (L,) int64."""
        return np.arange(num_envs) if self.learnt is None else self.learnt

    @abstractmethod
    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the learner's values of frames without acting in them; no state changes.

        Args:
            batch: n frames, with a history if they are of an earlier step.
            environments: (n,) int64, the environment of each frame.

        Returns:
            (n,) float.
        """

    def after_step(self, obs: VecObs) -> None:
        """Record the frames after a step, in which episodes may have ended and begun."""
        return


class SeatPlayer(Players):
    """Player that acts in a subset of the environments, in games that begin and end.

    Attributes:
        draw_keys: (B,) int64, keys of the random numbers of each environment; None to use the
            index of the environment.
    """

    draw_keys: IntArray | None = None

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions in the current frames."""
        return self.act_in(obs, batch, np.arange(batch.num_frames), t)

    @abstractmethod
    def act_in(self, obs: VecObs, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in the frames of some environments.

        Args:
            obs: the frames of all environments.
            batch: the frames of `environments`, on the device.
            environments: (n,) int64, in any order.
            t: a number that differs in each step.
        """

    def reset_memory(self, padding: BoolArray) -> None:
        """Reset the recurrent state in all environments.

        Args:
            padding: (B,) bool, True where the current frame is between two episodes.
        """
        return

    def begin_games(self, environments: IntArray, games: IntArray) -> None:
        """Begin a game in some environments.

        Args:
            environments: (n,) int64.
            games: (n,) int64, number of the game in each.
        """
        return


class AgentPlayer(SeatPlayer):
    """One agent in all environments.

    Args:
        agent: the network; it is not changed.
        seed: seed of the samples, which are a function of it, the environment, `t` and the frame;
            None to take the most probable choices.
        threads: thread pool; the result does not depend on the number of threads.
        learning: True if the frames are trained on, which takes more memory than acting.
        spans: timers of the recurrent state.
        shards: groups of the environments of a run, each with separate forward passes.

    Attributes:
        restore_memory: restores the recurrent state from a save, or drops the saved state if
            called with `NO_RECURRENCE`; None without a save.
    """

    restore_memory: Callable[[Recurrence], None] | None = None

    def __init__(
        self,
        agent: PPOAgent,
        seed: int | None,
        threads: ThreadPool = SINGLE_THREAD,
        learning: bool = False,
        spans: Spans = OFF,
        shards: Shards = UNCUT,
    ) -> None:
        self.agent, self.seed, self.threads, self.learning = agent, seed, threads, learning
        self.spans, self.shards = spans, shards
        self._memory = NO_RECURRENCE

    @property
    def network(self) -> PPOAgent:
        """The agent."""
        return self.agent

    @property
    def memory(self) -> Recurrence:
        """Recurrent state of the agent, in all environments."""
        return self._memory

    @property
    def needs_identity(self) -> bool:
        """True if the agent has memory of entities."""
        return bool(tracked_types(self.agent))

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Reset the recurrent state, or restore it from a save."""
        self.reset_memory(obs.is_padding)
        if self.restore_memory is not None:
            self.restore_memory(self._memory if is_resumed else NO_RECURRENCE)

    def reset_memory(self, padding: BoolArray) -> None:
        """Reset the recurrent state in all environments."""
        self._memory = recurrence_of(self.agent, padding, self.spans)

    def set_memory(self, memory: Recurrence) -> None:
        """Set the recurrent state to that of another player of the same agent."""
        self._memory = memory

    def after_step(self, obs: VecObs) -> None:
        """Record the rewards and episode ends of a step in the recurrent state."""
        self._memory.after_step(obs)

    def act_in(self, obs: VecObs, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in frames of some environments."""
        return self.choose(batch, environments, t)

    def choose(self, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in frames of some environments.

        Raises:
            InvalidObservation: a frame has too many entities; the message names its environment.
        """
        agent, seed = self.agent, self.seed
        batch, attached = self._memory.attach(batch, environments, acts=True)
        global_envs = self._global_index(environments)
        check_frame_memory(agent, batch, global_envs, learning=self.learning)
        keys = self.sampling_keys(environments)

        def forward(frames: EntityBatch, part: slice) -> tuple[Decisions, list[Tensor | None]]:
            out = agent(frames, uniforms=_draws(frames.actions, seed, keys[part], t))
            return Decisions.of(out, frames), [out.memory, out.memory_of_values]

        results = map_microbatches(
            agent, batch, forward, self.threads, self.shards.runs(environments)
        )
        self._memory.advance(attached, cat_states([states for _, states in results]))
        return Decisions.cat([decisions for decisions, _ in results])

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the values of frames."""
        if batch.past is None:
            batch, _ = self._memory.attach(batch, environments, acts=False)
        check_frame_memory(self.agent, batch, self._global_index(environments), learning=False)

        def forward(frames: EntityBatch, part: slice) -> Tensor:
            return self.agent.values(frames)["value"].flatten()

        groups = self.shards.runs(environments)
        return torch.cat(map_microbatches(self.agent, batch, forward, self.threads, groups))

    def sampling_keys(self, environments: IntArray) -> IntArray:
        """Return the keys of the random numbers in some environments, (n,) int64."""
        global_envs = self._global_index(environments)
        return global_envs if self.draw_keys is None else self.draw_keys[environments]

    def _global_index(self, environments: IntArray) -> IntArray:
        """Convert indices of environments of this process to indices among all of the run."""
        return environments + self.shards.columns.start


def _draws(
    actions: Mapping[ActionName, ActionBatch], seed: int | None, keys: IntArray, t: int
) -> dict[ActionName, Tensor] | None:
    """Return random numbers to sample actions with; None for the most probable choices."""
    return None if seed is None else draw_uniforms(actions, seed, keys, t)


T = TypeVar("T")

LEAST_COST = 2**19
"""Minimal cost of a microbatch at one entity a frame: 512 frames at d_model 32. A smaller forward
pass costs nearly as much as this one."""
MAX_FRAMES = 1024
"""Maximal number of frames of a microbatch, unless that costs less than `LEAST_COST`, so that its
activations stay in the cache."""


def map_microbatches(
    agent: PPOAgent,
    batch: EntityBatch,
    function: Callable[[EntityBatch, slice], T],
    threads: ThreadPool,
    groups: Sequence[slice] | None = None,
) -> list[T]:
    """Apply a function to consecutive microbatches of a batch, and return the results in order.

    Args:
        agent: the network that the function calls, which determines the microbatches.
        batch: B frames.
        function: (frames of a microbatch, their slice of the B frames) -> result.
        threads: thread pool; the result does not depend on the number of threads.
        groups: slices of the B frames that microbatches must not cross; None for a single one.
    """
    slices = microbatch_slices(agent, batch, groups)
    if len(slices) == 1:  # cutting would cost as much as a tenth of a small forward pass
        return [function(batch, slices[0])]
    cost = cost_of_entity(agent)
    if cost is not None and len(equal_slices(batch.num_frames, cost)) == 1:
        threads = SINGLE_THREAD  # dispatch to threads would take longer than the microbatches
    results: list[T] = []
    threads.run([partial(function, batch.slice(part), part) for part in slices], results.append)
    return results


def microbatch_slices(
    agent: PPOAgent, batch: EntityBatch, groups: Sequence[slice] | None = None
) -> list[slice]:
    """Split frames into microbatches; the result depends on the network and the frames only."""
    slices = [*(groups or [slice(0, batch.num_frames)])]
    if (cost := cost_of_entity(agent)) is not None:
        slices = [
            slice(group.start + part.start, group.start + part.stop)
            for group in slices
            for part in equal_slices(group.stop - group.start, cost)
        ]
    if rogue_nets(agent):
        slices = split_within_memory(slices, rows_of_frames(agent, batch))
    return slices


def equal_slices(num_frames: int, cost_of_entity: int) -> list[slice]:
    """Split frames into slices of nearly equal size; their number is 1 or even.

    The slices depend on the arguments only, so that results do not depend on the machine.

    Args:
        num_frames: number of frames.
        cost_of_entity: see `cost_of_entity` in `execution.py`.
    """
    worth = num_frames * cost_of_entity // (2 * LEAST_COST)  # maximal number of pairs of slices
    count = 2 * min(worth, -(-num_frames // (2 * MAX_FRAMES))) or 1
    ends = [num_frames * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def draw_uniforms(
    actions: Mapping[str, ActionBatch], seed: int, env: IntArray, frame: int
) -> dict[str, Tensor]:
    """Draw the random numbers to sample actions with; they depend on the arguments only.

    Args:
        actions: the actors of B frames.
        seed: seed of the run and the purpose.
        env: (B,) int64, the index of the environment of each frame.
        frame: a number that differs in each frame of an environment.

    Returns:
        Per action (actors,) float32 in [0, 1); (actors, num_draws) if a choice takes several.
    """
    draws = {}
    for name, action in actions.items():
        keys, lengths = (seed, frame, key_of(name)), action.actors.lengths
        drawn = backend.draw_uniforms(keys, env, lengths)
        if action.num_draws > 1:
            extra = range(1, action.num_draws)
            further_draws = [backend.draw_uniforms((*keys, k), env, lengths) for k in extra]
            drawn = torch.stack([drawn, *further_draws], dim=1)
        draws[name] = drawn.to(action.actors.values.device, non_blocking=True)
    return draws
