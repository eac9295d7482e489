"""Recordings of environments that take a step to reset: no frames between two episodes."""

from pathlib import Path

import numpy as np
import pytest

from entity_env import Ragged
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.recording.read_recording import Episode, Recording
from entity_env.recording.record import RecordingVecEnv
from tests.entity_env.builders import play
from tests.entity_env.clocks import Clocks

B = 4


def recorded(path: Path, waits: int, subsample: int = 1) -> RecordingVecEnv:
    clocks = AnyVecEnv(Clocks(B, waits=waits, filler=99.0))
    return RecordingVecEnv(clocks, path, subsample=subsample)


def described(episode: Episode) -> tuple[object, ...]:
    rewards, times = episode.rewards.tolist(), episode.decisions.obs.features["Hand"].values[:, 0]
    last = None if episode.final is None else episode.final.features["Hand"].values.tolist()
    return episode.env, episode.ending, rewards, times.tolist(), episode.steps.tolist(), last


def by_environment(path: Path) -> list[list[tuple[object, ...]]]:
    episodes = [*Recording.open(path).episodes()]
    assert len({one.number for one in episodes}) == len(episodes)
    whole = sorted((one for one in episodes if one.ending != "unfinished"), key=lambda o: o.number)
    return [[described(one) for one in whole if one.env == env] for env in range(B)]


@pytest.mark.parametrize("waits", [1, 3])
def test_padding_frames_do_not_change_recorded_episodes(waits: int, tmp_path: Path) -> None:
    for name, reset_steps in (("at once", 0), ("later", waits)):
        envs = recorded(tmp_path / name, reset_steps)
        play(envs, 40)
        envs.close()
    for actual, other in zip(*map(by_environment, sorted(tmp_path.iterdir())), strict=True):
        assert len(other) >= 5
        assert other == actual[: len(other)]


@pytest.mark.parametrize("subsample", [1, 3])
def test_recordings_continue_from_a_state_between_two_episodes(
    subsample: int, tmp_path: Path
) -> None:
    straight = recorded(tmp_path / "straight", 2, subsample)
    frames = play(straight, 12)
    straight.close()
    for steps in range(3, 8):
        path = tmp_path / f"{steps}"
        envs = recorded(path, 2, subsample)
        assert play(envs, steps)[-1].padding.tolist() == frames[steps].padding.tolist()
        state = envs.get_state()
        envs.close()
        other = recorded(path, 2, subsample)
        obs = other.set_state(state or {}, other.obs_space())
        assert obs is not None
        for _ in range(12 - steps):
            count = int((~obs.is_padding).sum())
            chosen = {"go": Ragged(np.zeros(count, np.int64), 1 - obs.is_padding.astype(np.int64))}
            obs = other.act(chosen, other.obs_space())
        other.close()
        assert by_environment(path) == by_environment(tmp_path / "straight")
