"""Driver of a search: trains trials, judges them, and trains the best ones with fresh seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import final

from enn_trainer.checkpoints.disk import remove
from enn_trainer.checkpoints.run_lock import claim, is_locked
from enn_trainer.runtime.interrupt import Interrupts, interrupted_status
from enn_trainer.tuning.judge import (
    Curve,
    Score,
    best_trials,
    has_next_seed,
    is_pruned,
    score_of_run,
)
from enn_trainer.tuning.study import Limits, RunRecord, Study
from enn_trainer.tuning.trials import ENN_TRAIN, POLL_S, TrialRun, read_metric

MOST_FAILURES = 3
"""Number of failures of a run after which its trial has failed."""
WARMUP_SHARE = 0.2
"""Share of the frames of a run before which it is not pruned."""
STATES = {"completed": "COMPLETE", "pruned": "PRUNED", "not finite": "PRUNED", "failed": "FAIL"}
"""States of a trial by the ending of its run."""
PINS = "pins.json"
"""File in the folder of a run with pinned checkpoints."""


@final
class Driver:
    """Driver of a search; several may work on one study.

    Args:
        study: the study.
        limits: how far it goes.
        anyway: take up running trials of other hosts.
        program: program that trains, `enn train`.
        poll_s: seconds between two looks at the metrics of a run.
        say: prints a line.
    """

    def __init__(
        self,
        study: Study,
        limits: Limits,
        anyway: bool = False,
        program: Sequence[str] = ENN_TRAIN,
        poll_s: float = POLL_S,
        say: Callable[[str], None] = print,
    ) -> None:
        self.study, self.limits, self._anyway = study, limits, anyway
        self._program, self._poll_s, self._say = program, poll_s, say
        self._interrupts = Interrupts()
        self._is_failed = False
        self._runs: set[TrialRun] = set()

    def run(self) -> int:
        """Search and confirm; return the exit status.

        Raises:
            ConfigError: the configuration refuses nearly all combinations.
        """
        with self._interrupts:
            self._in_parallel([self._search] * self.limits.jobs)
            running = [trial.number for trial in self.study.trials("RUNNING")]
            if running and not self._is_stopped():
                self._say(
                    f"trials {', '.join(map(str, running))} are of other processes or hosts; the "
                    "last process to end confirms, and --anyway takes up trials of lost hosts"
                )
            elif not self._is_stopped():
                self._in_parallel(self._confirmations())
                self._remove_saves()
        return interrupted_status(self._interrupts.number)

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
            with self.study.next_trial(self.limits, self._anyway) as number:
                if number is None:
                    return
                self._train_trial(number)

    def _train_trial(self, number: int) -> None:
        """Train a trial with one seed after the other, from where it was left, and end it."""
        study, plan = self.study, self.study.plan
        first = plan.base.seed
        for seed in range(first, first + plan.seeds):
            scores, runs = study.scores(number), study.runs(number)
            completed = [study.scores(trial.number) for trial in study.trials("COMPLETE")]
            if seed not in runs and scores and not has_next_seed(scores, completed, plan.seeds):
                break
            is_over = partial(self._is_over, number) if seed == first else _never
            run = runs.get(seed) or self._train(number, seed, is_over)
            if run is None:
                return
            if seed not in runs:
                study.note(number, f"seed {seed}", [*run])
            if run.ending == "not finite":
                study.report(number, run.frames + 1, math.nan)
            if run.score is None:
                self._end(number, STATES[run.ending], None)
                return
        self._end(number, "COMPLETE", plan.sign * Score.of(study.scores(number)).mean)

    def _is_over(self, number: int, curve: Curve) -> bool:
        """Report the newest value of the first seed; return True if it is pruned."""
        plan, step = self.study.plan, max(curve)
        self.study.report(number, step, curve[step])
        is_early = step < WARMUP_SHARE * plan.base.total_timesteps
        if plan.prune == "none" or number == 0 or is_early:
            return False
        signed = {at: plan.sign * value for at, value in curve.items()}
        return is_pruned(step, signed, self.study.completed_curves())

    def _end(self, number: int, state: str, value: float | None) -> None:
        """End a trial, and say so."""
        study = self.study
        study.tell(number, state, value)
        self._remove_saves()
        trial = study.trial(number)
        result = f"{study.plan.tag} {value:.4g}" if value is not None else state.lower()
        error = next((run.error for run in study.runs(number).values() if run.error), "")
        changes = ", ".join(trial.user_attrs["overrides"]) or "the configuration as it is"
        self._say(f"trial {number}: {result}{f' ({error})' if error else ''}: {changes}")

    def _train(
        self, number: int, seed: int, is_over: Callable[[Mapping[int, float]], bool]
    ) -> RunRecord | None:
        """Train a run of a trial, again if it fails; return None if the driver was stopped."""
        study, tag = self.study, self.study.plan.tag
        arguments = study.arguments(number, seed)
        run = TrialRun(study.run_dir(number, seed), arguments, self._program, self._poll_s)
        self._runs.add(run)
        try:
            for _ in range(MOST_FAILURES):
                ending = run.follow(tag, is_over, self._is_stopped)
                if ending != "failed":
                    break
        finally:
            self._runs.discard(run)
        if ending == "stopped":
            return None
        metrics = read_metric(run.run_dir, tag)
        score = score_of_run(metrics.curve) if ending == "completed" else None
        error = run.last_line if ending in ("failed", "not finite") else ""
        return RunRecord(score, metrics.frames, run.seconds, ending, error)

    # Confirmation.

    def _confirmations(self) -> list[Callable[[], None]]:
        """Return a task for each run with a fresh seed: of the best trials, and of trial 0."""
        study = self.study
        scores = study.completed_scores()
        numbers = dict.fromkeys([*best_trials(scores), *({0} & scores.keys())])
        first = study.plan.base.seed + study.plan.seeds
        seeds = range(first, first + self.limits.confirm)
        return [partial(self._confirm, number, seed) for seed in seeds for number in numbers]

    def _confirm(self, number: int, seed: int) -> None:
        """Train a trial with a fresh seed, unless another driver does or did so."""
        # Another name than the one of the run, which its process claims.
        with claim(self.study.trial_dir(number) / f"confirm-{seed}") as is_claimed:
            recorded = self.study.confirmed().get(number, {})
            if not is_claimed or seed in recorded or self._is_stopped():
                return
            run = self._train(number, seed, _never)
            if run is not None:
                self.study.note_confirmed(number, seed, run)
                result = run.error if run.score is None else f"{run.score:.4g}"
                self._say(f"trial {number}, fresh seed {seed}: {result}")

    def _remove_saves(self) -> None:
        """Remove the checkpoints of finished trials that are not to be kept."""
        study, keep = self.study, self.limits.keep
        if keep == "all":
            return
        best = best_trials(study.completed_scores()) if keep == "best" else []
        for trial in study.trials("COMPLETE", "PRUNED", "FAIL"):
            for run_dir in study.trial_dir(trial.number).glob("seed-*/"):
                is_free = not is_locked(run_dir) and not (run_dir / PINS).exists()
                if trial.number not in best and is_free:
                    remove_saves(run_dir)


def remove_saves(run_dir: Path) -> None:
    """Remove the checkpoints in the folder of a run, which keeps its metrics."""
    with suppress(OSError):
        for path in [*run_dir.glob("step-*"), run_dir / "index.json"]:
            remove(path)


def _never(curve: Curve) -> bool:
    return False
