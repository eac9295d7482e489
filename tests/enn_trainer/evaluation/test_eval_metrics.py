"""Numbers of evaluations: means over episodes and how far they may be off."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.evaluation.eval_metrics import (
    NO_END,
    EpisodeCounts,
    EpisodeStatistics,
    mean_over_episodes,
    quotas,
)
from entity_env import EnvList, ParallelEnvList
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.vec_env import Metric, add_metrics
from tests.entity_env.builders import play
from tests.entity_env.clocks import Clocks
from tests.entity_env.worlds import Walk


def test_interval_with_single_values_is_the_t_interval() -> None:
    """Four values 1, 2, 3, 6: mean 3, variance 14/3, 3.182 * sqrt(14/3/4) = 3.437."""
    mean, ci95 = mean_over_episodes(np.array([1.0, 2.0, 3.0, 6.0]), np.ones(4))
    assert mean == 3
    assert ci95 == pytest.approx(3.437, abs=1e-3)
    assert mean_over_episodes(np.array([4.0]), np.ones(1)) == (4.0, None)


def test_many_values_of_one_episode_count_as_one_observation() -> None:
    """Ten times the same value in every episode says nothing more than once."""
    sums = np.array([1.0, 2.0, 3.0, 6.0])
    once = mean_over_episodes(sums, np.ones(4))
    assert mean_over_episodes(10 * sums, np.full(4, 10.0)) == pytest.approx(once)


def test_interval_covers_the_mean_at_the_nominal_rate() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(2000):
        counts = rng.integers(1, 6, size=20).astype(float)
        sums = counts * rng.normal(5, 1, size=20)
        mean, ci95 = mean_over_episodes(sums, counts)
        assert ci95 is not None
        covered += abs(mean - 5) <= ci95
    assert 0.92 < covered / 2000 < 0.97


@given(st.integers(1, 500), st.lists(st.booleans(), min_size=1, max_size=40).filter(any))
def test_quotas_are_equal_up_to_the_remainder(episodes: int, counted: list[bool]) -> None:
    quota = quotas(episodes, np.array(counted))
    assert quota.sum() == episodes
    assert not quota[~np.array(counted)].any()
    assert np.ptp(quota[np.array(counted)]) <= 1


def first_episodes(envs: Any, quota: Any, steps: int) -> EpisodeCounts:
    statistics = EpisodeStatistics(envs, np.array(quota))
    play(statistics, steps)
    envs.close()
    return statistics.counts


def test_only_the_first_episodes_of_each_environment_count() -> None:
    frames = play(EnvList(Walk, 3), 30)[1:]
    returns, lengths, rewards = [], [], []
    for i, quota in enumerate([2, 0, 1]):
        reward = np.array([obs.reward[i] for obs in frames], dtype=np.float64)
        ends = np.flatnonzero([obs.done[i] for obs in frames])[:quota]
        parts = np.split(reward, ends + 1)[:quota]
        returns += [part.sum() for part in parts]
        lengths += [len(part) for part in parts]
        rewards += [value for part in parts for value in part]
    counts = first_episodes(EnvList(Walk, 3), [2, 0, 1], 30)
    assert counts.is_done()
    assert (counts.num_episodes(), counts.num_missing()) == (3, 0)
    found = counts.measured()
    assert found["episodic_reward"].mean == pytest.approx(np.mean(returns))
    assert found["episodic_reward"].count == 3
    assert (found["episode_length"].min, found["episode_length"].max) == (
        min(lengths),
        max(lengths),
    )
    assert found["reward"].count == sum(lengths)
    assert found["reward"].mean == pytest.approx(np.mean(rewards))


def test_frames_between_episodes_do_not_count() -> None:
    quota = [2, 0, 3, 1]
    at_once = first_episodes(AnyVecEnv(Clocks(4, waits=0)), quota, 40).measured()
    later = first_episodes(AnyVecEnv(Clocks(4, waits=2)), quota, 40).measured()
    assert later == at_once
    assert at_once["t"].min == 1


@pytest.mark.slow
def test_statistics_do_not_depend_on_the_number_of_processes() -> None:
    one = first_episodes(EnvList(Walk, 5), [2] * 5, 30).measured()
    three = first_episodes(ParallelEnvList(Walk, 5, 3), [2] * 5, 30).measured()
    assert one == three


def test_without_quotas_running_episodes_count() -> None:
    found = first_episodes(EnvList(Walk, 3), [NO_END] * 3, 5)
    assert found.measured()["reward"].count == 15
    assert found.num_missing() == 0
    assert not found.is_done()


def test_metric_without_values_has_no_mean() -> None:
    found = first_episodes(EnvList(Walk, 1), [0], 1).measured()["episodic_reward"]
    assert found.count == 0
    assert math.isnan(found.mean)
    assert found.ci95 is None


def test_global_features_are_not_counted_as_entities() -> None:
    """`Walk` shows global features, one goal and some things."""
    found = first_episodes(EnvList(Walk, 3), [NO_END] * 3, 5).measured()
    assert "entity_count/__global__" not in found
    each = sum(found[f"entity_count/{name}"].mean for name in Walk().obs_space().entities)
    assert Walk().obs_space().global_features
    assert found["entity_count"].mean == pytest.approx(each)


def test_concatenated_counts_equal_joint_counts() -> None:
    """Also of a metric that one part never had, and in the order of ends."""
    rng, quota = np.random.default_rng(0), np.array([NO_END, 3, 9, 0, NO_END])
    whole, parts = EpisodeCounts(quota), [EpisodeCounts(quota[:2]), EpisodeCounts(quota[2:])]
    for step in range(40):
        values, ended = rng.normal(size=5), np.flatnonzero(rng.random(5) < 0.2)
        pieces = [(whole, slice(0, 5)), (parts[0], slice(0, 2)), (parts[1], slice(2, 5))]
        for counts, own in pieces:
            everyone = np.arange(own.stop - own.start)
            counts.tallies["reward"].add(everyone, values[own])
            if own.stop == 5 and step == 7:
                counts.tallies["rare"].add(everyone[-1:], values[own])
            add_metrics(counts.aggregates, {"load": Metric.of(np.ones(len(everyone)))})
            inside = ended[(ended >= own.start) & (ended < own.stop)] - own.start
            for tally in counts.tallies.values():
                tally.end_episodes(inside, step)
            counts.num_ended[inside] += 1
    joined = EpisodeCounts.cat([unpack(pack(part.plain())) for part in parts])
    assert joined.measured() == whole.measured()
    assert whole.measured()["load"].count == 200
    among = np.array([False, True, True, False, True])
    assert joined.measured(among) == whole.measured(among)
    assert (joined.num_episodes(), joined.num_missing()) == (
        whole.num_episodes(),
        whole.num_missing(),
    )
