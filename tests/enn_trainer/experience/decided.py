"""Networks, frames, and what is decided in them."""

import numpy as np
import torch

from enn_trainer.experience.players import Decisions
from entity_env import EnvList, VecObs
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from tests.enn_trainer.worlds import Meadow

FIELDS = ("chosen", "logprobs", "entropies")


def network(seed: int) -> RogueNet:
    torch.manual_seed(seed)
    space = Meadow()
    config = RogueNetConfig(d_model=8)
    net = RogueNet(config, space.obs_space(), space.action_space(), {"value": 1}).eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return net


def frames_of(num_envs: int) -> tuple[VecObs, EntityBatch]:
    envs = EnvList(Meadow, num_envs)
    envs.seed(5)
    obs = envs.reset(envs.obs_space())
    return obs, EntityBatch.of(obs)


def assert_same(got: Decisions, expected: Decisions) -> None:
    """To the bit."""
    for field in FIELDS:
        ours, theirs = getattr(got, field), getattr(expected, field)
        assert [*ours] == [*theirs]
        for name, rows in theirs.items():
            assert torch.equal(ours[name].values, rows.values), (field, name)
            assert np.array_equal(ours[name].lengths, rows.lengths), (field, name)
    assert torch.equal(got.values, expected.values)
