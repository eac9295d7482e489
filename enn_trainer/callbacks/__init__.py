"""Hooks of users and of the trainer itself, called at fixed points of a run."""

from enn_trainer.callbacks.callback import Callback, RunningTrainer

__all__ = ["Callback", "RunningTrainer"]
