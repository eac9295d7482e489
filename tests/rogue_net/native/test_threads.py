"""Results of compiled blocks do not depend on threads and parts."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_env import ActionSpace, CategoricalActionMask, Entity, Observation, ObsSpace
from rogue_net import EntityBatch, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.native import network
from rogue_net.native.network import num_parts, num_threads, threads_at_work
from tests.rogue_net.builders import (
    GRID,
    KINDS,
    answers,
    assert_same,
    in_float32,
    large_case,
    needs_compiled,
    torch_only,
)
from tests.rogue_net.kinds_case import OWN_ONLY, large_labels_case
from tests.rogue_net.nets import ACTIONS, batch_of, by_frame


@needs_compiled
@pytest.mark.parametrize("kind", [*KINDS, "labels"])
def test_output_does_not_depend_on_the_number_of_threads(kind: str) -> None:
    labels = kind == "labels"
    net, batch = large_labels_case(OWN_ONLY, 16) if labels else large_case(kind, 16)
    with patch.object(network, "LEAST_COST", 2**10), threads_at_work(1):
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
def test_output_in_parts_equals_torch(kind: str) -> None:
    with patch.object(network, "LEAST_COST", 2**10), threads_at_work(2):
        assert_same(*large_case(kind, 16))


@needs_compiled
def test_more_parts_than_frames_are_supported() -> None:
    net, batch = large_case("grid", 32)
    with patch.object(network, "LEAST_COST", 1), threads_at_work(2):
        assert_same(net, batch.take(np.array([10])))
        assert_same(net, batch.take(np.array([1, 0, 0])))


LENGTHS = [*[1] * 64, 1, 32, 32, *[1] * 32] * 14
"""Tiles that are cut from the first frame on never hold both frames of 32; those of a part may."""


def gated_case(lengths: Sequence[int], d_model: int, n_head: int) -> tuple[RogueNet, EntityBatch]:
    """Frames of these lengths for a network with gated relative values."""
    relpos = RelposEncodingConfig(**GRID, value_gate="relu")
    torch.manual_seed(2)
    config = RogueNetConfig(d_model=d_model, n_head=n_head, n_layer=2, relpos_encoding=relpos)
    space = ObsSpace(entities={"Unit": Entity(["x", "y"])})
    actions: dict[str, ActionSpace] = {"move": ACTIONS["move"]}
    net = RogueNet(config, space, actions, {"value": 1})
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    mask = {"move": CategoricalActionMask(actor_types=["Unit"])}
    rng = np.random.default_rng(3)
    frames = [
        Observation(features={"Unit": rng.normal(size=(n, 2))}, actions=mask) for n in lengths
    ]
    batch = in_float32(batch_of(frames, space, actions))
    net.update_input_stats(batch)
    return net, batch


def assert_same_without_gradient(net: RogueNet, batch: EntityBatch) -> None:
    expected = net(batch)
    with torch.no_grad():
        got = net(batch)
    for name, p in expected.log_probs.items():
        assert torch.equal(got.log_probs[name], p), name
    assert torch.equal(got.values["value"], expected.values["value"])


@pytest.mark.slow
@needs_compiled
@pytest.mark.parametrize(("d_model", "n_head"), [(16, 2), (32, 4), (64, 8), (32, 2)])
def test_probabilities_with_and_without_gradient_are_equal(d_model: int, n_head: int) -> None:
    net, batch = gated_case(LENGTHS, d_model, n_head)
    assert num_parts(sum(LENGTHS), d_model) >= 2
    assert_same_without_gradient(net, batch)
    with torch.no_grad(), torch_only():
        expected = net(batch)
    with torch.no_grad():
        got = net(batch)
    for ours, theirs in zip(by_frame(got, batch), by_frame(expected, batch), strict=True):
        for name in theirs:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.slow
@needs_compiled
@given(
    runs=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 8, 9, 31, 32, 33, 63, 64, 65]), st.integers(1, 70)),
        min_size=1,
        max_size=8,
    ),
    repeats=st.integers(1, 4),
    least_cost=st.sampled_from([2**8, 2**10, 2**12, 2**14]),
    threads_used=st.integers(1, 5),
    sizes=st.sampled_from([(16, 2), (16, 1), (32, 4)]),
)
def test_with_and_without_gradient_agree_for_any_lengths_parts_and_threads(
    runs: list[tuple[int, int]],
    repeats: int,
    least_cost: int,
    threads_used: int,
    sizes: tuple[int, int],
) -> None:
    lengths = [n for n, count in runs for _ in range(max(1, count // max(1, n)))] * repeats
    net, batch = gated_case(lengths, *sizes)
    with patch.object(network, "LEAST_COST", least_cost), threads_at_work(threads_used):
        assert_same_without_gradient(net, batch)


@given(
    rows=st.integers(0, 10**6),
    width=st.sampled_from([8, 16, 32, 64]),
    num_gradients=st.integers(0, 10**6),
)
def test_parts_are_one_or_even_and_worth_their_gradient(
    rows: int, width: int, num_gradients: int
) -> None:
    parts = num_parts(rows, width, num_gradients)
    assert parts == 1 or (parts % 2 == 0 and parts <= network.MOST_PARTS)
    assert parts == 1 or rows * width**2 >= parts * network.LEAST_COST
    assert parts == 1 or parts * num_gradients <= 8 * rows * width


def test_default_number_of_threads_is_torchs() -> None:
    assert num_threads() == torch.get_num_threads()
    with threads_at_work(5):
        assert num_threads() == 5
        with threads_at_work(1):
            assert num_threads() == 1
        assert num_threads() == 5
    assert num_threads() == torch.get_num_threads()
