"""Learning rate and entropy coefficient as functions of how far the run is."""

import math
from typing import NamedTuple

from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import Scheduled


class Rates(NamedTuple):
    """What changes from update to update."""

    lr: float
    ent_coef: float


def num_updates(config: TrainConfig) -> int:
    """Updates of the whole run: a total that does not divide rounds up to whole rollouts."""
    return math.ceil(config.total_timesteps / (config.rollout.num_envs * config.rollout.steps))


def total_steps(config: TrainConfig) -> int:
    """Return the step at which a run is at its end."""
    return num_updates(config) * config.rollout.num_envs * config.rollout.steps


def rates_at(config: TrainConfig, step: int, time_used: float) -> Rates:
    """The rates of the update that begins at `step`, after `time_used` seconds of training.

    The learning rate rises linearly over `lr_warmup_steps`, reaching its full value with the
    update that ends there, so that the first update has a positive one. Annealing is linear, to 0
    at the end of the run, or of `max_train_time` if that comes sooner. A rate that has a schedule
    is not annealed: annealing is on by default, and the schedule says all.
    """
    frames = config.rollout.num_envs * config.rollout.steps
    total = total_steps(config)
    warmup = config.optim.lr_warmup_steps or 0
    time_left = 1.0
    if config.max_train_time:
        time_left = max(0.0, 1.0 - time_used / config.max_train_time)
    lr = float(config.optim.lr)
    if step < warmup:
        lr *= min(1.0, (step + frames) / warmup)
    elif config.optim.anneal_lr and not isinstance(config.optim.lr, Scheduled):
        lr *= max(0.0, min(time_left, 1.0 - (step - warmup) / max(frames, total - warmup)))
    ent_coef = float(config.ppo.ent_coef)
    if config.ppo.anneal_entropy and not isinstance(config.ppo.ent_coef, Scheduled):
        ent_coef *= max(0.0, min(time_left, 1.0 - step / total))
    return Rates(lr, ent_coef)
