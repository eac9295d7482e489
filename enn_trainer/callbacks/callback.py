"""Base class of callbacks: hooks that are called at fixed points of a run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from enn_trainer.checkpoints.state import State
from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Rollout


class RunningTrainer(Protocol):
    """Interface of `Trainer` for callbacks.

    Attributes:
        config: configuration of the run.
        state: state of the run.
        rank: number of this process in a run of several, else 0. Hooks are called in all of them.
    """

    config: TrainConfig
    state: State
    rank: int

    @property
    def metrics(self) -> dict[str, float]:
        """Latest value of every tag, of updates and evaluations."""

    def set_parameters(self, samplers: Mapping[str, str]) -> None:
        """Draw arguments of new episodes from other samplers, such as `{"max_mines": "int 1 9"}`.

        Raises:
            ConfigError: a sampler cannot be read, the environments do not take an argument, or a
                curriculum sets it.
            ValueError: it is called in `on_rollout_end` or `on_minibatch`.
        """

    def request_stop(self, why: str) -> None:
        """Request that the run ends after the current update."""

    def save(self) -> Path | None:
        """Save the run now and return the path, or None without a `checkpoint_dir`.

        In `on_update_end` and `on_eval_end` it returns None: the save is made once the metrics are
        recorded, and `on_checkpoint` gets its path.
        """


class Callback:
    """Base class of callbacks; override the hooks that you need, the others do nothing.

    The order of hooks in a run; several callbacks are called in the order of the list:

        on_restore                  only if the run continues from a save
        on_train_start
        for each update:
            on_update_start
            on_rollout_end          frames are collected, nothing is learnt yet
            on_minibatch            after each optimizer step
            on_update_end           metrics are computed, but not yet tracked
        on_eval_end                 after each evaluation, which comes between updates
        on_checkpoint               after an update and its evaluation, or at the end: a save that
                                    was begun then or earlier is complete
        on_train_end                always, also if anything failed or a hook raised

    An exception in a hook ends the run like any other.

    A callback with `state_dict()`, `load_state_dict(state)` and a unique `name` is saved and
    restored with the run. The state must be plain data, as in JSON.
    """

    def on_restore(self, trainer: RunningTrainer) -> None:
        """Handle that the state was restored from a save."""

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """Handle the begin of `run`."""

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Handle the begin of an update."""

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Handle a rollout that was collected."""

    def on_minibatch(self, trainer: RunningTrainer, losses: Mapping[str, float]) -> None:
        """Handle the end of an optimizer step.

        Args:
            trainer: trainer of the run.
            losses: losses of this minibatch by tag.
        """

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Handle the end of an update.

        Args:
            trainer: trainer of the run.
            metrics: metrics to track, by tag. Entries that are added are tracked as well.
        """

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Handle the end of an evaluation.

        Args:
            trainer: trainer of the run.
            metrics: metrics to track, by tag. Entries that are added are tracked as well.
        """

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        """Handle a completed save, of this step or of an earlier one."""

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """Handle the end of `run`.

        Args:
            trainer: trainer of the run.
            error: exception that ends it, if it failed or was interrupted by a second signal.
        """


class RolloutCallback(Callback):
    """Base of callbacks that read a rollout once its update has succeeded."""

    _rollout: Rollout | None = None

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Free the rollout of an update that failed."""
        self._rollout = None

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Keep the rollout until the end of the update."""
        self._rollout = rollout

    def take_rollout(self) -> Rollout:
        """Return the rollout of the update that ends, and free it, as the next one needs memory."""
        rollout, self._rollout = self._rollout, None
        assert rollout is not None
        return rollout
