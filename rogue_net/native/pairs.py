"""Relative positions of the pairs of packed frames, as input of compiled functions."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from entity_env.ragged import row_indices
from rogue_net.layout import Layout
from rogue_net.native.functions import PackedFrames, PackedPairs, PackedRows
from rogue_net.native.library import MOST_AXES, PairCellsStruct, address, call, uninitialised
from rogue_net.ragged import to_device
from rogue_net.relpos.cells import Cells
from rogue_net.relpos.encoding import RelposEncoding, heading_of


@torch.no_grad()
def packed_pairs(
    relpos: RelposEncoding, inputs: Mapping[str, Tensor], layout: Layout, frames: PackedFrames
) -> PackedPairs:
    """Compute the relative positions of the pairs of packed frames.

    Args:
        relpos: the relative position encoding.
        inputs: (n, features) for each type.
        layout: of the rows.
        frames: the same rows.
    """
    if relpos.norm is None and len(relpos.config.position_features) <= MOST_AXES:
        return _compiled_pairs(relpos, inputs, layout, frames)
    # Projections are computed in torch, from the query and the target of each pair: (pairs, ...).
    places = relpos.places(inputs, layout)
    n = layout.lengths
    num_targets = np.repeat(n, n)  # the number of targets of each query
    query = to_device(np.repeat(np.arange(len(num_targets)), num_targets), places[0].device)
    target = to_device(row_indices(np.repeat(layout.first_row, n), num_targets), places[0].device)
    query_places = [x.index_select(0, query) for x in places]
    target_places = [x.index_select(0, target) for x in places[:3]]
    return PackedPairs(*relpos.rows_of_pairs(query_places, target_places, _packed_rows))


def _packed_rows(cells: Cells, valid: Tensor, offsets: Tensor | None, num_cells: int) -> PackedRows:
    """Return the rows of all pairs: cells, the zero row for invalid pairs, then the offsets."""
    num_corners = len(cells.corners)
    num_offsets = 0 if offsets is None else offsets.shape[1]
    rows = uninitialised((len(valid), num_corners + num_offsets), torch.int32)
    for k, corner in enumerate(cells.corners):
        rows[:, k] = corner.masked_fill(~valid, num_cells)
    if cells.weights is None and offsets is None:
        return PackedRows(rows, None)
    weights = torch.ones(rows.shape)
    for k, weight in enumerate(cells.weights or []):
        weights[:, k] = weight
    if offsets is not None:
        rows[:, num_corners:] = torch.arange(num_cells + 1, num_cells + 1 + num_offsets)
        weights[:, num_corners:] = offsets
    return PackedRows(rows, weights)


def _compiled_pairs(
    relpos: RelposEncoding, inputs: Mapping[str, Tensor], layout: Layout, frames: PackedFrames
) -> PackedPairs:
    """Compute `packed_pairs` in compiled code, for encodings without projections."""
    config = relpos.config
    # Inputs of each entity; None if equal for all entities.
    position = torch.cat([relpos.positions(name, x) for name, x in inputs.items()])
    position = layout.pad(position).contiguous()
    has_position = heading = first_value = None
    if len(relpos.columns) < len(inputs):
        flags = [torch.full((len(x),), n in relpos.columns) for n, x in inputs.items()]
        has_position = layout.pad(torch.cat(flags)).view(torch.uint8)
    if relpos.heading_columns:
        angles = [heading_of(x, relpos.heading_columns.get(n, [])) for n, x in inputs.items()]
        heading = layout.pad(torch.cat(angles))
    if config.per_entity_values:
        type_index = np.minimum(np.arange(len(inputs), dtype=np.int32), len(relpos.types) - 1)
        first = relpos.num_cells * type_index
        entity_first = np.repeat(first, [len(x) for x in inputs.values()])
        first_value = layout.pad(torch.from_numpy(entity_first))
    extent = np.array(config.extent, dtype=np.int64)
    # Cells of all pairs, (pairs, corners): 2**axes corners if interpolated.
    corners = 2 ** len(extent) if config.interpolate else 1
    rows = uninitialised((int(frames.pair_start[-1]), corners), torch.int32)
    values = None if first_value is None else uninitialised(rows.shape, torch.int32)
    weights = uninitialised(rows.shape, torch.float32) if config.interpolate else None
    call(
        "pair_cells",
        PairCellsStruct(
            num_frames=len(frames.lengths),
            row_start=address(frames.row_start),
            axes=position.shape[1],
            radial=config.radial,
            distance=config.distance,
            interpolate=config.interpolate,
            extent=address(extent),
            position=address(position),
            heading=address(heading),
            placed=address(has_position),
            first_value=address(first_value),
            num_cells=relpos.num_cells,
            corners=corners,
            no_key=len(relpos.keys),
            no_value=len(relpos.values),
            key_rows=address(rows),
            value_rows=address(values),
            weights=address(weights),
            inverse_scale=1.0 / config.scale,
        ),
    )
    keys = PackedRows(rows, weights)
    return PackedPairs(keys, keys if values is None else PackedRows(values, weights))
