"""Behavioural cloning as an algorithm: loss and score on recorded frames, and epochs over them."""

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
    Frames,
    add_gradients,
    minibatches_by_length,
    pieces_by_length,
)
from enn_trainer.algorithms.ppo.losses import value_loss_of
from enn_trainer.config import CloneRunConfig
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.config.train_config import ImitationLoss
from enn_trainer.errors import NotFiniteError
from enn_trainer.experience.demonstrations import Demonstrations
from enn_trainer.experience.frame_limits import rows_of_frames
from enn_trainer.policy import PPOAgent
from enn_trainer.runtime.execution import ExecutionContext, cost_of_entity
from enn_trainer.state_part import StateDict
from entity_env.seeding import derive_seed, mix
from rogue_net.answer import NetOutput


def imitation_losses(
    out: NetOutput, shown: Demonstrations, loss: ImitationLoss
) -> dict[str, Tensor]:
    """Compute the loss of each actor.

    cross_entropy: -log pi(a|s) of the recorded choice a
    kl: KL(teacher || pi)

    Args:
        out: output of the network for the frames and their recorded choices.
        shown: the frames.
        loss: `cross_entropy` of the choices, or `kl` from the recorded probabilities.

    Returns:
        Per action (actors,) float, of those to imitate.
    """
    if loss == "cross_entropy":
        return {name: -shown.of_learnt(name, out.logprobs[name]) for name in shown.actions}
    losses = {}
    for name, rows in shown.teacher.items():
        network = out.distribution(name)
        teacher = network.from_rows(rows.values, shown.batch.actions[name])
        losses[name] = shown.of_learnt(name, teacher.kl(network))
    return losses


