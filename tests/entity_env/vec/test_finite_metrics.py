"""Metrics that are NaN or infinite count as missing, with one warning, unless they are required."""

import logging
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest

from entity_env import (
    AddMetricsWrapper,
    EnvList,
    InvalidObservation,
    Metric,
    ParallelEnvList,
    Ragged,
    VecObs,
)
from entity_env.process import warned
from entity_env.spaces import ObsSpace
from tests.entity_env.builders import play
from tests.entity_env.clocks import Clocks
from tests.entity_env.gauges import Gauges


@pytest.fixture(autouse=True)
def _no_warning_so_far() -> Iterator[None]:
    before = [*warned]
    warned.clear()
    yield
    warned[:] = before


@pytest.mark.parametrize(
    ("broken", "processes"),
    [("nan", 0), ("inf", 0), ("-inf", 0), pytest.param("nan", 2, marks=pytest.mark.slow)],
)
def test_metrics_that_are_not_finite_count_as_missing_with_one_warning(
    processes: int, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    create = partial(Gauges, broken=broken)
    envs: Any = EnvList(create, 4, validate=True)
    if processes:
        envs.close()
        envs = ParallelEnvList(create, 4, processes, validate=True)
    with caplog.at_level(logging.WARNING):
        frames = play(AddMetricsWrapper(envs), 6)[1:]
    envs.close()
    speeds = [obs.metrics["speed"] for obs in frames]
    assert speeds == [Metric(4, 4, 1, 1), Metric(), Metric(4, 12, 3, 3)] * 2
    assert [obs.metrics["ratio"] for obs in frames if "ratio" in obs.metrics] == [Metric()] * 2
    assert [obs.env_metrics["speed"].lengths.tolist() for obs in frames[:2]] == [[1] * 4, [0] * 4]
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2
    assert [
        word in text
        for word, text in zip(("speed", "ratio"), sorted(texts, reverse=True), strict=True)
    ] == [True] * 2


def test_finite_values_of_other_environments_count() -> None:
    class Some(Clocks):
        def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
            obs = super().act(actions, obs_filter)
            obs.env_metrics["t"].values[1] = np.nan
            obs.metrics["t"] = Metric.of(obs.env_metrics["t"].values)
            return obs

    envs = AddMetricsWrapper(Some(4, waits=0), np.array([True, True, False, True]))
    for obs in play(envs, 5)[1:]:
        assert obs.env_metrics["t"].lengths.tolist() == [1, 0, 1, 1]
        assert obs.metrics["t"].count == 2
        assert np.isfinite(obs.metrics["t"].sum)


def test_metrics_without_values_per_environment_are_dropped_as_a_whole() -> None:
    class Sums(Clocks):
        def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
            obs = super().act(actions, obs_filter)
            obs.metrics["load"] = Metric.of(np.array([1.0, np.nan]))
            return obs

    envs = AddMetricsWrapper(Sums(3))
    assert not any("load" in obs.metrics for obs in play(envs, 3))
    envs.finite.is_required = "load".__eq__
    with pytest.raises(InvalidObservation, match=r"metrics\['load'\]: expected finite numbers"):
        play(envs, 3)


def test_metrics_of_padding_frames_are_ignored() -> None:
    class Resets(Clocks):
        def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
            before = self.left > 0
            obs = super().act(actions, obs_filter)
            obs.env_metrics["t"].values[before] = np.nan
            obs.metrics["t"] = Metric.of(obs.env_metrics["t"].values)
            return obs

    envs = AddMetricsWrapper(Resets(4))
    envs.finite.is_required = "t".__eq__
    frames = play(envs, 9)
    assert {obs.metrics["t"].count for obs in frames[1:]} >= {3, 4}


def test_errors_of_required_metrics_name_environment_and_step() -> None:
    envs = AddMetricsWrapper(EnvList(Gauges, 2, first_env_index=6))
    envs.finite.is_required, envs.finite.first_env_index = "speed".__eq__, 6
    with pytest.raises(
        InvalidObservation, match=r"^environment 6, step 2: metrics\['speed'\]"
    ) as e:
        play(envs, 3)
    assert (e.value.env_index, e.value.step) == (6, 2)


def test_metrics_with_the_name_of_a_computed_metric_are_renamed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Scored(Clocks):
        def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
            obs = super().act(actions, obs_filter)
            rows = Ragged(np.full(3, 100.0), np.ones(3, np.int64))
            for name in ("reward", "env/reward", "entity_count/Clock", "episode_length"):
                obs.env_metrics[name], obs.metrics[name] = rows, Metric.of(rows.values)
            return obs

    renamed = {"env/reward", "env/env/reward", "env/entity_count/Clock", "env/episode_length"}
    with caplog.at_level(logging.WARNING):
        frames = play(AddMetricsWrapper(Scored(3)), 4)[1:]
    for obs in frames:
        assert renamed <= obs.metrics.keys()
        assert {obs.metrics[name].max for name in renamed} == {100.0}
        assert obs.metrics["reward"].max == obs.reward.max() < 100
        assert renamed <= obs.env_metrics.keys()
    assert sum("metrics['reward']: logged as 'env/reward'" in m for m in caplog.messages) == 1
