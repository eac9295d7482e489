"""Evaluations of a run, whose opponents are made once, before training starts."""

from collections.abc import Callable
from dataclasses import replace

import torch

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.envs import EnvFactory
from enn_trainer.evaluation.evaluate import (
    SuiteResult,
    Watch,
    check_videos,
    create_opponents,
    evaluate,
)
from enn_trainer.evaluation.opponents import CreateOpponent
from enn_trainer.lanes import Lanes
from enn_trainer.state import State


class Evaluator:
    """Evaluator of the agent of a run.

    Args:
        config: configuration of the run.
        create_envs: factory of environments.
        create_opponent: factory of opponents.
        state: state of the run, with the agent.
        device: device of the agents.
        lanes: lanes in which forward passes are computed.

    Attributes:
        results: results of the last evaluation of the configuration, by suite.

    Raises:
        ConfigError: an opponent does not exist, or videos are configured but not possible.
    """

    def __init__(
        self,
        config: TrainConfig,
        create_envs: EnvFactory,
        create_opponent: CreateOpponent,
        state: State,
        device: torch.device,
        lanes: Lanes,
    ) -> None:
        self._config = config
        self._create_envs = create_envs
        self._create_opponent = create_opponent
        self._state = state
        self._device = device
        self._lanes = lanes
        self._opponents = create_opponents(config, create_opponent, state, device)
        check_videos(config, create_envs, state)
        self.results: dict[str, SuiteResult] = {}

    def is_due(self) -> bool:
        """Return True if an evaluation is due at this step."""
        due = self._state.next_eval_step
        return self._config.eval is not None and due is not None and self._state.step >= due

    def advance(self) -> None:
        """Set the step of the next evaluation, if one was due."""
        while self.is_due():  # not twice at one step
            assert self._config.eval is not None
            assert self._state.next_eval_step is not None
            self._state.next_eval_step += self._config.eval.interval

    def measure(self, stop: Callable[[], bool], watch: Watch) -> dict[str, SuiteResult]:
        """Evaluate the suites of the configuration; see `evaluate`."""
        self.results = evaluate(
            self._config,
            self._create_envs,
            self._state,
            self._opponents,
            self._device,
            stop,
            watch,
            lanes=self._lanes,
        )
        return self.results

    def measure_with(self, settings: EvalConfig) -> dict[str, SuiteResult]:
        """Evaluate the suites of other settings."""
        config = replace(self._config, eval=settings)
        opponents = create_opponents(config, self._create_opponent, self._state, self._device)
        return evaluate(
            config, self._create_envs, self._state, opponents, self._device, lanes=self._lanes
        )
