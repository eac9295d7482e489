"""A browser, and the sources of the page with all that they are built and tested with."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from enn_trainer.viewer.page import PAGE
from tests.enn_trainer.viewer.tabs import CHROMIUM, OPTIONS

SOURCES = PAGE.with_suffix("")


def missing(reason: str) -> NoReturn:
    """Skip a test that needs a program, and fail where all tests are to run."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium."""
    if CHROMIUM is None:
        missing("there is no chromium; apt-get install chromium")
    try:
        import playwright.sync_api as playwright
    except ImportError:
        missing("there is no playwright; pip install '.[browser]'")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources with all that they are built with; skip where there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        missing("there is no Node to build the page with")
    copy = tmp_path_factory.mktemp("viewer") / "page"
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
