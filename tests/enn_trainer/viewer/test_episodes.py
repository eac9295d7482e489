"""Episodes of recordings as replays show them."""

from pathlib import Path

import numpy as np
import pytest

from enn_trainer.viewer.episodes import episodes_of
from entity_env.examples import Duel, MineSweeper, TreasureHunt
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordingError
from rogue_net.ragged import EntityBatch
from tests.enn_trainer.viewer.replays import make_recording


@pytest.mark.parametrize(("world", "sides"), [(Duel, 2), (MineSweeper, 1), (TreasureHunt, 1)])
def test_episode_matches_the_recorded_frames_choices_and_rewards(
    world: type, sides: int, tmp_path: Path
) -> None:
    recording, kept = make_recording(world, tmp_path / "a.rec", steps=30)
    first = next(one for one in episodes_of(recording, sides) if one.env == 0)
    assert first.steps is None
    assert len(first.obs) % sides == 0
    for step in range(len(first.obs) // sides):
        own = np.arange(step * sides, (step + 1) * sides)
        frames, expected = first.obs.take(own), kept.frames[step].take(np.arange(sides))
        for name, rows in expected.features.items():
            np.testing.assert_array_equal(frames.features[name].values, rows.values)
        for name, rows in expected.identity.items():
            np.testing.assert_array_equal(frames.identity[name].values, rows.values)
        decisions = kept.decisions[step].take(np.arange(sides))
        for name, rows in decisions.chosen_on_host().items():
            np.testing.assert_array_equal(first.chosen[name].take(own).values, rows.values)
            log_probs = decisions.distributions[name].to_rows(
                EntityBatch.of(expected).actions[name]
            )
            got = first.answers.probs[name].take(own).values
            np.testing.assert_array_equal(got, np.exp(log_probs.values.numpy()))
        np.testing.assert_array_equal(first.answers.values[own], decisions.values.numpy())
        reward = kept.outcomes[step].reward[:sides]
        np.testing.assert_array_equal(first.obs.reward[own], reward)


def test_unnormalised_logits_give_normalised_probabilities(tmp_path: Path) -> None:
    recording, _ = make_recording(MineSweeper, tmp_path / "a.rec", steps=5)
    step = next(recording.steps())
    for rows in step.decisions.logits.values():
        rows.values[...] = np.arange(rows.values.size).reshape(rows.values.shape) % 3
    changed = Recording(**{**vars(recording), "_read": lambda: iter([step])})
    for episode in episodes_of(changed):
        for name, probs in episode.answers.probs.items():
            action = episode.obs.action_masks[name]
            counts = np.asarray(recording.action_space[name].num_choices(action))
            if len(counts):
                sums = np.add.reduceat(probs.values.reshape(-1), np.cumsum(counts) - counts)
                np.testing.assert_allclose(sums, 1, rtol=1e-6)
            if action.mask is not None:
                forbidden = ~action.mask.values.reshape(-1)
                assert not probs.values.reshape(-1)[forbidden].any()


def test_subsampled_recording_has_the_steps_common_to_all_sides(
    tmp_path: Path,
) -> None:
    recording, _ = make_recording(Duel, tmp_path / "a.rec", steps=40, subsample=2)
    shown = list(episodes_of(recording, 2))
    assert 0 < sum(len(one.obs) for one in shown) < 160
    for one in shown:
        assert one.steps is not None
        assert len(one.obs) == 2 * len(one.steps)
        assert (np.diff(one.steps) > 0).all()


@pytest.mark.parametrize(("world", "sides", "subsample"), [(Duel, 2, 9), (MineSweeper, 1, 30)])
def test_episodes_without_recorded_frames_are_skipped(
    world: type, sides: int, subsample: int, tmp_path: Path
) -> None:
    """A page of them cannot be written."""
    recording, _ = make_recording(world, tmp_path / "a.rec", steps=60, subsample=subsample)
    kept = [len(one.steps) for one in recording.episodes()]
    assert 0 in kept
    shown = list(episodes_of(recording, sides))
    assert 0 < len(shown) < len(kept) // sides
    assert all(len(one.obs) for one in shown)


@pytest.mark.parametrize(("world", "sides"), [(Duel, 2), (TreasureHunt, 1)])
def test_long_episodes_are_cut(world: type, sides: int, tmp_path: Path) -> None:
    recording, _ = make_recording(world, tmp_path / "a.rec", steps=30)
    whole = list(episodes_of(recording, sides))
    lengths = [len(one.obs) // sides for one in whole]
    limit = sorted(lengths)[len(lengths) // 2] - 1
    cut = list(episodes_of(recording, sides, limit))
    assert [len(one.obs) // sides for one in cut] == [min(length, limit) for length in lengths]
    assert any(length <= limit for length in lengths)
    for one, other, length in zip(whole, cut, lengths, strict=True):
        np.testing.assert_array_equal(other.obs.reward, one.obs.reward[: limit * sides])
        assert other.steps is None
        assert other.terminated == (one.terminated and length <= limit)
        assert other.truncated == (one.truncated and length <= limit)


def test_a_match_needs_all_its_sides_in_the_recording(tmp_path: Path) -> None:
    recording, _ = make_recording(TreasureHunt, tmp_path / "a.rec", steps=2)
    with pytest.raises(RecordingError, match="a multiple of 3 environments"):
        list(episodes_of(recording, 3))
