"""Evaluations during training: schedule, remote execution, and pending results."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from enn_trainer.base.group import Group
from enn_trainer.checkpoints.state import State
from enn_trainer.config import EvalConfig
from enn_trainer.evaluation.eval_metrics import EpisodeCounts
from enn_trainer.evaluation.evaluation import SuiteResult, Watch, scalars_of
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.evaluation.remote import RemoteEvaluator, RunningEvaluation
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.torch_group import current_group
from entity_env.seeding import preserve_global_rng

EVALUATIONS = "evaluations"
"""Key of pending evaluations in `State.memory`."""
_COUNTS = ("episodes", "missing", "max_steps", "limit")


class Evaluation(NamedTuple):
    """Evaluation with pending results.

    Attributes:
        step: training step of the weights.
        due: training step at which the results take effect.
        running: running evaluation; None once it has results.
        results: results by suite; None until they arrive.
    """

    step: int
    due: int
    running: RunningEvaluation | None
    results: Mapping[str, SuiteResult] | None = None

    def wait(
        self,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch = lambda suite, share: None,
    ) -> "Evaluation":
        """Return the evaluation with results, or without them if `stop` returned True first."""
        if self.results is not None or self.running is None:
            return self
        results = self.running.results(stop, watch)
        return self if results is None else self._replace(running=None, results=results)

    def plain(self) -> dict[str, Any]:
        """Convert an evaluation with results to plain data."""
        assert self.results is not None
        suites = [
            {
                "suite": suite,
                "metrics": _plain_metrics(result.metrics),
                **{name: getattr(result, name) for name in _COUNTS},
                "opponents": [
                    {"name": member, "metrics": _plain_metrics(against)}
                    for member, against in result.opponents.items()
                ],
            }
            for suite, result in self.results.items()
        ]
        return {"step": self.step, "due": self.due, "suites": suites}

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> "Evaluation":
        """Convert the result of `plain` back to an evaluation."""
        results = {
            suite["suite"]: SuiteResult(
                metrics=_metrics_of(suite["metrics"]),
                opponents={o["name"]: _metrics_of(o["metrics"]) for o in suite["opponents"]},
                **{name: suite[name] for name in _COUNTS},
            )
            for suite in plain["suites"]
        }
        return Evaluation(plain["step"], plain["due"], None, results)


def _plain_metrics(metrics: Mapping[str, Measured]) -> list[dict[str, Any]]:
    return [{"name": name, **vars(measured)} for name, measured in metrics.items()]


def _metrics_of(plain: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    fields = Measured.__dataclass_fields__
    return {one["name"]: Measured(**{name: one[name] for name in fields}) for one in plain}


class RunEvaluator(Evaluator):
    """Evaluator of a training run, with a schedule.

    Attributes:
        remote: starts remote evaluations, with `eval.ray`; None to evaluate in this process.
        group: ranks of the run, which share evaluations, see `is_shared`.
        evaluated_step: training step of the weights that `results` belong to.
        counts_at: step at which the results take effect in a longer run; later than the current
            step only at the end of a run, which does not wait.
        is_extra: True for an evaluation that only the end of the run requested; a longer run would
            not have it.
    """

    _state: State
    remote: RemoteEvaluator | None = None
    evaluated_step: int | None = None
    counts_at: int | None = None
    is_extra: bool = False
    _is_final: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = current_group()
        saved = self._state.memory.get(EVALUATIONS, [])
        self._pending = [Evaluation.from_plain(one) for one in saved]
        # Check varying arguments now, because the first evaluation may start late.
        for name, suite in self._suites:
            if suite.env is not None and suite.env.vary:
                opened = self._suite_envs.open(self._config, self._state, name, suite, processes=1)
                with preserve_global_rng(), opened:
                    pass

    def is_due(self) -> bool:
        """Return True if an evaluation starts at this step, or pending results take effect."""
        return self._starts() or bool(self._effective())

    def play(
        self, stop: Callable[[], bool], watch: Watch, is_asked: bool = False, is_end: bool = False
    ) -> list[Evaluation]:
        """Evaluate if an evaluation is due; return the evaluations that take effect now.

        Args:
            stop: called before each step, or while waiting; True ends the evaluation early.
            watch: progress callback.
            is_asked: True to evaluate at this step and to wait for the results.
            is_end: True at the end of the run, when all pending results take effect.

        Raises:
            Exception: an evaluation failed.
        """
        group, settings = self.group, self._config.eval
        finished: list[Evaluation] = []
        stops: list[int] = []
        play = partial(self._play, is_asked=is_asked, is_end=is_end)
        if group.size == 1:
            return play(partial(self.measure, stop, watch), stop, watch)
        if settings is None or is_shared(settings):
            measure = partial(self._measure_on_all_ranks, stop, watch, stops)
            return play(measure, lambda: bool(stops), watch)

        def lead(alive: Callable[[], None]) -> list[Any]:
            if not group.leads:
                return []

            def is_stopped() -> bool:
                alive()
                return stop() or bool(stops)

            measure = partial(self.measure, is_stopped, watch)
            finished.extend(play(measure, is_stopped, watch))
            pending = [[one.step, one.due] for one in self._pending]
            plain = [one.plain() for one in finished]
            return [plain, pending, self._state.next_eval_step, self._is_final]

        shared = group.together(lead, "evaluating", lambda: int(stop()), stops.append)[0]
        if not group.leads:
            finished = [Evaluation.from_plain(one) for one in shared[0]]
            self._pending = [Evaluation(step, due, None) for step, due in shared[1]]
            self._state.next_eval_step, self._is_final = shared[2:]
        return finished

    def _measure_on_all_ranks(
        self, stop: Callable[[], bool], watch: Watch, stops: list[int]
    ) -> dict[str, SuiteResult]:
        """Evaluate on all ranks, with equal results on each; {} if a rank ended it early.

        Args:
            stop: called before each step; True ends the evaluation early on all ranks.
            watch: progress callback.
            stops: receives an item, on all ranks, if the evaluation ended early.
        """

        def work(alive: Callable[[], None]) -> dict[str, Any]:
            def is_stopped() -> bool:
                alive()
                return stop() or bool(stops)

            played = self._play_suites(is_stopped, watch, group=self.group)
            return {n: counts.plain() for n, (counts, _) in played.items() if counts is not None}

        ranks = self.group.together(work, "evaluating", lambda: int(stop()), stops.append)
        if stops:
            return {}
        results = {}
        for name, suite in self._suites:
            counts = EpisodeCounts.cat([rank[name] for rank in ranks if name in rank])
            results[name] = self._result(name, suite, (counts, {}))
        return results

    def _play(
        self,
        measure: Callable[[], dict[str, SuiteResult]],
        stop: Callable[[], bool],
        watch: Watch,
        is_asked: bool,
        is_end: bool,
    ) -> list[Evaluation]:
        """Evaluate with `measure` or remotely; arguments as in `play`."""
        # Start the evaluation that is due at this step.
        self._is_final = is_end and not self._starts()
        finished: list[Evaluation] = []
        if is_asked or self._starts():
            step = self._state.step
            if self.remote is None:
                results = measure()
                finished = [] if stop() else [Evaluation(step, step, None, results)]
            else:
                lag = self._lag if self._starts() and (is_end or not is_asked) else 0
                started = Evaluation(step, step + lag, self.start(self.remote))
                if lag and not is_end:
                    self._pending.append(started)
                else:
                    started = started.wait(stop, watch)
                    finished = [] if started.results is None else [started]
            if stop():
                return []
            self.advance()

        # Wait for pending evaluations that take effect now.
        for evaluation in self._pending[:] if is_end else self._effective():
            done = evaluation.wait(stop, watch)
            if done.results is None:
                break
            self._pending.remove(evaluation)
            finished.append(done)
        return sorted(finished, key=lambda one: one.step)

    def scalars_with(self, settings: EvalConfig) -> dict[str, float]:
        """Evaluate the suites of other settings, and return their scalars by tag."""
        evaluator, never = copy.copy(self), lambda: False
        evaluator._config = replace(self._config, eval=settings)
        evaluator._opponents = evaluator._make_opponents()
        if self.group.size > 1 and is_shared(settings):
            return scalars_of(evaluator._measure_on_all_ranks(never, lambda suite, share: None, []))

        def lead(alive: Callable[[], None]) -> dict[str, float]:
            return scalars_of(evaluator.measure(_keep_alive(alive))) if self.group.leads else {}

        return self.group.together(lead, "evaluating")[0]

    def take(self, evaluation: Evaluation) -> dict[str, float]:
        """Store the results of an evaluation as the latest ones, and return its scalars."""
        assert evaluation.results is not None
        self.results, self.evaluated_step = evaluation.results, evaluation.step
        self.counts_at = evaluation.due
        self.is_extra = self._is_final and evaluation.step == evaluation.due == self._state.step
        return scalars_of(evaluation.results)

    @property
    def has_pending(self) -> bool:
        """True if evaluations are pending."""
        return bool(self._pending)

    def store(self, group: Group) -> None:
        """Wait for running evaluations and store their results in the state.

        Args:
            group: ranks that wait for rank 0.

        Raises:
            Exception: an evaluation failed; the next call omits it.
        """
        memory = self._state.memory
        memory.pop(EVALUATIONS, None)

        def lead(alive: Callable[[], None]) -> None:
            if not group.leads:
                return
            waiting, self._pending = self._pending, []
            for i, evaluation in enumerate(waiting):
                try:
                    self._pending.append(evaluation.wait(_keep_alive(alive)))
                except BaseException:
                    self._pending += waiting[i + 1 :]
                    raise
            memory[EVALUATIONS] = [one.plain() for one in self._pending]

        if self._pending:
            group.together(lead, "saving")

    def close(self) -> None:
        """Cancel running evaluations."""
        for evaluation in self._pending:
            if evaluation.running is not None:
                evaluation.running.cancel()

    def advance(self) -> None:
        """Advance the step of the next evaluation, if one was due."""
        while self._starts():  # at most one evaluation per step
            assert self._config.eval is not None
            assert self._state.next_eval_step is not None
            self._state.next_eval_step += self._config.eval.interval

    def _starts(self) -> bool:
        due = self._state.next_eval_step
        return self._config.eval is not None and due is not None and self._state.step >= due

    def _effective(self) -> list[Evaluation]:
        """Return the pending evaluations that take effect at this step."""
        return [one for one in self._pending if one.due <= self._state.step]

    @property
    def _lag(self) -> int:
        """Number of frames between an evaluation and the step at which its results take effect."""
        config = self._config
        assert config.eval is not None
        return config.eval.lag * config.rollout.steps * self._state.frames_per_step(config)


def _keep_alive(alive: Callable[[], None]) -> Callable[[], bool]:
    """Return a `stop` callback that calls `alive` and returns False."""

    def stop() -> bool:
        alive()
        return False

    return stop


def is_shared(settings: EvalConfig) -> bool:
    """Return True if the ranks of a run share the environments of an evaluation.

    Recordings, videos, replays and remote evaluations are made by rank 0 alone.
    """
    records = settings.capture_samples or settings.capture_videos or settings.capture_replays
    return settings.ray is None and not records
