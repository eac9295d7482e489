"""Players: they choose the actions in the frames of each step, as `Decisions`."""

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
from enn_trainer.experience.frame_limits import check_frame_memory, rows_of_frames, within_memory
from enn_trainer.experience.memories import (
    NO_RECURRENCE,
    Recurrence,
    cat_states,
    recurrence_of,
    tracked_types,
)
from enn_trainer.runtime.execution import ONE_LANE, Lanes, cost_of_entity
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
    """The choices in B frames; they are taken, joined and put in order like the frames.

    Attributes:
        chosen: per action int64 (actors,) per frame, the choices; float32 (actors, components) of
            numbers, as they were drawn.
        logprobs: per action float32 (actors,) per frame, of the choices.
        entropies: per action float32 (actors,) per frame, of all that could be chosen.
        values: (B,) float32, the expected returns; NaN of a network without values.
        distributions: per action, over the choices of all actors, where there is one.
        by_hand: per action bool (actors,) per frame, True for choices that a person made; empty if
            nobody could. Taken and joined decisions do not keep it.
        players: (B,), the player of each frame by name, "" for the agent; empty if it is the agent
            everywhere. Taken and joined decisions do not keep it.
        numbers: per action of numbers float32 (actors, components) per frame, the choices in units
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
        """Return the decisions in the output of a network for these frames.

        Raises:
            AgentError: the network does not know an action of numbers.
        """

        def of_frames(rows: Mapping[str, Tensor]) -> dict[str, RaggedTensor]:
            actions = batch.actions
            return {name: RaggedTensor(t, actions[name].actors.lengths) for name, t in rows.items()}

        known = out.log_probs.keys() | out.distributions.keys()
        distributions = {name: out.distribution(name) for name in out.actions if name in known}
        numbers = [name for name, action in batch.actions.items() if action.bounds is not None]
        for name in numbers:
            shape = (len(batch.actions[name].actors.values), batch.actions[name].num_draws)
            chosen = out.actions.get(name)
            if name not in distributions or chosen is None or chosen.shape != shape:
                got = "none" if chosen is None else f"{chosen.dtype} {tuple(chosen.shape)}"
                raise AgentError(
                    f"actions[{name!r}]: expected numbers {shape}, with their distribution in "
                    f"NetOutput.distributions, such as GaussianNumbers, got {got}"
                )
        if (values := out.values.get("value")) is None:
            device = next(iter(batch.features.values())).values.device
            values = torch.full((batch.num_frames,), math.nan, device=device)
        return Decisions(
            of_frames(out.actions),
            of_frames(out.logprobs),
            of_frames(out.entropies),
            values.flatten(),
            distributions,
            numbers=of_frames(
                {name: distributions[name].to_env(out.actions[name]) for name in numbers}
            ),
        )

    def missing(self, path: Path, like: Any) -> Any:
        """Return no distribution, if one is not given: then those of all pieces are left out."""
        return None if path[0] == "distributions" else super().missing(path, like)

    @classmethod
    def cat(cls, pieces: Sequence["Decisions"]) -> "Decisions":
        """Concatenate the frames of several pieces; one piece stays as it is."""
        return pieces[0] if len(pieces) == 1 else super().cat(pieces)

    def chosen_on_host(self) -> dict[str, Ragged]:
        """Return the choices in the form that `VecEnv.act` takes."""
        return {
            name: Ragged(rows.values.cpu().numpy(), rows.lengths)
            for name, rows in {**self.chosen, **self.numbers}.items()
        }

    def parameters_on_host(self, actions: Mapping[str, ActionBatch]) -> dict[str, Ragged]:
        """Return the parameters of all distributions, as recordings have them.

        Args:
            actions: of these frames.

        Returns:
            Per action float32 (actors, parameters) per frame, such as the log-probabilities of all
            choices; or (actors * actees,) per frame, row by row.
        """
        found = {}
        for name, distribution in self.distributions.items():
            rows = distribution.to_rows(actions[name])
            found[name] = Ragged(rows.values.float().cpu().numpy(), rows.lengths)
        return found

    def shown_on_host(
        self, actions: Mapping[str, ActionBatch], action_space: Mapping[str, ActionSpace]
    ) -> dict[str, Float32Array]:
        """Return what people see of the distributions of all actors, see `ActionSpace.shown`.

        Args:
            actions: of these frames.
            action_space: the actions.
        """
        found, chosen = {}, self.chosen_on_host()
        for name, rows in self.parameters_on_host(actions).items():
            space = action_space[name]
            mask = actions[name].on_host(space.batch_mask_type)
            if (shown := space.shown(rows.values, mask, chosen[name].values)) is not None:
                found[name] = shown
        return found


class Players(ABC):
    """Players who act in the frames of B environments, step by step.

    Attributes:
        learnt: (L,) int64, the environments whose frames are learnt from, as many in every step;
            None for all.
    """

    learnt: IntArray | None = None

    @property
    def network(self) -> PPOAgent | None:
        """Network of the learner; None if it has none."""
        return None

    @property
    def memory(self) -> Recurrence:
        """Recurrent state of the learner."""
        return NO_RECURRENCE

    @property
    def identifies(self) -> bool:
        """True if a player needs the numbers of entities, `VecObs.identity`."""
        return False

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Take the first frames, of new episodes or, if `is_resumed`, of those of a save."""
        return

    @abstractmethod
    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions in the current frames.

        Args:
            obs: the frames of all environments.
            batch: the same on the device.
            t: a number that earlier steps did not have, of which random choices are a function.
        """

    def learnt_from(
        self, batch: EntityBatch, decisions: Decisions
    ) -> tuple[EntityBatch, Decisions]:
        """Return those frames of the last step that are learnt from, and the decisions in them.

        Args:
            batch: all frames of that step.
            decisions: in all of these.
        """
        if self.learnt is None:
            return batch, decisions
        return batch.take(self.learnt), decisions.take(self.learnt)

    def learnt_among(self, num_envs: int) -> IntArray:
        """Return the environments whose frames are learnt from, (L,) int64, of all."""
        return np.arange(num_envs) if self.learnt is None else self.learnt

    @abstractmethod
    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the learner's values of frames in which nobody acts, and change nothing.

        Args:
            batch: n frames, with a past if they are of an earlier step.
            environments: (n,) int64, their environments.

        Returns:
            (n,) float.
        """

    def after_step(self, obs: VecObs) -> None:
        """Take the frames after a step: episodes may have ended and begun."""
        return


