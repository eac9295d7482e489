"""What a run needs to continue, and how it becomes files and comes back."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Dict, NamedTuple, Optional

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from enn_trainer import checkpoint, ron
from enn_trainer.agent import PPOAgent
from enn_trainer.config import EvalConfig, OptimizerConfig, TrainConfig
from enn_trainer.config_io import dump_config, load_config
from enn_trainer.errors import CheckpointError, ConfigError
from entity_env.seeding import derive_seed
from entity_env.spaces import (
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from rogue_net.rogue_net import RogueNet

STATE_VERSION = 1


@dataclass
class State:
    """Everything that a resumed run needs.

    Attributes:
        step: Frames of all environments so far, over all restarts.
        restart: How many times the run was resumed.
        next_eval_step: The step of the next evaluation.
        agent: The policy network, with the statistics that normalise its input.
        value_function: The value network, if it is apart from the policy.
        optimizer: The optimizer of the policy network.
        vf_optimizer: The optimizer of the value network.
        obs_space: What the environment shows.
        action_space: What can be done in it.
        time_used: Seconds of training, over all restarts.
        run_name: The folder that trackers write to, so that a resumed run continues there.
    """

    step: int
    restart: int
    next_eval_step: Optional[int]
    agent: Any
    value_function: Optional[Any]
    optimizer: torch.optim.AdamW
    vf_optimizer: Optional[torch.optim.AdamW]
    obs_space: ObsSpace
    action_space: Dict[str, ActionSpace]
    time_used: float = 0.0
    run_name: str = ""

    def to(self, device: torch.device) -> None:
        """Move the network, and with it the moments of its parameters, to a device."""
        self.agent.to(device)
        for moments in self.optimizer.state.values():
            for name, value in moments.items():
                if isinstance(value, Tensor) and name != "step":
                    moments[name] = value.to(device)


def init_train_state(cfg: TrainConfig, ctx: Dict[str, Any]) -> State:
    """The state of a run that begins.

    Args:
        cfg: the configuration.
        ctx: `obs_space` and `action_space` of the environment; and `agent`, a network of the
            user's own, or None.
    """
    agent = ctx.get("agent")
    if agent is None:
        agent = make_network(cfg, ctx["obs_space"], ctx["action_space"])
    return State(
        step=0,
        restart=0,
        next_eval_step=None if cfg.eval is None else first_eval_step(cfg.eval, 0),
        agent=agent,
        value_function=None,
        optimizer=make_optimizer(agent, cfg.optim),
        vf_optimizer=None,
        obs_space=ctx["obs_space"],
        action_space=dict(ctx["action_space"]),
    )


def first_eval_step(cfg: EvalConfig, step: int) -> int:
    """When to evaluate first, if evaluations are switched on at `step`."""
    return step if cfg.run_on_first_step else step + cfg.interval


def make_network(
    cfg: TrainConfig, obs_space: ObsSpace, action_space: Dict[str, ActionSpace]
) -> RogueNet:
    """A fresh network; its weights are a function of the seed. Leaves torch's generator alone.

    Raises:
        ConfigError: the configuration names types or features that the spaces do not have.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(cfg.seed, "network"))
        try:
            return RogueNet(cfg.net, obs_space, action_space, regression_heads={"value": 1})
        except ValueError as error:
            raise ConfigError(f"net: {error}") from None


