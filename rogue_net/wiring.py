"""Adaptation of frames to a network of other spaces: features and types are matched by name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.kinds import label_map
from entity_env.spaces import GLOBAL, ActionSpace, Kind, ObsSpace
from rogue_net.answer import decide_all, output_of
from rogue_net.distributions import random_draws
from rogue_net.ragged import (
    ActionBatch,
    ActionSubset,
    EntityBatch,
    Lengths,
    RaggedTensor,
    restrict_action,
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
        self._labels = _label_orders(own, self.action_space)
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
        # ... otherwise its distributions, for all actors and in the order of the labels.
        out = self.network(known, **options)
        distributions = {name: out.distribution(name) for name in out.actions}
        for name, part in parts.items():
            distributions[name] = distributions[name].widened(part)
        for name, (_, of_shown) in self._labels.items():
            distributions[name] = distributions[name].relabelled(of_shown)
        if generator is not None:
            uniforms = random_draws(batch.actions, distributions, generator)
        decisions = decide_all(distributions, actions, uniforms)
        remembered = out
        if self._takes_choices:  # memory takes in those that are made, by the network's labels
            made = {name: decision.chosen for name, decision in decisions.items()}
            for name, (of_known, of_shown) in self._labels.items():
                chosen = made[name]
                made[name] = (
                    to_device(np.array(of_shown), chosen.device)[chosen]
                    if chosen.ndim == 1
                    else chosen[:, of_known]
                )
            remembered = self.network(known, made, **options)
        return output_of(decisions, out.values)._replace(
            lengths={name: batch.actions[name].actors.lengths for name in distributions},
            attention=out.attention,
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

    def _adapted(self, batch: EntityBatch) -> tuple[EntityBatch, dict[str, ActionSubset]]:
        """Return the input of the network, and the actions that it has only a part of."""
        shown, known = self.obs_space, self.known
        # Masks in the order of the network's labels.
        actions = dict(batch.actions)
        for name, (of_known, _) in self._labels.items():
            mask, bounds = actions[name].mask, actions[name].bounds
            if mask is not None:
                mask = RaggedTensor(mask.values[:, of_known], mask.lengths)
            if bounds is not None:
                bounds = RaggedTensor(bounds.values[:, :, of_known], bounds.lengths)
            actions[name] = replace(actions[name], mask=mask, bounds=bounds)
        # Actions in which entities of unknown types take part, without these.
        parts = {}
        if shown.entities.keys() - known.entities.keys():
            types = [*shown.entities, GLOBAL]
            is_known = np.array([name == GLOBAL or name in known.entities for name in types])
            _, ends = _spans(batch, types)
            for name, action in actions.items():
                actors = is_known[_types(action.actors, ends)]
                actees = None if action.actees is None else is_known[_types(action.actees, ends)]
                if not actors.all() or (actees is not None and not actees.all()):
                    parts[name] = restrict_action(action, actors, actees)
        actions |= {name: part.action for name, part in parts.items()}
        return adapt_batch(replace(batch, actions=actions), shown, known), parts


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


def _spans(batch: EntityBatch, types: Sequence[str]) -> tuple[Lengths, Lengths]:
    """Return the position of the first entity of each type, and after its last, (types, B) each."""
    lengths = {name: rows.lengths for name, rows in batch.features.items()}
    lengths[GLOBAL] = np.ones(batch.num_frames, dtype=np.int64)
    nothing = np.zeros(batch.num_frames, dtype=np.int64)
    counts = np.stack([lengths.get(name, nothing) for name in types])
    ends: Lengths = np.cumsum(counts, axis=0)
    return ends - counts, ends


def _types(positions: RaggedTensor, ends: Lengths) -> Lengths:
    """Return the index of the type of each entity, (rows,)."""
    host = positions.values.cpu().numpy()
    types: Lengths = (host >= ends[:, positions.frame_of_row()]).sum(axis=0)
    return types
