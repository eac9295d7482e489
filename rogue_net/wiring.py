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
from rogue_net.actions.parts import (
    ConditionalDistribution,
    mask_given_choices,
    parents_first,
    zero_inactive,
)
from rogue_net.answer import output_of
from rogue_net.ragged import (
    ActionBatch,
    ActionSubset,
    EntityBatch,
    RaggedTensor,
    lookup,
    restrict_actions,
    to_device,
)
from rogue_net.rogue_net import NetOutput
from rogue_net.space_diff import missing_features


class Wired(nn.Module):
    """Wrapper that adapts a network to an environment with more, or reordered, features and types.

    Features and entity types that are unknown to the network are removed from its input, types that
    the environment lacks have no entities, and entities of unknown types are not selected. Actors
    of unknown types, or with only unknown actees, choose uniformly among legal choices.

    Args:
        network: a `RogueNet`, or a network with the same methods, of other spaces.
        env_space: the observation space of the environment.
        actions: the actions of the environment: the network's, with labels in any order.
        net_space: the observation space of the network; its attribute `obs_space` by default.
        net_actions: the actions of the network; its attribute `action_space` by default.

    Attributes:
        net_space: the observation space of the network.

    Raises:
        ValueError: the environment lacks features of the network, or has other labels.
    """

    def __init__(
        self,
        network: Any,
        env_space: ObsSpace,
        actions: Mapping[str, ActionSpace] | None = None,
        net_space: ObsSpace | None = None,
        net_actions: Mapping[str, ActionSpace] | None = None,
    ) -> None:
        super().__init__()
        self.net_space: ObsSpace = network.obs_space if net_space is None else net_space
        if missing := missing_features(env_space, self.net_space):
            raise ValueError(f"obs_space: expected {'; '.join(missing)}")
        self.network = network
        self.obs_space = env_space
        trained = network.action_space if net_actions is None else net_actions
        self.action_space: Mapping[str, ActionSpace] = trained if actions is None else actions
        self._net_actions: Mapping[str, ActionSpace] = trained
        self._labels = _label_orders(trained, self.action_space)
        self._parent_orders = _parent_label_orders(trained, self.action_space)
        self._remembers_choices = _remembers_choices(network)
        unknown = sorted(env_space.entities.keys() - self.net_space.entities.keys())
        if unknown and self._remembers_choices:
            raise ValueError(
                f"obs_space: expected the entity types of the network, as choices enter its memory "
                f"(memory.inputs), got {', '.join(unknown)}; upgrade the agent instead"
            )

    def forward(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
        generator: torch.Generator | None = None,
        **options: Any,
    ) -> NetOutput:
        """Choose or evaluate actions; attention is between the entities in the network's input."""
        net_batch, parts = self._adapted(batch)
        # All actors are known and labels have the same order: call the network.
        if not parts and not self._labels:
            if generator is not None:
                options["generator"] = generator
            out: NetOutput = self.network(net_batch, actions, uniforms, **options)
            return out
        # Otherwise, extend its distributions to all actors and reorder labels. Distributions of
        # dependent actions need another forward pass, conditioned on the choices so far.
        first = out = self.network(net_batch, **options)
        if generator is not None:
            uniforms = random_draws(batch.actions, first.actions, generator)
        net_choices = {name: zero_inactive(chosen) for name, chosen in first.actions.items()}
        env_choices: dict[str, Tensor] = {}  # of all actors, in the network's order of labels
        decisions: dict[str, Decision] = {}
        whole_actions = {name: part.whole for name, part in parts.items()}
        part_actions = {name: part.action for name, part in parts.items()}
        for name in parents_first({name: batch.actions[name] for name in first.actions}):
            part, active = parts.get(name), None
            if net_batch.actions[name].after is not None:
                assert part is not None
                out = self.network(net_batch, net_choices, **options)
                whole, active = mask_given_choices(part.whole, whole_actions, env_choices)
                restricted, _ = mask_given_choices(part.action, part_actions, net_choices)
                part = replace(part, action=restricted, whole=whole)
            distribution = out.distribution(name)
            if isinstance(distribution, ConditionalDistribution):
                distribution = distribution.inner
            if part is not None:
                distribution = distribution.widened(part)
            if name in self._labels:
                distribution = distribution.relabelled(self._labels[name][1])
            if active is not None:
                distribution = ConditionalDistribution(distribution, active)
            decision = decide(distribution, lookup(actions, name), lookup(uniforms, name))
            decisions[name] = decision
            env_choices[name] = chosen = self._by_net_labels(name, decision.chosen)
            net_choices[name] = chosen if part is None else _restrict_choices(chosen, part)
        last_out = out
        if self._remembers_choices:  # update memory with the final choices
            last_out = self.network(net_batch, net_choices, **options)
        return output_of({name: decisions[name] for name in first.actions}, first.values)._replace(
            lengths={name: batch.actions[name].actors.lengths for name in first.actions},
            attention=first.attention,
            memory=last_out.memory,
            memory_of_values=last_out.memory_of_values,
        )

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the values of the network, by regression head."""
        values: dict[str, Tensor] = self.network.values(self._adapted(batch)[0])
        return values

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Update the input statistics of the network with a batch."""
        self.network.update_input_stats(self._adapted(batch)[0])

    def _by_net_labels(self, name: str, chosen: Tensor) -> Tensor:
        """Convert choices to the network's order of labels."""
        if name not in self._labels:
            return chosen
        to_net, to_env = self._labels[name]
        if chosen.ndim == 2:
            return chosen[:, to_net]
        labels = to_device(np.array(to_env), chosen.device)[chosen.clamp(min=0)]
        return torch.where(chosen < 0, chosen, labels)

    def _adapted(self, batch: EntityBatch) -> tuple[EntityBatch, dict[str, ActionSubset]]:
        """Return the input of the network, and its restricted actions."""
        env_space, net_space = self.obs_space, self.net_space
        # Masks in the network's order of labels, including the labels of parent actions.
        actions = dict(batch.actions)
        for name, order in self._parent_orders.items():
            actions[name] = _with_parent_labels(actions[name], order)
        for name, action in actions.items():
            if (after := action.after) is not None and after.action in self._labels:
                _, env_columns = self._labels[after.action]
                after = replace(after, when=tuple(env_columns[k] for k in after.when))
                actions[name] = replace(action, after=after)
        for name, (net_columns, _) in self._labels.items():
            mask, bounds = actions[name].mask, actions[name].bounds
            if mask is not None:
                mask = RaggedTensor(mask.values[:, net_columns], mask.lengths)
            if bounds is not None:
                bounds = RaggedTensor(bounds.values[:, :, net_columns], bounds.lengths)
            actions[name] = replace(actions[name], mask=mask, bounds=bounds)
        parts = self._restricted(batch, actions)
        actions |= {name: part.action for name, part in parts.items()}
        return adapt_batch(replace(batch, actions=actions), env_space, net_space), parts

    def _restricted(
        self, batch: EntityBatch, actions: Mapping[str, ActionBatch]
    ) -> dict[str, ActionSubset]:
        """Return the actions with actors or actees of unknown types, restricted to known types."""
        types = [*self.obs_space.entities, GLOBAL]
        is_known = np.array([name == GLOBAL or name in self.net_space.entities for name in types])
        is_chained = any(action.after for action in actions.values())
        if is_known.all() and not (is_chained and self._labels):
            return {}
        _, ends = _type_spans(batch, types)

        def select(rows: RaggedTensor) -> BoolArray:
            is_retained: BoolArray = is_known[_types_of(rows, ends)]
            return is_retained

        def has_unknown(action: ActionBatch) -> bool:
            positions = (action.actors, action.actees)
            return not all(one is None or select(one).all() for one in positions)

        restricted = {name: action for name, action in actions.items() if has_unknown(action)}
        # The actions of a chain are restricted together, with the network's labels.
        if is_chained and (restricted or self._labels):
            restricted = {name: actions[name] for name in self._net_actions}
        return restrict_actions(restricted, select, self._net_actions)


