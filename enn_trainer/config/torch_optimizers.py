"""Optimizers of torch by name, and validation of their settings."""

import functools
import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from entity_env.errors import did_you_mean, one_line, short_repr

PUBLISHED = "AdamW"
_PUBLISHED_KWARGS = {"eps": 1e-5}
_MAX_UNKNOWN = 20  # unknown arguments with a message of their own
_FIELDS = ("lr", "weight_decay")  # arguments that are settings of the configuration
_IMPLEMENTATIONS = {"fused", "foreach", "capturable", "differentiable"}  # at most one of them


def new_optimizer(
    name: str, kwargs: Mapping[str, Any], parameters: Any, lr: float, weight_decay: float = 0.0
) -> Optimizer:
    """Create an optimizer of torch by name.

    Args:
        name: Name of a class in `torch.optim`.
        kwargs: Further arguments; the defaults are those of torch, except eps=1e-5 of AdamW.
        parameters: Parameters or parameter groups.
        lr: Default learning rate of parameter groups.
        weight_decay: Default weight decay of parameter groups, if the optimizer supports it.
    """
    cls: Any = _classes()[name]
    if not kwargs.get("differentiable"):
        cls = _without_compiler(cls)
    arguments = {**(_PUBLISHED_KWARGS if name == PUBLISHED else {}), **kwargs}
    if "fused" in inspect.signature(cls).parameters and not _IMPLEMENTATIONS.intersection(kwargs):
        # One call for all parameters; hundreds of calls would dominate for small networks.
        arguments["fused"] = True
    if "weight_decay" in inspect.signature(cls).parameters:
        arguments["weight_decay"] = weight_decay
    optimizer: Optimizer = cls(parameters, lr=lr, **arguments)
    return optimizer


@functools.cache
def _without_compiler(cls: Any) -> type[Optimizer]:
    """Return a subclass of an optimizer without the wrappers for torch.compile.

    The wrappers import torch._dynamo, which takes half of the time until the first update of a run.
    Nothing is compiled here.
    """
    guarded = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in guarded}
    meta = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    step = torch.no_grad()(inspect.unwrap(cls.step))
    return type(cls.__name__, (cls,), {**meta, **methods, "step": step})


@functools.lru_cache(maxsize=8)
def problems_of_optimizer(name: str, kwargs: str, decays: bool) -> tuple[str, ...]:
    """Return the problems of the settings of an optimizer, including errors of a two-step trial.

    The result is cached, because a configuration is validated at each knot of its schedules.

    Args:
        name: Name of a class in `torch.optim`.
        kwargs: Further arguments, a JSON object.
        decays: True if weight decay is configured.
    """
    return tuple(_problems_of_optimizer(name, kwargs, decays))


def _problems_of_optimizer(name: str, kwargs: str, decays: bool) -> Iterator[str]:
    # Name and weight decay.
    classes = _classes()
    if name not in classes:
        usable = usable_optimizers()
        hint = did_you_mean(name, usable, separator="; ")
        yield f"name: expected one of {', '.join(usable)}, got {short_repr(name)}{hint}"
        return
    arguments = inspect.signature(classes[name]).parameters
    if decays and "weight_decay" not in arguments:
        yield f"weight_decay: expected 0.0 with name={name!r}, which does not support it"

    # Unknown arguments, with hints.
    values = json.loads(kwargs)
    accepted = [key for key in arguments if key not in ("params", *_FIELDS)]
    unknown = [key for key in values if key not in accepted]
    for key in unknown[:_MAX_UNKNOWN]:
        if key in _FIELDS:
            hint = f"is set by optim.{key}"
        else:
            near = did_you_mean(key, accepted, separator="; ")
            hint = f"is not an argument of {name}{near or ', which has ' + ', '.join(accepted)}"
        yield f"kwargs: {key} {hint}"
    if len(unknown) > _MAX_UNKNOWN:
        yield f"kwargs: {len(unknown) - _MAX_UNKNOWN} more that are not arguments of {name}"
    if unknown or (name, values) == (PUBLISHED, {}):  # always valid
        return

    # Values that torch rejects, found by a trial.
    default_problem = _trial(name, {})
    if default_problem is not None:
        yield f"name: {name} cannot train a network here: {default_problem}"
    elif (problem := _trial(name, values)) is not None:
        yield f"kwargs: {name} rejects {kwargs}: {problem}"


def usable_optimizers() -> list[str]:
    """Return the names of the optimizers that can train a network."""
    return [name for name in _classes() if _trial(name, {}) is None]


def _classes() -> dict[str, type[Optimizer]]:
    return {
        name: cls
        for name, cls in inspect.getmembers(torch.optim, inspect.isclass)
        if issubclass(cls, Optimizer) and "lr" in inspect.signature(cls).parameters
    }


def _trial(name: str, kwargs: Mapping[str, Any]) -> str | None:
    """Take two steps with a matrix and a vector; return the error, or None."""
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))]
    try:
        optimizer = new_optimizer(name, kwargs, parameters, lr=0.1)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    except Exception as error:  # checks of torch raise various types
        return one_line(error)
    finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
    return None if finite else "parameters become infinite or NaN"
