"""A rollout to learn from, in any precision, and the options of the loss."""

from dataclasses import replace
from typing import Any

import torch

from enn_trainer import (
    OptimizerConfig,
    PPOConfig,
    RogueNetConfig,
    TrainConfig,
    ValueBinsConfig,
)
from enn_trainer.algorithms.ppo.ppo import PPO
from enn_trainer.algorithms.ppo.returns import Estimate
from enn_trainer.checkpoints.state import make_network
from enn_trainer.config.load import load_config
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from entity_env import AddMetricsWrapper, EnvList
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.worlds import Meadow


def a_rollout(
    num_envs: int = 4,
    steps: int = 6,
    seed: int = 0,
    pdrop: float = 0.0,
    ppo: PPOConfig | None = None,
) -> tuple[RogueNet, Rollout]:
    envs = AddMetricsWrapper(EnvList(Meadow, num_envs))
    envs.seed(seed)
    config = TrainConfig.__new__(TrainConfig)  # only what make_network reads
    config.seed = seed
    config.ppo = ppo or PPOConfig()
    config.net = RogueNetConfig(d_model=16, embd_pdrop=pdrop, resid_pdrop=pdrop, attn_pdrop=pdrop)
    net = make_network(config, envs.obs_space(), envs.action_space())
    collector = Collector(envs, AgentPlayer(net, seed))
    net.update_input_stats(EntityBatch.of(collector.reset(envs.obs_space())))
    return net, collect(collector, steps=steps, first_frame=0)


def optimize(
    net: Any,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    estimate: Estimate,
    *,
    ppo: PPOConfig,
    optim: OptimizerConfig,
    ent_coef: float,
    seed: int,
    ent_tunings: dict[str, torch.Tensor] | None = None,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> dict[str, float]:
    """`PPO.optimize` with an optimizer and settings of the test's own."""
    config = replace(load_config(TrainConfig, None), ppo=replace(ppo, ent_targets={}), optim=optim)
    algorithm = PPO(config, net, {})
    algorithm.config.ppo = ppo
    algorithm.optimizer, algorithm.vf_optimizer = optimizer, None
    algorithm.ent_tunings = ent_tunings or {}
    return algorithm.optimize(rollout, estimate, ent_coef, seed, context=context)


def double(rollout: Rollout) -> Rollout:
    batch = rollout.batch
    features = {
        name: type(rows)(rows.values.double(), rows.lengths)
        for name, rows in batch.features.items()
    }
    return Rollout(
        **{
            **vars(rollout),
            "batch": EntityBatch(features, batch.visible, batch.actions, batch.num_frames),
            "values": rollout.values.double(),
            "rewards": rollout.rewards.double(),
            "last_values": rollout.last_values.double(),
            "final_values": rollout.final_values.double(),
        }
    )


BINS = ValueBinsConfig(-1.0, 3.0, 21)
OPTIONS: dict[str, dict[str, Any]] = {
    "as published": {
        "norm_adv_over": "all",
        "clip_vloss": True,
        "value_norm": False,
        "value_loss": "mse",
    },
    "joint ratio": {"ratio": "frame"},
    "equal frames": {"weight_by": "frame"},
    "joint ratio of equal frames": {"ratio": "frame", "weight_by": "frame"},
    "dual clip": {"dual_clip": 1.1},
    "huber": {"value_loss": "huber", "huber_delta": 0.1},
    "range of its own": {"clip_vloss": True, "vf_clip_coef": 0.01},
    "hl_gauss": {"value_loss": "hl_gauss", "value_bins": BINS},
    "entropy targets": {"ent_targets": {"walk": 0.5, "watch": 0.2}},
}


def moved_rollout(ppo: PPOConfig, num_envs: int = 4) -> tuple[RogueNet, Rollout]:
    """A rollout, and the network of it after a step, so that ratios differ from 1."""
    net, rollout = a_rollout(num_envs=num_envs, ppo=ppo)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return net.double(), double(rollout)
