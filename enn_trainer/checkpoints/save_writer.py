"""A thread that makes saves of copies of the state, so that training goes on meanwhile."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from enn_trainer.checkpoint_config import CheckpointConfig
from enn_trainer.checkpoints import checkpoint
from enn_trainer.checkpoints.keep import Verified, prune
from enn_trainer.checkpoints.state_files import FileContent, as_bytes
from enn_trainer.errors import CheckpointError


@dataclass(frozen=True)
class Saveable:
    """A run that can be saved as it is now.

    Attributes:
        run_dir: its folder.
        step: of the run.
        facts: what else the manifest tells.
        policy: when it is saved, and which saves are kept.
        copy: copies what goes into the files, so that nobody else changes it.
        supersedes: whether it may replace a save of this step that lacks some of its metrics.
    """

    run_dir: Path
    step: int
    facts: Mapping[str, Any]
    policy: CheckpointConfig
    copy: Callable[[], Mapping[str, FileContent]]
    supersedes: bool = True


@dataclass
class Landed:
    """A save that is over.

    Attributes:
        path: where it is; None if it could not be written.
        manifest: its own; None as well.
        failure: why it could not be written, in words.
        not_pruned: why no others could be removed, in words.
        notes: what else a person should know.
        manifests: of all saves that are kept, by name; None if that is not known.
        num_bytes: of its files.
        write_ms: how long it took.
        bug: an error that is none of the disk.
    """

    path: Path | None = None
    manifest: Mapping[str, Any] | None = None
    failure: str | None = None
    not_pruned: str | None = None
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, Mapping[str, Any]] | None = None
    num_bytes: int = 0
    write_ms: float = 0.0
    bug: Exception | None = None


@final
class SaveWriter:
    """Writes one save at a time. What it knows of earlier ones spares reading them again."""

    def __init__(self) -> None:
        self._known = Verified()
        self._thread: threading.Thread | None = None
        self._landed: Landed | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save was begun that nobody has asked for since."""
        return self._landed is not None

    def manifests(self, run_dir: Path) -> dict[str, Mapping[str, Any]]:
        """Of all valid saves of a run, by name; the writer is not busy."""
        assert not self.is_busy
        saves = self._known.saves(checkpoint.saved_paths(run_dir))
        return {saved.path.name: saved.manifest for saved in saves}

    def begin(self, run: Saveable, why: str, contents: Mapping[str, FileContent]) -> None:
        """Begin to write a copy of a run; the writer is not busy."""
        assert not self.is_busy
        self._landed = Landed()
        # No daemon: a program that ends by itself ends when the save is complete.
        arguments = (run, why, contents, self._landed)
        self._thread = threading.Thread(target=self._write, args=arguments, name="save")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads: training waits
            self._thread = None
            self._write(*arguments)

    def poll(self) -> Landed | None:
        """The save that is over since the last call, if there is one."""
        if self._thread is not None and self._thread.is_alive():
            return None
        return self.wait()

    def wait(self) -> Landed | None:
        """Wait until nothing is being written; the save that is over since the last call."""
        if self._landed is None:
            return None
        if self._thread is not None:
            self._thread.join()
        landed, self._landed, self._thread = self._landed, None, None
        if landed.bug is not None:
            raise landed.bug
        return landed

    def after_writing(self, act: Callable[[], None]) -> None:
        """Do something as soon as nothing is being written, without waiting for that."""
        writing = self._thread
        if writing is None:
            act()
            return

        def wait_and_act() -> None:
            writing.join()
            act()

        threading.Thread(target=wait_and_act, name="after save").start()

    def _write(
        self, run: Saveable, why: str, contents: Mapping[str, FileContent], landed: Landed
    ) -> None:
        start = time.perf_counter()
        try:
            files = as_bytes(contents)
            landed.num_bytes = sum(map(len, files.values()))
            saved = checkpoint.save(
                *(run.run_dir, run.step, files, why, run.facts, landed.notes.append),
                supersedes=run.supersedes,
            )
            self._known.remember(saved)
            landed.path, landed.manifest = saved.path, saved.manifest
            pruned = prune(run.run_dir, run.policy, known=self._known, written=saved.path.name)
            landed.manifests = pruned.manifests
        except (CheckpointError, OSError) as error:
            if landed.path is None:
                landed.failure = str(error)
            else:
                landed.not_pruned = str(error)
        except Exception as error:  # raised again where the run is
            landed.bug = error
        landed.write_ms = (time.perf_counter() - start) * 1e3
