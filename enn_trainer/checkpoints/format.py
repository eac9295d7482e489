"""Format of the saves of a run: names, verified reading, and races with the run.

    run/
      step-000000012800/     one save; never modified after the rename that makes it visible, but
                             replaced as a whole by one with the same weights that has more metrics
        manifest.json        sizes and sha256 of every file, and of its own other bytes
        config.ron  state.ron  state.agent.safetensors  ...
      index.json             convenience only: rebuilt from the directories
      pins.json  .lock

This module knows names and bytes, not what is in them.
"""

import hashlib
import os
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, final

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.disk import MAX_TEXT_BYTES, plain_file, size_of
from enn_trainer.checkpoints.manifest import MANIFEST, read_manifest

C = TypeVar("C")
WEIGHTS = "state.agent.safetensors"
"""The file that tells two saves of a step apart."""
OPPONENT = "opponent-"
"""Beginning of the names of files with opponents; a run can go on without one that is damaged."""
METRICS_FILE, RUN_FILE = "metrics.jsonl", "run.json"
"""Metrics of a run, and its description."""
MOST_LOOKS = 20
"""Attempts to read a save that is deleted or replaced each time."""
_SAVE_NAME = re.compile(r"step-(\d{12,})")
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")


class SaveGone(CheckpointError):  # noqa: N818 (caught to look again)
    """A save was deleted or replaced while it was read."""


@final
class OpenFiles:
    """Files of a folder, held open, so that they can be read after they are deleted.

    They are closed with the last reference to the object.

    Args:
        folder: where they are.
        names: of the files.

    Raises:
        CheckpointError: as for `plain_file`.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        with ExitStack() as stack:
            self._files = {name: stack.enter_context(plain_file(folder / name)) for name in names}
            self.close = weakref.finalize(self, stack.pop_all().close)

    def rewound(self, name: str) -> BinaryIO | None:
        """Return a file, at its beginning; None once the files are closed."""
        if not self.close.alive:
            return None
        self._files[name].seek(0)
        return self._files[name]


@dataclass(frozen=True)
class Checkpoint:
    """A verified save.

    Attributes:
        path: its directory.
        manifest: the content of its manifest.
        lost: what is wrong with damaged files of opponents, by name, if they are left out.
        held: its files, open: they can be read when a run that goes on has deleted the save.
    """

    path: Path
    manifest: Mapping[str, Any]
    lost: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    held: OpenFiles | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def step(self) -> int:
        """The step it was saved at."""
        return int(self.manifest["step"])

    def read(self, name: str) -> bytes:
        """Return the bytes of a file, verified.

        Raises:
            CheckpointError: the file is not in the manifest, or is not what was written.
        """
        return self._verified(name, keeps=True)

    def text(self, name: str) -> str:
        """Return the text of a file, verified.

        Raises:
            CheckpointError: as for `read`; or it is no text, or too long for one.
        """
        size = self.manifest["files"].get(name, {"size": 0})["size"]
        if size > MAX_TEXT_BYTES:
            raise CheckpointError(
                f"{self.path / name}: expected at most {MAX_TEXT_BYTES} bytes, got {size}"
            )
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path / name}: damaged, no text: {error}") from None

    def problems(self) -> Iterator[CheckpointError]:
        """Yield the errors of the files, compared with the manifest, and of pickles beside them."""
        yield from self.damaged(self.manifest["files"].keys() - self.lost.keys()).values()
        try:
            check_no_pickles(self.path)
        except CheckpointError as error:
            yield error

    def damaged(self, names: Iterable[str]) -> dict[str, CheckpointError]:
        """Return the errors of those of some files that are not as in the manifest, by name."""
        errors = {}
        for name in sorted(names):
            try:
                self._verified(name)
            except CheckpointError as error:
                errors[name] = error
        return errors

    def release(self) -> None:
        """Close the files that are held open, as soon as no more is read."""
        if self.held is not None:
            self.held.close()

    def _verified(self, name: str, keeps: bool = False) -> bytes:
        """Compare a file with the manifest, as `read`; return its bytes if `keeps`, else none."""
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{self.path}: has no {name}")
        where = self.path / name
        with ExitStack() as stack:
            file = None if self.held is None else self.held.rewound(name)
            if file is None:
                file = stack.enter_context(plain_file(where))
            if size_of(file) != expected["size"]:
                raise CheckpointError(
                    f"{where}: expected {expected['size']} bytes, got {size_of(file)}"
                )
            data = file.read() if keeps else b""
            digest = hashlib.sha256(data) if keeps else hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        if digest.hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{where}: damaged, its sha256 is not that of the manifest")
        return data


def verify(path: Path, without_lost: bool = False) -> Checkpoint:
    """Read the save in a directory, and compare every file with the manifest.

    Its files are held open, and closed with the last reference to it, or by `release`.

    Args:
        path: the directory.
        without_lost: True to leave out files of opponents that are damaged, see `Checkpoint.lost`.

    Raises:
        SaveGone: it was deleted or replaced meanwhile.
        CheckpointError: something is missing, damaged, or from a newer version; or there is a
            pickle beside it.
    """
    with unless_replaced(path):
        saved = read_unverified(path)
        files = saved.manifest["files"]
        if without_lost:
            of_opponents = [name for name in files if name.startswith(OPPONENT)]
            lost = {name: str(error) for name, error in saved.damaged(of_opponents).items()}
            saved = replace(saved, lost=lost)
        saved = replace(saved, held=OpenFiles(path, files.keys() - saved.lost.keys()))
        for problem in saved.problems():
            raise problem
        return saved


def check_no_pickles(save_dir: Path) -> None:
    """Raise if there is a pickle in a folder, or in one that is in it.

    Nothing here opens pickles; but a save with one was not written by this program, or was changed
    by another one.

    Raises:
        CheckpointError: there is one.
    """
    for folder, _, names in os.walk(save_dir):
        for name in names:
            if name.lower().endswith(_PICKLES):
                raise CheckpointError(
                    f"{Path(folder) / name}: a pickle, which can run any code when it is opened; "
                    "expected no such file in a checkpoint: it is never read, delete it"
                )


def read_unverified(path: Path) -> Checkpoint:
    """Read the save in a directory by its manifest alone.

    Raises:
        CheckpointError: the manifest is missing or damaged, or of another step than the name of
            the directory: then it is not known which of the two is wrong.
    """
    saved = Checkpoint(path, read_manifest(path / MANIFEST))
    if step_of(path) is not None and path.name != save_name(saved.step):
        raise CheckpointError(
            f"{path}: damaged: its manifest is of step {saved.step}: expected the name "
            f"{save_name(saved.step)}; rename the folder if it is that save"
        )
    return saved


def is_valid(path: Path) -> bool:
    """Return True if a directory is a save with nothing missing or damaged."""
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def is_save(path: Path) -> bool:
    """Return True if a directory is a save of this format, which may be damaged, and not a run.

    A save has a manifest. One that lost it is known by its name; it holds files alone, whereas the
    folder of a run, whatever it is called, holds its saves.
    """
    if os.path.lexists(path / MANIFEST):
        return True
    if step_of(path) is None or not path.is_dir():
        return False
    try:
        return not any(entry.is_dir() for entry in path.iterdir())
    except OSError:  # cannot be looked into
        return True


def save_name(step: int) -> str:
    """Return the name of the directory of a save."""
    return f"step-{step:012d}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a directory; None if the name is not that of a save."""
    match = _SAVE_NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def first_valid(
    run_dir: Path, paths: Iterable[Path], read: Callable[[Path], C], say: Callable[[str], None]
) -> C | None:
    """Return the first of some directories of a run that can be read; None if there are none.

    Args:
        run_dir: the folder of the run.
        paths: of the saves in question, the most wanted first.
        read: reads one.
        say: prints a line for each damaged one before it.

    Raises:
        CheckpointError: there are some, but none is valid.
    """
    problems = []
    for path in paths:
        try:
            saved = read(path)
        except SaveGone:
            raise
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(f"skipped a damaged checkpoint, using {path.name} instead: {problem}")
        return saved
    if problems:
        raise CheckpointError(f"{run_dir}: no valid checkpoint: {'; '.join(problems)}")
    return None


