"""Driver of a search: trains trials, judges them, and trains the best ones with fresh seeds."""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import final

from enn_trainer.checkpoints.disk import remove
from enn_trainer.checkpoints.run_lock import claim, is_locked
from enn_trainer.runtime.interrupt import Interrupts, interrupted_status
from enn_trainer.tuning.judge import Curve, Score, best_trials, has_next_seed, is_pruned
from enn_trainer.tuning.report import winner, write_report
from enn_trainer.tuning.study import Limits, Study
from enn_trainer.tuning.trials import RunRecord, TrialRun

MOST_FAILURES = 3
"""Number of failures of a run after which its trial has failed."""
WARMUP_SHARE = 0.2
"""Share of the frames of a run before which it is not pruned."""
STATES = {"completed": "COMPLETE", "pruned": "PRUNED", "not finite": "PRUNED", "failed": "FAIL"}
"""States of a trial by the ending of its run."""
PINS = "pins.json"
"""File in the folder of a run with pinned checkpoints."""


@final
@dataclass(eq=False)
class Driver:
    """Driver of a search; several may work on one study.

    Attributes:
        study: the study.
        limits: how far it goes.
        anyway: take up running trials of other hosts.
    """

    study: Study
    limits: Limits
    anyway: bool = False
    _interrupts: Interrupts = field(default_factory=Interrupts, init=False)
    _is_failed: bool = field(default=False, init=False)
    _runs: set[TrialRun] = field(default_factory=set, init=False)

    def run(self) -> int:
        """Search, confirm and write the report; return the exit status: 1 without any result.

        Raises:
            ConfigError: the configuration refuses nearly all combinations.
        """
        study, running = self.study, list[str]()
        try:
            with self._interrupts:
                self._in_parallel([self._search] * self.limits.jobs)
                if not self._is_stopped():
                    running += [
                        f"{trial.number} on {trial.user_attrs.get('host')}"
                        for trial in study.trials("RUNNING")
                    ]
                if running:
                    print(
                        f"running in other processes: trial {', '.join(running)}; the last process "
                        "to end confirms, and --anyway takes up trials of a lost host"
                    )
                elif not self._is_stopped():
                    self._in_parallel(self._confirmations())
                    self._remove_saves()
        finally:
            write_report(study)
        has_failed = not running and winner(study) is None
        return interrupted_status(self._interrupts.number) or int(has_failed)

    def _is_stopped(self) -> bool:
        return self._is_failed or self._interrupts.requested

    def _in_parallel(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run tasks in threads, the number of jobs at a time; raise the first error."""
        with ThreadPoolExecutor(self.limits.jobs) as pool:
            futures: list[Future[None]] = [pool.submit(task) for task in tasks]
            try:
                while wait(futures, timeout=0.2).not_done:
                    self._is_failed = any(f.done() and f.exception() for f in futures)
            except BaseException:  # a second signal
                self._is_failed = True
                for run in [*self._runs]:
                    run.kill()
                raise
        for future in futures:
            future.result()

    # Search.

    def _search(self) -> None:
        """Train one trial after the other, until there is no more or the driver is stopped."""
        while not self._is_stopped():
            with self.study.next_trial(self.limits, self.anyway) as number:
                if number is None:
                    return
                self._train_trial(number)

    def _train_trial(self, number: int) -> None:
        """Train a trial with one seed after the other, from where it was left, and end it."""
        study, plan = self.study, self.study.plan
        for seed in range(plan.base.seed, plan.first_fresh_seed):
            scores, run = study.scores(number), study.runs(number).get(seed)
            completed = [study.scores(trial.number) for trial in study.trials("COMPLETE")]
            if run is None and scores and not has_next_seed(scores, completed, plan.seeds):
                break
            if run is None:
                is_first = seed == plan.base.seed
                run = self._train(number, seed, partial(self._is_over, number, is_first))
                if run is None:
                    return
                study.record(number, seed, run)
            if run.ending == "not finite":
                study.report(number, run.frames + 1, math.nan)
            if run.score is None:
                self._end(number, STATES[run.ending], run.error)
                return
        self._end(number, "COMPLETE")

    def _is_over(self, number: int, is_first: bool, curve: Curve) -> bool:
        """Report the newest value, if it is of the first seed; return True to prune the run."""
        if not is_first:
            return False
        plan, step = self.study.plan, max(curve)
        self.study.report(number, step, curve[step])
        is_early = step < WARMUP_SHARE * plan.base.total_timesteps
        if plan.prune == "none" or number == 0 or is_early:
            return False
        signed = {at: plan.sign * value for at, value in curve.items()}
        return is_pruned(step, signed, self.study.completed_curves())

    def _end(self, number: int, state: str, error: str = "") -> None:
        """End a trial, and print its result."""
        study, plan = self.study, self.study.plan
        is_complete = state == "COMPLETE"
        value = plan.sign * Score.of(study.scores(number)).mean if is_complete else None
        study.tell(number, state, value)
        self._remove_saves()
        result = f"{plan.tag} {value:.4g}" if value is not None else state.lower()
        changes = ", ".join(study.overrides(number)) or "the configuration as it is"
        print(f"trial {number}: {result}{f' ({error})' if error else ''}: {changes}")

    def _train(
        self, number: int, seed: int, is_over: Callable[[Curve], bool] = lambda curve: False
    ) -> RunRecord | None:
        """Train a run of a trial, again if it fails; return None if the driver was stopped."""
        run = TrialRun(self.study.run_dir(number, seed), self.study.arguments(number, seed))
        self._runs.add(run)
        try:
            for _ in range(MOST_FAILURES):
                record = run.follow(self.study.plan.tag, is_over, self._is_stopped)
                if record.ending != "failed":
                    break
        finally:
            self._runs.discard(run)
        return None if record.ending == "stopped" else record

    # Confirmation.

    def _confirmations(self) -> list[Callable[[], None]]:
        """Return a task for each run with a fresh seed: of the best trials, and of trial 0."""
        scores, first = self.study.completed_scores(), self.study.plan.first_fresh_seed
        numbers = dict.fromkeys([*best_trials(scores), *({0} & scores.keys())])
        seeds = range(first, first + self.limits.confirm)
        return [partial(self._confirm, number, seed) for seed in seeds for number in numbers]

    def _confirm(self, number: int, seed: int) -> None:
        """Train a trial with a fresh seed, unless another driver does or did so."""
        # Another name than the one of the run, which its process claims.
        with claim(self.study.trial_dir(number) / f"confirm-{seed}") as is_claimed:
            recorded = self.study.confirmed().get(number, {})
            if not is_claimed or seed in recorded or self._is_stopped():
                return
            run = self._train(number, seed)
            if run is not None:
                self.study.record_confirmed(number, seed, run)
                result = run.error if run.score is None else f"{run.score:.4g}"
                print(f"trial {number}, fresh seed {seed}: {result}")

    def _remove_saves(self) -> None:
        """Remove the checkpoints of trials that have ended, except for those to be kept."""
        study, keep = self.study, self.limits.keep
        if keep == "all":
            return
        best = [*best_trials(study.completed_scores()), winner(study)] if keep == "best" else []
        for trial in study.trials("COMPLETE", "PRUNED", "FAIL"):
            for run_dir in study.trial_dir(trial.number).glob("seed-*/"):
                is_free = not is_locked(run_dir) and not (run_dir / PINS).exists()
                if trial.number not in best and is_free:
                    with suppress(OSError):
                        for path in [*run_dir.glob("step-*"), run_dir / "index.json"]:
                            remove(path)
