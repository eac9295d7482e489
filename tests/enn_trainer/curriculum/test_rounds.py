"""Rounds of episodes: the k-th episode of every environment, against loops over episodes."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.curriculum import rounds as rounds_module
from enn_trainer.curriculum.rounds import (
    Rounds,
    RunRounds,
    metric_of,
    newest_rounds,
)
from enn_trainer.experience.episodes import Episodes
from enn_trainer.testing import check_state_part
from entity_env.vec.vec_env import Metric

NUM_ENVS = 3
UPDATES = st.lists(
    st.lists(
        st.tuples(st.integers(0, NUM_ENVS - 1), st.sampled_from([math.nan, -1.0, 0.25, 2.0])),
        max_size=12,
    ),
    max_size=6,
)
"""Environment and value of the episodes that end in each update."""


def add(rounds: Rounds, ended: Sequence[tuple[int, float]]) -> dict[str, list[list[float]]]:
    """Add episodes of three environments, with a metric x; return what they complete."""
    environments = np.array([env for env, _ in ended], np.int64)
    values = {"x": np.array([value for _, value in ended], np.float64)}
    found = rounds.add(environments, NUM_ENVS, values)
    return {name: tally.tolist() for name, tally in found.items()}


@given(UPDATES)
def test_a_round_is_the_kth_episode_of_every_environment(
    updates: list[list[tuple[int, float]]],
) -> None:
    rounds, resumed, complete = Rounds(), Rounds(), []
    of_env: list[list[float]] = [[] for _ in range(NUM_ENVS)]
    for ended in updates:
        resumed = Rounds.from_plain(resumed.plain())  # a save and a resume after each update
        found = add(rounds, ended)
        assert add(resumed, ended) == found
        complete += found.get("x", [])
        for env, value in ended:
            of_env[env].append(value)
    expected = [
        [value for value in values if not math.isnan(value)]
        for values in zip(*of_env, strict=False)
    ]
    given = [tally for tally in complete if tally[0]]
    assert [tally[0] for tally in given] == [len(values) for values in expected if values]
    for (_, total, low, high), values in zip(given, filter(None, expected), strict=True):
        assert (total, low, high) == (sum(values), min(values), max(values))
    assert resumed.plain() == rounds.plain()


def test_rounds_started_during_episodes_exclude_them() -> None:
    """Long episodes are too many among those that run at some time."""
    rounds = Rounds.from_plain(None)
    assert add(rounds, [(0, 9.0), (1, 9.0), (0, 1.0)]) == {}
    assert add(rounds, [(2, 9.0), (1, 2.0), (2, 3.0)]) == {"x": [[3.0, 6.0, 1.0, 3.0]]}


def test_an_environment_far_ahead_of_a_slow_one_takes_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rounds_module, "MAX_ROUNDS", 4)
    rounds = Rounds()
    for value in range(50):
        assert add(rounds, [(0, value), (1, value)]) == {}
    assert len(rounds.tallies["x"]) == 4
    assert rounds.ended.tolist() == [4, 4, 0]
    assert rounds.late == [2]
    assert add(rounds, [(2, 0.0), (2, 0.0)])["x"] == [[3, 0, 0, 0], [3, 2, 0, 1]]
    assert add(rounds, [(0, 5.0)]) == {}
    assert rounds.ended.tolist() == [3, 2, 0]


def test_another_number_of_environments_restarts_rounds() -> None:
    rounds = Rounds()
    add(rounds, [(0, 1.0), (1, 1.0)])
    assert rounds.add(np.array([0, 1]), 2, {"x": np.array([3.0, 5.0])})["x"].tolist() == [
        [2, 8, 3, 5]
    ]


def test_means_are_over_the_newest_rounds_with_enough_episodes() -> None:
    tally = np.array([[3, 9, 2, 4], [0, 0, math.inf, -math.inf], [2, 2, 1, 1], [3, 0, 0, 0.0]])
    assert metric_of(newest_rounds(tally, 3)) == Metric(3, 0, 0, 0)
    assert metric_of(newest_rounds(tally, 4)) == Metric(5, 2, 0, 1)
    assert metric_of(newest_rounds(tally, 99)) == Metric(8, 11, 0, 4)
    assert metric_of(newest_rounds(tally[:0], 1)) == Metric()


@pytest.mark.parametrize(
    "plain",
    [
        {"first": 0, "ended": [0]},
        {"first": 1, "ended": [0], "tallies": {}},
        {"first": 0, "ended": ["0"], "tallies": {}},
        {"first": 0, "ended": [10**9], "tallies": {}},
        {"first": 0, "ended": [10**30], "tallies": {}},
        {"first": 0, "ended": [0], "tallies": {"x": [[1.0, 2.0]]}},
        {"first": 0, "ended": [0], "tallies": {"x": "many"}},
        {"first": 0, "ended": [1], "tallies": {"x": [[1.0, 0.0, 0.0, 0.0]] * 2}},
        [],
    ],
)
def test_damaged_rounds_raise(plain: object) -> None:
    with pytest.raises(ValueError, match="rounds: "):
        Rounds.from_plain(plain)


def ended(
    environments: Sequence[int], counted: Sequence[bool] | None = None, **metrics: Sequence[float]
) -> Episodes:
    named = {name: np.array(values, np.float64) for name, values in metrics.items()}
    is_counted = np.ones(len(environments), np.bool_) if counted is None else np.array(counted)
    return Episodes(np.array(environments, np.int64), named, is_counted=is_counted)


def test_run_metrics_are_over_the_completed_rounds() -> None:
    run, logged = RunRounds(), {"win.mean": 1.0, "losses/entropy": 2.0, "win.count": 3.0}
    run.add(ended([0, 0, 0], win=[1, 1, 1]), {"win": Metric(3, 3, 1, 1)}, 2, 8)
    assert run.over_rounds(logged, run.latest) == {"losses/entropy": 2.0, "win.count": 3.0}
    assert run.pop_fresh() == frozenset()
    run.add(ended([1, 1], win=[0, 1]), {"win": Metric(2, 1, 0, 1)}, 2, 8)
    assert run.over_rounds(logged, run.latest) | {"win.mean": 0.75, "win.min": 0.0} == {
        **logged,
        **{"win.mean": 0.75, "win.min": 0.0, "win.max": 1.0},
    }
    assert run.pop_fresh() == {"win.mean", "win.min", "win.max"}
    run.add(ended([]), {}, 2, 8)
    assert (run.fresh, run.pop_fresh()) == ({}, frozenset())
    assert run.latest["win.mean"] == 0.75


def test_step_metrics_are_not_episode_metrics() -> None:
    """They have more values than there are episodes, and are not biased by their lengths."""
    run, logged = RunRounds(), {"speed.mean": 3.0}
    run.add(ended([0, 1], speed=[1, 1]), {"speed": Metric(9, 27, 1, 9)}, 2, 8)
    assert run.over_rounds(logged, run.latest) == logged
    run.add(ended([0, 1], speed=[1, 1]), {"speed": Metric(2, 2, 1, 1)}, 2, 8)
    assert run.over_rounds(logged, run.latest) == logged


def test_episodes_of_opponents_end_rounds_without_a_value() -> None:
    run = RunRounds()
    run.add(ended([0, 1], [True, False], win=[1, 0]), {"win": Metric(1, 1, 1, 1)}, 2, 8)
    assert run.latest["win.mean"] == 1.0


def test_rounds_are_a_part_of_the_state() -> None:
    run = RunRounds()
    run.add(ended([0, 0, 1], win=[1, 0, 1], x=[1, 2, 3]), {"x": Metric(4)}, 2, 8)
    check_state_part(run, RunRounds())
    for change in (
        *({"latest": {"a": "b"}}, {"names": "x"}, {"rounds": 3}, {"of_steps": [1]}),
        {"waited": [1]},
    ):
        with pytest.raises(ValueError, match=r"latest|names|rounds|waited"):
            RunRounds().load_state_dict({**run.state_dict(), **change})
