"""Forward passes of an agent over many frames, computed in lanes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent, chosen_on_host, draw_uniforms
from enn_trainer.frame_memory import rogue_nets, within_memory
from enn_trainer.lanes import Lanes, cost_of_entity
from entity_env.ragged import Ragged
from entity_env.recording.record import RecordingVecEnv
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import VecEnv, VecObs
from rogue_net.answer import NetOutput, output_of
from rogue_net.distributions import Decision
from rogue_net.ragged import ActionBatch, EntityBatch

T = TypeVar("T")

LEAST_COST = 2**19
"""Minimal cost of a piece, counting one entity a frame: 512 frames at d_model 32. A smaller forward
pass costs nearly as much as this one."""
MOST_FRAMES = 1024
"""Maximal number of frames of a piece, unless that costs less than `LEAST_COST`, so that its
activations stay in the cache."""


def choose(
    agent: PPOAgent,
    batch: EntityBatch,
    env: npt.NDArray[np.int64],
    frame: int,
    seed: int | None,
    lanes: Lanes,
) -> NetOutput:
    """Choose actions in B frames.

    Args:
        agent: the network.
        batch: the frames.
        env: (B,) int64, the index of the environment of each frame.
        frame: a number that earlier frames of the environments did not have.
        seed: seed of the choices, which are a function of it, `env` and `frame`; None to take the
            most probable choices.
        lanes: threads; the result does not depend on their number.
    """

    def of_piece(some: EntityBatch, piece: slice) -> NetOutput:
        draws = None if seed is None else draw_uniforms(some.actions, seed, env[piece], frame)
        return agent(some, uniforms=draws)

    return joined(_of_pieces(agent, batch, of_piece, lanes))


def values_of(agent: PPOAgent, batch: EntityBatch, lanes: Lanes) -> Tensor:
    """Return the values of B frames, (B,) float."""

    def of_piece(some: EntityBatch, piece: slice) -> Tensor:
        return agent.values(some)["value"].flatten()

    return torch.cat(_of_pieces(agent, batch, of_piece, lanes))


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


def joined(outs: Sequence[NetOutput]) -> NetOutput:
    """Concatenate the outputs for pieces of a batch; attention is left out."""
    if len(outs) == 1:
        return outs[0]

    def cat(tensors: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([one[name] for one in tensors]) for name in tensors[0]}

    decisions = {}
    for name in outs[0].actions:
        distributions = [out.distribution(name) for out in outs]
        decisions[name] = Decision(
            torch.cat([out.actions[name] for out in outs]),
            torch.cat([out.logprobs[name] for out in outs]),
            torch.cat([out.entropies[name] for out in outs]),
            distributions[0].cat(distributions),
        )
    return output_of(decisions, cat([out.values for out in outs]))


def _of_pieces(
    agent: PPOAgent,
    batch: EntityBatch,
    of_piece: Callable[[EntityBatch, slice], T],
    lanes: Lanes,
) -> list[T]:
    """Apply a function to consecutive pieces of a batch, and return the results in order."""
    pieces = [slice(0, batch.num_frames)]
    if (cost := cost_of_entity(agent)) is not None:
        pieces = consecutive(batch.num_frames, cost)
    if rogue_nets(agent):
        pieces = within_memory(pieces, batch.entities_of_frames())
    if len(pieces) == 1:  # cutting would cost as much as a tenth of a small forward pass
        return [of_piece(batch, pieces[0])]
    results: list[T] = []
    lanes.run([partial(of_piece, batch.slice(piece), piece) for piece in pieces], results.append)
    return results


def step(
    envs: VecEnv, obs_space: ObsSpace, out: NetOutput, batch: EntityBatch, run_step: int
) -> VecObs:
    """Take the step that a network chose; a recording gets all of its decisions.

    Args:
        envs: B environments.
        obs_space: the features to show.
        out: the output of the network for their current frames.
        batch: these frames.
        run_step: the number of frames of the run before this step.
    """
    actions = chosen_on_host(out, batch)
    if not isinstance(envs, RecordingVecEnv):
        return envs.act(actions, obs_space)
    return envs.act(
        actions,
        obs_space,
        # In double precision, so that the logarithm gives back the log-probability exactly.
        probs={
            name: Ragged(p.double().exp().cpu().numpy(), batch.actions[name].actors.lengths)
            for name, p in out.logprobs.items()
        },
        logits={name: _parameters(out, name, a) for name, a in batch.actions.items()}
        if envs.keep_logits
        else None,
        values=out.values["value"].flatten().float().cpu().numpy(),
        run_step=run_step,
    )


def _parameters(out: NetOutput, name: str, action: ActionBatch) -> Ragged:
    """Return the parameters of a distribution, as recordings have them."""
    rows = out.distribution(name).to_rows(action)
    return Ragged(rows.values.float().cpu().numpy(), rows.lengths)
