"""How often Python looks for garbage in circles while a run is at work."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from enn_trainer.garbage import garbage_sought_rarely


@pytest.fixture(autouse=True)
def thresholds_kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Node:
    """Refers to itself, so that only the search finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_many_objects_do_not_start_a_search() -> None:
    gc.set_threshold(700, 10, 10)
    with garbage_sought_rarely():
        gc.collect()
        before = gc.get_stats()[0]["collections"]
        kept = [[i] for i in range(5_000)]
        assert gc.get_stats()[0]["collections"] == before
    assert gc.get_threshold() == (700, 10, 10)
    del kept


def test_objects_in_circles_are_still_found() -> None:
    """Else a world whose units know each other would fill the memory."""
    gc.set_threshold(700, 10, 10)
    with garbage_sought_rarely():
        left = weakref.ref(Node())
        kept = [[i] for i in range(50_000)]
        assert left() is None
    del kept


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 5, 5)])
def test_who_searches_less_often_still_does(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with garbage_sought_rarely():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_an_error_leaves_the_threshold_as_it_was() -> None:
    gc.set_threshold(701, 10, 10)
    with pytest.raises(ValueError, match="in the world"), garbage_sought_rarely():
        raise ValueError("in the world")
    assert gc.get_threshold() == (701, 10, 10)
