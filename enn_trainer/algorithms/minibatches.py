"""Minibatches and microbatches of frames, and the gradient of a sum of losses over them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.base.group import Group, tree_sum
from enn_trainer.experience.frame_limits import microbatches
from enn_trainer.runtime.exchange import are_gathered
from enn_trainer.runtime.execution import Lanes
from enn_trainer.runtime.spans import OFF, Spans
from entity_env.arrays import IntArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.seeding import derive_seed

PIECE_ENTITIES = 8192
"""Entities of a piece at most, so that its activations stay in the cache."""
LEAST_COST = 3 * 2**18
"""Cost of a piece at least, in entities times `cost_of_entity`; below it, overhead dominates.

It is that of 768 entities of d_model 32.
"""
_ALIGNED = 64
"""Elements at multiples of which a parameter begins, as reductions depend on the alignment."""


def minibatches(
    num_frames: int, size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[IntArray]:
    """Yield the frames of each minibatch, so that every frame occurs once per epoch.

    Args:
        num_frames: number of frames of the rollout.
        size: frames of a minibatch; the last one of an epoch may have fewer.
        epochs: number of epochs.
        seed: random seed of the permutations.
        shuffle: False to keep the frames in order.

    Yields:
        (frames,) int64, indices.
    """
    for epoch in range(epochs):
        order = np.arange(num_frames)
        if shuffle:
            order = np.random.default_rng(derive_seed(seed, epoch)).permutation(num_frames)
        for start in range(0, num_frames, size):
            yield order[start : start + size]


def minibatches_of_units(
    units: Sequence[IntArray], size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[list[IntArray]]:
    """Yield the units of each minibatch, so that every frame occurs once per epoch.

    Args:
        units: frames that stay together, (frames,) int64 each.
        size: frames of a minibatch; those with a shorter unit, and the last one of an epoch, may
            have fewer.
        epochs: number of epochs.
        seed: random seed of the permutations.
        shuffle: False to keep the units in order.

    Yields:
        The units.
    """
    lengths = np.array([len(unit) for unit in units], np.int64)
    for numbers in minibatches_by_length(lengths, size, epochs, seed, shuffle):
        yield [units[i] for i in numbers.tolist()]


def minibatches_by_length(
    lengths: IntArray, size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[IntArray]:
    """Yield the numbers of the units of each minibatch; see `minibatches_of_units`.

    Args:
        lengths: (units,) int64, frames of each unit.
        size: frames of a minibatch.
        epochs: number of epochs.
        seed: random seed of the permutations.
        shuffle: False to keep the units in order.

    Yields:
        (units of the minibatch,) int64.
    """
    for epoch in range(epochs):
        order = np.arange(len(lengths))
        if shuffle:
            order = np.random.default_rng(derive_seed(seed, epoch)).permutation(len(lengths))
        ends, start = np.cumsum(lengths[order]), 0
        while start < len(order):
            before = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, before + size, side="right"))
            yield order[start : max(stop, start + 1)]
            start = max(stop, start + 1)


def pieces_of_units(
    lengths: IntArray,
    entities: IntArray,
    pairs: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
) -> list[IntArray]:
    """Cut a minibatch between its units, as `pieces` does between frames.

    Args:
        lengths: (units,) int64, frames of each unit; they are consecutive in the minibatch.
        entities: (F,) int64, number of entities of each frame.
        pairs: (F,) int64, pairs of its rows that attend to each other.
        size: frames of a piece at most; None for no limit.
        max_entities: entities of a piece at most.
        cost_of_entity: see `pieces`.

    Returns:
        Positions in the minibatch, (frames,) int64 each.
    """
    cuts = pieces_by_length(lengths, entities, pairs, size, max_entities, cost_of_entity)
    starts = exclusive_cumsum(lengths)
    return [row_indices(starts[cut], lengths[cut]) for cut in cuts]


def pieces_by_length(
    lengths: IntArray,
    entities: IntArray,
    pairs: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
) -> list[IntArray]:
    """Return the numbers of the units of each piece; the arguments are `pieces_of_units`'s."""
    if not len(lengths):
        return []
    starts = exclusive_cumsum(lengths)
    of_units, pairs_of_units = (np.add.reduceat(counts, starts) for counts in (entities, pairs))
    units = None if size is None else max(1, size // int(lengths.max()))
    return pieces(
        of_units,
        units,
        max_entities,
        cost_of_entity,
        pairs_of_units,
        is_coarse=bool((lengths > 1).any()),
    )


def pieces(
    entities: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
    pairs: IntArray | None = None,
    is_coarse: bool = False,
) -> list[IntArray]:
    """Cut a minibatch into pieces that can be computed in parallel.

    The cut depends on the minibatch alone, not on the number of lanes. Pieces for lanes have frames
    with similar numbers of entities and about the same cost; several pieces are even in number.

    Args:
        entities: (F,) int64, number of entities of each frame.
        size: frames of a piece at most; None for no limit.
        max_entities: entities of a piece at most; see `microbatches`.
        cost_of_entity: see `lanes.cost_of_entity`; None to cut by these limits only.
        pairs: (F,) int64, pairs of rows that attend to each other; of entities if None.
        is_coarse: True for units of which there are few: cuts are the nearest ones to equal costs.

    Returns:
        Positions in the minibatch, (frames,) int64 each.
    """
    pairs = entities**2 if pairs is None else pairs
    if not len(entities):
        return []
    if cost_of_entity is None:
        everyone = np.arange(len(entities))
        return [everyone[piece] for piece in microbatches(entities, size, max_entities, pairs)]

    # Sort frames by number of entities, and cut where the costs of the pieces are about equal.
    order = np.argsort(entities, kind="stable")
    costs = np.cumsum(entities[order] + 1)
    total = int(costs[-1])
    count = 1
    if are_worth_lanes(total * cost_of_entity):
        count = 2 * -(-total // (2 * PIECE_ENTITIES))
    if is_coarse:
        costs = costs - (entities[order] + 1) // 2  # by the middle of each unit
    cuts = np.searchsorted(costs, total * np.arange(1, count) // count)
    return [
        part[piece]
        for part in np.split(order, cuts)
        for piece in microbatches(entities[part], size, max_entities, pairs[part])
    ]


def are_worth_lanes(cost: float) -> bool:
    """Return True if frames of a cost, in entities times `cost_of_entity`, gain by threads."""
    return cost >= 2 * LEAST_COST


T = TypeVar("T")


def add_gradients(
    parameters: Iterable[nn.Parameter],
    losses: Iterable[Callable[[], tuple[Tensor | None, T]]],
    take: Callable[[T], object],
    lanes: Lanes,
    spans: Spans = OFF,
) -> None:
    """Add the gradients of losses to the `grad` of parameters.

    They are added in the order of the losses, so that the sum is bitwise the same for any number of
    lanes. `backward` in each lane would add them in the order of completion.

    Args:
        parameters: parameters of an agent; their `grad` is changed.
        losses: functions that return a loss, () float, or None without one; and an extra result
            without gradients.
        take: called with the extra results, in the order of the losses.
        lanes: lanes in which the losses are computed.
        spans: timers of the backward passes.
    """
    learnt = [p for p in parameters if p.requires_grad]

    def add(gradients: list[Tensor | None], extra: T) -> None:
        for parameter, gradient in zip(learnt, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:  # a copy: gradients may share their memory
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                parameter.grad.add_(gradient)
        take(extra)

    take_gradients(learnt, losses, add, lanes, spans)


class FlatGradients:
    """Gradients of each shard, in one row of memory each.

    Args:
        parameters: parameters of an agent.
        num_shards: shards of this process.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_shards: int) -> None:
        self.learnt = [parameter for parameter in parameters if parameter.requires_grad]
        self._known = np.zeros((num_shards, len(self.learnt)), np.bool_)
        sizes: dict[torch.dtype, int] = {}
        places: list[tuple[torch.dtype, slice]] = []
        for parameter in self.learnt:
            start = sizes.get(parameter.dtype, 0)
            places.append((parameter.dtype, slice(start, start + parameter.numel())))
            sizes[parameter.dtype] = start + -(-parameter.numel() // _ALIGNED) * _ALIGNED
        device = self.learnt[0].device if self.learnt else None
        self._rows = {
            dtype: torch.zeros(num_shards, size, dtype=dtype, device=device)
            for dtype, size in sizes.items()
        }
        self._places = places

    def clear(self) -> None:
        """Forget all gradients."""
        self._known[:] = False

    def add(self, shard: int, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients of the parameters, None where there is none, to those of a shard."""
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            row = self._of_row(shard, i)
            row.add_(gradient) if self._known[shard, i] else row.copy_(gradient)
            self._known[shard, i] = True

    def sum(self, group: Group, counts: Sequence[int], values: Sequence[T]) -> list[T]:
        """Let `grad` of the parameters be the sums over all shards, None where there is none.

        Args:
            group: processes of the run.
            counts: number of shards of each rank.
            values: plain data of each shard of this process, which all ranks get.

        Returns:
            The values of all shards.
        """
        for shard, parameter in zip(*np.nonzero(~self._known), strict=True):
            self._of_row(shard, parameter).zero_()
        num_bytes = sum(rows.shape[1] * rows.element_size() for rows in self._rows.values())
        is_gathered = are_gathered(num_bytes, group.size, sum(counts))
        plain = {dtype: rows.cpu().numpy() for dtype, rows in self._rows.items() if is_gathered}
        own = [
            (known, value, [rows[shard] for rows in plain.values()])
            for shard, (known, value) in enumerate(zip(self._known, values, strict=True))
        ]
        of_shards = group.gather_shards(own, "learning")
        if is_gathered:
            columns = zip(*(rows for _, _, rows in of_shards), strict=True)
            sums = {
                dtype: tree_sum([torch.from_numpy(x).to(rows.device) for x in column], torch.add)
                for (dtype, rows), column in zip(self._rows.items(), columns, strict=True)
            }
        else:
            sums = {dtype: group.tree_sum(rows, counts) for dtype, rows in self._rows.items()}
        is_known = np.any([known for known, _, _ in of_shards], axis=0)
        for parameter, (dtype, place), has_any in zip(
            self.learnt, self._places, is_known, strict=True
        ):
            parameter.grad = sums[dtype][place].view_as(parameter) if has_any else None
        return [value for _, value, _ in of_shards]

    def _of_row(self, shard: int, parameter: int) -> Tensor:
        dtype, place = self._places[parameter]
        return self._rows[dtype][shard, place].view_as(self.learnt[parameter])


def take_gradients(
    learnt: list[nn.Parameter],
    losses: Iterable[Callable[[], tuple[Tensor | None, T]]],
    take: Callable[[list[Tensor | None], T], object],
    lanes: Lanes,
    spans: Spans = OFF,
) -> None:
    """Compute the gradients of losses, and take them in the order of the losses.

    Args:
        learnt: parameters that need gradients.
        losses: as in `add_gradients`.
        take: called with the gradients of the parameters, None where there is none, and the extra
            result of each loss.
        lanes: lanes in which the losses are computed.
        spans: timers of the backward passes.
    """
    tasks = (partial(_gradients, learnt, loss, spans) for loss in losses)
    lanes.run(tasks, lambda computed: take(computed[0], computed[1]))


def _gradients(
    parameters: list[nn.Parameter], compute: Callable[[], tuple[Tensor | None, T]], spans: Spans
) -> tuple[list[Tensor | None], T]:
    loss, extra = compute()
    if loss is None:
        return [None] * len(parameters), extra
    with spans.span("backward"):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True)), extra
