"""Format of checkpoints: names, verified reading, and races with a running process.

    run/
      step-000000012800/     one checkpoint; never modified after the rename that makes it visible,
                             but replaced as a whole by a successor that only adds metrics
        manifest.json        size and sha256 of every file, and of the manifest itself
        config.ron  state.ron  state.agent.safetensors  ...
      index.json             convenience only: rebuilt from the directories
      pins.json  .lock

This module handles names and bytes, not their content.
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
from enn_trainer.checkpoints.disk import MAX_TEXT_BYTES, plain_file, read_plain_file, size_of
from enn_trainer.checkpoints.manifest import MANIFEST, read_manifest

C = TypeVar("C")
WEIGHTS = "state.agent.safetensors"
"""Weights of the agent; two checkpoints of a step differ if this file does."""
OPPONENT = "opponent-"
"""Prefix of the files of opponents; a run can continue without a damaged one."""
PUBLISHED_WEIGHTS = "state.agent.msgpack"
"""Weights of the agent in checkpoints of enn_trainer 0.1.16."""
METRICS_FILE, RUN_FILE = "metrics.jsonl", "run.json"
"""Metrics of a run, and its description."""
MOST_LOOKS = 20
"""Maximal number of attempts to read a checkpoint that is deleted or replaced meanwhile."""
_SAVE_NAME = re.compile(r"step-(\d{12,})")
_PICKLED = ('"<blob:pickle>"', '"<BLOB>"')  # placeholders that hyperstate writes for pickles
_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")


class SaveGone(CheckpointError):  # noqa: N818 (caught to retry)
    """Raised if a checkpoint was deleted or replaced while it was read."""


@final
class OpenFiles:
    """Open files of a folder, which stay readable after they are deleted.

    They are closed with the last reference to the object.

    Args:
        folder: the folder.
        names: names of the files.

    Raises:
        CheckpointError: as for `plain_file`.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        with ExitStack() as stack:
            self._files = {name: stack.enter_context(plain_file(folder / name)) for name in names}
            self.close = weakref.finalize(self, stack.pop_all().close)

    def rewound(self, name: str) -> BinaryIO | None:
        """Return a file, rewound to its start; None once the files are closed."""
        if not self.close.alive:
            return None
        self._files[name].seek(0)
        return self._files[name]


