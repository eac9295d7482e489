"""Learning rate and entropy coefficient as functions of the progress of the run."""

import math
from typing import NamedTuple

from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import Scheduled


class Rates(NamedTuple):
    """Learning rate and entropy coefficient of an update."""

    lr: float
    ent_coef: float


def num_updates(config: TrainConfig) -> int:
    """Return the number of updates of the whole run; a partial rollout counts as a whole one."""
    return math.ceil(config.total_timesteps / (config.rollout.num_envs * config.rollout.steps))


def total_steps(config: TrainConfig) -> int:
    """Return the step at which the run ends, a multiple of the frames of a rollout."""
    return num_updates(config) * config.rollout.num_envs * config.rollout.steps


def rates_at(config: TrainConfig, step: int, time_used: float) -> Rates:
    """Return the rates of the update that begins at `step`, after `time_used` seconds of training.

    The learning rate rises linearly over `lr_warmup_steps` and reaches its full value in the update
    that ends there, so that it is positive in the first update. Annealing is linear, to 0 at the
    end of the run, or at `max_train_time` if that comes first. It is on by default and does not
    apply to a rate with a schedule.
    """
    frames = config.rollout.num_envs * config.rollout.steps
    total = total_steps(config)
    warmup = config.optim.lr_warmup_steps or 0
    time_left = 1.0
    if config.max_train_time:
        time_left = max(0.0, 1.0 - time_used / config.max_train_time)

    # Warm-up: lr * (step + frames) / warmup, then annealing: lr * (1 - progress).
    lr = float(config.optim.lr)
    if step < warmup:
        lr *= min(1.0, (step + frames) / warmup)
    elif config.optim.anneal_lr and not isinstance(config.optim.lr, Scheduled):
        lr *= max(0.0, min(time_left, 1.0 - (step - warmup) / max(frames, total - warmup)))

    # Entropy coefficient: annealed over the whole run.
    ent_coef = float(config.ppo.ent_coef)
    if config.ppo.anneal_entropy and not isinstance(config.ppo.ent_coef, Scheduled):
        ent_coef *= max(0.0, min(time_left, 1.0 - step / total))
    return Rates(lr, ent_coef)
