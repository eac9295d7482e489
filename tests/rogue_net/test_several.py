"""Batched forward passes of several networks equal separate forward passes."""

import gc
import weakref
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_env import EnvList
from rogue_net import EntityBatch, NetOutput, RogueNet, RogueNetConfig
from rogue_net.native import network
from rogue_net.native.network import threads_at_work
from rogue_net.several import act_batched, can_batch
from tests.enn_trainer.worlds import Meadow
from tests.rogue_net.builders import KINDS, large_case, needs_compiled
from tests.rogue_net.kinds_case import OWN_ONLY, large_labels_case

NARROW, WIDE = RogueNetConfig(d_model=16), RogueNetConfig(d_model=96, n_head=3)
FRAMES = [3, 1, 5, 2]
SHARED_KINDS = [kind for kind, settings in KINDS.items() if "projection" not in str(settings)]
"""Kinds of relative positions that do not depend on the statistics of a network."""


def new_network(config: RogueNetConfig, seed: int, **heads: Any) -> RogueNet:
    torch.manual_seed(seed)
    env = Meadow()
    net = RogueNet(config, env.obs_space(), env.action_space(), heads)
    return changed(net, 0.3)


def changed(net: RogueNet, by: float) -> RogueNet:
    """Heads are nearly uniform at first."""
    for parameter in net.parameters():
        parameter.data += by * torch.randn_like(parameter)
    return net.eval().requires_grad_(False)


def shown(seed: int) -> EntityBatch:
    envs = EnvList(Meadow, sum(FRAMES))
    envs.seed(seed)
    return EntityBatch.of(envs.reset(envs.obs_space()))


def uniforms_of(batch: EntityBatch, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(len(action.actors.values), generator=generator)
        for name, action in batch.actions.items()
    }


def assert_choose_as_alone(
    nets: Sequence[RogueNet],
    frames: Sequence[int],
    batch: EntityBatch,
    uniforms: Mapping[str, Tensor] | None,
) -> NetOutput:
    assert all(can_batch(nets[0], net) for net in nets)
    together = act_batched(nets, frames, batch, uniforms)
    assert together is not None
    start, first = 0, dict.fromkeys(batch.actions, 0)
    for net, count in zip(nets, frames, strict=True):
        own = batch.slice(slice(start, start + count))
        rows = {n: slice(first[n], first[n] + len(a.actors.values)) for n, a in own.actions.items()}
        drawn = None if uniforms is None else {name: uniforms[name][rows[name]] for name in rows}
        alone = net(own, uniforms=drawn)
        for name, separate in alone.actions.items():
            at = rows[name]
            assert torch.equal(together.actions[name][at], separate), name
            for kind in ("logprobs", "entropies"):
                got, expected = getattr(together, kind)[name][at], getattr(alone, kind)[name]
                torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
            table = alone.log_probs[name]
            got = together.log_probs[name][at, : table.shape[1]]
            torch.testing.assert_close(got, table, atol=1e-5, rtol=1e-4)
            assert (together.log_probs[name][at, table.shape[1] :] == -np.inf).all()
        if "value" in together.values:
            values = together.values["value"][start : start + count]
            if "value" in alone.values:
                torch.testing.assert_close(values, alone.values["value"])
            else:
                assert values.isnan().all()
        start += count
        first = {name: one.stop for name, one in rows.items()}
    return together


@needs_compiled
@pytest.mark.parametrize("with_values", range(len(FRAMES)))
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_batched_networks_choose_as_each_network_alone(
    with_values: int, sampled: bool, seed: int
) -> None:
    nets = [new_network(NARROW, 10 * seed + i) for i in range(len(FRAMES))]
    nets[with_values] = new_network(NARROW, 10 * seed, value=1)
    batch = shown(seed)
    draws = uniforms_of(batch, seed) if sampled else None
    for _ in range(2):  # the second time some are prepared
        assert assert_choose_as_alone(nets, FRAMES, batch, draws).values.keys() == {"value"}


@needs_compiled
@pytest.mark.parametrize("kind", [*SHARED_KINDS, "labels"])
@pytest.mark.parametrize("after_first", [[2, 1], [1], [1, 1, 3, 1, 2]])
def test_batched_networks_use_their_own_statistics_and_relative_positions(
    kind: str, after_first: list[int]
) -> None:
    is_of_labels = kind == "labels"
    net, batch = large_labels_case(OWN_ONLY, 16) if is_of_labels else large_case(kind, 16)
    frames, nets = [batch.num_frames - sum(after_first), *after_first], []
    for i in range(len(frames)):
        nets.append(changed(deepcopy(net), 0.1))
        nets[-1].update_input_stats(batch.slice(slice(i, i + 8)))
    with patch.object(network, "LEAST_COST", 2**10), threads_at_work(2):
        assert_choose_as_alone(nets, frames, batch, uniforms_of(batch, 0))


@needs_compiled
def test_weights_of_a_learning_network_are_not_cached() -> None:
    """Also if it is not the first network."""
    nets, batch = [new_network(NARROW, seed) for seed in range(len(FRAMES))], shown(0)
    nets[2].requires_grad_(True)
    assert_choose_as_alone(nets, FRAMES, batch, None)
    for net in (nets[0], nets[2]):
        changed(net, 0.3)
        for parameter in net.parameters():
            parameter.data = parameter.data.clone()
    assert_choose_as_alone(nets, FRAMES, batch, None)


@needs_compiled
def test_networks_with_and_without_values_are_batched() -> None:
    batch, members = shown(0), [new_network(NARROW, seed) for seed in range(len(FRAMES))]
    agent = new_network(NARROW, 100, value=1, further=3)
    for first in (members[0], agent, members[0]):
        out = assert_choose_as_alone([first, *members[1:]], FRAMES, batch, None)
        assert len(out.values) == (2 if first is agent else 0)


@pytest.mark.slow
@needs_compiled
def test_cached_weights_are_freed_with_their_network() -> None:
    nets = [new_network(NARROW, seed) for seed in range(len(FRAMES))]
    assert act_batched(nets, FRAMES, shown(0), None) is not None
    last = weakref.ref(nets.pop())
    gc.collect()
    assert last() is None


@needs_compiled
def test_networks_without_values_have_none() -> None:
    nets = [new_network(NARROW, seed) for seed in range(len(FRAMES))]
    out = act_batched(nets, FRAMES, shown(0), None)
    assert out is not None
    assert out.values == {}


def test_networks_without_compiled_code_are_not_batched() -> None:
    """Neither are networks of different sizes, or of other classes."""
    pooled = RogueNetConfig(d_model=8, pooling="mean")
    for config in (pooled, WIDE):
        assert not can_batch(new_network(config, 0), new_network(config, 1))
    assert not can_batch(new_network(NARROW, 0), new_network(RogueNetConfig(d_model=32), 0))
    assert not can_batch(new_network(NARROW, 0, value=1), new_network(NARROW, 0, value=2))

    class Own(RogueNet):
        """Another network."""

    env = Meadow()
    own = Own(NARROW, env.obs_space(), env.action_space())
    assert not can_batch(own, own)


@needs_compiled
def test_networks_in_float64_are_not_batched() -> None:
    nets = [new_network(NARROW, seed) for seed in range(2)]
    nets[1].double()
    assert act_batched(nets, [5, 6], shown(0), None) is None
