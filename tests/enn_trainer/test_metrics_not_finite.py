"""A metric that is not finite ends a run only if something depends on it."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, train
from enn_trainer.stop_conditions import AtLeast, is_read
from entity_env import InvalidObservation
from entity_env.process import warned
from tests.entity_env.gauges import Gauges

SMALL = [
    *("rollout.num_envs=4", "rollout.steps=6", "rollout.processes=1", "optim.bs=24"),
    *("net.d_model=16", "net.n_layer=1", "optim.update_epochs=1", "total_timesteps=72"),
    *("checkpoint.every_seconds=inf", "cuda=false"),
]
EVAL = ["eval.interval=24", "eval.episodes=4", "eval.num_envs=2", "eval.processes=1"]
LESSONS = (
    'curricula={"c": (lessons: [(name: "one", vary: {"level": "0"}, until: ["%s >= 9"], '
    'episodes: 4), (name: "two", vary: {"level": "1"})])}'
)


@pytest.fixture(autouse=True)
def _no_warning_so_far() -> Iterator[None]:
    before = [*warned]
    warned.clear()
    yield
    warned[:] = before


def run(folder: Path, *overrides: str, **kwargs: Any) -> dict[str, float]:
    manager = StateManager(overrides=[*SMALL, *overrides], checkpoint_dir=folder / "run")
    manager.say = lambda line: None
    train(manager, Gauges, **kwargs)
    return manager.state.metrics


@pytest.mark.slow
def test_unread_metric_that_is_not_finite_counts_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With one warning, in rollouts and evaluations together."""
    with caplog.at_level(logging.WARNING):
        metrics = run(
            tmp_path,
            *EVAL,
            LESSONS % "win.mean",
            'stop=["eval/win.mean >= 2"]',
            'checkpoint.best=["level.max max"]',
        )
    assert metrics["speed.mean"] == metrics["eval/speed.mean"] == 2
    assert (metrics["speed.count"], metrics["ratio.count"]) == (16, 0)
    assert "ratio.mean" not in metrics
    assert all(map(math.isfinite, (v for tag, v in metrics.items() if "speed" in tag)))
    texts = [record.getMessage() for record in caplog.records]
    assert len([text for text in texts if "'speed'" in text]) == 1
    assert len([text for text in texts if "'ratio'" in text]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "stop"),
    [
        (['stop=["speed.max >= 9"]'], None),
        (['checkpoint.best=["ratio.mean max"]'], None),
        ([LESSONS % "ratio.mean"], None),
        ([LESSONS % "speed.count"], None),
        ([*EVAL, 'stop=["eval/speed.mean >= 9"]'], None),
        ([*EVAL, 'checkpoint.best=["eval/ratio.min min"]'], None),
        ([*EVAL, LESSONS % "eval/ratio.mean"], None),
        ([], AtLeast("speed.mean", 9) & AtLeast("level.mean", 9)),
        (EVAL, AtLeast("eval/speed.mean", 9)),
        (
            [*EVAL, 'eval.suites={"hard": (episodes: 2)}', 'stop=["eval/hard/speed.mean >= 9"]'],
            None,
        ),
    ],
)
def test_metric_of_a_condition_that_is_not_finite_is_an_error(
    settings: list[str], stop: Any, tmp_path: Path
) -> None:
    with pytest.raises(
        InvalidObservation, match=r"environment \d, step \d: metrics\['(speed|ratio)"
    ):
        run(tmp_path, *settings, stop=stop)


def test_tags_match_the_metric_with_their_name() -> None:
    assert is_read({"eval/a.b.mean"}, "eval/", "a.b")
    assert is_read({"x.max", "win.mean"}, "", "win")
    assert not is_read({"eval/win.mean", "windy.mean"}, "", "win")
    assert not is_read([], "", "win")
