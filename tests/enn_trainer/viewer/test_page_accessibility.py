"""The page breaks no rule of WCAG 2.2 AA that axe can check."""

from pathlib import Path
from typing import Any

import pytest

from enn_trainer.viewer.replay_format import write_replay
from entity_env.examples import Duel, Minefield
from tests.enn_trainer.viewer.live_tabs import LiveTab, served
from tests.enn_trainer.viewer.replays import played
from tests.enn_trainer.viewer.tabs import Tab

pytestmark = pytest.mark.slow
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


@pytest.fixture(scope="session")
def axe(page_sources: Path) -> str:
    return (page_sources / "node_modules/axe-core/axe.min.js").read_text()


def violations(tab: Tab, axe: str) -> list[str]:
    """Return what axe finds wrong, each with the first element."""
    tab.page.evaluate(axe)
    found = tab.page.evaluate("rules => axe.run({ runOnly: rules })", RULES)
    assert len(found["passes"]) > 10  # it looked at something
    return [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("world", [Duel, Minefield])
def test_page_of_a_file(world: Any, theme: str, browser: Any, axe: str, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    write_replay(played(world, 20, 1), path)
    with Tab(browser, path, color_scheme=theme, bypass_csp=True) as tab:
        assert violations(tab, axe) == []
        tab.go("#e=1&s=3&i=0", selected=0)
        tab.press("a")
        tab.press("i")
        assert violations(tab, axe) == []
        tab.page.keyboard.press("?")
        assert violations(tab, axe) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_live_page(theme: str, browser: Any, axe: str, duel_run: Path) -> None:
    options = {"color_scheme": theme, "bypass_csp": True}
    with served(duel_run) as (address, _), LiveTab(browser, address, **options).begun() as tab:
        assert violations(tab, axe) == []
        tab.page.keyboard.press("H")
        tab.wait_for_turn()
        assert violations(tab, axe) == []


def test_axe_detects_violations(browser: Any, axe: str, tmp_path: Path) -> None:
    path = tmp_path / "replay.html"
    write_replay(played(Duel, 3, 1), path)
    with Tab(browser, path, bypass_csp=True) as tab:
        tab.page.evaluate("document.body.append(document.createElement('button'))")
        assert any(one.startswith("button-name") for one in violations(tab, axe))
