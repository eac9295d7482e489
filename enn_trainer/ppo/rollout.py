"""Collection of rollouts: an agent acts in many environments for some steps."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from enn_trainer.acting import choose, step, values_of
from enn_trainer.agent import PPOAgent
from enn_trainer.frame_memory import check_frame_memory
from enn_trainer.ppo.storage import RolloutStorage
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import Metric, VecEnv, VecObs, add_metrics
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device


@dataclass(frozen=True)
class Rollout:
    """T steps of B environments. Frame t * B + b is step t of environment b.

    Attributes:
        batch: the T * B frames.
        actions: per action int64 (actors,) per frame, the choices.
        logprobs: per action float32 (actors,) per frame, of the choices.
        entropies: per action float32 (actors,) per frame, of all that could be chosen.
        values: (T, B) float32.
        rewards: (T, B) float32, of the step from each frame.
        terminated: (T, B) bool, the episode ended by itself in that step.
        truncated: (T, B) bool, the episode was cut off in that step.
        last_values: (B,) float32, of the frames after the last step; 0 where an episode ended.
        final_values: (truncated episodes,) float32, of their last observations, in the order of
            `truncated`.
        metrics: of the environments, over all steps.
        next_obs: the frames after the last step.
    """

    batch: EntityBatch
    actions: Mapping[str, RaggedTensor]
    logprobs: Mapping[str, RaggedTensor]
    entropies: Mapping[str, RaggedTensor]
    values: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    last_values: Tensor
    final_values: Tensor
    metrics: Mapping[str, Metric]
    next_obs: VecObs

    @property
    def num_frames(self) -> int:
        """Number of frames, T * B."""
        return self.batch.num_frames


@torch.no_grad()
def collect(
    envs: VecEnv,
    agent: PPOAgent,
    obs: VecObs,
    obs_space: ObsSpace,
    *,
    steps: int,
    seed: int,
    first_frame: int,
    device: torch.device,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> Rollout:
    """Act for `steps` steps in every environment.

    Args:
        envs: B environments.
        agent: chooses the actions; it is not changed.
        obs: the current frames of the environments.
        obs_space: the observation space to select features by.
        steps: T.
        seed: seed of the random choices.
        first_frame: number of frames of the run before; the choices depend on it.
        device: device of the frames.
        context: threads, interrupt check and timers.
    """
    # Allocate.
    num_envs = len(envs)
    env = np.arange(num_envs)
    storage = RolloutStorage(steps * num_envs)
    rewards = np.empty((steps, num_envs), np.float32)
    terminated, truncated = np.empty((2, steps, num_envs), np.bool_)
    finals, final_values = [], [torch.zeros(0, device=device)]
    metrics: dict[str, Metric] = {}

    # Act for T steps. The last observations of truncated episodes are valued in batches.
    for t in range(steps):
        context.check()
        with context.spans.span("batch"):
            batch = EntityBatch.of(obs, device)
            check_frame_memory(agent, batch, env, learning=True)
        frame = first_frame + t * num_envs
        with context.spans.span("act"):
            out = choose(agent, batch, env, frame, seed, context.lanes)
        with context.spans.span("env"):
            obs = step(envs, obs_space, out, batch, frame)
        storage.add(batch, out)
        rewards[t], terminated[t], truncated[t] = obs.reward, obs.terminated, obs.truncated
        add_metrics(metrics, obs.metrics)
        if obs.final is not None:
            finals.append(EntityBatch.of(obs.final, device))
            check_frame_memory(agent, finals[-1], np.flatnonzero(obs.truncated), learning=False)
            if sum(final.num_frames for final in finals) >= num_envs:  # to bound memory
                final_values.append(values_of(agent, EntityBatch.cat(finals), context.lanes))
                finals = []

    # Values to bootstrap from: of the frames after the last step, and of truncated episodes.
    with context.spans.span("values"):
        last_values = final_values[0].new_zeros(num_envs)
        going_on = np.flatnonzero(~obs.done)  # the value after the end of an episode is 0
        if len(going_on):
            of_last = EntityBatch.of(obs, device)
            check_frame_memory(agent, of_last, env, learning=True)
            if len(going_on) < num_envs:
                of_last = of_last.take(going_on)
            last_values[to_device(going_on, device)] = values_of(agent, of_last, context.lanes)
        if finals:
            final_values.append(values_of(agent, EntityBatch.cat(finals), context.lanes))
    stored = storage.take()
    return Rollout(
        batch=stored.batch,
        actions=stored.actions,
        logprobs=stored.logprobs,
        entropies=stored.entropies,
        values=stored.values.view(steps, num_envs),
        rewards=torch.from_numpy(rewards).to(device),
        terminated=torch.from_numpy(terminated).to(device),
        truncated=torch.from_numpy(truncated).to(device),
        last_values=last_values,
        final_values=torch.cat(final_values),
        metrics=metrics,
        next_obs=obs,
    )
