"""Adaptation of frames to a network of other spaces: features and types are matched by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.arrays import BoolArray, IntArray
from entity_env.kinds import label_map
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import GLOBAL, ActionSpace, Kind, ObsSpace
from entity_env.vec.vec_obs import block_sizes
from rogue_net.actions.distributions import Decision, decide, random_draws
from rogue_net.actions.parts import PartDistribution, after_choices, parents_first
from rogue_net.actions.parts import made as chosen_or_0
from rogue_net.answer import output_of
from rogue_net.ragged import (
    ActionBatch,
    ActionSubset,
    EntityBatch,
    RaggedTensor,
    of_action,
    restrict_actions,
    to_device,
)
from rogue_net.rogue_net import NetOutput


class Wired(nn.Module):
    """A network in an environment that shows more than it knows, or the same in another order.

    The network gets neither features and entity types that it does not know, nor entities of types
    that the environment does not have, and does not select entities of unknown types. An entity of
    an unknown type, or with nothing else to select, makes random legal choices of equal
    probability.

    Args:
        network: made for other spaces, a `RogueNet` or one with the same methods.
        shown: the space of the environment.
        actions: actions of the environment; those of the network, with labels in any order.
        known: the space of the network, if it is not its attribute `obs_space`.
        known_actions: its actions, if they are not its attribute `action_space`.

    Attributes:
        known: the space of the network.

    Raises:
        ValueError: the network needs features that the environment lacks, or has other labels.
    """

    def __init__(
        self,
        network: Any,
        shown: ObsSpace,
        actions: Mapping[str, ActionSpace] | None = None,
        known: ObsSpace | None = None,
        known_actions: Mapping[str, ActionSpace] | None = None,
    ) -> None:
        super().__init__()
        self.known: ObsSpace = network.obs_space if known is None else known
        if missing := missing_features(shown, self.known):
            raise ValueError(f"obs_space: expected {'; '.join(missing)}")
        self.network = network
        self.obs_space = shown
        own = network.action_space if known_actions is None else known_actions
        self.action_space: Mapping[str, ActionSpace] = own if actions is None else actions
        self._own: Mapping[str, ActionSpace] = own
        self._labels = _label_orders(own, self.action_space)
        self._after = _orders_after(own, self.action_space)
        self._takes_choices = _takes_choices(network)
        unknown = sorted(shown.entities.keys() - self.known.entities.keys())
        if unknown and self._takes_choices:
            raise ValueError(
                f"obs_space: expected the entity types that the network knows, as its memory takes "
                f"in choices (memory.inputs), got {', '.join(unknown)}; upgrade the agent instead"
            )

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> NetOutput:
        """Choose or evaluate actions; attention is that of the entities that the network sees."""
        known, parts = self._adapted(batch)
        # The network itself, if it knows all actors and labels ...
        if not parts and not self._labels:
            if generator is not None:
                options["generator"] = generator
            out: NetOutput = self.network(known, actions, uniforms, **options)
            return out
        # ... otherwise its distributions, for all actors and in the order of the labels. Those of
        # dependent actions are given what was chosen before, so that the network is asked again.
        first = out = self.network(known, **options)
        if generator is not None:
            uniforms = random_draws(batch.actions, first.actions, generator)
        made = {name: chosen_or_0(chosen) for name, chosen in first.actions.items()}
        in_full: dict[str, Tensor] = {}  # of all actors, by the network's labels
        decisions: dict[str, Decision] = {}
        wholes = {name: part.whole for name, part in parts.items()}
        lefts = {name: part.action for name, part in parts.items()}
        for name in parents_first({name: batch.actions[name] for name in first.actions}):
            part, taken = parts.get(name), None
            if known.actions[name].after is not None:
                assert part is not None
                out = self.network(known, made, **options)
                whole, taken = after_choices(part.whole, wholes, in_full)
                left, _ = after_choices(part.action, lefts, made)
                part = replace(part, action=left, whole=whole)
            distribution = out.distribution(name)
            if isinstance(distribution, PartDistribution):
                distribution = distribution.inner
            if part is not None:
                distribution = distribution.widened(part)
            if name in self._labels:
                distribution = distribution.relabelled(self._labels[name][1])
            if taken is not None:
                distribution = PartDistribution(distribution, taken)
            decision = decide(distribution, of_action(actions, name), of_action(uniforms, name))
            decisions[name] = decision
            in_full[name] = self._by_known_labels(name, decision.chosen)
            made[name] = in_full[name] if part is None else _of_part(in_full[name], part)
        remembered = out
        if self._takes_choices:  # memory takes in those that are made
            remembered = self.network(known, made, **options)
        return output_of({name: decisions[name] for name in first.actions}, first.values)._replace(
            lengths={name: batch.actions[name].actors.lengths for name in first.actions},
            attention=first.attention,
            memory=remembered.memory,
            memory_of_values=remembered.memory_of_values,
        )

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the values of the network."""
        values: dict[str, Tensor] = self.network.values(self._adapted(batch)[0])
        return values

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Add the features of a batch to the statistics of the network."""
        self.network.update_input_stats(self._adapted(batch)[0])

    def _by_known_labels(self, name: str, chosen: Tensor) -> Tensor:
        """Return the choices of an action by the labels of the network."""
        if name not in self._labels:
            return chosen
        of_known, of_shown = self._labels[name]
        if chosen.ndim == 2:
            return chosen[:, of_known]
        labels = to_device(np.array(of_shown), chosen.device)[chosen.clamp(min=0)]
        return torch.where(chosen < 0, chosen, labels)

    def _adapted(self, batch: EntityBatch) -> tuple[EntityBatch, dict[str, ActionSubset]]:
        """Return the input of the network, and the actions that it has only a part of."""
        shown, known = self.obs_space, self.known
        # Masks in the order of the network's labels, also of those that others depend on.
        actions = dict(batch.actions)
        for name, order in self._after.items():
            actions[name] = _with_labels_before(actions[name], order)
        for name, action in actions.items():
            if (after := action.after) is not None and after.action in self._labels:
                _, of_shown = self._labels[after.action]
                after = replace(after, when=tuple(of_shown[k] for k in after.when))
                actions[name] = replace(action, after=after)
        for name, (of_known, _) in self._labels.items():
            mask, bounds = actions[name].mask, actions[name].bounds
            if mask is not None:
                mask = RaggedTensor(mask.values[:, of_known], mask.lengths)
            if bounds is not None:
                bounds = RaggedTensor(bounds.values[:, :, of_known], bounds.lengths)
            actions[name] = replace(actions[name], mask=mask, bounds=bounds)
        parts = self._restricted(batch, actions)
        actions |= {name: part.action for name, part in parts.items()}
        return adapt_batch(replace(batch, actions=actions), shown, known), parts

    def _restricted(
        self, batch: EntityBatch, actions: Mapping[str, ActionBatch]
    ) -> dict[str, ActionSubset]:
        """Return the actions in which entities of unknown types take part, without these."""
        types = [*self.obs_space.entities, GLOBAL]
        is_known = np.array([name == GLOBAL or name in self.known.entities for name in types])
        is_chained = any(action.after for action in actions.values())
        if is_known.all() and not (is_chained and self._labels):
            return {}
        _, ends = _spans(batch, types)

        def kept(rows: RaggedTensor) -> BoolArray:
            known_rows: BoolArray = is_known[_types(rows, ends)]
            return known_rows

        def has_others(action: ActionBatch) -> bool:
            rows = (action.actors, action.actees)
            return not all(one is None or kept(one).all() for one in rows)

        less = {name: action for name, action in actions.items() if has_others(action)}
        # Parts of one decision are restricted together, and depend on the network's labels.
        if is_chained and (less or self._labels):
            less = {name: actions[name] for name in self._own}
        return restrict_actions(less, kept, self._own)


def _takes_choices(network: Any) -> bool:
    """Return whether choices enter the memory of a network, or of its value function."""
    nets = [network, getattr(network, "policy", None), getattr(network, "value_function", None)]
    return any(bool(getattr(getattr(net, "memory", None), "actions", None)) for net in nets)


def _label_orders(
    known: Mapping[str, ActionSpace], shown: Mapping[str, ActionSpace]
) -> dict[str, tuple[list[int], list[int]]]:
    """Return permutations of labels in another order: known to shown, and back, by action."""
    orders = {}
    for name, space in known.items():
        one, other = space.names, shown[name].names if name in shown else []
        if sorted(one) != sorted(other):
            raise ValueError(f"labels of {name!r}: expected {[*one]} in any order, got {[*other]}")
        if one != other:
            orders[name] = [other.index(x) for x in one], [one.index(x) for x in other]
    return orders


def _orders_after(
    known: Mapping[str, ActionSpace], shown: Mapping[str, ActionSpace]
) -> dict[str, list[int]]:
    """Return the places that the labels of `when` have in the environment, if they differ."""
    orders = {}
    for name, space in known.items():
        if (other := shown.get(name)) is None:
            continue
        one, two = (space.after, sorted(space.when)), (other.after, sorted(other.when))
        if one != two:
            raise ValueError(f"after and when of {name!r}: expected {one}, got {two}")
        if space.when != other.when:
            orders[name] = [[*other.when].index(label) for label in space.when]
    return orders


def _with_labels_before(action: ActionBatch, order: Sequence[int]) -> ActionBatch:
    """Return a dependent action with its mask in another order of the labels before it."""
    assert action.after is not None
    when = tuple(action.after.when[k] for k in order)
    after = replace(action.after, when=when)
    if action.mask is None:
        return replace(action, after=after)
    # Each actor has a block of rows for each label.
    sizes = block_sizes(action)
    starts = exclusive_cumsum(sizes)[:, None] * len(order) + sizes[:, None] * np.array(order)
    rows = row_indices(starts.ravel(), np.repeat(sizes, len(order)))
    values = action.mask.values.index_select(0, to_device(rows, action.mask.values.device))
    return replace(action, mask=RaggedTensor(values, action.mask.lengths), after=after)


def _of_part(chosen: Tensor, part: ActionSubset) -> Tensor:
    """Return the choices of the actors of a part, by the places that actees have in it."""
    kept = to_device(np.flatnonzero(part.actors), chosen.device)
    of_actors = chosen.index_select(0, kept)
    if part.actees is None:
        return of_actors
    assert part.whole.actees is not None
    actees = part.whole.actees
    # The place of each actee among those that are kept.
    places: IntArray = np.cumsum(part.actees, dtype=np.int64) - part.actees
    starts = np.append(places, part.actees.sum())[actees.starts]
    frames = part.action.actors.frame_of_row()
    first = to_device(actees.starts[frames], chosen.device)
    before = to_device(starts[frames], chosen.device)
    taken = of_actors >= 0
    of_part = to_device(places, chosen.device)[(first + of_actors).masked_fill(~taken, 0)] - before
    return of_part.masked_fill(~taken, -1)


def missing_features(shown: ObsSpace, known: ObsSpace) -> list[str]:
    """Return messages about features that a network needs and a space does not have.

    Labels that the network does not know are such an obstacle too, features and types are not.
    """
    if known.entities and not known.entities.keys() & shown.entities.keys():
        return [f"some of the entity types {[*known.entities]}, got {[*shown.entities]}"]
    pairs = {
        f"features of {name!r}": (shown.entities[name], known.entities[name])
        for name in known.entities
        if name in shown.entities
    }
    pairs["global features"] = (shown.global_entity, known.global_entity)
    missing = []
    for what, (have, needed) in pairs.items():
        if wanted := [feature for feature in needed.features if feature not in have.features]:
            missing.append(f"{what} with {wanted}, got {have.columns}")
        kinds = {kind.name: kind for kind in have.kinds}
        if wanted := [kind.name for kind in needed.kinds if kind.name not in kinds]:
            missing.append(f"{what} with the kinds {wanted}, got {have.columns}")
        for kind in needed.kinds:
            labels = kinds[kind.name].labels if kind.name in kinds else []
            if unknown := [label for label in labels if label not in kind.labels]:
                missing.append(
                    f"{what}: labels of {kind.name!r} among {kind.labels}, got {unknown}"
                )
    return missing


def adapt_batch(batch: EntityBatch, shown: ObsSpace, known: ObsSpace) -> EntityBatch:
    """Return the frames of a batch as the input of a network of another space.

    Args:
        batch: B frames of `shown`.
        shown: the space of the environment.
        known: the space of the network; without `missing_features`.

    Raises:
        ValueError: an entity acts, or may be selected, of a type that `known` does not have.
    """
    # Features and types in the order of the network.
    like = next(iter(batch.features.values())).values
    nothing = np.zeros(batch.num_frames, dtype=np.int64)
    features = {}
    for name, entity in known.entities.items():
        if name in shown.entities:
            have = shown.entities[name].features
            features[name] = _columns(batch.features[name], have, entity.features)
        else:
            features[name] = RaggedTensor(like.new_zeros(0, len(entity.features)), nothing)
    if GLOBAL in batch.features:
        of_frames = batch.features[GLOBAL]
        features[GLOBAL] = _columns(of_frames, shown.global_features, known.global_features)
    kinds = {}
    for name, wanted in known.kinds.items():
        if name in batch.kinds:
            kinds[name] = _labels(batch.kinds[name], shown.kinds[name], wanted)
        else:
            kinds[name] = RaggedTensor(like.new_zeros(0, len(wanted), dtype=torch.uint8), nothing)
    # Positions of actors and actees, which depend on the order of the types.
    visible = {name: rows for name, rows in batch.visible.items() if name in features}
    actions = batch.actions
    if [*shown.entities] != [*known.entities]:
        actions = _moved(batch, [*shown.entities, GLOBAL], [*known.entities, GLOBAL])
    return replace(batch, features=features, visible=visible, actions=actions, kinds=kinds)


def _columns(rows: RaggedTensor, have: Sequence[str], wanted: Sequence[str]) -> RaggedTensor:
    if [*have] == [*wanted]:
        return rows
    index = to_device(
        np.array([have.index(name) for name in wanted], dtype=np.int64), rows.values.device
    )
    return RaggedTensor(rows.values.index_select(1, index), rows.lengths)


def _labels(rows: RaggedTensor, have: Sequence[Kind], wanted: Sequence[Kind]) -> RaggedTensor:
    """Return the columns of the wanted kinds, with the indices that their labels have there."""
    if [*have] == [*wanted]:
        return rows
    names, columns = [kind.name for kind in have], []
    for kind in wanted:
        column = names.index(kind.name)
        index = to_device(label_map(have[column], kind), rows.values.device)
        columns.append(index.index_select(0, rows.values[:, column].long()))
    return RaggedTensor(torch.stack(columns, dim=1), rows.lengths)


def _moved(
    batch: EntityBatch, shown: Sequence[str], known: Sequence[str]
) -> dict[str, ActionBatch]:
    """Return actions with the positions that entities have in another order of types.

    Args:
        batch: B frames.
        shown: the types in the order of the frames; the global one comes last.
        known: the types that are kept, in their new order.
    """
    begins, ends = _spans(batch, shown)
    moved = dict(zip(known, _spans(batch, known)[0], strict=True))
    shifts = np.stack([moved.get(n, begin) - begin for n, begin in zip(shown, begins, strict=True)])

    def move(positions: RaggedTensor, action: str) -> RaggedTensor:
        frames, device = positions.frame_of_row(), positions.values.device
        host = positions.values.cpu().numpy()
        types = _types(positions, ends)
        if unknown := sorted({shown[k] for k in types} - {*known}):
            raise ValueError(
                f"action {action!r}: expected entities of types that the network knows, "
                f"{[name for name in known if name != GLOBAL]}, got some of {unknown}"
            )
        return replace(positions, values=to_device(host + shifts[types, frames], device))

    return {
        name: replace(
            action,
            actors=move(action.actors, name),
            actees=None if action.actees is None else move(action.actees, name),
        )
        for name, action in batch.actions.items()
    }


def _spans(batch: EntityBatch, types: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return the position of the first entity of each type, and after its last, (types, B) each."""
    lengths = {name: rows.lengths for name, rows in batch.features.items()}
    lengths[GLOBAL] = np.ones(batch.num_frames, dtype=np.int64)
    nothing = np.zeros(batch.num_frames, dtype=np.int64)
    counts = np.stack([lengths.get(name, nothing) for name in types])
    ends: IntArray = np.cumsum(counts, axis=0)
    return ends - counts, ends


def _types(positions: RaggedTensor, ends: IntArray) -> IntArray:
    """Return the index of the type of each entity, (rows,)."""
    host = positions.values.cpu().numpy()
    types: IntArray = (host >= ends[:, positions.frame_of_row()]).sum(axis=0)
    return types
