"""Session of `Trainer.run`: signals, progress display, final evaluation and checkpoint, result."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from enn_trainer.base.errors import CheckpointError, RankError
from enn_trainer.callbacks.built_in import ProgressDisplay
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.callbacks.run_metrics import MetricsLog
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.run.checkpointing import Checkpoints
from enn_trainer.run.clusters import report_lost_head
from enn_trainer.run.running_episodes import RunningEpisodes
from enn_trainer.run.stopping import Stopping
from enn_trainer.runtime.interrupt import StoppedAtOnce, UpdateAbandoned
from enn_trainer.runtime.spans import Spans
from enn_trainer.stop_conditions import Condition


class TrainResult(float):
    """Result of training: the mean return of the last rollout in which an episode ended.

    NaN if no episode ended.

    Attributes:
        step: frames of the run, over all restarts.
        checkpoint: path of the last checkpoint, or None.
        eval: scalars of the last evaluation by name, empty without one.
        interrupted: True if a signal requested to stop.
        stopped_by: the reason why the run ended, as text.
    """

    step: int
    checkpoint: Path | None
    eval: Mapping[str, float]
    interrupted: bool
    stopped_by: str


class SessionTrainer(RunningTrainer, Protocol):
    """Protocol of `Trainer` for sessions."""

    manager: StateManager
    spans: Spans
    callbacks: Callbacks
    evaluation: RunEvaluator
    log: MetricsLog
    progress: ProgressDisplay
    stopping: Stopping
    checkpoints: Checkpoints
    episodes: RunningEpisodes

    def at_work(self) -> AbstractContextManager[None]:
        """Return a context for updates and evaluations, in which training time is counted."""

    def evaluate_now(self, is_asked: bool = False, is_end: bool = False) -> dict[str, float]:
        """Evaluate and notify the callbacks."""


class Session:
    """Progress of a call of `Trainer.run`.

    Attributes:
        reason: why the run ends; None while it continues.
        result: result of the run, at its end.
    """

    result: TrainResult

    def __init__(self, trainer: SessionTrainer) -> None:
        self._trainer = trainer
        self.reason: str | None = None

    def goes_on(self) -> bool:
        """Return True until there is a reason to end the run."""
        return self.reason is None

    def update(self) -> None:
        """Evaluate stop conditions, then save if a checkpoint is due.

        Call it once after each update and evaluation, as conditions have a state, which is saved.
        """
        trainer = self._trainer
        self.reason = trainer.stopping.reason()
        # If an evaluation is due, it comes first.
        if self.goes_on() and not trainer.evaluation.is_due():
            with trainer.spans.span("checkpoint"):
                trainer.checkpoints.save_if_due()

    def evaluate_at_end(self) -> None:
        """Evaluate, unless interrupted or evaluated at this step, and update conditions.

        Call it before the final checkpoint, whose manifest contains the result.
        """
        trainer, manager = self._trainer, self._trainer.manager
        manager.interrupted_by = trainer.stopping.agreed_signal()
        is_missing = trainer.log.last_eval_step != trainer.state.step
        is_wanted = trainer.config.eval is not None and is_missing
        if (is_wanted or trainer.evaluation.has_pending) and not manager.is_interrupted:
            trainer.evaluate_now(is_asked=is_wanted, is_end=True)
            trainer.stopping.reason()
            manager.interrupted_by = trainer.stopping.agreed_signal()


@contextmanager
def session(trainer: SessionTrainer, stop: Condition | None) -> Iterator[Session]:
    """Return the context of a call of `Trainer.run`.

    On entry it installs signal handlers, starts the progress display and calls callbacks; on exit,
    also after an error, it evaluates, saves and calls callbacks.

    Args:
        trainer: the trainer.
        stop: condition that ends the run, in addition to the configuration.
    """
    trainer.stopping.begin(stop)
    random = trainer.manager.random_return()  # before training time is counted
    display = trainer.progress.shown(trainer.episodes.message, random)
    with trainer.at_work(), display, trainer.stopping.signals():
        current, is_discarded, is_saving = Session(trainer), False, False
        try:
            with report_lost_head(trainer.manager.group):
                # Start, and run the updates of the trainer.
                if trainer.manager.resumed_from is not None:
                    trainer.callbacks.on_restore(trainer)
                trainer.callbacks.on_train_start(trainer)
                current.reason = trainer.stopping.reason()
                if current.reason is not None and trainer.manager.is_resumed_in_place:
                    trainer.progress.say(_finished(trainer.manager, current.reason))
                try:
                    yield current
                except UpdateAbandoned:  # it did not finish in time after a stop request
                    current.reason = "interrupted mid-update; the update was discarded"
                    is_discarded = True

                # Evaluate and save.
                current.evaluate_at_end()
                trainer.checkpoints.wait()
                is_saving, is_interrupted = True, trainer.manager.is_interrupted
                trainer.checkpoints.save_at_end(
                    current.reason or "", "interrupted" if is_interrupted else "end", is_discarded
                )
        except BaseException as error:
            trainer.manager.leave(error)
            is_save_failed = is_saving and isinstance(error, CheckpointError)
            try:
                # Save after an error, unless the run stops at once, or saving or another rank
                # failed: then the newest checkpoint stands, as after the death of the process.
                if not (is_save_failed or isinstance(error, StoppedAtOnce | RankError)):
                    trainer.episodes.are_valid = False  # they may be broken
                    trainer.checkpoints.save_after_failure()
            finally:
                trainer.callbacks.on_train_end(trainer, error)
            raise
        trainer.callbacks.on_train_end(trainer, None)

        # The result.
        mean_return = trainer.metrics.get("episodic_reward.mean", float("nan"))
        current.result = result = TrainResult(mean_return)
        result.step = trainer.state.step
        result.checkpoint = trainer.checkpoints.last
        result.eval = trainer.log.last_eval
        result.interrupted = trainer.manager.is_interrupted
        result.stopped_by = current.reason or ""


def _finished(manager: StateManager, reason: str) -> str:
    """Return the message about a resumed run that ends before its first update."""
    return (
        f"nothing was trained: {reason} in {manager.checkpoint_dir}; raise that limit to continue "
        "this run, or train in another folder"
    )
