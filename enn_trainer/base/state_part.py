"""`StatePart`: interface of the parts of a run's state to saves, resumes and upgrades."""

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from enn_trainer.base.group import Group

StateDict: TypeAlias = Mapping[str, Any]
"""Tensors and plain data by name.

Tensors that belong to a parameter of the agent, such as optimizer moments, are named PARAMETER/key.
"""

FILES = "files"
"""Entry of a state with the contents of `StatePart.files`."""


class SavedNetwork(NamedTuple):
    """Serialized network other than the agent in a state, such as a pool member.

    Attributes:
        config: configuration of its run, as RON.
        spaces: observation and action spaces, as RON.
        weights: safetensors file.
    """

    config: str
    spaces: str
    weights: bytes


class SpaceChange(Protocol):
    """Change of the observation and action spaces of a run, to which its state is migrated.

    Attributes:
        is_same_world: True if only orders or settings change.
    """

    is_same_world: bool

    def action(self, name: str) -> str:
        """Return the new name of an action."""

    def parameter(self, name: str) -> str:
        """Return the new name of an argument of the environment."""

    def moments(self, state: StateDict) -> dict[str, Any]:
        """Return the entries PARAMETER/key, rearranged like their parameters.

        Entries of removed parameters are left out.
        """

    def others(self, state: StateDict) -> dict[str, Any]:
        """Return the entries that belong to no parameter of the old agent."""

    def copy_of_agent(self, tensors: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
        """Return the tensors of a copy of the old agent, rearranged like the agent's tensors.

        Args:
            tensors: weights and buffers by name, of the old shapes; values may differ from the
                agent's.

        Returns:
            Tensors of the new shapes. New names and entries are initialised like the new agent's.
        """

    def network(self, name: str, saved: SavedNetwork) -> SavedNetwork | None:
        """Upgrade another network like the agent.

        Args:
            name: name of the network, for the report.
            saved: the network, which may have other spaces than the agent.

        Returns:
            The network for the new spaces; None if it cannot be upgraded, which is reported.
        """


class StatePart(Protocol):
    """Base class of the parts of the state of a run.

    Plain data are None, bool, int, float, str, bytes, and lists and dicts of them; keys are str.

    Attributes:
        is_restored: False for a part that need not be restored after a failed update, because it
            only changes between updates, or is reset with new episodes.
    """

    is_restored: bool = True

    def state_dict(self) -> StateDict:
        """Return tensors and plain data by name, which need not be copies; by default, none."""
        return {}

    def files(self) -> Mapping[str, bytes]:
        """Return immutable contents by file name; by default, none.

        A save has a file for each, which is shared with earlier saves if the file system supports
        links. If the same object is returned each time, it is hashed once. `load_state_dict` gets
        the contents as the entry `files`, by file name.
        """
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state by a saved one; by default, do nothing.

        The part may retain the given tensors, which are on the device for computation, and data.
        Missing entries get the values of a new part.

        Raises:
            ValueError: an entry is invalid; the message names it.
        """
        return

    def snapshot(self) -> StateDict:
        """Return the entries that an update may change, which need not be copies.

        Called before each update. By default, all entries of `state_dict`.
        """
        return self.state_dict()

    def restore(self, snapshot: StateDict) -> None:
        """Restore copies of the entries of `snapshot` after a failed update.

        By default, load them as a saved state, with the current files.
        """
        files = self.files()
        self.load_state_dict({**snapshot, FILES: dict(files)} if files else snapshot)

    def begin_episodes(self, num_envs: int) -> None:
        """Reset data of running episodes, as all environments begin new ones; by default, nothing.

        Args:
            num_envs: number of environments that are trained on.
        """
        return

    def join(self, group: "Group") -> None:
        """Gather the state of all ranks before rank 0 saves; by default, do nothing.

        Called in every rank. Data that is equal in all ranks need not be gathered.

        Args:
            group: the ranks of the run, which exchange plain data and tensors.
        """
        return

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state for other observation and action spaces.

        By default entries named PARAMETER/key follow the parameter, and other entries stay.

        Args:
            state: state of this part for the old spaces.
            change: new names and positions of actions and parameters.
        """
        return {**change.others(state), **change.moments(state)}


class UnusedPart(StatePart):
    """State of a part that the run does not use, which is saved unchanged."""

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
        """Store the state."""
        self._state = dict(state)


def full_state(part: StatePart) -> dict[str, Any]:
    """Return the state of a part for `load_state_dict`, including its files."""
    files = part.files()
    return {**part.state_dict(), **({FILES: dict(files)} if files else {})}


def copied_state(state: StateDict, device: "torch.device | None" = None) -> dict[str, Any]:
    """Return a deep copy of a state.

    Args:
        state: tensors and plain data by name.
        device: device of the copies; None for the device of each tensor.
    """
    from torch import Tensor

    return {
        name: value.detach().to(device or value.device, copy=True)
        if isinstance(value, Tensor)
        else copy.deepcopy(value)
        for name, value in state.items()
    }


def with_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries of a state with the prefix NAME/."""
    return {f"{name}/{key}": value for key, value in state.items()}


def without_prefix(name: str, state: StateDict) -> dict[str, Any]:
    """Return the entries of a state with the prefix NAME/, without this prefix."""
    start = f"{name}/"
    return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}


def check_plain(name: str, value: object) -> None:
    """Raise if an entry of a state is not plain data that survives a round trip.

    Raises:
        ValueError: the value is not plain data; the message names it.
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


def check_tensor(name: str, tensor: object, dtype: "torch.dtype", shape: tuple[int, ...]) -> None:
    """Raise if an entry of a state is not a tensor of this dtype and shape.

    Raises:
        ValueError: the entry differs; the message names it.
    """
    from torch import Tensor

    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tensor.shape != shape:
        got = type(tensor).__name__
        if isinstance(tensor, Tensor):
            got = f"{list(tensor.shape)} of {tensor.dtype}"
        raise ValueError(f"{name}: expected {list(shape)} finite numbers of {dtype}, got {got}")
