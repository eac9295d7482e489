"""How a state becomes the files of a save, and comes back."""

import json
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints import checkpoint
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.ppo import loss_state
from enn_trainer.ppo.optimizers import make_optimizers, trained_by, value_network
from enn_trainer.schedules import follow_schedules
from enn_trainer.settings import ron
from enn_trainer.settings.config_io import dump_config, load_config
from enn_trainer.state import State, make_network
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from rogue_net.rogue_net import RogueNetConfig

STATE_VERSION = 1
WEIGHTS = "state.agent.safetensors"
LOSS_STATE = "state.loss.safetensors"


def to_files(config: TrainConfig, state: State) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    learnt = loss_state.to_tensors(state.ent_tunings, state.reward_scaling)
    return {
        "config.ron": dump_config(config).encode(),
        "state.ron": _dump_state(state).encode(),
        WEIGHTS: _tensor_bytes(state.agent.state_dict()),
        "state.optimizer.safetensors": _tensor_bytes(moments_of(state)),
        **({LOSS_STATE: _tensor_bytes(learnt)} if learnt else {}),
    }


def restore(
    saved: checkpoint.Checkpoint, config: TrainConfig, agent: PPOAgent | None = None
) -> State:
    """The state of a save.

    Args:
        saved: the save.
        config: the configuration to continue with; its schedules are set to where the save is.
        agent: the user's own network, which the weights go into; None for a `RogueNet`.

    Raises:
        CheckpointError: something in it is damaged or does not fit.
    """
    plain = _read_state(saved)
    follow_schedules(config, SimpleNamespace(**plain))  # so that what begins now has what holds now
    network: Any = agent
    _refuse_other_learner(saved, config, own_network=agent is not None)
    if network is None:
        network = make_network(config, plain["obs_space"], plain["action_space"])
    _load_weights(network, saved)
    optimizer, vf_optimizer = make_optimizers(network, config.optim)
    learnt = _tensors(saved, LOSS_STATE) if LOSS_STATE in saved.manifest["files"] else {}
    state = State(
        agent=network,
        value_function=value_network(network),
        optimizer=optimizer,
        vf_optimizer=vf_optimizer,
        ent_tunings=loss_state.ent_tunings(learnt, config.ppo, plain["action_space"]),
        reward_scaling=loss_state.reward_scaling(learnt, config),
        **plain,
    )
    load_moments(state, _tensors(saved, "state.optimizer.safetensors"))
    return state


class SavedNetwork(NamedTuple):
    """A network of a save and the spaces it was trained for."""

    network: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]


def restore_network(saved: checkpoint.Checkpoint, agent: PPOAgent | None = None) -> SavedNetwork:
    """The network of a save, without reading anything else.

    Args:
        saved: the save.
        agent: the user's own network, which the weights go into; None for a `RogueNet`.
    """
    plain = _read_state(saved)
    obs_space, action_space = plain["obs_space"], plain["action_space"]
    network: Any = agent
    if network is None:
        config = load_config(TrainConfig, None, text=saved.read("config.ron").decode())
        network = make_network(config, obs_space, action_space)
    _load_weights(network, saved)
    return SavedNetwork(network.eval(), obs_space, action_space)


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


def _read_state(saved: checkpoint.Checkpoint) -> dict[str, Any]:
    """The readable part of a state: what `state.ron` says."""
    try:
        plain = ron.loads(saved.read("state.ron").decode())
        if plain.pop("version") > STATE_VERSION:
            raise CheckpointError(f"{saved.path}: state.ron is of a newer version")
        space = plain["obs_space"]
        plain["obs_space"] = ObsSpace(
            space["global_features"],
            {name: Entity(e["features"]) for name, e in space["entities"].items()},
        )
        plain["action_space"] = {
            name: ACTION_SPACES[fields.pop("kind")](**fields)
            for name, fields in plain["action_space"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{saved.path}: state.ron cannot be read: {error}") from None
    return plain  # type: ignore[no-any-return]


ACTION_SPACES: dict[str, Callable[..., ActionSpace]] = {
    space.__name__: space
    for space in (CategoricalActionSpace, GlobalCategoricalActionSpace, SelectEntityActionSpace)
}


def _refuse_other_learner(
    saved: checkpoint.Checkpoint, config: TrainConfig, own_network: bool
) -> None:
    """The networks of a run that continues keep their shapes, and the moments their meaning."""
    before = load_config(TrainConfig, None, text=saved.read("config.ron").decode())
    settings: list[tuple[str, object, object]] = [
        ("optim.name", before.optim.name, config.optim.name),
        ("optim.kwargs", json.loads(before.optim.kwargs), json.loads(config.optim.kwargs)),
        ("ppo.value_bins", before.ppo.value_bins, config.ppo.value_bins),
    ]
    if not own_network:
        settings += _side_by_side("net", before.net, config.net)
        settings += _side_by_side("vf_net", before.vf_net, config.vf_net)
    changed = [
        f"{name}: expected {old!r} as in {saved.path}, got {new!r}"
        for name, old, new in settings
        if old != new
    ]
    if changed:
        raise CheckpointError(
            f"{'; '.join(changed)}; a run that continues keeps its network and its optimizer"
        )


def _side_by_side(
    section: str, old: RogueNetConfig | None, new: RogueNetConfig | None
) -> list[tuple[str, object, object]]:
    """The settings of two networks by name, or the networks where there is only one."""
    if old is None or new is None:
        return [(section, old, new)]
    return [
        (f"{section}.{f.name}", getattr(old, f.name), getattr(new, f.name)) for f in fields(old)
    ]


def _load_weights(network: nn.Module, saved: checkpoint.Checkpoint) -> None:
    try:
        network.load_state_dict(_tensors(saved, WEIGHTS))
    except RuntimeError as error:
        raise CheckpointError(
            f"{saved.path}: the weights do not fit the network: {error}"
        ) from None


def moments_of(state: State) -> dict[str, Tensor]:
    """What the optimizers know of each parameter, by `parameter/what`."""
    names = {parameter: name for name, parameter in state.agent.named_parameters()}
    return {
        f"{names[parameter]}/{key}": value
        for optimizer in state.optimizers()
        for parameter, entry in optimizer.state.items()
        for key, value in entry.items()
    }


def load_moments(state: State, tensors: dict[str, Tensor]) -> None:
    """Give every parameter the moments kept under its name; the settings stay as configured."""
    names = {parameter: name for name, parameter in state.agent.named_parameters()}
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in names.values()}
    for key, value in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in moments:
            raise CheckpointError(f"optimizer: has {key}, but the network has no {name}")
        moments[name][moment] = value
    for optimizer in state.optimizers():
        numbered = enumerate(names[parameter] for parameter in trained_by(optimizer))
        own = {i: moments[name] for i, name in numbered if moments[name]}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": own})


def _tensor_bytes(tensors: dict[str, Tensor]) -> bytes:
    return save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def _tensors(saved: checkpoint.Checkpoint, name: str) -> dict[str, Tensor]:
    try:
        return load_tensors(saved.read(name))
    except SafetensorError as error:
        raise CheckpointError(f"{saved.path}: {name} cannot be read: {error}") from None
