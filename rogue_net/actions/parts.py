"""Dependent actions in a network: who takes them, and distributions of those who may not.

A chain of actions that depend on each other is one decision of an actor.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.actions.chains import in_order
from entity_env.arrays import BoolArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.vec.vec_obs import block_sizes
from rogue_net.actions.distributions import ActionDistribution, Decision
from rogue_net.layout import Layout
from rogue_net.ragged import ActionBatch, ActionSubset, RaggedTensor, restrict_action, to_device


class ParentChoices:
    """Choices that an action is conditioned on; the base class: none, as it depends on no other."""

    def distribution(
        self, head: Any, x: Tensor, layout: Layout, action: ActionBatch
    ) -> ActionDistribution:
        """Return the distribution of a head over the choices of the actors, given these."""
        distribution: ActionDistribution = head.distribution(x, layout, action)
        return distribution


NO_CHOICES = ParentChoices()


class ChoiceVectors(ParentChoices):
    """Choices of the parent action.

    Args:
        vectors: (A, d_model) float, of the choice of each actor.
        active: (A,) bool, True for actors who take the dependent action.
    """

    def __init__(self, vectors: Tensor, active: Tensor) -> None:
        self.vectors, self.active = vectors, active

    def distribution(
        self, head: Any, x: Tensor, layout: Layout, action: ActionBatch
    ) -> ActionDistribution:
        """Return the distribution of the active actors."""
        return PartDistribution(head.distribution(x, layout, action, self.vectors), self.active)


class Parent:
    """Parent action of a head; the base class: the head depends on no other action."""

    def condition(
        self,
        name: str,
        x: Tensor,
        layout: Layout,
        actions: Mapping[str, ActionBatch],
        decisions: Mapping[str, Decision],
    ) -> tuple[ActionBatch, dict[str, ParentChoices]]:
        """Return an action with the choices that are legal now, and keywords for its head.

        Args:
            name: of the action.
            x: (P, d_model), the entities after the transformer.
            layout: the rows of each frame among these.
            actions: of the same frames.
            decisions: of the actions before this one.
        """
        return actions[name], {}


NO_PARENT = Parent()


class ParentAction(Parent):
    """An action that another one depends on.

    Args:
        name: of the parent action.
        head: class of its head.
        layer: from its choices to vectors, see `ActionHead.choice_layer`.
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
        """Return an action with the choices that are legal after those of the parent action."""
        action, chosen = actions[name], decisions[self.name].chosen
        vectors = self.head.choice_vectors(self.layer, x, layout, actions[self.name], made(chosen))
        rows = rows_before(action, actions)
        part, active = narrowed(action, chosen.index_select(0, rows))
        return part, {"given": ChoiceVectors(vectors.index_select(0, rows), active)}


def parents_first(actions: Mapping[str, ActionBatch]) -> list[str]:
    """Return the names of actions, each behind the one that it depends on."""
    before = {name: None if a.after is None else a.after.action for name, a in actions.items()}
    return in_order(before)


def rows_before(action: ActionBatch, actions: Mapping[str, ActionBatch]) -> Tensor:
    """Return the row of each actor among those of the action before, (A,) int64."""
    assert action.after is not None
    places = action.after.rows
    first = np.repeat(actions[action.after.action].actors.starts, places.lengths)
    return to_device(first, places.values.device) + places.values


