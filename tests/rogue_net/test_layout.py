"""Padded layouts against positions computed entity by entity."""

import numpy as np
import pytest
import torch
from hypothesis import example, given

from rogue_net.layout import (
    FREE_PADDING,
    MAX_PADDING,
    PIECE_ROWS,
    Layout,
    make_layout,
)
from tests.rogue_net.builders import type_lengths

CPU = torch.device("cpu")


def layout_for(lengths: list[list[int]]) -> Layout:
    by_type = {str(k): np.array(row, dtype=np.int64) for k, row in enumerate(lengths)}
    return make_layout(by_type, CPU)


@given(type_lengths())
@example([[0]])
@example([[5]])
@example([[0, 0, 0], [0, 0, 0]])
@example([[1, 2000, 1, 0, 500, 1]])
def test_every_entity_has_a_distinct_padded_row(lengths: list[list[int]]) -> None:
    layout = layout_for(lengths)
    expected = []
    for k in range(len(lengths)):
        for i in range(len(lengths[0])):
            before = sum(lengths[earlier][i] for earlier in range(k))
            expected += [layout.first_row[i] + before + j for j in range(lengths[k][i])]
    rows = layout.row_of_entity.tolist()
    assert rows == expected
    assert len(set(rows)) == len(rows)
    assert all(0 <= row < layout.num_rows for row in rows)
    assert layout.row_of_entity.dtype == torch.int64


@given(type_lengths())
@example([[0]])
@example([[0, 0, 0], [0, 0, 0]])
@example([[1, 2000, 1, 0, 500, 1]])
def test_each_frame_with_entities_is_in_one_bucket(lengths: list[list[int]]) -> None:
    layout = layout_for(lengths)
    totals = np.sum(lengths, axis=0).tolist()
    assert layout.lengths.tolist() == totals
    order = layout.frame_order.tolist()
    assert sorted(order) == [i for i, n in enumerate(totals) if n > 0]
    assert [layout.first_row[i] for i, n in enumerate(totals) if n == 0] == [0] * totals.count(0)
    next_row = 0
    for bucket in layout.buckets:
        assert bucket.start == next_row
        assert bucket.num_frames > 0
        frames, order = order[: bucket.num_frames], order[bucket.num_frames :]
        next_row += bucket.num_frames * bucket.length
        assert bucket.rows == slice(bucket.start, next_row)
        assert max(totals[i] for i in frames) == bucket.length
        firsts = [bucket.start + j * bucket.length for j in range(bucket.num_frames)]
        assert [layout.first_row[i] for i in frames] == firsts
        is_entity = [[j < totals[i] for j in range(bucket.length)] for i in frames]
        if bucket.is_entity is None:
            assert all(all(row) for row in is_entity)
        else:
            assert bucket.is_entity.tolist() == is_entity
            assert not all(all(row) for row in is_entity)
    assert order == []
    assert next_row == layout.num_rows


@given(type_lengths())
@example([list(range(600))])
@example([[1] * 500 + [257]])
@example([[1] * 500 + [1000]])
@example([[2**k for k in range(14)]])
def test_padding_stays_below_its_limits(lengths: list[list[int]]) -> None:
    layout = layout_for(lengths)
    totals = layout.lengths[layout.frame_order.numpy()]
    low = 0
    for bucket in layout.buckets:
        high = low + bucket.num_frames
        rows = bucket.num_frames * bucket.length
        padding = rows - int(totals[low:high].sum())
        assert 0 <= padding <= max(MAX_PADDING * rows, FREE_PADDING)
        low = high


def test_frames_of_all_lengths_take_few_buckets() -> None:
    """Each bucket costs operations of its own in every layer."""
    layout = layout_for([list(range(1, 513)) * 4])
    assert len(layout.buckets) <= 70 + layout.num_rows / PIECE_ROWS
    padding = layout.num_rows - layout.lengths.sum()
    assert padding <= 1.1 * MAX_PADDING * layout.num_rows


def test_equal_lengths_need_neither_padding_nor_a_mask() -> None:
    layout = layout_for([[3] * 800, [2] * 800])
    (bucket,) = layout.buckets
    assert (bucket.num_frames, bucket.length, bucket.is_entity) == (800, 5, None)


@pytest.mark.parametrize("num_frames", [1, 3])
def test_batch_of_empty_frames_has_no_rows(num_frames: int) -> None:
    layout = layout_for([[0] * num_frames, [0] * num_frames])
    assert (layout.num_rows, layout.buckets) == (0, [])
    assert layout.row_of_entity.shape == layout.frame_order.shape == (0,)
    assert layout.row_of_entity.dtype == layout.frame_order.dtype == torch.int64


def test_positions_in_frames_become_rows() -> None:
    layout = layout_for([[1, 0, 2], [1, 0, 3]])
    positions, frames = torch.tensor([1, 0, 4]), np.array([0, 0, 2])
    first = layout.first_row
    assert layout.rows(positions, frames).tolist() == [first[0] + 1, first[0], first[2] + 4]
