"""Tabs of Chromium that follow a running world, and its server."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.enn_trainer.viewer.tabs import TIMEOUT_MS, Tab
from tests.fork_server import ENN, start_program


class LiveTab(Tab):
    """A page that follows a running world, and loads nothing that its server does not serve."""

    allowed = ("http://127.0.0.1:", "data:", "blob:")

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.open(browser, address, **options)

    def begun(self) -> "LiveTab":
        """Wait for the first frame, before which there is nothing to select."""
        self.wait_for_welcome()
        self.page.wait_for_selector("#gap", state="hidden", timeout=TIMEOUT_MS)
        return self

    def wait_for_welcome(self) -> None:
        self.page.wait_for_selector("html[data-read]", timeout=TIMEOUT_MS)

    def step(self) -> tuple[int, int]:
        return int(self.state("episode")), int(self.state("step"))

    def wait_for_turn(self, name: str = "") -> None:
        text = self.page.locator("#turn-text", has_text=f"Your turn: {name}")
        text.wait_for(timeout=TIMEOUT_MS)

    def wait_for_answer(self) -> None:
        """Wait until the server has sent the remaining actors after the last choice."""
        answered = self.page.locator('#turn[aria-busy="false"]')
        answered.wait_for(state="attached", timeout=TIMEOUT_MS)

    def without_choice(self) -> int:
        (count,) = re.findall(r"\((\d+) without a choice\)", self.page.inner_text("#turn-text"))
        return int(count)

    def wait_for(self, text: str, where: str) -> None:
        self.page.locator(where, has_text=text).wait_for(timeout=TIMEOUT_MS)

    def wait_past(self, step: tuple[int, int]) -> None:
        code = "([e, s], d = document.documentElement.dataset) => +d.episode > e || +d.step > s"
        self.page.wait_for_function(code, arg=step, timeout=TIMEOUT_MS)

    def wait_for_other(self, selector: str, attribute: str, value: str | None) -> None:
        code = "([s, a, v]) => document.querySelector(s).getAttribute(a) !== v"
        self.page.wait_for_function(code, arg=[selector, attribute, value], timeout=TIMEOUT_MS)


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Serve a run; yield the address of the page, and the process."""
    command = [*ENN, "serve", str(run), "--port", "0", *options]
    with start_program(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip(), server
        finally:
            server.kill()
