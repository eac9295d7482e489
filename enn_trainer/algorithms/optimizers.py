"""Optimizers of policy and value network: learning rates, groups, clipping, moments, checks."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from enn_trainer.base.errors import ConfigError, NotFiniteError
from enn_trainer.config import TrainConfig
from enn_trainer.config.ppo_config import OptimizerConfig, ParamGroupConfig
from enn_trainer.config.schedules import Scheduled, ScheduledFloat, total_steps
from enn_trainer.config.torch_optimizers import new_optimizer
from rogue_net.embedding import FeaturelessEmbedding, TypeEmbedding
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.rogue_net import RogueNetWithValueNet
from rogue_net.value_head import AS_TARGETS, TargetUnits
from rogue_net.wiring import Wired

EVERYTHING_ELSE = ParamGroupConfig("*")

_TABLES = (nn.Embedding, nn.EmbeddingBag, FeaturelessEmbedding, TypeEmbedding, RelposEncoding)
_NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase)


def value_network(agent: nn.Module) -> nn.Module | None:
    """Return the separate value network of an agent, or None without one."""
    agent = _unwired(agent)
    return agent.value_function if isinstance(agent, RogueNetWithValueNet) else None


def value_norm(agent: Any) -> TargetUnits:
    """Return the normalisation of returns in the value head of an agent."""
    norm: TargetUnits = getattr(_unwired(agent), "value_norm", AS_TARGETS)
    return norm


def _unwired(agent: Any) -> Any:
    while isinstance(agent, Wired):
        agent = agent.network
    return agent


def make_optimizers(agent: nn.Module, optim: OptimizerConfig) -> tuple[Optimizer, Optimizer | None]:
    """Create the optimizer of the policy, and of the value network if it is separate.

    Every parameter of the agent is in exactly one optimizer.

    Raises:
        ConfigError: a group of `optim` matches no parameter.
    """
    # Settings of each parameter.
    named = dict(agent.named_parameters())
    groups = match_groups(list(named), optim.groups)
    decayed = decayed_parameters(agent)
    settings = {name: _settings(optim, groups[name], name in decayed) for name in named}

    # Parameters by optimizer.
    value_net = value_network(agent)
    ids = set() if value_net is None else {id(parameter) for parameter in value_net.parameters()}
    policy_parameters = [(p, settings[name]) for name, p in named.items() if id(p) not in ids]
    value_parameters = [(p, settings[name]) for name, p in named.items() if id(p) in ids]
    return _optimizer(policy_parameters, optim), _optimizer(
        value_parameters, optim
    ) if value_parameters else None


def match_groups(
    names: Sequence[str], groups: Sequence[ParamGroupConfig]
) -> dict[str, ParamGroupConfig]:
    """Return the first matching group of each parameter, by name.

    Raises:
        ConfigError: a group matches no parameter that earlier groups do not match.
    """
    index = {
        name: next((i for i, g in enumerate(groups) if fnmatchcase(name, g.pattern)), None)
        for name in names
    }
    unused = [i for i in range(len(groups)) if i not in index.values()]
    if unused:
        expected = f"expected to match a parameter that no earlier group has: {', '.join(names)}"
        raise ConfigError(
            *(f"optim.groups[{i}].pattern={groups[i].pattern!r}: {expected}" for i in unused)
        )
    return {name: EVERYTHING_ELSE if i is None else groups[i] for name, i in index.items()}


def decayed_parameters(network: nn.Module) -> set[str]:
    """Return the names of the parameters with weight decay: the weight matrices.

    Biases and gains of norms are excluded as usual. Embedding tables, such as for types without
    features or for relative positions, are excluded because their rows would also decay while no
    such entity is observed.
    """
    return {
        f"{path}.{name}" if path else name
        for path, module in network.named_modules()
        if not isinstance(module, _TABLES + _NORMS)
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.ndim > 1
    }


def _settings(optim: OptimizerConfig, group: ParamGroupConfig, decays: bool) -> dict[str, Any]:
    """Return the settings of a parameter group; torch preserves unknown keys."""
    never = group.freeze_from is None and group.freeze_until is None
    some_decay = optim.weight_decay != 0 or isinstance(optim.weight_decay, ScheduledFloat)
    return {
        "weight_decay": group.weight_decay or 0.0,
        "follows_weight_decay": decays and group.weight_decay is None and some_decay,
        "lr_factor": group.lr_factor,
        "freeze_from": math.inf if never else group.freeze_from or 0,
        "freeze_until": math.inf if group.freeze_until is None else group.freeze_until,
    }


def _optimizer(
    parameters: Iterable[tuple[nn.Parameter, dict[str, Any]]], optim: OptimizerConfig
) -> Optimizer:
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}  # by settings, so that they are few
    for parameter, settings in parameters:
        key = tuple(settings.values())
        groups.setdefault(key, {"params": [], **settings})["params"].append(parameter)
    kwargs = json.loads(optim.kwargs)
    optimizer = new_optimizer(optim.name, kwargs, groups.values(), optim.lr)
    begin_update(optimizer, optim.lr, optim.weight_decay, step=0)
    return optimizer


def begin_update(optimizer: Optimizer, lr: float, weight_decay: float, step: int) -> None:
    """Set the learning rates, weight decays and frozen parameters of an update.

    Args:
        optimizer: an optimizer of `make_optimizers`.
        lr: learning rate, which is multiplied by the `lr_factor` of each group.
        weight_decay: weight decay of the matrices in groups that do not set one.
        step: frames of the run before this update.
    """
    for group in optimizer.param_groups:
        group["lr"] = lr * group["lr_factor"]
        if group["follows_weight_decay"]:
            group["weight_decay"] = weight_decay
        group["frozen"] = group["freeze_from"] <= step < group["freeze_until"]


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of an optimizer, in the order of torch's parameter indices."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clipped_step(optimizer: Optimizer, max_grad_norm: float, is_checked: bool = True) -> Tensor:
    """Clip the gradient of an optimizer's parameters by its norm, and take a step.

    Gradients of frozen parameters are set to None, so that torch skips them: they do not count in
    the norm, and neither their moments nor, by weight decay, their values change.

    Args:
        optimizer: the optimizer.
        max_grad_norm: maximal norm; longer gradients are scaled to it.
        is_checked: True to skip the step if the norm is not finite, so that the gradients can
            still be examined. On a GPU this waits for all queued work.

    Returns:
        () float, the norm before clipping.
    """
    for group in optimizer.param_groups:
        if group.get("frozen", False):
            for parameter in group["params"]:
                parameter.grad = None
    parameters = trained_by(optimizer)
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    length = float(norm) if is_checked else None
    if length is None or math.isfinite(length):
        if length is None or length > max_grad_norm:
            nn.utils.clip_grads_with_norm_(parameters, max_grad_norm, norm)
        optimizer.step()
    return norm


def moments_of(
    optimizers: Iterable[Optimizer], parameters: Mapping[str, nn.Parameter]
) -> dict[str, Tensor]:
    """Return optimizer moments as `parameter/moment`, such as `head.weight/exp_avg`.

    Args:
        optimizers: the optimizers.
        parameters: parameters by name.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in parameters.items()}
    return {
        f"{names[parameter]}/{key}": value
        for optimizer in optimizers
        for parameter, entry in optimizer.state.items()
        for key, value in entry.items()
    }


