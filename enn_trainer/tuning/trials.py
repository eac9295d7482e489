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
from typing import Any, Literal, NamedTuple, final

from enn_trainer.checkpoints.disk import read_plain_file
from enn_trainer.checkpoints.format import METRICS_FILE
from enn_trainer.checkpoints.run_lock import LOCK, MAX_LOCK_BYTES, is_locked
from enn_trainer.config.load import PREFIX
from enn_trainer.tuning.judge import Curve, score_of_run
from entity_env.serialization.plain_open import read_plain

ENN_TRAIN = (sys.executable, "-m", "enn_trainer.cli", "train")
POLL_S = 0.5
"""Seconds between two looks at the metrics of a run."""
STOP_S = 120.0
"""Seconds that a run has to save and end after SIGTERM."""
MAX_SHARE = 0.01
"""Largest share of a core that reads metrics."""
LAST_BYTES = 1 << 13
"""Bytes of the output of a run in which its last line is looked for."""
NOT_FINITE = ("gradient is not finite", "not finite are ", "expected finite values of")
"""Words of the messages of `NotFiniteError`."""

Ending = Literal["completed", "pruned", "stopped", "failed", "not finite"]


class RunRecord(NamedTuple):
    """Record of a run of a trial.

    Attributes:
        score: its score; None if it did not complete.
        frames: number of frames.
        seconds: seconds for which it was followed.
        ending: how it ended.
        error: reason if it failed or has values that are not finite.
    """

    score: float | None
    frames: int
    seconds: float
    ending: Ending
    error: str = ""


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


@final
class TrialRun:
    """A run of a trial, in a process of its own or of an earlier driver.

    Args:
        run_dir: folder of the run; the output goes to a file of this name with the suffix `.txt`.
        arguments: settings and options of `enn train`, without the folder.
    """

    def __init__(self, run_dir: Path, arguments: Sequence[str]) -> None:
        self._run_dir, self._seconds = run_dir, 0.0
        folder = ["--checkpoint-dir", str(run_dir), "--resume-or-start"]
        self._line = [*ENN_TRAIN, *arguments, *folder]
        self._process: subprocess.Popen[bytes] | None = None
        self._log = run_dir.with_name(f"{run_dir.name}.txt")

    def follow(
        self,
        tag: str,
        is_over: Callable[[Curve], bool] = lambda curve: False,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> RunRecord:
        """Start or continue the run, and follow it to its end.

        A process that trains in the folder already is followed to its end; then the run is
        continued, which has no effect if it was complete.

        Args:
            tag: metric to follow.
            is_over: called with the values so far after each new one; True prunes the run.
            is_stopped: True ends the run, which can be continued.
        """
        begin_s = time.monotonic()
        try:
            ending, error = self._follow(tag, is_over, is_stopped)
        except BaseException:
            self.kill()
            raise
        self._seconds += time.monotonic() - begin_s
        metrics = read_metric(self._run_dir, tag)
        score = score_of_run(metrics.curve) if ending == "completed" else None
        return RunRecord(score, metrics.frames, self._seconds, ending, error)

    def kill(self) -> None:
        """Kill the process without a save."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _follow(
        self, tag: str, is_over: Callable[[Curve], bool], is_stopped: Callable[[], bool]
    ) -> tuple[Ending, str]:
        """Follow the run; return its ending and the error."""
        num_seen = 0
        self._process = None if is_locked(self._run_dir) else self._start()
        while True:
            is_running, look_s = self._is_running(), time.thread_time()
            values = [*read_metric(self._run_dir, tag).curve.items()]
            for count in range(num_seen + 1, len(values) + 1):
                if not math.isfinite(values[count - 1][1]):
                    return self._end("not finite"), f"{tag} is not finite"
                if is_over(dict(values[:count])):
                    return self._end("pruned"), ""
            num_seen = max(num_seen, len(values))
            if is_stopped():
                return self._end("stopped"), ""
            if not is_running and is_locked(self._run_dir):
                self._process = None  # of another driver
            elif not is_running and self._process is None:
                self._process = self._start()
            elif not is_running:
                return self._ending(tag, is_logged=bool(values))
            time.sleep(max(POLL_S, (time.thread_time() - look_s) / MAX_SHARE))

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {n: v for n, v in os.environ.items() if not n.startswith(PREFIX)}
        self._run_dir.parent.mkdir(parents=True, exist_ok=True)
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
        return is_locked(self._run_dir) if self._process is None else self._process.poll() is None

    def _ending(self, tag: str, is_logged: bool) -> tuple[Ending, str]:
        """Return how the process of this run ended by itself, and the error."""
        assert self._process is not None
        if self._process.returncode == 0:
            return ("completed", "") if is_logged else ("failed", f"the run logged no {tag}")
        lines: list[str] = []
        with suppress(OSError), read_plain(self._log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        line = next((line for line in reversed(lines) if line.strip()), "no output")
        is_finite = not any(words in line for words in NOT_FINITE)
        return "failed" if is_finite else "not finite", line.strip().removeprefix("error: ")

    def _end(self, ending: Ending) -> Ending:
        """End the run by SIGTERM, after which it saves."""
        if self._is_running():
            with suppress(OSError, ValueError, KeyError):  # it has ended, or is on another host
                os.kill(self._pid(), signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        while self._is_running() and time.monotonic() < end_s:
            time.sleep(min(POLL_S, 0.05))
        self.kill()
        return ending

    def _pid(self) -> int:
        if self._process is not None:
            return self._process.pid
        owner: Any = json.loads(read_plain_file(self._run_dir / LOCK, MAX_LOCK_BYTES))
        if owner["host"] != socket.gethostname():
            raise ValueError("the process is on another host")
        return int(owner["pid"])
