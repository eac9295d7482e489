"""Normalisation of the targets of value heads."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rogue_net.config import RogueNetConfig, ValueBinsConfig
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet
from rogue_net.value_head import AS_TARGETS, NoTargetNorm, RegressionHead, TargetNorm
from tests.rogue_net.builders import in_float32
from tests.rogue_net.nets import ACTIONS, SPACE, batch_of, frame

FINITE = st.floats(-1e6, 1e6, width=32)


@given(st.lists(FINITE, min_size=2, max_size=20), FINITE)
def test_outputs_are_the_inverse_of_normalized_targets(seen: list[float], y: float) -> None:
    norm = TargetNorm()
    norm.add(torch.tensor(seen, dtype=torch.float64))
    target = torch.tensor([y], dtype=torch.float64)
    torch.testing.assert_close(norm(norm.normalized(target)), target, rtol=1e-9, atol=1e-6)


def test_mean_and_std_include_all_targets() -> None:
    targets = torch.tensor([3.0, 5.0, -2.0, 7.5, 0.25], dtype=torch.float64)
    norm = TargetNorm()
    norm.add(targets[:2])
    norm.add(targets[2:])
    expected = (targets - targets.mean()) / targets.std()
    torch.testing.assert_close(norm.normalized(targets), expected)
    assert norm.std.item() == pytest.approx(targets.std().item())


@pytest.mark.parametrize("seen", [[], [3.0], [3.0, 3.0], [1e6, 1e6 + 0.01]])
def test_std_is_1_until_targets_differ_by_more_than_rounding(seen: list[float]) -> None:
    norm = TargetNorm()
    norm.add(torch.tensor(seen, dtype=torch.float64))
    assert norm.std.item() == 1.0


def test_no_target_norm_is_the_identity() -> None:
    x = torch.tensor([1.5, -0.0])
    AS_TARGETS.add(x)
    assert AS_TARGETS(x) is AS_TARGETS.normalized(x) is x
    assert AS_TARGETS.std == 0
    assert not RegressionHead(4, 1).norm.state_dict()


@pytest.mark.parametrize("head", [1, ValueBinsConfig(-3.0, 3.0, num_bins=12)])
@pytest.mark.parametrize("is_separate", [False, True])
def test_a_new_network_predicts_the_mean_of_the_returns(
    head: int | ValueBinsConfig, is_separate: bool
) -> None:
    """And so do its copies and saves, which have the statistics."""
    config, heads = RogueNetConfig(d_model=16, n_head=2), {"value": head}
    net: RogueNet | RogueNetWithValueNet
    if is_separate:
        net = RogueNetWithValueNet(config, config, SPACE, ACTIONS, heads, ["value"])
    else:
        net = RogueNet(config, SPACE, ACTIONS, heads, normalized_heads=["value"])
    batch = in_float32(batch_of([frame(2), frame(1)]))
    assert not net.values(batch)["value"].any()
    net.value_norm.add(torch.tensor([90.0, 110.0, 130.0]))
    torch.testing.assert_close(net.values(batch)["value"], torch.full((batch.num_frames, 1), 110.0))
    fresh = copy.deepcopy(net)
    fresh.value_norm.add(torch.tensor([1e4]))
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh.values(batch)["value"], net.values(batch)["value"])
    assert torch.equal(net(batch).values["value"], net.values(batch)["value"])


def test_network_without_values_has_no_target_norm() -> None:
    net = RogueNet(RogueNetConfig(d_model=16, n_head=2), SPACE, ACTIONS)
    assert isinstance(net.value_norm, NoTargetNorm)