def load_moments(
    optimizers: Iterable[Optimizer],
    parameters: Mapping[str, nn.Parameter],
    tensors: Mapping[str, Tensor],
) -> None:
    """Load optimizer moments by the names of parameters; learning rates stay as configured.

    Args:
        optimizers: the optimizers, which are modified.
        parameters: their parameters by name.
        tensors: moments of these parameters, named as by `moments_of`.

    Raises:
        ValueError: a moment has an invalid shape, or is missing.
    """
    # Group by parameter.
    moments: dict[str, dict[str, Tensor]] = {name: {} for name in parameters}
    for key, value in tensors.items():
        name, _, moment = key.rpartition("/")
        if not _is_moment(value, parameters[name]):
            raise ValueError(
                f"{key}: expected finite numbers of the shape of the parameter, "
                f"{list(parameters[name].shape)}, or a count"
            )
        moments[name][moment] = value

    # Load by torch's indices of the parameters of an optimizer.
    names = {parameter: name for name, parameter in parameters.items()}
    for optimizer in optimizers:
        trained = {i: (names[p], p) for i, p in enumerate(trained_by(optimizer))}
        _check_complete([(name, p.ndim, moments[name]) for name, p in trained.values()])
        by_index = {i: moments[name] for i, (name, _) in trained.items() if moments[name]}
        optimizer.load_state_dict({**optimizer.state_dict(), "state": by_index})


