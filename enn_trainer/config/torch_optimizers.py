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
_MAX_UNKNOWN = 20  # arguments that are named one by one
_FIELDS = ("lr", "weight_decay")  # of the configuration
_HOW = {"fused", "foreach", "capturable", "differentiable"}  # of which torch takes one


def new_optimizer(
    name: str, kwargs: Mapping[str, Any], parameters: Any, lr: float, weight_decay: float = 0.0
) -> Optimizer:
    """Create an optimizer of torch by name.

    Args:
        name: name of a class in `torch.optim`.
        kwargs: further arguments; the others have torch's defaults, except eps=1e-5 of AdamW.
        parameters: parameters, or groups of them.
        lr: learning rate of groups without their own.
        weight_decay: weight decay of groups without their own, if the class has weight decay.
    """
    cls: Any = _classes()[name]
    if not kwargs.get("differentiable"):
        cls = _without_compiler(cls)
    given = {**(_PUBLISHED_KWARGS if name == PUBLISHED else {}), **kwargs}
    if "fused" in inspect.signature(cls).parameters and not _HOW.intersection(kwargs):
        # One call for all parameters; hundreds would dominate for small networks.
        given["fused"] = True
    if "weight_decay" in inspect.signature(cls).parameters:
        given["weight_decay"] = weight_decay
    optimizer: Optimizer = cls(parameters, lr=lr, **given)
    return optimizer


@functools.cache
def _without_compiler(cls: Any) -> type[Optimizer]:
    """Return a subclass of an optimizer without the wrappers for torch.compile.

    The wrappers import torch._dynamo when an optimizer is made and at every step, which takes half
    of the time until the first update of a run. Nothing is compiled here.
    """
    guarded = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
    methods = {name: inspect.unwrap(getattr(cls, name)) for name in guarded}
    about = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    step = torch.no_grad()(inspect.unwrap(cls.step))
    return type(cls.__name__, (cls,), {**about, **methods, "step": step})


@functools.lru_cache(maxsize=8)
def problems_of_optimizer(name: str, kwargs: str, decays: bool) -> tuple[str, ...]:
    """Return problems of the settings of an optimizer.

    It is tried for two steps, so that errors of torch show before the run begins. The result is
    cached, as a configuration is checked again for each knot of its schedules.

    Args:
        name: name of a class in `torch.optim`.
        kwargs: further arguments, a JSON object.
        decays: True if weight decay is configured.
    """
    return tuple(_problems_of_optimizer(name, kwargs, decays))


def _problems_of_optimizer(name: str, kwargs: str, decays: bool) -> Iterator[str]:
    # Name and weight decay.
    classes = _classes()
    if name not in classes:
        usable = usable_optimizers()
        alike = [one for one in usable if one.lower() == name.lower()]
        hint = did_you_mean(name, alike or usable, 0.0 if alike else 0.5, separator="; ")
        yield f"name: expected one of {', '.join(usable)}, got {short_repr(name)}{hint}"
        return
    arguments = inspect.signature(classes[name]).parameters
    if decays and "weight_decay" not in arguments:
        yield f"weight_decay: expected 0.0 with name={name!r}, which has none"

    # Unknown arguments, with hints.
    given = json.loads(kwargs)
    own = [key for key in arguments if key not in ("params", *_FIELDS)]
    unknown = [key for key in given if key not in own]
    for key in unknown[:_MAX_UNKNOWN]:
        if key in _FIELDS:
            hint = f"is a setting of its own, optim.{key}"
        else:
            near = did_you_mean(key, own, cutoff=0.5, separator="; ")
            hint = f"is no argument of {name}{near or ', which has ' + ', '.join(own)}"
        yield f"kwargs: {key} {hint}"
    if len(unknown) > _MAX_UNKNOWN:
        yield f"kwargs: {len(unknown) - _MAX_UNKNOWN} more that are no arguments of {name}"
    if unknown or (name, given) == (PUBLISHED, {}):  # known to work
        return

    # Values that torch rejects, found by a trial.
    without = _trial(name, {})
    if without is not None:
        yield f"name: {name} cannot train a network here: {without}"
    elif (wrong := _trial(name, given)) is not None:
        yield f"kwargs: {name} refuses {kwargs}: {wrong}"


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
    """Return why two steps with a matrix and a vector fail, or None if they succeed."""
    parameters = [nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(3))]
    try:
        optimizer = new_optimizer(name, kwargs, parameters, lr=0.1)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    except Exception as error:  # torch's own checks raise whatever suits them
        return one_line(error)
    finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
    return None if finite else "parameters become infinite or NaN"
