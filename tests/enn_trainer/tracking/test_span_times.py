"""Times of spans add up to the time of the run, also where threads share the work."""

import time
from typing import Any

import pytest

from enn_trainer.runtime.spans import Spans, times_between
from tests.enn_trainer.tracking.builders import burn


def node(
    name: str, total_s: float, *parts: dict[str, Any], in_threads_s: float = 0.0, **more: Any
) -> dict[str, Any]:
    in_main_s = sum(part["total_s"] - part.get("in_threads_s", 0.0) for part in parts)
    self_s = more.get("self_s", total_s - in_main_s)
    threads = {"in_threads_s": in_threads_s} if in_threads_s else {}
    return {
        "name": name,
        "calls": 1,
        "total_s": total_s,
        "self_s": self_s,
        **threads,
        "parts": list(parts),
    }


def wall(tree: dict[str, Any]) -> dict[str, float]:
    return {path: times.wall_s for path, times in times_between({}, tree).items()}


def test_since_last_reports_only_new_time() -> None:
    spans = Spans()
    with spans.span("a"), spans.span("b"):
        burn(5)
    before, start_s = spans.as_dict(), time.perf_counter()
    with spans.span("a"), spans.span("b"):
        burn(1)
    with spans.span("c"):
        burn(1)
    times, since_s = times_between(before, spans.as_dict()), time.perf_counter() - start_s
    assert list(times) == ["a", "a/b", "c"]
    assert 0.001 <= times["a/b"].wall_s < since_s
    assert {path: t.calls for path, t in times.items()} == {"a": 1, "a/b": 1, "c": 1}
    assert all(t.wall_s == t.core_s for t in times.values())


def test_wait_for_threads_is_attributed_by_their_time() -> None:
    # Two threads work for 6 s and 2 s of 5 s; the rest of the span, 5 - 8/2, is not 0, as what
    # they used is more than the wait: all of it is theirs, three parts to one.
    forward = node("forward", 6.0, in_threads_s=6.0)
    backward = node("backward", 2.0, in_threads_s=2.0)
    tree = node("run", 7.0, node("optimize", 5.0, forward, backward), node("track", 1.0))
    assert wall(tree) == pytest.approx(
        {"optimize": 0.0, "optimize/forward": 3.75, "optimize/backward": 1.25, "track": 1.0}
    )
    times = times_between({}, tree)
    assert times["optimize/forward"].core_s == 6.0


def test_work_of_threads_in_parallel_takes_no_wall_time() -> None:
    # The main thread is in "forward" for 4 s itself, and a thread for another 4 s.
    forward = node("forward", 8.0, in_threads_s=4.0)
    tree = node("run", 5.0, node("optimize", 5.0, forward))
    assert wall(tree) == pytest.approx({"optimize": 0.0, "optimize/forward": 5.0})


def test_a_wait_longer_than_the_work_stays_with_the_span() -> None:
    tree = node("run", 5.0, node("optimize", 5.0, node("forward", 2.0, in_threads_s=2.0)))
    assert wall(tree) == pytest.approx({"optimize": 3.0, "optimize/forward": 2.0})


def test_nested_spans_of_threads_share_the_time_of_their_parent() -> None:
    attention = node("attention", 4.0, in_threads_s=4.0)
    forward = node("forward", 8.0, attention, in_threads_s=8.0, self_s=4.0)
    tree = node("run", 4.0, node("optimize", 4.0, forward))
    assert wall(tree) == pytest.approx(
        {"optimize": 0.0, "optimize/forward": 2.0, "optimize/forward/attention": 2.0}
    )
