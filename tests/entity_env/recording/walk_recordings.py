"""Recordings of `Walk`."""

from pathlib import Path
from typing import Any

from entity_env import EnvList, VecObs
from entity_env.recording.record import RecordingVecEnv
from tests.entity_env.builders import play
from tests.entity_env.worlds import Walk


def record(path: Path, steps: int, num_envs: int = 4, **options: Any) -> list[VecObs]:
    """Record `Walk`; return the frames of its environments, the first frame first."""
    envs = RecordingVecEnv(EnvList(Walk, num_envs), path, **options)
    frames = play(envs, steps)
    envs.close()
    return frames
