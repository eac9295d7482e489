"""Action distributions, and the decisions sampled from them."""

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
        """Sample a choice for each actor.

        Args:
            draws: float32 in [0, 1), multiples of 2**-23: (A,), or (A, num_draws).

        Returns:
            (A,) int64; or (A, D) float32, continuous actions before `to_env`.
        """

    @abstractmethod
    def mode(self) -> Tensor:
        """Return the most probable choices, in the format of `sample`."""

    @abstractmethod
    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices in the format of `sample`, (A,) float."""

    def to_env(self, chosen: Tensor) -> Tensor:
        """Convert choices to actions of `VecEnv.act`; labels and entities stay as they are."""
        return chosen

    def from_env(self, env_choices: Tensor) -> Tensor:
        """Convert actions of `VecEnv.act` to choices: the inverse of `to_env`."""
        return env_choices

    @abstractmethod
    def entropy(self) -> Tensor:
        """Return the entropies, (A,) float."""

    @abstractmethod
    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of entropies relative to the largest possible entropy.

        Args:
            entropies: (A,) float, the result of `entropy`, which the forward pass has already.

        Returns:
            (2,) float: the sum over actors of entropy / largest entropy, each from 0 to 1; and the
            number of actors in the sum, which are those with more than one legal choice.
        """

    @abstractmethod
    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other), (A,) float; `self` may be a recorded teacher."""

    def total_variation(self, other: Self) -> Tensor:
        """Compute the total variation distances, (A,) float; NaN if not implemented.

        For several independent components, return the largest distance of a component.
        """
        return torch.full_like(self.entropy(), math.nan)

    @abstractmethod
    def tempered(self, temperature: float) -> Self:
        """Return the distribution with all logits divided by a temperature above 0."""

    @abstractmethod
    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the parameters of the distribution in the format of recordings.

        Args:
            action: the actors.

        Returns:
            (actors, parameters) per frame; or (actors * actees,) per frame, actor by actor.
        """

    @abstractmethod
    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Restore a recorded distribution of the same actors.

        Args:
            rows: the values of `to_rows`, flat.
            action: the actors.
        """

    def certain(self, chosen: Tensor) -> Self | None:
        """Return the distribution with probability 1 for the choices; None if there is none.

        Args:
            chosen: (A,) int64.
        """
        return None

    @classmethod
    @abstractmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate distributions along the actors."""

    @abstractmethod
    def take(self, actors: Tensor) -> Self:
        """Select actors by index, (n,) int64."""

    @abstractmethod
    def widened(self, part: ActionSubset) -> Self:
        """Extend the distribution from some actors of an action to all of them.

        Actors that are not in `part` choose uniformly among their legal choices.

        Args:
            part: the action of this distribution, as a subset of the whole action.
        """

    def relabelled(self, labels: Sequence[int]) -> Self:
        """Reorder the labels of the distribution.

        Raises:
            NotImplementedError: the action has no labels.
        """
        raise NotImplementedError(f"{type(self).__name__} has no labels")


