"""Work of the host for each frame, without the network and the environment.

    python benchmarks/host_path.py [--updates 6] [--repeats 3] [--results FILE.md]

Environments in arrays repeat their frames at no cost, and the network has constant outputs and a
gradient of zeros, so that batching, storage, returns, minibatches, gathers, losses, metrics and the
optimizer remain. The second row has an environment in Python in the process of the trainer. Times
are processor time of one thread, of the fastest repeat; *forward of minibatches* includes the
choice and the entropy of an action, which every network computes.

*Operations* are those that reach a backend of PyTorch, counted in a separate update.
"""

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from measured_on import processor, short_revision
from scaling_measure import FEATURES, SPACE, Crowd
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from trained import table

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

UNITS = 16
TO_REACH_US = {"environments in arrays": 6.0, "an environment in Python": 10.0}
"""Core-microseconds per frame."""
TO_REACH_OPERATIONS = 40
"""Operations of the loss of one action of labels, without the network's."""


class Settings(NamedTuple):
    """Size of an update: environments, steps, frames of a minibatch, epochs."""

    envs: int
    steps: int
    size: int
    epochs: int

    @property
    def minibatches(self) -> int:
        """Number of minibatches of an update."""
        return self.epochs * -(-self.steps * self.envs // self.size)


SETTINGS = {
    "3 epochs of minibatches of 4,096 frames": Settings(4096, 4, 4096, 3),
    "2 minibatches of 16,384 frames": Settings(4096, 8, 16384, 1),
}
"""The second are the settings of `scaling.py gpu`."""


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


def trainer_of(world: str, settings: Settings, folder: str) -> Trainer:
    """Create a trainer with a constant network."""
    overrides = {
        "rollout.num_envs": settings.envs,
        "rollout.steps": settings.steps,
        "rollout.processes": 1,
        "optim.bs": settings.size,
        "optim.update_epochs": settings.epochs,
        "data_dir": folder,
    }
    manager = StateManager(overrides=[f"{name}={value}" for name, value in overrides.items()])
    return Trainer(manager, WORLDS[world], agent=ConstantNetwork({"choose": 2}))


def measure(world: str, settings: Settings, updates: int) -> dict[str, float]:
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


def count(world: str, settings: Settings) -> dict[str, float]:
    """Return the operations of an update, and of the forward pass of the loss of a minibatch."""
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
    return {
        "update": sum(in_update.counts.values()),
        "loss": sum(in_loss.counts.values()) / num_losses,
    }


PHASES = {
    "rollout/env": "step",
    "rollout/batch": "batching",
    "rollout/act": "acting",
    "rollout": "storage",
    "returns": "returns",
    "optimize/gradient/gather": "gather",
    "optimize/gradient/forward": "network",
    "optimize/gradient/backward": "backward",
    "optimize/gradient": "loss",
    "optimize/step": "optimizer",
    "optimize": "minibatches",
    "track": "metrics",
}
"""Columns of the table by span."""


def report(options: argparse.Namespace) -> list[str]:
    """Measure, and return the document as lines of Markdown."""
    times, counts = [["environments", "settings", "all", *PHASES.values()]], []
    for world in WORLDS:
        for name, settings in SETTINGS.items():
            rows = [measure(world, settings, options.updates) for _ in range(options.repeats)]
            fastest = min(rows, key=itemgetter("all"))
            cells = [f"{fastest.get(key, 0.0):.2f}" for key in ("all", *PHASES)]
            times.append([world, name, *cells])
            print(*times[-1], sep="\t", flush=True)
    for name, settings in SETTINGS.items():
        counts.append(f"- {name}: {operations(settings)}")
    return [
        "# Work of the host",
        "",
        f"`python benchmarks/host_path.py --updates {options.updates} --repeats {options.repeats}` "
        f"at {short_revision()}, {processor()}, one thread: 4,096 environments with {UNITS} "
        "entities in a frame, core-microseconds per frame. Definitions are in the script.",
        "",
        *table(times),
        "",
        f"To reach: {TO_REACH_US['environments in arrays']:g} with environments in arrays, and "
        f"{TO_REACH_US['an environment in Python']:g} with one in Python, without its own code.",
        "",
        "Operations:",
        "",
        *counts,
        "",
    ]


def operations(settings: Settings) -> str:
    """Return the numbers of operations with environments in arrays, as text."""
    counted = count("environments in arrays", settings)
    return (
        f"{counted['update']:,.0f} in an update of {settings.steps} steps and "
        f"{settings.minibatches} minibatches; {counted['loss']:.0f} in the forward pass of "
        f"the loss of a minibatch, without the network's (to reach: {TO_REACH_OPERATIONS})"
    )


def main() -> None:
    """Measure, and print or write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = "\n".join(report(options))
    print(f"\n{text}")
    if options.results is not None:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