@dataclass
class CloneScore:
    """Sums of losses and accuracies over frames, without gradients.

    Attributes:
        imitation: () float, the losses of all actors.
        correct: () int64 of each action, actors whose most probable choice was the recorded one.
        actors: number of actors of each action.
        value: () float, the losses of the value over the frames whose return is known,
            divided by `value_scale`.
        errors: () float, squared errors of the value over these frames.
        squares: () float, squares of their returns.
        returns: () float, their returns.
        num_returns: number of these frames.
    """

    imitation: Tensor | float = 0.0
    correct: dict[str, Tensor] = field(default_factory=dict)
    actors: Counter[str] = field(default_factory=Counter)
    value: Tensor | float = 0.0
    errors: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    returns: Tensor | float = 0.0
    num_returns: int = 0

    def __iadd__(self, other: "CloneScore") -> "CloneScore":
        for name, total in other.correct.items():
            self.correct[name] = self.correct.get(name, 0) + total
        self.actors += other.actors
        for name in ("imitation", "value", "errors", "squares", "returns", "num_returns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def mean_loss(self, value_coef: float) -> float:
        """Return the mean loss: imitation / actors + value_coef * value / returns."""
        imitation = float(self.imitation) / max(1, self.actors.total())
        return imitation + value_coef * float(self.value) / max(1, self.num_returns)

    @property
    def accuracy(self) -> dict[str, float]:
        """Share of actors whose most probable choice is the recorded one, by action."""
        return {name: float(self.correct[name]) / n for name, n in self.actors.items() if n}

    @property
    def explained_variance(self) -> float:
        """Explained variance of the returns; NaN if none is known or all are equal.

        1 - mean((value - return)^2) / var(return)
        """
        n = max(1, self.num_returns)
        variance = float(self.squares) / n - (float(self.returns) / n) ** 2
        return 1 - float(self.errors) / n / variance if variance > 0 else math.nan

    def in_words(self) -> str:
        """Return a message with the accuracy of each action and the explained variance."""
        words = [f"{name} {share:.3f}" for name, share in self.accuracy.items()]
        text = "accuracy " + ", ".join(words)
        explained = self.explained_variance
        return text if math.isnan(explained) else f"{text}  explained {explained:.2f}"


def value_scale(returns: Tensor, ppo: PPOConfig) -> float:
    """Return the divisor of the value loss, which makes it independent of the scale of rewards.

    It is twice the loss of the value 0, which is about the initial output of a network: the mean
    square of the returns, for a loss of half the squared error. The cross-entropy of bins has no
    scale. The variance of returns would not do: where all games are won it is close to 0, so that
    the value loss would dominate the clipped gradient.

    Args:
        returns: (F,) float of the frames to train on; NaN where they are not known.
        ppo: settings of the value loss.

    Returns:
        A positive number; 1 where all returns are 0 or none is known.
    """
    known = returns[~returns.isnan()].double()
    if ppo.value_bins is not None or not known.any():
        return 1.0
    zero = torch.zeros_like(known)
    return 2 * float(value_loss_of({"value": zero}, known, zero, ppo).mean())


def loss_of(
    agent: PPOAgent,
    shown: Demonstrations,
    loss: ImitationLoss,
    ppo: PPOConfig,
    value_scale: float = 1.0,
) -> tuple[Tensor, Tensor, CloneScore]:
    """Compute the loss and the score of an agent on frames, in one forward pass.

    Args:
        agent: the network.
        shown: the frames.
        loss: imitation loss of the actors.
        ppo: settings of the value loss.
        value_scale: divisor of the value loss.

    Returns:
        () float, the sum of the imitation loss over actors; () float, that of the value loss over
        frames whose return is known, divided by `value_scale`; and the score of the frames.
    """
    # Losses.
    out = agent(shown.batch, actions={name: rows.values for name, rows in shown.actions.items()})
    known = (~shown.returns.isnan()).nonzero().flatten()
    returns = shown.returns.index_select(0, known).double()
    values = {name: rows.index_select(0, known) for name, rows in out.values.items()}
    expected = values["value"].flatten()
    losses = imitation_losses(out, shown, loss)
    imitation = torch.cat([*losses.values()]).sum()
    value = value_loss_of(values, returns.to(expected), expected, ppo).sum() / value_scale

    # Score.
    score = CloneScore(
        imitation=imitation.detach(),
        correct={
            name: shown.of_learnt(name, out.distribution(name).mode() == rows.values).sum()
            for name, rows in shown.actions.items()
        },
        actors=Counter({name: len(of_actors) for name, of_actors in losses.items()}),
        value=value.detach(),
        errors=(expected.detach().double() - returns).square().sum(),
        squares=returns.square().sum(),
        returns=returns.sum(),
        num_returns=len(known),
    )
    return imitation, value, score


class Cloning(Algorithm[Demonstrations]):
    """Behavioural cloning: an update is an epoch over recorded frames.

    Args:
        config: configuration of cloning, and of a run that continues from it.
        agent: the network; its parameters are changed.
        train: frames to train on; the scale of the value loss is that of their returns.

    Attributes:
        trained: score of the network while it learnt, in the last complete epoch.
    """

    def __init__(self, config: CloneRunConfig, agent: Any, train: Demonstrations) -> None:
        self.config = config
        self.agent = agent
        self._parameters = dict(agent.named_parameters())
        self._optimizers = [
            o for o in optimizers.make_optimizers(agent, config.optim) if o is not None
        ]
        # No clipping of values, as there are no old values to stay near.
        self._ppo = replace(config.ppo, clip_vloss=False, vf_clip_coef=None)
        self._value_scale = value_scale(train.returns, self._ppo)
        self.trained: CloneScore | None = None

    def update(
        self, data: Demonstrations, clock: Clock, context: ExecutionContext
    ) -> dict[str, float]:
        """Train on every frame once.

        Args:
            data: frames to train on.
            clock: its step is the number of earlier epochs.
            context: threads, interrupt check, and the function notified of optimizer steps.

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

        def loss_of_piece(
            drawn: Demonstrations, num_actors: int, num_returns: int, piece: Frames
        ) -> tuple[Tensor | None, tuple[Tensor, CloneScore]]:
            context.check()
            imitation, value, score = self._loss_of(drawn.take(piece))
            value = value_coef * value / max(1, num_returns)
            loss = imitation / max(1, num_actors) + value
            # Without actors and returns there is no gradient.
            return loss if loss.requires_grad else None, (loss.detach(), score)

        for number, units in enumerate(batches, start=1):
            # Learning rate, annealed over all epochs: lr * (1 - progress).
            lr = config.clone.lr
            if config.optim.anneal_lr:
                taken = epoch * num_batches + number - 1
                lr *= 1 - taken / (config.clone.epochs * num_batches)
            agent.zero_grad(set_to_none=True)
            for optimizer in self._optimizers:
                optimizers.begin_update(optimizer, lr, float(config.optim.weight_decay), step=0)

            # Draw a batch.
            keys = mix(derive_seed(seed, "dropout"), train.frames(units)).view(np.int64)
            drawn = train.take(units)
            drawn = replace(drawn, batch=replace(drawn.batch, keys=keys))
            counts = int(drawn.num_actors().sum()), int((~drawn.returns.isnan()).sum())

            # Add the gradients of its pieces, and step.
            results: list[tuple[Tensor, CloneScore]] = []
            losses = [
                partial(loss_of_piece, drawn, *counts, piece) for piece in self._pieces(drawn)
            ]
            add_gradients(agent.parameters(), losses, results.append, context.lanes)
            checked = {"the loss": sum((x for x, _ in results), drawn.returns.new_zeros(()))}
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

    def batches(self, train: Demonstrations, epoch: int) -> list[Frames]:
        """Return the units of each minibatch of an epoch."""
        return [*minibatches_by_length(train.lengths, self.config.clone.bs, 1, self._seed(epoch))]

    def _seed(self, epoch: int) -> int:
        return derive_seed(self.config.seed, "clone", epoch)

    @torch.no_grad()
    def score(self, shown: Demonstrations, epoch: int, context: ExecutionContext) -> CloneScore:
        """Evaluate the network on frames, in evaluation mode.

        Args:
            shown: the frames.
            epoch: number of completed epochs, for messages.
            context: threads and interrupt check.

        Raises:
            NotFiniteError: the loss is NaN or infinite.
        """
        self.agent.eval()
        total, bs = CloneScore(), self.config.clone.bs

        def score_of_piece(piece: Frames, some: Demonstrations) -> CloneScore:
            context.check()
            return self._loss_of(some.take(piece))[2]

        for units in minibatches_by_length(shown.lengths, bs, 1, seed=0, shuffle=False):
            some = shown.take(units)
            scores: list[CloneScore] = []
            tasks = [partial(score_of_piece, piece, some) for piece in self._pieces(some)]
            context.lanes.run(tasks, scores.append)
            for score in scores:
                total += score
        loss = total.mean_loss(self.config.clone.value_coef)
        if not math.isfinite(loss):
            raise NotFiniteError(
                f"epoch {epoch}: expected a finite test loss, got {loss}; lower clone.lr, or look "
                "for rewards and features that are very large"
            )
        return total

    def state_dict(self) -> StateDict:
        """Return optimizer moments."""
        return optimizers.moments_of(self._optimizers, self._parameters)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore optimizer moments."""
        optimizers.load_moments(self._optimizers, self._parameters, state)

    def _loss_of(self, shown: Demonstrations) -> tuple[Tensor, Tensor, CloneScore]:
        loss = self.config.clone.loss
        return loss_of(self.agent, shown, loss, self._ppo, self._value_scale)

    def _pieces(self, shown: Demonstrations) -> list[Frames]:
        optim, cost = self.config.optim, cost_of_entity(self.agent)
        entities = shown.batch.entities_of_frames()
        limits = optim.micro_bs, optim.max_entities, cost
        pairs = rows_of_frames(self.agent, shown.batch) ** 2
        return pieces_by_length(shown.lengths, entities, pairs, *limits)
