"""Episode statistics."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from entity_env import AddMetricsWrapper, EnvList, Metric
from tests.entity_env.builders import expected_episodes, play
from tests.entity_env.worlds import Walk


def check(counted: list[bool], envs: AddMetricsWrapper) -> None:
    frames = play(envs, 20)[1:]
    expected = expected_episodes(4, 20, counted)
    length = sum((obs.metrics["episode_length"] for obs in frames), Metric())
    reward = sum((obs.metrics["episodic_reward"] for obs in frames), Metric())
    assert length.count == reward.count == len(expected)
    assert length.sum == sum(n for n, _ in expected)
    assert (length.min, length.max) == (min(expected)[0], max(expected)[0])
    np.testing.assert_allclose(reward.sum, sum(total for _, total in expected))
    for obs in frames:
        rows = np.array(counted)
        things = obs.features["Thing"].lengths[rows]
        assert obs.metrics["entity_count/Thing"].sum == things.sum()
        assert (
            obs.metrics["entity_count"].max == (things + 1).max()
        )  # 1 for the goal; global features are no entity
        assert not [name for name in obs.metrics if "__global__" in name]
        assert obs.metrics["step"].count == obs.metrics["reward"].count == rows.sum()
        np.testing.assert_allclose(obs.metrics["reward"].sum, obs.reward[rows].sum(), rtol=1e-6)
        values = obs.env_metrics["x"]
        if "x" in obs.metrics:
            totals = [values[int(i)].values.sum() for i in np.flatnonzero(rows)]
            np.testing.assert_allclose(obs.metrics["x"].sum, sum(totals))
            assert obs.metrics["x"].count == values.lengths[rows].sum()


def test_metrics_of_all_environments() -> None:
    check([True] * 4, AddMetricsWrapper(EnvList(Walk, 4)))


def test_metrics_of_some_environments() -> None:
    """In an evaluation against an opponent only the policy's own sides count."""
    counted = [True, False, True, False]
    check(counted, AddMetricsWrapper(EnvList(Walk, 4), np.array(counted)))


def test_reset_clears_the_statistics() -> None:
    envs = AddMetricsWrapper(EnvList(Walk, 4))
    first = [obs.metrics for obs in play(envs, 7)[1:]]
    assert first == [obs.metrics for obs in play(envs, 7)[1:]]


@given(st.lists(st.lists(st.integers(-9, 9), min_size=3, max_size=3), min_size=1))
def test_metrics_of_rows_equal_the_metric_of_each_row(rows: list[list[int]]) -> None:
    for cut in (0, 1, 3):
        counts = np.array(rows, dtype=np.int64)[:, :cut]
        assert Metric.of_each(counts) == [Metric.of(row) for row in counts]


def test_metrics_accept_values_of_any_dtype_and_shape() -> None:
    assert Metric.of(np.array([[True, True], [True, False]])) == Metric(4, 3.0, 0.0, 1.0)
    assert Metric.of(np.array([[3, -1]], dtype=np.int8)) == Metric(2, 2.0, -1.0, 3.0)


def test_the_mean_of_no_values_is_zero() -> None:
    metric = Metric()
    assert metric.mean == 0.0
    metric.push(3.0)
    metric.push(1.0)
    assert (metric.mean, metric.min, metric.max) == (2.0, 1.0, 3.0)
    assert metric + Metric() == metric == Metric.of(np.array([3.0, 1.0]))
