"""Tabs of Chromium for tests of the page."""

import os
import shutil
from pathlib import Path
from typing import Any, Self

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
OPTIONS = ["--no-sandbox", "--disable-gpu", "--no-first-run", *QUIET]
TIMEOUT_MS = 60_000
SIZES = [(390, 844), (1280, 900), (1920, 1080)]
VIEWPORTS = [{"width": width, "height": height} for width, height in SIZES]


class Tab:
    """A page in a browser, in which nothing may go wrong: of a file, without a network."""

    allowed: tuple[str, ...] = ("file:", "data:", "blob:")

    def __init__(self, browser: Any, path: Path, hash: str = "", **options: Any) -> None:
        self.open(browser, f"file://{path}{hash}", offline=True, **options)
        self.page.wait_for_selector("html[data-read]", timeout=TIMEOUT_MS)

    def open(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append("a dialog"))
        self.page.on("request", lambda request: self.requested(request.url))
        self.page.goto(address)

    def requested(self, url: str) -> None:
        if not url.startswith(self.allowed):
            self.complaints.append(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.complaints == []

    def state(self, name: str) -> str:
        return str(self.page.evaluate("name => document.documentElement.dataset[name]", name))

    def press(self, key: str, **expected: object) -> None:
        self.page.keyboard.press(key)
        self.wait(**expected)

    def go(self, hash: str, **expected: object) -> None:
        self.page.evaluate("hash => { location.hash = hash }", hash)
        self.wait(**expected)

    def wait(self, **expected: object) -> None:
        for name, value in expected.items():
            self.page.wait_for_selector(f'html[data-{name}="{value}"]', timeout=TIMEOUT_MS)

    def drawn_size(self) -> list[int]:
        """Return width and height of the drawing in the scene."""
        return list(self.page.evaluate("[canvas.width, canvas.height]"))

    def shown_size(self) -> list[int]:
        """Return width and height of the scene on the page."""
        return list(self.page.evaluate("[canvas.clientWidth, canvas.clientHeight]"))

    def numbers(self, selector: str, attribute: str) -> list[float]:
        code = "(all, name) => all.map(one => one.getAttribute(name))"
        texts = self.page.eval_on_selector_all(selector, code, attribute)
        return [float(text.replace("Infinity", "inf")) for text in texts]
