"""Errors of commands: one-line messages for installation and disk errors, and bug reports."""

import sys
import sysconfig
import traceback
from collections.abc import Iterator
from errno import EACCES, EDQUOT, EIO, ENAMETOOLONG, ENOSPC, EPERM, EROFS
from pathlib import Path
from types import FrameType

REPORT = (
    "this is a bug in enn-trainer: report it with the lines above and the output of "
    "`enn doctor --json`"
)
_DISK_ERRORS = {EACCES, EDQUOT, EIO, ENAMETOOLONG, ENOSPC, EPERM, EROFS}
"""Error numbers of unusable paths and disks."""
_PACKAGES = Path(__file__).parents[2]


def torch_problem(error: BaseException) -> str | None:
    """Return the message of a failed import of torch; None for any other error."""
    install = f"{sys.executable} -m pip install"
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"torch: expected an installed package, got none; type: {install} torch"
    for frame in _frames(error):
        is_import = frame.f_code.co_name == "<module>"
        if is_import and frame.f_globals["__name__"].partition(".")[0] == "torch":
            problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
            again = f"{install} --force-reinstall torch"
            return f"torch: expected a working installation, got {problem}; type: {again}"
    return None


def disk_problem(error: BaseException) -> str | None:
    """Return the message of an unusable path or disk; None for any other error."""
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS and is_unforeseen(error):
        return ": ".join(str(part) for part in (error.filename, error.strerror) if part)
    return None


def is_unforeseen(error: BaseException) -> bool:
    """Return True if no user code was running, such as an environment or a network."""
    if any(note.startswith("in environment") for note in getattr(error, "__notes__", [])):
        return False
    ours = [_PACKAGES / name for name in ("entity_env", "rogue_net", "enn_trainer")]
    places = [*ours, *map(Path, sysconfig.get_paths().values())]
    files = [f.f_code.co_filename for f in _frames(error)]
    return all(
        file.startswith("<") or any(Path(file).is_relative_to(place) for place in places)
        for file in files
    )


def _frames(error: BaseException) -> Iterator[FrameType]:
    return (frame for frame, _ in traceback.walk_tb(error.__traceback__))
