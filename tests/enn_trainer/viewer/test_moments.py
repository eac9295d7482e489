"""Moments of an episode that is written out; attention and influence in frames of a replay."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer.evaluation import explain as explanations
from enn_trainer.evaluation.explain import attention_of
from enn_trainer.viewer import moments
from enn_trainer.viewer.episodes import episodes_of
from enn_trainer.viewer.moments import MAX_HIGHLIGHTS, annotate, find_highlights, returns_of
from enn_trainer.viewer.replay import Answers, Highlight, Replay, ReplayEpisode
from entity_env import CategoricalActionSpace, Entity, ObsSpace, SelectEntityActionSpace
from entity_env.examples import Duel
from entity_env.ragged import Ragged
from entity_env.vec.vec_obs import VecCategoricalActionMask, VecObs, VecSelectEntityActionMask
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet
from tests.enn_trainer.viewer.replays import make_recording

SPACE = ObsSpace(entities={"Robot": Entity(["x"]), "Nut": Entity(["x"])})
ACTIONS = {"move": CategoricalActionSpace(["left", "right"]), "take": SelectEntityActionSpace()}
ROBOTS, NUTS = [2, 1, 1, 1], [1, 2, 1, 1]
IDENTITY = {"Robot": [0, 1, 0, 0, 0], "Nut": [2, 2, 3, 3, 3]}
PROBS = [[0.9, 0.1], [0.5, 0.5], [0.8, 0.2], [0.99, 0.01], [1.0, 0.0]]


def ragged(values: list, lengths: list[int], dtype: type = np.float32) -> Ragged:
    return Ragged(np.array(values, dtype), np.array(lengths))


def episode(**changes: object) -> ReplayEpisode:
    """Four steps: a robot is gone after the first, the first nut after the second one."""
    first_of_nuts = np.repeat(np.array(ROBOTS), NUTS) + np.array([0, 0, 1, 0, 0])
    obs = VecObs(
        features={"Robot": ragged([[0]] * 5, ROBOTS), "Nut": ragged([[0]] * 5, NUTS)},
        visible={},
        action_masks={
            "move": VecCategoricalActionMask(ragged([0, 1, 0, 0, 0], ROBOTS, np.int64), None),
            "take": VecSelectEntityActionMask(
                ragged([0, 0], [0, 1, 1, 0], np.int64),
                ragged(first_of_nuts[1:4], [0, 2, 1, 0], np.int64),
            ),
        },
        reward=np.array([0, 1, 0, 2], np.float32),
        done=np.zeros(4, np.bool_),
        metrics={},
        identity={
            name: ragged(numbers, lengths, np.int64)
            for (name, numbers), lengths in zip(IDENTITY.items(), (ROBOTS, NUTS), strict=True)
        },
    )
    fields = {
        "obs": obs,
        "chosen": {
            "move": ragged([0, 1, 1, 1, 0], ROBOTS, np.int64),
            "take": ragged([1, 0], [0, 1, 1, 0], np.int64),
        },
        "answers": Answers(
            {"move": ragged(PROBS, ROBOTS), "take": ragged([0.4, 0.6, 1.0], [0, 2, 1, 0])},
            np.array([2, 2, 2, 2], np.float32),
        ),
        "terminated": True,
        "truncated": False,
        "names": [{"Robot": {0: "Ann", 1: "Bob"}}],
    }
    return ReplayEpisode(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let moments be next to each other, as the episode is short."""
    monkeypatch.setattr(moments, "MIN_STEPS_APART", 1)


def moments_of(
    *episodes: ReplayEpisode, sides: int = 1, own: Sequence[int] = (0, 1)
) -> dict[str, list[Highlight]]:
    replay = Replay("", {}, SPACE, ACTIONS, sides, 0.5, [*episodes])
    found: dict[str, list[Highlight]] = {}
    for moment in find_highlights(replay, lambda episode, side: side in own):
        found.setdefault(moment.kind, []).append(moment)
    return found


def test_returns_are_discounted_sums_of_future_rewards() -> None:
    assert returns_of(episode(), 1, 0.5).tolist() == [0.75, 1.5, 1, 2]
    assert np.isnan(returns_of(episode(terminated=False, truncated=True), 1, 0.5)).all()


def test_sides_have_separate_returns() -> None:
    assert returns_of(episode(), 2, 0.5).tolist() == [0, 2, 0, 2]


def test_largest_value_errors_are_highlights() -> None:
    found = moments_of(episode())["value error"]
    assert [(m.step, m.text) for m in found] == [
        (0, "value 2, then a return of 0.75"),
        (2, "value 2, then a return of 1"),
        (1, "value 2, then a return of 1.5"),
    ]


def test_value_error_is_unknown_in_truncated_episodes() -> None:
    assert "value error" not in moments_of(episode(terminated=False, truncated=True))
    assert "value error" not in moments_of(episode(steps=np.array([0, 2, 3, 7])))


