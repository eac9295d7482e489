"""The scene fills its place on the page at every width, and the controls stay in reach."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer.viewer.replay import Highlight
from enn_trainer.viewer.replay_format import write_replay
from entity_env import CategoricalActionMask, CategoricalActionSpace, Entity, Environment
from entity_env.observation import Observation, ObsSpace
from tests.enn_trainer.viewer.replays import played
from tests.enn_trainer.viewer.tabs import VIEWPORTS, Tab

pytestmark = pytest.mark.slow

# A second episode, and a moment in it.
CHANGES = ["#episode", "#moments a >> nth=1"]


class Room(Environment):
    """Balls in the corners of a room, bats on its vertical axis, and gates on the other one."""

    balls: tuple[tuple[int, int], ...] = ((-4, -4), (4, -4), (4, 4), (-4, 4))
    bats, gates = ((-3,), (3,)), ((-2,), (2,))
    places = (*balls, (0, -3), (0, 3), (-2, 0), (2, 0))

    def obs_space(self) -> ObsSpace:
        types = {"Ball": Entity(["x", "y"]), "Bat": Entity(["y"]), "Gate": Entity(["x"])}
        return ObsSpace(entities=types)

    def action_space(self) -> dict[str, Any]:
        return {"push": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        features = {"Ball": self.balls, "Bat": self.bats, "Gate": self.gates}
        return Observation(
            features={name: np.array(rows, np.float32) for name, rows in features.items()},
            actions={"push": CategoricalActionMask(actor_types=["Ball"])},
            reward=0.0,
        )

    def act(self, actions: Any) -> Observation:
        return self.reset()


class Crowd(Room):
    """Thirty balls in a row."""

    balls = tuple((i % 6, i // 6) for i in range(30))


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    replay = played(Room, 5, 2)
    replay.view = {"bounds": [[-5, 5], [-5, 5]]}
    replay.moments = [Highlight("error", e, 3, 0, None, "of the value") for e in (0, 1)]
    return write_replay(replay, tmp_path_factory.mktemp("room") / "replay.html").path


def change_episode(tab: Tab, control: str) -> None:
    """Go to the second episode by a control of the page, and back to the scene."""
    if control == "#episode":
        tab.page.select_option(control, "1")
    else:
        tab.page.click(control)
    tab.wait(episode=1, read=1)
    tab.page.evaluate("document.activeElement.blur(), scrollTo(0, 0)")


@pytest.mark.parametrize("control", CHANGES)
@pytest.mark.parametrize("viewport", VIEWPORTS, ids=str)
def test_scene_is_sharp_and_clickable_after_a_change_of_episode(
    browser: Any, room: Path, viewport: Any, control: str
) -> None:
    with Tab(browser, room, viewport=viewport) as tab:
        change_episode(tab, control)
        assert tab.drawn_size() == tab.shown_size()
        box = tab.page.locator("#canvas").bounding_box()
        scale = (min(box["width"], box["height"]) / 2 - 28) / 5  # the margin
        for position, (x, y) in enumerate(Room.places):
            at = box["width"] / 2 + x * scale, box["height"] / 2 - y * scale
            tab.page.mouse.click(box["x"] + at[0], box["y"] + at[1])
            tab.wait(selected=position)


@pytest.mark.parametrize("control", CHANGES)
@pytest.mark.parametrize("viewport", VIEWPORTS, ids=str)
def test_scene_is_equal_before_and_after_a_change_of_episode(
    browser: Any, room: Path, viewport: Any, control: str
) -> None:
    """The entities of the room stay where they are, so that its scene does."""
    with Tab(browser, room, viewport=viewport) as tab:
        scene = tab.page.locator("#canvas")
        before = scene.screenshot()
        change_episode(tab, control)
        assert scene.screenshot() == before


def test_controls_and_curves_are_accessible_on_a_narrow_screen(browser: Any, room: Path) -> None:
    height = VIEWPORTS[0]["height"]
    with Tab(browser, room, "#e=1&s=0&i=0", viewport=VIEWPORTS[0]) as tab:
        end = tab.page.evaluate("document.documentElement.scrollHeight")
        assert end > 1.5 * height, "there is nothing to scroll"
        for top in (0, end // 2, end):
            tab.page.evaluate("top => scrollTo(0, top)", top)
            for name in ("play", "forward", "slider", "step"):
                box = tab.page.locator(f"#{name}").bounding_box()
                assert 0 <= box["y"] <= height - box["height"], f"{name} at {top}"
        box = tab.page.locator("#forward").bounding_box()
        tab.page.mouse.click(box["x"] + 2, box["y"] + 2)
        tab.wait(step=1)
        stage, curves, panel = (
            tab.page.locator(name).bounding_box()["y"]
            for name in ("#stage", "#curves", "#side-panel")
        )
        assert stage < curves < panel


def test_attention_lists_the_ten_strongest_entities(browser: Any, tmp_path: Path) -> None:
    path = write_replay(played(Crowd, 3, 1), tmp_path / "replay.html").path
    count = """() => {
      const { prototype } = CanvasRenderingContext2D, draw = prototype.quadraticCurveTo;
      window.lines = 0;
      prototype.quadraticCurveTo = function (...at) { window.lines++; draw.apply(this, at); };
    }"""
    with Tab(browser, path, "#e=1&s=1&i=8") as tab:
        tab.press("a")
        tab.page.wait_for_selector("#inspector .attention tbody tr")
        assert tab.page.locator("#inspector .attention tbody tr").count() == 10
        tab.page.evaluate(count)
        tab.press("+")  # drawn again
        assert tab.page.evaluate("lines") == 2 * 10, "from the entity and to it"


def test_page_explains_returns_and_precision(browser: Any, room: Path) -> None:
    with Tab(browser, room) as tab:
        assert tab.page.inner_text("#about-part summary") == "about: full precision"
        labels = tab.page.locator("#inspector .outcome dt").all_inner_texts()
        others = ["value", "value, other agent", "return until truncation"]
        assert labels == [*others, "value error", "reward of this step"]
