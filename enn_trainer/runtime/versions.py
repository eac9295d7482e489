"""Versions of this program and its dependencies, without importing them."""

import functools
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from entity_env.imports.extras import PROJECT, distributions


@functools.cache  # reads files of the package, and is called by every save
def package_version(name: str) -> str | None:
    """Return the version of an installed package; None if it is not installed.

    For an imported package the version includes the build, such as torch "2.13.0+cu130".
    """
    if name == PROJECT:
        return next((distribution.version for distribution in distributions()), None)
    try:
        return str(getattr(sys.modules.get(name), "__version__", "")) or version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def revision_of(folder: Path) -> str | None:
    """Return the git revision of a folder; None without one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    silent = subprocess.DEVNULL
    try:
        output = subprocess.check_output(command, stderr=silent, text=True, timeout=5, cwd=folder)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.strip() or None


__version__ = package_version(PROJECT) or "unknown"


def versions() -> str:
    """Return version and revision, torch's version, and the instruction set of compiled code."""
    from rogue_net.native import INSTRUCTIONS, PROBLEM  # loads the compiled library

    checkout = Path(__file__).parents[2]
    revision = revision_of(checkout) if (checkout / ".git").exists() else None
    instructions = INSTRUCTIONS or f"none; compiled part: {PROBLEM}"
    return "\n".join(
        [
            f"enn-trainer {__version__}" + (f", revision {revision}" if revision else ""),
            f"torch {package_version('torch') or 'not installed'}",
            f"instructions: {instructions}",
        ]
    )
