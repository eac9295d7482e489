"""`Callbacks`: the callbacks of a run, and their saved states."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, runtime_checkable

from enn_trainer.algorithms.ppo.losses import LossStats
from enn_trainer.base.errors import RonError
from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.config import ron


@runtime_checkable
class Stateful(Protocol):
    """A callback that is saved and restored with the run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain data."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of a save."""


P = ParamSpec("P")
_STATES = "callbacks"


def _call_each(hook: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], None]:
    """Return a hook that calls the same hook of every callback, in order."""
    name = hook.__name__

    def call(callbacks: Iterable[Callback], /, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in callbacks:
            getattr(callback, name)(*args, **kwargs)

    return call


class Callbacks(Callback):
    """Composite of all callbacks of a run.

    Args:
        users: callbacks of the user.

    Attributes:
        users: callbacks of the user.
        first: callbacks that are called before the user's.
        last: callbacks that are called after the user's.
    """

    def __init__(self, users: Sequence[Callback]) -> None:
        self.users = tuple(users)
        self.first: list[Callback] = []
        self.last: list[Callback] = []
        self._stateful: dict[str, Stateful] = {}
        for callback in self.users:
            if not isinstance(callback, Callback):
                raise TypeError(f"callbacks: expected instances of Callback, got {callback!r}")
            if not isinstance(callback, Stateful):
                continue
            name = getattr(callback, "name", None)
            if not isinstance(name, str) or not name:
                raise ValueError(
                    f"callbacks: expected a name for {callback!r}, which has a state_dict, got none"
                )
            if name in self._stateful:
                raise ValueError(f"callbacks: expected unique names, got {name!r} twice")
            self._stateful[name] = callback

    def __iter__(self) -> Iterator[Callback]:
        yield from (*self.first, *self.users, *self.last)

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
        """Restore the states of `save_states`; `say` reports states without a callback."""
        for name, state in memory.get(_STATES, {}).items():
            if name in self._stateful:
                self._stateful[name].load_state_dict(copy.deepcopy(state))
            else:
                say(f"callbacks: no callback is named {name!r}; its saved state is kept")

    def on_minibatch(self, trainer: RunningTrainer, losses: Mapping[str, float]) -> None:
        """Call the hook of the user's callbacks."""
        for callback in self.users:
            callback.on_minibatch(trainer, losses)

    def on_optimizer_step(self, trainer: RunningTrainer, stats: LossStats) -> None:
        """Call `on_minibatch` if there are user callbacks: it transfers losses from the device."""
        if self.users:
            self.on_minibatch(trainer, stats.means())

    def on_train_end(self, trainer: RunningTrainer, error: BaseException | None) -> None:
        """Call the hook of every callback, even if one of them raises."""
        failed: BaseException | None = None
        for callback in self:
            try:
                callback.on_train_end(trainer, error)
            except BaseException as raised:
                failed = failed or raised
        if failed is not None:
            raise failed

    on_restore = _call_each(Callback.on_restore)
    on_train_start = _call_each(Callback.on_train_start)
    on_update_start = _call_each(Callback.on_update_start)
    on_rollout_end = _call_each(Callback.on_rollout_end)
    on_update_end = _call_each(Callback.on_update_end)
    on_eval_end = _call_each(Callback.on_eval_end)
    on_checkpoint = _call_each(Callback.on_checkpoint)
