"""Behavioural cloning beside PPO: part of each optimizer step is of recorded frames."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.config import TrainConfig
from enn_trainer.demonstrations import (
    Demonstrations,
    Reading,
    open_recording,
    refuse_other_world,
    with_actors,
)
from enn_trainer.errors import ConfigError
from enn_trainer.imitation import imitation_losses
from enn_trainer.imitation_config import BCConfig
from enn_trainer.optimize import microbatches
from enn_trainer.optimizer_config import OptimizerConfig
from enn_trainer.state import State
from entity_env.seeding import derive_seed, mix

AddGradient: TypeAlias = Callable[[int], Tensor]
"""Adds to the gradient of an optimizer step, counted from 0 in its update; () float, the loss."""


def open_bc(config: TrainConfig, state: State, device: torch.device) -> Demonstrations | None:
    """The frames that `bc` names; None without it.

    Raises:
        ConfigError: there is no such file, it is of another world, or has nothing to learn from.
        RecordingError: it is damaged.
    """
    bc = config.bc
    if bc is None:
        return None
    try:
        recording = open_recording(Path(bc.path))
    except ConfigError as error:
        raise ConfigError(str(error).replace("RECORDING", "bc.path", 1)) from None
    refuse_other_world(
        f"bc.path: {bc.path}", recording, "the world", state.obs_space, state.action_space
    )
    teacher_for = "bc.loss='kl'" if bc.loss == "kl" else None
    shown = Reading(state.obs_space, 1.0, device, teacher_for).read({Path(bc.path): recording})
    if shown is None or not shown.num_actors().any():
        raise ConfigError(f"bc.path: expected frames with actors, {bc.path} has none")
    return with_actors(shown)


def bc_of_update(
    agent: PPOAgent, shown: Demonstrations | None, config: TrainConfig, step: int
) -> AddGradient | None:
    """What the update that begins at `step` learns from recorded frames; None for nothing."""
    bc = config.bc
    if shown is None or bc is None or bc.coef == 0:
        return None
    seed = derive_seed(config.seed, "bc", step)
    return partial(add_bc_gradient, agent, shown, bc, config.optim, seed)


def add_bc_gradient(
    agent: PPOAgent,
    shown: Demonstrations,
    bc: BCConfig,
    optim: OptimizerConfig,
    seed: int,
    step: int,
) -> Tensor:
    """Add coef times the gradient of the loss of some recorded frames.

    Args:
        agent: the network, training.
        shown: the frames to draw from, each of them with actors.
        bc: how many, which loss, and its coefficient.
        optim: the sizes of forward and backward passes.
        seed: of the update.
        step: of the optimizer in it; the draw is a function of both.

    Returns:
        () float, the mean of the loss over the actors.
    """
    assert isinstance(agent, nn.Module)
    rng = np.random.default_rng(derive_seed(seed, "frames", step))
    frames = rng.choice(len(shown), min(bc.bs, len(shown)), replace=False)
    drawn = shown.take(frames)
    keys = mix(derive_seed(seed, "dropout"), step, frames).view(np.int64)
    num_actors = int(drawn.num_actors().sum())
    total = drawn.returns.new_zeros(())
    for piece in microbatches(drawn.num_entities(), optim.micro_bs, optim.max_entities):
        part = drawn.take(np.arange(len(drawn))[piece])
        chosen = {name: rows.values for name, rows in part.actions.items()}
        out = agent(replace(part.batch, keys=keys[piece]), actions=chosen)
        mean = torch.cat([*imitation_losses(out, part, bc.loss).values()]).sum() / num_actors
        (bc.coef * mean).backward()  # type: ignore[no-untyped-call]
        total = total + mean.detach()
    return total
