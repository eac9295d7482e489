"""Attention and influence in the frames of a replay."""

from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer.viewer import annotate as module
from enn_trainer.viewer.annotate import annotate
from enn_trainer.viewer.episodes import episodes_of
from enn_trainer.viewer.explain import attention_of
from enn_trainer.viewer.replay import Moment, Replay
from entity_env.examples import Duel
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.viewer.replays import recorded


def duels(path: Path) -> tuple[Replay, RogueNet]:
    """Return two duels, and a network for them."""
    recording, _ = recorded(Duel, path / "a.rec", steps=30)
    replay = Replay("", {}, recording.obs_space, recording.action_space, 2, 0.99)
    replay.episodes = list(episodes_of(recording, 2))[:2]
    spaces = recording.obs_space, recording.action_space
    torch.manual_seed(0)
    return replay, RogueNet(RogueNetConfig(d_model=16), *spaces, {"value": 1}).eval()


def test_frames_of_the_agent_have_attention_and_influence(tmp_path: Path) -> None:
    replay, network = duels(tmp_path)
    annotate(replay, network, lambda episode, side: side == 0)
    for episode in replay.episodes:
        own = [*range(0, len(episode.obs), 2)]
        assert [*episode.attention] == [*episode.influence] == own
        frame = own[-1]
        alone = EntityBatch.of(episode.obs.take(np.array([frame])))
        weights = attention_of(network, alone)
        assert weights is not None
        np.testing.assert_allclose(episode.attention[frame], weights[0], atol=1e-5)
        n = int(episode.obs.features["Ally"].lengths[frame])
        n += int(episode.obs.features["Enemy"].lengths[frame])
        assert episode.influence[frame].entities.tolist() == [*range(n)]
        assert np.isfinite(episode.influence[frame].value).all()


def test_large_frames_have_them_at_the_moments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_ENTITIES", 3)
    replay, network = duels(tmp_path)
    replay.moments = [Moment("gone", 1, 4, 1, None, ""), Moment("gone", 1, 5, 0, None, "")]
    annotate(replay, network, lambda episode, side: True)
    sizes = [
        sum(rows.lengths for rows in episode.obs.features.values()) for episode in replay.episodes
    ]
    first, second = replay.episodes
    assert [*first.influence] == np.flatnonzero(sizes[0] <= 3).tolist()
    assert {9, 10} <= {*second.influence}
    for episode in replay.episodes:
        assert all(len(found.entities) <= 3 for found in episode.influence.values())


def test_network_without_attention_has_influence_alone(tmp_path: Path) -> None:
    replay, _ = duels(tmp_path)
    config = RogueNetConfig(d_model=16, pooling="mean")
    pooled = RogueNet(config, replay.obs_space, replay.action_space, {"value": 1}).eval()
    annotate(replay, pooled, lambda episode, side: True)
    for episode in replay.episodes:
        assert not episode.attention
        assert len(episode.influence) == len(episode.obs)
