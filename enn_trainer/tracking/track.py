"""Metric sinks of a run, which send scalars by tag and step to several services.

`docs/tracking.md` lists the tags, which dashboards rely on; callers of `Track.write` choose them.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.format import METRICS_FILE, RUN_FILE
from enn_trainer.checkpoints.manifest import git_revision
from enn_trainer.checkpoints.run_captures import continues, run_folder
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import as_written, settings_of
from enn_trainer.config.validation import unwritable
from enn_trainer.evaluation.evaluation import REPLAYS, VIDEOS
from enn_trainer.runtime.start_folder import absolute
from enn_trainer.tracking.track_services import (
    JsonlSink,
    MlflowSink,
    TensorBoardSink,
    WandbSink,
    check_packages,
)
from entity_env.imports.extras import missing_package
from entity_env.serialization.plain_open import replace_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

RETRY_AFTER_S = 60.0
RETRY_AFTER_TIMES = 20.0
"""Pause after a failed call of a service, as a multiple of its duration.

A timeout may take long: services that do not answer cost at most 1/20 of the time of a run.
"""
_FOLDERS = (VIDEOS, REPLAYS, "wandb", ".wandb")
"""Subfolders of the folder of a run; W&B uses the hidden one if it exists."""


class Sink(Protocol):
    """Destination of the metrics of a run."""

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag, NaN and infinity included.

        Args:
            step: frames over all environments and restarts; never decreases.
            scalars: values by tag.
        """

    def close(self) -> None:
        """Flush buffered scalars and release the sink."""


@runtime_checkable
class FileSink(Sink, Protocol):
    """Destination of metrics, videos and replay pages."""

    def file(self, step: int, name: str, path: Path) -> None:
        """Write a video, a page (.html) or a folder.

        The caller must not change the video or page afterwards.
        """


@runtime_checkable
class NoticeSink(Sink, Protocol):
    """Destination of metrics and notices of learning diagnostics."""

    def notice(self, step: int, key: str, text: str, page: str) -> None:
        """Write a notice: key, text in one line, and page with the explanation."""


@final
class Track(ExitStack):
    """Context manager that writes to all sinks of a run, and closes them."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        super().__init__()
        self._sinks = sinks
        for sink in reversed(sinks):  # closed in the given order, also if one fails
            self.callback(sink.close)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars by tag."""
        for sink in self._sinks:
            sink.write(step, scalars)

    def file(self, step: int, name: str, path: Path) -> None:
        """Write a video, a page or a folder to the sinks that support files."""
        for sink in self._sinks:
            if isinstance(sink, FileSink):
                sink.file(step, name, path)

    def notice(self, step: int, key: str, text: str, page: str) -> None:
        """Write a notice to the sinks that support notices."""
        for sink in self._sinks:
            if isinstance(sink, NoticeSink):
                sink.notice(step, key, text, page)


@final
class Guarded:
    """Wrapper of a sink that prints the first failure, and never ends the run.

    After a failure nothing is sent for a minute, or for twenty times the duration of the failed
    call if that is longer; scalars of that time are dropped. A sink that failed to open is opened
    again at the next call.

    Args:
        name: name of the service.
        open_sink: connects to the service.
        say: prints a line.
        clock: returns a monotonic time in seconds.
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
        self._retry_time = -math.inf
        self._sink: Sink | None = None
        self._try(lambda sink: None)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write scalars, unless the service failed recently."""
        self._try(lambda sink: sink.write(step, scalars))

    def file(self, step: int, name: str, path: Path) -> None:
        """Write a file or folder if the sink supports files and did not fail recently."""
        self._try(lambda sink: sink.file(step, name, path) if isinstance(sink, FileSink) else None)

    def close(self) -> None:
        """Close the sink if it was opened."""
        if self._sink is not None:
            self._retry_time = -math.inf
            self._try(lambda sink: sink.close())

    def _try(self, call: Callable[[Sink], None]) -> None:
        start = self._clock()
        if start < self._retry_time:
            return
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
                failed = f"{self._name} failed, training continues without it and retries later"
                self._say(f"{failed}: {type(error).__name__}: {message}")


