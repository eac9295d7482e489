"""Where the numbers of a run go: to several sinks at once, one scalar per tag and step.

`docs/tracking.md` lists the tags, which dashboards rely on; whoever calls `Track.write` composes
them. `open_track.py` says which sinks a run has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, final, runtime_checkable

from enn_trainer.schedules import as_written
from enn_trainer.settings.config_sources import settings_of
from entity_env.vec_env import Metric

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RETRY_AFTER_S = 60.0
RETRY_AFTER_TIMES = 20.0
"""A service that does not answer may take long to fail: a run waits a twentieth of its time."""


class Sink(Protocol):
    """Takes the numbers of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Take scalars by tag; NaN and infinity are numbers like others.

        Args:
            step: frames over all environments and restarts; never goes back.
            scalars: the values by tag.
        """

    def close(self) -> None:
        """Hand on what is still buffered."""


@runtime_checkable
class VideoSink(Sink, Protocol):
    """Takes videos as well."""

    def video(self, step: int, name: str, path: Path) -> None:
        """Take a video file; it is read before this returns, or never changed afterwards."""


@final
class Track:
    """Writes to all sinks of a run; closes them when the context is left."""

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
        """Show a video file, such as one of an evaluation, where videos can be shown."""
        for sink in self._sinks:
            if isinstance(sink, VideoSink):
                sink.video(step, name, path)

    def close(self) -> None:
        """Write what is still buffered and close everything."""
        with ExitStack() as stack:  # each of them, also if one fails
            for sink in reversed(self._sinks):
                stack.callback(sink.close)


@final
class Guarded:
    """A sink that may fail without ending the run: the first failure is said, once.

    After a failure nothing is sent for a minute, or for twenty times as long as the failure took;
    what comes in that time is missing there. What could not be opened is opened then.

    Args:
        name: of the service.
        open_sink: connects to it.
        say: prints a line.
        clock: seconds, never going back.
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
        self._silent_until = -float("inf")
        self._sink: Sink | None = None
        self._try(lambda sink: None)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each scalar, if the service works."""
        if self._clock() >= self._silent_until:
            self._try(lambda sink: sink.write(step, scalars))

    def video(self, step: int, name: str, path: Path) -> None:
        """Show a video file, if the service works and shows videos."""
        if self._clock() >= self._silent_until:
            self._try(
                lambda sink: sink.video(step, name, path) if isinstance(sink, VideoSink) else None
            )

    def close(self) -> None:
        """Hand on what is buffered, if there is a connection."""
        if self._sink is not None:
            self._try(lambda sink: sink.close())

    def _try(self, call: Callable[[Sink], None]) -> None:
        began = self._clock()
        try:
            if self._sink is None:
                self._sink = self._open()
            call(self._sink)
        except Exception as error:  # whatever a service raises: the run is worth more
            now = self._clock()
            self._silent_until = now + max(RETRY_AFTER_S, RETRY_AFTER_TIMES * (now - began))
            if not self._failed:
                self._failed = True
                what = (str(error).splitlines() or [""])[0]
                self._say(
                    f"{self._name} failed, training goes on without it for now: "
                    f"{type(error).__name__}: {what}"
                )


def metric_scalars(metrics: Mapping[str, Metric], prefix: str = "") -> dict[str, float]:
    """The scalars of metrics: `{prefix}{name}.mean`, `.min`, `.max` and `.count`.

    A metric that counted nothing has only its count.
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
    """What a tree of dataclasses was set to, by full name, such as `net.d_model`."""
    return {
        path: as_written(value) for path, value in settings_of(config) if not is_dataclass(value)
    }
