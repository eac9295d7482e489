"""Callbacks: hooks that are called at fixed points of a run."""

from enn_trainer.callbacks.callback import Callback, RunningTrainer

__all__ = ["Callback", "RunningTrainer"]
