"""Saving of a run: on schedule, on request, at its end and after a failure."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from enum import Enum
from pathlib import Path
from typing import Literal

from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.callbacks.run_metrics import MetricsLog
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.run.running_episodes import RunningEpisodes


class Status(Enum):
    """Phase of a run, which determines how it is saved.

    BETWEEN updates the run is saved at once. While UPDATING the state is inconsistent and cannot be
    saved. While REPORTING a request is deferred until metrics are recorded. A FAILED run is saved
    without its episodes, which may be inconsistent.
    """

    BETWEEN = "between"
    UPDATING = "updating"
    REPORTING = "reporting"
    FAILED = "failed"


class Checkpoints:
    """Saves a run.

    Args:
        manager: saves the state.
        log: metrics of the run, for the manifests.
        say: prints a line.
        notify: called with the path of each new checkpoint.

    Attributes:
        status: phase of the run.
        last: checkpoint at the end of the run; None before, or without `checkpoint_dir`.
    """

    def __init__(
        self,
        manager: StateManager,
        log: MetricsLog,
        say: Callable[[str], None],
        notify: Callable[[Path], None],
    ) -> None:
        self._manager, self._log, self._say, self._notify = manager, log, say, notify
        self.status = Status.BETWEEN
        self.last: Path | None = None
        self._is_requested = False
        self._reported: Path | None = None

    @contextmanager
    def during(self, status: Status) -> Iterator[None]:
        """Return a context that sets the status."""
        before, self.status = self.status, status
        try:
            yield
        finally:
            self.status = before

    @contextmanager
    def storing(
        self, callbacks: Callbacks, episodes: RunningEpisodes, evaluation: RunEvaluator
    ) -> Iterator[None]:
        """Return a context in which checkpoints include callbacks, episodes and evaluations."""
        state = self._manager.state

        def store() -> None:
            # A failed run is saved even if a callback raises, with the previous callback states.
            with suppress(Exception) if self.status is Status.FAILED else nullcontext():
                callbacks.save_states(state.memory)
            with suppress(Exception) if self.status is Status.FAILED else nullcontext():
                evaluation.store(self._manager.group)
            is_between = self.status is not Status.UPDATING
            episodes.store(is_between, self._manager.group)

        with self._manager.call_before_saves(store):
            yield

    def begin(self) -> None:
        """Save a new run without notifying callbacks."""
        if not self._manager.is_resumed_in_place:
            self._reported = self._manager.begin()

    def save(self) -> Path | None:
        """Save now and return the path; None without a folder; see `Trainer.save`."""
        self.check_between("save")
        self._is_requested = self.status is Status.REPORTING
        if self._is_requested:
            return None
        self._report(self._manager.wait())
        return self._report(self._manager.save("asked for", self._log.measured))

    def check_between(self, method: str) -> None:
        """Raise ValueError if a method is called in the middle of an update."""
        if self.status is Status.UPDATING:
            raise ValueError(
                f"{method}: expected to be called between updates, as in on_update_end, got a call "
                "during an update"
            )

    def save_if_requested(self) -> None:
        """Save if a callback requested it."""
        if any(self._manager.group.gather(self._is_requested, "agreeing")):
            self.save()

    def save_if_due(self) -> None:
        """Save if a callback requested it; otherwise start saving if a checkpoint is due."""
        self.save_if_requested()
        self._report(self._manager.step(self._log.measured))

    def save_at_end(
        self, why: str, ending: Literal["end", "interrupted", "failed"], is_discarded: bool = False
    ) -> None:
        """Save the run at its end, and print why it ended and the path of the checkpoint.

        Args:
            why: why the run ended, for the message.
            ending: reason for saving, for the manifest.
            is_discarded: True if the last update was discarded. Its episodes are lost, so an
                earlier checkpoint with episodes is kept instead.
        """
        self._is_requested = False  # this checkpoint satisfies the request
        newest = self._manager.newest_save() if is_discarded else None
        is_kept = newest is not None and self._manager.state.envs is not None
        if self._manager.group.broadcast(is_kept, "saving"):
            self.last = newest
            self._say(f"{why}, {newest} is kept")
            return
        # The checkpoint of a failed run has no episodes, so it does not replace one with episodes.
        saved = self._manager.save(ending, self._log.measured, supersedes=ending != "failed")
        self.last = saved
        if saved is not None or ending != "end":
            self._say(f"{why}, {'nothing was saved' if saved is None else f'saved {saved}'}")
        self._report(saved)

    def save_after_failure(self) -> None:
        """Save the state before the failed update, ignoring further errors."""
        with self.during(Status.FAILED):
            with suppress(Exception):
                self.wait()
            with suppress(Exception):  # even if an earlier checkpoint failed
                self.save_at_end("failed", "failed")

    def wait(self) -> None:
        """Wait for a checkpoint in progress."""
        self._report(self._manager.wait())

    def _report(self, path: Path | None) -> Path | None:
        """Notify callbacks of a new checkpoint, and return its path."""
        if path is not None and path != self._reported:
            self._reported = path
            self._notify(path)
        return path
