"""Report of an upgrade to other spaces."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from enn_trainer.checkpoints.migrate.evolve_rules import Name, Rules
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    Moved,
    Network,
    columns_of_type,
    parts_of,
)
from enn_trainer.checkpoints.migrate.space_diff import SpaceDiff
from enn_trainer.tables import aligned
from entity_env.spaces import GLOBAL
from rogue_net.rogue_net import RogueNet


@dataclass(frozen=True)
class Report:
    """Report of an upgrade.

    Attributes:
        diff: the differences between the spaces, after renaming.
        tensors: the change of every tensor.
        function_changes: unavoidable changes to the outputs of the network, with their reasons.
        moments_dropped: parameters that are kept but whose optimizer moments could not be.
    """

    diff: SpaceDiff
    tensors: Sequence[Moved]
    function_changes: Sequence[str] = ()
    moments_dropped: Sequence[str] = ()

    def __str__(self) -> str:
        return self._text(self.tensors)

    def summary(self) -> str:
        """Return the report without the tensors that are simply kept."""
        return self._text([one for one in self.tensors if one.fate != "kept"])

    def _text(self, shown: Sequence[Moved]) -> str:
        counts = Counter(one.fate for one in self.tensors)
        rows: list[tuple[str, ...]] = [("tensor", "became", "before", "now")]
        for one in shown:
            shapes = [
                "-" if shape is None else "x".join(map(str, shape)) or "()"
                for shape in (one.before, one.now)
            ]
            rows.append((one.key, f"{one.fate} ({one.why})" if one.why else one.fate, *shapes))
        return "\n".join(
            [
                str(self.diff),
                *(f"output changes: {change}" for change in self.function_changes),
                *(f"optimizer starts fresh: {key}" for key in self.moments_dropped),
                "tensors: " + ", ".join(f"{count} {fate}" for fate, count in counts.items()),
                *(aligned(rows) if shown else []),
            ]
        )


def function_changes(old: Network, new: Network, rules: Rules) -> list[str]:
    """Return why outputs of the upgraded network differ for observations that both worlds share.

    Args:
        old: network of the save.
        new: network for the new spaces.
        rules: the renames.
    """
    changes = []
    befores = parts_of(old)
    for part, net in parts_of(new).items():
        if part not in befores:
            continue
        section = "vf_net" if part == "value_function" else "net"

        # Blocks that are dropped.
        was = befores[part]
        if was.config.n_layer > net.config.n_layer:
            changes.append(
                f"{section}.n_layer: {was.config.n_layer - net.config.n_layer} of "
                f"{was.config.n_layer} blocks are dropped"
            )

        # Global features that became an entity or stopped being one.
        is_entity = GLOBAL in net.embedding.types
        if (GLOBAL in was.embedding.types) != is_entity:
            verb = "became" if is_entity else "are no longer"
            changes.append(
                f"{section}: global features {verb} an entity, because of the global actions"
            )

        # Positions and headings that are read from other features.
        known = {rules.type(name) for name in was.embedding.types} & {*net.embedding.types}
        before, now = _positions(was), _positions(net)
        renamed = {
            (what, rules.type(name)): [rules.name(one) for one in columns]
            for (what, name), columns in before.items()
        }
        for what, name in sorted(renamed.keys() | now.keys()):
            columns = renamed.get((what, name), []), now.get((what, name), [])
            if name in known and columns[0] != columns[1]:
                had, has = ([one[-1] for one in names] for names in columns)
                changes.append(f"{section}: {what} of {name} had features {had}, now {has}")
    return changes


def _positions(network: RogueNet) -> dict[tuple[str, str], list[Name]]:
    """Return the effects of names on the outputs of a network that are not in any tensor.

    Returns:
        Features that give an entity type its relative position, its orientation or its place after
        translation, by (purpose, type).
    """
    positions = {}
    sources: dict[str, dict[str, list[int]]] = {}
    if network.relpos is not None:
        sources["relative positions"] = network.relpos.columns
        sources["rotation of relative positions"] = network.relpos.heading_columns
    translation = network.embedding.translation
    if translation is not None:
        reference = translation.config.reference_entity
        sources["translation"] = {**translation.columns, reference: translation.position}
        sources["rotation of translation"] = {reference: translation.rotation}
    for what, by_type in sources.items():
        for name, indices in by_type.items():
            columns = columns_of_type(network, name)
            positions[what, name] = [columns[i] for i in indices]
    return positions
