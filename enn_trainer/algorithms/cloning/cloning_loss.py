"""Behavioural cloning as an auxiliary loss of PPO, on recorded frames in each optimizer step."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.algorithms.algorithm import AuxiliaryLoss, Clock, RunState
from enn_trainer.algorithms.cloning.cloning import cloning_microbatches, imitation_losses
from enn_trainer.algorithms.minibatches import add_gradients
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.config import TrainConfig
from enn_trainer.config.train_config import SEQ_LEN
from enn_trainer.experience.demonstrations import Demonstrations, check_same_spaces, open_recording
from enn_trainer.experience.read_demonstrations import (
    RecordingReader,
    check_player,
    check_recorded_ids,
)
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.start_folder import located
from entity_env.arrays import IntArray
from entity_env.seeding import derive_seed, mix

MEMORY = "bc"
"""Key of `State.memory` with the path, number of frames and hash of the recording."""


class CloningLoss(AuxiliaryLoss):
    """Auxiliary loss of PPO on recorded frames, as configured by `bc`.

    Args:
        config: configuration of the run.
        agent: the network.
    """

    def __init__(self, config: TrainConfig, agent: PPOAgent) -> None:
        self.config = config
        self.agent = agent
        self.demonstrations: Demonstrations | None = None
        self.notes: Sequence[str] = ()
        self._seed = 0

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Read the recording.

        Its hash is stored in `state.memory`, as the sampled frames depend on the whole file.

        Raises:
            ConfigError: the file is missing, is of another environment, has no frames with actors,
                or changed since the run started.
            RecordingError: the file is damaged.
        """
        self.config, bc = config, config.bc
        assert bc is not None
        path = located(bc.path)
        recording = open_recording(path, "bc.path")
        check_same_spaces(f"bc.path: {bc.path}", recording, "the environment", state.spaces)
        reader = RecordingReader(
            state.obs_space,
            gamma=1.0,
            device=device,
            teacher_for="bc.loss='kl'" if bc.loss == "kl" else None,
            who=bc.who,
            player=bc.player,
            agent=self.agent,
            seq_len=bc.seq_len or SEQ_LEN,
        )
        demos = reader.read({path: recording})
        if demos is None or not demos.num_actors().any():
            check_player(bc.player, [recording], "bc.player")
            choices = "choices of a person" if bc.who == "hand" else "actors"
            raise ConfigError(f"bc.path: expected frames with {choices}, got none in {bc.path}")
        self.notes = check_recorded_ids(self.agent, demos, f"bc.path: {bc.path}")
        self.demonstrations = demos.with_actors()
        _check_unchanged(bc.path, int(np.count_nonzero(demos.num_actors())), state)

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
        agent, demos, bc, optim = self.agent, self.demonstrations, self.config.bc, self.config.optim
        assert isinstance(agent, nn.Module)
        assert demos is not None
        assert bc is not None
        sequences = draw_sequences(demos.lengths, bc.bs, self._seed, step)
        minibatch = demos.take_sequences(sequences)
        keys = mix(derive_seed(self._seed, "dropout"), step, demos.frames(sequences)).view(np.int64)
        minibatch = replace(minibatch, batch=replace(minibatch.batch, keys=keys))
        num_actors = int(minibatch.num_actors().sum())
        losses: list[Tensor] = []

        # Add the gradients of microbatches: loss = coef * sum over actors / num_actors
        def loss_of(positions: IntArray) -> tuple[Tensor, Tensor]:
            context.check()
            part = minibatch.take_sequences(positions)
            chosen = {name: rows.values for name, rows in part.actions.items()}
            out = agent(part.batch, actions=chosen)
            mean = torch.cat([*imitation_losses(out, part, bc.loss).values()]).sum() / num_actors
            return bc.coef * mean, mean.detach()

        microbatches = cloning_microbatches(agent, minibatch, optim)
        tasks = [partial(loss_of, positions) for positions in microbatches]
        add_gradients(agent.parameters(), tasks, losses.append, context.threads)
        return sum(losses, start=minibatch.returns.new_zeros(()))


def _check_unchanged(path: str, num_frames: int, state: RunState) -> None:
    """Raise if the recording changed since the run started; another path is accepted."""
    with located(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    current = {"path": path, "frames": num_frames, "sha256": digest}
    recorded = state.memory.get(MEMORY, current)
    if recorded["path"] == path and recorded != current:
        raise ConfigError(
            f"bc.path: {path} changed since the run started ({recorded['frames']} frames then, "
            f"{num_frames} now); restore it or use another path"
        )
    state.memory[MEMORY] = current


def draw_sequences(lengths: IntArray, size: int, seed: int, step: int) -> IntArray:
    """Sample sequences of a recording for an optimizer step, without replacement.

    The result is a function of the arguments only. Positions identify the same frames only if the
    recording does not change.

    Args:
        lengths: (sequences,) int64, number of frames of each sequence with actors.
        size: maximal number of frames to sample.
        seed: seed of the update.
        step: optimizer step in the update.

    Returns:
        (samples,) int64, indices of sequences; at least one.
    """
    rng = np.random.default_rng(derive_seed(seed, "frames", step))
    order = rng.choice(len(lengths), min(size, len(lengths)), replace=False)
    count = int(np.searchsorted(np.cumsum(lengths[order]), size, side="right"))
    return order[: max(1, count)]