class SeatPlayer(Players):
    """Player that can choose in some of the frames of a step, in games that begin and end.

    Attributes:
        draw_keys: (B,) int64, what random choices of a network are a function of in place of the
            environment; None for the environment.
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
            batch: those of `environments`, on the device.
            environments: (n,) int64, in any order.
            t: a number that earlier steps did not have.
        """

    def begin_memory(self, padding: BoolArray) -> None:
        """Remember nothing in any environment.

        Args:
            padding: (B,) bool, those whose current frame is between two episodes.
        """
        return

    def begin_games(self, environments: IntArray, games: IntArray) -> None:
        """Begin a game in some environments.

        Args:
            environments: (n,) int64.
            games: (n,) int64, the number of the game in each.
        """
        return


class AgentPlayer(SeatPlayer):
    """One agent in all environments.

    Args:
        agent: the network; it is not changed.
        seed: seed of the choices, which are a function of it, the environment, `t` and the frame;
            None to take the most probable choices.
        lanes: threads; the result does not depend on their number.
        learning: True if the frames are learnt from, which takes more memory than acting.
        spans: timers of the recurrent state.
        shards: groups of the environments of a run, each of which has forward passes of its own.

    Attributes:
        restore_memory: fills the recurrent state of a player that goes on by a save, and forgets
            the save if it gets `NO_RECURRENCE`; None without a save.
    """

    restore_memory: Callable[[Recurrence], None] | None = None

    def __init__(
        self,
        agent: PPOAgent,
        seed: int | None,
        lanes: Lanes = ONE_LANE,
        learning: bool = False,
        spans: Spans = OFF,
        shards: Shards = UNCUT,
    ) -> None:
        self.agent, self.seed, self.lanes, self.learning = agent, seed, lanes, learning
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
    def identifies(self) -> bool:
        """True if the agent remembers entities."""
        return bool(tracked_types(self.agent))

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Remember nothing, or what the save remembers."""
        self.begin_memory(obs.is_padding)
        if self.restore_memory is not None:
            self.restore_memory(self._memory if is_resumed else NO_RECURRENCE)

    def begin_memory(self, padding: BoolArray) -> None:
        """Remember nothing in any environment."""
        self._memory = recurrence_of(self.agent, padding, self.spans)

    def take_memory(self, memory: Recurrence) -> None:
        """Go on with the memory of another player of the same agent."""
        self._memory = memory

    def after_step(self, obs: VecObs) -> None:
        """Take the rewards, and forget episodes that ended once the next one is acted in."""
        self._memory.after_step(obs)

    def act_in(self, obs: VecObs, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in frames of some environments."""
        return self.choose(batch, environments, t)

    def choose(self, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in frames of some environments.

        Raises:
            InvalidObservation: a frame has too many entities; the message names the environment.
        """
        agent, seed = self.agent, self.seed
        batch, attached = self._memory.attach(batch, environments, acts=True)
        of_run = self._of_run(environments)
        check_frame_memory(agent, batch, of_run, learning=self.learning)
        keys = self.keys_of_draws(environments)

        def of_piece(some: EntityBatch, piece: slice) -> tuple[Decisions, list[Tensor | None]]:
            out = agent(some, uniforms=_draws(some.actions, seed, keys[piece], t))
            return Decisions.of(out, some), [out.memory, out.memory_of_values]

        pieces = in_pieces(agent, batch, of_piece, self.lanes, self.shards.runs(environments))
        self._memory.advance(attached, cat_states([states for _, states in pieces]))
        return Decisions.cat([decisions for decisions, _ in pieces])

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the values of frames."""
        if batch.past is None:
            batch, _ = self._memory.attach(batch, environments, acts=False)
        check_frame_memory(self.agent, batch, self._of_run(environments), learning=False)

        def of_piece(some: EntityBatch, piece: slice) -> Tensor:
            return self.agent.values(some)["value"].flatten()

        groups = self.shards.runs(environments)
        return torch.cat(in_pieces(self.agent, batch, of_piece, self.lanes, groups))

    def keys_of_draws(self, environments: IntArray) -> IntArray:
        """Return what the random choices in some environments are a function of, (n,) int64."""
        of_run = self._of_run(environments)
        return of_run if self.draw_keys is None else self.draw_keys[environments]

    def _of_run(self, environments: IntArray) -> IntArray:
        """Return the numbers of environments of this process among all of the run."""
        return environments + self.shards.columns.start


def _draws(
    actions: Mapping[ActionName, ActionBatch], seed: int | None, keys: IntArray, t: int
) -> dict[ActionName, Tensor] | None:
    """Return random numbers to sample with; None for the most probable choices."""
    return None if seed is None else draw_uniforms(actions, seed, keys, t)


T = TypeVar("T")

LEAST_COST = 2**19
"""Minimal cost of a piece, counting one entity a frame: 512 frames at d_model 32. A smaller forward
pass costs nearly as much as this one."""
MOST_FRAMES = 1024
"""Maximal number of frames of a piece, unless that costs less than `LEAST_COST`, so that its
activations stay in the cache."""


def in_pieces(
    agent: PPOAgent,
    batch: EntityBatch,
    of_piece: Callable[[EntityBatch, slice], T],
    lanes: Lanes,
    groups: Sequence[slice] | None = None,
) -> list[T]:
    """Apply a function to consecutive pieces of a batch, and return the results in order.

    Args:
        agent: the network that the function calls, by which the batch is cut.
        batch: B frames.
        of_piece: takes the frames of a piece, and the slice that they are of the B frames.
        lanes: threads; the result does not depend on their number.
        groups: consecutive frames, of which a piece has those of one; None for one of all.
    """
    pieces = pieces_of(agent, batch, groups)
    if len(pieces) == 1:  # cutting would cost as much as a tenth of a small forward pass
        return [of_piece(batch, pieces[0])]
    cost = cost_of_entity(agent)
    if cost is not None and len(consecutive(batch.num_frames, cost)) == 1:
        lanes = ONE_LANE  # passes to threads would take longer than the pieces
    results: list[T] = []
    lanes.run([partial(of_piece, batch.slice(piece), piece) for piece in pieces], results.append)
    return results


def pieces_of(
    agent: PPOAgent, batch: EntityBatch, groups: Sequence[slice] | None = None
) -> list[slice]:
    """Cut frames into the pieces of forward passes, a function of the network and the frames."""
    pieces = [*(groups or [slice(0, batch.num_frames)])]
    if (cost := cost_of_entity(agent)) is not None:
        pieces = [
            slice(group.start + piece.start, group.start + piece.stop)
            for group in pieces
            for piece in consecutive(group.stop - group.start, cost)
        ]
    if rogue_nets(agent):
        pieces = within_memory(pieces, rows_of_frames(agent, batch))
    return pieces


def consecutive(num_frames: int, cost_of_entity: int) -> list[slice]:
    """Cut frames into pieces of nearly equal size; their number is 1 or even.

    The pieces are a function of the arguments alone, so that results do not depend on the machine.

    Args:
        num_frames: number of frames.
        cost_of_entity: see `lanes.py`.
    """
    worth = num_frames * cost_of_entity // (2 * LEAST_COST)  # maximal number of pairs of pieces
    count = 2 * min(worth, -(-num_frames // (2 * MOST_FRAMES))) or 1
    ends = [num_frames * i // count for i in range(count + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def draw_uniforms(
    actions: Mapping[str, ActionBatch], seed: int, env: IntArray, frame: int
) -> dict[str, Tensor]:
    """Draw the random numbers to sample actions with; a function of the arguments alone.

    Args:
        actions: the actors of B frames.
        seed: seed of the run and the purpose.
        env: (B,) int64, the index of the environment of each frame.
        frame: a number that earlier frames of the environments did not have.

    Returns:
        Per action (actors,) float32 in [0, 1); (actors, num_draws) where a choice takes several.
    """
    draws = {}
    for name, action in actions.items():
        keys, lengths = (seed, frame, key_of(name)), action.actors.lengths
        drawn = backend.draw_uniforms(keys, env, lengths)
        if action.num_draws > 1:
            further = range(1, action.num_draws)
            others = [backend.draw_uniforms((*keys, k), env, lengths) for k in further]
            drawn = torch.stack([drawn, *others], dim=1)
        draws[name] = drawn.to(action.actors.values.device, non_blocking=True)
    return draws
