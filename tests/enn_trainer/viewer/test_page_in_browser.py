"""The page in Chromium, without a network: it loads, plays, obeys its keys and says the truth."""

import base64
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer.cli import run
from enn_trainer.viewer.replay import Replay, ReplayEpisode
from enn_trainer.viewer.replay_format import write_replay
from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityView,
    Environment,
    EnvList,
    Observation,
    ObsSpace,
    View,
)
from entity_env.examples import (
    Duel,
    Minefield,
    MineSweeper,
    MultiSnake,
    RockPaperScissors,
    TreasureHunt,
)
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from entity_env.testing.random_play import random_choices
from tests.enn_trainer.viewer.replays import NAMES, played, small_replay
from tests.enn_trainer.viewer.tabs import Tab
from tests.entity_env.adapters.foragers import FORAGERS

pytestmark = pytest.mark.slow
WORLDS = [Duel, Minefield, MineSweeper, MultiSnake, RockPaperScissors, TreasureHunt]


@pytest.mark.parametrize("world", WORLDS)
def test_page_shows_the_agents_numbers_of_an_entity(
    browser: Any, world: Any, tmp_path: Path
) -> None:
    replay = played(world, 70, 2)
    path = write_replay(replay, tmp_path / "replay.html").path
    episode = replay.episodes[0]
    steps = len(episode.obs) // replay.sides
    with Tab(browser, path) as tab:
        for step in {0, steps // 2, steps - 1}:
            frame = step * replay.sides
            count = sum(episode.obs.features[t].lengths[frame] for t in replay.obs_space.entities)
            for position in range(min(count, 3)):
                tab.go(f"#e=1&s={step}&i={position}", step=step, selected=position)
                check_entity(tab, replay, episode, frame, position)


def check_entity(
    tab: Tab, replay: Replay, episode: ReplayEpisode, frame: int, position: int
) -> None:
    """Compare the inspector with the arrays of the replay."""
    row, name = position, ""
    for name in replay.obs_space.entities:
        count = int(episode.obs.features[name].lengths[frame])
        if row < count:
            features = episode.obs.features[name][frame].values[row]
            assert tab.numbers("#inspector [data-feature]", "data-value") == features.tolist()
            break
        row -= count
    answers = {"data-probability": episode.answers, "data-beside": episode.beside}
    for action in replay.action_space:
        mask = episode.obs.action_masks[action]
        actors = mask.actors[frame].values.tolist()
        if position not in actors:
            continue
        for attribute, of in answers.items():
            assert of is not None
            probs = of.probs[action][frame].values.reshape(len(actors), -1)
            table = f'#inspector [data-action="{action}"] tr'
            shown = tab.numbers(f"{table}[{attribute}]", attribute)
            assert sorted(shown) == sorted(probs[actors.index(position)].tolist())
            index = episode.chosen[action][frame].values[actors.index(position)]
            [chosen] = tab.numbers(f"{table}[data-chosen]", attribute)
            assert chosen == probs[actors.index(position), index]
    for selector, value in {"value": episode.answers.values, "reward": episode.obs.reward}.items():
        [shown_value] = tab.numbers(f'#inspector [data-number="{selector}"]', "data-value")
        assert shown_value == value[frame]


def test_every_key_works(browser: Any, tmp_path: Path) -> None:
    replay = played(Minefield, 70, 3)
    path = write_replay(replay, tmp_path / "replay.html").path
    last = len(replay.episodes[0].obs) - 1
    with Tab(browser, path) as tab:
        tab.press("ArrowRight", step=1)
        tab.press("Shift+ArrowRight", step=11)
        tab.press("ArrowLeft", step=10)
        tab.press("End", step=last)
        tab.press("Home", step=0)
        tab.press("j", selected=0)
        tab.press("j", selected=1)
        tab.press("k", selected=0)
        tab.press("Escape", selected="")
        tab.press("e", episode=1)
        tab.press("Shift+E", episode=0)
        tab.press("n", step=replay.moments[0].step)
        for name in ("attention", "influence", "trails", "labels", "follow"):
            tab.press(name[0])
            assert tab.page.is_checked(f"#{name}")
        for key in "+-0":
            tab.press(key)
        tab.press("v", table="both")
        tab.press("v")
        tab.press("d", theme="dark")
        tab.press("d", theme="light")
        tab.press("]")
        assert tab.page.input_value("#speed") == "5"
        tab.press("Home", step=0)
        tab.press(" ", playing="true")
        tab.press(" ", playing="false") if last > 30 else tab.wait(playing="false")
        tab.press("?")
        assert tab.page.is_visible("#keys")
        keys = tab.page.inner_text("#keys")
        assert all(
            key in keys for key in ["←", "[", "n", "e", "s", "j", "a", "t", "+", "v", "d", "?"]
        )
        tab.press("Escape")
        assert not tab.page.is_visible("#keys")


def test_an_episode_plays_to_its_end(browser: Any, tmp_path: Path) -> None:
    replay = played(Duel, 60, 1)
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path, "#e=1&s=0&p=2") as tab:
        tab.wait(side=1)
        tab.page.select_option("#speed", "7")
        tab.press(" ", step=len(replay.episodes[0].obs) // 2 - 1, playing="false")
        assert tab.page.evaluate("location.hash").startswith("#e=1&s=")


def test_entity_gym_recording_plays(browser: Any, tmp_path: Path) -> None:
    """Foraging, through an adapter: players and food in a frame that is one vector."""
    envs = RecordingVecEnv(EnvList(FORAGERS, 4), tmp_path / "foraging.rec")
    rng = np.random.default_rng(0)
    obs = envs.reset(envs.obs_space())
    for _ in range(120):
        obs = envs.act(random_choices(obs, envs.action_space(), rng), envs.obs_space())
    envs.close()
    page = tmp_path / "foraging.html"
    assert run(["watch", str(tmp_path / "foraging.rec"), "--out", str(page)]) == 0
    with Tab(browser, page) as tab:
        tab.go("#e=1&s=3&i=0", step=3, selected=0)
        [reward] = tab.numbers('#inspector [data-number="reward"]', "data-value")
        episode = next(Recording.open(tmp_path / "foraging.rec").episodes())
        assert reward == episode.rewards[3]
        features = episode.decisions.obs.features
        first = next(rows for rows in features.values() if rows.lengths[3])
        shown = tab.numbers("#inspector [data-feature]", "data-value")
        assert shown == first[3].values[0].tolist()
        tab.press("End", step=len(episode.rewards) - 1)


def test_text_of_an_environment_is_not_executed(browser: Any, tmp_path: Path) -> None:
    replay = small_replay(20, 1)
    replay.title = NAMES[1]
    replay.about = dict(zip(NAMES, NAMES, strict=True))
    for episode in replay.episodes:
        for names in episode.names[0].values():
            names.update({i: NAMES[i % len(NAMES)] for i in range(8)})
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path) as tab:
        assert tab.page.title() == NAMES[1]
        for position in range(6):
            tab.go(f"#e=1&s=3&i={position}", selected=position)
        assert tab.page.eval_on_selector_all("img", "all => all.map(one => one.id)") == ["picture"]
        text = tab.page.inner_text("#about-part summary")
        assert "about" in text


