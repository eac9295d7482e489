"""Metric sinks: the scalars of a run by tag and step, sent to several services at once.

`docs/tracking.md` lists the tags, which dashboards rely on; the callers of `Track.write` compose
them. `open_track.py` opens the sinks of a run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, final, runtime_checkable

from enn_trainer.config.schedules import as_written, settings_of
from entity_env.vec.vec_env import Metric

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RETRY_AFTER_S = 60.0
RETRY_AFTER_TIMES = 20.0
"""Multiple of the duration of a failed call for which a service is left alone.

A service that does not answer may take long to fail: it costs a run at most 1/20 of its time.
"""


class Sink(Protocol):
    """Receiver of the metrics of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag, NaN and infinity included.

        Args:
            step: frames over all environments and restarts; never decreases.
            scalars: the values by tag.
        """

    def close(self) -> None:
        """Write buffered scalars and release the sink."""


@runtime_checkable
class VideoSink(Sink, Protocol):
    """Receiver of metrics and videos."""

    def video(self, step: int, name: str, path: Path) -> None:
        """Write a video file, which the caller never changes afterwards."""


@final
class Track:
    """All sinks of a run as one; a context manager that closes them."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each scalar under its own tag."""
        for sink in self._sinks:
            sink.write(step, scalars)

    def video(self, step: int, name: str, path: Path) -> None:
        """Write a video file to the sinks that take videos."""
        for sink in self._sinks:
            if isinstance(sink, VideoSink):
                sink.video(step, name, path)

    def close(self) -> None:
        """Close all sinks, which write their buffered scalars."""
        with ExitStack() as stack:  # closes the others if one fails
            for sink in reversed(self._sinks):
                stack.callback(sink.close)


@final
class Guarded:
    """A sink whose failures do not end the run; the first one is printed.

    After a failure nothing is sent for a minute, or for twenty times the duration of the failed
    call if that is longer; the scalars of that time are missing in the service. A sink that could
    not be opened is opened at the next call.

    Args:
        name: name of the service.
        open_sink: connects to the service.
        say: prints a line.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        name: str,
        open_sink: Callable[[], Sink],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._open, self._say, self._clock = name, open_sink, say, clock
        self._failed = False
        self._retry_time = -float("inf")
        self._sink: Sink | None = None
        self._try(lambda sink: None)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars, unless the service failed recently."""
        if self._clock() >= self._retry_time:
            self._try(lambda sink: sink.write(step, scalars))

    def video(self, step: int, name: str, path: Path) -> None:
        """Write a video file if the sink takes videos, unless the service failed recently."""
        if self._clock() >= self._retry_time:
            self._try(
                lambda sink: sink.video(step, name, path) if isinstance(sink, VideoSink) else None
            )

    def close(self) -> None:
        """Close the sink if it was opened."""
        if self._sink is not None:
            self._try(lambda sink: sink.close())

    def _try(self, call: Callable[[Sink], None]) -> None:
        start = self._clock()
        try:
            if self._sink is None:
                self._sink = self._open()
            call(self._sink)
        except Exception as error:  # services raise errors of any kind
            now = self._clock()
            self._retry_time = now + max(RETRY_AFTER_S, RETRY_AFTER_TIMES * (now - start))
            if not self._failed:
                self._failed = True
                message = (str(error).splitlines() or [""])[0]
                self._say(
                    f"{self._name} failed, training goes on without it for now: "
                    f"{type(error).__name__}: {message}"
                )


def metric_scalars(metrics: Mapping[str, Metric], prefix: str = "") -> dict[str, float]:
    """Return the scalars of metrics: `{prefix}{name}.mean`, `.min`, `.max` and `.count`.

    A metric without values has only its count.
    """
    scalars: dict[str, float] = {}
    for name, metric in metrics.items():
        if metric.count > 0:
            scalars[f"{prefix}{name}.mean"] = metric.mean
            scalars[f"{prefix}{name}.min"] = metric.min
            scalars[f"{prefix}{name}.max"] = metric.max
        scalars[f"{prefix}{name}.count"] = float(metric.count)
    return scalars


def flatten_config(config: DataclassInstance) -> dict[str, object]:
    """Return the values of a tree of dataclasses by dotted name, such as `net.d_model`."""
    return {
        path: as_written(value) for path, value in settings_of(config) if not is_dataclass(value)
    }
