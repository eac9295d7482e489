"""Training loop of cloning: epochs with early stopping by the test loss, and progress messages."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from enn_trainer.algorithm import Clock
from enn_trainer.cloning.clone_score import CloneScore
from enn_trainer.cloning.cloning import Cloning
from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.ppo.not_finite import check_finite_weights
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.tracking.progress import format_duration

SAY_EVERY_S = 10.0
"""Interval of progress messages within an epoch."""


class CloningStopped(Exception):  # noqa: N818 (no error: a stop was requested)
    """Raised by the interrupt check to end an epoch or a test."""


class Epochs(NamedTuple):
    """Result of the epochs of cloning.

    Attributes:
        num: number of completed epochs.
        trained: training score of the last one; None if none was completed.
        best: test score of the best weights; None without test frames.
    """

    num: int
    trained: CloneScore | None
    best: CloneScore | None


def run_epochs(
    algorithm: Cloning,
    train: Demonstrations,
    test: Demonstrations | None,
    context: ExecutionContext,
    say: Callable[[str], None],
) -> Epochs:
    """Train until the test loss no longer falls, and load the best weights into the network.

    Args:
        algorithm: trains the network.
        train: frames to train on.
        test: frames to select the best weights with; None to keep the last weights.
        context: threads, and an interrupt check that raises `CloningStopped`.
        say: prints a line of progress.

    Raises:
        NotFiniteError: a loss, a gradient or a weight is NaN or infinite.
    """
    settings, agent = algorithm.config.clone, algorithm.agent
    num_batches = math.ceil(len(train) / settings.bs)
    progress = _Progress(settings.epochs, num_batches, say)
    context = replace(context, on_optimizer_step=progress.on_batch)
    num, best, best_epoch = 0, None, 0
    best_weights: dict[str, Tensor] | None = None

    def check_weights() -> None:
        check_finite_weights(agent, f"epoch {max(1, num)}, after the update", rate="clone.lr")

    try:
        while num < settings.epochs:
            algorithm.update(train, Clock(num, progress.elapsed()), context)
            num += 1
            check_weights()

            # Keep the weights of the lowest test loss.
            tested = None
            if test is not None:
                tested = algorithm.score(test, num, context)
                loss = tested.mean_loss(settings.value_coef)
                if best is None or loss < best.mean_loss(settings.value_coef):
                    best, best_epoch = tested, num
                    best_weights = copy.deepcopy(agent.state_dict())
            assert algorithm.trained is not None
            progress.on_epoch(num, algorithm.trained, tested, settings.value_coef)
            if best and settings.patience is not None and num - best_epoch >= settings.patience:
                say(f"no better for {num - best_epoch} epochs")
                break
    except CloningStopped:
        pass
    if best_weights is not None:
        agent.load_state_dict(best_weights)
    check_weights()  # also after an epoch that was interrupted
    agent.eval()
    return Epochs(num, algorithm.trained, best)


class _Progress:
    """Progress messages of cloning, with the time left."""

    def __init__(self, num_epochs: int, num_batches: int, say: Callable[[str], None]) -> None:
        self._num_epochs, self._num_batches, self._say = num_epochs, num_batches, say
        self._taken = 0  # optimizer steps
        self._start = self._said = time.monotonic()

    def elapsed(self) -> float:
        """Return the seconds since the begin."""
        return time.monotonic() - self._start

    def on_batch(self, _: object) -> None:
        """Count an optimizer step, and print a line within an epoch if the last one is old."""
        epoch, number = divmod(self._taken, self._num_batches)
        self._taken += 1
        if time.monotonic() - self._said >= SAY_EVERY_S and number + 1 < self._num_batches:
            batch = f"batch {number + 1}/{self._num_batches}"
            self._print(f"epoch {epoch + 1}/{self._num_epochs}  {batch}")

    def on_epoch(
        self, epoch: int, trained: CloneScore, tested: CloneScore | None, value_coef: float
    ) -> None:
        """Print the scores of an epoch."""
        parts = [f"loss {trained.mean_loss(value_coef):.4f}"]
        if tested is not None:
            parts.append(f"test loss {tested.mean_loss(value_coef):.4f}")
        parts.append((trained if tested is None else tested).in_words())
        self._print(f"epoch {epoch}/{self._num_epochs}", *parts)

    def _print(self, start: str, *parts: str) -> None:
        done = self._taken / (self._num_epochs * self._num_batches)
        left = format_duration(self.elapsed() * (1 - done) / done)
        self._say("  ".join([start, f"left {left}", *parts]))
        self._said = time.monotonic()