def test_unseen_features_are_marked(browser: Any, tmp_path: Path) -> None:
    replay = small_replay(3, 1)
    replay.unseen = {"agent": [(0, None), (1, [0]), (2, [0])], "beside": [(0, [1])]}
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path, "#e=1&s=2&i=0") as tab:
        # All of a type, in the legend as well, or some of its columns.
        agents, others = "not seen by the agent", "not seen by the other agent"
        assert agents in tab.page.inner_text("#inspector h2")
        assert agents in tab.page.inner_text("#legend")
        rows = tab.page.locator("#inspector .features tbody tr").all_inner_texts()
        assert [(agents in row, others in row) for row in rows] == [(False, False), (False, True)]
        tab.go("#e=1&s=2&i=5", selected=5)
        assert agents not in tab.page.inner_text("#inspector h2")
        assert agents in tab.page.inner_text("#inspector .features")

        # A global feature, which is shown where no entity is chosen.
        tab.press("Escape", selected="")
        assert tab.page.inner_text("#inspector h2") == "global"
        row = tab.page.locator('#inspector [data-feature="time"]').inner_text()
        assert (agents in row, others in row) == (True, False)


def test_subsampled_steps_keep_their_numbers(browser: Any, tmp_path: Path) -> None:
    replay = small_replay(30, 1)
    replay.episodes[0].steps = 4 * np.arange(1, 31)
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path, "#e=1&s=9") as tab:
        assert tab.page.inner_text("#step") == "step 40 (10 of 30 kept)"
        text = tab.page.evaluate("document.getElementById('slider').ariaValueText")
        assert text == "step 40 (10 of 30 kept)"
        assert "step 40 " in (tab.page.get_attribute("#canvas", "aria-label") or "")
        assert tab.page.inner_text("#curves .u-legend .u-value >> nth=0") == "40"
        assert "step 12" in tab.page.inner_text("#moments")  # the one of the frame at 2

        # The rewards between the steps are not known, so no return is.
        for name in ("return", "value-error"):
            shown = tab.page.locator(f'[data-number="{name}"]')
            assert shown.inner_text() == "\N{EN DASH}"
            assert "steps are missing" in (shown.get_attribute("title") or "")

        # The axis of the curves has the numbers, addresses count frames.
        box = tab.page.locator("#curves .u-over").bounding_box()
        for number, frame in ((4, 0), (64, 15), (120, 29)):
            x = box["x"] + 3 + (box["width"] - 6) * (number - 4) / (120 - 4)
            tab.page.mouse.click(x, box["y"] + 20)
            tab.wait(step=frame)
            assert tab.page.evaluate("location.hash") == f"#e=1&s={frame}"


