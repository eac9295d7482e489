"""The documentation builds without a warning, from its pages and from the code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs.generate import api
from tests.enn_trainer.viewer.tabs import VIEWPORTS

ROOT = Path(__file__).parent.parent
CUT_OFF = """() => [...document.querySelectorAll("table.settings td:last-child")].filter(cell => {
    const edges = cell.getBoundingClientRect(), page = document.documentElement.clientWidth;
    const wrapper = cell.closest(".table-wrapper");
    return edges.width < 100 || edges.right > page || wrapper.scrollWidth > wrapper.clientWidth;
}).map(cell => cell.textContent)"""
"""Script that returns the descriptions of settings that are narrow or beyond an edge."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site, also without a network: `-n` makes an unknown name of ours a warning."""
    site = tmp_path_factory.mktemp("docs") / "site"
    command = ["sphinx", "-q", "-W", "--keep-going", "-n", "-E", "docs", str(site)]
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, timeout=880, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
@pytest.mark.timeout(900)  # half a minute of processor time, beside other processes
def test_site_builds_without_warnings(site: Path) -> None:
    assert (site / "search.html").exists()
    assert "SelectEntityActionMask" in (site / "searchindex.js").read_text()
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]*)', page.read_text()
        )
        assert not loaded, page


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_landing_page_shows_the_film_and_pictures_of_each_mode(
    mode: str, site: Path, browser: Any
) -> None:
    page = browser.new_page(color_scheme=mode)
    page.goto((site / "index.html").as_uri())
    sources = page.eval_on_selector_all(
        "article img", "all => all.filter(i => i.offsetWidth && i.naturalWidth).map(i => i.src)"
    )
    pictures = [f"watching-{name}-{mode}.png" for name in ("treasurehunt", "minefield", "duel")]
    assert [Path(source).name for source in sources] == ["minefield.gif", *pictures]
    page.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("viewport", VIEWPORTS, ids=lambda viewport: str(viewport["width"]))
def test_descriptions_of_settings_are_within_the_page(
    viewport: dict[str, int], site: Path, browser: Any
) -> None:
    page = browser.new_page(viewport=viewport)
    page.goto((site / "reference/generated/settings.html").as_uri())
    assert page.locator("table.settings td:last-child").count() > 100
    assert page.evaluate(CUT_OFF) == []
    page.close()


def test_api_index_has_a_line_for_each_module() -> None:
    index = dict(api.pages(ROOT))["api/index.md"]
    lines = re.findall(r"^\| {py:mod}`([\w.]+)` \| \S.*\. \|$", index, re.MULTILINE)
    paths = [path for package in api.PACKAGES for path in (ROOT / package).rglob("[a-z]*.py")]
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert sorted(lines) == sorted(names)
    assert re.search(r"^## \[rogue_net.relpos\].*\n\n\S", index, re.MULTILINE)
