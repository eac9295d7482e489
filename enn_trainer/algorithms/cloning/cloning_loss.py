"""Behavioural cloning beside PPO: an auxiliary loss on recorded frames in each optimizer step."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.algorithms.algorithm import AuxiliaryLoss, Clock, RunState
from enn_trainer.algorithms.cloning.cloning import imitation_losses, pieces_of
from enn_trainer.algorithms.minibatches import add_gradients
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.config import TrainConfig
from enn_trainer.config.train_config import SEQ_LEN
from enn_trainer.experience.demonstrations import Demonstrations, check_same_spaces, open_recording
from enn_trainer.experience.read_demonstrations import Reading, check_player, check_recorded_ids
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.start_folder import located
from entity_env.arrays import IntArray
from entity_env.seeding import derive_seed, mix

MEMORY = "bc"
"""Key of `State.memory` with the identity of the recording."""


class CloningLoss(AuxiliaryLoss):
    """Auxiliary loss of PPO on recorded frames, as configured by `bc`.

    Args:
        config: configuration of the run.
        agent: the network.
    """

    def __init__(self, config: TrainConfig, agent: PPOAgent) -> None:
        self.config = config
        self.agent = agent
        self.shown: Demonstrations | None = None
        self.notes: Sequence[str] = ()
        self._seed = 0

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Read the recording.

        `state.memory` keeps its hash, as the frames that are drawn depend on the whole file.

        Raises:
            ConfigError: the file is missing, is of another environment, has no frames with actors,
                or has changed since the run began to learn from it.
            RecordingError: the file is damaged.
        """
        self.config, bc = config, config.bc
        assert bc is not None
        path = located(bc.path)
        recording = open_recording(path, "bc.path")
        check_same_spaces(f"bc.path: {bc.path}", recording, "the world", state.spaces)
        reading = Reading(
            state.obs_space,
            gamma=1.0,
            device=device,
            teacher_for="bc.loss='kl'" if bc.loss == "kl" else None,
            who=bc.who,
            player=bc.player,
            agent=self.agent,
            seq_len=bc.seq_len or SEQ_LEN,
        )
        shown = reading.read({path: recording})
        if shown is None or not shown.num_actors().any():
            check_player(bc.player, [recording], "bc.player")
            whose = " whose choices a person made" if bc.who == "hand" else ""
            raise ConfigError(f"bc.path: expected frames with actors{whose}, {bc.path} has none")
        self.notes = check_recorded_ids(self.agent, shown, f"bc.path: {bc.path}")
        self.shown = shown.with_actors()
        _check_unchanged(bc.path, int(np.count_nonzero(shown.num_actors())), state)

    def begin_update(self, clock: Clock) -> bool:
        """Set the seed of an update; return False while the coefficient is 0."""
        self._seed = derive_seed(self.config.seed, "bc", clock.step)
        return self.config.bc is not None and self.config.bc.coef != 0

    def add_gradient(self, step: int, context: ExecutionContext) -> Tensor:
        """Add coef times the gradient of the loss of some recorded frames.

        Returns:
            () float, the mean of the loss over the actors.
        """
        # Draw frames or sequences.
        agent, shown, bc, optim = self.agent, self.shown, self.config.bc, self.config.optim
        assert isinstance(agent, nn.Module)
        assert shown is not None
        assert bc is not None
        units = drawn_units(shown.lengths, bc.bs, self._seed, step)
        drawn = shown.take_units(units)
        keys = mix(derive_seed(self._seed, "dropout"), step, shown.frames(units)).view(np.int64)
        drawn = replace(drawn, batch=replace(drawn.batch, keys=keys))
        num_actors = int(drawn.num_actors().sum())
        losses: list[Tensor] = []

        # Add the gradients of the pieces: loss = coef * sum over actors / num_actors
        def loss_of(piece: IntArray) -> tuple[Tensor, Tensor]:
            context.check()
            part = drawn.take_units(piece)
            chosen = {name: rows.values for name, rows in part.actions.items()}
            out = agent(part.batch, actions=chosen)
            mean = torch.cat([*imitation_losses(out, part, bc.loss).values()]).sum() / num_actors
            return bc.coef * mean, mean.detach()

        pieces = [partial(loss_of, piece) for piece in pieces_of(agent, drawn, optim)]
        add_gradients(agent.parameters(), pieces, losses.append, context.lanes)
        return sum(losses, start=drawn.returns.new_zeros(()))


def _check_unchanged(path: str, num_frames: int, state: RunState) -> None:
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


def drawn_units(lengths: IntArray, size: int, seed: int, step: int) -> IntArray:
    """Draw the frames or sequences of a recording for an optimizer step, without replacement.

    The result is a function of the arguments alone. It has positions, so that the recording must
    not change for the frames to be the same.

    Args:
        lengths: (units,) int64, frames of each; those with actors.
        size: number of frames to draw, at most.
        seed: seed of the update.
        step: optimizer step in the update.

    Returns:
        (drawn,) int64, positions of units: one at least.
    """
    rng = np.random.default_rng(derive_seed(seed, "frames", step))
    order = rng.choice(len(lengths), min(size, len(lengths)), replace=False)
    count = int(np.searchsorted(np.cumsum(lengths[order]), size, side="right"))
    return order[: max(1, count)]
