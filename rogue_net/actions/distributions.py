"""Distributions over the choices of actors, and the decisions made with them."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from entity_env.ragged import row_indices
from rogue_net.ragged import ActionBatch, ActionSubset, RaggedTensor, to_device


class ActionDistribution(ABC):
    """Base class of distributions over the choices of A actors, frame after frame."""

    @property
    def all_log_probs(self) -> Tensor | None:
        """(A, choices) log-probabilities of all choices; None if they cannot be listed."""
        return None

    @abstractmethod
    def sample(self, draws: Tensor) -> Tensor:
        """Draw a choice of each actor.

        Args:
            draws: float32 in [0, 1), multiples of 2**-23: (A,), or (A, num_draws) if a choice takes
                several.

        Returns:
            (A,) int64; or (A, D) float32, numbers as they are drawn, see `to_env`.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most probable choices, like those of `sample`."""

    @abstractmethod
    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices, like those of `sample` -> (A,) float."""

    def to_env(self, chosen: Tensor) -> Tensor:
        """Return choices as `VecEnv.act` takes them; those of labels and entities are the same."""
        return chosen

    def from_env(self, given: Tensor) -> Tensor:
        """Return choices that `VecEnv.act` takes as those of this distribution."""
        return given

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropies, (A,) float."""

    @abstractmethod
    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of entropy / largest possible entropy.

        Args:
            entropies: (A,) float, what `entropy` returned; the forward pass has them already.

        Returns:
            (2,) float: the sum over actors of entropy / largest entropy, from 0 to 1 each; and the
            number of actors with more than one legal choice, which alone count.
        """

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other), (A,) float; this one may be of a recorded teacher."""

    def total_variation(self, other: Self) -> Tensor:
        """Compute the total variation distances, (A,) float; NaN for kinds that do not know them.

        Of several independent numbers it is that of the one that differs most.
        """
        return torch.full_like(self.entropy(), math.nan)

    @abstractmethod
    def tempered(self, temperature: float) -> Self:
        """Return the distribution with all scores divided by a temperature above 0."""

    @abstractmethod
    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the parameters of the distribution as recordings keep them.

        Args:
            action: the actors.

        Returns:
            (actors, parameters) per frame; or (actors * actees,) per frame, row by row.
        """

    @abstractmethod
    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Return the recorded distribution of the same actors.

        Args:
            rows: the numbers of `to_rows`, flat.
            action: the actors.
        """

    def certain(self, chosen: Tensor) -> Self | None:
        """Return the distribution that gives choices the probability 1, if there is one.

        Args:
            chosen: (A,) int64.
        """
        return None

    @classmethod
    @abstractmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the actors of several distributions."""

    @abstractmethod
    def take(self, actors: Tensor) -> Self:
        """Return the distribution of the given actors, (n,) int64."""

    @abstractmethod
    def widened(self, part: ActionSubset) -> Self:
        """Return the distribution of all actors of an action, given that of some of them.

        Actors that are not in `part` choose with equal probability.

        Args:
            part: the action of this distribution, as a part of the whole action.
        """

    def relabelled(self, labels: Sequence[int]) -> Self:
        """Return the distribution over labels in another order; kinds without labels have none."""
        raise NotImplementedError(f"{type(self).__name__} has no labels")


class Decision(NamedTuple):
    """The choices of A actors, with log-probabilities and entropies.

    Attributes:
        chosen: (A,) int64, or (A, D) float32.
        log_prob: (A,) float32, the log-probability of each choice.
        entropy: (A,) float32.
        distribution: over all choices.
    """

    chosen: Tensor
    log_prob: Tensor
    entropy: Tensor
    distribution: ActionDistribution


def decide(
    distribution: ActionDistribution, chosen: Tensor | None = None, draws: Tensor | None = None
) -> Decision:
    """Evaluate `chosen`, or sample with `draws`, or take the most probable choices."""
    if chosen is None:
        chosen = distribution.mode() if draws is None else distribution.sample(draws)
    return Decision(chosen, distribution.log_prob(chosen), distribution.entropy(), distribution)


