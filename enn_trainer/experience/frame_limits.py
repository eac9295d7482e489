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

MAX_PAIRS = 2**25
"""Maximal number of pairs of entities in a forward pass, unless a single frame has more.

About 1 GiB with gradients and relative positions.
"""
BYTES_PER_CHOICE = 24
"""Bytes for each pair of actor and actee: scores, log-probabilities, mask, gradients."""
MEMORY_FRACTION = 1 / 4
"""Maximal share of the memory of the machine or GPU for one frame.

Two frames may be computed at once, in addition to the memory that the allocator caches.
"""


def rows_of_frames(agent: Any, batch: EntityBatch) -> IntArray:
    """Return the number of rows in the attention of each frame, (B,) int64.

    The rows are the entities, and for a network with memory also the frame and remembered entities
    that are absent.

    Args:
        agent: the network.
        batch: B frames, with a history if the network has memory.
    """
    entities = rows = batch.entities_of_frames()
    past = batch.past
    for net in rogue_nets(agent):
        if net.remembering is not None:
            absent = 0 if past is None else past.absent.lengths
            rows = np.maximum(rows, entities + absent + net.remembering.frame)
        past = None if past is None else past.value_past
    return rows


def microbatches(
    entities: IntArray, size: int | None, max_entities: int | None, pairs: IntArray | None = None
) -> Iterator[slice]:
    """Split consecutive frames into microbatches that are as long as the limits allow.

    A microbatch has at most `MAX_PAIRS` pairs of rows. A frame that exceeds a limit by itself
    becomes a microbatch.

    The limits do not apply to minibatches, which have a fixed number of frames: with a limit on
    entities, frames with many entities would be averaged over fewer frames and weigh more.

    Args:
        entities: (F,) int64, number of entities of each frame.
        size: maximal number of frames of a microbatch; None for no limit.
        max_entities: maximal number of entities of a microbatch; None for no limit.
        pairs: (F,) int64, pairs of rows in the attention of each frame; None for `entities**2`.

    Yields:
        Consecutive slices of the frames.
    """
    # Cumulative sums, and the largest difference within a microbatch.
    limits = [(np.cumsum(entities**2 if pairs is None else pairs), MAX_PAIRS)]
    if max_entities is not None:
        limits.append((np.cumsum(entities), max_entities))
    start = 0
    while start < len(entities):
        stop = len(entities) if size is None else min(start + size, len(entities))
        for sums, limit in limits:
            previous = int(sums[start - 1]) if start else 0
            stop = min(stop, int(np.searchsorted(sums, previous + limit, side="right")))
        stop = max(stop, start + 1)
        yield slice(start, stop)
        start = stop


def split_within_memory(slices: list[slice], rows: IntArray) -> list[slice]:
    """Split slices further where they have more than `MAX_PAIRS` pairs of rows.

    Args:
        slices: slices of consecutive frames.
        rows: (F,) int64, number of rows in the attention of each frame.
    """
    if len(rows) * int(rows.max(initial=0)) ** 2 <= MAX_PAIRS:
        return slices
    return [
        slice(outer.start + inner.start, outer.start + inner.stop)
        for outer in slices
        for inner in microbatches(rows[outer], None, None)
    ]


def check_frame_memory(
    agent: Any, batch: EntityBatch, env: npt.NDArray[np.integer[Any]], *, learning: bool
) -> None:
    """Raise if the attention of a frame needs more than its share of memory.

    Args:
        agent: the network.
        batch: B frames, with a history if the network has memory.
        env: (B,) int, index of the environment of each frame.
        learning: True to include the memory of the backward pass.

    Raises:
        InvalidObservation: a frame has too many entities; the message names the environment.
    """
    # Most frames are small enough for any machine.
    nets = rogue_nets(agent)
    rows = rows_of_frames(agent, batch)
    if not nets or int(rows.max(initial=0)) ** 2 <= MAX_PAIRS:
        return

    # Pairs of rows, and pairs of actor and actee.
    allowed = memory_of(next(nets[0].parameters()).device) * MEMORY_FRACTION
    pair_bytes = max(bytes_per_pair(net, learning) for net in nets)
    needed = pair_bytes * rows**2
    for action in batch.actions.values():
        if action.actees is not None:
            needed = needed + BYTES_PER_CHOICE * action.actors.lengths * action.actees.lengths

    # Check the largest frame.
    worst = int(needed.argmax())
    if needed[worst] > allowed:
        entities = int(batch.entities_of_frames()[worst])
        memory_rows, memory_fix = "", ""
        if rows[worst] > entities:
            memory_rows = f" and {rows[worst] - entities:,} of memory"
            memory_fix = "a smaller net.memory.keep_absent, "
        raise invalid_in(
            int(env[worst]),
            f"{entities:,} entities{memory_rows} in one frame: their pairs take about "
            f"{needed[worst] / 2**30:,.1f} GiB, expected at most {allowed / 2**30:,.1f} GiB on "
            "this machine; show fewer entities (those near the actors, say), use fewer layers or "
            f"heads, {memory_fix}or net.pooling, which needs no attention",
        )


def bytes_per_pair(net: RogueNet, learning: bool) -> int:
    """Estimate the bytes that attention takes for each pair of entities of a frame.

    The backward pass stores the weights of every head and layer, and gradients of one layer.
    """
    config = net.config
    if config.pooling is not None:
        return 0
    layers = config.n_layer + (0 if config.memory is None else config.memory.n_layer)
    size = 4 * config.n_head * (layers + 1 if learning else 1)
    if config.relpos_encoding is not None:
        relpos = config.relpos_encoding
        axes = len(relpos.position_features)
        corners = 2**axes if relpos.interpolate else 1
        projected = relpos.key_relpos_projection or relpos.value_relpos_projection
        # Row and weight of each corner of a cell; with projections also their input positions.
        size += 8 * corners + (24 * (axes + 2) if projected else 0)
    return size


@cache
def memory_of(device: torch.device) -> int:
    """Return the memory of a GPU, or the memory available to this process, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        sizes.append(soft)
    with suppress(OSError, ValueError):  # no control group, or one without a limit ("max")
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(sizes)