def flatten_config(config: DataclassInstance) -> dict[str, object]:
    """Return the settings of a tree of dataclasses by dotted name, such as `net.d_model`."""
    return {path: as_written(v) for path, v in settings_of(config) if not is_dataclass(v)}


def open_track(manager: StateManager, say: Callable[[str], None]) -> tuple[Track, Path]:
    """Open all sinks of a run, and name a new run.

    A resumed run appends to its files. A run from a save in another folder is a new run, because
    the other run may still be training.

    Args:
        manager: state manager of the run; sets `run_name` and `tracker_ids` of its state.
        say: prints a line.

    Returns:
        The track, and the folder with its files.

    Raises:
        ConfigError: the folder cannot be written to, or an extra is missing.
    """
    # Name the run and describe it.
    config, state = manager.config, manager.state
    if manager.follows:
        return Track([]), Path()
    check_packages(config)
    runs, run_dir = absolute(config.data_dir) / "runs", run_folder(manager)
    if not continues(manager):
        state.run_name = _new_run_name(runs if run_dir is None else None, config)
        state.tracker_ids = {}
    folder = runs / state.run_name if run_dir is None else absolute(run_dir).resolve()
    settings, revision = flatten_config(config), git_revision()
    details: dict[str, object] = {"run_name": state.run_name, "restart": state.restart}
    details["command"] = shlex.join(sys.argv)
    details["code.commit"] = None if revision is None else revision.removesuffix("-dirty")
    details["code.dirty"] = None if revision is None else revision.endswith("-dirty")
    _describe(folder / RUN_FILE, details, settings)

    # Files are required; failures of services do not end the run.
    sinks: list[Sink] = [JsonlSink(folder / METRICS_FILE, state.step, say)]
    if missing := missing_package("tensorboard"):
        say(f"TensorBoard files are not written: {missing}")
    else:
        board = Guarded("TensorBoard", lambda: TensorBoardSink(folder, settings, state.step), say)
        sinks.append(board)
    if config.track:
        table = {**settings, **details}
        sinks.append(Guarded("W&B", lambda: WandbSink(config, state, table, folder, say), say))
    if config.mlflow_tracking_uri is not None:
        sinks.append(Guarded("MLflow", lambda: MlflowSink(config, state, settings, details), say))
    return Track(sinks), folder


def _describe(path: Path, details: Mapping[str, object], settings: Mapping[str, object]) -> None:
    """Create the folder of a run and write its description; raise if its subfolders are links."""
    folder = path.parent
    for part in (folder, *(folder / name for name in _FOLDERS)):
        if part.is_symlink():  # it may lead to the files of another run
            message = "expected a folder, got a link; replace the link by its target"
            raise unwritable(part, OSError(errno.ELOOP, message))
    plain = {
        name: value if isinstance(value, bool | int | float | str | None) else str(value)
        for name, value in settings.items()
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        data = (json.dumps({**details, "config": plain}, indent=2) + "\n").encode()
        replace_file(path, data, path.with_name(f"{path.name}.tmp"))
    except OSError as error:
        raise unwritable(path, error) from None


def _new_run_name(runs: Path | None, config: TrainConfig) -> str:
    """Return a unique name for a new run.

    Creates a folder of that name in `runs`; if that is None, the name ends in microseconds.
    """
    trial = "" if config.trial is None else f"__{config.trial}"
    world = config.env.id.rpartition(":")[2]  # without the path of the file
    world = "".join(c if c.isprintable() and c not in "/\\ " else "_" for c in world)
    base = f"{world}__{config.name}__{config.seed}{trial}"
    name = stamped = f"{base}__{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    if runs is None:
        return f"{stamped}-{time.time_ns() // 1000 % 1_000_000:06}"
    while True:
        try:
            (runs / name).mkdir(parents=True)
            return name
        except FileExistsError:
            number += 1
            name = f"{stamped}-{number}"
        except OSError as error:
            got = f"{config.data_dir} ({os.strerror(error.errno or 0)})"
            raise ConfigError(f"data_dir: expected a folder to write to, got {got}") from None
