"""Behavioural cloning beside PPO: an auxiliary loss on recorded frames in each optimizer step."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.cloning.demonstrations import (
    Demonstrations,
    Reading,
    check_same_spaces,
    open_recording,
    with_actors,
)
from enn_trainer.cloning.imitation import imitation_losses
from enn_trainer.config import TrainConfig
from enn_trainer.config.imitation_config import BCConfig
from enn_trainer.config.ppo_config import OptimizerConfig
from enn_trainer.errors import ConfigError
from enn_trainer.lanes import cost_of_entity
from enn_trainer.ppo.gradients import add_gradients
from enn_trainer.ppo.minibatches import pieces
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from enn_trainer.start_folder import located
from enn_trainer.state import State
from entity_env.seeding import derive_seed, mix

MEMORY = "bc"
"""Key of `State.memory` with the identity of the recording."""

AddGradient: TypeAlias = Callable[[int], Tensor]
"""Function of the optimizer step, counted from 0 in its update, that adds to the gradient and
returns the loss, () float."""


def open_bc(config: TrainConfig, state: State, device: torch.device) -> Demonstrations | None:
    """Read the recording of `bc`; return None without `bc`.

    `state.memory` keeps its hash, as the frames that are drawn depend on the whole file.

    Raises:
        ConfigError: the file is missing, is of another environment, has no frames with actors, or
            has changed since the run began to learn from it.
        RecordingError: the file is damaged.
    """
    bc = config.bc
    if bc is None:
        return None
    recording = open_recording(located(bc.path), "bc.path")
    check_same_spaces(
        f"bc.path: {bc.path}", recording, "the world", state.obs_space, state.action_space
    )
    teacher_for = "bc.loss='kl'" if bc.loss == "kl" else None
    shown = Reading(state.obs_space, 1.0, device, teacher_for).read({located(bc.path): recording})
    if shown is None or not shown.num_actors().any():
        raise ConfigError(f"bc.path: expected frames with actors, {bc.path} has none")
    shown = with_actors(shown)
    _check_unchanged(bc.path, len(shown), state)
    return shown


def _check_unchanged(path: str, num_frames: int, state: State) -> None:
    """Raise if the file of the same name has changed; a file of another name is accepted."""
    with located(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    now = {"path": path, "frames": num_frames, "sha256": digest}
    began = state.memory.get(MEMORY, now)
    if began["path"] == path and began != now:
        raise ConfigError(
            f"bc.path: expected {path} as it was when the run began to learn from it, with "
            f"{began['frames']} frames, got another with {num_frames}; put it back, or give the "
            "new one by another name"
        )
    state.memory[MEMORY] = now


def bc_of_update(
    agent: PPOAgent,
    shown: Demonstrations | None,
    config: TrainConfig,
    step: int,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> AddGradient | None:
    """Return the function that adds the cloning gradient in an update, or None without `bc`.

    Args:
        agent: the network.
        shown: the frames to draw from, each with actors; None without `bc`.
        config: configuration of the run.
        step: number of frames of the run before this update.
        context: threads, interrupt check and timers.
    """
    bc = config.bc
    if shown is None or bc is None or bc.coef == 0:
        return None
    seed = derive_seed(config.seed, "bc", step)
    return partial(add_bc_gradient, agent, shown, bc, config.optim, seed, context=context)


def add_bc_gradient(
    agent: PPOAgent,
    shown: Demonstrations,
    bc: BCConfig,
    optim: OptimizerConfig,
    seed: int,
    step: int,
    context: ExecutionContext = DEFAULT_CONTEXT,
) -> Tensor:
    """Add coef times the gradient of the loss of some recorded frames.

    Args:
        agent: the network, in training mode.
        shown: the frames to draw from, each with actors.
        bc: number of frames, loss, and its coefficient.
        optim: sizes of forward and backward passes.
        seed: seed of the update.
        step: optimizer step in the update, counted from 0.
        context: threads, interrupt check and timers.

    Returns:
        () float, the mean of the loss over the actors.
    """
    # Draw frames.
    assert isinstance(agent, nn.Module)
    frames = drawn_frames(len(shown), bc.bs, seed, step)
    drawn = shown.take(frames)
    keys = mix(derive_seed(seed, "dropout"), step, frames).view(np.int64)
    num_actors = int(drawn.num_actors().sum())
    losses: list[Tensor] = []

    # Add the gradients of the pieces: loss = coef * sum over actors / num_actors

    def loss_of(piece: npt.NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        context.check()
        part = drawn.take(piece)
        chosen = {name: rows.values for name, rows in part.actions.items()}
        out = agent(replace(part.batch, keys=keys[piece]), actions=chosen)
        mean = torch.cat([*imitation_losses(out, part, bc.loss).values()]).sum() / num_actors
        return bc.coef * mean, mean.detach()

    cut = pieces(drawn.num_entities(), optim.micro_bs, optim.max_entities, cost_of_entity(agent))
    add_gradients(
        agent.parameters(), [partial(loss_of, piece) for piece in cut], losses.append, context.lanes
    )
    return sum(losses, start=drawn.returns.new_zeros(()))


def drawn_frames(num_frames: int, size: int, seed: int, step: int) -> npt.NDArray[np.int64]:
    """Draw the frames of a recording for an optimizer step, without replacement.

    The result is a function of the arguments alone. It has positions, so that the recording must
    not change for the frames to be the same.

    Args:
        num_frames: number of frames with actors.
        size: number of frames to draw.
        seed: seed of the update.
        step: optimizer step in the update.

    Returns:
        (min(size, num_frames),) int64, positions of frames.
    """
    rng = np.random.default_rng(derive_seed(seed, "frames", step))
    return rng.choice(num_frames, min(size, num_frames), replace=False)
