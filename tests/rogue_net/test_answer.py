"""Sampling, temperature, attention weights, and separate value networks."""

import copy
from typing import Any

import numpy as np
import pytest
import torch

from rogue_net import RelposEncodingConfig, RogueNetConfig, RogueNetWithValueNet
from rogue_net.embedding import module_key
from tests.rogue_net.nets import ACTIONS, SPACE, batch_of, by_frame, frame, net_of, rows_of

FRAMES = [frame(3, 1, 2, seed=1), frame(0, 2, 0, seed=2), frame(2, 0, 3, seed=3), frame(0, 0, 0)]
RELPOS = RelposEncodingConfig([2], ["x"])


def test_lengths_are_the_actors_of_each_frame() -> None:
    batch = batch_of(FRAMES)
    out = net_of()(batch)
    assert out.lengths is not None
    assert {name: n.tolist() for name, n in out.lengths.items()} == {
        "move": [3, 0, 2, 0],
        "pick": [3, 0, 2, 0],
        "plan": [1, 1, 1, 1],
    }
    assert out.attention is None


def test_sampling_uses_the_generator_and_no_global_rng() -> None:
    net, batch = net_of(), batch_of(FRAMES * 20)
    state = torch.get_rng_state()
    first, second, other = (
        net(batch, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), state)
    for name in ACTIONS:
        assert torch.equal(first.actions[name], second.actions[name])
        assert not torch.equal(first.actions[name], other.actions[name])
    torch.testing.assert_close(net(batch, actions=first.actions).logprobs, first.logprobs)
    with pytest.raises(ValueError, match="generator: expected neither actions nor uniforms"):
        net(batch, actions=first.actions, generator=torch.Generator())


def test_temperature_divides_the_logits() -> None:
    net, batch = net_of(), batch_of(FRAMES)
    plain = net(batch)
    for temperature in (0.3, 1.0, 4.0):
        out = net(batch, temperature=temperature)
        for name, p in plain.log_probs.items():
            expected = (p / temperature).log_softmax(dim=1)
            torch.testing.assert_close(out.log_probs[name], expected)
            chosen = expected.gather(1, out.actions[name][:, None])[:, 0]
            torch.testing.assert_close(out.logprobs[name], chosen)
    cold = net(batch, temperature=1e-300, generator=torch.Generator())
    for name in ACTIONS:
        assert torch.equal(cold.actions[name], plain.actions[name])
        assert not cold.log_probs[name].isnan().any()
    assert net(batch_of([frame(0, actions={})]), temperature=2.0).log_probs["pick"].numel() == 0


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("inf"), float("nan")])
def test_invalid_temperature_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature: expected a finite number above 0, got"):
        net_of()(batch_of(FRAMES), temperature=temperature)


@pytest.mark.parametrize("relpos", [None, RELPOS])
@pytest.mark.parametrize("n_layer", [0, 1, 3])
def test_attention_weights_are_between_visible_entities(n_layer: int, relpos: Any) -> None:
    net = net_of(n_layer=n_layer, relpos_encoding=relpos)
    hidden = frame(2, 3, 2, visible={"Rock": [True, False, True]}, actions={})
    batch = batch_of([*FRAMES, hidden])
    out = net(batch, attention=True)
    plain = net(batch)
    torch.testing.assert_close(out.values, plain.values)
    torch.testing.assert_close(out.log_probs, plain.log_probs)
    assert out.attention is not None
    assert [a.shape for a in out.attention] == [(n_layer, 2, n, n) for n in (7, 3, 6, 1, 8)]
    for i, attention in enumerate(out.attention):
        torch.testing.assert_close(attention.sum(dim=3), torch.ones_like(attention[..., 0]))
        one = batch.take(np.array([i]))
        alone = net(one, attention=True).attention
        assert alone is not None
        torch.testing.assert_close(attention, alone[0])
    hidden_weights = out.attention[-1]
    assert (hidden_weights[:, :, [0, 1, 2, 4, 5, 6, 7], 3] == 0).all()
    if n_layer:
        assert (hidden_weights[:, :, 3, 3] > 0).all()


def test_attention_with_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attention: expected .*pooling='max'"):
        net_of(pooling="max")(batch_of(FRAMES), attention=True)


# A value function of its own.


def two_nets(**spaces: Any) -> RogueNetWithValueNet:
    config = RogueNetConfig(d_model=8, relpos_encoding=RELPOS)
    vf_config = RogueNetConfig(d_model=12, n_head=3, n_layer=1, pooling=None)
    torch.manual_seed(0)
    net = RogueNetWithValueNet(config, vf_config, SPACE, spaces.get("action_space", ACTIONS))
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return net.double()


def test_value_network_has_its_own_size_weights_and_statistics() -> None:
    net, batch = two_nets(), batch_of(FRAMES)
    out = net(batch)
    assert torch.equal(out.values["value"], net.values(batch)["value"])
    assert out.values["value"].shape == (4, 1)
    (gradient,) = {p.grad is None for p in net.parameters()}
    assert gradient
    out.values["value"].sum().backward()
    assert all(p.grad is None for p in net.policy.parameters())
    # The value of no entity but the global one, as the policy sees it.
    assert net.value_function.embedding.types == net.policy.embedding.types
    assert all(p.grad is not None for p in net.value_function.parameters())
    net.zero_grad()
    sum(p.sum() for p in net(batch).logprobs.values()).backward()
    assert all(p.grad is None for p in net.value_function.parameters())
    assert net.value_function.transformer.blocks[0].norm_1.weight.shape == (12,)


def test_value_network_learns_statistics_with_the_policy() -> None:
    net, batch = two_nets(), batch_of(FRAMES)
    halves = [batch.take(np.array([0, 1])), batch.take(np.array([2, 3]))]
    other = copy.deepcopy(net)
    net.update_input_stats(batch)
    for half in halves:
        other.merge_input_moments(two_nets().input_moments(half))
    for name, tensor in net.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, msg=name)
    for part in (net.policy, net.value_function):
        assert set(part.embedding.by_type[module_key("Unit")].norm.count.tolist()) == {5}
    expected = by_frame(net(batch), batch)
    for i in range(4):
        one = batch.take(np.array([i]))
        torch.testing.assert_close(by_frame(net(one), one)[0], expected[i])
        assert rows_of(batch.features["Unit"], i).shape[1] == 2