def _remembers_choices(network: Any) -> bool:
    """Return whether choices are an input of the memory of a network or its value function."""
    nets = [network, getattr(network, "policy", None), getattr(network, "value_function", None)]
    return any(bool(getattr(getattr(net, "memory", None), "actions", None)) for net in nets)


def _label_orders(
    net_actions: Mapping[str, ActionSpace], env_actions: Mapping[str, ActionSpace]
) -> dict[str, tuple[list[int], list[int]]]:
    """Return the label permutations of reordered actions: network to environment, and back."""
    orders = {}
    for name, space in net_actions.items():
        old, new = space.names, env_actions[name].names if name in env_actions else []
        if sorted(old) != sorted(new):
            raise ValueError(f"labels of {name!r}: expected {[*old]} in any order, got {[*new]}")
        if old != new:
            orders[name] = [new.index(x) for x in old], [old.index(x) for x in new]
    return orders


def _parent_label_orders(
    net_actions: Mapping[str, ActionSpace], env_actions: Mapping[str, ActionSpace]
) -> dict[str, list[int]]:
    """Return the permutations of the parent labels in `when`, of actions where they differ."""
    orders = {}
    for name, space in net_actions.items():
        if (other := env_actions.get(name)) is None:
            continue
        expected, got = (space.after, sorted(space.when)), (other.after, sorted(other.when))
        if expected != got:
            raise ValueError(f"after and when of {name!r}: expected {expected}, got {got}")
        if space.when != other.when:
            orders[name] = [[*other.when].index(label) for label in space.when]
    return orders


