"""Relative position encoding: the parameters, and the cells of each pair of entities.

All layers and heads share the keys and values of a cell. `RelposEncoding.pairs` is computed once
per batch and passed to all layers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from entity_env.spaces import GLOBAL
from rogue_net.embedding import module_key
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.layout import Layout
from rogue_net.relpos.attention import Pairs, make_rows, relative_scores, relative_values, table_of
from rogue_net.relpos.cells import Cells, angle_of, cells_of
from rogue_net.relpos.config import RelposEncodingConfig
from rogue_net.relpos.translate import columns_from, columns_of, rotation_features

Rows = TypeVar("Rows")
"""Representation of the relative positions of pairs, such as `PairRows`."""
ALL_TYPES = ""
"""Name of the projection that all types share."""
PAIRS_AT_ONCE = 2**20
"""Number of pairs of a microbatch in `RelposEncoding.input_moments`."""
_GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: x,
    "relu": F.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
}


class RelposEncoding(nn.Module):
    """Keys and values of relative positions, shared by all layers and heads.

    Attention has no relative terms for entities of excluded types, and of types without the
    position features.

    Args:
        config: settings.
        features: names of the input features of each type, in the order of the types.
        d_model: width of the entities.
        d_head: width of a head.

    Raises:
        ValueError: the settings name unknown types or features.
    """

    def __init__(
        self,
        config: RelposEncodingConfig,
        features: Mapping[str, Sequence[str]],
        d_model: int,
        d_head: int,
    ) -> None:
        super().__init__()
        self.config = config
        # Columns of positions and headings among the features of each type.
        self.columns = _position_columns(config, features)
        self.heading_columns = _heading_columns(config, features, [*self.columns])
        # Keys and values of cells.
        sizes = config.extent
        if not config.radial and not config.distance:
            sizes = [2 * e + 1 for e in config.extent]
        self.num_cells = math.prod(sizes)
        self.types = list(features)
        self.keys = nn.Parameter(0.05 * torch.randn(self.num_cells, d_head))
        num_values = self.num_cells * (len(features) if config.per_entity_values else 1)
        self.values = nn.Parameter(0.2 * torch.randn(num_values, d_head))
        # Projections of relative positions and distances.
        num_offsets = len(config.position_features) + 1
        projected = config.key_relpos_projection or config.value_relpos_projection
        self.norm = InputNorm(num_offsets) if projected else None
        by_type = [*self.columns] if config.per_entity_projections else [ALL_TYPES]
        self.key_projection, self.value_projection = (
            nn.ModuleDict({module_key(n): nn.Linear(num_offsets, d_head) for n in by_type * used})
            for used in (config.key_relpos_projection, config.value_relpos_projection)
        )
        # Gate on values.
        self.gate = None if config.value_gate is None else nn.Linear(d_model, d_head)

    def gate_of(self, x: Tensor) -> Tensor | None:
        """Compute the gate of each entity's relative values, (..., d_model) -> (..., d_head)."""
        if self.gate is None or self.config.value_gate is None:
            return None
        return _GATES[self.config.value_gate](self.gate(x))

    def scores(self, queries: Tensor, pairs: Pairs) -> Tensor:
        """Compute the relative terms of attention scores, (b, H, n, d_head) -> (b, H, n, n)."""
        return relative_scores(queries, self.key_table(pairs.keys.has_zeros), pairs.keys)

    def weighted_values(self, attention: Tensor, gate: Tensor | None, pairs: Pairs) -> Tensor:
        """Compute the relative terms of the attention output, (b, H, n, n) -> (b, H, n, d_head)."""
        table = self.value_table(pairs.values.has_zeros)
        return relative_values(attention, table, gate, pairs.values)

    @torch.no_grad()
    def pairs(self, inputs: Mapping[str, Tensor], layout: Layout) -> list[Pairs]:
        """Compute the relative positions of the pairs of each bucket, once for all layers.

        Positions are detached.

        Args:
            inputs: (n, features) for each type.
            layout: of the batch.
        """
        places = self.places(inputs, layout)
        # Compute in the dtype of autocast, or of the parameters without autocast.
        dtype, device = self.keys.dtype, self.keys.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        make = partial(make_rows, dtype=dtype)
        pairs = []
        for bucket in layout.buckets:
            by_frame = [
                x[bucket.rows].view(bucket.num_frames, bucket.length, *x.shape[1:]) for x in places
            ]
            # queries (b, n, 1, ...), targets (b, 1, n, ...)
            query, target = ([x.unsqueeze(axis) for x in by_frame] for axis in (2, 1))
            pairs.append(Pairs(*self.rows_of_pairs(query, target, make)))
        return pairs

    def rows_of_pairs(
        self,
        query: Sequence[Tensor],
        target: Sequence[Tensor],
        make: Callable[[Cells, Tensor, Tensor | None, int], Rows],
    ) -> tuple[Rows, Rows]:
        """Compute the rows of the key and value tables of pairs, in any shape.

        Args:
            query: result of `places` for the query of each pair, broadcast to (...).
            target: result of `places` for the target of each pair; its heading is not used.
            make: function such as `make_rows`, of the cells, the pairs with a relative position
                (...) bool, the inputs of a projection (..., e), and the number of cells.

        Returns:
            Results of `make` for keys and for values.
        """
        config = self.config
        position, has_query, query_type, heading = query
        target_position, has_target, target_type = target[:3]
        relative, has_position = position - target_position, has_query & has_target
        cells = cells_of(config, relative, heading)
        # Inputs of projections: (x, distance, 1), with a block for each type, zero except for the
        # block of the query's type: (..., types * (axes + 2)).
        offsets = None
        if self.norm is not None:
            offsets = F.pad(self.norm(offsets_of(relative)), (0, 1), value=1.0)
            if config.per_entity_projections:
                is_type = F.one_hot(query_type, len(self.types)).to(offsets.dtype)
                offsets = (is_type.unsqueeze(-1) * offsets.unsqueeze(-2)).flatten(-2)
            offsets = offsets * has_position.unsqueeze(-1)
        # Keys and values share rows if they have the same cells and projections.
        key_offsets = offsets if config.key_relpos_projection else None
        value_offsets = offsets if config.value_relpos_projection else None
        keys = make(cells, has_position, key_offsets, len(self.keys))
        if config.per_entity_values:
            first = self.num_cells * target_type
            cells = Cells([corner + first for corner in cells.corners], cells.weights)
        elif key_offsets is value_offsets:
            return keys, keys
        return keys, make(cells, has_position, value_offsets, len(self.values))

    def positions(self, name: str, x: Tensor) -> Tensor:
        """Select the positions of entities of a type, (n, features) -> (n, axes), or zeros."""
        columns = self.columns.get(name)
        if columns is None:
            return x.new_zeros(x.shape[0], len(self.config.position_features))
        return columns_from(x, columns)

    def key_table(self, has_zeros: bool = True) -> Tensor:
        """Return the key table, (rows, d_head), see `table_of`."""
        return table_of(self.keys, self._stacked(self.key_projection), has_zeros)

    def value_table(self, has_zeros: bool = True) -> Tensor:
        """Return the value table, (rows, d_head), see `table_of`."""
        return table_of(self.values, self._stacked(self.value_projection), has_zeros)

    def input_moments(self, inputs: Mapping[str, Tensor], layout: Layout) -> Moments:
        """Compute the moments of relative positions and distances, the inputs of projections."""
        assert self.norm is not None
        exact = {name: x.double() for name, x in inputs.items()}
        position, has_position, *_ = self.places(exact, layout)
        total = Moments.of(self.norm.mean.new_zeros(0, len(self.norm.mean)))
        for bucket in layout.buckets:
            n = bucket.length
            frames = max(1, PAIRS_AT_ONCE // n**2)
            for start in range(bucket.start, bucket.rows.stop, frames * n):
                rows = slice(start, min(start + frames * n, bucket.rows.stop))
                valid = has_position[rows].view(-1, n)
                by_frame = position[rows].view(len(valid), n, -1)
                offsets = offsets_of(by_frame.unsqueeze(2) - by_frame.unsqueeze(1))
                pair_valid = valid.unsqueeze(1) & valid.unsqueeze(2)
                total = total.merged(Moments.of(offsets[pair_valid]))
        return total

    def places(self, inputs: Mapping[str, Tensor], layout: Layout) -> tuple[Tensor, ...]:
        """Return position, type and heading of the entities in the P padded rows of a layout.

        Returns:
            (P, axes) float, positions, 0 for types without position; (P,) bool, True for types
            with a position; (P,) int64, type indices; and (P,) float, headings in radians, 0 for
            types without heading.
        """
        x = next(iter(inputs.values()))
        positions, headings, valid, types = [], [], [], []
        for k, (name, rows) in enumerate(inputs.items()):
            positions.append(self.positions(name, rows))
            headings.append(heading_of(rows, self.heading_columns.get(name, [])))
            valid.append(torch.full(rows.shape[:1], name in self.columns, device=x.device))
            index = min(k, len(self.types) - 1)  # rows of memory have no type: any valid index
            types.append(torch.full(rows.shape[:1], index, device=x.device))
        return tuple(layout.pad(torch.cat(p)) for p in (positions, valid, types, headings))

    def _stacked(self, projection: nn.ModuleDict) -> Tensor | None:
        """Stack the weight and bias of a projection.

        Returns:
            (d_head, axes + 2) or, with a projection for each type, (types, d_head, axes + 2): the
            last column is the bias. None without projection.
        """
        if not projection:
            return None
        matrices = {
            name: torch.cat([linear.weight, linear.bias.unsqueeze(1)], dim=1)
            for name, linear in projection.items()
            if isinstance(linear, nn.Linear)
        }
        if not self.config.per_entity_projections:
            return matrices[module_key(ALL_TYPES)]
        zeros = torch.zeros_like(next(iter(matrices.values())))
        return torch.stack([matrices.get(module_key(name), zeros) for name in self.types])


def offsets_of(relative: Tensor) -> Tensor:
    """Append the distance to relative positions, (..., axes) -> (..., axes + 1)."""
    return torch.cat([relative, torch.linalg.vector_norm(relative, dim=-1, keepdim=True)], dim=-1)


def _position_columns(
    config: RelposEncodingConfig, features: Mapping[str, Sequence[str]]
) -> dict[str, list[int]]:
    """Return the columns of the position features, by type with a position."""
    if unknown := sorted({*config.exclude_entities} - {*features, GLOBAL}):
        raise ValueError(
            f"relpos_encoding.exclude_entities: expected entity types, which are {[*features]}, "
            f"got {unknown}"
        )
    included = {n: f for n, f in features.items() if n not in config.exclude_entities}
    columns = columns_of(config.position_features, included)
    if not columns:
        raise ValueError(
            f"relpos_encoding.position_features: expected features of an entity type that is not "
            f"excluded, but none has all of {config.position_features}"
        )
    return columns


def _heading_columns(
    config: RelposEncodingConfig, features: Mapping[str, Sequence[str]], types: Sequence[str]
) -> dict[str, list[int]]:
    """Return the columns of the heading, by type; other types face along the first axis."""
    field, names = rotation_features(config.rotation_vec_features, config.rotation_angle_feature)
    if not names:
        return {}
    columns = columns_of(names, {name: features[name] for name in types})
    if not columns:
        raise ValueError(
            f"relpos_encoding.{field}: expected features of an entity type with a position, but "
            f"none of {[*types]} has {names}"
        )
    return columns


def heading_of(rows: Tensor, columns: Sequence[int]) -> Tensor:
    """Compute the headings of entities in radians, (n, features) -> (n,)."""
    if not columns:
        return rows.new_zeros(rows.shape[0])
    if len(columns) == 1:
        return rows[:, columns[0]]
    return angle_of(rows[:, columns[0]], rows[:, columns[1]])
