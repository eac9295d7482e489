"""Members of a league from the agent and from saves, and the networks that they play with."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save as save_tensors

from enn_trainer.checkpoints.lookup import SavedRun, pool_of_run, read_saved_run, run_of_member
from enn_trainer.checkpoints.migrate.space_diff import diff_spaces, incompatibilities
from enn_trainer.checkpoints.state_files import saved_network
from enn_trainer.checkpoints.weights import load_weights, tensors_of
from enn_trainer.config.selfplay_config import RANDOM
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.experience.frame_limits import rogue_nets
from enn_trainer.policy import CreateOpponent, Opponent, PPOAgent, frozen_copy
from enn_trainer.selfplay.league import SNAPSHOT, League, Member
from enn_trainer.selfplay.matchmaking import NAMED
from enn_trainer.state import State
from enn_trainer.state_part import SavedNetwork
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet
from rogue_net.wiring import Wired

Trained: TypeAlias = State | SavedRun
"""A run: the agent, with the spaces and the number of frames it was trained with."""


def snapshot_of(
    agent: Any, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace], step: int
) -> Member:
    """Return a copy of an agent as a member: its policy and statistics, without values.

    Args:
        agent: the network; of one of the user's own, all tensors are copied.
        obs_space: observation space of the agent.
        action_space: action space of the agent.
        step: number of frames it was trained for.
    """
    network = agent.policy if isinstance(agent, RogueNetWithValueNet) else agent
    if type(network) is RogueNet:
        saved = saved_network(network, obs_space, action_space)
    else:
        weights = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
        saved = SavedNetwork("", "", save_tensors(weights))
    return Member(f"step-{step}", step, SNAPSHOT, "network", *saved)


def read_opponent(
    path: Path, agent: PPOAgent, obs_space: ObsSpace, action_space: Mapping[str, ActionSpace]
) -> SavedRun:
    """Read the agent of a save that is to play in a run.

    Args:
        path: of the save.
        agent: of the run; if it is a network of the user's own, a copy takes weights that are not
            those of a `RogueNet`.
        obs_space: observation space of the run.
        action_space: action space of the run.

    Raises:
        CheckpointError: there is no such save, or it is of another network or world.
        ConfigError: the agent is a network that cannot be copied.
    """
    spaces = obs_space, action_space
    try:
        saved = read_saved_run(path)
    except CheckpointError:
        if rogue_nets(agent):
            raise
        saved = read_saved_run(path, frozen_copy(agent, "selfplay.opponents"))
    known = saved.obs_space, saved.action_space
    different = incompatibilities(*known, *spaces)
    if not rogue_nets(saved.agent):  # of which features and labels are not found by name
        found = diff_spaces(*known, *spaces)
        different = [*found.changed, *found.reordered, *found.reordered_labels]
    if different:
        raise CheckpointError(f"{saved.path} is of another world: {'; '.join(different)}")
    return saved


def member_of_save(saved: SavedRun, name: str, origin: str) -> Member:
    """Return the agent of a save as a member, which does not need the save any more."""
    snapshot = snapshot_of(saved.agent, saved.obs_space, saved.action_space, saved.step)
    return replace(snapshot, name=name, step=NAMED, origin=origin)


def make_opponent(
    member: Member,
    agent: PPOAgent | None,
    create_opponent: CreateOpponent,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
) -> Opponent:
    """Return the network, or the class of the bot, of a member.

    Args:
        member: in a league.
        agent: of the run, of which a copy plays where networks are the user's own; None if there
            is no such network at hand.
        create_opponent: makes the members that have no network in the save: random players, and
            bots and others by their origin.
        obs_space: observation space of the run.
        action_space: action space of the run.
        device: device of a network.

    Raises:
        CheckpointError: it cannot be used.
        ConfigError: there is no such bot, or it is not trusted.
    """
    spaces = obs_space, action_space
    if member.kind == "network":
        return network_of(member, agent, *spaces, device)
    # The origin of a random player may be the pool of another run.
    named = RANDOM if member.kind == "random" else member.origin
    return create_opponent(named, *spaces, device)


def copy_with(network: PPOAgent, member: Member) -> PPOAgent:
    """Return a frozen copy of a network of equal settings and spaces, with a member's weights.

    Raises:
        CheckpointError: the file of the member is damaged.
        ConfigError: the network cannot be copied.
    """
    copied: Any = frozen_copy(network, "selfplay")
    plain = copied.network if isinstance(copied, Wired) else copied
    where = f"selfplay: {member.name}"
    load_weights(where, plain, tensors_of(where, member.weights))
    return copied  # type: ignore[no-any-return]


def network_of(
    member: Member,
    agent: PPOAgent | None,
    obs_space: ObsSpace,
    action_space: Mapping[str, ActionSpace],
    device: torch.device,
) -> PPOAgent:
    """Return the network of a member, which is not trained, for the frames of a run.

    Args:
        member: with a network.
        agent: of the run, of which a copy plays where networks are the user's own; None if there
            is no such network at hand.
        obs_space: observation space of the run.
        action_space: action space of the run.
        device: device of the network.

    Raises:
        CheckpointError: its file is damaged, or it is of a world that does not fit this one.
        ConfigError: the agent is a network that cannot be copied.
    """
    where = Path(f"selfplay: {member.name}")
    network: Any
    if not member.config:
        if agent is None or rogue_nets(agent):
            raise CheckpointError(
                f"{where}: its weights are those of a network of your own, which only a run of "
                "such a network (agent= in Python) can play"
            )
        network = copy_with(agent, member)
    else:
        run = run_of_member(member, where)
        known = run.obs_space, run.action_space
        if different := incompatibilities(*known, obs_space, action_space):
            raise CheckpointError(f"{where} is of another world: {'; '.join(different)}")
        network = run.agent
        orders = [[*space.entities] for space in (known[0], obs_space)]
        orders += [[*space] for space in (known[1], action_space)]
        if known != (obs_space, dict(action_space)) or orders[0::2] != orders[1::2]:
            network = Wired(network, obs_space, action_space, *known)
    frozen: Any = network.to(device).eval().requires_grad_(False)
    return frozen  # type: ignore[no-any-return]


def with_pool(run: Trained) -> Trained:
    """Return a run whose pool has been read.

    Raises:
        ConfigError: it has none.
    """
    if isinstance(run, SavedRun):
        try:
            return run._replace(pool=pool_of_run(run))
        except CheckpointError as error:
            raise ConfigError(f"eval.opponent: {error}") from None
    if run.part(League) is None:
        raise ConfigError(
            "eval.opponent: expected a run with opponents (selfplay) beside 'pool', got none"
        )
    return run


def members_of_pool(run: Trained) -> Sequence[Member]:
    """Return the members of the pool of a run of `with_pool`.

    Raises:
        ConfigError: there are none, as before the first update.
    """
    if isinstance(run, SavedRun):
        members: Sequence[Member] = run.pool or []
    else:
        league = run.part(League)
        assert league is not None
        members = league.pool
    if not members:
        raise ConfigError(
            "eval.opponent: expected members in the pool, got none yet: the first copy of the "
            "agent joins as training begins, those of selfplay.opponents are there before"
        )
    return members