def random_draws(
    actions: Mapping[str, ActionBatch], names: Iterable[str], generator: torch.Generator
) -> dict[str, Tensor]:
    """Return random numbers to sample with.

    Args:
        actions: per action its A actors.
        names: the actions to draw for, in this order.
        generator: to draw with.

    Returns:
        Per action (A,) float32 in [0, 1), multiples of 2**-23, or (A, num_draws).
    """
    draws = {}
    for name in names:
        actors, num_draws = actions[name].actors.values, actions[name].num_draws
        shape = (len(actors),) if num_draws == 1 else (len(actors), num_draws)
        bits = torch.randint(2**23, shape, generator=generator, device=generator.device)
        draws[name] = bits.to(actors.device).float() * 2.0**-23
    return draws


class CategoricalDistribution(ActionDistribution):
    """Distribution over labels or entities, one of which each actor chooses.

    Args:
        log_probs: (A, most choices of an actor) float, -inf where not allowed.
    """

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    @property
    def all_log_probs(self) -> Tensor:
        """(A, choices) log-probabilities."""
        return self.log_probs

    def sample(self, draws: Tensor) -> Tensor:
        """Choose by inverting the cumulative distribution. Nothing impossible is ever chosen."""
        if len(self.log_probs) == 0:  # without columns, of which none is the largest
            return self.log_probs.new_zeros(0, dtype=torch.int64)
        probs = self.log_probs.exp()
        # A GPU adds in another order for each sum, which may grow where the probability is zero.
        cumulative = probs.cumsum(dim=-1).masked_fill(probs == 0, 0.0)
        # min {k: sum_(i<=k) p_i > u * sum_i p_i}
        # Draws are multiples of 2**-23, so that their product with the total stays below it.
        threshold = draws.unsqueeze(-1) * cumulative.amax(dim=-1, keepdim=True)
        return (cumulative > threshold).to(torch.uint8).argmax(dim=-1)

    def mode(self) -> Tensor:
        """Return the most probable choices."""
        if len(self.log_probs) == 0:
            return self.log_probs.new_zeros(0, dtype=torch.int64)
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices."""
        return self.log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:
        """Compute -sum p log p, to which forbidden choices add nothing."""
        # H(p) = -sum_k p_k * log p_k, where 0 * log 0 = 0.
        finite = self.log_probs.masked_fill(self.log_probs == -math.inf, 0.0)
        return -(self.log_probs.exp() * finite).sum(dim=-1)

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute entropy / log(number of legal choices)."""
        # H(p) / log |{k: p_k > 0}|
        legal = (self.log_probs > -math.inf).sum(dim=-1)
        choosing = legal > 1
        share = (entropies / legal.clamp(min=2).log()).masked_fill(~choosing, 0.0)
        return torch.stack([share, choosing.to(share)]).sum(dim=1)

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other) over the choices that `other` allows."""
        # KL(p, q) = sum_k p_k * (log p_k - log q_k), p renormalised where q_k > 0.
        own = self.log_probs.masked_fill(other.log_probs == -math.inf, -math.inf)
        own = own.log_softmax(dim=-1)
        # Leave out infinities before the difference, whose gradient they would spoil.
        impossible = own == -math.inf
        difference = own.masked_fill(impossible, 0.0) - other.log_probs.masked_fill(impossible, 0.0)
        return (own.exp() * difference).sum(dim=-1)

    def tempered(self, temperature: float) -> Self:
        """Divide the log-probabilities by the temperature and normalise."""
        if temperature == 1 or self.log_probs.numel() == 0:
            return self
        # From the largest on, which stays possible however small the temperature is.
        # log softmax(log p / T)
        top = self.log_probs.amax(dim=-1, keepdim=True)
        return type(self)(((self.log_probs - top) / temperature).log_softmax(dim=-1))

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the log-probabilities; of entities without the padding."""
        if action.actees is None:
            return RaggedTensor(self.log_probs, action.actors.lengths)
        lengths = action.actors.lengths * action.actees.lengths
        index = _flat_positions(action, self.log_probs)
        return RaggedTensor(self.log_probs.reshape(-1).index_select(0, index), lengths)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Return the distribution of recorded logits or log-probabilities."""
        if action.actees is None:
            return type(self)(rows.view_as(self.log_probs))
        padded = rows.new_full((self.log_probs.numel(),), -math.inf)
        padded = padded.index_copy(0, _flat_positions(action, self.log_probs), rows)
        return type(self)(padded.view_as(self.log_probs))

    def certain(self, chosen: Tensor) -> Self:
        """Return log-probabilities 0 for the choices and -inf for all others."""
        impossible = torch.full_like(self.log_probs, -math.inf)
        return type(self)(impossible.scatter(1, chosen.unsqueeze(1), 0.0))

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate; rows with fewer columns get columns of probability 0."""
        tables = [piece.log_probs for piece in pieces]
        widest = max(table.shape[1] for table in tables)
        padded = [F.pad(t, (0, widest - t.shape[1]), value=-math.inf) for t in tables]
        return cls(torch.cat(padded))

    def take(self, actors: Tensor) -> Self:
        """Return the rows of actors."""
        return type(self)(self.log_probs.index_select(0, actors))

    def widened(self, part: ActionSubset) -> Self:
        """Return the log-probabilities of all choices of all actors."""
        # Equal probabilities, first of all actors.
        allowed = legal_choices(part.whole, self.log_probs.shape[1])
        wide = self.uniform(allowed, self.log_probs.dtype).log_probs
        actors = to_device(np.flatnonzero(part.actors), wide.device)
        if part.actees is None:
            wide[actors] = self.log_probs
            return type(self)(wide)
        # Of entities -inf for the actors of `part`, then the log-probabilities of their pairs.
        wide[actors] = -math.inf
        pairs = to_device(np.flatnonzero(part.pairs), wide.device)
        places = _flat_positions(part.whole, wide).index_select(0, pairs)
        wide.view(-1)[places] = self.to_rows(part.action).values
        return type(self)(wide)

    def relabelled(self, labels: Sequence[int]) -> Self:
        """Return the columns in another order."""
        return type(self)(self.log_probs[:, labels])

    @classmethod
    def uniform(cls, allowed: Tensor, dtype: torch.dtype = torch.float32) -> Self:
        """Return equal probabilities for all that is allowed, (A, choices) bool."""
        logits = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return cls(logits.masked_fill(~allowed, -math.inf).log_softmax(dim=-1))


