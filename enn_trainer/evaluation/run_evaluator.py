"""Evaluations of a run: when they are due, and who plays them."""

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
from enn_trainer.evaluation.remote import PlayElsewhere, UnderWay
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.torch_group import current_group
from entity_env.seeding import global_randomness_kept

EVALUATIONS = "evaluations"
"""Name of the evaluations under way in `State.memory`."""
_COUNTS = ("episodes", "missing", "max_steps", "limit")


class Evaluation(NamedTuple):
    """Evaluation whose results have not counted yet.

    Attributes:
        step: step of the weights.
        due: step at which the results count.
        under_way: the evaluation that is played; None once it has results.
        results: results by suite; None before they arrived.
    """

    step: int
    due: int
    under_way: UnderWay | None
    results: Mapping[str, SuiteResult] | None = None

    def waited_for(
        self,
        stop: Callable[[], bool] = lambda: False,
        watch: Watch = lambda suite, share: None,
    ) -> "Evaluation":
        """Return the evaluation with results, without them if `stop` returned True before."""
        if self.results is not None or self.under_way is None:
            return self
        results = self.under_way.results(stop, watch)
        return self if results is None else self._replace(under_way=None, results=results)

    def plain(self) -> dict[str, Any]:
        """Return an evaluation with results as plain data."""
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
    def of_plain(plain: Mapping[str, Any]) -> "Evaluation":
        """Return the evaluation that `plain` returned."""
        results = {
            one["suite"]: SuiteResult(
                metrics=_metrics_of(one["metrics"]),
                opponents={o["name"]: _metrics_of(o["metrics"]) for o in one["opponents"]},
                **{name: one[name] for name in _COUNTS},
            )
            for one in plain["suites"]
        }
        return Evaluation(plain["step"], plain["due"], None, results)


def _plain_metrics(metrics: Mapping[str, Measured]) -> list[dict[str, Any]]:
    return [{"name": name, **vars(measured)} for name, measured in metrics.items()]


