"""Pool members: create them from agents and checkpoints, and load their networks."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save as save_tensors

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import CreateOpponent, Opponent, PPOAgent, frozen_copy, rogue_nets
from enn_trainer.base.state_part import SavedNetwork
from enn_trainer.checkpoints.saved_run import SavedRun, pool_of_run, read_saved_run, run_of_member
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_files import saved_network
from enn_trainer.checkpoints.weights import load_weights, tensors_of
from enn_trainer.config.selfplay_config import RANDOM
from enn_trainer.selfplay.league import SNAPSHOT, League, Member
from enn_trainer.selfplay.matchmaking import NAMED
from entity_env.spaces import Spaces
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet
from rogue_net.space_diff import diff_spaces, incompatibilities
from rogue_net.wiring import Wired

Trained: TypeAlias = State | SavedRun
"""Training state or checkpoint: the agent, its spaces and its number of training frames."""


def snapshot_of(agent: Any, spaces: Spaces, step: int) -> Member:
    """Copy an agent as a pool member: policy and input statistics, without the value network.

    Args:
        agent: the network; all tensors of a custom network are copied.
        spaces: spaces of the agent.
        step: number of training frames.
    """
    network = agent.policy if isinstance(agent, RogueNetWithValueNet) else agent
    if type(network) is RogueNet:
        saved = saved_network(network, spaces)
    else:
        weights = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
        saved = SavedNetwork("", "", save_tensors(weights))
    return Member(f"step-{step}", step, SNAPSHOT, "network", **saved._asdict())


def read_opponent(path: Path, agent: PPOAgent, spaces: Spaces) -> SavedRun:
    """Read the agent of a checkpoint that serves as an opponent in a run.

    Args:
        path: path of the checkpoint.
        agent: agent of the run; weights that are not a `RogueNet`'s are loaded into a copy of it,
            if it is a custom network.
        spaces: spaces of the run.

    Raises:
        CheckpointError: there is no such checkpoint, or its network or environment differs.
        ConfigError: the agent is a network that cannot be copied.
    """
    try:
        saved = read_saved_run(path)
    except CheckpointError:
        if rogue_nets(agent):
            raise
        saved = read_saved_run(path, frozen_copy(agent, "selfplay.opponents"))
    diffs = incompatibilities(saved.spaces, spaces)
    if not rogue_nets(saved.agent):  # custom networks do not match features and labels by name
        diff = diff_spaces(saved.spaces, spaces)
        diffs = [*diff.changed, *diff.reordered, *diff.reordered_labels]
    if diffs:
        raise CheckpointError(f"{saved.path} does not fit the environment: {'; '.join(diffs)}")
    return saved


def member_of_save(saved: SavedRun, name: str, origin: str) -> Member:
    """Create a self-contained pool member from a checkpoint."""
    snapshot = snapshot_of(saved.agent, saved.spaces, saved.step)
    return replace(snapshot, name=name, step=NAMED, origin=origin)


def make_opponent(
    member: Member,
    agent: PPOAgent | None,
    create_opponent: CreateOpponent,
    spaces: Spaces,
    device: torch.device,
) -> Opponent:
    """Load the network, or the bot class, of a pool member.

    Args:
        member: pool member.
        agent: agent of the run; custom networks play as copies of it. None if there is none.
        create_opponent: factory of members without a stored network: random players, bots and
            others, by their origin.
        spaces: spaces of the run.
        device: device of a network.

    Raises:
        CheckpointError: the member cannot be loaded.
        ConfigError: there is no such bot, or it is not trusted.
    """
    if member.kind == "network":
        return network_of(member, agent, spaces, device)
    # The origin of a random player may be the pool of another run.
    name = RANDOM if member.kind == "random" else member.origin
    return create_opponent(name, spaces.obs_space, spaces.action_space, device)


def copy_with_weights(network: PPOAgent, member: Member) -> PPOAgent:
    """Return a frozen copy of a network with a member's weights; settings and spaces must be equal.

    Raises:
        CheckpointError: the file of the member is damaged.
        ConfigError: the network cannot be copied.
    """
    copied: Any = frozen_copy(network, "selfplay")
    plain = copied.network if isinstance(copied, Wired) else copied
    source = f"selfplay: {member.name}"
    load_weights(source, plain, tensors_of(source, member.weights))
    return copied  # type: ignore[no-any-return]


def network_of(
    member: Member,
    agent: PPOAgent | None,
    spaces: Spaces,
    device: torch.device,
) -> PPOAgent:
    """Load the frozen network of a pool member, adapted to the spaces of a run.

    Args:
        member: pool member with a network.
        agent: agent of the run; custom networks play as copies of it. None if there is none.
        spaces: spaces of the run.
        device: device of the network.

    Raises:
        CheckpointError: its file is damaged, or its environment does not fit.
        ConfigError: the agent is a network that cannot be copied.
    """
    source = Path(f"selfplay: {member.name}")
    network: Any
    if not member.config:
        if agent is None or rogue_nets(agent):
            raise CheckpointError(
                f"{source}: its weights belong to a custom network; expected a run of such a "
                "network (agent= in Python)"
            )
        network = copy_with_weights(agent, member)
    else:
        run = run_of_member(member, source)
        if diffs := incompatibilities(run.spaces, spaces):
            raise CheckpointError(f"{source} does not fit the environment: {'; '.join(diffs)}")
        network = run.agent
        if run.spaces != spaces or _order(run.spaces) != _order(spaces):
            network = Wired(
                network, spaces.obs_space, spaces.action_space, run.obs_space, run.action_space
            )
    frozen: Any = network.to(device).eval().requires_grad_(False)
    return frozen  # type: ignore[no-any-return]


def _order(spaces: Spaces) -> tuple[list[str], list[str]]:
    """Return the names of entity types and actions in order; equal spaces may differ in it."""
    return [*spaces.obs_space.entities], [*spaces.action_space]


def with_pool(run: Trained) -> Trained:
    """Return a run with its opponent pool loaded.

    Raises:
        ConfigError: the run has no pool.
    """
    if isinstance(run, SavedRun):
        try:
            return run._replace(pool=pool_of_run(run))
        except CheckpointError as error:
            raise ConfigError(f"eval.opponent: {error}") from None
    if run.part(League) is None:
        raise ConfigError(
            "eval.opponent: expected a run with opponents (selfplay) for 'pool', got none"
        )
    return run


def members_of_pool(run: Trained) -> Sequence[Member]:
    """Return the pool members of a run that was returned by `with_pool`.

    Raises:
        ConfigError: the pool is empty, as before the first update.
    """
    if isinstance(run, SavedRun):
        members: Sequence[Member] = run.pool or []
    else:
        league = run.part(League)
        assert league is not None
        members = league.pool
    if not members:
        raise ConfigError(
            "eval.opponent: expected members in the pool, got none; the first snapshot is added "
            "when training starts, selfplay.opponents are members from the start"
        )
    return members
