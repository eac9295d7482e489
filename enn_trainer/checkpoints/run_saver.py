"""When a run is saved, and what a person is told of it."""

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, final

from enn_trainer.checkpoints import checkpoint
from enn_trainer.checkpoints.keep import reasons_to_save
from enn_trainer.checkpoints.save_writer import Landed, Saveable, SaveWriter
from enn_trainer.errors import CheckpointError

INTERVAL = "interval"
EVALUATED = "evaluated"
"""Why a save of this step is replaced: it was made before the evaluation of the step."""
RETRY_S = 60.0
"""After a save that failed, no other is due for so long, or for as long as between two saves."""


@final
class RunSaver:
    """Saves a run whenever that is due, or asked for.

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
        """Begin to save if a save is due; the save that has become complete since the last call."""
        landed = self._writer.wait() if self._manifests is None else self._writer.poll()
        path = self._told(landed)
        reasons = self._reasons(run)
        if self._writer.is_busy and _cannot_wait(run, reasons):
            path = self._told(self._writer.wait())
            reasons = self._reasons(run)  # which may be among those of that save
        if reasons and not self._writer.is_busy:
            self._begin(run, ", ".join(reasons))
        return path

    def save(self, run: Saveable, why: str) -> Path:
        """Save now, after what is being written.

        Raises:
            CheckpointError: it could not be written; says which save stands.
        """
        self.wait()
        self._begin(run, why)
        landed = self._writer.wait()
        assert landed is not None
        if landed.path is None:
            self._count(landed)
            stands = checkpoint.newest(run.run_dir, self._say)
            there = "nothing is saved" if stands is None else f"the newest save is {stands.path}"
            raise CheckpointError(f"{landed.failure}; {there}")
        self._told(landed)
        return landed.path

    def wait(self) -> Path | None:
        """Wait until nothing is being written; the save that has become complete meanwhile."""
        return self._told(self._writer.wait())

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
        """The run is in another folder from now on."""
        self.wait()
        self._manifests = None

    def begin_anew(self) -> None:
        """Forget what was saved, and let the next save be due at once."""
        self.forget()
        self._last_save_s = -math.inf
        self._is_failing = False

    def after_writing(self, act: Callable[[], None]) -> None:
        """Do something as soon as nothing is being written, without waiting for that."""
        self._writer.after_writing(act)

    def take_numbers(self) -> dict[str, float]:
        """What was measured of saves since the last call, by tag."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def _reasons(self, run: Saveable) -> list[str]:
        """Why the run should be saved now; nothing if it need not be, or is."""
        if self._manifests is None:  # not yet, or a save failed; none is being written
            self._manifests = self._own = self._writer.manifests(run.run_dir)
        name = checkpoint.save_name(run.step)
        since_s = time.monotonic() - self._last_save_s
        interval_s = run.policy.every_seconds
        saved = self._manifests.get(name)
        if saved is not None and not checkpoint.adds_metrics(run.facts, saved):
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

    def _told(self, landed: Landed | None) -> Path | None:
        """Say what a person should know of a save that is over; where it is."""
        if landed is None:
            return None
        for note in landed.notes:
            self._say(note)
        if landed.failure is not None and not self._is_failing:
            self._say(f"{landed.failure}; training goes on, and saving is tried again")
        if landed.not_pruned is not None and not self._is_prune_failing:
            self._say(f"{landed.not_pruned}; training goes on, and is saved")
        self._count(landed)
        return landed.path

    def _count(self, landed: Landed) -> None:
        self._is_failing = landed.path is None
        if landed.path is not None:
            self._is_prune_failing = landed.not_pruned is not None
        self._num_failed += self._is_failing
        self._manifests = landed.manifests
        if landed.manifests is not None:
            self._own = landed.manifests
        elif landed.path is not None and landed.manifest is not None:
            self._own = {**self._own, landed.path.name: landed.manifest}
        self._numbers["checkpoint/failed"] = float(self._num_failed)
        if landed.path is not None:
            self._numbers["checkpoint/write_ms"] = landed.write_ms
            self._numbers["checkpoint/bytes"] = float(landed.num_bytes)


def _cannot_wait(run: Saveable, reasons: list[str]) -> bool:
    """Whether a save would be missed if training went on.

    What is best is gone soon, and which save is the first of a window is no matter of speed.
    """
    is_for_keeps = any(reason != INTERVAL for reason in reasons)
    return is_for_keeps or (bool(reasons) and run.policy.every_seconds == 0)
