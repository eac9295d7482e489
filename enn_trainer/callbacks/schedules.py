"""Schedules of settings."""

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.config.schedules import follow_schedules


class Schedules(Callback):
    """Sets scheduled settings to their values at the step after an update."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Set the values."""
        follow_schedules(trainer.config, trainer.state)
