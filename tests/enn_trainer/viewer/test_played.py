"""Episodes as they are played: the ids of their entities, as they are printed."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from enn_trainer import RogueNetAgent, replay
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.viewer.played import MOST_NAME, EpisodeKeeper, ReplaySettings, printed_ids
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
from entity_env.examples import Duel
from rogue_net.config import RogueNetConfig
from rogue_net.rogue_net import RogueNet
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
def test_printed_ids_are_short_and_tell_entities_apart(ids: list[Any]) -> None:
    texts = printed_ids(ids)
    assert len(texts) == len(set(texts)) == len(ids)
    for one, text in zip(ids, texts, strict=True):
        assert len(text) <= MOST_NAME + 10 * len(ids)
        if isinstance(one, str) and len(one) <= MOST_NAME:
            assert text.startswith(one)
    assert json.loads(json.dumps(texts).encode()) == texts


class Crowd(Environment):
    """Entities of two types with the given ids, of which some come later."""

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
def test_names_of_entities_are_their_ids(ids: list[Any], tmp_path_factory: Any) -> None:
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
                if isinstance(one, str) and len(one) <= MOST_NAME:
                    assert names[name][number].startswith(one)


def test_sides_of_an_episode_have_names_of_their_own() -> None:
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


def test_episodes_have_no_frames_between_them() -> None:
    envs = AnyVecEnv(Clocks(3, waits=2, filler=99.0))
    agent = RogueNet(RogueNetConfig(d_model=16, n_layer=1), envs.obs_space(), envs.action_space())
    keeper = EpisodeKeeper(envs, np.arange(3), ReplaySettings(episodes=6))
    collector = Collector(envs, AgentPlayer(agent.eval(), seed=0), watchers=[keeper])
    play(collector, envs.obs_space(), 40, seed=0, stop=keeper.is_done)
    assert keeper.is_done()
    episodes = keeper.replay("", {}, 0.9).episodes
    lengths = [2, 3, 4, 3, 4, 2]
    for number, (one, length) in enumerate(zip(episodes, lengths, strict=True)):
        assert one.obs.features["Hand"].values[:, 0].tolist() == [*range(length)]
        assert one.obs.reward.tolist() == [*range(1, length + 1)]
        assert (one.truncated, one.terminated) == (number < 3, number >= 3)