def legal_choices(action: ActionBatch, num_labels: int = 0) -> Tensor:
    """Return the choices that the mask of an action allows.

    Args:
        action: A actors of B frames.
        num_labels: the number of labels, of an action that has them.

    Returns:
        (A, labels) bool; or (A, most actees of a frame with actors), False beyond the actees.
    """
    actors, device = action.actors, action.actors.values.device
    if action.actees is None:
        if action.mask is not None:
            return action.mask.values
        return torch.ones(len(actors.values), num_labels, dtype=torch.bool, device=device)
    most = int(action.actees.lengths[actors.lengths > 0].max(initial=0))
    if action.mask is None:
        num_actees = np.repeat(action.actees.lengths, actors.lengths)
        return to_device(np.arange(most) < num_actees[:, None], device)
    allowed = torch.zeros(len(actors.values), most, dtype=torch.bool, device=device)
    allowed.view(-1)[_flat_positions(action, allowed)] = action.mask.values
    return allowed


def _flat_positions(action: ActionBatch, padded: Tensor) -> Tensor:
    """Return the flat positions of the pairs of actors and actees in (A, most actees)."""
    assert action.actees is not None
    num_actees = np.repeat(action.actees.lengths, action.actors.lengths)
    starts = padded.shape[1] * np.arange(len(num_actees))
    return to_device(row_indices(starts, num_actees), padded.device)
