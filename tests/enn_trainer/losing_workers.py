"""A run that loses workers at random moments, and one of the same length that loses none."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from enn_trainer import State
from enn_trainer.callbacks import Callback
from entity_env.examples import Minefield
from entity_env.vec.worker import RestartQuota, WorkerProcess
from tests.enn_trainer.builders import run_small

WORKERS = 2
LONGEST_WAIT_S = 0.3
"""From a replacement to the next kill."""


def end_process(worker: WorkerProcess) -> None:
    """Kill the process of a worker."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(worker.process.pid, signal.SIGKILL)


class LosesWorkers(Callback):
    """Kills workers, also those that just begin, and ends the run once so many were replaced.

    Args:
        seed: of all choices.
        count: how many are to be lost.
        kill: ends a worker.
    """

    def __init__(self, seed: int, count: int, kill: Callable[[Any], None]) -> None:
        self._rng, self._kill, self.count = Random(seed), kill, count
        self.started: list[Any] = []
        self._thread = threading.Thread(target=self._kill_workers, daemon=True)
        self._ended = threading.Event()

    @property
    def losses(self) -> int:
        """Number of workers that were replaced."""
        return len(self.started) - WORKERS

    def on_train_start(self, trainer: Any) -> None:
        """Begin to kill."""
        self._thread.start()

    def on_update_end(self, trainer: Any, metrics: Any) -> None:
        """End the run after enough losses."""
        if self.losses >= self.count:
            trainer.request_stop("enough workers were lost")

    def on_train_end(self, trainer: Any, error: Any) -> None:
        """Kill no more."""
        self._ended.set()
        self._thread.join()

    def _kill_workers(self) -> None:
        while self.losses < self.count:
            known = len(self.started)
            self._kill_one()
            while len(self.started) == known:
                if self._ended.wait(0.001):
                    return
            self._ended.wait(self._rng.random() * LONGEST_WAIT_S)

    def _kill_one(self) -> None:
        newest = {worker.setup.first: worker for worker in self.started}
        self._kill(self._rng.choice([*newest.values()]))


class StopsAt(Callback):
    """Ends a run at a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_end(self, trainer: Any, metrics: Any) -> None:
        """End the run if it is there."""
        if trainer.state.step >= self.step:
            trainer.request_stop("as far as the other one")


@contextlib.contextmanager
def noted(kind: type[Any], started: list[Any]) -> Iterator[None]:
    """Return a context in which all workers of a kind are noted, and any number is replaced."""
    begin = kind.__init__

    def begin_and_note(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        started.append(self)

    unlimited = patch.object(RestartQuota, "take", lambda self: None)
    with patch.object(kind, "__init__", begin_and_note), unlimited:
        yield


def with_losses_and_without(
    folder: Path,
    count: int,
    *settings: str,
    seed: int = 0,
    kind: type[Any] = WorkerProcess,
    kill: Callable[[Any], None] = end_process,
    env: Any = Minefield,
) -> tuple[State, State, int]:
    """Return the states of both runs, and the number of lost workers.

    Args:
        folder: of both.
        count: how many workers are to be lost.
        settings: of the run that loses them.
        seed: of all choices.
        kind: class of the workers.
        kill: ends one of them.
        env: the world.
    """
    loses = LosesWorkers(seed, count, kill)
    options = (f"env.id={env.__name__}", "total_timesteps=100000000")
    with noted(kind, loses.started):
        there = (*options, f"rollout.processes={WORKERS}", *settings)
        disturbed = run_small(folder, *there, env=env, callbacks=[loses]).state
    undisturbed = run_small(folder, *options, env=env, callbacks=[StopsAt(disturbed.step)]).state
    return disturbed, undisturbed, loses.losses
