"""Stopping of a run: limits, conditions, requests and signals."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from enn_trainer.base.errors import ConfigError
from enn_trainer.callbacks.run_metrics import MetricsLog
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.curriculum_config import metrics_of
from enn_trainer.config.schedules import total_steps
from enn_trainer.config.train_config import read_best
from enn_trainer.curriculum.rounds import RunRounds
from enn_trainer.runtime.interrupt import Interrupts
from enn_trainer.stop_conditions import Condition, Now, any_of, read_bound
from enn_trainer.tracking.track_services import EVAL_PREFIX
from entity_env.errors import did_you_mean


class Stopping:
    """Decides when a run ends.

    Args:
        manager: state manager of the run; the state includes the memory of conditions.
        log: metrics of the run.
        say: prints a line.

    Attributes:
        interrupts: received signals, inside of the context `signals`.
        read_tags: tags of metrics that stop conditions, curricula or retention depend on.
    """

    def __init__(self, manager: StateManager, log: MetricsLog, say: Callable[[str], None]) -> None:
        self._manager, self._log, self._say = manager, log, say
        self._config, self._state = manager.config, manager.state
        self.interrupts = Interrupts()
        self._condition: Condition | None = None
        self._request: str | None = None
        self._unknown: set[str] = set()
        self._best_keys = [read_best(text).key for text in manager.config.checkpoint.best]
        self._lesson_keys = metrics_of(manager.config.curricula)
        self._bounds = [read_bound(text, "stop") for text in manager.config.stop]
        bound_keys = (bound.key for bound in self._bounds)
        self.read_tags = {*self._best_keys, *self._lesson_keys, *bound_keys}

    def begin(self, condition: Condition | None) -> None:
        """Start a run with a stop condition in addition to the configuration.

        Raises:
            ConfigError: a condition reads metrics of evaluations, but `eval` is not set.
        """
        bounds = self._bounds
        self._condition = any_of(bounds if condition is None else [condition, *bounds])
        self._request = None
        keys = [] if self._condition is None else [*self._condition.keys()]
        self.read_tags.update(keys)
        for key in keys:
            if key.startswith(EVAL_PREFIX) and self._config.eval is None:
                raise ConfigError(
                    f"stop: {key}: expected evaluations, got none; set eval.interval and "
                    "eval.steps or eval.episodes"
                )

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Return a context in which signals request that the run stops."""
        with Interrupts() as self.interrupts:
            try:
                yield
            finally:
                self.interrupts = Interrupts()  # requests do not outlive the run

    def check(self) -> None:
        """Raise within an update if it must be abandoned.

        Raises:
            UpdateAbandoned: a signal requested to stop some seconds ago.
        """
        self.interrupts.check()

    def request(self, why: str) -> None:
        """Request that the run ends."""
        self._request = why

    def reason(self) -> str | None:
        """Return why the run ends, or None if it continues; equal in all ranks.

        Call it once after each update and evaluation, as conditions have a state.
        """
        local = self._condition_met(), self._limit_reached(), self._request, self.interrupts.number
        met, limits, requests, numbers = zip(
            *self._manager.group.gather(local, "agreeing"), strict=True
        )
        self._take_signals(numbers)
        interrupted = "interrupted" if self.interrupts.requested else None
        reasons = (*met, *limits, interrupted, *requests)
        return next((reason for reason in reasons if reason is not None), None)

    def agreed_signal(self) -> int:
        """Return the signal that requested to stop in any rank; 0 if there is none."""
        self._take_signals(self._manager.group.gather(self.interrupts.number, "agreeing"))
        return self.interrupts.number

    def _take_signals(self, numbers: Sequence[int]) -> None:
        self.interrupts.take(next((number for number in numbers if number), 0))

    def _condition_met(self) -> str | None:
        """Return the condition if it is met, else None."""
        condition, logged, state = self._condition, self._log.pop_fresh(), self._state
        rounds = state.part(RunRounds)
        assert rounds is not None
        fresh = (logged - rounds.tags) | rounds.pop_fresh()
        self._warn_of_unknown("checkpoint.best", self._best_keys)
        self._warn_of_unknown("curricula", self._lesson_keys)
        if condition is None:
            return None
        self._warn_of_unknown("stop", condition.keys())
        memory = state.memory
        # A resumed run evaluates its condition again without new metrics, which does not count.
        number = memory["asked"] = memory.get("asked", 0) + bool(logged)
        now = Now(state.step, state.time_used, state.metrics_over_rounds(), fresh, number)
        return str(condition) if condition.is_met(now, memory) else None

    def _limit_reached(self) -> str | None:
        """Return the limit of steps or time that is reached, or None."""
        per_step = self._state.frames_per_step(self._config)
        if self._state.step >= total_steps(self._config, per_step):
            return f"total_timesteps of {self._config.total_timesteps} reached"
        limit = self._config.max_train_time
        if limit is not None and self._state.time_used >= limit:
            return f"max_train_time of {limit} seconds reached"
        return None

    def _warn_of_unknown(self, field: str, keys: Iterable[str]) -> None:
        """Warn once for each metric in a setting that has not been logged so far.

        This is not an error, as the environment may log the metric later.
        """
        latest, last_eval = self._log.latest, self._log.last_eval
        for key in sorted(set(keys) - latest.keys() - self._unknown):
            is_eval = key.startswith(EVAL_PREFIX)
            has_ended = not math.isnan(latest.get("episodic_reward.mean", math.nan))
            if last_eval if is_eval else has_ended:
                logged = last_eval if is_eval else latest
                hint = did_you_mean(repr(key), map(repr, logged))
                self._say(f"{field}: no metric {key!r} so far{hint}")
                self._unknown.add(key)
