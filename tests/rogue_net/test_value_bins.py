"""Value prediction by classification into bins."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import check_agent
from entity_env import Observation
from entity_env.vec.batching import batch_obs
from rogue_net import EntityBatch, RogueNet, RogueNetConfig, RogueNetWithValueNet, ValueBinsConfig
from rogue_net.value_bins import bin_targets, expected_values
from tests.enn_trainer.worlds import Meadow

BINS = ValueBinsConfig(low=-2.0, high=2.0, num_bins=4, sigma=0.5)


def test_targets_match_hand_computed_gaussian_probabilities() -> None:
    # Bins of width 1 with edges -2, -1, 0, 1, 2; deviation 0.5. Around 0 the edges are 4, 2 and
    # 0 deviations away: Phi(2) - Phi(0) = 0.4772499, Phi(4) - Phi(2) = 0.0227185, of 0.9999367.
    near, far = 0.4772499 / 0.9999367, 0.0227185 / 0.9999367
    targets = bin_targets(torch.tensor([0.0], dtype=torch.float64), BINS)
    assert targets.tolist() == [pytest.approx([far, near, near, far], abs=1e-6)]


def test_value_matches_hand_computed_expectation() -> None:
    # Probabilities 1/8, 1/8, 1/4, 1/2 of bins in the middle of -1.5, -0.5, 0.5, 1.5.
    logits = torch.tensor([[1.0, 1.0, 2.0, 4.0]]).log() + 3.0
    expected = (-1.5 - 0.5) / 8 + 0.5 / 4 + 1.5 / 2
    assert expected_values(logits, BINS).tolist() == [[pytest.approx(expected, abs=1e-6)]]


@given(
    value=st.floats(-0.9, 0.9),
    num_bins=st.integers(20, 101),
    sigma=st.floats(0.5, 1.0),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_expected_value_inverts_bin_targets(
    value: float, num_bins: int, sigma: float, scale: float
) -> None:
    """Away from the ends, where a part of the Gaussian is cut off."""
    bins = ValueBinsConfig(-2 * scale, 2 * scale, num_bins, sigma)
    targets = bin_targets(torch.tensor([value * scale], dtype=torch.float64), bins)
    assert targets.min() >= 0
    assert targets.sum().item() == pytest.approx(1.0)
    width = 4 * scale / num_bins
    assert expected_values(targets.log(), bins).item() == pytest.approx(
        value * scale, abs=0.02 * width
    )


def test_values_outside_the_bins_are_clipped() -> None:
    inside, beyond = bin_targets(torch.tensor([2.0, 1e30]), BINS)
    assert torch.equal(inside, beyond)
    assert beyond.isfinite().all()


def test_invalid_bins_are_refused_with_all_problems() -> None:
    with pytest.raises(ValueError, match=r"high: .*low=1.*; num_bins: .*1; sigma: .*inf"):
        ValueBinsConfig(low=1.0, high=1.0, num_bins=1, sigma=math.inf)


def some_frames() -> EntityBatch:
    env = Meadow()
    env.seed(0)
    frames = [env.reset() for _ in range(5)]
    frames.append(Observation(global_features=[1.0]))
    return EntityBatch.of(batch_obs(frames, env.obs_space(), env.action_space()))


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
def test_network_with_bins_returns_expectation_and_logits(apart: bool) -> None:
    """Whoever acts, bootstraps or plays reads `value` and need not know of bins."""
    env, batch, config = Meadow(), some_frames(), RogueNetConfig(d_model=8)
    spaces, bins = (env.obs_space(), env.action_space()), ValueBinsConfig(0.0, 6.0, 7)
    net = (
        RogueNetWithValueNet(config, config, *spaces, {"value": bins})
        if apart
        else RogueNet(config, *spaces, {"value": bins})
    )
    net.update_input_stats(batch)
    out = net(batch)
    assert out.values["value_logits"].shape == (6, 7)
    assert out.values["value"].tolist() == [[pytest.approx(3.0)]] * 6  # all alike at first
    heads = (net.value_function if apart else net).regression_heads
    torch.nn.init.normal_(heads["/value"].weight)
    out = net(batch)
    probabilities = out.values["value_logits"].softmax(dim=1).detach().numpy()
    middles = 6 / 7 * (np.arange(7) + 0.5)
    np.testing.assert_allclose(out.values["value"][:, 0].detach(), probabilities @ middles, 1e-5)
    assert out.values["value"].std() > 0.01
    assert torch.equal(net.values(batch)["value"], out.values["value"])


def test_network_with_bins_can_be_trained() -> None:
    env = Meadow()
    net = RogueNet(RogueNetConfig(d_model=8), env.obs_space(), env.action_space(), {"value": BINS})
    check_agent(net, env.obs_space(), env.action_space())