class VerifiedSaves:
    """Saves that were verified in this process, so that gigabytes are not read again.

    A save counts as verified as long as its files have the sizes and times that they had.
    """

    def __init__(self) -> None:
        self._saves: dict[Path, tuple[object, Checkpoint]] = {}

    def add(self, saved: Checkpoint) -> None:
        """Take a save that was just verified; its files need not stay open."""
        saved.release()
        self._saves[saved.path] = (_signature(saved.path), saved)

    def update(self, paths: Iterable[Path]) -> list[Checkpoint]:
        """Return the valid saves among some directories, and forget all others."""
        before, self._saves = self._saves, {}
        for path in paths:
            try:
                signature, saved = before.get(path, (None, None))
                if saved is None or signature != _signature(path):
                    saved = retry_while_gone(path, partial(verify, path))
                self.add(saved)
            except (CheckpointError, OSError):
                continue  # no valid save
        return [saved for _, saved in self._saves.values()]


def _signature(path: Path) -> object:
    with os.scandir(path) as entries:  # closed also if a file goes meanwhile
        files = [(entry.name, entry.stat()) for entry in entries]
    return sorted((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in files)


@contextmanager
def unless_replaced(path: Path) -> Iterator[None]:
    """Return a context for reading a save that a run may delete or replace meanwhile.

    Args:
        path: its directory.

    Raises:
        SaveGone: it was deleted or replaced, and reading it failed.
    """
    before = folder_id(path)
    try:
        yield
    except CheckpointError:
        if before is not None and folder_id(path) != before:
            raise SaveGone(f"{path}: deleted or replaced while it was read") from None
        raise


def retry_while_gone(path: Path, read: Callable[[], C]) -> C:
    """Look for a save until one is read that was not deleted or replaced meanwhile.

    Args:
        path: of the save or its run, for messages.
        read: finds and reads it; raises `SaveGone` if it was deleted or replaced.

    Raises:
        CheckpointError: it was, too often.
    """
    for _ in range(MOST_LOOKS):
        try:
            return read()
        except SaveGone:
            continue
    raise CheckpointError(
        f"{path}: expected a save that stays while it is read, those found were deleted or "
        f"replaced {MOST_LOOKS} times in a row; have the run keep more of them (checkpoint.keep)"
    )


def folder_id(path: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one of its name; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def folder_of_metrics(run_dir: Path, data_dir: str, run_name: str) -> Path:
    """Return the folder with the metrics of a run: its own, or that of an earlier release.

    That was `data_dir/runs/<run_name>`; a relative `data_dir` is searched in the current folder and
    in those above the run, from one of which it was started.

    Args:
        run_dir: the folder with the saves.
        data_dir: setting of the run.
        run_name: name of the run, "" if it has none.
    """
    if (run_dir / METRICS_FILE).exists() or not run_name:
        return run_dir
    places = [Path(), *run_dir.resolve().parents]
    earlier = [place / data_dir / "runs" / run_name for place in places]
    return next((folder for folder in earlier if (folder / METRICS_FILE).is_file()), earlier[0])
