"""Work of the host for each frame, without the network and the environment.

    python benchmarks/host_path.py [--updates 6] [--repeats 3] [--results FILE.md]

Environments in arrays repeat their frames at no cost, and the network has constant outputs and a
gradient of zeros, so that batching, storage, returns, minibatches, gathers, losses, metrics and the
optimizer remain. The second row has an environment in Python in the process of the trainer. Times
are processor time of one thread, medians of the repeats; *forward of minibatches* includes the
choice and the entropy of an action, which every network computes.

*Operations* are those that reach a backend of PyTorch, counted in a separate update.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from scaling_measure import FEATURES, SPACE, Crowd
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from enn_trainer import StateManager, Trainer
from enn_trainer.algorithms.ppo import losses
from enn_trainer.runtime.spans import times_between
from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    Environment,
    Observation,
)
from rogue_net import EntityBatch, NetOutput
from rogue_net.answer import answer

ENVS = 4096
UNITS = 16
TO_REACH_US = {"environments in arrays": 6.0, "an environment in Python": 10.0}
"""Core-microseconds per frame."""
TO_REACH_OPERATIONS = 40
"""Operations of the loss of one action of labels, without the network's."""
SETTINGS = {
    "3 epochs of minibatches of 4,096 frames": (4, 4096, 3),
    "2 minibatches of 16,384 frames": (8, 16384, 1),
}
"""Steps, minibatch size and epochs by name; the second are the settings of `scaling.py gpu`."""


class _Constant(torch.autograd.Function):
    """Rows of zeros, and a gradient of zeros."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, rows: int) -> Tensor:
        ctx.shape = parameter.shape
        return parameter.new_zeros(rows, len(parameter))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].new_zeros(ctx.shape), None


class ConstantNetwork(nn.Module):
    """Network with constant outputs for one action of labels.

    Args:
        actions: number of labels by action.

    Attributes:
        counter: counter of operations that is paused in the network; None without one.
    """

    def __init__(self, actions: Mapping[str, int]) -> None:
        super().__init__()
        heads = {name: nn.Parameter(torch.zeros(labels)) for name, labels in actions.items()}
        self.heads, self.value = nn.ParameterDict(heads), nn.Parameter(torch.zeros(1))
        self.counter: Operations | None = None

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Return equal probabilities."""
        with contextlib.nullcontext() if self.counter is None else self.counter.paused():
            log_probs = {
                name: _Constant.apply(self.heads[name], len(action.actors.values)).log_softmax(-1)  # type: ignore[no-untyped-call]
                for name, action in batch.actions.items()
            }
            return answer(log_probs, self.values(batch), actions, uniforms)

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return values of 0."""
        return {"value": _Constant.apply(self.value, batch.num_frames)}  # type: ignore[no-untyped-call]

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Do nothing."""


class Operations(TorchDispatchMode):
    """Counter of operations.

    Attributes:
        counts: by name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self._is_paused = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count an operation."""
        if not self._is_paused:
            self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Return a context without counting."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False


class Units(Environment):
    """Environment with `UNITS` units, in Python; it returns the same observation in each step."""

    def __init__(self) -> None:
        features = np.random.default_rng(0).standard_normal((UNITS, len(FEATURES)))
        rows = {"Unit": features.astype(np.float32)}
        ids, mask = {"Unit": [*range(UNITS)]}, {"choose": CategoricalActionMask(actor_ids=[0])}
        self.observation = Observation(features=rows, ids=ids, actions=mask, reward=0.0, done=False)

    def obs_space(self) -> Any:
        """Return the space with one type."""
        return SPACE

    def action_space(self) -> Any:
        """Return an action without effect."""
        return {"choose": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        """Return the observation."""
        return self.observation

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Return the observation."""
        return self.observation


WORLDS: Mapping[str, Any] = {"environments in arrays": Crowd, "an environment in Python": Units}


def trainer_of(world: str, settings: tuple[int, int, int], folder: str) -> Trainer:
    """Create a trainer with a constant network."""
    steps, size, epochs = settings
    overrides = {
        "rollout.num_envs": ENVS,
        "rollout.steps": steps,
        "rollout.processes": 1,
        "optim.bs": size,
        "optim.update_epochs": epochs,
        "data_dir": folder,
    }
    manager = StateManager(overrides=[f"{name}={value}" for name, value in overrides.items()])
    return Trainer(manager, WORLDS[world], agent=ConstantNetwork({"choose": 2}))


def measure(world: str, settings: tuple[int, int, int], updates: int) -> dict[str, float]:
    """Return core-microseconds per frame of each span, and of all."""
    with TemporaryDirectory() as folder, trainer_of(world, settings, folder) as trainer:
        trainer.step()
        trainer.step()
        before, start, first = trainer.spans.as_dict(), time.process_time(), trainer.state.step
        for _ in range(updates):
            trainer.step()
        total = time.process_time() - start
        times = times_between(before, trainer.spans.as_dict())
        frames = trainer.state.step - first
    shares = {path: one.wall_s for path, one in times.items()}
    scale = 1e6 * total / sum(shares.values()) / frames
    return {"all": 1e6 * total / frames, **{path: scale * x for path, x in shares.items()}}


def count(world: str, settings: tuple[int, int, int]) -> dict[str, float]:
    """Return operations per step, per minibatch, and in the forward pass of the loss."""
    with TemporaryDirectory() as folder, trainer_of(world, settings, folder) as trainer:
        trainer.step()
        agent: Any = trainer.state.agent
        in_update, in_loss = Operations(), Operations()
        loss_of_piece, num_losses = losses.loss_of_piece, 0

        def counted(*arguments: Any) -> Any:
            nonlocal num_losses
            num_losses += 1
            agent.counter = in_loss
            with in_loss:
                result = loss_of_piece(*arguments)
            agent.counter = None
            return result

        losses.loss_of_piece = counted
        try:
            with in_update:
                trainer.step()
        finally:
            losses.loss_of_piece = loss_of_piece
    steps, size, epochs = settings
    return {
        "update": sum(in_update.counts.values()),
        "minibatches": epochs * -(-steps * ENVS // size),
        "loss": sum(in_loss.counts.values()) / num_losses,
    }
