"""Relative positions of the pairs of packed frames, for compiled functions."""

from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from entity_env.ragged import row_indices
from rogue_net.layout import Layout
from rogue_net.native.functions import pair_cells
from rogue_net.native.library import MOST_AXES
from rogue_net.native.packed import Gate, PackedPairs, PackedRows, Tables
from rogue_net.ragged import to_device
from rogue_net.relpos_cells import Cells
from rogue_net.relpos_encoding import RelposEncoding, cells_of, heading_of, offsets_of


@torch.no_grad()
def packed_pairs(
    relpos: RelposEncoding, inputs: Mapping[str, Tensor], layout: Layout
) -> PackedPairs:
    """Return the relative positions of the pairs of a packed layout, for compiled code."""
    if relpos.norm is None and len(relpos.config.position_features) <= MOST_AXES:
        return _compiled_pairs(relpos, inputs, layout)
    places = relpos.places(inputs, layout)
    n = layout.lengths
    of_row = np.repeat(n, n)  # the number of targets of each query
    query = to_device(np.repeat(np.arange(len(of_row)), of_row), places.position.device)
    target = to_device(row_indices(np.repeat(layout.first_row, n), of_row), query.device)
    position, heading, placed, types = places
    return _pairs_in_torch(
        relpos,
        position.index_select(0, query) - position.index_select(0, target),
        heading.index_select(0, query),
        placed.index_select(0, query) & placed.index_select(0, target),
        types.index_select(0, query),
        types.index_select(0, target),
    )


def _compiled_pairs(
    relpos: RelposEncoding, inputs: Mapping[str, Tensor], layout: Layout
) -> PackedPairs:
    """Compute `packed_pairs` in compiled code, for an encoding without projections."""
    assert layout.packed is not None
    # Per-entity inputs, None where they are the same for all entities.
    placed = heading = first_value = None
    if len(relpos.columns) < len(inputs):
        flags = [torch.full((len(x),), n in relpos.columns) for n, x in inputs.items()]
        placed = layout.pad(torch.cat(flags))
    if relpos.heading_columns:
        angles = [heading_of(x, relpos.heading_columns.get(n, [])) for n, x in inputs.items()]
        heading = layout.pad(torch.cat(angles))
    if relpos.config.per_entity_values:
        first = relpos.num_cells * np.arange(len(inputs), dtype=np.int32)
        of_entity = np.repeat(first, [len(x) for x in inputs.values()])
        first_value = layout.pad(torch.from_numpy(of_entity))
    position = torch.cat([relpos.positions(name, x) for name, x in inputs.items()])
    config = relpos.config
    # Cells of all pairs: 2**axes corners each if interpolated.
    axes = len(config.extent)
    return pair_cells(
        layout.packed,
        position=layout.pad(position),
        heading=heading,
        placed=placed,
        first_value=first_value,
        radial=config.radial,
        distance=config.distance,
        interpolate=config.interpolate,
        extent=config.extent,
        scale=config.scale,
        num_cells=relpos.num_cells,
        corners=2**axes if config.interpolate else 1,
        no_row=(len(relpos.keys), len(relpos.values)),
    )


def _pairs_in_torch(
    relpos: RelposEncoding,
    relative: Tensor,
    heading: Tensor,
    both: Tensor,
    query_type: Tensor,
    target_type: Tensor,
) -> PackedPairs:
    """Return the rows of pairs.

    Args:
        relpos: the encoding.
        relative: (pairs, axes), position of the query minus that of the target.
        heading: (pairs,), of the query.
        both: (pairs,) bool, True if both have a position.
        query_type: (pairs,) int64.
        target_type: (pairs,) int64.
    """
    cells = cells_of(relpos.config, relative, heading)
    # Inputs of projections: (x, distance, 1), by type in the block of the query's type.
    offsets = None
    if relpos.norm is not None:
        offsets = F.pad(relpos.norm(offsets_of(relative)), (0, 1), value=1.0)
        if relpos.config.per_entity_projections:
            is_type = F.one_hot(query_type, len(relpos.types)).to(offsets.dtype)
            offsets = (is_type.unsqueeze(2) * offsets.unsqueeze(1)).flatten(1)
        offsets = offsets * both.unsqueeze(1)
    # Keys and values share the rows if they have the same cells and projections.
    of_keys = offsets if relpos.config.key_relpos_projection else None
    of_values = offsets if relpos.config.value_relpos_projection else None
    keys = _packed_rows(cells, both, of_keys, len(relpos.keys))
    if relpos.config.per_entity_values:
        first = relpos.num_cells * target_type
        cells = Cells([c + first for c in cells.corners], cells.weights)
    elif of_keys is of_values:
        return PackedPairs(keys, keys)
    return PackedPairs(keys, _packed_rows(cells, both, of_values, len(relpos.values)))


def _packed_rows(cells: Cells, both: Tensor, offsets: Tensor | None, num_cells: int) -> PackedRows:
    """Return the rows of all pairs: their corners, or the row of zeros, then the offsets."""
    num_corners = len(cells.corners)
    num_offsets = 0 if offsets is None else offsets.shape[1]
    rows = torch.empty(len(both), num_corners + num_offsets, dtype=torch.int32)
    for k, corner in enumerate(cells.corners):
        rows[:, k] = corner.masked_fill(~both, num_cells)
    if cells.weights is None and offsets is None:
        return PackedRows(rows, None)
    weights = torch.ones(rows.shape)
    for k, weight in enumerate(cells.weights or []):
        weights[:, k] = weight
    if offsets is not None:
        rows[:, num_corners:] = torch.arange(num_cells + 1, num_cells + 1 + num_offsets)
        weights[:, num_corners:] = offsets
    return PackedRows(rows, weights)


def tables_of(relpos: RelposEncoding) -> Tables:
    """Return the tables that the rows of `packed_pairs` refer to."""
    return Tables(relpos.key_table(), relpos.value_table())


def gate_parameters(relpos: RelposEncoding) -> Gate | None:
    """Return the parameters of the gate on values, None without one."""
    if relpos.gate is None or relpos.config.value_gate is None:
        return None
    return Gate(relpos.config.value_gate, relpos.gate.weight, relpos.gate.bias)
