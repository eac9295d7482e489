"""What users can do at fixed points of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from enn_trainer.config import TrainConfig
from enn_trainer.ppo.rollout import Rollout
from enn_trainer.state import State


class RunningTrainer(Protocol):
    """What a callback needs to know of a `Trainer`, which is one.

    Attributes:
        config: of the run.
        state: of the run.
    """

    config: TrainConfig
    state: State

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of every tag, of updates and evaluations."""

    def request_stop(self, why: str) -> None:
        """Let the run end after the running update."""

    def save(self) -> Path | None:
        """Save the run now; where, None without a `checkpoint_dir`."""


class Callback:
    """Derive from it and override what you need. All hooks do nothing by themselves.

    The order within a run, in which several callbacks are called in the order of the list:

        on_restore                  only if the run continues from a save
        on_train_start
        for each update:
            on_update_start
            on_rollout_end          the frames are there, nothing is learnt yet
            on_minibatch            after each optimizer step
            on_update_end           everything is learnt and counted, nothing is written yet
            on_checkpoint           only if the run was saved
        on_eval_end                 after each evaluation, which comes between updates
        on_checkpoint               of the last save
        on_train_end                always, also if anything failed or a hook raised

    An exception in a hook ends the run like any other.
    """

    def on_restore(self, trainer: RunningTrainer) -> None:
        """The state is that of a save."""

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """`run` begins."""

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """The next update begins."""

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Frames were collected."""

    def on_minibatch(self, trainer: RunningTrainer, losses: Mapping[str, float]) -> None:
        """An optimizer step was taken.

        Args:
            trainer: of the run.
            losses: of this minibatch, by their tags.
        """

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """An update is over.

        Args:
            trainer: of the run.
            metrics: what will be tracked, by tag. Entries that are added are tracked as well.
        """

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """An evaluation is over.

        Args:
            trainer: of the run.
            metrics: what will be tracked, by tag. Entries that are added are tracked as well.
        """

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        """The run was saved in `path`."""

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """`run` ends.

        Args:
            trainer: of the run.
            error: what it ends with, if it failed or was interrupted by a second signal.
        """


class Callbacks(Callback):
    """All callbacks of a run as one, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of Callback, got {callback!r}")

    def __len__(self) -> int:
        return len(self._callbacks)

    def on_restore(self, trainer: RunningTrainer) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_restore(trainer)

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_train_start(trainer)

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_update_start(trainer)

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_rollout_end(trainer, rollout)

    def on_minibatch(self, trainer: RunningTrainer, losses: Mapping[str, float]) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_minibatch(trainer, losses)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_update_end(trainer, metrics)

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_eval_end(trainer, metrics)

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        """Tell all."""
        for callback in self._callbacks:
            callback.on_checkpoint(trainer, path)

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """Tell all, also if one of them raises."""
        failed: BaseException | None = None
        for callback in self._callbacks:
            try:
                callback.on_train_end(trainer, error)
            except BaseException as raised:
                failed = failed or raised
        if failed is not None:
            raise failed
