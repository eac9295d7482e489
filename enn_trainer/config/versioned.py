"""Configurations with a version, and rules that upgrade files of older versions."""

from abc import abstractmethod
from typing import Any

from enn_trainer.config.hyperstate_door import VersionedBase, is_versioned
from enn_trainer.config.rewrite_rules import RewriteRule


class Versioned(VersionedBase):
    """Base class of dataclasses with versioned files.

    Example:
        >>> from dataclasses import dataclass
        >>> from enn_trainer.config import ChangeDefault, Versioned
        >>> @dataclass
        ... class Orchard(Versioned):
        ...     num_trees: int = 20
        ...
        ...     @classmethod
        ...     def version(cls) -> int:
        ...         return 1
        ...
        ...     @classmethod
        ...     def upgrade_rules(cls) -> dict[int, list[RewriteRule]]:
        ...         return {0: [ChangeDefault(("num_trees",), 10, 20)]}
    """

    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        """Treat subclasses of hyperstate's `Versioned` as subclasses."""
        return True if cls is Versioned and is_versioned(other) else NotImplemented

    @classmethod
    @abstractmethod
    def version(cls) -> int:
        """Return the version of the files that this class writes."""

    @classmethod
    def minimum_version(cls) -> int:
        """Return the oldest version that can be read."""
        return 0

    @classmethod
    def upgrade_rules(cls) -> dict[int, list[RewriteRule]]:
        """Return the rules that upgrade files to the next version, by their version."""
        return {}
