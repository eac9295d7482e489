"""Relative paths of a run, which stay valid when an environment changes the current folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_folder: ContextVar[Path | None] = ContextVar("start_folder", default=None)

RUNS = Path("runs")
"""Folder of runs by default."""


@contextmanager
def paths_from(folder: Path) -> Iterator[None]:
    """Resolve relative paths of settings from a folder while the context is open.

    Args:
        folder: an absolute path.
    """
    before = _folder.set(folder)
    try:
        yield
    finally:
        _folder.reset(before)


def start_folder() -> Path:
    """Return the folder in which the run started; the current folder outside of `paths_from`."""
    return _folder.get() or Path.cwd()


def absolute(path: str | Path, folder: Path | None = None) -> Path:
    """Return the absolute path of a setting, for use while environments run.

    Args:
        path: path as entered.
        folder: base folder of relative paths; the start folder by default.
    """
    return (start_folder() if folder is None else folder) / path


def located(path: str | Path, folder: Path | None = None) -> Path:
    """Return the path of a setting, for use and for messages.

    The path is not changed, or is made absolute if its base folder is not the current folder.

    Args:
        path: path as entered.
        folder: base folder of relative paths; the start folder by default.
    """
    folder = start_folder() if folder is None else folder
    try:
        is_current = Path.cwd() == folder
    except FileNotFoundError:  # removed meanwhile
        is_current = False
    return Path(path) if is_current else folder / path


def path_of_run(text: str) -> Path:
    """Return the path of a run: a name that is not in this folder is looked up in `runs`."""
    name = text.partition("@")[0]
    try:
        return RUNS / text if not Path(name).exists() and (RUNS / name).is_dir() else Path(text)
    except OSError:  # the name is too long
        return Path(text)
