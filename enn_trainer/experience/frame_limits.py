"""Memory limits for frames with many entities: attention is quadratic in their number."""

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.base.policy import rogue_nets
from entity_env.arrays import IntArray
from entity_env.errors import invalid_in
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet

MOST_PAIRS = 2**25
"""Maximal number of pairs of entities in a forward pass, unless a single frame has more.

About 1 GiB with gradients and relative positions.
"""
BYTES_OF_CHOICE = 24
"""Bytes for each pair of actor and actee: scores, log-probabilities, mask, gradients."""
SHARE_OF_MEMORY = 1 / 4
"""Maximal share of the memory of the machine or GPU for one frame.

Two frames may be computed at once, beside the memory that the allocator caches.
"""


def rows_of_frames(agent: Any, batch: EntityBatch) -> IntArray:
    """Return the number of rows of each frame that attend to each other, (B,) int64.

    These are its entities, and for a network with memory also the row of the frame and those of
    entities that are remembered and absent.

    Args:
        agent: the network.
        batch: B frames, with a past if the network remembers them.
    """
    entities = rows = batch.entities_of_frames()
    past = batch.past
    for net in rogue_nets(agent):
        if net.remembering is not None:
            absent = 0 if past is None else past.absent.lengths
            rows = np.maximum(rows, entities + absent + net.remembering.frame)
        past = None if past is None else past.of_values
    return rows


def microbatches(
    entities: IntArray, size: int | None, max_entities: int | None, pairs: IntArray | None = None
) -> Iterator[slice]:
    """Cut frames, in order, into pieces that are as long as the limits allow.

    A piece has at most `MOST_PAIRS` pairs of rows. A frame that exceeds a limit by itself is a
    piece of its own.

    The limits are for pieces only. A minibatch always has a fixed number of frames: with a limit on
    its entities, frames with many entities would be averaged with fewer others and weigh more.

    Args:
        entities: (F,) int64, number of entities of each frame.
        size: frames of a piece at most; None for no limit.
        max_entities: entities of a piece at most; None for no limit.
        pairs: (F,) int64, the pairs of rows that attend to each other; of entities if None.

    Yields:
        Consecutive slices of the frames.
    """
    # Cumulative sums, and the largest difference within a piece.
    limits = [(np.cumsum(entities**2 if pairs is None else pairs), MOST_PAIRS)]
    if max_entities is not None:
        limits.append((np.cumsum(entities), max_entities))
    start = 0
    while start < len(entities):
        stop = len(entities) if size is None else min(start + size, len(entities))
        for sums, most in limits:
            before = int(sums[start - 1]) if start else 0
            stop = min(stop, int(np.searchsorted(sums, before + most, side="right")))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def within_memory(pieces: list[slice], rows: IntArray) -> list[slice]:
    """Return the pieces, cut further where they have more than `MOST_PAIRS` pairs of rows.

    Args:
        pieces: slices of consecutive frames.
        rows: (F,) int64, number of rows of each frame that attend to each other.
    """
    if len(rows) * int(rows.max(initial=0)) ** 2 <= MOST_PAIRS:
        return pieces
    return [
        slice(piece.start + part.start, piece.start + part.stop)
        for piece in pieces
        for part in microbatches(rows[piece], None, None)
    ]


def check_frame_memory(
    agent: Any, batch: EntityBatch, env: npt.NDArray[np.integer[Any]], *, learning: bool
) -> None:
    """Raise if the pairs of entities of a frame need more memory than one frame may take.

    Args:
        agent: the network.
        batch: B frames, with a past if the network remembers them.
        env: (B,) int, index of the environment of each frame.
        learning: True to include the memory of the backward pass.

    Raises:
        InvalidObservation: a frame has too many entities; the message names the environment.
    """
    # Most frames are small enough for any machine.
    nets = rogue_nets(agent)
    rows = rows_of_frames(agent, batch)
    if not nets or int(rows.max(initial=0)) ** 2 <= MOST_PAIRS:
        return

    # Pairs of rows, and pairs of actor and actee.
    allowed = memory_of(next(nets[0].parameters()).device) * SHARE_OF_MEMORY
    of_pair = max(bytes_of_pair(net, learning) for net in nets)
    needed = of_pair * rows**2
    for action in batch.actions.values():
        if action.actees is not None:
            needed = needed + BYTES_OF_CHOICE * action.actors.lengths * action.actees.lengths

    # Check the largest frame.
    most = int(needed.argmax())
    if needed[most] > allowed:
        entities = int(batch.entities_of_frames()[most])
        further, forget = "", ""
        if rows[most] > entities:
            further = f" and {rows[most] - entities:,} of memory"
            forget = "a smaller net.memory.keep_absent, "
        raise invalid_in(
            int(env[most]),
            f"{entities:,} entities{further} in one frame: their pairs take about "
            f"{needed[most] / 2**30:,.1f} GiB, expected at most {allowed / 2**30:,.1f} GiB on this "
            "machine; show fewer entities (those near the actors, say), use fewer layers or heads, "
            f"{forget}or net.pooling, which needs no attention",
        )


def bytes_of_pair(net: RogueNet, learning: bool) -> int:
    """Estimate the bytes that attention takes for each pair of entities of a frame.

    The backward pass keeps the weights of every head and layer, and their gradients in one layer.
    """
    config = net.config
    if config.pooling is not None:
        return 0
    layers = config.n_layer + (0 if config.memory is None else config.memory.n_layer)
    of_pair = 4 * config.n_head * (layers + 1 if learning else 1)
    if config.relpos_encoding is not None:
        relpos = config.relpos_encoding
        axes = len(relpos.position_features)
        corners = 2**axes if relpos.interpolate else 1
        projected = relpos.key_relpos_projection or relpos.value_relpos_projection
        # Row and weight of each corner of a cell; with projections also their input positions.
        of_pair += 8 * corners + (24 * (axes + 2) if projected else 0)
    return of_pair


@cache
def memory_of(device: torch.device) -> int:
    """Return the memory of a GPU, or the memory that this process may use, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        sizes.append(soft)
    with suppress(OSError, ValueError):  # no control group, or one without a limit ("max")
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes)
