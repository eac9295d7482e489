"""Short runs and evaluations of commands, for tests of the documentation.

In `short_runs()`, runs of this process end after their first update, of few environments and steps,
and evaluations have few episodes. Settings are read and checked with their own values. A run that
is resumed has the sizes of its save.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.run.session import TrainResult
from enn_trainer.run.trainer import Trainer
from enn_trainer.stop_conditions import Condition, Steps

NUM_ENVS = 4
POOL_ENVS = 16
"""Environments of a run with a pool of opponents, which play in a share of the matches."""
STEPS = 8
EPISODES = 4


def shorten(config: TrainConfig) -> None:
    """Reduce environments, steps and epochs of a run in place."""
    rollout, optim = config.rollout, config.optim
    rollout.num_envs = min(rollout.num_envs, NUM_ENVS if config.selfplay is None else POOL_ENVS)
    if not config._has_memory:
        rollout.steps = min(rollout.steps, STEPS)
    optim.bs = min(optim.bs, rollout.num_envs * rollout.steps // 2)
    optim.update_epochs = 1


def shorten_evaluation(config: EvalConfig) -> EvalConfig:
    """Return an evaluation of a few episodes or steps in a few environments."""
    num_envs = min(config.num_envs or NUM_ENVS, NUM_ENVS)
    steps = config.steps and min(config.steps, STEPS)
    episodes = config.episodes and min(config.episodes, EPISODES)
    return replace(config, num_envs=num_envs, steps=steps, episodes=episodes, processes=1)


@contextmanager
def short_runs() -> Iterator[None]:
    """Return a context in which runs and evaluations of this process are short."""
    init, run, suites = Trainer.__init__, Trainer.run, Evaluator._suites

    @functools.wraps(init)
    def short_init(self: Trainer, manager: Any, *arguments: Any, **options: Any) -> None:
        if getattr(manager, "resumed_from", None) is None:
            shorten(manager.config)
        init(self, manager, *arguments, **options)

    @functools.wraps(run)
    def short_run(self: Trainer, stop: Condition | None = None) -> TrainResult:
        update = Steps(self.state.step + 1)
        return run(self, update if stop is None else stop | update)

    def short_suites(self: Evaluator) -> list[tuple[str, EvalConfig]]:
        return [(name, shorten_evaluation(s)) for name, s in suites.__get__(self)]

    with (
        patch.object(Trainer, "__init__", short_init),
        patch.object(Trainer, "run", short_run),
        patch.object(Evaluator, "_suites", property(short_suites)),
    ):
        yield
