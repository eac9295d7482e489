"""Stepping of environments by one or several agents, each in its own environments."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.acting import choose, joined, step
from enn_trainer.agent import PPOAgent
from enn_trainer.frame_memory import check_frame_memory
from enn_trainer.lanes import ONE_LANE, Lanes
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import Metric, VecEnv, add_metrics
from rogue_net.answer import NetOutput, output_of
from rogue_net.distributions import Decision
from rogue_net.ragged import EntityBatch, to_device


class Seats(NamedTuple):
    """Environments that an agent plays in.

    Attributes:
        agent: the agent.
        frames: (n,) int64, indices of its environments.
        deterministic: True to take the most probable choices instead of sampling.
    """

    agent: PPOAgent
    frames: npt.NDArray[np.int64]
    deterministic: bool = False


@torch.no_grad()
def play(
    envs: VecEnv,
    seats: Sequence[Seats],
    steps: int,
    seed: int,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    run_step: int = 0,
    obs_space: ObsSpace | None = None,
    lanes: Lanes = ONE_LANE,
) -> Mapping[str, Metric]:
    """Step environments with the actions of agents, each in its own environments.

    Args:
        envs: the environments.
        seats: the agents and their environments.
        steps: number of steps.
        seed: random seed of episodes and choices.
        device: device of the agents.
        stop: called before each step; True ends early.
        run_step: step of the run, for recordings.
        obs_space: observation space of the agents, in their order; by default that of `envs`.
        lanes: lanes in which forward passes are computed.

    Returns:
        The metrics of all steps.
    """
    obs_space = envs.obs_space() if obs_space is None else obs_space
    metrics: dict[str, Metric] = {}
    envs.seed(seed)
    obs = envs.reset(obs_space)
    for t in range(steps):
        if stop():
            break
        batch = EntityBatch.of(obs, device)
        obs = step(envs, obs_space, act_all(seats, batch, seed, t, lanes), batch, run_step)
        add_metrics(metrics, obs.metrics)
    return metrics


def act_all(
    seats: Sequence[Seats], batch: EntityBatch, seed: int, t: int, lanes: Lanes = ONE_LANE
) -> NetOutput:
    """Return the outputs of all agents for their frames, in the order of the frames.

    Args:
        seats: the agents and their frames.
        batch: all frames.
        seed: random seed of the choices.
        t: number of steps before this one.
        lanes: lanes in which forward passes are computed.
    """
    # Forward pass of each agent.
    taken = [seat for seat in seats if len(seat.frames)]
    outs, batches = [], []
    for agent, frames, deterministic in taken:
        theirs = batch.take(frames)
        check_frame_memory(agent, theirs, frames, learning=False)
        batches.append(theirs)
        outs.append(choose(agent, theirs, frames, t, None if deterministic else seed, lanes))
    if len(outs) == 1:
        return outs[0]

    # Concatenate, and put frames and their actors back in the order of `batch`.
    together = joined(outs)
    order = np.argsort(np.concatenate([seat.frames for seat in taken]))
    lengths = {
        name: np.concatenate([b.actions[name].actors.lengths for b in batches])
        for name in batch.actions
    }
    value = together.values["value"]
    decisions = {}
    for name, n in lengths.items():
        actors = to_device(row_indices(exclusive_cumsum(n)[order], n[order]), value.device)
        decisions[name] = Decision(
            together.actions[name].index_select(0, actors),
            together.logprobs[name].index_select(0, actors),
            together.entropies[name].index_select(0, actors),
            together.distribution(name).take(actors),
        )
    values = {"value": value.index_select(0, to_device(order, value.device))}
    return output_of(decisions, values)
