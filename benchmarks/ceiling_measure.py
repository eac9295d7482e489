"""Measurements of ceiling.py: environments, the network, and training.

    python benchmarks/ceiling_measure.py JSON

Prints its result as a line of JSON, in a separate process. The first two measure processor time,
which depends little on the load of the machine.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer import StateManager, Trainer
from enn_trainer.algorithms.minibatches import minibatches, split_minibatch
from enn_trainer.base.policy import PPOAgent
from enn_trainer.cli.work.profile import profile
from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.envs import env_factory
from enn_trainer.experience.players import AgentPlayer, draw_uniforms, equal_slices
from enn_trainer.runtime.execution import cost_of_entity
from entity_env import Environment, Observation
from entity_env.examples import ENV_REGISTRY
from entity_env.spaces import GLOBAL
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import batch_obs, unbatch_actions
from rogue_net.rogue_net import NetOutput

CORES = 2
WORLDS = 256
"""Number of environments stepped in a plain loop."""
NETWORK = {
    "forward while acting": "act",
    "values of the last frames": "act",
    "forward of minibatches": "forward",
    "backward of minibatches": "backward",
}
"""Profile sections of the network, and the share that each is added to."""
ENVIRONMENTS = ("waiting for workers", "messages to and from workers")


def environments(settings: list[str], seconds: float) -> dict[str, float]:
    """Measure core-microseconds per frame of `act` and `reset`."""
    config = StateManager(overrides=settings).config
    kind = ENV_REGISTRY[config.env.id]
    worlds: list[Any] = [kind(**json.loads(config.env.kwargs)) for _ in range(WORLDS)]
    space, actions = worlds[0].obs_space(), worlds[0].action_space()
    rng = np.random.default_rng(0)
    for i, world in enumerate(worlds):
        world.seed(i)
    frames = [_first_frame(world) for world in worlds]
    used_ns, steps = list[int](), 0
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends or steps < 2:
        batch = batch_obs(frames, space, actions)
        choices = random_choices(batch, actions, rng)
        chosen = unbatch_actions(choices, batch, frames, space, actions)
        start_ns = time.process_time_ns()
        frames = [
            world.act(actions_of_env) for world, actions_of_env in zip(worlds, chosen, strict=True)
        ]
        frames = [_first_frame(w) if o.done else o for w, o in zip(worlds, frames, strict=True)]
        used_ns.append(time.process_time_ns() - start_ns)
        steps += 1
    return {"env_us": statistics.mean(used_ns) / 1e3 / WORLDS}


def _first_frame(world: Environment) -> Observation:
    frame = world.reset()
    while frame.done:
        frame = world.reset()
    return frame


def network(settings: list[str], seconds: float) -> dict[str, float]:
    """Measure core-microseconds per frame of the network, including rollouts."""
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        manager = StateManager(overrides=[*settings, f"data_dir={folder}", "rollout.processes=1"])
        env = ENV_REGISTRY[manager.config.env.id]
        with Trainer(manager, env) as trainer:
            agent, config, space = trainer.state.agent, manager.config, trainer.state.obs_space
            envs = env_factory(env)(config.env, config.rollout.num_envs, 1, 0)
            envs.seed(1)
            collector = Collector(envs, AgentPlayer(agent, seed=0))
            collector.reset(space)
            rollout = collect(collector, steps=config.rollout.steps, first_frame=0)
            acts = _forward_while_acting(agent, rollout, config)
            learns = _gradients(agent, rollout, config)
            act_us = _microseconds(acts, seconds / 3) / config.rollout.num_envs
            agent.train()
            learn_us = _microseconds(learns, seconds) / config.optim.bs
    epochs = config.optim.update_epochs
    return {"act_us": act_us, "learn_us": epochs * learn_us, "us": act_us + epochs * learn_us}


def _forward_while_acting(
    agent: PPOAgent, rollout: Rollout, config: TrainConfig
) -> list[Callable[[], object]]:
    """Return the forward passes of a step in the middle of a rollout, as functions."""
    num_envs, cost = config.rollout.num_envs, cost_of_entity(agent)
    assert cost is not None
    first = num_envs * (config.rollout.steps // 2)
    batches = [
        rollout.batch.slice(slice(first + piece.start, first + piece.stop))
        for piece in equal_slices(num_envs, cost)
    ]

    def forward(batch: Any, draws: Any) -> NetOutput:
        with torch.no_grad():
            return agent(batch, uniforms=draws)

    envs = np.arange(num_envs)
    return [
        partial(forward, batch, draw_uniforms(batch.actions, 0, envs[: batch.num_frames], 0))
        for batch in batches
    ]


def _gradients(
    agent: PPOAgent, rollout: Rollout, config: TrainConfig
) -> list[Callable[[], object]]:
    """Return the forward and backward passes of a minibatch in microbatches, as functions."""
    assert isinstance(agent, nn.Module)
    parameters = [p for p in agent.parameters() if p.requires_grad]
    optim, features = config.optim, rollout.batch.features.items()
    entities: Any = sum(rows.lengths for name, rows in features if name != GLOBAL)
    frames = next(minibatches(rollout.num_frames, optim.bs, 1, seed=0))
    cut = split_minibatch(
        entities[frames], optim.micro_bs, optim.max_entities, cost_of_entity(agent)
    )

    def gradient(batch: Any, chosen: dict[str, Tensor]) -> object:
        out = agent(batch, actions=chosen)
        outputs = [*out.logprobs.values(), *out.entropies.values(), *out.values.values()]
        loss = torch.stack([x.sum() for x in outputs]).sum()
        return torch.autograd.grad(loss, parameters, allow_unused=True)

    return [
        partial(
            gradient,
            rollout.batch.take(some),
            {name: rows.take(some).values for name, rows in rollout.actions.items()},
        )
        for some in (frames[piece] for piece in cut)
    ]


def _microseconds(work: list[Callable[[], object]], seconds: float) -> float:
    """Measure the core time of calling some functions: the median after a warm-up."""
    work[0]()
    used, ends = list[int](), time.perf_counter() + seconds
    while time.perf_counter() < ends or not used:
        start_ns = time.process_time_ns()
        for part in work:
            part()
        used.append(time.process_time_ns() - start_ns)
    return statistics.median(used) / 1e3


def train(settings: list[str], seconds: float) -> dict[str, float]:
    """Measure the trainer's speed, core usage and shares of time."""
    torch.set_num_threads(CORES)  # overrides OMP_NUM_THREADS
    with TemporaryDirectory() as folder:
        manager = StateManager(overrides=[*settings, f"data_dir={folder}"])
        measured = profile(manager, env_factory(ENV_REGISTRY[manager.config.env.id]), seconds)
    shares = {"env": 0.0, "act": 0.0, "forward": 0.0, "backward": 0.0}
    other_shares = dict[str, float]()
    for part in measured.parts:
        share = part.wall_ms / measured.update_ms
        name = "env" if part.name in ENVIRONMENTS else NETWORK.get(part.name)
        if name is not None:
            shares[name] += share
        else:
            other_shares[part.name] = share
    return {
        "frames_s": measured.frames_per_s,
        "cores": measured.resources.cores_used,
        "overhead": 1 - sum(shares.values()),
        **shares,
        **other_shares,
    }


if __name__ == "__main__":
    name, arguments = json.loads(sys.argv[1])
    measures = {"environments": environments, "network": network, "train": train}
    print(json.dumps(measures[name](**arguments)))
