"""Several networks in one pass choose as each of them does alone."""

from typing import Any

import numpy as np
import pytest
import torch

from entity_env import EnvList
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from rogue_net.several import are_alike, choose_together
from tests.enn_trainer.worlds import Meadow

NARROW, WIDE = RogueNetConfig(d_model=16), RogueNetConfig(d_model=96, n_head=3)
FRAMES = [3, 1, 5, 2]


def network(config: RogueNetConfig, seed: int, **heads: Any) -> RogueNet:
    torch.manual_seed(seed)
    env = Meadow()
    net = RogueNet(config, env.obs_space(), env.action_space(), heads)
    for parameter in net.parameters():  # heads are nearly uniform at first
        parameter.data += 0.3 * torch.randn_like(parameter)
    return net.eval().requires_grad_(False)


def shown(seed: int) -> EntityBatch:
    envs = EnvList(Meadow, sum(FRAMES))
    envs.seed(seed)
    return EntityBatch.of(envs.reset(envs.obs_space()))


@pytest.mark.parametrize("config", [NARROW, WIDE], ids=["compiled whole", "compiled in parts"])
@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_networks_choose_together_as_they_do_alone(
    config: RogueNetConfig, sampled: bool, seed: int
) -> None:
    nets = [network(config, 10 * seed, value=1)]
    nets += [network(config, 10 * seed + i) for i in range(1, len(FRAMES))]
    assert all(are_alike(nets[0], net) for net in nets)
    batch = shown(seed)
    generator = torch.Generator().manual_seed(seed)
    draws = None
    if sampled:
        draws = {
            name: torch.rand(len(action.actors.values), generator=generator)
            for name, action in batch.actions.items()
        }
    together = choose_together(nets, FRAMES, batch, draws)
    assert together is not None
    start, first = 0, dict.fromkeys(batch.actions, 0)
    for i, (net, count) in enumerate(zip(nets, FRAMES, strict=True)):
        own = batch.slice(slice(start, start + count))
        rows = {n: slice(first[n], first[n] + len(a.actors.values)) for n, a in own.actions.items()}
        drawn = None if draws is None else {name: draws[name][rows[name]] for name in draws}
        alone = net(own, uniforms=drawn)
        for name, of_alone in alone.actions.items():
            at = rows[name]
            assert torch.equal(together.actions[name][at], of_alone), name
            for kind in ("logprobs", "entropies"):
                got, expected = getattr(together, kind)[name][at], getattr(alone, kind)[name]
                torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
            table = alone.log_probs[name]
            got = together.log_probs[name][at, : table.shape[1]]
            torch.testing.assert_close(got, table, atol=1e-5, rtol=1e-5)
            assert (together.log_probs[name][at, table.shape[1] :] == -np.inf).all()
        values = together.values["value"][start : start + count]
        if i == 0:
            torch.testing.assert_close(values, alone.values["value"])
        else:
            assert values.isnan().all()
        start += count
        first = {name: one.stop for name, one in rows.items()}


def test_networks_without_values_have_none() -> None:
    nets = [network(NARROW, seed) for seed in range(len(FRAMES))]
    out = choose_together(nets, FRAMES, shown(0), None)
    assert out is not None
    assert out.values == {}


def test_networks_that_torch_alone_computes_choose_alone() -> None:
    """As do those of other sizes, and those that are not of this package."""
    pooled = [network(RogueNetConfig(d_model=8, pooling="mean"), seed) for seed in range(2)]
    assert choose_together(pooled, [5, 6], shown(0), None) is None
    assert not are_alike(network(NARROW, 0), network(WIDE, 0))

    class Own(RogueNet):
        """Another network."""

    env = Meadow()
    own = Own(NARROW, env.obs_space(), env.action_space())
    assert not are_alike(own, own)
