"""Measuring an agent in environments of its own, alone or against an opponent."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.agent import PPOAgent, draw_uniforms
from enn_trainer.config import TrainConfig
from enn_trainer.envs import EnvFactory, global_randomness_kept
from entity_env.metrics import AddMetricsWrapper
from entity_env.ragged import Ragged, exclusive_cumsum, row_indices
from entity_env.seeding import derive_seed
from entity_env.vec_env import Metric, VecEnv, add_metrics
from rogue_net.ragged import EntityBatch


class Seats(NamedTuple):
    """Which environments an agent plays in: `frames` are their indices."""

    agent: PPOAgent
    frames: npt.NDArray[np.int64]


def evaluate(
    config: TrainConfig,
    create_envs: EnvFactory,
    agent: PPOAgent,
    opponent: PPOAgent | None,
    device: torch.device,
    stop: Callable[[], bool],
) -> Mapping[str, Metric]:
    """Play `eval.steps` steps in `eval.num_envs` environments made for it.

    With an opponent, the agent plays where the index is even and the opponent where it is odd,
    and only the agent's environments count; with `eval.opponent_only` the opponent plays
    everywhere. The result is a function of the configuration and the agents: episodes and choices
    have seeds of their own, and neither the agents nor any generator of random numbers is changed.

    Args:
        config: of the run.
        create_envs: makes the environments.
        agent: the one to measure.
        opponent: whom to play against.
        device: where they play.
        stop: asked before each step whether to end early.

    Returns:
        The metrics of the environments.
    """
    cfg = config.eval
    assert cfg is not None
    num_envs = cfg.num_envs or config.rollout.num_envs
    processes = cfg.processes or min(config.rollout.processes, num_envs)
    with global_randomness_kept(), ExitStack() as stack:
        envs = create_envs(cfg.env or config.env, num_envs, processes, 0)
        stack.callback(envs.close)
        everywhere = np.arange(num_envs)
        counted = None
        if opponent is None:
            seats = [Seats(agent, everywhere)]
        elif cfg.opponent_only:
            seats = [Seats(opponent, everywhere)]
        else:
            seats = [Seats(agent, everywhere[::2]), Seats(opponent, everywhere[1::2])]
            counted = everywhere % 2 == 0
        seed = derive_seed(config.seed, "eval")
        return play(AddMetricsWrapper(envs, counted), seats, cfg.steps, seed, device, stop)


@torch.no_grad()
def play(
    envs: VecEnv,
    seats: Sequence[Seats],
    steps: int,
    seed: int,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
) -> Mapping[str, Metric]:
    """Let agents play for some steps, each in its environments; the metrics of all steps."""
    obs_space = envs.obs_space()
    metrics: dict[str, Metric] = {}
    envs.seed(seed)
    obs = envs.reset(obs_space)
    for t in range(steps):
        if stop():
            break
        batch = EntityBatch.of(obs, device)
        obs = envs.act(_choose(seats, batch, seed, t), obs_space)
        add_metrics(metrics, obs.metrics)
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
