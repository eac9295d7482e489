"""Pieces of frames keep within memory, and a frame that is too large is refused by name."""

import json
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from enn_trainer import RogueNetAgent
from enn_trainer.experience import frame_limits as module
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.frame_limits import (
    check_frame_memory,
    microbatches,
    split_within_memory,
)
from enn_trainer.experience.players import AgentPlayer
from entity_env import (
    Action,
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    EnvList,
    InvalidObservation,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from tests.enn_trainer.builders import run_small


class Crowd(Environment):
    """Episodes of one ant, then `size` ants, then one again; the last frame may be a cut one."""

    def __init__(self, size: int = 30_000, last: int = 1) -> None:
        self.sizes = [1, size, last]

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"ant": Entity(["x"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {"turn": CategoricalActionSpace(["left", "right"])}

    def reset(self) -> Observation:
        self.step = 0
        return self._observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.step += 1
        return self._observe()

    def _observe(self) -> Observation:
        return Observation(
            features={"ant": np.zeros((self.sizes[self.step], 1), np.float32)},
            actions={"turn": CategoricalActionMask()},
            truncated=self.step == 2,
        )


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 2 GiB."""
    monkeypatch.setattr(module, "memory_of", lambda device: 2**31)


def agent_of(env: Environment, **options: Any) -> RogueNet:
    config = RogueNetConfig(d_model=16, **options)
    return RogueNet(config, env.obs_space(), env.action_space(), {"value": 1})


def batch_of_sizes(sizes: Sequence[int]) -> EntityBatch:
    env = Crowd()
    frames = [
        Observation(
            features={"ant": np.zeros((n, 1), np.float32)},
            actions={"turn": CategoricalActionMask()},
        )
        for n in sizes
    ]
    return EntityBatch.of(batch_obs(frames, env.obs_space(), env.action_space()))


REFUSED = r"environment {}: 30,000 entities in one frame: .* GiB, expected at most 0.5 GiB"


@pytest.mark.parametrize("size", [{"size": 30_000}, {"size": 1, "last": 30_000}])
def test_training_error_names_the_environment_of_a_large_frame(
    tmp_path: Path, small_machine: None, size: dict[str, int]
) -> None:
    with pytest.raises(InvalidObservation, match=REFUSED.format(0)):
        run_small(tmp_path, f"env.kwargs={json.dumps(size)}", env=Crowd)


def test_evaluation_error_names_the_environment(small_machine: None) -> None:
    class LaterCrowd(Crowd):
        def __init__(self) -> None:
            super().__init__(30_000 if len(made) == 2 else 1)
            made.append(self)

    made: list[Environment] = []
    envs = EnvList(LaterCrowd, 4)
    collector = Collector(envs, AgentPlayer(agent_of(Crowd()), seed=0))
    with pytest.raises(InvalidObservation, match=REFUSED.format(2)):
        play(collector, envs.obs_space(), steps=3, seed=0)


def test_loaded_agent_error_has_the_number_of_entities(small_machine: None) -> None:
    env = Crowd()
    agent = RogueNetAgent(agent_of(env))
    actions, _ = agent.act(env.reset())
    with pytest.raises(InvalidObservation, match="30,000 entities"):
        agent.act(env.act(actions))


def test_absent_remembered_entities_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """They attend as those do that are shown, and so does the row of the frame."""

    def frame(*ids: int) -> Observation:
        ants = np.zeros((len(ids), 1), np.float32)
        turn = CategoricalActionMask(actor_types=["ant"])
        return Observation(features={"ant": ants}, ids={"ant": ids}, actions={"turn": turn})

    agent = RogueNetAgent(agent_of(Crowd(), n_head=2, memory=MemoryConfig(keep_absent=1)))
    monkeypatch.setattr(module, "MAX_PAIRS", 50**2)
    monkeypatch.setattr(module, "memory_of", lambda device: 4 * 4 * 2 * 100**2)
    agent.act(frame(*range(60)))
    refused = "50 entities and 61 of memory in one frame: .* a smaller net.memory.keep_absent, or"
    with pytest.raises(InvalidObservation, match=refused):
        agent.act(frame(*range(60, 110)))
    agent.act(frame(*range(60, 99)))
    agent.act(frame(*range(99, 149)))  # the first ones are forgotten


def test_learning_needs_more_memory_than_acting() -> None:
    remembering = {"n_layer": 3, "memory": MemoryConfig(n_layer=2)}
    for options, factor in ({"n_layer": 3}, 4), (remembering, 6):
        net = agent_of(Crowd(), **options)
        acting = module.bytes_per_pair(net, learning=False)
        assert module.bytes_per_pair(net, learning=True) == factor * acting


def test_custom_networks_have_no_limit(small_machine: None) -> None:
    batch = batch_of_sizes([30_000])
    for agent in (agent_of(Crowd(), pooling="mean"), nn.Linear(1, 1)):
        check_frame_memory(agent, batch, np.zeros(1, np.int64), learning=True)


def test_entities_to_select_count_without_attention(small_machine: None) -> None:
    space = ObsSpace(entities={"ant": Entity(["x"])})
    actions: dict[str, ActionSpace] = {"follow": SelectEntityActionSpace()}
    net = RogueNet(RogueNetConfig(d_model=16, pooling="mean"), space, actions, {"value": 1})
    ants = np.zeros((30_000, 1), np.float32)
    for actors, is_refused in ([0], False), (None, True):
        mask = SelectEntityActionMask(actor_ids=actors)
        frame = Observation(entities={"ant": (ants, range(len(ants)))}, actions={"follow": mask})
        batch = EntityBatch.of(batch_obs([frame], space, actions))
        with pytest.raises(InvalidObservation) if is_refused else nullcontext():
            check_frame_memory(net, batch, np.zeros(1, np.int64), learning=False)


def test_split_frames_have_equal_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, net = batch_of_sizes([3, 40, 1, 25, 2, 60, 0, 4] * 3), agent_of(Crowd())
    player, env = AgentPlayer(net, seed=1), np.arange(batch.num_frames)
    with torch.no_grad():
        expected = player.choose(batch, env, 0)
        monkeypatch.setattr(module, "MAX_PAIRS", 700)
        got = player.choose(batch, env, 0)
    assert torch.equal(got.chosen["turn"].values, expected.chosen["turn"].values)
    torch.testing.assert_close(got.values, expected.values)


@given(
    entities=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=3),
    most_pairs=st.integers(1, 300),
)
def test_slices_within_memory_have_every_frame_in_order(
    entities: list[int], cuts: list[int], most_pairs: int
) -> None:
    counts = np.array(entities, dtype=np.int64)
    ends = [0, *sorted(min(cut, len(counts)) for cut in cuts), len(counts)]
    with patch.object(module, "MAX_PAIRS", most_pairs):
        cut = split_within_memory([slice(*ends[i : i + 2]) for i in range(len(ends) - 1)], counts)
    assert [i for piece in cut for i in range(piece.start, piece.stop)] == [*range(len(counts))]
    assert {piece.start for piece in cut} >= set(ends[:-1]) - {len(counts)}
    for piece in cut:
        assert piece.stop - piece.start <= 1 or (counts[piece] ** 2).sum() <= most_pairs


@given(
    entities=st.lists(st.integers(0, 12), min_size=1, max_size=60),
    size=st.none() | st.integers(1, 20),
    max_entities=st.none() | st.integers(1, 30),
    most_pairs=st.integers(1, 500),
)
def test_microbatches_are_as_large_as_the_limits_allow(
    entities: list[int], size: int | None, max_entities: int | None, most_pairs: int
) -> None:
    """Every frame is in one of them, in order; only a frame alone may be over the budget."""
    counts = np.array(entities, dtype=np.int64)
    with patch.object(module, "MAX_PAIRS", most_pairs):
        pieces = list(microbatches(counts, size, max_entities))
    assert [i for piece in pieces for i in range(*piece.indices(len(counts)))] == list(
        range(len(counts))
    )

    def fits(first: int, end: int) -> bool:
        few = size is None or end - first <= size
        few_pairs = (counts[first:end] ** 2).sum() <= most_pairs
        return (
            few and few_pairs and (max_entities is None or counts[first:end].sum() <= max_entities)
        )

    for piece in pieces:
        assert fits(piece.start, piece.stop) or piece.stop - piece.start == 1
        assert piece.stop == len(counts) or not fits(piece.start, piece.stop + 1)