def _with_parent_labels(action: ActionBatch, order: Sequence[int]) -> ActionBatch:
    """Reorder the parent labels of the mask of a dependent action."""
    assert action.after is not None
    when = tuple(action.after.when[k] for k in order)
    after = replace(action.after, when=when)
    if action.mask is None:
        return replace(action, after=after)
    # The mask is (A, labels, rows of an actor), flat.
    sizes = block_sizes(action)
    starts = exclusive_cumsum(sizes)[:, None] * len(order) + sizes[:, None] * np.array(order)
    rows = row_indices(starts.ravel(), np.repeat(sizes, len(order)))
    values = action.mask.values.index_select(0, to_device(rows, action.mask.values.device))
    return replace(action, mask=RaggedTensor(values, action.mask.lengths), after=after)


def _restrict_choices(chosen: Tensor, part: ActionSubset) -> Tensor:
    """Select the choices of the actors of a part, as indices among the actees of the part."""
    rows = to_device(np.flatnonzero(part.actors), chosen.device)
    choices = chosen.index_select(0, rows)
    if part.actees is None:
        return choices
    assert part.whole.actees is not None
    actees = part.whole.actees
    # The rank of each actee among the actees of the part.
    ranks: IntArray = np.cumsum(part.actees, dtype=np.int64) - part.actees
    starts = np.append(ranks, part.actees.sum())[actees.starts]
    frames = part.action.actors.frame_of_row()
    first = to_device(actees.starts[frames], chosen.device)
    before = to_device(starts[frames], chosen.device)
    active = choices >= 0
    positions = to_device(ranks, chosen.device)[(first + choices).masked_fill(~active, 0)] - before
    return positions.masked_fill(~active, -1)


