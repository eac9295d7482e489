"""Networks of checkpoints and of league members."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints.format import WEIGHTS, Checkpoint
from enn_trainer.checkpoints.lookup import (
    find,
    find_member,
    members_of,
    pool_of,
    require_members,
    split_member,
)
from enn_trainer.checkpoints.model_file import ModelFile, is_model_file, read_model_file
from enn_trainer.checkpoints.saved_state import read_config, read_spaces, read_state
from enn_trainer.checkpoints.state import make_policy
from enn_trainer.checkpoints.state_files import read_reward_scaling, read_tensors
from enn_trainer.checkpoints.weights import fitting_network, load_weights, tensors_of
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import load_config
from enn_trainer.selfplay.league import Member
from entity_env.spaces import ActionSpace, ObsSpace, Spaces


class SavedRun(NamedTuple):
    """Network of a checkpoint, with the configuration and spaces of its run.

    Attributes:
        path: directory of the checkpoint, or a `model.safetensors`.
        config: configuration of the run.
        step: number of frames that the network was trained for.
        agent: the network, in evaluation mode.
        obs_space: observation space of the run.
        action_space: action space of the run.
        run_name: folder of the logs of the run, "" if unknown.
        member: name of the league member; "" for the agent of the run.
        pool: members of the opponent pool; None if they were not read.
    """

    path: Path
    config: TrainConfig
    step: int
    agent: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    run_name: str = ""
    member: str = ""
    pool: Sequence[Member] | None = None

    @property
    def spaces(self) -> Spaces:
        """Spaces of the run."""
        return Spaces(self.obs_space, self.action_space)


def read_saved_run(path: Path, agent: PPOAgent | None = None, with_pool: bool = False) -> SavedRun:
    """Read the network of a checkpoint, without the optimizer state.

    Args:
        path: as for `lookup.find`; or SAVE@opponent:NAME for a league member; or a
            `model.safetensors` of `enn export`.
        agent: a custom network, which the weights are loaded into; None for a `RogueNet`.
        with_pool: True to read the opponent pool too, as the checkpoint may be deleted later.

    Raises:
        CheckpointError: there is no valid checkpoint, its weights are not finite, or the member
            does not exist or is no network.
    """
    if is_model_file(path):
        return _run_of_file(path, agent)
    if (named := split_member(path)) is None:
        saved = find(path)
        run = _agent_of(saved, agent)
    else:
        saved, member = find_member(named[0], named[1])
        run = _run_of_member(saved, member, agent)
    return run._replace(pool=pool_of(saved)) if with_pool else run


def _agent_of(saved: Checkpoint, agent: PPOAgent | None) -> SavedRun:
    state, config = read_state(saved), read_config(saved)
    spaces = Spaces(state["obs_space"], state["action_space"])
    network = _loaded(str(saved.path), config, spaces, read_tensors(saved, WEIGHTS), agent)
    return SavedRun(saved.path, config, saved.step, network, spaces[0], dict(spaces[1]))


def read_model(path: Path) -> tuple[Path, ModelFile]:
    """Read the weights of a checkpoint, also of a custom network, with configuration and spaces.

    Args:
        path: as for `lookup.find`; or a `model.safetensors` of `enn export`.

    Returns:
        The checkpoint or file; and its content.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    if is_model_file(path):
        return path, read_model_file(path)
    saved = find(path)
    state = read_state(saved)
    spaces = Spaces(state["obs_space"], state["action_space"])
    run = saved.path.absolute().parent.name
    weights, scaling = read_tensors(saved, WEIGHTS), read_reward_scaling(saved)
    return saved.path, ModelFile(read_config(saved), spaces, saved.step, run, weights, scaling)


def _run_of_file(path: Path, agent: PPOAgent | None) -> SavedRun:
    model = read_model_file(path)
    network = _loaded(str(path), model.config, model.spaces, model.weights, agent)
    obs_space, action_space = model.spaces
    return SavedRun(
        path, model.config, model.step, network, obs_space, dict(action_space), model.run
    )


def _loaded(
    where: str,
    config: TrainConfig,
    spaces: Spaces,
    weights: Mapping[str, Tensor],
    agent: PPOAgent | None,
) -> Any:
    """Load weights into a custom network, or else into the network of a configuration."""
    network: Any = agent
    if network is None:
        network = fitting_network(where, config, spaces, weights)
    load_weights(where, network, weights)
    return network.eval()


def pool_of_run(run: SavedRun) -> list[Member]:
    """Return the opponent pool of a `SavedRun`, read from disk if needed.

    Raises:
        CheckpointError: there is no pool, or the checkpoint has been deleted.
    """
    return members_of(run.path) if run.pool is None else require_members(run.path, run.pool)


def _run_of_member(saved: Checkpoint, member: Member, agent: PPOAgent | None) -> SavedRun:
    name, where = member.name, f"{saved.path}: {member.file}"
    if member.kind != "network":
        raise CheckpointError(
            f"{saved.path}: opponent {name}: expected one with a network, got {member.origin!r}; "
            "pass that instead"
        )
    if member.config:
        run = run_of_member(member, saved.path)
        return run._replace(config=replace(read_config(saved), net=run.config.net, vf_net=None))
    network: Any = agent
    if network is None:
        raise CheckpointError(
            f"{where}: expected weights of a RogueNet, got weights of a custom network; pass "
            "that network as agent= in Python"
        )
    load_weights(where, network, tensors_of(where, member.weights))
    state, config = read_state(saved), read_config(saved)
    return SavedRun(
        path=saved.path,
        config=config,
        step=max(member.step, 0),
        agent=network.eval(),
        obs_space=state["obs_space"],
        action_space=state["action_space"],
        member=name,
    )


def run_of_member(member: Member, path: Path) -> SavedRun:
    """Return the network of a league member with the configuration and spaces of its run.

    Args:
        member: a member with a `RogueNet`.
        path: the checkpoint, for messages.

    Raises:
        CheckpointError: the file or the configuration is damaged, or they do not match.
    """
    where = f"{path}: {member.file}"
    try:
        config = load_config(TrainConfig, None, text=member.config)
        spaces = read_spaces(ron.loads(member.spaces))
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{where}: its configuration cannot be read: {error}") from None
    weights = tensors_of(where, member.weights)
    try:
        network = fitting_network(where, config, spaces, weights, make=make_policy)
    except ConfigError as error:
        raise CheckpointError(f"{where}: its configuration does not fit: {error}") from None
    load_weights(where, network, weights)
    return SavedRun(
        path=path,
        config=config,
        step=max(member.step, 0),
        agent=network.eval(),
        obs_space=spaces.obs_space,
        action_space=dict(spaces.action_space),
        member=member.name,
    )