class Decision(NamedTuple):
    """The choices of A actors, with log-probabilities and entropies.

    Attributes:
        chosen: (A,) int64, or (A, D) float32.
        log_prob: (A,) float32, the log-probability of each choice.
        entropy: (A,) float32.
        distribution: of the actors, over all choices.
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
    """Draw the random numbers for `ActionDistribution.sample`.

    Args:
        actions: per action its A actors.
        names: the actions, in the order in which numbers are drawn.
        generator: the random number generator.

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
    """Categorical distribution over labels or entities.

    Args:
        log_probs: (A, largest number of choices) float, -inf where not allowed.
    """

    def __init__(self, log_probs: Tensor) -> None:
        self.log_probs = log_probs

    @property
    def all_log_probs(self) -> Tensor:
        """(A, choices) log-probabilities."""
        return self.log_probs

    def sample(self, draws: Tensor) -> Tensor:
        """Sample by inverting the cumulative distribution; masked choices are never sampled."""
        if self.log_probs.shape[0] == 0:  # argmax needs a column
            return self.log_probs.new_zeros(0, dtype=torch.int64)
        probs = self.log_probs.exp()
        # On a GPU, cumulative sums may grow by rounding where the probability is zero.
        cumulative = probs.cumsum(dim=-1).masked_fill(probs == 0, 0.0)
        # min {k: sum_(i<=k) p_i > u * sum_i p_i}
        # Draws are multiples of 2**-23, so that their product with the total stays below it.
        threshold = draws.unsqueeze(-1) * cumulative.amax(dim=-1, keepdim=True)
        return (cumulative > threshold).to(torch.uint8).argmax(dim=-1)

    def mode(self) -> Tensor:
        """Return the most probable choices."""
        if self.log_probs.shape[0] == 0:
            return self.log_probs.new_zeros(0, dtype=torch.int64)
        return self.log_probs.argmax(dim=-1)

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices."""
        return self.log_probs.gather(1, chosen.unsqueeze(1)).squeeze(1)

    def entropy(self) -> Tensor:
        """Compute the entropies, (A,); masked choices contribute 0."""
        # H(p) = -sum_k p_k * log p_k, where 0 * log 0 = 0.
        finite = self.log_probs.masked_fill(self.log_probs == -math.inf, 0.0)
        return -(self.log_probs.exp() * finite).sum(dim=-1)

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of entropy / log(number of legal choices), and the number of actors."""
        # H(p) / log |{k: p_k > 0}|
        legal = (self.log_probs > -math.inf).sum(dim=-1)
        choosing = legal > 1
        share = (entropies / legal.clamp(min=2).log()).masked_fill(~choosing, 0.0)
        return torch.stack([share, choosing.to(share)]).sum(dim=1)

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other) over the choices that `other` allows."""
        # KL(p, q) = sum_k p_k * (log p_k - log q_k), p renormalised where q_k > 0.
        log_p = self.log_probs.masked_fill(other.log_probs == -math.inf, -math.inf)
        log_p = log_p.log_softmax(dim=-1)
        # Mask infinities before the subtraction, as its gradient would be NaN.
        impossible = log_p == -math.inf
        log_q = other.log_probs.masked_fill(impossible, 0.0)
        return (log_p.exp() * (log_p.masked_fill(impossible, 0.0) - log_q)).sum(dim=-1)

    def tempered(self, temperature: float) -> Self:
        """Divide the log-probabilities by the temperature and normalise."""
        if temperature == 1 or self.log_probs.numel() == 0:
            return self
        # log softmax((log p - max log p) / T): the maximum stays finite at any temperature.
        top = self.log_probs.amax(dim=-1, keepdim=True)
        return type(self)(((self.log_probs - top) / temperature).log_softmax(dim=-1))

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the log-probabilities; for select-entity without padding."""
        if action.actees is None:
            return RaggedTensor(self.log_probs, action.actors.lengths)
        lengths = action.actors.lengths * action.actees.lengths
        index = _flat_positions(action, self.log_probs)
        return RaggedTensor(self.log_probs.reshape(-1).index_select(0, index), lengths)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Restore the distribution from recorded logits or log-probabilities."""
        if action.actees is None:
            return type(self)(rows.view_as(self.log_probs))
        padded = rows.new_full((self.log_probs.numel(),), -math.inf)
        padded = padded.index_copy(0, _flat_positions(action, self.log_probs), rows)
        return type(self)(padded.view_as(self.log_probs))

    def certain(self, chosen: Tensor) -> Self:
        """Return log-probability 0 for the choices, -inf for all others."""
        impossible = torch.full_like(self.log_probs, -math.inf)
        return type(self)(impossible.scatter(1, chosen.unsqueeze(1), 0.0))

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate along the actors; narrower tables are padded with probability 0."""
        tables = [piece.log_probs for piece in pieces]
        widest = max(table.shape[1] for table in tables)
        padded = [F.pad(t, (0, widest - t.shape[1]), value=-math.inf) for t in tables]
        return cls(torch.cat(padded))

    def take(self, actors: Tensor) -> Self:
        """Select actors by index, (n,) int64."""
        return type(self)(self.log_probs.index_select(0, actors))

    def widened(self, part: ActionSubset) -> Self:
        """Extend the log-probabilities to all choices of all actors."""
        # Uniform probabilities for all actors.
        allowed = legal_choices(part.whole, self.log_probs.shape[1])
        wide = self.uniform(allowed, self.log_probs.dtype).log_probs
        actors = to_device(np.flatnonzero(part.actors), wide.device)
        if part.actees is None:
            wide[actors] = self.log_probs
            return type(self)(wide)
        # Select-entity: -inf for the actors of `part`, then the log-probabilities of their pairs.
        wide[actors] = -math.inf
        pairs = to_device(np.flatnonzero(part.pairs), wide.device)
        places = _flat_positions(part.whole, wide).index_select(0, pairs)
        wide.view(-1)[places] = self.to_rows(part.action).values
        return type(self)(wide)

    def relabelled(self, labels: Sequence[int]) -> Self:
        """Reorder the columns."""
        return type(self)(self.log_probs[:, labels])

    @classmethod
    def uniform(cls, allowed: Tensor, dtype: torch.dtype = torch.float32) -> Self:
        """Return the uniform distribution over allowed choices, (A, choices) bool."""
        logits = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
        return cls(logits.masked_fill(~allowed, -math.inf).log_softmax(dim=-1))


def legal_choices(action: ActionBatch, num_labels: int = 0) -> Tensor:
    """Return the mask of legal choices, padded for select-entity actions.

    Args:
        action: A actors of B frames.
        num_labels: the number of labels of a categorical action.

    Returns:
        (A, labels) bool; or (A, largest number of actees), False for padding.
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
    """Return the flat positions of actor-actee pairs in an array (A, largest number of actees)."""
    assert action.actees is not None
    num_actees = np.repeat(action.actees.lengths, action.actors.lengths)
    starts = padded.shape[1] * np.arange(len(num_actees))
    return to_device(row_indices(starts, num_actees), padded.device)
