"""Members of a league from the agent and from saves, and the networks that they play with."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save as save_tensors

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import CreateOpponent, Opponent, PPOAgent, frozen_copy, rogue_nets
from enn_trainer.base.state_part import SavedNetwork
from enn_trainer.checkpoints.lookup import SavedRun, pool_of_run, read_saved_run, run_of_member
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
"""A run: the agent, with the spaces and the number of frames it was trained with."""


def snapshot_of(agent: Any, spaces: Spaces, step: int) -> Member:
    """Return a copy of an agent as a member: its policy and statistics, without values.

    Args:
        agent: the network; of one of the user's own, all tensors are copied.
        spaces: of the agent.
        step: number of frames it was trained for.
    """
    network = agent.policy if isinstance(agent, RogueNetWithValueNet) else agent
    if type(network) is RogueNet:
        saved = saved_network(network, spaces)
    else:
        weights = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
        saved = SavedNetwork("", "", save_tensors(weights))
    return Member(f"step-{step}", step, SNAPSHOT, "network", **saved._asdict())


def read_opponent(path: Path, agent: PPOAgent, spaces: Spaces) -> SavedRun:
    """Read the agent of a save that is to play in a run.

    Args:
        path: of the save.
        agent: of the run; if it is a network of the user's own, a copy takes weights that are not
            those of a `RogueNet`.
        spaces: of the run.

    Raises:
        CheckpointError: there is no such save, or it is of another network or world.
        ConfigError: the agent is a network that cannot be copied.
    """
    try:
        saved = read_saved_run(path)
    except CheckpointError:
        if rogue_nets(agent):
            raise
        saved = read_saved_run(path, frozen_copy(agent, "selfplay.opponents"))
    different = incompatibilities(saved.spaces, spaces)
    if not rogue_nets(saved.agent):  # of which features and labels are not found by name
        found = diff_spaces(saved.spaces, spaces)
        different = [*found.changed, *found.reordered, *found.reordered_labels]
    if different:
        raise CheckpointError(f"{saved.path} is of another world: {'; '.join(different)}")
    return saved


def member_of_save(saved: SavedRun, name: str, origin: str) -> Member:
    """Return the agent of a save as a member, which does not need the save any more."""
    snapshot = snapshot_of(saved.agent, saved.spaces, saved.step)
    return replace(snapshot, name=name, step=NAMED, origin=origin)


def make_opponent(
    member: Member,
    agent: PPOAgent | None,
    create_opponent: CreateOpponent,
    spaces: Spaces,
    device: torch.device,
) -> Opponent:
    """Return the network, or the class of the bot, of a member.

    Args:
        member: in a league.
        agent: of the run, of which a copy plays where networks are the user's own; None if there
            is no such network at hand.
        create_opponent: makes the members that have no network in the save: random players, and
            bots and others by their origin.
        spaces: of the run.
        device: device of a network.

    Raises:
        CheckpointError: it cannot be used.
        ConfigError: there is no such bot, or it is not trusted.
    """
    if member.kind == "network":
        return network_of(member, agent, spaces, device)
    # The origin of a random player may be the pool of another run.
    named = RANDOM if member.kind == "random" else member.origin
    return create_opponent(named, spaces.obs_space, spaces.action_space, device)


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
    spaces: Spaces,
    device: torch.device,
) -> PPOAgent:
    """Return the network of a member, which is not trained, for the frames of a run.

    Args:
        member: with a network.
        agent: of the run, of which a copy plays where networks are the user's own; None if there
            is no such network at hand.
        spaces: of the run.
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
        if different := incompatibilities(run.spaces, spaces):
            raise CheckpointError(f"{where} is of another world: {'; '.join(different)}")
        network = run.agent
        if run.spaces != spaces or _order(run.spaces) != _order(spaces):
            network = Wired(
                network, spaces.obs_space, spaces.action_space, run.obs_space, run.action_space
            )
    frozen: Any = network.to(device).eval().requires_grad_(False)
    return frozen  # type: ignore[no-any-return]


def _order(spaces: Spaces) -> tuple[list[str], list[str]]:
    """Return the names of entity types and actions, whose order equal spaces may differ in."""
    return [*spaces.obs_space.entities], [*spaces.action_space]


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
