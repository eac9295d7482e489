"""Behavioural cloning: losses and scores on recorded frames, and the training algorithm."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.algorithms import optimizers
from enn_trainer.algorithms.algorithm import Algorithm, Clock
from enn_trainer.algorithms.minibatches import (
    add_gradients,
    minibatches_by_length,
    split_sequences,
)
from enn_trainer.algorithms.ppo.losses import value_loss_of
from enn_trainer.base.errors import NotFiniteError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.base.state_part import StateDict
from enn_trainer.config import CloneRunConfig
from enn_trainer.config.ppo_config import OptimizerConfig, PPOConfig
from enn_trainer.config.train_config import ImitationLoss
from enn_trainer.experience.demonstrations import Demonstrations
from enn_trainer.experience.frame_limits import rows_of_frames
from enn_trainer.runtime.execution import ExecutionContext, cost_of_entity
from entity_env.arrays import IntArray
from entity_env.seeding import derive_seed, mix
from rogue_net.answer import NetOutput
from rogue_net.value_head import AS_TARGETS, TargetNorm, TargetUnits


def imitation_losses(
    out: NetOutput, demos: Demonstrations, loss: ImitationLoss
) -> dict[str, Tensor]:
    """Compute the imitation loss of each decision.

    The loss of a decision is the sum over a parent action and its dependent actions.

    cross_entropy: -log pi(a|s) of the recorded choice a; for continuous actions pi is a density
    kl: KL(teacher || pi)

    Args:
        out: output of the network for the frames and their recorded choices.
        demos: the frames.
        loss: `cross_entropy` of the choices, or `kl` from the recorded probabilities.

    Returns:
        Per action that depends on none (decisions,) float, of the imitated decisions.
    """
    if loss == "cross_entropy":
        return demos.per_decision({name: -out.logprobs[name] for name in demos.actions})
    losses = {}
    for name, rows in demos.teacher.items():
        network = out.distribution(name)
        teacher = network.from_rows(rows.values, demos.batch.actions[name])
        losses[name] = teacher.kl(network)
    return demos.per_decision(losses)


def _is_recorded_choice(name: str, out: NetOutput, demos: Demonstrations) -> Tensor:
    """Return True for actors with the recorded choice as the most probable one, (actors,) bool."""
    return demos.imitated_rows(name, out.distribution(name).mode() == demos.actions[name].values)


def _absolute_errors(name: str, out: NetOutput, demos: Demonstrations) -> Tensor:
    """Return the mean absolute error of the continuous action of each actor, (actors,) float64.

    Errors are relative to the actor's range, or absolute in a component without bounds.
    """
    # |x - x'| / (high - low)
    distribution, chosen = out.distribution(name), demos.actions[name].values
    bounds = demos.batch.actions[name].bounds
    assert bounds is not None
    low, high = bounds.values.double().unbind(dim=1)
    has_range = torch.isfinite(low) & (low != high)
    range_size = torch.where(has_range, high - low, 1.0)
    numbers = [distribution.to_env(one).double() for one in (distribution.mode(), chosen)]
    return demos.imitated_rows(name, ((numbers[0] - numbers[1]).abs() / range_size).mean(dim=1))


_RETURN_SUMS = ("errors", "squares", "returns", "num_returns")


@dataclass
class CloneScore:
    """Sums of losses and accuracies over frames, without gradients.

    Attributes:
        imitation: () float, losses of all decisions.
        correct: () int64 of each action, number of actors with the recorded choice as the most
            probable one.
        off_by: () float64 of each continuous action, absolute errors of actors.
        actors: number of active actors of each action.
        decisions: number of decisions; dependent actions count with their parent action.
        value: () float, value losses over the frames with a return, divided by `value_scale`.
        errors: () float, squared errors of the values of these frames.
        squares: () float, squared returns of these frames.
        returns: () float, returns of these frames.
        num_returns: number of frames with a return.
    """

    imitation: Tensor | float = 0.0
    correct: dict[str, Tensor] = field(default_factory=dict)
    off_by: dict[str, Tensor] = field(default_factory=dict)
    actors: Counter[str] = field(default_factory=Counter)
    decisions: int = 0
    value: Tensor | float = 0.0
    errors: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    returns: Tensor | float = 0.0
    num_returns: int = 0

    def __iadd__(self, other: "CloneScore") -> "CloneScore":
        for totals, other_totals in ((self.correct, other.correct), (self.off_by, other.off_by)):
            for name, total in other_totals.items():
                totals[name] = totals.get(name, 0) + total
        self.actors += other.actors
        for name in ("imitation", "decisions", "value", *_RETURN_SUMS):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def mean_loss(self, value_coef: float) -> float:
        """Return the mean loss: imitation / decisions + value_coef * value / returns."""
        imitation = float(self.imitation) / max(1, self.decisions)
        return imitation + value_coef * float(self.value) / max(1, self.num_returns)

    @property
    def accuracy(self) -> dict[str, float]:
        """Share of actors with the recorded choice as the most probable one, by action.

        For continuous actions it is the mean absolute error, relative to the range if there are
        bounds.
        """
        totals = {**self.correct, **self.off_by}
        return {name: float(totals[name]) / n for name, n in self.actors.items() if n}

    @property
    def explained_variance(self) -> float:
        """Explained variance of the returns; NaN without returns or if all are equal.

        1 - mean((value - return)^2) / var(return)
        """
        n = max(1, self.num_returns)
        variance = float(self.squares) / n - (float(self.returns) / n) ** 2
        return 1 - float(self.errors) / n / variance if variance > 0 else math.nan

    def in_words(self) -> str:
        """Return a line with accuracies, errors of continuous actions, and explained variance."""
        words = {name: f"{name} {number:.3f}" for name, number in self.accuracy.items()}
        errors = [words.pop(name) for name in self.off_by if name in words]
        parts = ["accuracy " + ", ".join(words.values())] if words or not errors else []
        text = "  ".join([*parts, "error " + ", ".join(errors)] if errors else parts)
        explained = self.explained_variance
        return text if math.isnan(explained) else f"{text}  explained {explained:.2f}"


def value_scale(returns: Tensor, ppo: PPOConfig, norm: TargetUnits = AS_TARGETS) -> float:
    """Return the divisor of the value loss, which makes it independent of the scale of rewards.

    The divisor is twice the loss of the value 0, which is about the initial output of a network:
    the mean square of the returns, for a loss of half the squared error. The cross-entropy of bins
    and normalised returns have no scale. The variance of the returns is unsuitable: if all games
    are won it is close to 0, and the value loss would dominate the clipped gradient.

    Args:
        returns: (F,) float, returns of the frames to train on; NaN if unknown.
        ppo: settings of the value loss.
        norm: normalisation of the returns.

    Returns:
        A positive number; 1 if all returns are 0 or unknown.
    """
    known_returns = returns[~returns.isnan()].double()
    if ppo.value_bins is not None or isinstance(norm, TargetNorm) or not known_returns.any():
        return 1.0
    zero = torch.zeros_like(known_returns)
    return 2 * float(value_loss_of({"value": zero}, known_returns, zero, ppo, norm).mean())


def loss_of(
    agent: PPOAgent,
    demos: Demonstrations,
    loss: ImitationLoss,
    ppo: PPOConfig,
    value_scale: float = 1.0,
    norm: TargetUnits = AS_TARGETS,
) -> tuple[Tensor, Tensor, CloneScore]:
    """Compute the loss and the score of an agent on frames, in one forward pass.

    Args:
        agent: the network.
        demos: the frames.
        loss: imitation loss of the actors.
        ppo: settings of the value loss.
        value_scale: divisor of the value loss.
        norm: normalisation of the returns.

    Returns:
        () float, the sum of the imitation loss over actors; () float, the sum of the value loss
        over frames with a return, divided by `value_scale`; and the score of the frames.
    """
    # Losses.
    out = agent(demos.batch, actions={name: rows.values for name, rows in demos.actions.items()})
    frames = (~demos.returns.isnan()).nonzero().flatten()
    returns = demos.returns.index_select(0, frames).double()
    values = {name: rows.index_select(0, frames) for name, rows in out.values.items()}
    expected = values["value"].flatten()
    losses = imitation_losses(out, demos, loss)
    imitation = torch.cat([*losses.values()]).sum()
    targets, unclipped = norm.normalized(returns.to(expected)), norm.normalized(expected)
    value = value_loss_of(values, targets, unclipped, ppo, norm).sum() / value_scale

    # Score.
    numbers = [name for name in demos.actions if demos.batch.actions[name].bounds is not None]
    with torch.no_grad():
        discrete = [name for name in demos.actions if name not in numbers]
        is_correct = {name: _is_recorded_choice(name, out, demos) for name in discrete}
        errors = {name: _absolute_errors(name, out, demos) for name in numbers}
    score = CloneScore(
        imitation=imitation.detach(),
        correct={name: rows.sum() for name, rows in is_correct.items()},
        off_by={name: rows.sum() for name, rows in errors.items()},
        actors=Counter({name: len(rows) for name, rows in (is_correct | errors).items()}),
        decisions=sum(map(len, losses.values())),
        value=value.detach(),
        errors=(expected.detach().double() - returns).square().sum(),
        squares=returns.square().sum(),
        returns=returns.sum(),
        num_returns=len(frames),
    )
    return imitation, value, score


def cloning_microbatches(
    agent: PPOAgent, demos: Demonstrations, optim: OptimizerConfig
) -> list[IntArray]:
    """Split a minibatch into microbatches within the memory limits; return sequence indices."""
    return split_sequences(
        demos.lengths,
        demos.batch.entities_of_frames(),
        rows_of_frames(agent, demos.batch) ** 2,
        optim.micro_bs,
        optim.max_entities,
        cost_of_entity(agent),
    )


class Cloning(Algorithm[Demonstrations]):
    """Behavioural cloning; an update is an epoch over recorded frames.

    Args:
        config: configuration of cloning, and of a run that continues from it.
        agent: the network; its parameters are modified.
        train: frames to train on; their returns define the scale of the value loss.

    Attributes:
        trained: score of the network during the last complete epoch.
    """

    def __init__(self, config: CloneRunConfig, agent: Any, train: Demonstrations) -> None:
        self.config = config
        self.agent = agent
        self._parameters = dict(agent.named_parameters())
        self._optimizers = [
            o for o in optimizers.make_optimizers(agent, config.optim) if o is not None
        ]
        # Values are not clipped, as there are no old values.
        self._ppo = replace(config.ppo, clip_vloss=False, vf_clip_coef=None)
        self._norm = optimizers.value_norm(agent)
        self._value_scale = value_scale(train.returns, self._ppo, self._norm)
        self.trained: CloneScore | None = None

    def update(
        self, data: Demonstrations, clock: Clock, context: ExecutionContext
    ) -> dict[str, float]:
        """Train on every frame once.

        Args:
            data: frames to train on.
            clock: progress; `clock.step` is the number of earlier epochs.
            context: threads, interrupt check, and the callback of optimizer steps.

        Returns:
            The mean loss of the epoch, as a metric.

        Raises:
            NotFiniteError: a loss, a gradient or a weight is NaN or infinite.
        """
        train, epoch, config, agent = data, clock.step, self.config, self.agent
        agent.train()
        total = CloneScore()
        seed, value_coef = self._seed(epoch), config.clone.value_coef
        batches = self.batches(train, epoch)
        num_batches = len(batches)

        def microbatch_loss(
            minibatch: Demonstrations, num_actors: int, num_returns: int, positions: IntArray
        ) -> tuple[Tensor | None, tuple[Tensor, CloneScore]]:
            context.check()
            imitation, value, score = self._loss_of(minibatch.take_sequences(positions))
            value = value_coef * value / max(1, num_returns)
            loss = imitation / max(1, num_actors) + value
            # Without actors and returns there is no gradient.
            return loss if loss.requires_grad else None, (loss.detach(), score)

        for number, sequences in enumerate(batches, start=1):
            # Learning rate, annealed over all epochs: lr * (1 - progress).
            lr = config.clone.lr
            if config.optim.anneal_lr:
                num_steps = epoch * num_batches + number - 1
                lr *= 1 - num_steps / (config.clone.epochs * num_batches)
            agent.zero_grad(set_to_none=True)
            for optimizer in self._optimizers:
                optimizers.begin_update(optimizer, lr, float(config.optim.weight_decay), step=0)

            # Draw a batch.
            keys = mix(derive_seed(seed, "dropout"), train.frames(sequences)).view(np.int64)
            minibatch = train.take_sequences(sequences)
            minibatch = replace(minibatch, batch=replace(minibatch.batch, keys=keys))
            num_actors = int(minibatch.num_actors().sum())
            num_returns = int((~minibatch.returns.isnan()).sum())

            # Add the gradients of its microbatches, and step.
            results: list[tuple[Tensor, CloneScore]] = []
            losses = [
                partial(microbatch_loss, minibatch, num_actors, num_returns, positions)
                for positions in cloning_microbatches(agent, minibatch, config.optim)
            ]
            add_gradients(agent.parameters(), losses, results.append, context.threads)
            checked = {"the loss": sum((x for x, _ in results), minibatch.returns.new_zeros(()))}
            names = ("the norm of the gradient", "the norm of the value network's gradient")
            for name, optimizer in zip(names, self._optimizers, strict=False):
                norm = optimizers.clipped_step(optimizer, config.optim.max_grad_norm)
                checked[name] = norm.to(checked["the loss"])
            where = f"epoch {epoch + 1}, batch {number} of {num_batches}"
            optimizers.check_finite(agent, checked, where, rate="clone.lr")
            for _, score in results:
                total += score
            context.on_optimizer_step(results)
        self.trained = total
        return {"clone/loss": total.mean_loss(value_coef)}

    def batches(self, train: Demonstrations, epoch: int) -> list[IntArray]:
        """Return the indices of the sequences of each minibatch of an epoch."""
        return [*minibatches_by_length(train.lengths, self.config.clone.bs, 1, self._seed(epoch))]

    def _seed(self, epoch: int) -> int:
        return derive_seed(self.config.seed, "clone", epoch)

    @torch.no_grad()
    def score(self, demos: Demonstrations, epoch: int, context: ExecutionContext) -> CloneScore:
        """Evaluate the network on frames, in evaluation mode.

        Args:
            demos: the frames.
            epoch: number of completed epochs, for messages.
            context: threads and interrupt check.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
        """
        self.agent.eval()
        total, bs = CloneScore(), self.config.clone.bs

        def microbatch_score(positions: IntArray, minibatch: Demonstrations) -> CloneScore:
            context.check()
            return self._loss_of(minibatch.take_sequences(positions))[2]

        for sequences in minibatches_by_length(demos.lengths, bs, 1, seed=0, shuffle=False):
            minibatch = demos.take_sequences(sequences)
            scores: list[CloneScore] = []
            microbatches = cloning_microbatches(self.agent, minibatch, self.config.optim)
            tasks = [partial(microbatch_score, positions, minibatch) for positions in microbatches]
            context.threads.run(tasks, scores.append)
            for score in scores:
                total += score
        loss = total.mean_loss(self.config.clone.value_coef)
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"epoch {epoch}: expected a finite test loss, got {loss}; lower clone.lr, or look "
                "for very large rewards and features"
            )
        return total

    def state_dict(self) -> StateDict:
        """Return optimizer moments."""
        return optimizers.moments_of(self._optimizers, self._parameters)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore optimizer moments."""
        optimizers.load_moments(self._optimizers, self._parameters, state)

    def _loss_of(self, demos: Demonstrations) -> tuple[Tensor, Tensor, CloneScore]:
        loss = self.config.clone.loss
        return loss_of(self.agent, demos, loss, self._ppo, self._value_scale, self._norm)
