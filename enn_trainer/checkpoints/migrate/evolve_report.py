"""Report of an upgrade to other spaces."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.migrate.evolve_tensors import Moved
from enn_trainer.checkpoints.migrate.space_diff import SpaceDiff
from enn_trainer.checkpoints.migrate.tensor_axes import Network, parts_of, wiring_of
from enn_trainer.tables import aligned


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
        return "\n".join([*self._head(), *_table(self.tensors)])

    def summary(self) -> str:
        """Return the report without the tensors that are simply kept."""
        changed = [one for one in self.tensors if one.fate != "kept"]
        return "\n".join([*self._head(), *_table(changed)])

    def _head(self) -> Iterator[str]:
        yield str(self.diff)
        for change in self.function_changes:
            yield f"output changes: {change}"
        for key in self.moments_dropped:
            yield f"optimizer starts fresh: {key}"
        counts = Counter(one.fate for one in self.tensors)
        yield "tensors: " + ", ".join(f"{count} {fate}" for fate, count in counts.items())


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
        before, now = wiring_of(was), wiring_of(net)
        if before.global_entity != now.global_entity:
            verb = "became" if now.global_entity else "are no longer"
            changes.append(
                f"{section}: global features {verb} an entity, because of the global actions"
            )

        # Positions and headings that are read from other features.
        known = {rules.type(name) for name in was.embedding.types} & {*net.embedding.types}
        renamed = {
            (what, rules.type(name)): [rules.name(one) for one in columns]
            for (what, name), columns in before.positions.items()
        }
        for what, name in sorted(renamed.keys() | now.positions.keys()):
            columns = renamed.get((what, name), []), now.positions.get((what, name), [])
            if name in known and columns[0] != columns[1]:
                had, has = ([one[-1] for one in names] for names in columns)
                changes.append(f"{section}: {what} of {name} had features {had}, now {has}")
    return changes


def _table(tensors: Sequence[Moved]) -> list[str]:
    if not tensors:
        return []
    rows = [("tensor", "became", "before", "now")]
    rows += [
        (
            one.key,
            f"{one.fate} ({one.why})" if one.why else one.fate,
            _shape(one.before),
            _shape(one.now),
        )
        for one in tensors
    ]
    return aligned(rows)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "-" if shape is None else "x".join(map(str, shape)) or "()"