def adapt_batch(batch: EntityBatch, env: ObsSpace, net: ObsSpace) -> EntityBatch:
    """Convert a batch to the input of a network of another space.

    Args:
        batch: B frames of `env`.
        env: the space of the environment.
        net: the space of the network; without `missing_features`.

    Raises:
        ValueError: an actor or actee has a type that is not in `net`.
    """
    # Features and types in the order of the network.
    like = next(iter(batch.features.values())).values
    zeros = np.zeros(batch.num_frames, dtype=np.int64)
    features = {}
    for name, entity in net.entities.items():
        if name in env.entities:
            env_features = env.entities[name].features
            features[name] = _select_columns(batch.features[name], env_features, entity.features)
        else:
            features[name] = RaggedTensor(like.new_zeros(0, len(entity.features)), zeros)
    if GLOBAL in batch.features:
        global_rows = batch.features[GLOBAL]
        features[GLOBAL] = _select_columns(global_rows, env.global_features, net.global_features)
    kinds = {}
    for name, net_kinds in net.kinds.items():
        if name in batch.kinds:
            kinds[name] = _map_labels(batch.kinds[name], env.kinds[name], net_kinds)
        else:
            kinds[name] = RaggedTensor(like.new_zeros(0, len(net_kinds), dtype=torch.uint8), zeros)
    # Positions of actors and actees, which depend on the order of the types.
    visible = {name: rows for name, rows in batch.visible.items() if name in features}
    actions = batch.actions
    if [*env.entities] != [*net.entities]:
        actions = _move_positions(batch, [*env.entities, GLOBAL], [*net.entities, GLOBAL])
    return replace(batch, features=features, visible=visible, actions=actions, kinds=kinds)


def _select_columns(rows: RaggedTensor, old: Sequence[str], new: Sequence[str]) -> RaggedTensor:
    if [*old] == [*new]:
        return rows
    index = to_device(
        np.array([old.index(name) for name in new], dtype=np.int64), rows.values.device
    )
    return RaggedTensor(rows.values.index_select(1, index), rows.lengths)


def _map_labels(rows: RaggedTensor, old: Sequence[Kind], new: Sequence[Kind]) -> RaggedTensor:
    """Select categorical features, and convert label indices to the labels of `new`."""
    if [*old] == [*new]:
        return rows
    names, columns = [kind.name for kind in old], []
    for kind in new:
        column = names.index(kind.name)
        index = to_device(label_map(old[column], kind), rows.values.device)
        columns.append(index.index_select(0, rows.values[:, column].long()))
    return RaggedTensor(torch.stack(columns, dim=1), rows.lengths)


def _move_positions(
    batch: EntityBatch, env_types: Sequence[str], net_types: Sequence[str]
) -> dict[str, ActionBatch]:
    """Convert positions of actors and actees to another order of types.

    Args:
        batch: B frames.
        env_types: the types in the order of the frames; the global one is last.
        net_types: the retained types, in their new order.
    """
    begins, ends = _type_spans(batch, env_types)
    new = dict(zip(net_types, _type_spans(batch, net_types)[0], strict=True))
    shifts = np.stack(
        [new.get(n, begin) - begin for n, begin in zip(env_types, begins, strict=True)]
    )

    def move(positions: RaggedTensor, action: str) -> RaggedTensor:
        frames, device = positions.frame_of_row(), positions.values.device
        host = positions.values.cpu().numpy()
        types = _types_of(positions, ends)
        if unknown := sorted({env_types[k] for k in types} - {*net_types}):
            raise ValueError(
                f"action {action!r}: expected entities of the network's types, "
                f"{[name for name in net_types if name != GLOBAL]}, got {unknown}"
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


def _type_spans(batch: EntityBatch, types: Sequence[str]) -> tuple[IntArray, IntArray]:
    """Return the range of positions of each type in each frame: starts and ends, (types, B)."""
    lengths = {name: rows.lengths for name, rows in batch.features.items()}
    lengths[GLOBAL] = np.ones(batch.num_frames, dtype=np.int64)
    zeros = np.zeros(batch.num_frames, dtype=np.int64)
    counts = np.stack([lengths.get(name, zeros) for name in types])
    ends: IntArray = np.cumsum(counts, axis=0)
    return ends - counts, ends


def _types_of(positions: RaggedTensor, ends: IntArray) -> IntArray:
    """Return the type index of each entity, (rows,) int64, from the ends of `_type_spans`."""
    host = positions.values.cpu().numpy()
    types: IntArray = (host >= ends[:, positions.frame_of_row()]).sum(axis=0)
    return types
