"""Names of the parameters of a network, and of the slices along each of their dimensions.

They are independent of the order of names in a world, so an upgrade moves tensors by them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from enn_trainer.checkpoints.migrate.evolve_rules import Name
from entity_env.spaces import GLOBAL
from rogue_net.embedding import feature_names, module_key
from rogue_net.heads import HEADS
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet

Network = RogueNet | RogueNetWithValueNet
DISTANCE: Name = ("distance",)


class Axes(NamedTuple):
    """Names of a tensor and of its slices.

    Attributes:
        place: identity of the tensor, the same in every world that has the type or action.
        slices: names of the slices along each dimension; None for a dimension without names.
    """

    place: Name
    slices: tuple[Sequence[Name] | None, ...]


def axes_of(network: Network) -> dict[str, Axes]:
    """Return the `Axes` of each tensor of the state dict, by key."""
    if isinstance(network, RogueNetWithValueNet):
        return {
            f"{part}.{key}": Axes(("part", part, *axes.place), axes.slices)
            for part, own in parts_of(network).items()
            for key, axes in axes_of(own).items()
        }
    types = {module_key(name): name for name in network.embedding.types}
    actions = {module_key(name): name for name in network.action_space}
    return {
        key: _axes(key, tensor.ndim, network, types, actions)
        for key, tensor in network.state_dict().items()
    }


def parts_of(network: Network) -> dict[str, RogueNet]:
    """Return the networks inside a network, by key prefix; "" for a `RogueNet`."""
    if isinstance(network, RogueNet):
        return {"": network}
    return {"policy": network.policy, "value_function": network.value_function}


def columns_of_type(network: RogueNet, name: str) -> list[Name]:
    """Return the names of the input columns of an entity type's embedding."""
    space = network.obs_space
    own = space.entities[name].features if name in space.entities else []
    columns: list[Name] = [("feature", name, feature) for feature in own]
    columns += [("global", feature) for feature in space.global_features]
    translation = network.embedding.translation
    if translation is not None and translation.config.add_dist_feature:
        columns += [DISTANCE] * (name in translation.columns)
    return columns


def _axes(
    key: str, ndim: int, network: RogueNet, types: dict[str, str], actions: dict[str, str]
) -> Axes:
    """Return the `Axes` of a tensor of a `RogueNet`.

    Args:
        key: its key in the state dict.
        ndim: its number of dimensions.
        network: the network.
        types: names of the entity types by the names of their modules.
        actions: names of the actions by the names of their modules.
    """
    plain: tuple[Sequence[Name] | None, ...] = (None,) * ndim
    match key.split("."):
        # Embedding of a type: columns by feature.
        case ["embedding", "by_type", one, *rest]:
            name = types[one]
            columns = columns_of_type(network, name)
            place: Name = ("type", name, "embedding", *rest)
            if rest == ["linear", "weight"]:
                return Axes(place, (None, columns))
            return Axes(place, (columns,) if rest[0] == "norm" else plain)
        # Relative positions: rows by type and cell, or projections by type.
        case ["relpos", "values"] if network.relpos is not None:
            if not network.relpos.config.per_entity_values:
                return Axes((key,), plain)
            cells = range(network.relpos.num_cells)
            rows = [("type", name, str(c)) for name in network.relpos.types for c in cells]
            return Axes((key,), (rows, None))
        case ["relpos", "key_projection" | "value_projection" as which, one, *rest]:
            assert network.relpos is not None
            if not network.relpos.config.per_entity_projections:  # all types share one
                return Axes((key,), plain)
            return Axes(("type", types[one], which, *rest), plain)
        # Action heads: rows by label.
        case ["action_heads", one, *rest]:
            name = actions[one]
            space = network.action_space[name]
            place = ("action", name, space.kind, *rest)
            labels = [("label", name, label) for label in space.labels]
            has_labels = rest[0] in HEADS[type(space)].layers_of_labels
            return Axes(place, (labels, *plain[1:]) if has_labels else plain)
    return Axes((key,), plain)


class Wiring(NamedTuple):
    """Effects of names on the outputs of a network that are not in any tensor.

    Attributes:
        positions: features that give an entity type its relative position, its orientation or its
            place after translation, by (purpose, type).
        global_entity: True if the global features are an entity of their own.
    """

    positions: dict[tuple[str, str], list[Name]]
    global_entity: bool


def wiring_of(network: RogueNet) -> Wiring:
    """Return the `Wiring` that follows from a network's spaces and configuration."""
    # Columns of every type.
    columns: dict[str, list[Name]] = {}
    global_entity = GLOBAL in network.embedding.types
    for name in feature_names(network.obs_space, global_entity):
        columns[name] = columns_of_type(network, name)

    # Features by purpose and type.
    positions = {}

    def add(what: str, by_type: dict[str, list[int]]) -> None:
        for name, indices in by_type.items():
            positions[what, name] = [columns[name][i] for i in indices]

    if network.relpos is not None:
        add("relative positions", network.relpos.columns)
        add("rotation of relative positions", network.relpos.heading_columns)
    translation = network.embedding.translation
    if translation is not None:
        reference = translation.config.reference_entity
        add("translation", {**translation.columns, reference: translation.position})
        turned = translation.vector or translation.angle
        add("rotation of translation", {reference: turned})
    return Wiring(positions, global_entity)
