"""Callbacks: hooks of users, called at fixed points of a run."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from enn_trainer.config import TrainConfig, ron
from enn_trainer.errors import RonError
from enn_trainer.experience.collector import Rollout
from enn_trainer.state import State


class RunningTrainer(Protocol):
    """Interface of `Trainer` for callbacks.

    Attributes:
        config: configuration of the run.
        state: state of the run.
    """

    config: TrainConfig
    state: State

    @property
    def metrics(self) -> dict[str, float]:
        """Latest value of every tag, of updates and evaluations."""

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


@runtime_checkable
class Stateful(Protocol):
    """A callback that is saved and restored with the run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a save."""


_STATES = "callbacks"


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Stateful]:
    named: dict[str, Stateful] = {}
    for callback in callbacks:
        if not isinstance(callback, Stateful):
            continue
        name = getattr(callback, "name", None)
        if not isinstance(name, str) or not name:
            raise ValueError(f"callbacks: {callback!r} has a state_dict: expected a name as well")
        if name in named:
            raise ValueError(f"callbacks: expected unique names, got {name!r} twice")
        named[name] = callback
    return named


class Callbacks(Callback):
    """Composite of all callbacks of a run, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of Callback, got {callback!r}")
        self._stateful = _by_name(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def save_states(self, memory: dict[str, Any]) -> None:
        """Store the states of stateful callbacks in `State.memory`.

        Raises:
            ValueError: a state is not plain data; the message names the callback.
        """
        states = dict(memory.get(_STATES, {}))
        for name, callback in self._stateful.items():
            states[name] = copy.deepcopy(callback.state_dict())
            try:
                ron.dumps(states[name])
            except RonError as error:
                raise ValueError(f"callbacks: state_dict of {name!r}: {error}") from None
        if states:
            memory[_STATES] = states

    def load_states(self, memory: Mapping[str, Any], say: Callable[[str], None]) -> None:
        """Restore the states that `save_states` stored; `say` gets those without a callback."""
        for name, state in memory.get(_STATES, {}).items():
            if name in self._stateful:
                self._stateful[name].load_state_dict(copy.deepcopy(state))
            else:
                say(f"callbacks: there is none with the name {name!r}, its state is kept")

    def on_restore(self, trainer: RunningTrainer) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_restore(trainer)

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_train_start(trainer)

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_update_start(trainer)

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_rollout_end(trainer, rollout)

    def on_minibatch(self, trainer: RunningTrainer, losses: Mapping[str, float]) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_minibatch(trainer, losses)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_update_end(trainer, metrics)

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_eval_end(trainer, metrics)

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        """Call the hook of every callback."""
        for callback in self._callbacks:
            callback.on_checkpoint(trainer, path)

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """Call the hook of every callback, also if one of them raises."""
        failed: BaseException | None = None
        for callback in self._callbacks:
            try:
                callback.on_train_end(trainer, error)
            except BaseException as raised:
                failed = failed or raised
        if failed is not None:
            raise failed
