"""Export of the saves of a run, see `checkpoint.export`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.checkpoints.format import read_unverified
from enn_trainer.checkpoints.retention import best_of
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state_manager import StateManager
from entity_env.imports.extras import missing_package

EXPORT = "export"
"""Name of the folder in the folder of the run."""


class ExportSaves(Callback):
    """Exports saves by `enn export` in another process, one at a time.

    A save that completes during an export is exported after it, unless there is a newer one. The
    process does not change the run: it reads saves, as any other program.

    Args:
        manager: state manager of the run, which has a folder.
        file: sends a folder to services that store files, see `Track.file`.
        say: prints a line.

    Raises:
        ConfigError: a package is missing.
    """

    def __init__(
        self,
        manager: StateManager,
        file: Callable[[int, str, Path], None],
        say: Callable[[str], None],
    ) -> None:
        if missing := missing_package("onnx", "onnxscript", "onnxruntime"):
            raise ConfigError(f"checkpoint.export: {missing}")
        self._manager, self._file, self._say = manager, file, say
        self._process: subprocess.Popen[bytes] | None = None
        self._is_due = False
        self._best: str | None = None

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        """Start an export, or note that one is due."""
        if self._manager.config.checkpoint.export == "best":
            best = self._best_save(path.absolute().parent)
            self._is_due |= best not in (None, self._best)
            self._best = best
        else:
            self._is_due = True
        self._proceed()

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Report a completed export, and start the next one if it is due."""
        self._proceed()

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """Wait for exports; after an error or a signal, end them."""
        if error is None and not self._manager.is_interrupted:
            while self._process is not None or self._is_due:
                if self._process is not None:
                    self._process.wait()
                self._proceed()
        elif self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._say(f"the export of the last save was ended; type: {self._command()}")
        self._process, self._is_due = None, False

    def _proceed(self) -> None:
        """Report a completed export, and start the next one if it is due."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            errors = self._process.communicate()[1]
            if self._process.returncode != 0:
                lines = errors.decode(errors="replace").split("\n")
                reason = next((line for line in reversed(lines) if line), "")
                self._say(f"checkpoint.export: {reason.removeprefix('error: ')}; training goes on")
            else:
                self._file(self._manager.state.step, EXPORT, self._run_dir() / EXPORT)
            self._process = None
        if self._is_due:
            self._is_due = False
            self._process = subprocess.Popen(
                [sys.executable, "-m", "enn_trainer.cli", *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def _run_dir(self) -> Path:
        run_dir = self._manager.checkpoint_dir
        assert run_dir is not None
        return (self._manager.start_folder / run_dir).absolute()

    def _arguments(self) -> list[str]:
        path = self._run_dir()
        suffix = "@best" if self._manager.config.checkpoint.export == "best" else ""
        return ["export", f"{path}{suffix}", "--to", str(path / EXPORT)]

    def _command(self) -> str:
        return " ".join(["enn", *self._arguments()])

    def _best_save(self, run_dir: Path) -> str | None:
        """Return the name of the best save by the first metric of `checkpoint.best`."""
        saves = {}
        for path in RunDir(run_dir).saved_paths():
            try:
                saves[path.name] = read_unverified(path).manifest
            except CheckpointError:
                continue
        return next(iter(best_of(saves, self._manager.config.checkpoint.best[0], 1)), None)
