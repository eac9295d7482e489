"""Spans: nested timers of the parts of a run, each with calls, total time and self time.

    >>> from enn_trainer.runtime.spans import Spans
    >>> spans = Spans()
    >>> with spans.span("rollout"):
    ...     with spans.span("act"):
    ...         pass

On a GPU a span ends when its work is queued, not when it is done: the wait is in the first span
that needs a result.

Several threads may work within one span. The main thread is the one that opened the outermost span;
a span opened by another thread is a child of the span that is open in the main thread. Times of
threads add up to core-seconds, which may exceed the time of the parent span.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self, final

from enn_trainer.config.validation import unwritable
from entity_env.serialization.plain_open import replace_file


class _Span:
    """Timer of a part of the run, which may be entered many times, by several threads."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path  # names from the outermost span to this one, joined by "/"
        self.calls = self.total_ns = self.self_ns = 0  # in the main thread; "self": without parts
        self.threads_calls = self.threads_ns = self.threads_self_ns = 0  # in other threads
        self.parts: dict[str, _Span] = {}

    def part(self, name: str) -> "_Span":
        """Return the child span with this name; create it if necessary. Thread-safe."""
        part = self.parts.get(name)
        if part is None:
            part = self.parts.setdefault(name, _Span(name, f"{self.path}/{name}".lstrip("/")))
        return part

    def descendants(self) -> Iterator["_Span"]:
        """Yield all descendants in pre-order."""
        for part in list(self.parts.values()):
            yield part
            yield from part.descendants()

    def as_dict(self) -> dict[str, Any]:
        """Return the span and its descendants as plain data, with the times of all threads."""
        return {
            "name": self.name,
            "calls": self.calls + self.threads_calls,
            "total_s": (self.total_ns + self.threads_ns) / 1e9,
            "self_s": (self.self_ns + self.threads_self_ns) / 1e9,
            **({"in_threads_s": self.threads_ns / 1e9} if self.threads_calls else {}),
            "parts": [part.as_dict() for part in list(self.parts.values())],
        }


@final
class _SpanTimer:
    """Context of one entry into a span.

    Args:
        span: the span.
        outer: the entry of the same thread around this one.
        innermost: holder of the innermost entry of the thread.
        lock: guards the counts of threads; None in the main thread.
    """

    def __init__(
        self, span: _Span, outer: "_SpanTimer | None", innermost: Any, lock: "threading.Lock | None"
    ) -> None:
        self.span = span
        self._outer, self._innermost, self._lock = outer, innermost, lock
        self._start_ns = self._in_parts_ns = 0

    def __enter__(self) -> Self:
        self._innermost.entry = self
        self._start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        took_ns, span = time.perf_counter_ns() - self._start_ns, self.span
        if self._lock is None:
            span.calls += 1
            span.total_ns += took_ns
            span.self_ns += took_ns - self._in_parts_ns
        else:
            with self._lock:
                span.threads_calls += 1
                span.threads_ns += took_ns
                span.threads_self_ns += took_ns - self._in_parts_ns
        if self._outer is not None:
            self._outer._in_parts_ns += took_ns
        self._innermost.entry = self._outer


