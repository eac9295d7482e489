"""`StatePart`: interface of the parts of a run's state to saves, resumes and upgrades."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from enn_trainer.base.group import Group

StateDict: TypeAlias = Mapping[str, Any]
"""Tensors and plain data by name.

Tensors that belong to a parameter of the agent, such as moments, are called PARAMETER/what.
"""

FILES = "files"
"""Entry of a state with the contents of `StatePart.files`."""


class SavedNetwork(NamedTuple):
    """Network that is a part of a state, beside the agent.

    Attributes:
        config: configuration of its run, as RON.
        spaces: its observation and action spaces, as RON.
        weights: safetensors file.
    """

    config: str
    spaces: str
    weights: bytes


class SpaceChange(Protocol):
    """Change of the observation and action spaces of a run, which its state follows.

    Attributes:
        is_same_world: True if nothing but orders or settings change.
    """

    is_same_world: bool

    def action(self, name: str) -> str:
        """Return the new name of an action."""

    def parameter(self, name: str) -> str:
        """Return the new name of an argument of the environment."""

    def moments(self, state: StateDict) -> dict[str, Any]:
        """Return the entries PARAMETER/what, rearranged like the parameters that they belong to.

        Entries of parameters that no longer exist are left out.
        """

    def others(self, state: StateDict) -> dict[str, Any]:
        """Return the entries that belong to no parameter of the old agent."""

    def copy_of_agent(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a copy of the old agent, rearranged like those of the agent.

        Args:
            tensors: weights and buffers by name, of the old shapes; those of the copy may have
                other values than the agent's.

        Returns:
            Those of the new shapes. New names and entries begin like those of the new agent.
        """

    def network(self, name: str, saved: SavedNetwork) -> SavedNetwork | None:
        """Return another network, upgraded by the rules of the agent.

        Args:
            name: of the network, for the report.
            saved: the network, perhaps of other spaces than the agent's.

        Returns:
            The network for the new spaces; None if it cannot be upgraded, as the report says.
        """


class StatePart(Protocol):
    """Part of the state of a run. Derive from it to have the defaults of its methods.

    Plain data are None, bool, int, float, str, bytes, and lists and dicts of them; keys are str.

    Attributes:
        is_restored: False for a part of which nothing has to be undone after a failed update, as it
            changes between updates alone, or begins anew with new episodes.
    """

    is_restored: bool = True

    def state_dict(self) -> StateDict:
        """Return tensors and plain data by name; by default, none. They need not be copies."""
        return {}

    def files(self) -> Mapping[str, bytes]:
        """Return contents that never change, by the names of their files; by default, none.

        A save has a file for each, which it shares with earlier saves where the file system has
        links. The same object each time is hashed once. `load_state_dict` gets the contents as the
        entry `files`, by name.
        """
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state by a saved one; by default, do nothing.

        The part may keep the tensors and data that it gets. Tensors that are kept are on the device
        to compute on. Entries that are missing get the values of a new part.

        Raises:
            ValueError: an entry cannot be used; the message names it.
        """
        return

    def snapshot(self) -> StateDict:
        """Return the entries that an update may change, which need not be copies.

        By default, all of `state_dict`. It is called before each update.
        """
        return self.state_dict()

    def restore(self, snapshot: StateDict) -> None:
        """Go back to copies of the entries of `snapshot`, after a failed update.

        By default, load them as a saved state, with the files that there are.
        """
        files = self.files()
        self.load_state_dict({**snapshot, FILES: dict(files)} if files else snapshot)

    def begin_episodes(self, num_envs: int) -> None:
        """Forget running episodes, as all environments begin new ones; by default, do nothing.

        Args:
            num_envs: number of environments that are learnt from.
        """
        return

    def join(self, group: "Group") -> None:
        """Take the states of all ranks before a save, of which rank 0 has one; by default, nothing.

        Every rank calls it. What is the same in all ranks need not be joined.

        Args:
            group: the ranks of the run, which exchange plain data and tensors.
        """
        return

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state for other observation and action spaces.

        By default entries called PARAMETER/what move with the parameter and others stay.

        Args:
            state: state of this part for the old spaces.
            change: new names and places of actions and parameters.
        """
        return {**change.others(state), **change.moments(state)}


class KeptPart(StatePart):
    """State of a part that a run does not use, which its saves keep as it is."""

    is_restored = False

    def __init__(self) -> None:
        self._state: dict[str, Any] = {}

    def state_dict(self) -> StateDict:
        """Return the state, without files."""
        return {name: value for name, value in self._state.items() if name != FILES}

    def files(self) -> Mapping[str, bytes]:
        """Return the contents of the files."""
        files: Mapping[str, bytes] = self._state.get(FILES, {})
        return files

    def load_state_dict(self, state: StateDict) -> None:
        """Take the state."""
        self._state = dict(state)


def full_state(part: StatePart) -> dict[str, Any]:
    """Return the state of a part as `load_state_dict` takes it, with its files if it has any."""
    files = part.files()
    return {**part.state_dict(), **({FILES: dict(files)} if files else {})}


def copied_state(state: StateDict, device: torch.device | None = None) -> dict[str, Any]:
    """Return a copy of a state that shares no memory with it.

    Args:
        state: tensors and plain data by name.
        device: device of the copies; None for that of each tensor.
    """
    return {
        name: value.detach().to(device or value.device, copy=True)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for name, value in state.items()
    }


def with_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries of a state as NAME/entry."""
    return {f"{name}/{key}": value for key, value in state.items()}


def without_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries NAME/entry of a state as entry, without the others."""
    start = f"{name}/"
    return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}


def check_plain(name: str, value: object) -> None:
    """Raise if an entry of a state is not plain data that comes back as it was saved.

    Raises:
        ValueError: it is something else; the message names it.
    """
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise ValueError(f"{name}: expected keys that are str, got {key!r}")
            check_plain(f"{name}[{key!r}]", item)
    elif type(value) is list:
        for i, item in enumerate(value):
            check_plain(f"{name}[{i}]", item)
    elif type(value) not in (type(None), bool, int, float, str, bytes):
        raise ValueError(
            f"{name}: expected plain data (None, bool, int, float, str, bytes, list, dict), got "
            f"{type(value).__name__}; tensors have an entry of the state dict each"
        )


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
