"""Frames to check an exported network with: of the environment, or random ones of its spaces."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from enn_trainer.check_agent import random_frame
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.players import AgentPlayer
from entity_env.ragged import Ragged
from entity_env.spaces import Spaces
from entity_env.vec.batching import batch_obs
from entity_env.vec.vec_env import VecEnv
from rogue_net.dense import DenseNet
from rogue_net.dense_arrays import Arrays, networks
from rogue_net.memory import Memory, memory_rows
from rogue_net.past import FRAME, Past, RowKeys, link_single_frames
from rogue_net.ragged import EntityBatch

NUM_FRAMES = 200
_NUM_ENVS = 10


def frames_of_env(create: Callable[[int], VecEnv], types: Sequence[str]) -> EntityBatch:
    """Return `NUM_FRAMES` frames of an environment in which random actions are taken.

    Args:
        create: creates a number of environments, which are closed.
        types: entity types with recurrent states; their numbers are in `identity`.
    """
    envs = create(_NUM_ENVS)
    try:
        envs.seed(0)
        envs.track(types)
        space = envs.obs_space()
        player = AgentPlayer(RandomAgent(envs.action_space()), seed=0)
        obs, batches = envs.reset(space), list[EntityBatch]()
        for t in range(NUM_FRAMES // _NUM_ENVS):
            batches.append(EntityBatch.of(obs))
            decisions = player.act(obs, batches[-1], t)
            obs = envs.act(decisions.chosen_on_host(), space)
    finally:
        envs.close()
    return EntityBatch.cat(batches)


def random_frames(spaces: Spaces, num_frames: int = NUM_FRAMES) -> EntityBatch:
    """Return random frames, also of types without entities; all entities have an identity."""
    rng = np.random.default_rng(0)
    obs_space, action_space = spaces
    frames = [random_frame(obs_space, action_space, rng) for _ in range(num_frames)]
    batch = EntityBatch.of(batch_obs(frames, obs_space, action_space))
    lengths = {name: batch.features[name].lengths for name in obs_space.entities}
    numbers = {name: np.concatenate([*map(np.arange, n)]) for name, n in lengths.items()}
    identity = {name: Ragged(rows, lengths[name]) for name, rows in numbers.items()}
    return replace(batch, identity=identity)


def random_draws(batch: EntityBatch) -> Arrays:
    """Return random numbers in [0, 1) for all actors, multiples of 2**-23."""
    generator, draws = torch.Generator().manual_seed(0), {}
    for name, action in batch.actions.items():
        num_actors, num_draws = len(action.actors.values), action.num_draws
        shape = (num_actors,) if num_draws == 1 else (num_actors, num_draws)
        draws[name] = torch.randint(2**23, shape, generator=generator).float() * 2.0**-23
    return draws


def with_random_states(net: DenseNet, batch: EntityBatch) -> tuple[EntityBatch, Arrays]:
    """Add random recurrent states to frames, each in a sequence of its own.

    Returns:
        The frames with their `past`; and the states as inputs of the network.
    """
    generator, inputs = torch.Generator().manual_seed(1), Arrays()
    reward = torch.randn(batch.num_frames, generator=generator)
    if "reward" in net.inputs:
        inputs["reward"] = reward
    identity = {name: x for name, x in batch.identity.items() if name not in net.without_ids}
    batch, pasts = replace(batch, identity=identity), {}
    for prefix, one in networks(net.agent).items():
        if one.memory is not None:
            past, states = _random_states(prefix, one.memory, net, batch, reward, generator)
            pasts[prefix], inputs = past, inputs | states
    if not pasts:
        return batch, inputs
    value_past = pasts.get("value_")
    policy_past = pasts.get("", value_past)
    assert policy_past is not None
    return replace(batch, past=replace(policy_past, value_past=value_past)), inputs


def _random_states(
    prefix: str,
    memory: Memory,
    net: DenseNet,
    batch: EntityBatch,
    reward: Tensor,
    generator: torch.Generator,
) -> tuple[Past, Arrays]:
    """Return random states of a network for about half of the rows, as a past and as inputs."""
    rows = memory_rows(batch, memory.remembering)
    states = torch.randn(len(rows.kind), memory.width, generator=generator)
    known = torch.rand(len(rows.kind), generator=generator) < 0.5
    index = np.flatnonzero(known.numpy())
    zeros = np.zeros(len(index), np.int64)
    keys = RowKeys(rows.frame[index], rows.kind[index], rows.number[index], zeros)
    time, is_first = np.zeros(batch.num_frames, np.int64), np.zeros(batch.num_frames, np.bool_)
    links = link_single_frames(rows, is_first, keys, memory.remembering.keep_absent)
    past = Past.of(rows, links, time, reward.numpy(), states[known])

    inputs = Arrays()
    for kind, name in enumerate(["", *memory.types]):
        of_kind = torch.from_numpy(np.flatnonzero(rows.kind == kind))
        key = f"/{name}" if name else ""
        if f"{prefix}memory{key}" not in net.inputs:
            continue
        length = 1 if kind == FRAME else max(1, int(batch.features[name].lengths.max(initial=0)))
        place = torch.from_numpy(rows.frame), torch.from_numpy(rows.rank)
        where = tuple(part.index_select(0, of_kind) for part in place)
        padded = torch.zeros(batch.num_frames, length, memory.width)
        flags = torch.zeros(batch.num_frames, length, dtype=torch.bool)
        padded[where], flags[where] = states[of_kind], known[of_kind]
        is_frame = kind == FRAME
        inputs[f"{prefix}memory{key}"] = padded[:, 0] if is_frame else padded
        inputs[f"{prefix}known{key}"] = flags[:, 0] if is_frame else flags
    return past, inputs
