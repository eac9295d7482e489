"""Where the time of a run goes: spans within spans, each with calls, total time and own time.

    with spans.span("rollout"):
        with spans.span("act"):
            ...

There is no clock in the network: on a GPU a span ends when its work is handed over, and the wait
is in whichever span asks for a result first.

Several threads may do parts of one span. The main thread is whichever opened the outermost span;
what another one opens meanwhile is a part of the span that is open there. Such times are those of
each thread, and add up to core-seconds: they may be more than the span that they are parts of took.
"""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self, final

from enn_trainer.config_checks import unwritable
from entity_env.plain_open import replace_file


@final
class Span:
    """A part of the work, entered again and again.

    Attributes:
        name: of this part.
        path: of all names down to it, with "/" between them.
        calls: how often it was left, in the main thread.
        total_ns: nanoseconds in it, in the main thread.
        self_ns: those in none of its own parts.
        thread_calls: how often it was left in other threads.
        thread_total_ns: core-nanoseconds in it there.
        thread_self_ns: those in none of its own parts.
        parts: the spans within it, by name.
    """

    def __init__(self, name: str, parent: "Span | None", spans: "Spans") -> None:
        self.name = name
        self.path: str = f"{parent.path}/{name}".lstrip("/") if parent is not None else ""
        self.calls = self.total_ns = self.self_ns = 0
        self.thread_calls = self.thread_total_ns = self.thread_self_ns = 0
        self.parts: dict[str, Span] = {}
        self._parent, self._spans = parent, spans
        self._start_ns = self._in_parts_ns = 0

    def __enter__(self) -> Self:
        self._spans._current = self
        self._start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        took_ns = time.perf_counter_ns() - self._start_ns
        self.calls += 1
        self.total_ns += took_ns
        self.self_ns += took_ns - self._in_parts_ns
        self._in_parts_ns = 0
        parent = self._parent
        assert parent is not None
        parent._in_parts_ns += took_ns
        self._spans._current = parent

    def all_below(self) -> Iterator["Span"]:
        """The spans within this one and within those, each before its own parts."""
        for part in list(self.parts.values()):
            yield part
            yield from part.all_below()

    def as_dict(self) -> dict[str, Any]:
        """The span and those within it as plain data; what other threads did is counted in."""
        return {
            "name": self.name,
            "calls": self.calls + self.thread_calls,
            "total_s": (self.total_ns + self.thread_total_ns) / 1e9,
            "self_s": (self.self_ns + self.thread_self_ns) / 1e9,
            **({"in_threads_s": self.thread_total_ns / 1e9} if self.thread_calls else {}),
            "parts": [part.as_dict() for part in list(self.parts.values())],
        }

    def part(self, name: str) -> "Span":
        """The span of this name within this one; several threads may ask."""
        found = self.parts.get(name)
        return (
            self.parts.setdefault(name, Span(name, self, self._spans)) if found is None else found
        )


@final
class _InThread:
    """A span, entered by another thread than the main one."""

    def __init__(self, span: Span, outer: "_InThread | None", spans: "Spans") -> None:
        self.span = span
        self._outer, self._spans = outer, spans
        self._start_ns = self._in_parts_ns = 0

    def __enter__(self) -> Self:
        self._spans._innermost.span = self
        self._start_ns = time.perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        took_ns = time.perf_counter_ns() - self._start_ns
        with self._spans._lock:
            self.span.thread_calls += 1
            self.span.thread_total_ns += took_ns
            self.span.thread_self_ns += took_ns - self._in_parts_ns
        if self._outer is not None:
            self._outer._in_parts_ns += took_ns
        self._spans._innermost.span = self._outer


class _Innermost(threading.local):
    """The innermost span that each thread but the main one has open."""

    span: _InThread | None = None


@final
class Spans:
    """Measures spans.

    Args:
        enabled: whether to measure at all.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._root = Span("run", None, self)
        self._current = self._root
        self._main_thread = threading.get_ident()
        self._innermost = _Innermost()
        self._lock = threading.Lock()
        self._enabled = enabled
        self._start_ns = time.perf_counter_ns()
        self._told: dict[str, tuple[int, int]] = {}

    def span(self, name: str) -> AbstractContextManager[object]:
        """Measure what is done within the context, as a part of the span that is open."""
        if not self._enabled:
            return _NOTHING
        current, thread = self._current, threading.get_ident()
        if thread != self._main_thread:
            if current is not self._root:
                outer = self._innermost.span
                within = current if outer is None else outer.span
                return _InThread(within.part(name), outer, self)
            self._main_thread = thread
        return current.part(name)

    def since_last(self) -> tuple[dict[str, float], dict[str, float]]:
        """What was added since the last call.

        Returns:
            Milliseconds of each span in none of its parts, by path, over all threads; and
            milliseconds of the outermost spans as a whole, by name.
        """
        own, whole = {}, {}
        for span in self._root.all_below():
            self_before, total_before = self._told.get(span.path, (0, 0))
            self_ns = span.self_ns + span.thread_self_ns
            self._told[span.path] = (self_ns, span.total_ns)
            own[span.path] = (self_ns - self_before) / 1e6
            if "/" not in span.path:
                whole[span.name] = (span.total_ns - total_before) / 1e6
        return own, whole

    def as_dict(self) -> dict[str, Any]:
        """The tree of all spans that were left, as plain data; the root is the run so far."""
        total_ns = time.perf_counter_ns() - self._start_ns
        in_parts_ns = sum(part.total_ns for part in self._root.parts.values())
        return {
            **self._root.as_dict(),
            "calls": 1,
            "total_s": total_ns / 1e9,
            "self_s": (total_ns - in_parts_ns) / 1e9,
        }

    def save(self, path: Path) -> None:
        """Write the tree as JSON; the file is always whole.

        Raises:
            ConfigError: it cannot be written.
        """
        temporary = path.with_name(f"{path.name}.tmp")
        try:
            data = (json.dumps(self.as_dict(), indent=1) + "\n").encode()
            replace_file(path, data, temporary)
        except OSError as error:
            raise unwritable(path, error) from None


_NOTHING = nullcontext()
OFF = Spans(enabled=False)
"""Measures nothing and remembers nothing: for whoever is not asked to measure."""