def _metrics_of(plain: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    fields = Measured.__dataclass_fields__
    return {one["name"]: Measured(**{name: one[name] for name in fields}) for one in plain}


class RunEvaluator(Evaluator):
    """Evaluator of a run, which knows when an evaluation is due.

    Attributes:
        elsewhere: plays evaluations, with `eval.ray`; None to play them here.
        group: processes of the run, which share its evaluations out, see `is_shared`.
        evaluated_step: step of the weights to which `results` belong.
        counts_at: step at which a longer run lets these results count; later than the present one
            at the end of a run alone, where nothing is waited for.
        is_extra: True if they are of an evaluation that only the end of the run asked for, so that
            a longer run would not have played it.
    """

    _state: State
    elsewhere: PlayElsewhere | None = None
    evaluated_step: int | None = None
    counts_at: int | None = None
    is_extra: bool = False
    _end_asked: bool = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = current_group()
        saved = self._state.memory.get(EVALUATIONS, [])
        self._pending = [Evaluation.of_plain(one) for one in saved]
        # Check arguments that vary now, as the first evaluation may be late.
        for name, suite in self._suites:
            if suite.env is not None and suite.env.vary:
                opened = self._suite_envs.open(self._config, self._state, name, suite, processes=1)
                with global_randomness_kept(), opened:
                    pass

    def is_due(self) -> bool:
        """Return True if an evaluation starts at this step, or the results of one count."""
        return self._starts() or bool(self._counting())

    def play(
        self, stop: Callable[[], bool], watch: Watch, is_asked: bool = False, is_end: bool = False
    ) -> list[Evaluation]:
        """Evaluate, or begin to, if an evaluation starts; return those whose results count now.

        Args:
            stop: called before each step, or while waiting; True ends the evaluation early.
            watch: progress callback.
            is_asked: True to evaluate at this step and to wait for it.
            is_end: True at the end of the run, when the results of all evaluations count.

        Raises:
            Exception: an evaluation failed.
        """
        group, settings = self.group, self._config.eval
        finished: list[Evaluation] = []
        others: list[int] = []
        play = partial(self._play, is_asked=is_asked, is_end=is_end)
        if group.size == 1:
            return play(partial(self.measure, stop, watch), stop, watch)
        if settings is None or is_shared(settings):
            measure = partial(self._measure_together, stop, watch, others)
            return play(measure, lambda: bool(others), watch)

        def lead(alive: Callable[[], None]) -> list[Any]:
            if not group.leads:
                return []

            def is_stopped() -> bool:
                alive()
                return stop() or bool(others)

            measure = partial(self.measure, is_stopped, watch)
            finished.extend(play(measure, is_stopped, watch))
            pending = [[one.step, one.due] for one in self._pending]
            plain = [one.plain() for one in finished]
            return [plain, pending, self._state.next_eval_step, self._end_asked]

        told = group.together(lead, "evaluating", lambda: int(stop()), others.append)[0]
        if not group.leads:
            finished = [Evaluation.of_plain(one) for one in told[0]]
            self._pending = [Evaluation(step, due, None) for step, due in told[1]]
            self._state.next_eval_step, self._end_asked = told[2:]
        return finished

    def _measure_together(
        self, stop: Callable[[], bool], watch: Watch, told: list[int]
    ) -> dict[str, SuiteResult]:
        """Evaluate in all ranks, which have equal results; {} if one of them ended it early.

        Args:
            stop: called before each step; True ends it early in all ranks.
            watch: progress callback.
            told: gets an item, in all ranks, if it was ended early.
        """

        def work(alive: Callable[[], None]) -> dict[str, Any]:
            def is_stopped() -> bool:
                alive()
                return stop() or bool(told)

            played = self._play_suites(is_stopped, watch, group=self.group)
            return {n: counts.plain() for n, (counts, _) in played.items() if counts is not None}

        found = self.group.together(work, "evaluating", lambda: int(stop()), told.append)
        if told:
            return {}
        results = {}
        for name, suite in self._suites:
            counts = EpisodeCounts.cat([of_rank[name] for of_rank in found if name in of_rank])
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
        """Evaluate, by `measure` if not elsewhere, as `play`."""
        # Begin.
        self._end_asked = is_end and not self._starts()
        finished: list[Evaluation] = []
        if is_asked or self._starts():
            step = self._state.step
            if self.elsewhere is None:
                results = measure()
                finished = [] if stop() else [Evaluation(step, step, None, results)]
            else:
                lag = self._lag if self._starts() and (is_end or not is_asked) else 0
                begun = Evaluation(step, step + lag, self.begin(self.elsewhere))
                if lag and not is_end:
                    self._pending.append(begun)
                else:
                    begun = begun.waited_for(stop, watch)
                    finished = [] if begun.results is None else [begun]
            if stop():
                return []
            self.advance()

        # Wait for those that count now.
        for evaluation in self._pending[:] if is_end else self._counting():
            done = evaluation.waited_for(stop, watch)
            if done.results is None:
                break
            self._pending.remove(evaluation)
            finished.append(done)
        return sorted(finished, key=lambda one: one.step)

    def scalars_with(self, settings: EvalConfig) -> dict[str, float]:
        """Evaluate the suites of other settings, and return their scalars by tag."""
        other, never = copy.copy(self), lambda: False
        other._config = replace(self._config, eval=settings)
        other._opponents = other._make_opponents()
        if self.group.size > 1 and is_shared(settings):
            return scalars_of(other._measure_together(never, lambda suite, share: None, []))

        def lead(alive: Callable[[], None]) -> dict[str, float]:
            return scalars_of(other.measure(_never_but(alive))) if self.group.leads else {}

        return self.group.together(lead, "evaluating")[0]

    def take(self, evaluation: Evaluation) -> dict[str, float]:
        """Make the results of an evaluation the newest ones, and return its scalars."""
        assert evaluation.results is not None
        self.results, self.evaluated_step = evaluation.results, evaluation.step
        self.counts_at = evaluation.due
        self.is_extra = self._end_asked and evaluation.step == evaluation.due == self._state.step
        return scalars_of(evaluation.results)

    @property
    def has_pending(self) -> bool:
        """True if there are evaluations whose results have not counted."""
        return bool(self._pending)

    def store(self, group: Group) -> None:
        """Wait for evaluations under way, and store their results in the state.

        Args:
            group: processes that wait for rank 0.

        Raises:
            Exception: an evaluation failed; `store` leaves it out the next time.
        """
        memory = self._state.memory
        memory.pop(EVALUATIONS, None)

        def lead(alive: Callable[[], None]) -> None:
            if not group.leads:
                return
            waiting, self._pending = self._pending, []
            for i, evaluation in enumerate(waiting):
                try:
                    self._pending.append(evaluation.waited_for(_never_but(alive)))
                except BaseException:
                    self._pending += waiting[i + 1 :]
                    raise
            memory[EVALUATIONS] = [one.plain() for one in self._pending]

        if self._pending:
            group.together(lead, "saving")

    def close(self) -> None:
        """End evaluations under way."""
        for evaluation in self._pending:
            if evaluation.under_way is not None:
                evaluation.under_way.cancel()

    def advance(self) -> None:
        """Set the step of the next evaluation, if one was due."""
        while self._starts():  # not twice at one step
            assert self._config.eval is not None
            assert self._state.next_eval_step is not None
            self._state.next_eval_step += self._config.eval.interval

    def _starts(self) -> bool:
        due = self._state.next_eval_step
        return self._config.eval is not None and due is not None and self._state.step >= due

    def _counting(self) -> list[Evaluation]:
        """Return the evaluations under way whose results count at this step."""
        return [one for one in self._pending if one.due <= self._state.step]

    @property
    def _lag(self) -> int:
        """Number of frames from the step of an evaluation to that at which its results count."""
        config = self._config
        assert config.eval is not None
        return config.eval.lag * config.rollout.steps * self._state.frames_per_step(config)


def _never_but(alive: Callable[[], None]) -> Callable[[], bool]:
    """Return a function for `stop` that calls `alive` and returns False."""

    def stop() -> bool:
        alive()
        return False

    return stop


def is_shared(settings: EvalConfig) -> bool:
    """Return True if all ranks of a run play an evaluation, each some of its environments.

    Rank 0 alone plays, or waits for, what records or films environments and what is played
    elsewhere.
    """
    records = settings.capture_samples or settings.capture_videos or settings.capture_replays
    return settings.ray is None and not records
