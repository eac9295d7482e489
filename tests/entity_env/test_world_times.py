"""The time in environments' own code is measured in the process that spends it."""

import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from entity_env import Action, Environment, EnvList, Observation, ObsSpace, ParallelEnvList, VecEnv
from entity_env.vec.vec_env import AddMetricsWrapper
from tests.entity_env.builders import random_choices
from tests.entity_env.worker_worlds import Slow
from tests.entity_env.worlds import SPACE, Bidding


class FiltersItself(Slow):
    def act_filter(self, actions: Mapping[str, Action], obs_filter: ObsSpace) -> Observation:
        time.sleep(0.002)
        return super().act_filter(actions, obs_filter)


def step(envs: VecEnv, steps: int) -> None:
    obs, rng = envs.reset(SPACE), np.random.default_rng(0)
    for _ in range(steps):
        obs = envs.act(random_choices(envs, obs, rng), SPACE)


@pytest.mark.alone
@pytest.mark.parametrize(("cls", "least_ms"), [(Slow, 2), (FiltersItself, 4)])
def test_nested_environment_methods_are_timed_once(cls: type[Environment], least_ms: int) -> None:
    envs = EnvList(cls, 3)
    start = time.perf_counter()
    step(envs, steps=4)
    took_s = time.perf_counter() - start
    (times,) = envs.process_times()
    assert 3 * 4 * least_ms / 1000 <= times.world_s <= took_s
    assert times.pid == os.getpid()
    assert times.waited_s == 0


@pytest.mark.alone
@pytest.mark.slow
def test_workers_report_their_times_and_waiting_times() -> None:
    envs = AddMetricsWrapper(ParallelEnvList(Slow, 4, 2))
    before = envs.process_times()
    step(envs, steps=5)
    after = envs.process_times()
    envs.close()
    assert len({os.getpid(), *(times.pid for times in after)}) == 3
    for one, other in zip(before, after, strict=True):
        assert one.pid == other.pid
        assert other.world_s - one.world_s >= 2 * 6 * 0.002
        assert other.cpu_s > one.cpu_s
        assert other.peak_bytes > 2**20
    assert sum(t.waited_s for t in after) - sum(t.waited_s for t in before) >= 5 * 2 * 0.002


def test_time_of_a_match_is_measured() -> None:
    class SlowBidding(Bidding):
        def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
            time.sleep(0.002)
            return super().act(actions)

    envs = EnvList(SlowBidding, 4)
    obs, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for _ in range(3):
        obs = envs.act(random_choices(envs, obs, rng), envs.obs_space())
    (times,) = envs.process_times()
    assert times.world_s >= 2 * 3 * 0.002
