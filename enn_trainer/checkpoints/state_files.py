"""Conversion between `State` and the files of a save."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.migrate.resume_changes import changes, fixed
from enn_trainer.checkpoints.plain_file import check_tensor_header
from enn_trainer.checkpoints.saved_state import STATE_VERSION, read_config, read_state
from enn_trainer.checkpoints.weights import fitting_network, load_weights
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import dump_config
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.ppo import loss_state
from enn_trainer.ppo.optimizers import make_optimizers, trained_by, value_network
from enn_trainer.state import State
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import ActionSpace, ObsSpace

REST_VERSION = 1
WEIGHTS = checkpoint.WEIGHTS
LOSS_STATE = "state.loss.safetensors"
OPTIMIZER = "state.optimizer.safetensors"
REST = "state.rest.msgpack"
"""Binary state that is not tensors: metrics and the states of environments."""

FileContent: TypeAlias = str | bytes | dict[str, Tensor]
"""Content of a file: text, bytes, or tensors by name."""


def to_files(config: TrainConfig, state: State) -> dict[str, bytes]:
    """Return the files of a checkpoint, by name."""
    return as_bytes(copied(config, state))


def copied(config: TrainConfig, state: State) -> dict[str, FileContent]:
    """Return the contents of the files by name, as copies that further training does not change."""
    learnt = loss_state.to_tensors(state.ent_tunings, state.reward_scaling)
    return {
        "config.ron": dump_config(config),
        "state.ron": _dump_state(state),
        WEIGHTS: _copies(state.agent.state_dict()),
        OPTIMIZER: _copies(moments_of(state)),
        REST: _dump_rest(state),
        **({LOSS_STATE: _copies(learnt)} if learnt else {}),
    }


def as_bytes(contents: Mapping[str, FileContent]) -> dict[str, bytes]:
    """Serialise the contents of files; safe in another thread, as it reads only the copies."""
    return {
        name: content.encode()
        if isinstance(content, str)
        else content
        if isinstance(content, bytes)
        else save_tensors(content)
        for name, content in contents.items()
    }


def restore(
    saved: checkpoint.Checkpoint, config: TrainConfig, agent: PPOAgent | None = None
) -> State:
    """Return the state of a save.

    Args:
        saved: the save.
        config: configuration to continue with; its schedules are advanced to the step of the save.
        agent: the user's own network, into which the weights are loaded; None for a `RogueNet`.

    Raises:
        CheckpointError: a file of the save is damaged or does not fit.
    """
    plain = read_state(saved)
    before = read_config(saved)

    # The network keeps its shape and the moments their optimizer.
    changed = [
        f"{path}: expected {old!r} as in {saved.path}, got {new!r}"
        for path, old, new in fixed(changes(before, config))
        if not (agent is not None and path.startswith(("net", "vf_net")))
    ]
    if changed:
        raise CheckpointError(
            f"{'; '.join(changed)}; a resumed run keeps its network and its optimizer"
        )

    # Schedules first: parts that the save does not have start with the settings of its step.
    follow_schedules(config, SimpleNamespace(**plain))
    try:
        return _restored(saved, config, plain, agent)
    except ConfigError as error:
        if dump_config(before) != dump_config(config):
            raise  # the cause may be a setting that was changed for this run
        raise CheckpointError(f"{saved.path}: config.ron does not fit: {error}") from None


def _restored(
    saved: checkpoint.Checkpoint,
    config: TrainConfig,
    plain: dict[str, Any],
    agent: PPOAgent | None,
) -> State:
    """Build the state of a save from its files.

    Args:
        saved: the save.
        config: configuration to continue with, at the step of the save.
        plain: fields in `state.ron`.
        agent: the user's own network, or None for a `RogueNet`.
    """
    network = _network(saved, config, plain, agent)
    optimizer, vf_optimizer = make_optimizers(network, config.optim)
    learnt = read_tensors(saved, LOSS_STATE) if LOSS_STATE in saved.manifest["files"] else {}
    try:
        ent_tunings = loss_state.ent_tunings(learnt, config.ppo, plain["action_space"])
        reward_scaling = loss_state.reward_scaling(learnt, config)
    except ConfigError:
        raise
    except ValueError as error:
        raise CheckpointError(f"{saved.path}: {LOSS_STATE}: {error}") from None
    state = State(
        **_read_rest(saved),
        agent=network,
        value_function=value_network(network),
        optimizer=optimizer,
        vf_optimizer=vf_optimizer,
        ent_tunings=ent_tunings,
        reward_scaling=reward_scaling,
        **plain,
    )
    load_moments(state, read_tensors(saved, OPTIMIZER), f"{saved.path}: {OPTIMIZER}")
    return state


class SavedNetwork(NamedTuple):
    """Network of a save, the spaces it was trained for, and the configuration of its run."""

    network: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    config: TrainConfig


def restore_network(saved: checkpoint.Checkpoint, agent: PPOAgent | None = None) -> SavedNetwork:
    """Return the network of a save in eval mode, without reading optimizers or environments.

    Args:
        saved: the save.
        agent: the user's own network, into which the weights are loaded; None for a `RogueNet`.
    """
    plain = read_state(saved)
    config = read_config(saved)
    network = _network(saved, config, plain, agent)
    return SavedNetwork(network.eval(), plain["obs_space"], plain["action_space"], config)


def _network(
    saved: checkpoint.Checkpoint,
    config: TrainConfig,
    plain: dict[str, Any],
    agent: PPOAgent | None,
) -> Any:
    where, weights = str(saved.path), read_tensors(saved, WEIGHTS)
    network: Any = agent
    if network is None:
        network = fitting_network(where, config, plain["obs_space"], plain["action_space"], weights)
    load_weights(where, network, weights)
    return network


def _dump_state(state: State) -> str:
    entities = {
        name: ron.Struct("Entity", {"features": entity.features})
        for name, entity in state.obs_space.entities.items()
    }
    fields = {
        "version": STATE_VERSION,
        "step": state.step,
        "restart": state.restart,
        "next_eval_step": state.next_eval_step,
        "time_used": state.time_used,
        "run_name": state.run_name,
        "memory": state.memory,
        "tracker_ids": state.tracker_ids,
        "obs_space": ron.Struct(
            "ObsSpace",
            {"global_features": state.obs_space.global_features, "entities": entities},
        ),
        "action_space": {
            name: ron.Struct("ActionSpace", {"kind": type(space).__name__, **vars(space)})
            for name, space in state.action_space.items()
        },
    }
    return ron.dumps(ron.Struct("State", fields))


def _dump_rest(state: State) -> bytes:
    metrics = {tag: float(value) for tag, value in state.metrics.items()}
    return pack({"version": REST_VERSION, "metrics": metrics, "envs": state.envs})


def _read_rest(saved: checkpoint.Checkpoint) -> dict[str, Any]:
    """Return the fields of a state in `state.rest.msgpack`; {} for an old save without the file.

    Raises:
        CheckpointError: the file is damaged, or of a newer version.
    """
    if REST not in saved.manifest["files"]:
        return {}
    try:
        rest = unpack(saved.read(REST))
        if type(rest) is not dict or type(rest["version"]) is not int:
            raise TypeError("version: expected a number")
        if rest["version"] > REST_VERSION:
            raise CheckpointError(f"{saved.path}: {REST} is of a newer version")
        metrics, envs = rest["metrics"], rest["envs"]
        if not all(type(tag) is str and type(v) is float for tag, v in metrics.items()):
            raise TypeError("metrics: expected numbers by tag")
        if not isinstance(envs, bytes | None):
            raise TypeError(f"envs: expected bytes, got {type(envs).__name__}")
    except CheckpointError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{saved.path}: {REST} cannot be read: {error}") from None
    return {"metrics": metrics, "envs": envs}


def moments_of(state: State) -> dict[str, Tensor]:
    """Return the optimizer moments as `parameter/moment`, such as `head.weight/exp_avg`."""
    names = {parameter: name for name, parameter in state.agent.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for optimizer in state.optimizers()
        for parameter, entry in optimizer.state.items()
        for key, value in entry.items()
    }


def load_moments(state: State, tensors: Mapping[str, Tensor], where: str) -> None:
    """Load optimizer moments by the names of parameters; learning rates stay as configured.

    Args:
        state: its optimizers are changed.
        tensors: moments in the form of `moments_of`.
        where: origin of the tensors, for messages.

    Raises:
        CheckpointError: a moment is of an unknown parameter, has an impossible shape or is missing.
    """
    # Group by parameter.
    names = {parameter: name for name, parameter in state.agent.named_parameters()}
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in names.values()}
    for key, value in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in moments:
            raise CheckpointError(f"{where} has {key}, but the network has no {name}")
        moments[name][moment] = value

    # Validate.
    for parameter, name in names.items():
        for moment, value in moments[name].items():
            if not _is_moment(value, parameter):
                raise CheckpointError(
                    f"{where}: {name}/{moment}: expected finite numbers of the "
                    f"shape of the parameter, {list(parameter.shape)}, or a count"
                )

    # Load by the positions by which torch numbers the parameters of an optimizer.
    for optimizer in state.optimizers():
        trained = {i: (names[p], p) for i, p in enumerate(trained_by(optimizer))}
        _check_complete(where, [(name, p.ndim, moments[name]) for name, p in trained.values()])
        own = {i: moments[name] for i, (name, _) in trained.items() if moments[name]}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": own})


def _is_moment(value: Tensor, parameter: Tensor) -> bool:
    """Return True if a tensor can be an optimizer moment of a parameter.

    It is finite and has the shape of the parameter, possibly with dimensions of size 1 (Adafactor),
    or is a non-negative scalar (a step count, or a product of rates as in NAdam).
    """
    if not value.is_floating_point() or not value.isfinite().all():
        return False
    if value.ndim == 0:
        return bool(value >= 0)
    sizes = zip(value.shape, parameter.shape, strict=False)
    return value.ndim == parameter.ndim and all(own in (1, full) for own, full in sizes)


def _check_complete(where: str, moments: Sequence[tuple[str, int, Mapping[str, Tensor]]]) -> None:
    """Raise if parameters with equally many dimensions have different kinds of moments.

    Args:
        where: origin of the moments, for messages.
        moments: name, number of dimensions and moments of each parameter; {} before its first step.
    """
    kept: dict[int, set[str]] = {}
    for name, num_axes, own in moments:
        expected = kept.setdefault(num_axes, set(own)) if own else set[str]()
        if expected != set(own):
            raise CheckpointError(
                f"{where}: {name}: expected {', '.join(sorted(expected))} as for "
                f"other parameters, got {', '.join(sorted(own))}"
            )


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous copies on the CPU, each in its own memory."""
    return {
        name: t.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, t in tensors.items()
    }


def read_tensors(saved: checkpoint.Checkpoint, name: str) -> dict[str, Tensor]:
    """Return the tensors of a file of a save.

    Raises:
        CheckpointError: the file is damaged.
    """
    data = saved.read(name)
    try:
        check_tensor_header(data)
        return load_tensors(data)
    except CheckpointError:
        raise
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{saved.path}: {name} cannot be read: {error}") from None
