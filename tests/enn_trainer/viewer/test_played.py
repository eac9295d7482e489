"""Replays of episodes as they are played: printed ids, and `replay` in Python and notebooks."""

import html
import json
import random
import re
from collections.abc import Mapping
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enn_trainer import RogueNetAgent, load_agent, replay
from enn_trainer.cli import run
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.viewer import played
from enn_trainer.viewer.moments import unseen_by
from enn_trainer.viewer.played import MAX_NAME, ReplayRecorder, ReplaySettings, printed_ids
from enn_trainer.viewer.replay_format import read_replay
from entity_env import (
    Action,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.errors import InvalidView
from entity_env.examples import Duel, MineSweeper
from entity_env.spaces import Kind
from rogue_net.config import MemoryConfig, RogueNetConfig
from rogue_net.rogue_net import RogueNet
from rogue_net.wiring import Wired
from tests.enn_trainer.builders import MINES
from tests.enn_trainer.experience.fog_world import Fog
from tests.enn_trainer.viewer.replays import differences
from tests.entity_env.clocks import Clocks

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "a\0b",
    "\ud800",
    "x" * 10**4,
    "x" * 10**4 + "y",
    1,
    "1",
    True,
    "1 #7",
    (1, "a"),
    "(1, 'a')",
    ("\udfff", (2,)),
    10**5000,
    "",
]
IDS = st.lists(
    st.sampled_from(HOSTILE) | st.text() | st.integers() | st.tuples(st.integers(), st.text()),
    max_size=12,
)


@given(ids=IDS)
@example(ids=HOSTILE)
def test_printed_ids_are_short_and_unique(ids: list[Any]) -> None:
    texts = printed_ids(ids)
    assert len(texts) == len(set(texts)) == len(ids)
    for one, text in zip(ids, texts, strict=True):
        assert len(text) <= MAX_NAME + 10 * len(ids)
        if isinstance(one, str) and len(one) <= MAX_NAME:
            assert text.startswith(one)
    assert json.loads(json.dumps(texts).encode()) == texts


