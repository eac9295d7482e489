"""Runs of trials: processes of `enn train`, followed by their metrics."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from enn_trainer.checkpoints.disk import read_plain_file
from enn_trainer.checkpoints.format import METRICS_FILE
from enn_trainer.checkpoints.run_lock import LOCK, MAX_LOCK_BYTES, is_locked
from enn_trainer.config.load import PREFIX
from entity_env.serialization.plain_open import read_plain

ENN_TRAIN = (sys.executable, "-m", "enn_trainer.cli", "train")
POLL_S = 0.5
"""Seconds between two looks at the metrics of a run."""
STOP_S = 120.0
"""Seconds that a run has to save and end after SIGTERM."""
MAX_SHARE = 0.02
"""Largest share of a core that reads metrics."""
LAST_BYTES = 1 << 13
"""Bytes of the output of a run in which its last line is looked for."""
NOT_FINITE = ("gradient is not finite", "not finite are ", "expected finite values of")
"""Words of the messages of `NotFiniteError`."""

Ending = Literal["completed", "pruned", "stopped", "failed", "not finite"]


class Metrics(NamedTuple):
    """Values of one metric in the file of a run.

    Attributes:
        curve: values by step, in the order of steps.
        tags: tags in the file.
        frames: largest step in the file.
    """

    curve: dict[int, float]
    tags: frozenset[str]
    frames: int


def read_metric(run_dir: Path, tag: str) -> Metrics:
    """Read a metric of a run, which may still be writing; a missing file has no values."""
    curve: dict[int, float] = {}
    tags, frames = set[str](), 0
    with suppress(OSError), read_plain(run_dir / METRICS_FILE) as file:
        for line in file:
            with suppress(ValueError, KeyError, TypeError):  # an incomplete line
                row = json.loads(line)
                frames = max(frames, row["step"])
                tags |= row.keys()
                if tag in row:
                    curve[row["step"]] = float(row[tag])
    return Metrics(dict(sorted(curve.items())), frozenset(tags), frames)


class TrialRun:
    """A run of a trial, in a process of its own or of an earlier driver.

    Args:
        run_dir: folder of the run; the output goes to a file of this name with the suffix `.txt`.
        arguments: settings and options of `enn train`, without the folder.
        program: the program and its first arguments.
        poll_s: seconds between two looks at the metrics.

    Attributes:
        run_dir: see Args.
        seconds: seconds for which the run was followed.
    """

    def __init__(
        self,
        run_dir: Path,
        arguments: Sequence[str],
        program: Sequence[str] = ENN_TRAIN,
        poll_s: float = POLL_S,
    ) -> None:
        self.run_dir, self.seconds, self._poll_s = run_dir, 0.0, poll_s
        self._line = [*program, *arguments, "--checkpoint-dir", str(run_dir), "--resume-or-start"]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = run_dir.with_name(f"{run_dir.name}.txt")

    def follow(
        self, tag: str, is_over: Callable[[dict[int, float]], bool], is_stopped: Callable[[], bool]
    ) -> Ending:
        """Start or continue the run, and follow it to its end.

        A process that trains in the folder already is followed to its end; then the run is
        continued, which has no effect if it was complete.

        Args:
            tag: metric to follow.
            is_over: called with the values so far after each new one; True prunes the run.
            is_stopped: True ends the run, which can be continued.
        """
        begin_s, num_values, metrics = time.monotonic(), 0, Metrics({}, frozenset(), 0)
        self._process = None if is_locked(self.run_dir) else self._start()
        before: tuple[int, int] | None = None
        try:
            while True:
                is_running, look_s = self._is_running(), time.thread_time()
                if (version := self._version_of_metrics()) != before:
                    metrics, before = read_metric(self.run_dir, tag), version
                points = [*metrics.curve.items()]
                for count in range(num_values + 1, len(points) + 1):
                    if not math.isfinite(points[count - 1][1]):
                        return self._end("not finite")
                    if is_over(dict(points[:count])):
                        return self._end("pruned")
                num_values = max(num_values, len(points))
                if is_stopped():
                    return self._end("stopped")
                if not is_running and self._process is not None and not is_locked(self.run_dir):
                    return self._ending(bool(points))
                if not is_running:
                    self._process = None if is_locked(self.run_dir) else self._start()
                look_s = time.thread_time() - look_s
                time.sleep(max(self._poll_s, look_s / MAX_SHARE))
        except BaseException:
            self.kill()
            raise
        finally:
            self.seconds = time.monotonic() - begin_s

    @property
    def last_line(self) -> str:
        """Last line that the run printed, without the word error."""
        lines: list[str] = []
        with suppress(OSError), read_plain(self._log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "no output")
        return line.strip().removeprefix("error: ")

    def kill(self) -> None:
        """Kill the process without a save."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {n: v for n, v in os.environ.items() if not n.startswith(PREFIX)}
        self.run_dir.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            return subprocess.Popen(
                self._line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the driver, which asks runs to save
            )

    def _is_running(self) -> bool:
        return is_locked(self.run_dir) if self._process is None else self._process.poll() is None

    def _version_of_metrics(self) -> tuple[int, int] | None:
        """Return the time and size of the file of metrics; None if there is none."""
        with suppress(OSError):
            status = (self.run_dir / METRICS_FILE).stat()
            return status.st_mtime_ns, status.st_size
        return None

    def _ending(self, has_values: bool) -> Ending:
        """Return how the process of this run ended by itself."""
        assert self._process is not None
        if self._process.returncode == 0 and has_values:
            return "completed"
        is_finite = not any(words in self.last_line for words in NOT_FINITE)
        return "failed" if is_finite else "not finite"

    def _end(self, ending: Ending) -> Ending:
        """End the run by SIGTERM, after which it saves."""
        if self._is_running():
            with suppress(OSError, ValueError, KeyError):  # it has ended, or is on another host
                os.kill(self._pid(), signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        while self._is_running() and time.monotonic() < end_s:
            time.sleep(min(self._poll_s, 0.05))
        self.kill()
        return ending

    def _pid(self) -> int:
        if self._process is not None:
            return self._process.pid
        owner: Any = json.loads(read_plain_file(self.run_dir / LOCK, MAX_LOCK_BYTES))
        if owner["host"] != socket.gethostname():
            raise ValueError("the process is on another host")
        return int(owner["pid"])
