"""Forward passes of an agent over many frames, computed in lanes; and random draws for choices."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.experience.frame_memory import rogue_nets, within_memory
from enn_trainer.lanes import Lanes, cost_of_entity
from entity_env.seeding import key_of
from rogue_net.native import backend
from rogue_net.ragged import ActionBatch, EntityBatch

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
) -> list[T]:
    """Apply a function to consecutive pieces of a batch, and return the results in order.

    Args:
        agent: the network that the function calls, by which the batch is cut.
        batch: B frames.
        of_piece: takes the frames of a piece, and the slice that they are of the B frames.
        lanes: threads; the result does not depend on their number.
    """
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
    actions: Mapping[str, ActionBatch], seed: int, env: npt.NDArray[np.int64], frame: int
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
            further = [(*keys, k) for k in range(1, action.num_draws)]
            others = [backend.draw_uniforms(one, env, lengths) for one in further]
            drawn = torch.stack([drawn, *others], dim=1)
        draws[name] = drawn.to(action.actors.values.device, non_blocking=True)
    return draws
