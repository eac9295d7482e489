"""Packed layouts."""

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rogue_net.native.backend import MAX_CACHED_FRAMES, packed_layout
from tests.rogue_net.builders import type_lengths

CPU = torch.device("cpu")


@given(st.lists(type_lengths(), min_size=1, max_size=4))
@example([[[1, 2, 3, 4]], [[1, 2], [3, 4]], [[1], [2], [3], [4]], [[1, 2, 3, 4]]])
@example([[[1] * (MAX_CACHED_FRAMES + 1)]])
def test_cached_packed_layouts_match_their_lengths(
    batches: list[list[list[int]]],
) -> None:
    """Plans are cached by the counts of entities and the number of types."""
    for lengths in batches:
        by_type = {str(k): np.array(row) for k, row in enumerate(lengths)}
        layout = packed_layout(by_type, CPU)
        places = [
            (frame, k, i)
            for k, row in enumerate(lengths)
            for frame, count in enumerate(row)
            for i in range(count)
        ]
        expected = {place: row for row, place in enumerate(sorted(places))}
        assert layout.row_of_entity.tolist() == [expected[place] for place in places]
        assert layout.lengths.tolist() == np.sum(lengths, axis=0).tolist()
        starts = np.cumsum([0, *layout.lengths])[:-1].tolist()
        assert layout.first_row.tolist() == starts
        assert layout.num_rows == len(places)


def test_layouts_planned_in_inference_mode_support_autograd() -> None:
    by_type = {"unit": np.array([2, 0, 1]), "other": np.array([1, 1, 0])}
    with torch.inference_mode():
        assert packed_layout(by_type, CPU).num_rows == 5
    x = torch.ones(5, 3, requires_grad=True)
    packed_layout(by_type, CPU).pad(x).sum().backward()
    assert x.grad is not None
    assert x.grad.eq(1).all()
