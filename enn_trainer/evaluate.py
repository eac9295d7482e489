"""Measuring an agent in environments of its own, alone or against an opponent."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.agent import PPOAgent, draw_uniforms
from enn_trainer.config import TrainConfig
from enn_trainer.envs import EnvFactory, global_randomness_kept
from enn_trainer.errors import ConfigError
from enn_trainer.opponents import CreateOpponent
from entity_env.metrics import AddMetricsWrapper
from entity_env.ragged import Ragged, exclusive_cumsum, row_indices
from entity_env.seeding import derive_seed
from entity_env.vec_env import Metric, VecEnv
from rogue_net.ragged import EntityBatch


class Seats(NamedTuple):
    """Which environments an agent plays in: `frames` are their indices."""

    agent: PPOAgent
    frames: npt.NDArray[np.int64]


def evaluate(
    config: TrainConfig,
    create_envs: EnvFactory,
    create_opponent: CreateOpponent,
    agent: PPOAgent,
    device: torch.device,
) -> Mapping[str, Metric]:
    """Play `eval.steps` steps in `eval.num_envs` environments made for it.

    With an opponent, the agent plays where the index is even and the opponent where it is odd,
    and only the agent's environments count. The result is a function of the configuration and the
    agent: episodes and choices have seeds of their own, and neither the agent nor any generator of
    random numbers is changed.

    Returns:
        The metrics of the environments.
    """
    cfg = config.eval
    assert cfg is not None
    num_envs = cfg.num_envs or config.rollout.num_envs
    processes = cfg.processes or min(config.rollout.processes, num_envs)
    with global_randomness_kept():
        envs = create_envs(cfg.env or config.env, num_envs, processes, 0)
        try:
            everywhere = np.arange(num_envs)
            seats, counted = [Seats(agent, everywhere)], None
            if cfg.opponent is not None:
                spaces = envs.obs_space(), envs.action_space()
                opponent = create_opponent(cfg.opponent, *spaces, device)
                seats, counted = [Seats(opponent, everywhere)], None
                if not cfg.opponent_only:
                    seats = [Seats(agent, everywhere[::2]), Seats(opponent, everywhere[1::2])]
                    counted = everywhere % 2 == 0
            elif cfg.opponent_only:
                raise ConfigError("eval.opponent_only: expected eval.opponent to be set")
            seed = derive_seed(config.seed, "eval")
            return play(AddMetricsWrapper(envs, counted), seats, cfg.steps, seed, device)
        finally:
            envs.close()


@torch.no_grad()
def play(
    envs: VecEnv, seats: Sequence[Seats], steps: int, seed: int, device: torch.device
) -> Mapping[str, Metric]:
    """Let agents play for some steps, each in its environments; the metrics of all steps."""
    obs_space = envs.obs_space()
    metrics: dict[str, Metric] = {}
    envs.seed(seed)
    obs = envs.reset(obs_space)
    for t in range(steps):
        batch = EntityBatch.of(obs, device)
        obs = envs.act(_choose(seats, batch, seed, t), obs_space)
        for name, metric in obs.metrics.items():
            metrics[name] = metrics[name] + metric if name in metrics else metric
    return metrics


def _choose(seats: Sequence[Seats], batch: EntityBatch, seed: int, t: int) -> dict[str, Ragged]:
    """The choices of every agent for its frames, put together in the order of the frames."""
    lengths = {name: action.actors.lengths for name, action in batch.actions.items()}
    chosen = {name: np.zeros(int(n.sum()), dtype=np.int64) for name, n in lengths.items()}
    for agent, frames in seats:
        if len(frames) == 0:
            continue
        theirs = batch.take(frames)
        out = agent(theirs, uniforms=draw_uniforms(theirs.actions, seed, frames, t))
        for name, n in lengths.items():
            rows = row_indices(exclusive_cumsum(n)[frames], n[frames])
            chosen[name][rows] = out.actions[name].cpu().numpy()
    return {name: Ragged(chosen[name], n) for name, n in lengths.items()}
