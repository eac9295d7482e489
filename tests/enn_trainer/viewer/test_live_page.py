"""The page of a running world in Chromium, served by `enn serve`: a person plays in it."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from entity_env.examples import TreasureHunt
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.viewer.live_tabs import LiveTab, served
from tests.enn_trainer.viewer.tabs import TIMEOUT_MS, VIEWPORTS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def duel(duel_run: Path) -> Iterator[str]:
    with served(duel_run) as (address, _):
        yield address


@pytest.fixture(scope="module")
def hunt_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hunt")
    run_small(folder, "env.id=TreasureHunt", env=TreasureHunt, checkpoint_dir=folder / "run")
    return folder / "run"


def test_place_is_taken_and_released_while_another_tab_is_read_only(
    browser: Any, duel: str
) -> None:
    with LiveTab(browser, duel) as mine, LiveTab(browser, duel) as other:
        mine.begun()
        other.begun()
        mine.wait_past(mine.step())

        # The world waits for each actor of the side.
        mine.press("Shift+H")
        mine.wait_for_turn()
        other.wait_for("Another tab has taken places.", "#places")
        before = (-1, -1)
        while mine.step()[0] != before[0]:  # again if that step ended its episode
            before = mine.step()
            for left in range(mine.without_choice(), 0, -1):
                mine.wait_for(f"({left} without a choice)", "#turn-text")
                mine.press("1")
            mine.wait_past(before)
            mine.wait_for_turn()
            other.wait_past(before)

        # The step that is past says who chose.
        mine.press("ArrowLeft", step=before[1], newest="false")
        assert "chosen by a person" in mine.page.inner_text("#inspector")
        mine.press(".", newest="true")
        mine.wait_for_turn()

        # The other tab can neither take nor pause.
        other.press("Shift+H")
        other.wait_for("another tab controls the places", "#problem")

        # Given back, the game goes on.
        waiting = mine.step()
        mine.press("Shift+H")
        mine.wait_past(waiting)
        assert not mine.page.is_visible("#turn")
        assert not mine.page.is_visible("#places")


def test_single_actor_is_taken_with_a_click_and_left_to_the_agent(browser: Any, duel: str) -> None:
    with LiveTab(browser, duel) as tab:
        tab.begun()
        tab.press("j", selected=0)
        tab.page.click("#take-actor")
        tab.wait_for_turn()
        assert tab.page.inner_text("#take-actor").startswith("give back ")

        # A target is chosen in the list; after it, or the agent's choice, comes the next step.
        for choose in ("#list tr:has(.tag.chosen) button", "#leave", "#menu button"):
            before = tab.step()
            tab.page.locator(choose).first.click()
            tab.wait_past(before)
            tab.wait_for_turn()
        tab.page.click("#take-actor")
        tab.wait_past(tab.step())


def test_advice_is_hidden_until_the_choice(browser: Any, duel: str) -> None:
    with LiveTab(browser, duel) as tab:
        tab.begun()
        tab.press("Shift+H")
        tab.wait_for_turn()
        while "(1 without" in tab.page.inner_text("#turn-text"):  # until two actors wait
            before = tab.step()
            tab.press("g")
            tab.wait_past(before)
            tab.wait_for_turn()

        # Nothing is chosen yet, and nothing has come of it.
        choices, advised = "#inspector .choices", "#inspector tr[data-advised]"
        assert "%" in tab.page.inner_text(choices)
        assert "advised" in tab.page.inner_text(advised)
        assert "chosen" not in tab.page.inner_text(choices)
        assert "(advised)" in tab.page.inner_text("#list")
        for name in ("return", "value-error", "reward"):
            number = tab.page.locator(f'[data-number="{name}"]')
            assert (number.inner_text(), number.get_attribute("title")) == (
                "\N{EN DASH}",
                "not yet known",
            )

        # Until there is a choice there is no advice.
        tab.page.select_option("#advice", "after")
        assert "%" not in tab.page.inner_text(choices)
        assert "advised" not in tab.page.inner_text(choices)
        assert "attack: ?" in tab.page.inner_text("#list")
        first = tab.state("selected")
        tab.page.locator("#menu button").last.click()
        tab.wait_for("you chose", "#comparison")
        text = tab.page.inner_text("#comparison")
        found = re.search(r"you chose (.+) \(\d+\.\d%\), the agent (.+) \(\d+\.\d%\)", text)
        assert found is not None, text

        # Back at the actor: what the person chose is chosen, beside what the agent advises.
        tab.page.wait_for_selector(f'html:not([data-selected="{first}"])')
        tab.press("k", selected=first)
        for row, label in zip(("tr[data-chosen]", "tr[data-advised]"), found.groups(), strict=True):
            assert tab.page.get_attribute(f"#inspector {row}", "data-choice") == label
        assert "chosen by a person" in tab.page.inner_text(choices)
        tab.page.select_option("#advice", "hidden")
        assert tab.page.locator(advised).count() == 0
        assert tab.page.locator("#inspector tr[data-chosen]").count() == 1
        tab.press("Shift+H")


def test_edited_frame_is_compared_with_the_original(browser: Any, duel: str) -> None:
    with LiveTab(browser, duel) as tab:
        tab.begun()
        tab.press("Shift+H")
        tab.wait_for_turn()
        tab.press("w", changes="0")
        real = tab.numbers("#inspector [data-probability]", "data-probability")
        [value] = tab.numbers('[data-number="value"]', "data-value")
        number = tab.page.locator("#inspector input").first
        was = number.input_value()

        # The same number is the same frame.
        number.fill(was)
        number.dispatch_event("change")
        tab.wait(changes=1)
        tab.wait_for("what if", "#inspector .choices")
        tab.page.wait_for_selector('[data-beside]:not([data-beside="NaN"])')
        assert tab.numbers("[data-beside]", "data-beside") == pytest.approx(real, abs=1e-5)
        [beside] = tab.numbers('[data-number="beside-value"]', "data-value")
        assert beside == pytest.approx(value, abs=1e-5)

        # Another one is not; the focus stays where it is.
        shown = '[data-number="beside-value"]'
        answer = tab.page.get_attribute(shown, "data-value")
        number.fill("300")
        tab.page.keyboard.press("Tab")
        tab.wait_for_other(shown, "data-value", answer)
        assert tab.page.evaluate("document.activeElement.tagName") == "INPUT"
        assert "changed" in (tab.page.get_attribute("#inspector .features tbody tr", "class") or "")

        # Hidden, removed, and back.
        tab.page.get_by_role("button", name="hide").click()
        tab.wait(changes=2)
        assert "hidden from the policy" in tab.page.inner_text("#inspector")
        tab.page.get_by_role("button", name="remove").click()
        tab.wait(changes=3)
        tab.page.get_by_role("button", name="remove").click()
        tab.wait(changes=2)
        tab.page.click("#what-if")
        tab.wait(changes="")
        assert tab.numbers("#inspector [data-probability]", "data-probability") == real
        tab.press("Shift+H")


def test_entities_are_dragged_and_attention_is_requested(browser: Any, hunt_run: Path) -> None:
    with served(hunt_run) as (address, _), LiveTab(browser, address) as tab:
        tab.begun()
        tab.press("Shift+H")
        tab.wait_for_turn()
        tab.press("a")
        tab.press("i")
        for name in ("attention", "influence"):
            tab.page.wait_for_selector(f"#inspector .{name} tbody tr")

        tab.press("j", selected=0)
        tab.press("f")
        tab.press("w", changes="0")
        before = tab.numbers("#inspector [data-feature]", "data-value")
        box = tab.page.locator("#canvas").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        tab.page.mouse.move(x, y)
        tab.page.mouse.down()
        tab.page.mouse.move(x + 150, y, steps=5)
        tab.page.mouse.up()
        tab.wait(changes=1)
        after = tab.numbers("#inspector [data-feature]", "data-value")
        assert after[0] > before[0]
        assert after[1:] == before[1:]
        tab.page.wait_for_selector('[data-number="beside-value"]:not([data-value="NaN"])')


@pytest.fixture(scope="module")
def hunt(hunt_run: Path) -> Iterator[str]:
    with served(hunt_run) as (address, _):
        yield address


def wait_for_curves(tab: LiveTab) -> None:
    """Wait until the curves have the step that is shown, which are drawn less often than it."""
    code = "step => document.querySelector('#curves .u-value').textContent === step"
    tab.page.wait_for_function(code, arg=tab.state("step"), timeout=TIMEOUT_MS)


@pytest.mark.parametrize("viewport", VIEWPORTS, ids=str)
def test_the_scene_of_a_taken_side_is_sharp_and_clicks_hit(
    browser: Any, hunt: str, viewport: Any
) -> None:
    with LiveTab(browser, hunt, viewport=viewport).begun() as tab:
        tab.press("Shift+H")
        tab.wait_for_turn()
        wait_for_curves(tab)
        assert tab.drawn_size() == tab.shown_size()

        # The actor is put in the middle, and all is drawn again in other colours.
        actor = tab.state("selected")
        tab.press("f")
        tab.press("Escape", selected="")
        tab.press("d", theme="dark")
        assert tab.drawn_size() == tab.shown_size()
        box = tab.page.locator("#canvas").bounding_box()
        tab.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tab.wait(selected=actor)
        tab.press("Shift+H")


def test_unknown_returns_of_a_running_episode_are_dashes(browser: Any, hunt: str) -> None:
    dash = "\N{EN DASH}"
    with LiveTab(browser, hunt).begun() as tab:
        tab.press("Shift+H")
        tab.wait_for_turn()
        wait_for_curves(tab)
        parts = (tab.page.locator(f"#curves .u-{part}") for part in ("label", "value"))
        values = dict(zip(*(part.all_text_contents() for part in parts), strict=True))
        for name in ("return to go", "return so far", "reward"):
            assert values[name] == dash, values
        assert values["value"] != dash

        # Of a step before it the reward is known.
        while not (before := tab.step())[1]:
            tab.press("g")
            tab.wait_past(before)
            tab.wait_for_turn()
        tab.press("ArrowLeft", newest="false")
        for name, is_known in (("return", False), ("value-error", False), ("reward", True)):
            assert (tab.page.inner_text(f'[data-number="{name}"]') != dash) == is_known, name
        tab.press("Shift+H")


def test_rate_can_be_changed_and_the_game_paused(browser: Any, duel: str) -> None:
    with LiveTab(browser, duel) as tab:
        tab.begun()
        tab.press(" ", paused="true", newest="true")
        before = tab.step()
        tab.page.wait_for_timeout(300)
        assert tab.step() == before
        tab.page.fill("#fps", "30")
        tab.page.keyboard.press("Enter")
        tab.page.keyboard.press("Escape")
        tab.press(" ", paused="false")
        tab.wait_past(before)

        # With a pace the game does not wait for a person.
        tab.press("Shift+H")
        tab.wait_past(tab.step())
        tab.press("Shift+H")
        tab.page.fill("#fps", "")
        tab.page.keyboard.press("Enter")


def test_wrong_token_is_rejected_and_the_end_is_reported(browser: Any, duel_run: Path) -> None:
    with served(duel_run) as (address, server):
        with LiveTab(browser, address[:-1]) as stranger:
            stranger.wait_for("expected the token of the address", "#problem")
            assert stranger.page.inner_text("#inspector") == ""
        with LiveTab(browser, address) as tab:
            tab.begun()
            tab.wait_past(tab.step())
            assert tab.page.evaluate("location.hash") == address[address.index("#") :]
            server.send_signal(signal.SIGINT)
            tab.wait_for("the server has ended; what was seen stays", "#problem")
            tab.press("Home", step=0)
            assert tab.page.query_selector("#inspector dl")
            for key in ("h", "Shift+H", "g", "1", "a", "w"):  # nobody is there to be asked
                tab.press(key)
            tab.press(".")
            tab.press(" ")
            tab.press("Home", step=0)
            assert "the server has ended" in tab.page.inner_text("#problem")


def test_side_can_be_taken_before_the_first_frame(browser: Any, duel: str) -> None:
    def without_steps(socket: Any) -> None:
        server = socket.connect_to_server()
        server.on_message(lambda text: json.loads(text)["type"] == "steps" or socket.send(text))

    with LiveTab(browser, duel).begun() as tab:
        tab.page.route_web_socket("**/*", without_steps)
        tab.page.reload()
        tab.wait_for_welcome()
        assert tab.page.is_visible("#gap"), "there is a frame"
        tab.page.click("#take-side")
        tab.wait_for_turn()
