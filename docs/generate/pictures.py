"""Pictures of `docs/watching.md`: trains three agents, a minute each, and looks at their replays.

    python docs/generate/pictures.py [FOLDER]

Needs Chromium and the extras `browser` and `video`. FOLDER keeps the agents; those that are there
are not trained again.
"""

import shutil
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

DOCS = Path(__file__).parents[1]
ENN = [sys.executable, "-m", "enn_trainer.cli"]
WIDTH, HEIGHT = 1100, 820
COLORS = 96


class Picture(NamedTuple):
    """What a picture shows.

    Attributes:
        world: trained with the configuration that ships with it.
        frames: of training.
        address: episode, step and entity.
        keys: to type on the page.
    """

    world: str
    frames: int
    address: str
    keys: str = ""


PICTURES = [
    Picture("TreasureHunt", 100_000, "#e=1&s=12&i=10", "i"),
    Picture("Minefield", 400_000, "#e=1&s=6&i=0", "at"),
    Picture("Duel", 200_000, "#e=1&s=2&i=0"),
]


def main() -> None:
    """Train, watch and take the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for one in PICTURES:
        run, page = folder / one.world, folder / f"{one.world}.html"
        if not run.exists():
            settings = [f"total_timesteps={one.frames}", "--checkpoint-dir", str(run)]
            subprocess.run([*ENN, "train", one.world, *settings], check=True)
        subprocess.run([*ENN, "watch", str(run), "--out", str(page)], check=True)
    with sync_playwright() as started:
        path = shutil.which("chromium")
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for one in PICTURES:
            look(browser, one, folder, "light")
            look(browser, one, folder, "dark")
        browser.close()


def look(browser: Browser, one: Picture, folder: Path, theme: Literal["light", "dark"]) -> None:
    """Take a picture of a page."""
    size: ViewportSize = {"width": WIDTH, "height": HEIGHT}
    context = browser.new_context(viewport=size, color_scheme=theme, offline=True)
    page = context.new_page()
    page.goto(f"{(folder / f'{one.world}.html').absolute().as_uri()}{one.address}")
    page.wait_for_selector("html[data-read]")
    for key in one.keys:
        page.keyboard.press(key)
    page.wait_for_timeout(500)
    taken = Image.open(BytesIO(page.screenshot())).convert("RGB").quantize(COLORS)
    taken.save(DOCS / f"watching-{one.world.lower()}-{theme}.png", optimize=True)
    context.close()


if __name__ == "__main__":
    main()
