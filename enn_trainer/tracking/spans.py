"""Where the time of a run goes: spans within spans, each with calls, total time and own time.

    with spans.span("rollout"):
        with spans.span("act"):
            ...

There is no clock in the network: on a GPU a span ends when its work is handed over, and the wait
is in whichever span asks for a result first.
"""

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Self, final

from enn_trainer.config_checks import unwritable


@final
class Span:
    """A part of the work, entered again and again.

    Attributes:
        name: of this part.
        path: of all names down to it, with "/" between them.
        calls: how often it was left.
        total_ns: nanoseconds in it.
        self_ns: those in none of its own parts.
        parts: the spans within it, by name.
    """

    def __init__(self, name: str, parent: "Span | None", spans: "Spans") -> None:
        self.name = name
        self.path: str = f"{parent.path}/{name}".lstrip("/") if parent is not None else ""
        self.calls = self.total_ns = self.self_ns = 0
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
        for part in self.parts.values():
            yield part
            yield from part.all_below()

    def as_dict(self) -> dict[str, Any]:
        """The span and those within it as plain data."""
        return {
            "name": self.name,
            "calls": self.calls,
            "total_s": self.total_ns / 1e9,
            "self_s": self.self_ns / 1e9,
            "parts": [part.as_dict() for part in self.parts.values()],
        }


@final
class Spans:
    """Measures spans; of one thread.

    Args:
        enabled: whether to measure at all.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._root = Span("run", None, self)
        self._current = self._root
        self._enabled = enabled
        self._start_ns = time.perf_counter_ns()
        self._told: dict[str, tuple[int, int]] = {}

    def span(self, name: str) -> AbstractContextManager[object]:
        """Measure what is done within the context, as a part of the span that is open."""
        if not self._enabled:
            return _NOTHING
        current = self._current
        found = current.parts.get(name)
        if found is None:
            found = current.parts[name] = Span(name, current, self)
        return found

    def since_last(self) -> tuple[dict[str, float], dict[str, float]]:
        """What was added since the last call.

        Returns:
            Milliseconds of each span in none of its parts, by path; and milliseconds of the
            outermost spans as a whole, by name.
        """
        own, whole = {}, {}
        for span in self._root.all_below():
            self_before, total_before = self._told.get(span.path, (0, 0))
            self._told[span.path] = (span.self_ns, span.total_ns)
            own[span.path] = (span.self_ns - self_before) / 1e6
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
            temporary.write_text(json.dumps(self.as_dict(), indent=1) + "\n")
            temporary.replace(path)
        except OSError as error:
            raise unwritable(path, error) from None


_NOTHING = nullcontext()
OFF = Spans(enabled=False)
"""Measures nothing and remembers nothing: for whoever is not asked to measure."""
