"""A browser for tests of the page."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.enn_trainer.viewer.tabs import CHROMIUM, OPTIONS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium; skip where there is no playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install '.[browser]'")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield found
        found.close()