@pytest.mark.parametrize("size", [(1100, 820), (1366, 650)])
def test_scene_fills_the_available_space(
    browser: Any, size: tuple[int, int], tmp_path: Path
) -> None:
    path = write_replay(played(Minefield, 30, 1), tmp_path / "replay.html").path
    viewport = dict(zip(("width", "height"), size, strict=True))
    height = "id => document.getElementById(id).clientHeight"
    with Tab(browser, path, "#e=1&s=3&i=0", viewport=viewport) as tab:
        folded = tab.page.evaluate(height, "canvas")
        tab.page.click("#list-part summary")
        tab.page.wait_for_selector("#list tr")
        tab.press("a")  # more controls above the scene
        canvas, entities = (tab.page.evaluate(height, one) for one in ("canvas", "list-part"))
        assert folded > canvas >= 0.45 * size[1]
        assert entities >= 80
        page = "document.documentElement"
        assert tab.page.evaluate(f"{page}.scrollHeight <= innerHeight")
        bottom = "document.querySelector('main').getBoundingClientRect().bottom"
        assert tab.page.evaluate(f"{bottom} <= document.getElementById('play').offsetTop")


def test_damaged_chunk_is_reported_and_the_rest_plays(browser: Any, tmp_path: Path) -> None:
    path = write_replay(small_replay(200, 1), tmp_path / "replay.html").path
    page = path.read_bytes()
    place = [m.start(1) for m in re.finditer(rb'data-block="\d+" data-crc="\w+">(\w)', page)][1]
    path.write_bytes(page[:place] + (b"B" if page[place] == ord("A") else b"A") + page[place + 1 :])
    with Tab(browser, path) as tab:
        assert "chunk 1 is damaged" in tab.page.inner_text("#problem")
        tab.go("#e=1&s=70", step=70)
        assert tab.page.is_visible("#gap")
        tab.go("#e=1&s=150", step=150)
        assert not tab.page.is_visible("#gap")
        assert tab.page.query_selector("#inspector dl")

    # Cut off in the middle.
    path.write_bytes(page[: place + 10])
    with Tab(browser, path) as tab:
        assert "chunk 1, chunk 2, chunk 3 are damaged" in tab.page.inner_text("#problem")
        tab.press("ArrowRight", step=1)


def test_browser_without_decompression_shows_an_error(browser: Any, tmp_path: Path) -> None:
    path = write_replay(small_replay(2, 1), tmp_path / "replay.html").path
    page = browser.new_context(offline=True).new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(f"file://{path}")
    page.wait_for_selector('html[data-state="failed"]')
    assert "DecompressionStream" in page.inner_text("#problem")
    page.context.close()


def test_non_finite_numbers_are_displayed(browser: Any, tmp_path: Path) -> None:
    replay = small_replay(3, 1)
    values = replay.episodes[0].obs.features["A"].values
    values[:5] = [[np.nan, 1], [np.inf, 2], [-np.inf, 3], [0, -0.0], [1e-42, 3e38]]
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path) as tab:
        for position in range(5):
            tab.go(f"#e=1&s=0&i={position}", selected=position)
            shown = tab.numbers("#inspector [data-feature]", "data-value")
            np.testing.assert_array_equal(np.array(shown, np.float32), values[position])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_at_200_percent(browser: Any, scheme: Any, tmp_path: Path) -> None:
    path = write_replay(played(Minefield, 30, 1), tmp_path / "replay.html").path
    half = {"width": 640, "height": 400}
    with Tab(browser, path, "#e=1&s=3&i=0", color_scheme=scheme, viewport=half) as tab:
        width, inner = tab.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert width <= inner
        colors = json.loads(tab.page.evaluate(CONTRAST))
        assert all(ratio >= 4.5 for ratio in colors.values()), colors


