"""Letting agents play, each in its environments."""

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
from entity_env.vec_env import Metric, VecEnv, add_metrics
from rogue_net.answer import NetOutput, output_of
from rogue_net.distributions import Decision
from rogue_net.ragged import EntityBatch, to_device


class Seats(NamedTuple):
    """Which environments an agent plays in.

    Attributes:
        agent: who plays.
        frames: (environments,) int64, their indices.
        deterministic: it takes the most probable choices instead of sampling.
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
    """Let agents play for some steps, each in its environments.

    Args:
        envs: where they play.
        seats: who plays in which of them.
        steps: how many.
        seed: of episodes and choices.
        device: where the agents are.
        stop: asked before each step whether to end early.
        run_step: the step of the run, for a recording.
        obs_space: what the agents see, in the order in which they know it; by default that of the
            environments.
        lanes: what they say is computed in these.

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
        obs = step(envs, obs_space, answer_of_all(seats, batch, seed, t, lanes), batch, run_step)
        add_metrics(metrics, obs.metrics)
    return metrics


def answer_of_all(
    seats: Sequence[Seats], batch: EntityBatch, seed: int, t: int, lanes: Lanes = ONE_LANE
) -> NetOutput:
    """What every agent says about its frames, put together in the order of the frames.

    Args:
        seats: who plays in which frames.
        batch: all frames.
        seed: of the choices.
        t: how many steps were taken before.
        lanes: what is said is computed in these.
    """
    taken = [seat for seat in seats if len(seat.frames)]
    outs, batches = [], []
    for agent, frames, deterministic in taken:
        theirs = batch.take(frames)
        check_frame_memory(agent, theirs, frames, learning=False)
        batches.append(theirs)
        outs.append(choose(agent, theirs, frames, t, None if deterministic else seed, lanes))
    if len(outs) == 1:
        return outs[0]
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