def narrowed(action: ActionBatch, before: Tensor) -> tuple[ActionBatch, Tensor]:
    """Return a dependent action with the choices that are legal after those that were made.

    Args:
        action: A actors.
        before: (A,) int64, what each of them chose in the action before; -1 for nothing.

    Returns:
        The action, in which everything is legal for actors who do not take it; and (A,) bool, who
        takes it.
    """
    assert action.after is not None
    taken, label = before >= 0, torch.zeros_like(before)
    if action.after.when:
        when = torch.tensor(action.after.when, device=before.device)
        is_label = before.unsqueeze(1) == when
        taken, label = is_label.any(dim=1), is_label.to(torch.uint8).argmax(dim=1)
    if action.mask is None:
        return replace(action, after=None), taken
    # Each actor has a block of rows for each label.
    device, labels, flat = before.device, action.after.labels, action.mask.values
    sizes = block_sizes(action)
    starts = to_device(row_indices(exclusive_cumsum(sizes) * labels, sizes), device)
    actor = to_device(np.repeat(np.arange(len(sizes)), sizes), device)
    rows = starts + (label * to_device(sizes, device)).index_select(0, actor)
    is_free = ~taken.index_select(0, actor)
    mask = flat.index_select(0, rows) | is_free.view(-1, *[1] * (flat.dim() - 1))
    lengths = action.actors.lengths
    if action.actees is not None:
        lengths = lengths * action.actees.lengths
    return replace(action, mask=RaggedTensor(mask, lengths), after=None), taken


def after_choices(
    action: ActionBatch, actions: Mapping[str, ActionBatch], chosen: Mapping[str, Tensor]
) -> tuple[ActionBatch, Tensor]:
    """Return a dependent action as `narrowed` does, by the choices of all actors.

    Args:
        action: A actors.
        actions: of the same frames.
        chosen: per action, the choices of all its actors; of the one before at least.
    """
    assert action.after is not None
    before = chosen[action.after.action]
    return narrowed(action, before.index_select(0, rows_before(action, actions)))


def of_takers(
    action: ActionBatch, actions: Mapping[str, ActionBatch], chosen: Mapping[str, Tensor]
) -> tuple[ActionBatch, BoolArray]:
    """Return a dependent action of those who take it, and who does, (A,) bool on the host.

    Args:
        action: A actors.
        actions: of the same frames.
        chosen: per action, the choices of all its actors.
    """
    part, taken = after_choices(action, actions, chosen)
    on_host: BoolArray = taken.cpu().numpy()
    actees = None if part.actees is None else np.ones(len(part.actees.values), np.bool_)
    return restrict_action(part, on_host, actees).action, on_host


def of_all(
    name: str,
    actions: Mapping[str, ActionBatch],
    chosen: Mapping[str, Tensor],
    distribution: Callable[[ActionBatch], ActionDistribution],
) -> ActionDistribution:
    """Return the distribution of an action, given what was chosen before if it depends on that.

    Args:
        name: of the action.
        actions: of the same frames.
        chosen: per action, the choices of all its actors; of those before this one at least.
        distribution: returns that of an action which depends on none.
    """
    action = actions[name]
    if action.after is None:
        return distribution(action)
    part, taken = after_choices(action, actions, chosen)
    return PartDistribution(distribution(part), taken)


def joint(parts: Mapping[str, Tensor], actions: Mapping[str, ActionBatch]) -> dict[str, Tensor]:
    """Add up what the parts of a chain contribute, by the first action of each chain.

    Args:
        parts: (A,) float of each action, 0 for actors who do not take it.
        actions: their actors.

    Returns:
        (A,) float of each action that depends on none.
    """
    totals = dict(parts)
    for name in reversed(parents_first(actions)):
        after = actions[name].after
        if after is not None and name in totals:
            rows = rows_before(actions[name], actions)
            before = totals[after.action]
            totals[after.action] = before.index_add(0, rows, totals.pop(name).to(before.dtype))
    return totals


def independent(actions: Mapping[str, ActionBatch]) -> list[ActionBatch]:
    """Return the actions that depend on no other, each actor of which makes one decision."""
    return [action for action in actions.values() if action.after is None]


def num_active(action: ActionBatch, chosen: Tensor) -> int:
    """Return the number of actors who take an action, by the choices of all its actors."""
    return len(chosen) if action.after is None else int(is_taken(chosen).sum())


def is_taken(chosen: Tensor) -> Tensor:
    """Return who takes an action, by the choices of all its actors, (A,) bool."""
    return ~chosen[:, 0].isnan() if chosen.dim() == 2 else chosen >= 0