def _is_moment(value: object, parameter: Tensor) -> bool:
    """Return True if an entry of a state can be an optimizer moment of a parameter.

    It has the shape of the parameter, possibly with dimensions of size 1 (Adafactor), or is a
    non-negative scalar (a step count, or a product of rates as in NAdam).
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    if value.ndim == 0:
        return bool(value >= 0)
    sizes = zip(value.shape, parameter.shape, strict=False)
    return value.ndim == parameter.ndim and all(size in (1, full_size) for size, full_size in sizes)


def _check_complete(moments: Sequence[tuple[str, int, Mapping[str, Tensor]]]) -> None:
    """Raise if parameters with the same number of dimensions have different moments.

    Args:
        moments: name, number of dimensions and moments of each parameter; {} before its first step.
    """
    names_by_ndim: dict[int, set[str]] = {}
    for name, num_axes, entries in moments:
        expected = names_by_ndim.setdefault(num_axes, set(entries)) if entries else set[str]()
        if expected != set(entries):
            raise ValueError(
                f"{name}: expected {', '.join(sorted(expected))} as for other parameters, got "
                f"{', '.join(sorted(entries))}"
            )


class Rates(NamedTuple):
    """Learning rate and entropy coefficient of an update."""

    lr: float
    ent_coef: float


def rates_at(
    config: TrainConfig, step: int, time_used: float, frames_per_step: int | None = None
) -> Rates:
    """Return the rates of the update that begins at `step`, after `time_used` seconds of training.

    The learning rate rises linearly over `lr_warmup_steps` and reaches its full value in the update
    that ends there, so that it is positive in the first update. Annealing is linear, to 0 at the
    end of the run, or at `max_train_time` if that comes first. It is on by default and does not
    apply to a rate with a schedule.
    """
    frames = (frames_per_step or config.rollout.num_envs) * config.rollout.steps
    total = total_steps(config, frames_per_step)
    warmup = config.optim.lr_warmup_steps or 0
    time_left = max(0.0, 1.0 - time_used / (config.max_train_time or math.inf))

    # Warm-up: lr * (step + frames) / warmup, then annealing: lr * (1 - progress).
    lr = float(config.optim.lr)
    if step < warmup:
        lr *= min(1.0, (step + frames) / warmup)
    elif config.optim.anneal_lr and not isinstance(config.optim.lr, Scheduled):
        lr *= max(0.0, min(time_left, 1.0 - (step - warmup) / max(frames, total - warmup)))

    # Entropy coefficient: annealed over the whole run.
    ent_coef = float(config.ppo.ent_coef)
    if config.ppo.anneal_entropy and not isinstance(config.ppo.ent_coef, Scheduled):
        remaining = max(0.0, min(time_left, 1.0 - step / total))
        ent_coef *= remaining**config.ppo.ent_anneal_power
    return Rates(lr, ent_coef)


NAMED = 4
"""Maximal number of parameters listed in a message."""


def check_finite(
    agent: nn.Module, losses: Mapping[str, Tensor], where: str, rate: str = "optim.lr"
) -> None:
    """Raise if a loss or gradient norm is NaN or infinite.

    Args:
        agent: network with the gradients of these losses; read only if one is not finite.
        losses: () float each, losses and gradient norms by name.
        where: name of the minibatch or update, for the message.
        rate: setting of the learning rate, for the message.

    Raises:
        NotFiniteError: a value is NaN or infinite.
    """
    values = torch.stack(list(losses.values())).tolist()  # one transfer for all
    bad = {n: v for n, v in zip(losses, values, strict=True) if not math.isfinite(v)}
    if bad:
        grads = {n: p.grad for n, p in agent.named_parameters() if p.grad is not None}
        text = ", ".join(f"{name} is {value}" for name, value in bad.items())
        raise NotFiniteError(
            f"{where}: {text}; the gradient is not finite in {_named(grads)}. Look for rewards and "
            f"features that are very large, or lower {rate}"
        )


def check_finite_weights(
    agent: nn.Module, where: str = "after the update", rate: str = "optim.lr"
) -> None:
    """Raise if a parameter is NaN or infinite.

    Args:
        agent: network to check.
        where: point of time, for the message.
        rate: setting of the learning rate, for the message.

    Raises:
        NotFiniteError: a parameter is NaN or infinite.
    """
    parameters = {name: p.detach() for name, p in agent.named_parameters()}
    if parameters and not torch.isfinite(nn.utils.get_total_norm(parameters.values())):
        raise NotFiniteError(f"{where}: not finite are {_named(parameters)}. Lower {rate}")


def _named(tensors: Mapping[str, Tensor]) -> str:
    bad = [name for name, tensor in tensors.items() if not bool(tensor.norm().isfinite())]
    if not bad:
        return f"none of {len(tensors)} parameters alone"
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} of {len(tensors)} parameters: {', '.join(bad[:NAMED])}{more}"
