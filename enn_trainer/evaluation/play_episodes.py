"""Letting agents play, each in its environments."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent, draw_uniforms
from enn_trainer.capture import act
from entity_env.spaces import ObsSpace
from entity_env.vec_env import Metric, VecEnv, add_metrics
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device
from rogue_net.rogue_net import NetOutput


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
        obs = act(envs, obs_space, answer_of_all(seats, batch, seed, t), batch, run_step)
        add_metrics(metrics, obs.metrics)
    return metrics


def answer_of_all(seats: Sequence[Seats], batch: EntityBatch, seed: int, t: int) -> NetOutput:
    """What every agent says about its frames, put together in the order of the frames.

    Args:
        seats: who plays in which frames.
        batch: all frames.
        seed: of the choices.
        t: how many steps were taken before.
    """
    taken = [seat for seat in seats if len(seat.frames)]
    outs, batches = [], []
    for agent, frames, deterministic in taken:
        theirs = batch.take(frames)
        batches.append(theirs)
        draws = None if deterministic else draw_uniforms(theirs.actions, seed, frames, t)
        outs.append(agent(theirs, uniforms=draws))
    if len(outs) == 1:
        return outs[0]
    order = np.argsort(np.concatenate([seat.frames for seat in taken]))
    lengths = {
        name: np.concatenate([b.actions[name].actors.lengths for b in batches])
        for name in batch.actions
    }

    def of_actors(said: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: RaggedTensor(_cat([s[name] for s in said]), n).take(order).values
            for name, n in lengths.items()
        }

    values = torch.cat([out.values["value"] for out in outs])
    return NetOutput(
        actions=of_actors([out.actions for out in outs]),
        logprobs=of_actors([out.logprobs for out in outs]),
        entropies=of_actors([out.entropies for out in outs]),
        log_probs=of_actors([out.log_probs for out in outs]),
        values={"value": values.index_select(0, to_device(order, values.device))},
    )


def _cat(pieces: Sequence[Tensor]) -> Tensor:
    """Rows one piece after the other, the narrower ones made wider by what is not possible."""
    if pieces[0].dim() == 1:
        return torch.cat(list(pieces))
    widest = max(piece.shape[1] for piece in pieces)
    return torch.cat(
        [
            nn.functional.pad(piece, (0, widest - piece.shape[1]), value=-math.inf)
            for piece in pieces
        ]
    )
