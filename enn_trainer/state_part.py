"""`StatePart`: interface of the parts of a run's state to saves, resumes and upgrades."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

StateDict: TypeAlias = Mapping[str, Any]
"""Tensors and plain data by name.

Tensors that belong to a parameter of the agent, such as moments, are called PARAMETER/what.
"""


class SpaceChange(Protocol):
    """Change of the observation and action spaces of a run, which its state follows."""

    def action(self, name: str) -> str:
        """Return the new name of an action."""

    def moments(self, state: StateDict) -> dict[str, Any]:
        """Return the entries PARAMETER/what, rearranged like the parameters that they belong to.

        Entries of parameters that no longer exist are left out.
        """


class StatePart(Protocol):
    """Part of the state of a run. Derive from it to have `evolve`."""

    def state_dict(self) -> StateDict:
        """Return tensors and plain data by name. Tensors need not be copies."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state; entries that are missing keep their initial values.

        Raises:
            ValueError: an entry cannot be used; the message names it.
        """

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state for other observation and action spaces; by default, unchanged.

        Args:
            state: state of this part for the old spaces.
            change: new names and places of actions and parameters.
        """
        return state


def with_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries of a state as NAME/entry."""
    return {f"{name}/{key}": value for key, value in state.items()}


def without_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries NAME/entry of a state as entry, without the others."""
    start = f"{name}/"
    return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}


def check_tensor(name: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise if an entry of a state is not a tensor of this dtype and shape.

    Raises:
        ValueError: it is something else; the message names it.
    """
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.shape != shape:
        got = type(tensor).__name__
        if isinstance(tensor, Tensor):
            got = f"{list(tensor.shape)} of {tensor.dtype}"
        raise ValueError(f"{name}: expected {list(shape)} finite numbers of {dtype}, got {got}")
