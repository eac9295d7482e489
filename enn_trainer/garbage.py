"""How often Python looks for objects that only refer to each other.

Worlds in this process make thousands of objects in every step, all of which go without that search;
by itself Python begins one for every 700 more of them. That made updates 7 to 10 % longer in
level-based foraging and 14 % in MoveToOrigin (one process, updates of both kinds in turns).
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 10_000
"""Few enough that what a world leaves behind in circles of references does not add up."""


@contextmanager
def garbage_sought_rarely() -> Iterator[None]:
    """While the context is open, Python looks for such objects after 10,000 new ones at least.

    Who has chosen a higher threshold, or no search at all, keeps it.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
