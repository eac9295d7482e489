"""Relative paths of a run, which stay where they were when an environment changes the folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_folder: ContextVar[Path | None] = ContextVar("start_folder", default=None)


@contextmanager
def paths_from(folder: Path) -> Iterator[None]:
    """Let relative paths of settings begin in a folder while the context is open.

    Args:
        folder: an absolute path.
    """
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def start_folder() -> Path:
    """Return the folder in which the run began; the current one outside of `paths_from`."""
    return _folder.get() or Path.cwd()


def absolute(path: str | Path, folder: Path | None = None) -> Path:
    """Return the absolute path of a setting, to be kept while environments run.

    Args:
        path: as typed.
        folder: where it begins; the start folder by default.
    """
    return (start_folder() if folder is None else folder) / path


def located(path: str | Path, folder: Path | None = None) -> Path:
    """Return a path to use, and to show, at once.

    It is as typed as long as this is right, and absolute once the current folder is another one
    than that in which the run began.

    Args:
        path: as typed.
        folder: where it begins; the start folder by default.
    """
    folder = start_folder() if folder is None else folder
    return Path(path) if _is_current(folder) else folder / path


def _is_current(folder: Path) -> bool:
    try:
        return Path.cwd() == folder
    except FileNotFoundError:  # removed meanwhile
        return False
