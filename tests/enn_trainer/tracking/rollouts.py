"""Rollouts of `Meadow`."""

import torch

from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.players import AgentPlayer
from entity_env import EnvList
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.worlds import Meadow

SPACE = Meadow().action_space()


def collected(seed: int, steps: int = 6, num_envs: int = 5) -> tuple[RogueNet, Rollout]:
    torch.manual_seed(seed)
    envs = EnvList(Meadow, num_envs)
    envs.seed(seed)
    obs_space = envs.obs_space()
    net = RogueNet(
        RogueNetConfig(d_model=8, n_layer=1), obs_space, envs.action_space(), {"value": 1}
    )
    for head in net.parameters():  # uneven choices, so that nothing is equal by chance
        torch.nn.init.normal_(head, std=0.5)
    collector = Collector(envs, AgentPlayer(net, seed))
    collector.reset(obs_space)
    return net, collect(collector, steps=steps, first_frame=0)
