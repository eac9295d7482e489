"""Resources that forked children of this process close at once.

A copy in a child would keep them open after the death of this process: a lock stays held, and the
other end of a pipe never sees the end. Children that execute another program lose such files
anyway, as Python opens files to be closed then.
"""

import os
import weakref
from typing import Protocol


class Unshared(Protocol):
    """A resource that belongs to one process."""

    def close_in_child(self) -> None:
        """Close the copy of a forked child, without effect on the resource of its parent."""


_unshared: "weakref.WeakSet[Unshared]" = weakref.WeakSet()


def close_in_children(resource: Unshared) -> None:
    """Let children that are forked from now on close their copy of a resource.

    Children forked by code in C that does not tell Python are not reached.
    """
    _unshared.add(resource)


def _close_all() -> None:
    for resource in list(_unshared):
        resource.close_in_child()
    _unshared.clear()


os.register_at_fork(after_in_child=_close_all)
