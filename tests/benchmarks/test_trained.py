"""`benchmarks/trained.py`: frames to a return, and runs that take turns."""

from typing import Any

import pytest

from entity_env.examples import MoveToOrigin


@pytest.fixture
def trained(benchmark: Any) -> Any:
    return benchmark("trained")


def test_frames_to_threshold_use_the_recent_mean(trained: Any) -> None:
    class Running:
        class state:  # noqa: N801
            step = 0

    frames_to = trained.FramesTo(0.5)
    for step, mean in enumerate([1.0, 0.0, None, 0.0, 0.9, 0.6, 0.6, 0.6], start=1):
        Running.state.step = 100 * step
        frames_to.on_update_end(Running(), {} if mean is None else {"episodic_reward.mean": mean})
    assert frames_to.frames == 700  # the mean of 0, 0.9, 0.6 and 0.6


def test_median_of_frames_is_infinite_if_most_runs_miss_the_threshold(trained: Any) -> None:
    results = [
        {"seed": 1, "almost": 1200},
        {"seed": 2, "almost": None},
        {"seed": 3, "almost": None},
    ]
    shown, median = trained.frames_by_seed(results)
    assert shown == "1: 1,200, 2: never, 3: never"
    assert median == float("inf")


def test_alternating_runs_are_timed(trained: Any) -> None:
    small = ("rollout.num_envs=2", "rollout.steps=8", "optim.bs=16", "rollout.processes=1")
    seconds = trained.seconds_in_turns({"a": (MoveToOrigin, small), "b": (MoveToOrigin, small)}, 2)
    assert seconds.keys() == {"a", "b"}
    assert all(value > 0 for value in seconds.values())
