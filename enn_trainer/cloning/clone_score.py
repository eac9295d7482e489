"""How well a network does what was recorded."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.cloning.demonstrations import Demonstrations
from enn_trainer.cloning.imitation import imitation_losses
from enn_trainer.config.imitation_config import ImitationLoss
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.ppo.minibatch_loss import value_loss_of


@dataclass
class CloneScore:
    """Sums over frames, without gradients.

    Attributes:
        imitation: () float, the losses of all actors.
        correct: () int64 of each action, actors whose most probable choice was the recorded one.
        actors: how many of each action.
        value: () float, the losses of the value over the frames whose return is known,
            divided by `value_scale`.
        errors: () float, squared errors of the value over these; and `squares`, `returns`, of the
            returns themselves.
        num_returns: how many of these.
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
        """Of the actors and the value."""
        imitation = float(self.imitation) / max(1, self.actors.total())
        return imitation + value_coef * float(self.value) / max(1, self.num_returns)

    @property
    def accuracy(self) -> dict[str, float]:
        """The share of the actors whose most probable choice is the recorded one, by action."""
        return {name: float(self.correct[name]) / n for name, n in self.actors.items() if n}

    @property
    def explained_variance(self) -> float:
        """Of the returns, by the value; not a number where none is known or all are the same."""
        if self.num_returns == 0:
            return float("nan")
        mean = float(self.returns) / self.num_returns
        variance = float(self.squares) / self.num_returns - mean**2
        return (
            1 - float(self.errors) / self.num_returns / variance if variance > 0 else float("nan")
        )

    def in_words(self) -> str:
        """The accuracy of each action, and what is known of the value."""
        words = [f"{name} {share:.3f}" for name, share in self.accuracy.items()]
        text = "accuracy " + ", ".join(words)
        explained = self.explained_variance
        # Returns that are all alike leave nothing to explain.
        return text if math.isnan(explained) else f"{text}  explained {explained:.2f}"


class CloneLoss(NamedTuple):
    """What there is to learn from frames.

    Attributes:
        imitation: () float, the sum over actors, with its gradient.
        value: () float, the sum over frames whose return is known, with its gradient, divided by
            `value_scale`.
        score: how the network did in them.
    """

    imitation: Tensor
    value: Tensor
    score: CloneScore

    def mean(self, value_coef: float, num_actors: int, num_returns: int) -> Tensor:
        """() float: the sums, divided by numbers that may be of more frames than these."""
        value = value_coef * self.value / max(1, num_returns)
        return self.imitation / max(1, num_actors) + value


def value_scale(returns: Tensor, ppo: PPOConfig) -> float:
    """What the loss of the value function is divided by, so that the size of rewards is no matter.

    It is twice the loss of the value 0, which is where a network begins: the mean square of the
    returns, where the loss is half the square of the error. The cross-entropy of bins has no size.
    Their variance would not do: where all games are won it is next to nothing, and what is
    divided by it leaves no room for the actions in a clipped gradient.

    Args:
        returns: (F,) float of the frames to train on; not numbers where they are not known.
        ppo: which loss the value function has.

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
    """What an agent can learn from frames, in one forward pass.

    Args:
        agent: the network.
        shown: the frames.
        loss: of the actors.
        ppo: which loss the value function has.
        value_scale: what that is divided by.
    """
    out = agent(shown.batch, actions={name: rows.values for name, rows in shown.actions.items()})
    known = (~shown.returns.isnan()).nonzero().flatten()
    returns = shown.returns.index_select(0, known).double()
    values = {name: said.index_select(0, known) for name, said in out.values.items()}
    expected = values["value"].flatten()
    imitation = torch.cat([*imitation_losses(out, shown, loss).values()]).sum()
    value = value_loss_of(values, returns.to(expected), expected, ppo).sum() / value_scale
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