CONTRAST = """(() => {
  const style = getComputedStyle(document.documentElement);
  const light = name => {
    const probe = document.createElement("canvas").getContext("2d");
    probe.fillStyle = style.getPropertyValue(`--${name}`).trim();
    const parts = [1, 3, 5].map(i => parseInt(probe.fillStyle.slice(i, i + 2), 16) / 255);
    const [r, g, b] = parts.map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const ratio = (a, b) => Math.max(light(a), light(b)) / Math.min(light(a), light(b));
  const pairs = [["ink", "paper"], ["ink", "panel"], ["faint", "paper"], ["faint", "panel"],
    ["ink", "changed"], ["ink", "bar"], ["accent", "panel"]];
  return JSON.stringify(Object.fromEntries(pairs.map(([a, b]) => [`${a} on ${b}`, ratio(a, b)])));
})()"""


def test_pictures_and_choices_by_hand_are_displayed(browser: Any, tmp_path: Path) -> None:
    replay = small_replay(3, 1)
    episode = replay.episodes[0]
    episode.pictures = {1: PICTURE}
    episode.by_hand = {name: np.ones(len(c.values), np.bool_) for name, c in episode.chosen.items()}
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path, "#e=1&s=1&i=0") as tab:
        tab.page.wait_for_function("document.getElementById('picture').naturalWidth === 1")
        assert "chosen by a person" in tab.page.inner_text("#inspector")
        tab.page.click("#list-part summary")
        tab.page.wait_for_selector("#list tr")
        assert "(by hand)" in tab.page.inner_text("#list")
        tab.press("ArrowRight", step=2)
        assert not tab.page.is_visible("#picture")


PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNkYAAAAAYAAjCB0C8AAAAASUVORK5CYII="
)


def test_click_in_the_scene_selects_an_entity(browser: Any, tmp_path: Path) -> None:
    replay = played(TreasureHunt, 5, 1)
    replay.view = {"bounds": [[-5, 5], [-5, 5]]}
    path = write_replay(replay, tmp_path / "replay.html").path
    places = replay.episodes[0].obs.features["Trap"][0].values
    with Tab(browser, path) as tab:
        box = tab.page.locator("#canvas").bounding_box()
        scale = min(box["width"], box["height"]) / 2 - 28  # the margin
        for position, (x, y) in enumerate(places):
            at = box["width"] / 2 + x * scale / 5, box["height"] / 2 - y * scale / 5
            tab.page.mouse.click(box["x"] + at[0], box["y"] + at[1])
            tab.wait(selected=position)
        tab.page.mouse.click(box["x"] + 3, box["y"] + box["height"] / 2)
        tab.wait(selected="")


class Drones(Environment):
    """Two drones in a room, which stay where they are."""

    places = ((-3, 2, 4), (3, -2, -4))

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Drone": Entity(["x", "y", "z"])})

    def action_space(self) -> dict[str, Any]:
        return {"fly": CategoricalActionSpace(["on"])}

    def reset(self) -> Observation:
        return Observation(
            features={"Drone": np.array(self.places, np.float32)},
            actions={"fly": CategoricalActionMask(actor_types=["Drone"])},
            reward=0.0,
        )

    def act(self, actions: Any) -> Observation:
        return self.reset()


def test_three_position_features_have_two_views(browser: Any, tmp_path: Path) -> None:
    """Seen from above on the left, and from the front on the right."""
    replay = played(Drones, 5, 1)
    room = (-5.0, 5.0)
    replay.view = asdict(View({"Drone": EntityView(("x", "y", "z"))}, (room, room, room)))
    path = write_replay(replay, tmp_path / "replay.html").path
    with Tab(browser, path) as tab:
        box = tab.page.locator("#canvas").bounding_box()
        width, height = box["width"] / 2, box["height"]
        scale = (min(width, height) / 2 - 28) / 5  # the margin
        for pane, axis in ((0, 1), (1, 2)):
            for position, place in enumerate(Drones.places):
                x = (pane + 0.5) * width + place[0] * scale
                y = height / 2 - place[axis] * scale
                tab.page.mouse.click(box["x"] + x, box["y"] + y)
                tab.wait(selected=position)
            tab.press("Escape", selected="")


def test_the_list_can_be_sorted(browser: Any, tmp_path: Path) -> None:
    replay = played(TreasureHunt, 5, 1)
    path = write_replay(replay, tmp_path / "replay.html").path
    column = replay.episodes[0].obs.features["Trap"][0].values[:, 0].tolist()
    with Tab(browser, path) as tab:
        tab.page.click("#list-part summary")
        for order in (sorted(column), sorted(column, reverse=True)):
            tab.page.locator("#list table").first.get_by_role("button", name="x_pos").click()
            tab.page.wait_for_selector("th[aria-sort]")
            tab.page.wait_for_timeout(100)
            cells = "#list table:first-child tbody td:nth-child(2)"
            assert tab.numbers(cells, "data-value") == order
