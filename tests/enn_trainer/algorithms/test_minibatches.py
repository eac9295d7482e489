"""Which frames are learnt from together, and how a minibatch is cut."""

import math
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.algorithms import minibatches as module
from enn_trainer.algorithms.minibatches import minibatches, minibatches_by_length, split_minibatch


def test_epochs_have_different_orders() -> None:
    first, second = minibatches(50, 50, 2, seed=1)
    assert not np.array_equal(first, second)


def test_minibatch_of_sequences_may_be_exactly_full() -> None:
    batches = minibatches_by_length(np.array([2, 2, 3, 1]), 4, epochs=1, seed=1, shuffle=False)
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3]]


@given(
    frames=st.integers(1, 200),
    size=st.integers(1, 250),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
)
def test_every_frame_is_used_once_per_epoch(
    frames: int, size: int, epochs: int, shuffle: bool
) -> None:
    batches = list(minibatches(frames, size, epochs, 1, shuffle))
    used = np.concatenate(batches)
    for epoch in np.split(used, epochs):
        assert np.array_equal(np.sort(epoch), np.arange(frames))
    assert max(map(len, batches)) == min(size, frames)
    if not shuffle:
        assert np.array_equal(used, np.tile(np.arange(frames), epochs))


@given(
    entities=st.lists(st.integers(0, 12), min_size=1, max_size=80),
    size=st.none() | st.integers(1, 20),
    max_entities=st.none() | st.integers(1, 30),
    least=st.integers(1, 40),
    most=st.integers(40, 200),
)
def test_microbatches_for_threads_keep_limits_and_have_equal_costs(
    entities: list[int], size: int | None, max_entities: int | None, least: int, most: int
) -> None:
    counts = np.array(entities, dtype=np.int64)
    with patch.multiple(module, LEAST_COST=3 * least, MICROBATCH_ENTITIES=most):
        cut = split_minibatch(counts, size, max_entities, cost_of_entity=3)
        free = split_minibatch(counts, None, None, cost_of_entity=3)
    for of in (cut, free):
        assert np.array_equal(np.sort(np.concatenate(of)), np.arange(len(counts)))
        ordered = counts[np.concatenate(of)]
        assert (np.diff(ordered) >= 0).all(), "frames of like numbers of entities"
    for piece in cut:
        assert size is None or len(piece) <= size
        assert max_entities is None or len(piece) == 1 or counts[piece].sum() <= max_entities
    costs = [int((counts[piece] + 1).sum()) for piece in free]
    total = sum(costs)
    assert len(free) == 1 or (len(free) % 2 == 0 and total >= 2 * least)
    if len(free) > 1:  # no frame costs more than 13
        # Cuts are at multiples of total / count, rounded down.
        assert max(costs) <= math.ceil(total / len(free)) + 13
        assert max(costs) <= most + 13


@pytest.mark.parametrize("cost", [64, None])
def test_few_frames_are_one_microbatch(cost: int | None) -> None:
    (piece,) = split_minibatch(np.array([3, 1, 2]), None, None, cost)
    assert piece.tolist() == ([0, 1, 2] if cost is None else [1, 2, 0])
