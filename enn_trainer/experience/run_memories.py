"""`RecurrentStates`: recurrent state of the players of a run, as a part of its state."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from enn_trainer.base.group import Group
from enn_trainer.base.state_part import (
    SpaceChange,
    StateDict,
    StatePart,
    with_prefix,
    without_prefix,
)
from enn_trainer.experience.env_states import gather_memory, select_memory
from enn_trainer.experience.memories import Recurrence


class RecurrentStates(StatePart):
    """Recurrent state of the players of a run, as a part of its state.

    Attributes:
        source: returns the recurrent state of each player by name; None before the first step.
        saved: restored states of players that have not begun yet, as NAME/entry.
        columns: the environments of this process in a run of several; None for all.
    """

    is_restored = False  # after a failed update players begin new episodes
    source: Callable[[], Mapping[str, Recurrence]] | None = None
    columns: range | None = None
    _joined: dict[str, Any] | None = None

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def begin(self, name: str, memory: Recurrence) -> None:
        """Restore the recurrent state of a player that continues its episodes.

        Raises:
            ValueError: the saved state does not fit this player.
        """
        entries = without_prefix(name, self.saved)
        self.saved = {k: x for k, x in self.saved.items() if k not in with_prefix(name, entries)}
        if entries:
            memory.load_state_dict(
                entries if self.columns is None else select_memory(entries, self.columns)
            )

    def keep(self, names: Collection[str]) -> None:
        """Drop the saved states of all other players."""
        self.saved = {k: x for k, x in self.saved.items() if k.partition("/")[0] in names}

    def names(self) -> list[str]:
        """Return the names of players with a saved state that have not begun yet."""
        return sorted({key.partition("/")[0] for key in self.saved})

    def join(self, group: Group) -> None:
        """Gather the states of all ranks for a save."""
        self._joined = None
        if self.columns is not None and group.size > 1:
            self._joined = gather_memory(self.state_dict(), group, self.columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all players, as NAME/entry."""
        if self._joined is not None:
            return self._joined
        state = dict(self.saved)
        for name, memory in ({} if self.source is None else self.source()).items():
            state |= with_prefix(name, memory.state_dict())
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Store the states until the players begin; there may be none."""
        self.saved = {key: x for key, x in state.items() if isinstance(x, Tensor)}

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return an empty state if the environment changed, as running episodes end then."""
        return dict(state) if change.is_same_world else {}
