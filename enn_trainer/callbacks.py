"""What users can do at fixed points of a run."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from enn_trainer.config import TrainConfig, ron
from enn_trainer.errors import RonError
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
        """Save the run now; where, None without a `checkpoint_dir`.

        In `on_update_end` and `on_eval_end` None: it is made when what is told there is counted,
        and `on_checkpoint` tells where.
        """


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
        on_eval_end                 after each evaluation, which comes between updates
        on_checkpoint               after an update and its evaluation, or at the end: a save that
                                    was begun then or earlier is complete
        on_train_end                always, also if anything failed or a hook raised

    An exception in a hook ends the run like any other.

    One that has `state_dict()`, `load_state_dict(state)` and a `name` of its own is saved and
    restored with the run. The state is plain data, as JSON has it.
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
        """A save is complete, of this step or of an earlier one."""

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """`run` ends.

        Args:
            trainer: of the run.
            error: what it ends with, if it failed or was interrupted by a second signal.
        """


@runtime_checkable
class Stateful(Protocol):
    """A callback that is saved and restored with the run."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: plain data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the state of a save."""


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
            raise ValueError(f"callbacks: expected names of their own, got {name!r} twice")
        named[name] = callback
    return named


class Callbacks(Callback):
    """All callbacks of a run as one, in their order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = tuple(callbacks)
        for callback in self._callbacks:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of Callback, got {callback!r}")
        self._stateful = _by_name(self._callbacks)

    def __len__(self) -> int:
        return len(self._callbacks)

    def save_states(self, memory: dict[str, Any]) -> None:
        """Put the states of the callbacks that have one into what a run remembers.

        Raises:
            ValueError: a state is not plain data; names the callback.
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
        """Give the callbacks what `save_states` put there; says which states nobody takes."""
        for name, state in memory.get(_STATES, {}).items():
            if name in self._stateful:
                self._stateful[name].load_state_dict(copy.deepcopy(state))
            else:
                say(f"callbacks: there is none with the name {name!r}, its state is kept")

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
