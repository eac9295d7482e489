"""The one file that imports hyperstate, so that everything works where that cannot be installed.

Where it can, `Versioned` and `StateManager` derive from its classes, its managers and rewrite rules
are accepted, and it accepts ours.
"""

from abc import ABC
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

C = TypeVar("C")
S = TypeVar("S")

if TYPE_CHECKING:
    from hyperstate import StateManager

    ManagerBase = StateManager
    VersionedBase = ABC
    schedule: Any
    rewrite_rule: Any
else:
    try:
        from hyperstate import StateManager as ManagerBase
        from hyperstate import Versioned as VersionedBase
        from hyperstate import schedule
        from hyperstate.schema import rewrite_rule
    except ImportError:  # its python-ron has no wheel for this Python or machine

        class ManagerBase(Generic[C, S]):
            """Base of `StateManager`."""

        VersionedBase, schedule, rewrite_rule = ABC, None, None


def is_versioned(cls: type) -> bool:
    """Return whether a class derives from hyperstate's `Versioned`."""
    return VersionedBase is not ABC and VersionedBase in cls.__mro__


def kind_of_rule(rule: object) -> str | None:
    """Return the name of the class of hyperstate that a rule is of, or None.

    A rule of a subclass with another `apply` is a kind of its own.
    """
    bases: Sequence[Any] = type(rule).__mro__
    for cls in bases:
        if rewrite_rule is not None and cls.__module__ == rewrite_rule.__name__:
            return cls.__name__ if cls.apply is bases[0].apply else None
    return None


def their_rule(kind: str, fields: dict[str, Any]) -> Any:
    """Return a rewrite rule of hyperstate."""
    return getattr(rewrite_rule, kind)(**fields)


def their_schedule(update: Any, text: str) -> Any:
    """Return a schedule of hyperstate, which calls `update` to set the setting to its value."""
    return schedule.Schedule(update, text)