@final
class Spans:
    """Timers of the parts of a run.

    Args:
        enabled: False to measure nothing.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._root = _Span("run", "")
        self._main_thread = threading.get_ident()
        self._main = SimpleNamespace(entry=None)  # the innermost entry of the main thread
        self._other_threads = threading.local()  # the innermost entry of each other thread
        self._lock = threading.Lock()
        self._enabled = enabled
        self._start_ns = time.perf_counter_ns()
        self._reported: dict[str, tuple[int, int]] = {}

    def span(self, name: str) -> AbstractContextManager[object]:
        """Return a context that is timed as a child of the open span."""
        if not self._enabled:
            return _NOTHING
        in_main, thread = self._main.entry, threading.get_ident()
        if in_main is None:
            self._main_thread = thread
            return _SpanTimer(self._root.part(name), None, self._main, None)
        if thread == self._main_thread:
            return _SpanTimer(in_main.span.part(name), in_main, self._main, None)
        outer = getattr(self._other_threads, "entry", None)
        within = in_main if outer is None else outer
        return _SpanTimer(within.span.part(name), outer, self._other_threads, self._lock)

    def since_last(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the times since the last call.

        Returns:
            Self time of each span in milliseconds, by path, over all threads; and total time of the
            outermost spans in milliseconds, by name.
        """
        self_ms, total_ms = {}, {}
        for span in self._root.descendants():
            self_before, total_before = self._reported.get(span.path, (0, 0))
            self_ns = span.self_ns + span.threads_self_ns
            self._reported[span.path] = (self_ns, span.total_ns)
            self_ms[span.path] = (self_ns - self_before) / 1e6
            if "/" not in span.path:
                total_ms[span.name] = (span.total_ns - total_before) / 1e6
        return self_ms, total_ms

    def as_dict(self) -> dict[str, Any]:
        """Return the tree of all spans as plain data; the root is the whole run so far."""
        total_ns = time.perf_counter_ns() - self._start_ns
        in_parts_ns = sum(part.total_ns for part in self._root.parts.values())
        return {
            **self._root.as_dict(),
            "calls": 1,
            "total_s": total_ns / 1e9,
            "self_s": (total_ns - in_parts_ns) / 1e9,
        }

    def save(self, path: Path) -> None:
        """Write the tree as JSON; the file is always complete.

        Raises:
            ConfigError: the file cannot be written.
        """
        data = (json.dumps(self.as_dict(), indent=1) + "\n").encode()
        try:
            replace_file(path, data, path.with_name(f"{path.name}.tmp"))
        except OSError as error:
            raise unwritable(path, error) from None


_NOTHING = nullcontext()
OFF = Spans(enabled=False)
"""Disabled spans."""


class SpanTimes(NamedTuple):
    """Self time of a span within some period."""

    wall_s: float  # of the run
    core_s: float  # of all threads
    calls: int


def times_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, SpanTimes]:
    """Return the time of each span, by path; wall times add up to the time of the run.

    While the main thread waits in a span for threads that work on its parts, the wait is attributed
    to these parts, in proportion to the time of their threads.

    Args:
        before: an earlier `Spans.as_dict`, or {} for the start.
        after: a later `Spans.as_dict`.
    """
    return dict(_times_of_tree(_difference(before, after), "", share=None))


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of the differences of the times of spans."""
    parts = {part["name"]: part for part in before.get("parts", [])}
    times = ("calls", "total_s", "self_s", "in_threads_s")
    return {
        "name": after["name"],
        **{key: after.get(key, 0) - before.get(key, 0) for key in times},
        "parts": [_difference(parts.get(part["name"], {}), part) for part in after["parts"]],
    }


def _times_of_tree(
    span: Mapping[str, Any], path: str, share: float | None
) -> Iterator[tuple[str, SpanTimes]]:
    """Yield the times of a span and its descendants, by path.

    Args:
        span: the differences of its times.
        path: path of the span, "" for the whole run.
        share: wall time per second of the span; None if only the main thread enters it.
    """
    in_threads_s = sum(part["in_threads_s"] for part in span["parts"])
    wall_s = core_s = span["self_s"]
    covered = 0.0  # share of the threads' time during which the main thread waits
    if share is not None:
        wall_s *= share
    elif in_threads_s:
        covered = min(1.0, wall_s / in_threads_s)
        wall_s = core_s = wall_s - covered * in_threads_s
    if path:
        yield path, SpanTimes(wall_s, core_s, span["calls"])
    for part in span["parts"]:
        part_share = share
        if share is None and part["in_threads_s"]:
            in_main_s = part["total_s"] - part["in_threads_s"]
            part_share = (in_main_s + covered * part["in_threads_s"]) / part["total_s"]
        yield from _times_of_tree(part, f"{path}/{part['name']}".lstrip("/"), part_share)
