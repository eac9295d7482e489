"""Optional dependency hyperstate; no other module imports it.

If it is installed, `Versioned` and `StateManager` derive from its classes, and its managers and
rewrite rules are interchangeable with ours.
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
    """Return the name of the hyperstate class of a rule, or None.

    None also for a rule of a subclass that overrides `apply`.
    """
    bases: Sequence[Any] = type(rule).__mro__
    for cls in bases:
        if rewrite_rule is not None and cls.__module__ == rewrite_rule.__name__:
            return cls.__name__ if cls.apply is bases[0].apply else None
    return None


def hyperstate_rule(kind: str, fields: dict[str, Any]) -> Any:
    """Create a rewrite rule of hyperstate."""
    return getattr(rewrite_rule, kind)(**fields)


def hyperstate_schedule(update: Any, text: str) -> Any:
    """Create a schedule of hyperstate; it calls `update` to update the setting."""
    return schedule.Schedule(update, text)