def made(chosen: Tensor) -> Tensor:
    """Return choices with 0 for actors who do not take the action."""
    return chosen.nan_to_num(nan=0.0) if chosen.dim() == 2 else chosen.clamp(min=0)


class PartDistribution(ActionDistribution):
    """Distribution of a dependent action, given what was chosen before.

    Actors who do not take it choose -1, or NaN in place of numbers, with probability 1.

    Args:
        inner: of all A actors.
        taken: (A,) bool, True for those who take the action.
    """

    def __init__(self, inner: ActionDistribution, taken: Tensor) -> None:
        self.inner, self.taken = inner, taken

    @property
    def all_log_probs(self) -> Tensor | None:
        """(A, choices) log-probabilities, also of actors who do not take the action."""
        return self.inner.all_log_probs

    def _of_takers(self, per_actor: Tensor) -> Tensor:
        return per_actor.masked_fill(~self.taken, 0.0)

    def _without_others(self, chosen: Tensor) -> Tensor:
        """Return choices, with -1 or NaN for actors who do not take the action."""
        if chosen.is_floating_point():
            return chosen.masked_fill(~self.taken.unsqueeze(1), torch.nan)
        return chosen.masked_fill(~self.taken, -1)

    def _with_all(self, chosen: Tensor) -> Tensor:
        """Return choices with 0 for actors who do not take the action."""
        if chosen.is_floating_point():
            return chosen.masked_fill(~self.taken.unsqueeze(1), 0.0)
        return chosen.masked_fill(~self.taken, 0)

    def sample(self, draws: Tensor) -> Tensor:
        """Draw the choices of those who take the action."""
        return self._without_others(self.inner.sample(draws))

    def mode(self) -> Tensor:
        """Return the most probable choices of those who take the action."""
        return self._without_others(self.inner.mode())

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Return the log-probabilities of choices, 0 for those who do not take the action."""
        return self._of_takers(self.inner.log_prob(self._with_all(chosen)))

    def entropy(self) -> Tensor:
        """Return the entropies, 0 for those who do not take the action."""
        return self._of_takers(self.inner.entropy())

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of entropy / largest possible entropy of those who take the action."""
        takers = self.taken.nonzero().flatten()
        return self.inner.take(takers).normalised_entropy(entropies.index_select(0, takers))

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other), 0 for those who do not take the action."""
        return self._of_takers(self.inner.kl(other.inner))

    def total_variation(self, other: Self) -> Tensor:
        """Compute the total variation distances, also of those who do not take the action."""
        return self.inner.total_variation(other.inner)

    def tempered(self, temperature: float) -> Self:
        """Return the distribution with all scores divided by a temperature above 0."""
        return type(self)(self.inner.tempered(temperature), self.taken)

    def to_env(self, chosen: Tensor) -> Tensor:
        """Return choices as `VecEnv.act` takes them."""
        return self._without_others(self.inner.to_env(self._with_all(chosen)))

    def from_env(self, given: Tensor) -> Tensor:
        """Return choices that `VecEnv.act` takes as those of this distribution."""
        return self._without_others(self.inner.from_env(self._with_all(given)))

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return the parameters of all actors as recordings keep them."""
        return self.inner.to_rows(action)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Return the recorded distribution of the same actors."""
        return type(self)(self.inner.from_rows(rows, action), self.taken)

    def certain(self, chosen: Tensor) -> Self | None:
        """Return the distribution that gives choices the probability 1, if there is one."""
        inner = self.inner.certain(self._with_all(chosen))
        return None if inner is None else type(self)(inner, self.taken)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the actors of several distributions."""
        inner = pieces[0].inner.cat([piece.inner for piece in pieces])
        return cls(inner, torch.cat([piece.taken for piece in pieces]))

    def take(self, actors: Tensor) -> Self:
        """Return the distribution of the given actors."""
        return type(self)(self.inner.take(actors), self.taken.index_select(0, actors))

    def widened(self, part: ActionSubset) -> Self:
        """Raise, as who takes the action depends on choices that are not known here.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("PartDistribution: expected all actors of a dependent action")
