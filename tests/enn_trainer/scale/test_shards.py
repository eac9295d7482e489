"""Shards: groups of environments, and learning that is cut by them."""

import copy
from dataclasses import replace

import torch

from enn_trainer import OptimizerConfig, PPOConfig
from enn_trainer.algorithms.ppo.returns import advantages
from enn_trainer.scale.shards import Shards, tree_sum
from tests.enn_trainer.algorithms.ppo.builders import a_rollout, double, optimize


def test_shards_are_whole_matches_and_ranks_have_consecutive_ones() -> None:
    shards = Shards.of(num_envs=22, sides=2, count=4)
    assert shards.bounds == (0, 4, 10, 16, 22)
    assert [shards.of_rank(rank, 3).own for rank in range(3)] == [
        range(1),
        range(1, 2),
        range(2, 4),
    ]
    assert tree_sum(["a", "b", "c", "d", "e"], "({}{})".format) == "(((ab)(cd))e)"


def test_four_shards_learn_what_one_learns_but_for_rounding() -> None:
    net, rollout = a_rollout(num_envs=7)
    rollout, nets = double(rollout), [copy.deepcopy(net).double() for _ in range(2)]
    cut = replace(rollout, shards=Shards.of(7, 1, 4))
    for one, frames in zip(nets, (rollout, cut), strict=True):
        optimizer = torch.optim.SGD(one.parameters(), 0.1)
        ppo, optim = PPOConfig(), OptimizerConfig(bs=8, update_epochs=3)
        estimate = advantages(frames, ppo)
        optimize(one, optimizer, frames, estimate, ppo=ppo, optim=optim, ent_coef=0.1, seed=3)
    for a, b in zip(*(one.parameters() for one in nets), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
