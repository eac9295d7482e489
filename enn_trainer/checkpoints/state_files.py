"""Conversion between `State` and the files of a checkpoint."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.algorithms.ppo.ppo import SCALING, TUNINGS
from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.base.state_part import (
    SavedNetwork,
    StateDict,
    UnusedPart,
    check_plain,
    without_prefix,
)
from enn_trainer.checkpoints.format import WEIGHTS, Checkpoint
from enn_trainer.checkpoints.manifest import is_file_name
from enn_trainer.checkpoints.migrate.config_diff import changes, fixed_changes
from enn_trainer.checkpoints.saved_state import (
    REST,
    REST_VERSION,
    STATE_FIELDS,
    STATE_VERSION,
    dump_spaces,
    loading,
    read_config,
    read_rest,
    read_state,
)
from enn_trainer.checkpoints.state import (
    STATE_PARTS,
    InitialState,
    State,
    init_train_state,
    with_common_parts,
)
from enn_trainer.checkpoints.weights import fitting_network, load_weights, tensors_of
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import dump_config
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.experience.memories import memory_specs
from entity_env.serialization.messages import pack
from entity_env.spaces import Spaces
from rogue_net.rogue_net import RogueNet


def saved_network(network: RogueNet, spaces: Spaces) -> SavedNetwork:
    """Return the serialised policy of a network, with its configuration and spaces."""
    weights = {k: v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
    policy = {name: w for name, w in weights.items() if not name.startswith("regression_heads.")}
    config = TrainConfig(net=network.config, name="opponent")
    text = ron.dumps(ron.Struct("Spaces", dump_spaces(spaces)))
    return SavedNetwork(dump_config(config), text, save_tensors(policy))


OPTIMIZER = "state.optimizer.safetensors"
"""Tensors of the algorithm that belong to a parameter of the agent."""
LOSS_STATE = "state.loss.safetensors"
"""Other tensors of the algorithm; written only if there are any."""
PARTS = "state.parts.safetensors"
"""Tensors of other parts of the state, as PART/name; written only if there are any."""

PPO_PREFIXES = {TUNINGS, SCALING}
"""Prefixes of names in `LOSS_STATE` that belong to PPO; other prefixes belong to plug-ins."""


class SharedFile(NamedTuple):
    """Content of an immutable file, which checkpoints share by hard links.

    Attributes:
        data: the content.
    """

    data: bytes


FileContent: TypeAlias = bytes | SharedFile | dict[str, Tensor]
"""Content of a file: bytes, or tensors by name."""


def to_files(config: TrainConfig, state: State) -> dict[str, bytes]:
    """Return the files of a checkpoint, by name."""
    return as_bytes(copied(config, state))


def copied(config: TrainConfig, state: State) -> dict[str, FileContent]:
    """Return the contents of the files by name, as copies that training does not modify."""
    # Tensors of parts by file. The file of the optimizer always exists.
    parameters = {name for name, _ in state.agent.named_parameters()}
    tensors: dict[str, dict[str, Tensor]] = {OPTIMIZER: {}}
    plain: dict[str, dict[str, Any]] = {}
    shared: dict[str, Mapping[str, bytes]] = {}
    for part, content in state.parts.items():
        if files := content.files():
            shared[part] = files
            _check_files(part, files, [name for one in shared.values() for name in one])
        for name, value in content.state_dict().items():
            if not isinstance(value, Tensor):
                plain.setdefault(part, {})[name] = value
            elif part != "algorithm":
                tensors.setdefault(PARTS, {})[f"{part}/{name}"] = value
            elif name.rpartition("/")[0] in parameters:
                tensors[OPTIMIZER][name] = value
            else:
                tensors.setdefault(LOSS_STATE, {})[name] = value
    # Tensors and plain data that need version 2 of the file `REST`.
    plugins = {name.partition("/")[0] for name in tensors.get(LOSS_STATE, {})} - PPO_PREFIXES
    has_more = bool(plain or plugins) or PARTS in tensors
    names = {part: [*files] for part, files in shared.items()}
    return {
        **{name: SharedFile(data) for group in shared.values() for name, data in group.items()},
        "config.ron": dump_config(config).encode(),
        "state.ron": _dump_state(state).encode(),
        WEIGHTS: _copies(state.agent.state_dict()),
        REST: _dump_rest(state, plain if has_more or names else None, names),
        **{file: _copies(named) for file, named in tensors.items()},
    }


def _check_files(part: str, files: Mapping[str, bytes], names: list[str]) -> None:
    """Raise if the files of a part cannot be saved.

    Args:
        part: name of the part.
        files: contents by name.
        names: names of the files of all parts so far.
    """
    for name, data in files.items():
        is_allowed = is_file_name(name) and not name.startswith(("config.", "state.", "manifest."))
        if not is_allowed or names.count(name) > 1 or type(data) is not bytes:
            raise ValueError(
                f"{part}: files: expected bytes by unique file names such as "
                f"opponent-1.safetensors, got {type(data).__name__} for {name!r}"
            )


def as_bytes(contents: Mapping[str, FileContent]) -> dict[str, bytes]:
    """Serialise the contents of files; thread-safe, as it only reads copies."""
    return {
        name: save_tensors(content)
        if isinstance(content, dict)
        else content.data
        if isinstance(content, SharedFile)
        else content
        for name, content in contents.items()
    }


def restore(
    saved: Checkpoint,
    config: TrainConfig,
    agent: PPOAgent | None = None,
    initial_state: InitialState = init_train_state,
) -> State:
    """Restore the state of a checkpoint.

    Args:
        saved: the checkpoint.
        config: configuration to continue with; its schedules are advanced to the saved step.
        agent: a custom network, which the weights are loaded into; None for a `RogueNet`.
        initial_state: makes the state of a new run, into whose parts the saved state is loaded.

    Raises:
        CheckpointError: a file is damaged, or does not match the configuration.
    """
    plain = read_state(saved)
    before = read_config(saved)

    # Settings of the network and the optimizer cannot change.
    changed = [
        f"{path}: expected {old!r} as in {saved.path}, got {new!r}"
        for path, old, new in fixed_changes(changes(before, config))
        if not (agent is not None and path.startswith(("net", "vf_net")))
    ]
    if changed:
        raise CheckpointError(
            f"{'; '.join(changed)}; a resumed run keeps its network and its optimizer"
        )

    # Schedules first: new parts start with the settings of the saved step.
    follow_schedules(config, SimpleNamespace(**plain))
    try:
        # A new run's state, with the saved weights and fields.
        weights = read_tensors(saved, WEIGHTS)
        spaces = Spaces(plain["obs_space"], plain["action_space"])
        if agent is None:
            agent = fitting_network(str(saved.path), config, spaces, weights)
        context = {**spaces._asdict(), "agent": agent}
        state = with_common_parts(initial_state(config, context))
        load_weights(str(saved.path), state.agent, weights)
        rest, parts = read_rest(saved)
        for name, value in {**plain, **rest}.items():
            setattr(state, name, value)
        _load_parts(saved, state, parts)
    except ConfigError as error:
        if dump_config(before) != dump_config(config):
            raise  # the cause may be a changed setting
        raise CheckpointError(f"{saved.path}: config.ron does not fit: {error}") from None
    return state


def _load_parts(saved: Checkpoint, state: State, parts: dict[str, dict[str, Any]]) -> None:
    """Load the saved states into the parts of a state.

    Args:
        saved: the checkpoint.
        state: the state, whose parts are modified in place.
        parts: saved plain data and files by part; tensors are added.

    Raises:
        CheckpointError: a file is damaged, or the state has no such part.
        ConfigError: a setting does not match.
    """
    # Read the tensors of all parts.
    files: dict[str, list[str]] = {}
    for file in (OPTIMIZER, LOSS_STATE, PARTS):
        is_there = file == OPTIMIZER or file in saved.manifest["files"]
        for name, tensor in read_tensors(saved, file).items() if is_there else ():
            # Plug-ins and other parts may have infinite values, such as an initial minimum.
            is_of_ppo = file == OPTIMIZER or name.partition("/")[0] in PPO_PREFIXES
            if file != PARTS and is_of_ppo and not tensor.isfinite().all():
                raise CheckpointError(f"{saved.path}: {file}: {name}: expected finite numbers")
            part, _, key = name.partition("/") if file == PARTS else ("algorithm", "", name)
            parts.setdefault(part, {})[key] = tensor
            files.setdefault(part, []).append(file)
    unused = parts.keys() - state.parts.keys()
    state.parts |= {name: UnusedPart() for name in STATE_PARTS if name in unused}
    unknown = sorted(unused.difference(STATE_PARTS))
    if unknown:
        raise CheckpointError(
            f"{saved.path}: has a state of {', '.join(unknown)}, which this run does not have; "
            "pass StateManager, or evolve, the initial_state that makes it"
        )
    for name, content in parts.items():
        where = ", ".join(dict.fromkeys(files.get(name, [REST])))
        with loading(f"{saved.path}: {where}", name):
            state.parts[name].load_state_dict(content)


def _dump_state(state: State) -> str:
    spaces = dump_spaces(state.spaces)
    fields = {name: getattr(state, name) for name in STATE_FIELDS if name not in spaces}
    return ron.dumps(ron.Struct("State", {"version": STATE_VERSION, **fields, **spaces}))


def _dump_rest(
    state: State, parts: dict[str, dict[str, Any]] | None, files: dict[str, list[str]]
) -> bytes:
    metrics = {tag: float(value) for tag, value in state.metrics.items()}
    rest = {"version": 1, "metrics": metrics, "envs": state.envs}
    if parts is not None:
        for part, content in parts.items():
            for name, value in content.items():
                check_plain(f"{part}: {name}", value)
        rest |= {"version": 2, "parts": parts}
    if files:
        rest |= {"version": 3, "files": files}
    if any(memory_specs(state.agent)):
        rest |= {"version": REST_VERSION, "parts": parts or {}, "files": files}
    return pack(rest)


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU."""
    return {
        name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def read_tensors(saved: Checkpoint, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file of a checkpoint.

    Raises:
        CheckpointError: the file is damaged.
    """
    return tensors_of(f"{saved.path}: {name}", saved.read(name))


def read_reward_scaling(saved: Checkpoint) -> StateDict:
    """Return the saved state of `RewardScaling`; {} if the run scales no rewards.

    Raises:
        CheckpointError: the file is damaged.
    """
    has_file = LOSS_STATE in saved.manifest["files"]
    return without_prefix(SCALING, read_tensors(saved, LOSS_STATE)) if has_file else {}
