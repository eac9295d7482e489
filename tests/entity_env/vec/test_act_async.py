"""`act_async` and `wait` of any vectorized environment."""

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from entity_env import AddMetricsWrapper, EntityEnvError, EnvList, ParallelEnvList, VecEnv
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv
from tests.entity_env.builders import assert_same, random_choices
from tests.entity_env.worlds import SPACE, Walk


def workers() -> VecEnv:
    return ParallelEnvList(Walk, 3, 2)


def one_worker(first: int = 0) -> VecEnv:
    return ParallelEnvList(Walk, 3, 1, first_env_index=first)


def here(first: int = 0) -> VecEnv:
    return EnvList(Walk, 3, first_env_index=first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "wrap"),
    [
        (workers, lambda envs: envs),
        (here, lambda envs: envs),
        (workers, AddMetricsWrapper),
        (here, AnyVecEnv),
    ],
    ids=["workers", "here", "wrapped", "any"],
)
def test_act_async_and_wait_equal_act(
    make: Callable[[], VecEnv], wrap: Callable[[VecEnv], VecEnv]
) -> None:
    rng = np.random.default_rng(0)
    with contextlib.closing(wrap(make())) as apart, contextlib.closing(wrap(here())) as together:
        for envs in (apart, together):
            envs.seed(3)
        expected = together.reset(SPACE)
        assert_same(apart.reset(SPACE), expected)
        for _ in range(8):
            choices = random_choices(together, expected, rng)
            apart.act_async(choices, SPACE)
            expected = together.act(choices, SPACE)
            assert_same(apart.wait(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_worker, here], ids=["workers", "here"])
def test_alternating_halves_return_the_frames_of_all_at_once(make: Callable[[int], VecEnv]) -> None:
    """While one half of the environments steps, a policy can answer the other."""
    rng = np.random.default_rng(0)
    with (
        contextlib.closing(make(0)) as first,
        contextlib.closing(make(3)) as second,
        contextlib.closing(EnvList(Walk, 6)) as whole,
    ):
        for envs in (first, second, whole):
            envs.seed(3)
        expected, first_obs, second_obs = (envs.reset(SPACE) for envs in (whole, first, second))
        for _ in range(8):
            choices = random_choices(whole, expected, rng)
            halves = {name: chosen.split([3, 3]) for name, chosen in choices.items()}
            first.act_async({name: half[0] for name, half in halves.items()}, SPACE)
            second.act_async({name: half[1] for name, half in halves.items()}, SPACE)
            first_obs, second_obs = first.wait(), second.wait()
            expected = whole.act(choices, SPACE)
            assert_same(type(first_obs).cat([first_obs, second_obs]), expected)


@pytest.mark.slow
@pytest.mark.parametrize("make", [one_worker, here], ids=["workers", "here"])
def test_calling_act_async_or_wait_twice_raises(make: Callable[[], VecEnv]) -> None:
    with contextlib.closing(make()) as envs:
        obs = envs.reset(SPACE)
        choices = random_choices(envs, obs, np.random.default_rng(0))
        with pytest.raises(EntityEnvError, match="wait: call act_async first"):
            envs.wait()
        envs.act_async(choices, SPACE)
        with pytest.raises(EntityEnvError, match="act_async: call wait first"):
            envs.act_async(choices, SPACE)
        for late in (lambda: envs.reset(SPACE), lambda: envs.seed(1)):
            with pytest.raises(EntityEnvError, match="call wait first"):
                late()
        envs.wait()


def test_recordings_with_act_async_equal_those_with_act(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    contents = []
    for apart in (False, True):
        path = tmp_path_factory.mktemp("run") / "file"
        rng = np.random.default_rng(0)
        with contextlib.closing(RecordingVecEnv(here(), path)) as envs:
            envs.seed(3)
            obs = envs.reset(SPACE)
            for _ in range(8):
                choices = random_choices(envs, obs, rng)
                if apart:
                    envs.act_async(choices, SPACE)
                    obs = envs.wait()
                else:
                    obs = envs.act(choices, SPACE)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert len(list(Recording.open(path).episodes())) > 0
