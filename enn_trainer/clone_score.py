"""How well a network does what was recorded."""

from collections import Counter
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.demonstrations import Demonstrations
from enn_trainer.imitation import imitation_losses
from enn_trainer.imitation_config import ImitationLoss
from enn_trainer.optimize import value_loss_of
from enn_trainer.ppo_config import PPOConfig
from rogue_net.answer import choose


@dataclass
class CloneScore:
    """Sums over frames.

    Attributes:
        imitation: () float of each action, over its actors.
        correct: () int64 of each action, actors whose most probable choice was the recorded one.
        actors: how many of each action.
        value: () float, over the frames whose return is known.
        errors: () float, squared errors of the value over these; and `squares`, `returns`, of the
            returns themselves.
        num_returns: how many of these.
    """

    imitation: dict[str, Tensor] = field(default_factory=dict)
    correct: dict[str, Tensor] = field(default_factory=dict)
    actors: Counter[str] = field(default_factory=Counter)
    value: Tensor | float = 0.0
    errors: Tensor | float = 0.0
    squares: Tensor | float = 0.0
    returns: Tensor | float = 0.0
    num_returns: int = 0

    def __iadd__(self, other: "CloneScore") -> "CloneScore":
        for mine, theirs in ((self.imitation, other.imitation), (self.correct, other.correct)):
            for name, total in theirs.items():
                mine[name] = mine[name] + total if name in mine else total
        self.actors += other.actors
        for name in ("value", "errors", "squares", "returns", "num_returns"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        return self

    def detached(self) -> "CloneScore":
        """The same without what gradients need."""
        value = self.value.detach() if isinstance(self.value, Tensor) else self.value
        return replace(
            self, imitation={name: x.detach() for name, x in self.imitation.items()}, value=value
        )

    def loss(self, value_coef: float, num_actors: int, num_returns: int) -> Tensor:
        """() float: the sums, divided by numbers that may be of more frames than these."""
        total = torch.stack([*self.imitation.values()]).sum() / max(1, num_actors)
        return total + value_coef * self.value / max(1, num_returns)

    def mean_loss(self, value_coef: float) -> float:
        """Of the actors and the value."""
        return float(self.loss(value_coef, self.actors.total(), self.num_returns))

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
        return text if self.num_returns == 0 else f"{text}  explained {self.explained_variance:.2f}"


def score_of(
    agent: PPOAgent, shown: Demonstrations, loss: ImitationLoss, ppo: PPOConfig
) -> CloneScore:
    """How an agent does on frames, in one forward pass.

    Args:
        agent: the network.
        shown: the frames.
        loss: of the actors.
        ppo: which loss the value function has.
    """
    out = agent(shown.batch, actions={name: rows.values for name, rows in shown.actions.items()})
    known = (~shown.returns.isnan()).nonzero().flatten()
    returns = shown.returns.index_select(0, known).double()
    values = {name: said.index_select(0, known) for name, said in out.values.items()}
    expected = values["value"].flatten()
    return CloneScore(
        imitation={n: x.sum() for n, x in imitation_losses(out, shown, loss).items()},
        correct={
            name: (choose(out.log_probs[name].detach(), None) == rows.values).sum()
            for name, rows in shown.actions.items()
        },
        actors=Counter({name: len(rows.values) for name, rows in shown.actions.items()}),
        value=value_loss_of(values, returns.to(expected), expected, ppo).sum(),
        errors=(expected.detach().double() - returns).square().sum(),
        squares=returns.square().sum(),
        returns=returns.sum(),
        num_returns=len(known),
    )