def make_optimizer(network: nn.Module, optim: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over all parameters of a network."""
    return torch.optim.AdamW(
        network.parameters(), lr=optim.lr, weight_decay=optim.weight_decay, eps=1e-5
    )


def to_files(config: TrainConfig, state: State) -> Dict[str, bytes]:
    """The files of a checkpoint, by name."""
    names = [name for name, _ in state.agent.named_parameters()]
    moments = {
        f"{names[i]}/{key}": value
        for i, entry in state.optimizer.state_dict()["state"].items()
        for key, value in entry.items()
    }
    return {
        "config.ron": dump_config(config).encode(),
        "state.ron": _dump_state(state).encode(),
        "state.agent.safetensors": _tensor_bytes(state.agent.state_dict()),
        "state.optimizer.safetensors": _tensor_bytes(moments),
    }


def restore(
    saved: checkpoint.Checkpoint, config: TrainConfig, agent: Optional[PPOAgent] = None
) -> State:
    """The state of a save.

    Args:
        saved: the save.
        config: the configuration to continue with.
        agent: the user's own network, which the weights go into; None for a `RogueNet`.

    Raises:
        CheckpointError: something in it is damaged or does not fit.
    """
    plain = _read_state(saved)
    network: Any = agent
    if network is None:
        _refuse_other_network(saved, config)
        network = make_network(config, plain["obs_space"], plain["action_space"])
    _load_weights(network, saved)
    optimizer = make_optimizer(network, config.optim)
    _load_moments(optimizer, network, _tensors(saved, "state.optimizer.safetensors"))
    return State(
        agent=network,
        value_function=None,
        optimizer=optimizer,
        vf_optimizer=None,
        **plain,
    )


class SavedNetwork(NamedTuple):
    """A network of a save and the spaces it was trained for."""

    network: Any
    obs_space: ObsSpace
    action_space: Dict[str, ActionSpace]


def restore_network(saved: checkpoint.Checkpoint, agent: Optional[PPOAgent] = None) -> SavedNetwork:
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


def _read_state(saved: checkpoint.Checkpoint) -> Dict[str, Any]:
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
            name: _ACTION_SPACES[fields.pop("kind")](**fields)
            for name, fields in plain["action_space"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CheckpointError(f"{saved.path}: state.ron cannot be read: {error}") from None
    return plain  # type: ignore[no-any-return]


_ACTION_SPACES: Dict[str, Callable[..., ActionSpace]] = {
    space.__name__: space
    for space in (CategoricalActionSpace, GlobalCategoricalActionSpace, SelectEntityActionSpace)
}


def _refuse_other_network(saved: checkpoint.Checkpoint, config: TrainConfig) -> None:
    """The network of a run that continues keeps its shape."""
    before = load_config(TrainConfig, None, text=saved.read("config.ron").decode()).net
    changed = [
        f"net.{f.name}: expected {old!r} as in {saved.path}, got {new!r}"
        for f in fields(before)
        if (old := getattr(before, f.name)) != (new := getattr(config.net, f.name))
    ]
    if changed:
        raise CheckpointError(f"{'; '.join(changed)}; a run that continues keeps its network")


def _load_weights(network: nn.Module, saved: checkpoint.Checkpoint) -> None:
    try:
        network.load_state_dict(_tensors(saved, "state.agent.safetensors"))
    except RuntimeError as error:
        raise CheckpointError(
            f"{saved.path}: the weights do not fit the network: {error}"
        ) from None


def _load_moments(
    optimizer: torch.optim.AdamW, network: nn.Module, tensors: Dict[str, Tensor]
) -> None:
    """Give every parameter the moments saved under its name; the settings stay as configured."""
    state: Dict[int, Dict[str, Tensor]] = {}
    index = {name: i for i, (name, _) in enumerate(network.named_parameters())}
    for key, value in tensors.items():
        name, _, moment = key.rpartition("/")
        if name not in index:
            raise CheckpointError(f"optimizer: has {key}, but the network has no {name}")
        state.setdefault(index[name], {})[moment] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _tensor_bytes(tensors: Dict[str, Tensor]) -> bytes:
    return save_tensors({name: t.detach().cpu().contiguous() for name, t in tensors.items()})


def _tensors(saved: checkpoint.Checkpoint, name: str) -> Dict[str, Tensor]:
    try:
        return load_tensors(saved.read(name))
    except SafetensorError as error:
        raise CheckpointError(f"{saved.path}: {name} cannot be read: {error}") from None
