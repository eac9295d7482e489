"""Autoregressive actions: masks and distributions conditioned on the choice of a parent action.

A chain of dependent actions is one decision of an actor. An actor is active in one if
its choice of the parent action is in `when`, or `when` is empty and it made a choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.actions.chains import topological_order
from entity_env.arrays import BoolArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.vec.vec_obs import block_sizes
from rogue_net.actions.distributions import ActionDistribution, Decision
from rogue_net.layout import Layout
from rogue_net.ragged import ActionBatch, ActionSubset, RaggedTensor, restrict_action, to_device


class ParentChoices:
    """Choices that an action is conditioned on; this base class is for independent actions."""

    def distribution(
        self, head: Any, x: Tensor, layout: Layout, action: ActionBatch
    ) -> ActionDistribution:
        """Return the distribution of a head, conditioned on these choices."""
        distribution: ActionDistribution = head.distribution(x, layout, action)
        return distribution


NO_CHOICES = ParentChoices()


class ChoiceVectors(ParentChoices):
    """Choices of the parent action.

    Args:
        vectors: (A, d_model) float, embedding of the choice of each actor.
        active: (A,) bool, True for active actors.
    """

    def __init__(self, vectors: Tensor, active: Tensor) -> None:
        self.vectors, self.active = vectors, active

    def distribution(
        self, head: Any, x: Tensor, layout: Layout, action: ActionBatch
    ) -> ActionDistribution:
        """Return the distribution of a head, in which inactive actors have no choice."""
        inner = head.distribution(x, layout, action, self.vectors)
        return ConditionalDistribution(inner, self.active)


class Parent:
    """Parent action of a head; this base class is for independent actions."""

    def condition(
        self,
        name: str,
        x: Tensor,
        layout: Layout,
        actions: Mapping[str, ActionBatch],
        decisions: Mapping[str, Decision],
    ) -> tuple[ActionBatch, dict[str, ParentChoices]]:
        """Condition an action on earlier decisions.

        Args:
            name: of the action.
            x: (P, d_model), the entities after the transformer.
            layout: of these rows.
            actions: of the same frames.
            decisions: of earlier actions.

        Returns:
            The action with the mask given its parent's choices; and keyword arguments for its head.
        """
        return actions[name], {}


NO_PARENT = Parent()


class ParentAction(Parent):
    """Parent action of a dependent action.

    Args:
        name: of the parent action.
        head: class of its head.
        layer: embeds its choices, see `ActionHead.choice_layer`.
    """

    def __init__(self, name: str, head: Any, layer: nn.Module) -> None:
        self.name, self.head, self.layer = name, head, layer

    def condition(
        self,
        name: str,
        x: Tensor,
        layout: Layout,
        actions: Mapping[str, ActionBatch],
        decisions: Mapping[str, Decision],
    ) -> tuple[ActionBatch, dict[str, ParentChoices]]:
        """Condition an action on the choices of the parent action."""
        action, parent, chosen = actions[name], actions[self.name], decisions[self.name].chosen
        vectors = self.head.choice_vectors(self.layer, x, layout, parent, zero_inactive(chosen))
        rows = parent_rows(action, actions)
        part, active = mask_given_parent(action, chosen.index_select(0, rows))
        return part, {"given": ChoiceVectors(vectors.index_select(0, rows), active)}


def parents_first(actions: Mapping[str, ActionBatch]) -> list[str]:
    """Return the names of actions in topological order: parents before dependent actions."""
    before = {name: None if a.after is None else a.after.action for name, a in actions.items()}
    return topological_order(before)


def parent_rows(action: ActionBatch, actions: Mapping[str, ActionBatch]) -> Tensor:
    """Return the row of each actor among the actors of the parent action, (A,) int64."""
    assert action.after is not None
    rank = action.after.rows
    first_row = np.repeat(actions[action.after.action].actors.starts, rank.lengths)
    return to_device(first_row, rank.values.device) + rank.values


def mask_given_parent(action: ActionBatch, parent_choices: Tensor) -> tuple[ActionBatch, Tensor]:
    """Return a dependent action with the mask given the choices of its parent.

    Args:
        action: A actors.
        parent_choices: (A,) int64, of these actors in the parent action; -1 for no choice.

    Returns:
        The action, without restrictions for inactive actors; and (A,) bool, True for active actors.
    """
    assert action.after is not None
    active, label = parent_choices >= 0, torch.zeros_like(parent_choices)
    if action.after.when:
        when = torch.tensor(action.after.when, device=parent_choices.device)
        is_label = parent_choices.unsqueeze(1) == when
        active, label = is_label.any(dim=1), is_label.to(torch.uint8).argmax(dim=1)
    if action.mask is None:
        return replace(action, after=None), active
    # The mask has a block of rows for each actor and label: (A, labels, rows of an actor), flat.
    device, labels, flat = parent_choices.device, action.after.labels, action.mask.values
    sizes = block_sizes(action)
    starts = to_device(row_indices(exclusive_cumsum(sizes) * labels, sizes), device)
    actor = to_device(np.repeat(np.arange(len(sizes)), sizes), device)
    rows = starts + (label * to_device(sizes, device)).index_select(0, actor)
    is_inactive = ~active.index_select(0, actor)
    mask = flat.index_select(0, rows) | is_inactive.view(-1, *[1] * (flat.dim() - 1))
    lengths = action.actors.lengths
    if action.actees is not None:
        lengths = lengths * action.actees.lengths
    return replace(action, mask=RaggedTensor(mask, lengths), after=None), active


def mask_given_choices(
    action: ActionBatch, actions: Mapping[str, ActionBatch], chosen: Mapping[str, Tensor]
) -> tuple[ActionBatch, Tensor]:
    """Call `mask_given_parent` with the choices of all actors of all actions.

    Args:
        action: A actors.
        actions: of the same frames.
        chosen: per action, the choices of all its actors; at least of the parent action.
    """
    assert action.after is not None
    parent_choices = chosen[action.after.action]
    return mask_given_parent(action, parent_choices.index_select(0, parent_rows(action, actions)))


def active_part(
    action: ActionBatch, actions: Mapping[str, ActionBatch], chosen: Mapping[str, Tensor]
) -> tuple[ActionBatch, BoolArray]:
    """Restrict a dependent action to its active actors, and return these, (A,) bool on the host.

    Args:
        action: A actors.
        actions: of the same frames.
        chosen: per action, the choices of all its actors.
    """
    part, active = mask_given_choices(action, actions, chosen)
    on_host: BoolArray = active.cpu().numpy()
    actees = None if part.actees is None else np.ones(len(part.actees.values), np.bool_)
    return restrict_action(part, on_host, actees).action, on_host


def conditional_distribution(
    name: str,
    actions: Mapping[str, ActionBatch],
    chosen: Mapping[str, Tensor],
    distribution: Callable[[ActionBatch], ActionDistribution],
) -> ActionDistribution:
    """Return the distribution of an action, conditioned on its parent's choices if it has a parent.

    Args:
        name: of the action.
        actions: of the same frames.
        chosen: per action, the choices of all its actors; at least of earlier actions.
        distribution: returns the distribution of an independent action.
    """
    action = actions[name]
    if action.after is None:
        return distribution(action)
    part, active = mask_given_choices(action, actions, chosen)
    return ConditionalDistribution(distribution(part), active)


def joint(parts: Mapping[str, Tensor], actions: Mapping[str, ActionBatch]) -> dict[str, Tensor]:
    """Sum terms over each chain of dependent actions, such as log-probabilities.

    Args:
        parts: (A,) float of each action, 0 for inactive actors.
        actions: their actors.

    Returns:
        (A,) float of each independent action, the first one of a chain.
    """
    # log p(a_1, ..., a_n) = log p(a_1) + sum_k log p(a_k | a_1, ..., a_(k-1))
    totals = dict(parts)
    for name in reversed(parents_first(actions)):
        after = actions[name].after
        if after is not None and name in totals:
            rows = parent_rows(actions[name], actions)
            total = totals[after.action]
            totals[after.action] = total.index_add(0, rows, totals.pop(name).to(total.dtype))
    return totals


def independent(actions: Mapping[str, ActionBatch]) -> list[ActionBatch]:
    """Return the actions without a parent: each of their actors makes one decision."""
    return [action for action in actions.values() if action.after is None]


def num_active(action: ActionBatch, chosen: Tensor) -> int:
    """Return the number of active actors, from the choices of all actors of an action."""
    return len(chosen) if action.after is None else int(has_choice(chosen).sum())


def has_choice(chosen: Tensor) -> Tensor:
    """Return which actors are active, (A,) bool, from the choices of all actors of an action."""
    return ~chosen[:, 0].isnan() if chosen.dim() == 2 else chosen >= 0


def zero_inactive(chosen: Tensor) -> Tensor:
    """Replace the choices of inactive actors, -1 or NaN, by 0."""
    return chosen.nan_to_num(nan=0.0) if chosen.dim() == 2 else chosen.clamp(min=0)


class ConditionalDistribution(ActionDistribution):
    """Distribution of a dependent action given the choices of its parent.

    Inactive actors choose -1, or NaN for continuous actions, with probability 1.

    Args:
        inner: of all A actors.
        active: (A,) bool, True for active actors.
    """

    def __init__(self, inner: ActionDistribution, active: Tensor) -> None:
        self.inner, self.active = inner, active

    @property
    def all_log_probs(self) -> Tensor | None:
        """(A, choices) log-probabilities of all actors, active or not."""
        return self.inner.all_log_probs

    def _mask_inactive(self, per_actor: Tensor) -> Tensor:
        return per_actor.masked_fill(~self.active, 0.0)

    def _mark_inactive(self, chosen: Tensor) -> Tensor:
        """Set the choices of inactive actors to -1 or NaN."""
        if chosen.is_floating_point():
            return chosen.masked_fill(~self.active.unsqueeze(1), torch.nan)
        return chosen.masked_fill(~self.active, -1)

    def _fill_inactive(self, chosen: Tensor) -> Tensor:
        """Set the choices of inactive actors to 0."""
        if chosen.is_floating_point():
            return chosen.masked_fill(~self.active.unsqueeze(1), 0.0)
        return chosen.masked_fill(~self.active, 0)

    def sample(self, draws: Tensor) -> Tensor:
        """Sample the choices of active actors."""
        return self._mark_inactive(self.inner.sample(draws))

    def mode(self) -> Tensor:
        """Return the most probable choices of active actors."""
        return self._mark_inactive(self.inner.mode())

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices, 0 for inactive actors."""
        return self._mask_inactive(self.inner.log_prob(self._fill_inactive(chosen)))

    def entropy(self) -> Tensor:
        """Return the entropies, 0 for inactive actors."""
        return self._mask_inactive(self.inner.entropy())

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of entropy / largest possible entropy of active actors."""
        actors = self.active.nonzero().flatten()
        return self.inner.take(actors).normalised_entropy(entropies.index_select(0, actors))

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other), 0 for inactive actors."""
        return self._mask_inactive(self.inner.kl(other.inner))

    def total_variation(self, other: Self) -> Tensor:
        """Compute the total variation distances of all actors, active or not."""
        return self.inner.total_variation(other.inner)

    def tempered(self, temperature: float) -> Self:
        """Return the distribution with all logits divided by a temperature above 0."""
        return type(self)(self.inner.tempered(temperature), self.active)

    def to_env(self, chosen: Tensor) -> Tensor:
        """Convert choices to actions of `VecEnv.act`."""
        return self._mark_inactive(self.inner.to_env(self._fill_inactive(chosen)))

    def from_env(self, env_choices: Tensor) -> Tensor:
        """Convert actions of `VecEnv.act` to choices."""
        return self._mark_inactive(self.inner.from_env(self._fill_inactive(env_choices)))

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the parameters of all actors in the format of recordings."""
        return self.inner.to_rows(action)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Restore a recorded distribution of the same actors."""
        return type(self)(self.inner.from_rows(rows, action), self.active)

    def certain(self, chosen: Tensor) -> Self | None:
        """Return the distribution with probability 1 for the choices; None if there is none."""
        inner = self.inner.certain(self._fill_inactive(chosen))
        return None if inner is None else type(self)(inner, self.active)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate distributions along the actors."""
        inner = pieces[0].inner.cat([piece.inner for piece in pieces])
        return cls(inner, torch.cat([piece.active for piece in pieces]))

    def take(self, actors: Tensor) -> Self:
        """Select actors by index, (n,) int64."""
        return type(self)(self.inner.take(actors), self.active.index_select(0, actors))

    def widened(self, part: ActionSubset) -> Self:
        """Raise, as the active actors of the whole action depend on choices that are not available.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("ConditionalDistribution: expected all actors of the action")
