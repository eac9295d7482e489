"""What made a save: the program, its packages, the code, the machine and the command."""

import functools
import platform
import shlex
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from enn_trainer.start_folder import start_folder

_PACKAGES = ("enn-trainer", "torch", "numpy", "safetensors", "msgpack")


def made_by() -> dict[str, Any]:
    """Facts about this process, as plain data."""
    return {
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "git": git_revision(),
        "command": shlex.join(sys.argv),
        "host": socket.gethostname(),
    }


@functools.cache  # it reads files of the package, and saves are many
def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def git_revision() -> str | None:
    """The revision of the folder that the run was started in, if it is one of git's."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            cwd=start_folder(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
