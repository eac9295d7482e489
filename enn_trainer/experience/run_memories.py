"""`RunMemories`: memory of the players of a run, as a part of its state."""

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
from enn_trainer.experience.env_states import memory_of_ranks, part_of_memory
from enn_trainer.experience.memories import Recurrence


class RunMemories(StatePart):
    """Memory of the players of a run, as a part of its state.

    Attributes:
        ask: returns the memory of each player by name; None if nobody plays yet.
        saved: states of a save of players that have not begun since, as NAME/entry.
        columns: the environments of this process in a run of several; None for all.
    """

    is_restored = False  # after a failed update players begin new episodes
    ask: Callable[[], Mapping[str, Recurrence]] | None = None
    columns: range | None = None
    _joined: dict[str, Any] | None = None

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def begin(self, name: str, memory: Recurrence) -> None:
        """Give a player that goes on what it remembered in the save.

        Raises:
            ValueError: the state is not that of this player.
        """
        own = without_prefix(name, self.saved)
        self.saved = {k: x for k, x in self.saved.items() if k not in with_prefix(name, own)}
        if own:
            memory.load_state_dict(
                own if self.columns is None else part_of_memory(own, self.columns)
            )

    def keep(self, names: Collection[str]) -> None:
        """Forget what a save has of all other players."""
        self.saved = {k: x for k, x in self.saved.items() if k.partition("/")[0] in names}

    def names(self) -> list[str]:
        """Return the names of players that a save has and that have not begun."""
        return sorted({key.partition("/")[0] for key in self.saved})

    def join(self, group: Group) -> None:
        """Take the states of all ranks, for a save."""
        self._joined = None
        if self.columns is not None and group.size > 1:
            self._joined = memory_of_ranks(self.state_dict(), group, self.columns)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of all players, as NAME/entry."""
        if self._joined is not None:
            return self._joined
        state = dict(self.saved)
        for name, memory in ({} if self.ask is None else self.ask()).items():
            state |= with_prefix(name, memory.state_dict())
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Keep the states for players that begin, of which there may be none."""
        self.saved = {key: x for key, x in state.items() if isinstance(x, Tensor)}

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return nothing: running episodes end where the world changes."""
        return dict(state) if change.is_same_world else {}
