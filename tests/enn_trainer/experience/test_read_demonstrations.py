"""Recorded frames as tensors: whose they are, what is known of them, and what is refused."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from enn_trainer import ConfigError
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.read_demonstrations import RecordingReader, check_player, returns_of
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.record import recording_header
from entity_env.recording.recording_format import PREFIX, RecordedStep, RecordingError, framed
from tests.enn_trainer.demonstrated import CutOff, Rearranged, Sorting, record
from tests.enn_trainer.worlds import Clockwork

CPU = torch.device("cpu")
FEW = 16
"""Steps that hold episodes of all lengths."""


def read(
    path: Path,
    teacher_for: str | None = None,
    max_frames: int | None = None,
    who: Literal["hand", "all"] = "all",
    player: str = "",
) -> Demonstrations:
    recordings = open_recordings([path])
    reading = RecordingReader(Sorting().obs_space(), 0.5, CPU, teacher_for, max_frames, who, player)
    shown = reading.read(recordings)
    assert shown is not None
    return shown


def episode(rewards: list[float], ending: str, steps: list[int] | None = None) -> Episode:
    kept = np.arange(len(rewards)) if steps is None else np.array(steps)
    decisions: object = None  # not looked at
    return Episode(0, 0, np.array(rewards, dtype=np.float32), ending, decisions, kept)  # type: ignore[arg-type]


def test_returns_are_discounted_from_the_end_of_the_same_episode() -> None:
    # 3 + 0.5 * 2 = 4; 1 + 0.5 * 4 = 3
    assert returns_of(episode([1, 3, 2], "terminated"), 0.5).tolist() == [3.0, 4.0, 2.0]
    assert returns_of(episode([1, 3, 2], "terminated", [0, 2]), 0.5).tolist() == [3.0, 2.0]


@pytest.mark.parametrize("ending", ["truncated", "unfinished", "unknown"])
def test_unfinished_episodes_have_no_returns(ending: str) -> None:
    assert np.isnan(returns_of(episode([1, 3, 2], ending), 0.5)).all()
    assert np.isnan(returns_of(episode([1, math.nan], "terminated"), 0.5)).all()


@pytest.mark.slow
def test_returns_do_not_cross_episodes(tmp_path: Path) -> None:
    """The published loader gives the last reward of an episode to the next one."""
    shown = read(record(tmp_path / "rec"))
    left = shown.batch.features["__global__"].values[:, 0]
    known = ~shown.returns.isnan()
    assert known.float().mean() > 0.9
    # Each step gives 1, so n steps are worth 1 + 0.5 + ... = 2 - 0.5 ** (n - 1).
    torch.testing.assert_close(shown.returns[known], 2 - 0.5 ** (left - 1)[known])
    assert shown.endings.keys() == {"unfinished"}
    assert read(record(tmp_path / "cut", world=CutOff, steps=FEW)).returns.isnan().all()


def test_subsampled_recording_has_returns_over_all_steps(tmp_path: Path) -> None:
    shown = read(record(tmp_path / "rec", subsample=3))
    left = shown.batch.features["__global__"].values[:, 0]
    known = ~shown.returns.isnan()
    assert 200 < len(shown) < 450
    torch.testing.assert_close(shown.returns[known], 2 - 0.5 ** (left - 1)[known])


@pytest.mark.slow
def test_order_of_names_in_files_does_not_matter(tmp_path: Path) -> None:
    """A position in a frame depends on the order of types, so actors and actees move with it."""
    one = read(record(tmp_path / "one", logits=True, steps=FEW), "kl")
    other_path = record(tmp_path / "other", world=Rearranged, logits=True, x=1, steps=FEW)
    other = read(other_path, "kl")
    for name, rows in one.batch.features.items():
        assert torch.equal(rows.values, other.batch.features[name].values), name
    for name, action in one.batch.actions.items():
        assert torch.equal(action.actors.values, other.batch.actions[name].actors.values), name
        assert torch.equal(one.actions[name].values, other.actions[name].values), name
        assert torch.equal(one.teacher[name].values, other.teacher[name].values), name
    pick, moved = one.batch.actions["pick"].actees, other.batch.actions["pick"].actees
    assert pick is not None
    assert moved is not None
    assert torch.equal(pick.values, moved.values)
    raw = next(Recording.open(other_path).steps()).decisions.obs.action_masks["side"].actors
    assert raw.values.max() > one.batch.actions["side"].actors.values.max()  # they did differ


def test_several_files_are_concatenated(tmp_path: Path) -> None:
    one = record(tmp_path / "one", steps=FEW)
    other = record(tmp_path / "two", world=Rearranged, x=1, steps=9)
    recordings = open_recordings([one, other])
    shown = RecordingReader(Sorting().obs_space(), 0.5, CPU).read(recordings)
    assert shown is not None
    assert len(shown) == len(read(one)) + len(read(other))


def test_files_of_different_environments_raise(tmp_path: Path) -> None:
    from entity_env import EnvList
    from entity_env.recording.record import RecordingVecEnv

    one = record(tmp_path / "one", steps=2)
    envs = RecordingVecEnv(EnvList(Clockwork, 2), tmp_path / "other")
    envs.reset(envs.obs_space())
    envs.close()
    with pytest.raises(ConfigError, match=r"other: expected a recording of .*one; .*entity types"):
        open_recordings([one, tmp_path / "other"])


@pytest.mark.slow
def test_max_frames_limits_reading(tmp_path: Path) -> None:
    path = record(tmp_path / "rec")
    assert 100 <= len(read(path, max_frames=100)) < 110
    assert len(read(path, max_frames=10**6)) == len(read(path))


def test_frames_without_actors_can_be_dropped(tmp_path: Path) -> None:
    shown = read(record(tmp_path / "rec", steps=FEW))
    acting = shown.with_actors()
    assert 0 < len(acting) < len(shown)
    assert (acting.num_actors() > 0).all()
    assert acting.num_actors().sum() == shown.num_actors().sum()


@pytest.mark.parametrize("subsample", [1, 3])
def test_choices_of_an_agent_are_excluded_by_who(tmp_path: Path, subsample: int) -> None:
    path = record(tmp_path / "rec", logits=True, says_who=True, subsample=subsample, steps=FEW)
    whole, own = read(path, "kl"), read(path, "kl", who="hand")
    who = [e.decisions.by_hand for e in Recording.open(path).episodes() if len(e.decisions)]
    assert len(own) == len(whole)
    torch.testing.assert_close(own.returns, whole.returns, equal_nan=True)
    for name, action in whole.batch.actions.items():
        by_hand = np.concatenate([rows[name].values for rows in who])
        assert 0 < by_hand.sum() < len(by_hand)
        kept = own.batch.actions[name]
        assert torch.equal(own.actions[name].values, whole.actions[name].values[by_hand])
        assert torch.equal(kept.actors.values, action.actors.values[by_hand])
        choices = np.diff(own.teacher[name].lengths.cumsum(), prepend=0)
        actees = 2 if action.actees is None else action.actees.lengths
        assert (choices == kept.actors.lengths * actees).all()
    rows = np.repeat(np.concatenate([rows["side"].values for rows in who]), 2)
    assert torch.equal(own.teacher["side"].values, whole.teacher["side"].values[rows])


@pytest.mark.slow
def test_files_without_by_hand_are_read_completely(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=FEW)
    own, whole = read(path, who="hand"), read(path)
    assert own.num_actors().sum() == whole.num_actors().sum()
    # Likewise the part of a file that does not say it, which a later part does.
    record(path, says_who=True, steps=FEW)
    assert whole.num_actors().sum() < read(path, who="hand").num_actors().sum()
    assert read(path, who="hand").num_actors().sum() < read(path).num_actors().sum()


def test_by_hand_of_another_shape_raises(tmp_path: Path) -> None:
    fewer = Ragged(np.ones(1, np.bool_), np.array([1, *[0] * 15]))
    with pytest.raises(RecordingError, match=r"by_hand\['side'\]: expected booleans"):
        read(changed(tmp_path, by_hand={"side": sides(tmp_path)}))
    (tmp_path / "one").unlink()
    with pytest.raises(RecordingError, match=r"by_hand\['side'\]: expected one for each choice"):
        read(changed(tmp_path, by_hand={"side": fewer}))


@pytest.mark.slow
@pytest.mark.parametrize("player", ["", "a", "b"])
def test_frames_of_a_player_have_returns_of_their_side(tmp_path: Path, player: str) -> None:
    """Differential: the frames of that player among those of a file that does not say who played.

    Here players even change in the middle of an episode, as where an opponent is lost.
    """
    turns = ["", "a", "b", "a"]
    whole = read(record(tmp_path / "plain", logits=True, steps=FEW), "kl")
    path = record(tmp_path / "played", logits=True, players=turns, steps=FEW)
    own = read(path, "kl", player=player)
    said = [e.decisions.player for e in Recording.open(path).episodes() if len(e.decisions)]
    frames = np.flatnonzero(np.concatenate(said) == player)
    assert len(frames) == turns.count(player) * len(whole) // 4
    expected = whole.take(frames)
    torch.testing.assert_close(own.returns, expected.returns, rtol=0, atol=0, equal_nan=True)
    for name, rows in expected.batch.features.items():
        assert torch.equal(own.batch.features[name].values, rows.values)
    for name in ("side", "pick"):
        assert torch.equal(own.actions[name].values, expected.actions[name].values)
        assert torch.equal(own.teacher[name].values, expected.teacher[name].values)
        acting = expected.batch.actions[name].actors
        assert torch.equal(own.batch.actions[name].actors.values, acting.values)
        assert np.array_equal(own.batch.actions[name].actors.lengths, acting.lengths)


def test_max_frames_counts_frames_of_the_player(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", players=["", "a", "b", "c"])
    assert 100 <= len(read(path, max_frames=100, player="b")) < 110


def test_choices_of_a_person_among_agents_are_imitated(tmp_path: Path) -> None:
    """The choices of the person in the frames of the player, if a file says both."""
    path = record(tmp_path / "rec", steps=FEW, says_who=True, players=["", "a"])
    both, own = read(path, who="hand"), read(path)
    assert len(both) == len(own) == 16 * FEW // 2
    assert 0 < both.num_actors().sum() < own.num_actors().sum()


def test_unknown_player_error_lists_the_players(tmp_path: Path) -> None:
    files = open_recordings([record(tmp_path / "rec", steps=3, players=["", "step-0"])]).values()
    for known in ("", "step-0"):
        check_player(known, files, "clone.player")
    message = r"clone\.player: expected .*\['', 'step-0'\], got 'step-1', did you mean step-0\?$"
    with pytest.raises(ConfigError, match=message):
        check_player("step-1", files, "clone.player")


def changed(tmp_path: Path, of_step: dict[str, object] | None = None, **changes: object) -> Path:
    """A recording of one step in which something was changed."""
    path = record(tmp_path / "one", steps=1)
    (step,) = Recording.open(path).steps()
    recording = Recording.open(path)
    header = recording_header(recording.obs_space, recording.action_space, 16)
    fields = {**replace(step.decisions, **changes).payload(), **vars(step)}  # type: ignore[arg-type]
    del fields["decisions"]
    fields |= of_step or {}
    (tmp_path / "changed").write_bytes(PREFIX + framed(header) + framed(fields))
    return tmp_path / "changed"


def sides(tmp_path: Path) -> Ragged:
    (step,) = Recording.open(record(tmp_path / "sides", steps=1)).steps()
    assert isinstance(step, RecordedStep)
    return step.decisions.actions["side"]


def test_unknown_choices_raise(tmp_path: Path) -> None:
    side = sides(tmp_path)
    actions = {"side": replace(side, values=side.values + 2)}
    with pytest.raises(RecordingError, match=r"changed: action .* expected a choice .* got"):
        read(changed(tmp_path, actions=actions))


def test_missing_choices_raise(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"'side': expected a choice of each of \d+ actors"):
        read(changed(tmp_path, actions={}))


def test_masked_choices_raise(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=1)
    (step,) = Recording.open(path).steps()
    masks = dict(step.decisions.obs.action_masks)
    mask = masks["pick"].mask
    assert mask is not None
    masks["pick"] = replace(masks["pick"], mask=replace(mask, values=np.zeros_like(mask.values)))
    with pytest.raises(RecordingError, match="'pick': expected a choice that is allowed"):
        read(changed(tmp_path, obs=replace(step.decisions.obs, action_masks=masks)))


def test_steps_without_rewards_raise(tmp_path: Path) -> None:
    """The rewards before a step are not in a file that was begun in the middle of an episode."""
    later = {"step": np.full(16, 7), "terminated": np.ones(16, np.bool_)}
    with pytest.raises(RecordingError, match=r"changed: episode \d+: expected steps up to 0, .* 7"):
        read(changed(tmp_path, later))
