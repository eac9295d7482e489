"""Threads share compiled blocks, and change nothing of what comes out."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rogue_net.native import threads
from rogue_net.native.threads import num_parts, num_threads, threads_at_work
from tests.rogue_net.test_native import KINDS, answers, assert_same, large_case, needs_compiled


@needs_compiled
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_threads_changes_no_bit(kind: str) -> None:
    net, batch = large_case(kind, 16)
    with patch.object(threads, "LEAST_COST", 2**10), threads_at_work(1):
        assert num_parts(len(batch.features) * 100, 16) > 2
        expected, expected_gradient = answers(net, batch, compiled=True)
        for count in (2, 3, 100):
            with threads_at_work(count):
                out, gradient = answers(net, batch, compiled=True)
            for name, p in expected.log_probs.items():
                assert torch.equal(out.log_probs[name], p)
            for name, g in expected_gradient.items():
                assert torch.equal(gradient[name], g), name


@needs_compiled
@pytest.mark.parametrize("kind", KINDS)
def test_parts_say_together_what_torch_says(kind: str) -> None:
    with patch.object(threads, "LEAST_COST", 2**10), threads_at_work(2):
        assert_same(*large_case(kind, 16))


@needs_compiled
def test_more_parts_than_frames() -> None:
    net, batch = large_case("grid", 32)
    with patch.object(threads, "LEAST_COST", 1), threads_at_work(2):
        assert_same(net, batch.take(np.array([10])))
        assert_same(net, batch.take(np.array([1, 0, 0])))


@given(
    rows=st.integers(0, 10**6),
    width=st.sampled_from([8, 16, 32, 64]),
    num_gradients=st.integers(0, 10**6),
)
def test_parts_are_one_or_even_and_worth_their_gradient(
    rows: int, width: int, num_gradients: int
) -> None:
    parts = num_parts(rows, width, num_gradients)
    assert parts == 1 or (parts % 2 == 0 and parts <= threads.MOST_PARTS)
    assert parts == 1 or rows * width**2 >= parts * threads.LEAST_COST
    assert parts == 1 or parts * num_gradients <= 8 * rows * width


def test_by_itself_it_takes_as_many_threads_as_torch() -> None:
    assert num_threads() == torch.get_num_threads()
    with threads_at_work(5):
        assert num_threads() == 5
        with threads_at_work(1):
            assert num_threads() == 1
        assert num_threads() == 5
    assert num_threads() == torch.get_num_threads()
