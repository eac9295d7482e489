"""Schedule of the saves of a run, and the lines that are printed about them."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from enn_trainer.checkpoints.format import save_name
from enn_trainer.checkpoints.retention import adds_metrics, reasons_to_save
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.writer import Saveable, SaveWriter, WriteResult
from enn_trainer.errors import CheckpointError

INTERVAL = "interval"
EVALUATED = "evaluated"
"""Why a save of this step is replaced: it was made before the evaluation of the step."""
RETRY_S = 60.0
"""After a save that failed, no other is due for so long, or for as long as between two saves."""


@final
class RunSaver:
    """Saves a run when a save is due, or on demand.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._writer = SaveWriter()
        self._last_save_s = time.monotonic()
        self._manifests: dict[str, Mapping[str, Any]] | None = None  # of what is kept, if known
        self._own: Mapping[str, Mapping[str, Any]] = {}  # of what was kept when it was last known
        self._is_failing = False
        self._is_prune_failing = False
        self._num_failed = 0
        self._numbers: dict[str, float] = {}

    def step(self, run: Saveable) -> Path | None:
        """Begin to save if a save is due; return the one completed since the last call, if any."""
        result = self._writer.wait() if self._manifests is None else self._writer.poll()
        path = self._finish(result)
        reasons = self._reasons(run)
        # Training waits for the save before if this one would be missed otherwise: the best state
        # is gone soon, and which save is the first of a window is no matter of speed.
        is_for_keeps = any(reason != INTERVAL for reason in reasons)
        if self._writer.is_busy and (is_for_keeps or (reasons and run.policy.every_seconds == 0)):
            path = self._finish(self._writer.wait())
            reasons = self._reasons(run)  # which may be among those of that save
        if reasons and not self._writer.is_busy:
            self._begin(run, ", ".join(reasons))
        return path

    def save(self, run: Saveable, why: str) -> Path:
        """Save now, after what is being written.

        Raises:
            CheckpointError: it could not be written; names the newest save.
        """
        self.wait()
        self._begin(run, why)
        result = self._writer.wait()
        assert result is not None
        if result.saved is None:
            self._count(result)
            newest = RunDir(run.run_dir).newest(self._say)
            there = "nothing is saved" if newest is None else f"the newest save is {newest.path}"
            raise CheckpointError(f"{result.failure}; {there}")
        self._finish(result)
        return result.saved.path

    def wait(self) -> Path | None:
        """Wait until nothing is being written; return the save completed meanwhile, if any."""
        return self._finish(self._writer.wait())

    def adopt_saves(self, run_dir: Path) -> None:
        """Count the saves that are in a folder now as those of the run."""
        self.wait()
        self._own = self._writer.manifests(run_dir)

    def foreign_save(self, run_dir: Path) -> str | None:
        """Return the name of a valid save in a folder that is not of the run, or None."""
        self.wait()
        there = self._writer.manifests(run_dir).items()
        return next((name for name, manifest in there if manifest != self._own.get(name)), None)

    def forget(self) -> None:
        """Forget what is saved, as the run is in another folder from now on."""
        self.wait()
        self._manifests = None

    def begin_anew(self) -> None:
        """Forget what is saved, and let the next save be due at once."""
        self.forget()
        self._last_save_s = -math.inf
        self._is_failing = False

    def after_writing(self, act: Callable[[], None]) -> None:
        """Call a function as soon as nothing is being written, without waiting for that."""
        self._writer.after_writing(act)

    def take_numbers(self) -> dict[str, float]:
        """Return and forget the metrics of saving since the last call, by tag."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def _reasons(self, run: Saveable) -> list[str]:
        """Return why the run should be saved now; none if it need not be, or is."""
        if self._manifests is None:  # not yet, or a save failed; none is being written
            self._manifests = self._own = self._writer.manifests(run.run_dir)
        name = save_name(run.step)
        since_s = time.monotonic() - self._last_save_s
        interval_s = run.policy.every_seconds
        saved = self._manifests.get(name)
        if saved is not None and not adds_metrics(run.facts, saved):
            return []
        if self._is_failing and since_s < min(interval_s, RETRY_S):
            return []
        if saved is not None:
            return [EVALUATED]
        reasons = [INTERVAL] if since_s >= interval_s else []
        manifest = {"step": run.step, **run.facts}
        return reasons + reasons_to_save(self._manifests, name, manifest, run.policy)

    def _begin(self, run: Saveable, why: str) -> None:
        start = time.perf_counter()
        contents = run.copy()
        self._numbers["checkpoint/copy_ms"] = (time.perf_counter() - start) * 1e3
        self._last_save_s = time.monotonic()
        self._writer.begin(run, why, contents)

    def _finish(self, result: WriteResult | None) -> Path | None:
        """Print and count the result of a save; return the path of a complete one."""
        if result is None:
            return None
        for note in result.notes:
            self._say(note)
        if result.failure is not None and not self._is_failing:
            self._say(f"{result.failure}; training goes on, and saving is tried again")
        if result.not_pruned is not None and not self._is_prune_failing:
            self._say(f"{result.not_pruned}; training goes on, and is saved")
        self._count(result)
        return None if result.saved is None else result.saved.path

    def _count(self, result: WriteResult) -> None:
        saved = result.saved
        self._is_failing = saved is None
        self._num_failed += self._is_failing
        self._manifests = result.manifests
        self._numbers["checkpoint/failed"] = float(self._num_failed)
        if saved is None:
            return
        self._is_prune_failing = result.not_pruned is not None
        if result.manifests is not None:
            self._own = result.manifests
        else:
            self._own = {**self._own, saved.path.name: saved.manifest}
        self._numbers["checkpoint/write_ms"] = result.write_ms
        self._numbers["checkpoint/bytes"] = float(result.num_bytes)
