"""`Algorithm`: the interface between the training loop and what learns, and its plug-ins."""

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
    """The time of an update as it begins; seeds, schedules and annealing are functions of it.

    Attributes:
        step: frames of the run before the update; of cloning, epochs.
        seconds: of training before it.
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
        """Return the number of frames of each step that are learnt from."""


class Algorithm(StatePart, Protocol[Data]):
    """Learns from data: PPO from rollouts, cloning from recorded frames."""

    def update(self, data: Data, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Learn from data.

        Returns:
            The metrics of the update by tag.

        Raises:
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
        """


class RolloutAlgorithm(Algorithm[Rollout], Protocol):
    """Algorithm of a `Trainer`: the part "algorithm" of the state.

    Attributes:
        notes: lines to print after `prepare`.
    """

    notes: Sequence[str] = ()

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Prepare for a run, before its first update: check settings, open files.

        Args:
            config: configuration of the run, which schedules change.
            state: state of the run.
            device: device of the agent.

        Raises:
            ConfigError: a setting cannot be used.
        """
        return

    def begin_update(self, clock: Clock) -> None:
        """Set the rates of an update, before its rollout is collected."""
        return

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers whose learning rates callbacks may change; by default, none."""
        return []


class ActorLosses(NamedTuple):
    """Losses of the actors in some frames.

    Attributes:
        coef: coefficient of their mean.
        losses: per action (A,) float.
    """

    coef: float
    losses: Mapping[str, Tensor]


class AuxiliaryLoss(StatePart, Protocol):
    """Loss that is added to that of an algorithm, in every optimizer step.

    It has data of its own, for `add_gradient`; or it is a function of what the network says about
    the frames that the algorithm learns from, `actor_losses`.

    Attributes:
        notes: lines to print after `prepare`.
    """

    notes: Sequence[str] = ()

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Prepare for a run, like `RolloutAlgorithm.prepare`."""
        return

    def begin_update(self, clock: Clock) -> bool:
        """Begin an update; return False to add nothing in it. By default, True."""
        return True

    def add_gradient(self, step: int, context: ExecutionContext) -> Tensor | None:
        """Add its gradient to `grad` of the agent's parameters; by default, do nothing.

        Args:
            step: number of the optimizer step in the update, from 0.
            context: threads, interrupt check and timers.

        Returns:
            () float, the loss; its mean over the update is the metric `losses/NAME_loss`.
        """
        return None

    def actor_losses(self, batch: EntityBatch, out: NetOutput) -> ActorLosses | None:
        """Return the losses of the actors in some frames of a minibatch; by default, none.

        The algorithm adds `coef` times their mean over the actors of the minibatch, weighted like
        its own loss, however the minibatch is cut. The mean is the metric `losses/NAME`. Pieces of
        a minibatch may be computed in several threads at once.

        Args:
            batch: the frames.
            out: output of the agent for them, with gradients; its choices are those of the rollout.
        """
        return None


class RewardTransform(StatePart, Protocol):
    """Function of the rewards that an algorithm learns from."""

    def transform(self, rewards: Tensor, rollout: Rollout, gamma: float) -> Tensor:
        """Return the rewards to learn from, (T, B).

        Args:
            rewards: (T, B) float, of the environments or of an earlier transform; not to be
                changed in place.
            rollout: the rollout that they are from.
            gamma: discount factor per step.
        """

    def metrics(self) -> dict[str, float]:
        """Return metrics to track, by tag; by default, none."""
        return {}
