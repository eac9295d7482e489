"""Sources of the replay page in a folder where they can be built and tested."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

SOURCES = Path(__file__).parents[1] / "enn_trainer/viewer/page"


def missing(reason: str) -> NoReturn:
    """Skip a test that needs a program, and fail where all tests are to run."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def copy_page_sources(folder: Path) -> Path:
    """Copy the sources and what builds them; skip the test where there is no Node."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("there is no Node to build the page with")
    copy = folder / "page"
    shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("node_modules", "build"))
    installed = SOURCES / "node_modules"
    if installed.is_dir():
        (copy / "node_modules").symlink_to(installed)
        return copy
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=240)
    if done.returncode:
        missing(f"npm ci cannot install what builds the page: {done.stderr.strip()[-200:]}")
    return copy


def run_node(sources: Path, *command: str, **environment: str) -> None:
    """Run a program of Node in the folder of the sources, which must succeed."""
    done = subprocess.run(
        command,
        cwd=sources,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
