"""Minibatches and microbatches of frames, and the gradient of a sum of losses over them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.base.group import Group, tree_sum
from enn_trainer.experience.frame_limits import microbatches
from enn_trainer.runtime.exchange import are_gathered
from enn_trainer.runtime.execution import ThreadPool
from enn_trainer.runtime.spans import OFF, Spans
from entity_env.arrays import IntArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.seeding import derive_seed

MICROBATCH_ENTITIES = 8192
"""Maximal number of entities of a microbatch, so that its activations stay in the cache."""
LEAST_COST = 3 * 2**18
"""Minimal cost of a microbatch, in entities times `cost_of_entity`; below it, overhead dominates.

It is the cost of 768 entities at d_model 32.
"""
_ALIGNMENT = 64
"""Alignment of parameters in elements, as the rounding of reductions depends on it."""


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


def sequence_minibatches(
    sequences: Sequence[IntArray], size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[list[IntArray]]:
    """Yield the sequences of each minibatch, so that every frame occurs once per epoch.

    Args:
        sequences: frames of each sequence, (frames,) int64 each.
        size: number of frames of a minibatch; minibatches with shorter sequences, and the last one
            of an epoch, may have fewer.
        epochs: number of epochs.
        seed: random seed of the permutations.
        shuffle: False to keep the sequences in order.

    Yields:
        The sequences of a minibatch.
    """
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    for numbers in minibatches_by_length(lengths, size, epochs, seed, shuffle):
        yield [sequences[i] for i in numbers.tolist()]


def minibatches_by_length(
    lengths: IntArray, size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[IntArray]:
    """Yield the indices of the sequences of each minibatch; see `sequence_minibatches`.

    Args:
        lengths: (sequences,) int64, number of frames of each sequence.
        size: number of frames of a minibatch.
        epochs: number of epochs.
        seed: random seed of the permutations.
        shuffle: False to keep the sequences in order.

    Yields:
        (sequences of the minibatch,) int64.
    """
    for epoch in range(epochs):
        order = np.arange(len(lengths))
        if shuffle:
            order = np.random.default_rng(derive_seed(seed, epoch)).permutation(len(lengths))
        ends, start = np.cumsum(lengths[order]), 0
        while start < len(order):
            previous = int(ends[start - 1]) if start else 0
            stop = int(np.searchsorted(ends, previous + size, side="right"))
            yield order[start : max(stop, start + 1)]
            start = max(stop, start + 1)


def sequence_microbatches(
    lengths: IntArray,
    entities: IntArray,
    pairs: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
) -> list[IntArray]:
    """Split a minibatch of sequences into microbatches of whole sequences.

    Args:
        lengths: (sequences,) int64, number of frames of each, which are consecutive in the
            minibatch.
        entities: (F,) int64, number of entities of each frame.
        pairs: (F,) int64, pairs of rows in the attention of each frame.
        size: maximal number of frames of a microbatch; None for no limit.
        max_entities: maximal number of entities of a microbatch.
        cost_of_entity: see `split_minibatch`.

    Returns:
        Positions in the minibatch, (frames,) int64 each.
    """
    groups = split_sequences(lengths, entities, pairs, size, max_entities, cost_of_entity)
    starts = exclusive_cumsum(lengths)
    return [row_indices(starts[group], lengths[group]) for group in groups]


def split_sequences(
    lengths: IntArray,
    entities: IntArray,
    pairs: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
) -> list[IntArray]:
    """Return the indices of the sequences of each microbatch; see `sequence_microbatches`."""
    if not len(lengths):
        return []
    starts = exclusive_cumsum(lengths)
    entities_by_sequence, pairs_by_sequence = (
        np.add.reduceat(counts, starts) for counts in (entities, pairs)
    )
    max_sequences = None if size is None else max(1, size // int(lengths.max()))
    return split_minibatch(
        entities_by_sequence,
        max_sequences,
        max_entities,
        cost_of_entity,
        pairs_by_sequence,
        is_coarse=bool((lengths > 1).any()),
    )


def split_minibatch(
    entities: IntArray,
    size: int | None,
    max_entities: int | None,
    cost_of_entity: int | None,
    pairs: IntArray | None = None,
    is_coarse: bool = False,
) -> list[IntArray]:
    """Split a minibatch into microbatches that can be computed in parallel.

    The result depends on the minibatch only, not on the number of threads. Microbatches for threads
    have frames with similar numbers of entities and about equal costs, and are even in number.

    Args:
        entities: (F,) int64, number of entities of each frame.
        size: maximal number of frames of a microbatch; None for no limit.
        max_entities: maximal number of entities of a microbatch; see `microbatches`.
        cost_of_entity: see `execution.cost_of_entity`; None to apply these limits only.
        pairs: (F,) int64, pairs of rows in the attention of each frame; None for `entities**2`.
        is_coarse: True if elements are long sequences: split at the elements nearest to equal
            costs.

    Returns:
        Positions in the minibatch, (frames,) int64 each.
    """
    pairs = entities**2 if pairs is None else pairs
    if not len(entities):
        return []
    if cost_of_entity is None:
        positions = np.arange(len(entities))
        return [positions[frames] for frames in microbatches(entities, size, max_entities, pairs)]

    # Sort frames by number of entities, and split into chunks of about equal cost.
    order = np.argsort(entities, kind="stable")
    costs = np.cumsum(entities[order] + 1)
    total = int(costs[-1])
    count = 1
    if are_worth_threads(total * cost_of_entity):
        count = 2 * -(-total // (2 * MICROBATCH_ENTITIES))
    if is_coarse:
        costs = costs - (entities[order] + 1) // 2  # at the middle of each element
    cuts = np.searchsorted(costs, total * np.arange(1, count) // count)
    return [
        chunk[frames]
        for chunk in np.split(order, cuts)
        for frames in microbatches(entities[chunk], size, max_entities, pairs[chunk])
    ]


def are_worth_threads(cost: float) -> bool:
    """Return True if threads speed up frames of this cost, in entities times `cost_of_entity`."""
    return cost >= 2 * LEAST_COST


T = TypeVar("T")


def add_gradients(
    parameters: Iterable[nn.Parameter],
    losses: Iterable[Callable[[], tuple[Tensor | None, T]]],
    take: Callable[[T], object],
    threads: ThreadPool,
    spans: Spans = OFF,
) -> None:
    """Add the gradients of losses to the `grad` of parameters.

    Gradients are added in the order of the losses, so that the sum is bitwise the same for any
    number of threads. `backward` in each thread would add them in the order of completion.

    Args:
        parameters: parameters of an agent; their `grad` is modified.
        losses: functions that return a loss, () float, or None without one; and an extra result
            without gradients.
        take: called with the extra results, in the order of the losses.
        threads: thread pool in which the losses are computed.
        spans: timers of the backward passes.
    """
    trainable = [p for p in parameters if p.requires_grad]

    def add(gradients: list[Tensor | None], extra: T) -> None:
        for parameter, gradient in zip(trainable, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is None:  # a copy: gradients may share their memory
                parameter.grad = gradient.clone(memory_format=torch.contiguous_format)
            else:
                parameter.grad.add_(gradient)
        take(extra)

    compute_gradients(trainable, losses, add, threads, spans)


class FlatGradients:
    """Gradients of each shard, flattened into one row.

    Args:
        parameters: parameters of an agent.
        num_shards: number of shards of this process.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_shards: int) -> None:
        self.trainable = [parameter for parameter in parameters if parameter.requires_grad]
        self._is_set = np.zeros((num_shards, len(self.trainable)), np.bool_)
        sizes: dict[torch.dtype, int] = {}
        slices: list[tuple[torch.dtype, slice]] = []
        for parameter in self.trainable:
            start = sizes.get(parameter.dtype, 0)
            slices.append((parameter.dtype, slice(start, start + parameter.numel())))
            sizes[parameter.dtype] = start + -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
        device = self.trainable[0].device if self.trainable else None
        self._rows = {
            dtype: torch.zeros(num_shards, size, dtype=dtype, device=device)
            for dtype, size in sizes.items()
        }
        self._slices = slices
        self._gradients = [
            self._cut({dtype: rows[shard] for dtype, rows in self._rows.items()})
            for shard in range(num_shards)
        ]

    def clear(self) -> None:
        """Clear all gradients."""
        self._is_set[:] = False

    def add(self, shard: int, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients to a shard; a gradient is None if the loss does not use the parameter."""
        used = {i: gradient for i, gradient in enumerate(gradients) if gradient is not None}
        is_set, sums = self._is_set[shard].tolist(), self._gradients[shard]
        first, more = ([i for i in used if is_set[i] == flag] for flag in (False, True))
        for indices, operation in ((first, torch._foreach_copy_), (more, torch._foreach_add_)):
            if indices:
                operation([sums[i] for i in indices], [used[i] for i in indices])
        self._is_set[shard, [*used]] = True

    def sum(self, group: Group, counts: Sequence[int], values: Sequence[T]) -> list[T]:
        """Set `grad` of the parameters to the sums over all shards; None without a gradient.

        Args:
            group: processes of the run.
            counts: number of shards of each rank.
            values: plain data of each shard of this process, to be gathered by all ranks.

        Returns:
            The values of all shards.
        """
        for shard, parameter in zip(*np.nonzero(~self._is_set), strict=True):
            self._gradients[shard][parameter].zero_()
        num_bytes = sum(rows.shape[1] * rows.element_size() for rows in self._rows.values())
        is_gathered = are_gathered(num_bytes, group.size, sum(counts))
        arrays = {dtype: rows.cpu().numpy() for dtype, rows in self._rows.items() if is_gathered}
        local = [
            (is_set, value, [rows[shard] for rows in arrays.values()])
            for shard, (is_set, value) in enumerate(zip(self._is_set, values, strict=True))
        ]
        by_shard = group.gather_shards(local, "learning")
        if is_gathered:
            columns = zip(*(rows for _, _, rows in by_shard), strict=True)
            sums = {
                dtype: tree_sum([torch.from_numpy(x).to(rows.device) for x in column], torch.add)
                for (dtype, rows), column in zip(self._rows.items(), columns, strict=True)
            }
        else:
            sums = {dtype: group.tree_sum(rows, counts) for dtype, rows in self._rows.items()}
        is_single = group.size == 1 and len(by_shard) == 1
        gradients = self._gradients[0] if is_single else self._cut(sums)
        any_set = np.any([is_set for is_set, _, _ in by_shard], axis=0).tolist()
        for parameter, gradient, has_any in zip(self.trainable, gradients, any_set, strict=True):
            parameter.grad = gradient if has_any else None
        return [value for _, value, _ in by_shard]

    def _cut(self, rows: Mapping[torch.dtype, Tensor]) -> list[Tensor]:
        """Return the gradient of each parameter, views into one row of each dtype."""
        return [
            rows[dtype][place].view_as(parameter)
            for parameter, (dtype, place) in zip(self.trainable, self._slices, strict=True)
        ]


def compute_gradients(
    parameters: list[nn.Parameter],
    losses: Iterable[Callable[[], tuple[Tensor | None, T]]],
    take: Callable[[list[Tensor | None], T], object],
    threads: ThreadPool,
    spans: Spans = OFF,
) -> None:
    """Compute the gradients of losses, and pass them to a function in the order of the losses.

    Args:
        parameters: parameters that require gradients.
        losses: see `add_gradients`.
        take: called with the gradients of the parameters, None for unused ones, and the extra
            result of each loss.
        threads: thread pool in which the losses are computed.
        spans: timers of the backward passes.
    """
    tasks = (partial(_gradients, parameters, loss, spans) for loss in losses)
    threads.run(tasks, lambda computed: take(computed[0], computed[1]))


def _gradients(
    parameters: list[nn.Parameter], compute: Callable[[], tuple[Tensor | None, T]], spans: Spans
) -> tuple[list[Tensor | None], T]:
    loss, extra = compute()
    if loss is None:
        return [None] * len(parameters), extra
    with spans.span("backward"):
        return list(torch.autograd.grad(loss, parameters, allow_unused=True)), extra