@dataclass(frozen=True)
class Checkpoint:
    """Checkpoint on disk, verified against its manifest.

    Attributes:
        path: the directory.
        manifest: content of the manifest.
        lost: errors of damaged opponent files that are left out, by name.
        held: the open files, which stay readable if a running process deletes the checkpoint.
    """

    path: Path
    manifest: Mapping[str, Any]
    lost: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    held: OpenFiles | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def step(self) -> int:
        """Step of the run at which it was saved."""
        return int(self.manifest["step"])

    def read(self, name: str) -> bytes:
        """Return the verified content of a file.

        Raises:
            CheckpointError: the file is not in the manifest, or does not match it.
        """
        return self._verified(name, with_data=True)

    def text(self, name: str) -> str:
        """Return the verified text of a file.

        Raises:
            CheckpointError: as for `read`; or the file is larger than `MAX_TEXT_BYTES`, or no text.
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
        """Yield an error for each file that does not match the manifest, and for a pickle."""
        yield from self.damaged(self.manifest["files"].keys() - self.lost.keys()).values()
        try:
            check_no_pickles(self.path)
        except CheckpointError as error:
            yield error

    def damaged(self, names: Iterable[str]) -> dict[str, CheckpointError]:
        """Return the errors of the given files that do not match the manifest, by name."""
        errors = {}
        for name in sorted(names):
            try:
                self._verified(name)
            except CheckpointError as error:
                errors[name] = error
        return errors

    def release(self) -> None:
        """Close the open files."""
        if self.held is not None:
            self.held.close()

    def _verified(self, name: str, with_data: bool = False) -> bytes:
        """Verify a file as in `read`; return its content if `with_data`, else b""."""
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
            data = file.read() if with_data else b""
            digest = hashlib.sha256(data) if with_data else hashlib.file_digest(file, "sha256")  # type: ignore[arg-type]
        if digest.hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{where}: damaged, its sha256 is not that of the manifest")
        return data


def verify(path: Path, without_lost: bool = False) -> Checkpoint:
    """Open the checkpoint in a directory and verify every file against the manifest.

    The files stay open until the last reference is dropped or `release` is called.

    Args:
        path: the directory.
        without_lost: True to leave out damaged opponent files, see `Checkpoint.lost`.

    Raises:
        SaveGone: it was deleted or replaced meanwhile.
        CheckpointError: a file is missing, damaged, a pickle, or from a newer version.
    """
    with unless_replaced(path):
        saved = read_unverified(path)
        files = saved.manifest["files"]
        if without_lost:
            opponent_files = [name for name in files if name.startswith(OPPONENT)]
            lost = {name: str(error) for name, error in saved.damaged(opponent_files).items()}
            saved = replace(saved, lost=lost)
        saved = replace(saved, held=OpenFiles(path, files.keys() - saved.lost.keys()))
        for problem in saved.problems():
            raise problem
        return saved


def check_no_pickles(save_dir: Path) -> None:
    """Raise if a folder or one of its subfolders has a pickle.

    Pickles are never opened. A checkpoint with one was written or changed by another program.

    Raises:
        CheckpointError: there is a pickle.
    """
    for folder, _, names in os.walk(save_dir):
        for name in names:
            if name.lower().endswith(_PICKLES):
                raise CheckpointError(
                    f"{Path(folder) / name}: a pickle, which can run any code when it is opened; "
                    "expected no such file in a checkpoint: it is never read, delete it"
                )


def read_unverified(path: Path) -> Checkpoint:
    """Read only the manifest of the checkpoint in a directory.

    Raises:
        CheckpointError: the manifest is missing or damaged, or its step is not the one in the name
            of the directory.
    """
    saved = Checkpoint(path, read_manifest(path / MANIFEST))
    if step_of(path) is not None and path.name != save_name(saved.step):
        raise CheckpointError(
            f"{path}: damaged: its manifest is of step {saved.step}: expected the name "
            f"{save_name(saved.step)}; rename the folder if it is that checkpoint"
        )
    return saved


def is_valid(path: Path) -> bool:
    """Return True if a directory is a complete, undamaged checkpoint."""
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


def is_save(path: Path) -> bool:
    """Return True if a directory is a checkpoint of this format, valid or damaged, and not a run.

    A checkpoint has a manifest. One that lost it is recognised by its name; it contains only files,
    whereas the folder of a run contains checkpoints.
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
    """Return the directory name of the checkpoint of a step."""
    return f"step-{step:012d}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint directory; None for other names."""
    match = _SAVE_NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def first_valid(
    run_dir: Path, paths: Iterable[Path], read: Callable[[Path], C], say: Callable[[str], None]
) -> C | None:
    """Return the first checkpoint that can be read; None if there are no paths.

    Args:
        run_dir: the folder of the run.
        paths: candidates in order of preference.
        read: reads a checkpoint.
        say: prints a line for each damaged candidate that is skipped.

    Raises:
        CheckpointError: there are candidates, but none is valid.
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
    """Cache of verified checkpoints, so that gigabytes are not read again.

    An entry is valid as long as the sizes and modification times of the files do not change.
    """

    def __init__(self) -> None:
        self._saves: dict[Path, tuple[object, Checkpoint]] = {}

    def add(self, saved: Checkpoint) -> None:
        """Add a checkpoint that was just verified, and close its files."""
        saved.release()
        self._saves[saved.path] = (_signature(saved.path), saved)

    def update(self, paths: Iterable[Path]) -> list[Checkpoint]:
        """Return the valid checkpoints among some directories, and drop all other entries."""
        before, self._saves = self._saves, {}
        for path in paths:
            try:
                signature, saved = before.get(path, (None, None))
                if saved is None or signature != _signature(path):
                    saved = retry_while_gone(path, partial(verify, path))
                self.add(saved)
            except (CheckpointError, OSError):
                continue  # not a valid checkpoint
        return [saved for _, saved in self._saves.values()]


def _signature(path: Path) -> object:
    with os.scandir(path) as entries:  # closed also if a file goes meanwhile
        files = [(entry.name, entry.stat()) for entry in entries]
    return sorted((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in files)


@contextmanager
def unless_replaced(path: Path) -> Iterator[None]:
    """Return a context for reading a checkpoint that a run may delete or replace meanwhile.

    Args:
        path: the directory.

    Raises:
        SaveGone: reading failed because the checkpoint was deleted or replaced.
    """
    before = folder_id(path)
    try:
        yield
    except CheckpointError:
        if before is not None and folder_id(path) != before:
            raise SaveGone(f"{path}: deleted or replaced while it was read") from None
        raise


def retry_while_gone(path: Path, read: Callable[[], C]) -> C:
    """Retry reading a checkpoint that a run deletes or replaces meanwhile.

    Args:
        path: the checkpoint or its run, for messages.
        read: finds and reads it; raises `SaveGone` if it was deleted or replaced.

    Raises:
        CheckpointError: all `MOST_LOOKS` attempts failed.
    """
    for _ in range(MOST_LOOKS):
        try:
            return read()
        except SaveGone:
            continue
    raise CheckpointError(
        f"{path}: the checkpoint was deleted or replaced while it was read, {MOST_LOOKS} times in "
        "a row; raise checkpoint.keep of the run"
    )


def folder_id(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a folder; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def folder_of_metrics(run_dir: Path, data_dir: str, run_name: str) -> Path:
    """Return the folder with the metrics of a run.

    Earlier releases wrote them to `data_dir/runs/<run_name>`. A relative `data_dir` is searched in
    the current folder and in the parents of the run, as the run was started from one of them.

    Args:
        run_dir: the folder with the checkpoints.
        data_dir: setting of the run.
        run_name: name of the run, "" if it has none.
    """
    if (run_dir / METRICS_FILE).exists() or not run_name:
        return run_dir
    places = [Path(), *run_dir.resolve().parents]
    earlier = [place / data_dir / "runs" / run_name for place in places]
    return next((folder for folder in earlier if (folder / METRICS_FILE).is_file()), earlier[0])


def is_published(path: Path) -> bool:
    """Return True if a directory is a checkpoint of enn_trainer 0.1.16, valid or damaged."""
    return (path / PUBLISHED_WEIGHTS).is_file() or is_pickled(path)


def is_pickled(path: Path) -> bool:
    """Return True if a directory has pickles of hyperstate."""
    if any(path.glob("state.*.pickle")):
        return True
    state = path / "state.ron"
    if not state.is_file():
        return False
    text = read_plain_file(state, MAX_TEXT_BYTES).decode(errors="replace")
    return any(mark in text for mark in _PICKLED)
