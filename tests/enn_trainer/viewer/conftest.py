"""Chromium, started once a session."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.enn_trainer.viewer.tabs import CHROMIUM, OPTIONS
from tests.page_sources import missing


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Return Chromium, or skip where there is none."""
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
