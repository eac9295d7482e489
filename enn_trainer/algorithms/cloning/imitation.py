"""Loss and score of a network on recorded frames."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.algorithms.ppo.losses import value_loss_of
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.config.train_config import ImitationLoss
from enn_trainer.experience.demonstrations import Demonstrations
from enn_trainer.policy import PPOAgent
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
        Per action (actors,) float.
    """
    if loss == "cross_entropy":
        return {name: -out.logprobs[name] for name in shown.actions}
    losses = {}
    for name, rows in shown.teacher.items():
        network = out.distribution(name)
        teacher = network.from_rows(rows.values, shown.batch.actions[name])
        losses[name] = teacher.kl(network)
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
        if self.num_returns == 0:
            return float("nan")
        mean = float(self.returns) / self.num_returns
        variance = float(self.squares) / self.num_returns - mean**2
        return (
            1 - float(self.errors) / self.num_returns / variance if variance > 0 else float("nan")
        )

    def in_words(self) -> str:
        """Return a message with the accuracy of each action and the explained variance."""
        words = [f"{name} {share:.3f}" for name, share in self.accuracy.items()]
        text = "accuracy " + ", ".join(words)
        explained = self.explained_variance
        return text if math.isnan(explained) else f"{text}  explained {explained:.2f}"


class CloneLoss(NamedTuple):
    """Loss of some frames, as sums.

    Attributes:
        imitation: () float, the sum over actors, with its gradient.
        value: () float, the sum over frames whose return is known, with its gradient, divided by
            `value_scale`.
        score: score of the network on the frames.
    """

    imitation: Tensor
    value: Tensor
    score: CloneScore

    def mean(self, value_coef: float, num_actors: int, num_returns: int) -> Tensor:
        """Return the loss divided by the numbers of a whole batch, () float."""
        value = value_coef * self.value / max(1, num_returns)
        return self.imitation / max(1, num_actors) + value


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
) -> CloneLoss:
    """Compute the loss and the score of an agent on frames, in one forward pass.

    Args:
        agent: the network.
        shown: the frames.
        loss: imitation loss of the actors.
        ppo: settings of the value loss.
        value_scale: divisor of the value loss.
    """
    # Losses.
    out = agent(shown.batch, actions={name: rows.values for name, rows in shown.actions.items()})
    known = (~shown.returns.isnan()).nonzero().flatten()
    returns = shown.returns.index_select(0, known).double()
    values = {name: rows.index_select(0, known) for name, rows in out.values.items()}
    expected = values["value"].flatten()
    imitation = torch.cat([*imitation_losses(out, shown, loss).values()]).sum()
    value = value_loss_of(values, returns.to(expected), expected, ppo).sum() / value_scale

    # Score.
    score = CloneScore(
        imitation=imitation.detach(),
        correct={
            name: (out.distribution(name).mode() == rows.values).sum()
            for name, rows in shown.actions.items()
        },
        actors=Counter({name: len(rows.values) for name, rows in shown.actions.items()}),
        value=value.detach(),
        errors=(expected.detach().double() - returns).square().sum(),
        squares=returns.square().sum(),
        returns=returns.sum(),
        num_returns=len(known),
    )
    return CloneLoss(imitation, value, score)
