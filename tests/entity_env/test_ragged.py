"""Choices may be buffers of the `ragged_buffer` package wherever environments step."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, ParallelEnvList, Ragged, VecEnv
from entity_env.examples.multi_snake_vec import VecMultiSnake
from entity_env.ragged import to_ragged_buffer
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from tests.entity_env.builders import assert_same, play, random_choices
from tests.entity_env.worlds import Walk

ragged_buffer = pytest.importorskip("ragged_buffer")


def play_with_buffers(envs: VecEnv, steps: int) -> list[Any]:
    """What `play` does, with choices as buffers."""
    rng = np.random.default_rng(0)
    envs.seed(5)
    frames = [envs.reset(envs.obs_space())]
    for _ in range(steps):
        choices = random_choices(envs, frames[-1], rng)
        buffers: dict[str, Any] = {name: to_ragged_buffer(rows) for name, rows in choices.items()}
        frames.append(envs.act(buffers, envs.obs_space()))
    return frames


def make(kind: str, path: Path) -> VecEnv:
    if kind == "recording":
        return RecordingVecEnv(EnvList(Walk, 5), path)
    if kind == "arrays":
        return VecMultiSnake(5)
    return EnvList(Walk, 5) if kind == "here" else ParallelEnvList(Walk, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["here", "workers", "recording", "arrays"])
def test_buffers_convert_to_choices(tmp_path: Path, kind: str) -> None:
    with closing(make("here" if kind == "workers" else kind, tmp_path / "one")) as envs:
        expected = play(envs, 6)
    with closing(make(kind, tmp_path / "other")) as envs:
        frames = play_with_buffers(envs, 6)
    for frame, other in zip(frames, expected, strict=True):
        assert_same(frame, other)
    if kind == "recording":
        one, other = (Recording.open(tmp_path / name) for name in ("one", "other"))
        for step, again in zip(one.steps(), other.steps(), strict=True):
            for name, chosen in step.decisions.actions.items():
                assert isinstance(chosen, Ragged)
                np.testing.assert_array_equal(chosen.values, again.decisions.actions[name].values)


def test_batch_is_extended_by_another_batch() -> None:
    """As entity-gym has it: in place, and None is returned."""
    frames = play(EnvList(Walk, 4), 3)
    one, other = frames[1], frames[2]
    joined = type(one).cat([one, other])
    num_rows = other.features["Thing"].items()
    one.extend(other)
    assert_same(one, joined)
    assert len(one) == 8
    assert other.features["Thing"].items() == num_rows