class Crowd(Environment):
    """Entities of two types with the given ids; some appear later."""

    def __init__(self, ids: list[Any]) -> None:
        self.ids = ids

    def obs_space(self) -> ObsSpace:
        return ObsSpace([], {"A": Entity(["n"]), "B": Entity(["n"]), "nameless": Entity([])})

    def action_space(self) -> dict[str, Any]:
        return {"go": GlobalCategoricalActionSpace(["on", "back"])}

    def reset(self) -> Observation:
        self.step = 0
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.step += 1
        return self._observe()

    def _observe(self) -> Observation:
        shown = [*enumerate(self.ids)][: len(self.ids) // 2 + self.step]
        shown = shown[::-1] if self.step % 2 else shown
        of_types = {
            "A": [one for one in shown if one[0] % 2],
            "B": [o for o in shown if not o[0] % 2],
        }
        return Observation(
            features={name: [[n] for n, _ in rows] for name, rows in of_types.items()},
            ids={name: [one for _, one in rows] for name, rows in of_types.items()},
            actions={"go": GlobalCategoricalActionMask()},
            done=self.step == 2,
        )


@pytest.mark.slow
@settings(max_examples=15)
@given(ids=IDS)
@example(ids=HOSTILE)
def test_entities_are_named_by_their_ids(ids: list[Any], tmp_path_factory: Any) -> None:
    world = Crowd([one for i, one in enumerate(ids) if one not in ids[:i]])
    torch.manual_seed(0)
    spaces = world.obs_space(), world.action_space()
    agent = RogueNetAgent(RogueNet(RogueNetConfig(d_model=8), *spaces, {"value": 1}))
    path = tmp_path_factory.mktemp("page") / "a.html"
    for episode in read_replay(replay(agent, world, episodes=2).write(path).path).episodes:
        names = episode.names[0] if episode.names else {}
        texts = [text for of_type in names.values() for text in of_type.values()]
        assert len(set(texts)) == len(texts) == min(len(world.ids), len(world.ids) // 2 + 1)
        for name in "A", "B":
            numbers = episode.obs.identity[name].values.tolist()
            for row, number in zip(episode.obs.features[name].values, numbers, strict=True):
                one = world.ids[int(row[0])]
                if isinstance(one, str) and len(one) <= MAX_NAME:
                    assert names[name][number].startswith(one)


def test_sides_have_separate_entity_names() -> None:
    world = Duel()
    torch.manual_seed(0)
    spaces = world.obs_space(), world.action_space()
    agent = RogueNetAgent(RogueNet(RogueNetConfig(d_model=8), *spaces, {"value": 1}))
    for episode in replay(agent, world, episodes=2, max_steps=10).episodes:
        assert len(episode.names) == 2
        for side, names in enumerate(episode.names):
            frames = np.arange(side, len(episode.obs), 2)
            assert names
            for name, rows in episode.obs.identity.items():
                numbers = np.unique(rows.take(frames).values).tolist()
                assert sorted(names.get(name, {})) == numbers


def test_frames_between_episodes_are_not_recorded() -> None:
    envs = AnyVecEnv(Clocks(3, waits=2, filler=99.0))
    agent = RogueNet(RogueNetConfig(d_model=16, n_layer=1), envs.obs_space(), envs.action_space())
    keeper = ReplayRecorder(envs, np.arange(3), ReplaySettings(episodes=6))
    collector = Collector(envs, AgentPlayer(agent.eval(), seed=0), watchers=[keeper])
    play(collector, envs.obs_space(), 40, seed=0, stop=keeper.is_done)
    assert keeper.is_done()
    episodes = keeper.replay("", {}, 0.9).episodes
    lengths = [2, 3, 4, 3, 4, 2]
    for number, (one, length) in enumerate(zip(episodes, lengths, strict=True)):
        assert one.obs.features["Hand"].values[:, 0].tolist() == [*range(length)]
        assert one.obs.reward.tolist() == [*range(1, length + 1)]
        assert (one.truncated, one.terminated) == (number < 3, number >= 3)


def fresh_agent(world: Any) -> RogueNetAgent:
    """Return an agent that has learnt nothing."""
    torch.manual_seed(0)
    spaces = world.obs_space(), world.action_space()
    return RogueNetAgent(RogueNet(RogueNetConfig(d_model=16), *spaces, {"value": 1}))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--deterministic"]])
def test_replay_equals_the_watch_command(
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
def test_writing_a_replay_changes_no_state(world: Any, tmp_path: Path) -> None:
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


def test_notebook_embeds_the_page_in_a_sandboxed_iframe(tmp_path: Path) -> None:
    shown = replay(fresh_agent(MineSweeper()), MineSweeper, episodes=1, max_steps=5)
    shown.title = '"><script>alert(1)</script>'
    found = re.fullmatch(r"<iframe ([^<>]*)></iframe>", shown._repr_html_())
    assert found
    given = dict(re.findall(r'(\w+)="([^"]*)"', found[1]))
    assert given["sandbox"] == "allow-scripts"
    page = html.unescape(given["srcdoc"]).encode()
    assert page == shown.write(tmp_path / "a.html").path.read_bytes()


def test_notebook_explains_how_to_write_a_large_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = replay(fresh_agent(MineSweeper()), MineSweeper, episodes=1, max_steps=5)
    monkeypatch.setattr(played, "MAX_NOTEBOOK_MB", 0.001)
    assert ".write(&#x27;replay.html&#x27;" in shown._repr_html_()
    assert "iframe" not in shown._repr_html_()


def test_features_unseen_by_an_agent_are_stored(tmp_path: Path) -> None:
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


def test_global_features_may_be_unseen() -> None:
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
def test_explanations_use_the_recurrent_state_of_each_frame(of: Any) -> None:
    """They match an agent that is explained while it plays, also for a second agent."""
    world = Shown()
    spaces = world.obs_space(), world.action_space()
    agents = []
    for seed, memory in enumerate([MemoryConfig(of, inputs=["action", "reward"]), None]):
        torch.manual_seed(seed)
        network = RogueNet(RogueNetConfig(d_model=8, memory=memory), *spaces, {"value": 1})
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


def test_replay_rejects_invalid_arguments() -> None:
    agent = fresh_agent(MineSweeper())
    with pytest.raises(ValueError, match="env: expected the spaces of the agent; "):
        replay(agent, Duel)
    with pytest.raises(TypeError, match="env: expected an environment or match, its class, or"):
        replay(agent, "MineSweeper")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="factory of an Environment or a Match, got one of int"):
        replay(agent, int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="episodes: expected 1 or more, got 0"):
        replay(agent, MineSweeper, episodes=0)
    with pytest.raises(ValueError, match="env: expected the spaces of beside; "):
        replay(agent, MineSweeper, beside=fresh_agent(Duel()))
    with pytest.raises(InvalidView, match="positions: expected features among"):
        replay(agent, MineSweeper, positions=["z"])
