"""Interfaces of algorithms, auxiliary losses and reward transforms to the training loop."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from enn_trainer.base.state_part import StatePart
from enn_trainer.config import TrainConfig
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.execution import ExecutionContext
from entity_env.spaces import ActionSpace, ObsSpace, Spaces
from rogue_net.answer import NetOutput
from rogue_net.ragged import EntityBatch

Data = TypeVar("Data", contravariant=True)
"""The experience that an algorithm learns from."""


class Clock(NamedTuple):
    """Progress of the run at the start of an update, for seeds, schedules and annealing.

    Attributes:
        step: number of frames before the update; in cloning, number of epochs.
        seconds: training time before the update.
    """

    step: int
    seconds: float


class RunState(Protocol):
    """Part of `State` that algorithms use.

    Attributes:
        agent: the network.
        obs_space: observation space of the environment.
        action_space: action space of the environment.
        memory: plain data of the run, by name.
    """

    agent: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    memory: dict[str, Any]

    @property
    def spaces(self) -> Spaces:
        """Both spaces of the environment."""

    def frames_per_step(self, cfg: TrainConfig) -> int:
        """Return the number of frames of each step that are trained on."""


class Algorithm(StatePart, Protocol[Data]):
    """Base class of algorithms: PPO learns from rollouts, cloning from recorded frames."""

    def update(self, data: Data, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Learn from data.

        Returns:
            The metrics of the update by tag.

        Raises:
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
        """


class RolloutAlgorithm(Algorithm[Rollout], Protocol):
    """Base class of the algorithms of a `Trainer`: the part "algorithm" of the state.

    Attributes:
        notes: lines to print after `prepare`.
    """

    notes: Sequence[str] = ()

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Prepare for a run, before its first update: check settings, open files.

        Args:
            config: configuration of the run, which schedules modify.
            state: state of the run.
            device: device of the agent.

        Raises:
            ConfigError: a setting cannot be used.
        """
        return

    def begin_update(self, clock: Clock) -> None:
        """Set the learning rates of an update, before its rollout is collected."""
        return

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers, for callbacks that change learning rates; by default, none."""
        return []


class ActorLosses(NamedTuple):
    """Losses of the actors in some frames.

    Attributes:
        coef: coefficient of the mean loss.
        losses: per action (A,) float.
    """

    coef: float
    losses: Mapping[str, Tensor]


class AuxiliaryLoss(StatePart, Protocol):
    """Base class of losses that are added to the loss of an algorithm in every optimizer step.

    A loss on separate data overrides `add_gradient`; a function of the network's output for the
    frames of the algorithm overrides `actor_losses`.

    Attributes:
        notes: lines to print after `prepare`.
    """

    notes: Sequence[str] = ()

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Prepare for a run, like `RolloutAlgorithm.prepare`."""
        return

    def begin_update(self, clock: Clock) -> bool:
        """Begin an update; return False to skip the loss in this update. By default, True."""
        return True

    def add_gradient(self, step: int, context: ExecutionContext) -> Tensor | None:
        """Add the gradient of the loss to `grad` of the agent's parameters; by default, nothing.

        Args:
            step: index of the optimizer step in the update, from 0.
            context: threads, interrupt check and timers.

        Returns:
            () float, the loss; its mean over the update is the metric `losses/NAME_loss`.
        """
        return None

    def actor_losses(self, batch: EntityBatch, out: NetOutput) -> ActorLosses | None:
        """Return the losses of the actors in some frames of a minibatch; by default, none.

        The algorithm adds `coef` times their mean over the actors of the whole minibatch, weighted
        like the policy loss. The mean is the metric `losses/NAME`. Microbatches may be computed in
        several threads at once.

        Args:
            batch: the frames.
            out: output of the agent for them, with gradients, for the choices of the rollout.
        """
        return None


class RewardTransform(StatePart, Protocol):
    """Base class of functions that transform the rewards of a rollout before learning."""

    def transform(self, rewards: Tensor, rollout: Rollout, gamma: float) -> Tensor:
        """Return the rewards to learn from, (T, B).

        Args:
            rewards: (T, B) float, of the environments or of an earlier transform; must not be
                modified in place.
            rollout: the rollout with these rewards.
            gamma: discount factor per step.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics to track, by tag; by default, none."""
        return {}
