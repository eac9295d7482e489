"""`replay`: episodes of a loaded agent, in Python and in notebooks."""

import html
import random
import re
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import RogueNetAgent, load_agent, replay
from enn_trainer.cli import run
from enn_trainer.viewer import replay_agent
from enn_trainer.viewer.annotate import unseen_by
from enn_trainer.viewer.replay_format import read_replay
from entity_env import Entity, GlobalCategoricalActionSpace, Observation, ObsSpace
from entity_env.errors import InvalidView
from entity_env.examples import Duel, MineSweeper
from entity_env.spaces import Kind
from rogue_net.config import MemoryConfig, RogueNetConfig
from rogue_net.rogue_net import RogueNet
from rogue_net.wiring import Wired
from tests.enn_trainer.builders import MINES
from tests.enn_trainer.experience.fog_world import Fog
from tests.enn_trainer.viewer.replays import differences


def fresh_agent(world: Any) -> RogueNetAgent:
    """Return an agent that has learnt nothing."""
    torch.manual_seed(0)
    spaces = world.obs_space(), world.action_space()
    return RogueNetAgent(RogueNet(RogueNetConfig(d_model=16), *spaces, {"value": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--deterministic"]])
def test_episodes_are_those_that_the_command_shows(
    options: list[str], mines_run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    assert run(["watch", str(mines_run), "--seed", "3", "--out", str(page), *options]) == 0
    agent = load_agent(mines_run, deterministic=bool(options))
    shown = replay(agent, partial(MineSweeper, **MINES), seed=3)  # type: ignore[arg-type]
    assert len(shown.episodes) == 3
    for one, other in zip(shown.episodes, read_replay(page).episodes, strict=True):
        for name in ("features", "identity", "reward"):
            assert not [*differences(getattr(one.obs, name), getattr(other.obs, name))]
        for name in ("chosen", "answers", "attention", "influence", "terminated", "names"):
            assert not [*differences(getattr(one, name), getattr(other, name))]


@pytest.mark.slow
@pytest.mark.parametrize("world", [MineSweeper, Duel])
def test_replay_is_written_and_changes_nothing_else(world: Any, tmp_path: Path) -> None:
    own = world()
    agent = fresh_agent(own)

    def states() -> list[Any]:
        numbers: Any = np.random.get_state()  # noqa: NPY002 (the global one)
        return [random.getstate(), torch.get_rng_state().tolist(), numbers[1].tolist()]

    before = states()
    first = replay(agent, own, episodes=2, seed=1)
    assert states() == before
    assert len(first.episodes) == 2
    assert first.sides == (2 if world is Duel else 1)
    assert not [*differences(first, replay(agent, own, episodes=2, seed=1))]
    written = first.write(tmp_path / "a.html")
    assert written.num_episodes == 2
    assert read_replay(written.path).title == world.__name__
    own.reset()  # is not closed


def test_notebook_shows_the_page_in_a_frame_that_runs_its_script_alone(tmp_path: Path) -> None:
    shown = replay(fresh_agent(MineSweeper()), MineSweeper, episodes=1, max_steps=5)
    shown.title = '"><script>alert(1)</script>'
    found = re.fullmatch(r"<iframe ([^<>]*)></iframe>", shown._repr_html_())
    assert found
    given = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
    assert given["sandbox"] == "allow-scripts"
    page = html.unescape(given["srcdoc"]).encode()
    assert page == shown.write(tmp_path / "a.html").path.read_bytes()


def test_notebook_is_told_how_to_write_a_page_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = replay(fresh_agent(MineSweeper()), MineSweeper, episodes=1, max_steps=5)
    monkeypatch.setattr(replay_agent, "MOST_SHOWN_MB", 0.001)
    assert ".write(&#x27;replay.html&#x27;" in shown._repr_html_()
    assert "iframe" not in shown._repr_html_()


def test_what_an_agent_of_a_smaller_world_does_not_see_is_in_the_page(tmp_path: Path) -> None:
    world = MineSweeper()
    shown, actions = world.obs_space(), world.action_space()
    assert [*shown.entities] == ["Mine", "Robot", "Orbital Cannon"]
    known = ObsSpace([], {"Robot": Entity(["y"]), "Mine": shown.entities["Mine"]})
    torch.manual_seed(0)
    network = RogueNet(RogueNetConfig(d_model=16), known, actions, {"value": 1})
    smaller = RogueNetAgent(Wired(network, shown, actions))
    unseen = [(1, [0]), (2, None)]
    path = tmp_path / "a.html"

    first = replay(smaller, world, episodes=1, max_steps=5, beside=fresh_agent(world))
    assert read_replay(first.write(path).path).unseen == {"agent": unseen}
    second = replay(fresh_agent(world), world, episodes=1, max_steps=5, beside=smaller)
    assert read_replay(second.write(path).path).unseen == {"beside": unseen}
    third = replay(fresh_agent(world), world, episodes=1, max_steps=5)
    assert read_replay(third.write(path).path).unseen == {}


def test_features_of_the_frame_may_be_unseen() -> None:
    known = ObsSpace(["b"], {"A": Entity(["x"])})
    shown = ObsSpace(["a", "b", Kind("k", ["one"])], {"A": Entity(["x"])})
    space = {"go": GlobalCategoricalActionSpace(["yes", "no"])}
    network = RogueNet(RogueNetConfig(d_model=16), known, space, {"value": 1})
    assert unseen_by(Wired(network, shown, space), shown) == [(1, [0, 2])]


class Shown(Fog):
    """It keeps the observations of its sides."""

    def __init__(self) -> None:
        self.shown: list[list[Observation]] = []

    def _observe(self) -> list[Observation]:
        self.shown.append(super()._observe())
        return [copy(one) for one in self.shown[-1]]


@pytest.mark.slow
@pytest.mark.parametrize("of", ["frame", "entity", "both"])
def test_explanations_know_what_an_agent_remembered_in_each_frame(of: Any) -> None:
    """They are those of an agent that is asked as it plays, also beside another one."""
    world = Shown()
    spaces = world.obs_space(), world.action_space()
    agents = []
    for seed, settings in enumerate([MemoryConfig(of, inputs=["action", "reward"]), None]):
        torch.manual_seed(seed)
        network = RogueNet(RogueNetConfig(d_model=8, memory=settings), *spaces, {"value": 1})
        for parameter in network.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        agents.append(RogueNetAgent(network, deterministic=True))
    remembering, forgetful = agents
    own = replay(remembering, world, episodes=1, seed=3, beside=remembering)
    [episode] = own.episodes
    assert episode.beside is not None
    np.testing.assert_allclose(episode.beside.values, episode.answers.values, atol=1e-5)
    for name, rows in episode.answers.probs.items():
        np.testing.assert_allclose(episode.beside.probs[name].values, rows.values, atol=1e-5)

    # Asked for each side as it plays; later observations are those of no choice.
    shown, differs = world.shown[: len(episode.obs) // 2], 0
    assert len(shown) > 5
    sides = [RogueNetAgent(remembering.agent, deterministic=True) for _ in range(2)]
    for step, frames in enumerate(shown):
        for side, frame in enumerate(frames):
            f = 2 * step + side
            expected = sides[side].explain(frame)
            found = episode.influence[f]
            assert found.entities.tolist() == expected.influence.entities.tolist()
            np.testing.assert_allclose(found.value, expected.influence.value, atol=1e-4)
            for name, table in found.choice.items():
                np.testing.assert_allclose(table, expected.influence.choice[name], atol=1e-4)
            np.testing.assert_allclose(episode.attention[f], expected.attention, atol=1e-5)
            assert sides[side].act(frame).value == pytest.approx(
                episode.answers.values[f], rel=1e-4, abs=1e-5
            )
            alone = RogueNetAgent(remembering.agent).explain(frame).influence.value
            differs += not np.allclose(alone, found.value, atol=1e-3)
    assert differs > len(shown) / 2

    # Beside an agent that chooses otherwise, it answers to the choices that were made.
    other = replay(forgetful, world, episodes=1, beside=remembering).episodes[0]
    assert other.beside is not None
    assert not np.allclose(other.beside.values, other.answers.values, atol=1e-3)


def test_mistakes_are_named() -> None:
    agent = fresh_agent(MineSweeper())
    with pytest.raises(ValueError, match="env: expected the spaces of the agent; "):
        replay(agent, Duel)
    with pytest.raises(TypeError, match="env: expected an environment or match, its class, or"):
        replay(agent, "MineSweeper")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="what makes an Environment or a Match, got what makes int"):
        replay(agent, int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="episodes: expected 1 or more, got 0"):
        replay(agent, MineSweeper, episodes=0)
    with pytest.raises(ValueError, match="env: expected the spaces of beside; "):
        replay(agent, MineSweeper, beside=fresh_agent(Duel()))
    with pytest.raises(InvalidView, match="positions: expected features among"):
        replay(agent, MineSweeper, positions=["z"])