def test_unlikely_choices_are_highlights_with_actor_and_label() -> None:
    found = moments_of(episode())["unlikely choice"]
    assert [(m.step, m.entity, m.text) for m in found] == [
        (2, 0, "Robot Ann: move = right, with probability 0.01"),
        (1, 0, "Robot Ann: move = right, with probability 0.2"),
        (0, 1, "Robot Bob: move = right, with probability 0.5"),
    ]


def test_most_undecided_actors_are_highlights() -> None:
    found = moments_of(episode())["undecided"]
    assert [(m.step, m.entity) for m in found][:2] == [(0, 1), (1, 0)]
    assert found[0].text == "Robot Bob: move at 100% of the largest entropy"
    assert 3 not in [m.step for m in found], "a single choice was left"


def test_disagreements_with_a_second_agent_are_highlights() -> None:
    assert "disagreement" not in moments_of(episode())
    other = [[0.9, 0.1], [0.5, 0.5], [0.2, 0.8], [0.99, 0.01], [1.0, 0.0]]
    beside = Answers({"move": ragged(other, ROBOTS)}, np.zeros(4, np.float32))
    (found,) = moments_of(episode(beside=beside))["disagreement"]
    assert (found.step, found.entity, found.text) == (1, 0, "Robot Ann: move differs by 60%")


def test_disagreements_ignore_the_opponent() -> None:
    other = [[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.99, 0.01], [1.0, 0.0]]
    beside = Answers({"move": ragged(other, ROBOTS)}, np.zeros(4, np.float32))

    def disagreements(own: Sequence[int]) -> list[tuple[int, int]]:
        found = moments_of(episode(beside=beside), sides=2, own=own)
        return sorted((one.step, one.side) for one in found.get("disagreement", []))

    assert disagreements([0, 1]) == disagreements([1]) == [(0, 1)]
    assert disagreements([0]) == [(0, 0)], "the greater one beside it is the opponent's"
    assert disagreements([]) == []


def test_entities_missing_in_the_next_frame_are_highlights() -> None:
    found = moments_of(episode())["gone"]
    assert [(m.step, m.entity, m.text) for m in found] == [
        (1, 1, "Nut 2 is gone after this step"),  # the reward of this step is larger
        (0, 1, "Robot Bob is gone after this step"),
    ]


def test_entities_without_identity_are_named_by_index() -> None:
    nameless = episode()
    nameless.obs.identity = {}
    found = moments_of(nameless)
    assert "gone" not in found
    assert found["unlikely choice"][0].text.startswith("Robot 0: ")


@pytest.mark.parametrize("number", [1, 3])
def test_at_most_five_highlights_per_kind(number: int) -> None:
    found = moments_of(*[episode() for _ in range(number)])
    assert max(map(len, found.values())) <= MAX_HIGHLIGHTS
    if number == 3:
        assert [m.episode for m in found["gone"]] == [0, 1, 2, 0, 1]


def test_non_finite_values_are_not_highlights() -> None:
    answers = Answers(episode().answers.probs, np.array([np.nan, np.inf, 2, 2], np.float32))
    found = moments_of(episode(answers=answers))["value error"]
    assert [m.step for m in found] == [1, 2]


def test_highlights_of_an_episode_are_some_steps_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "MIN_STEPS_APART", 2)
    found = moments_of(episode())
    assert [m.step for m in found["value error"]] == [0, 2]
    assert [m.step for m in found["undecided"]] == [0, 2]


def duels(path: Path) -> tuple[Replay, RogueNet]:
    """Return two duels, and a network for them."""
    recording, _ = make_recording(Duel, path / "a.rec", steps=30)
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


def test_large_frames_are_explained_only_at_highlights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments, "MAX_ENTITIES", 3)
    monkeypatch.setattr(explanations, "MAX_ENTITIES", 3)
    replay, network = duels(tmp_path)
    replay.moments = [Highlight("gone", 1, 4, 1, None, ""), Highlight("gone", 1, 5, 0, None, "")]
    annotate(replay, network, lambda episode, side: True)
    sizes = [
        sum(rows.lengths for rows in episode.obs.features.values()) for episode in replay.episodes
    ]
    first, second = replay.episodes
    assert [*first.influence] == np.flatnonzero(sizes[0] <= 3).tolist()
    assert {9, 10} <= {*second.influence}
    for episode in replay.episodes:
        assert all(len(found.entities) <= 3 for found in episode.influence.values())


def test_network_without_attention_has_only_influence(tmp_path: Path) -> None:
    replay, _ = duels(tmp_path)
    config = RogueNetConfig(d_model=16, pooling="mean")
    pooled = RogueNet(config, replay.obs_space, replay.action_space, {"value": 1}).eval()
    annotate(replay, pooled, lambda episode, side: True)
    for episode in replay.episodes:
        assert not episode.attention
        assert len(episode.influence) == len(episode.obs)
