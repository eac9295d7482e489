"""Dropout as a function of keys, so that it does not depend on how frames are batched."""

import numpy as np
import torch
from torch import Tensor

from entity_env.ragged import row_indices
from entity_env.seeding import mix
from rogue_net.layout import Layout
from rogue_net.ragged import EntityBatch, to_device


def dropout(x: Tensor, p: float, keys: Tensor | None, site: int) -> Tensor:
    """Set elements to zero with probability p, and divide the others by 1 - p.

    Args:
        x: (rows, ...) float.
        p: in [0, 1).
        keys: (rows,) int64, the random key of each row; None to drop nothing.
        site: the number of the layer; each has random numbers of its own.

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from
        overfitting".
    """
    if keys is None or p == 0:
        return x
    # Bits of element j of a row: mix(mix(key + site * SITE) + j * GAMMA), as SplitMix64 does.
    width = x[0].numel() if len(x) else 0
    counter = torch.arange(1, width + 1, device=x.device) * _GAMMA
    of_site = _signed((site + 1) * _SITE % 2**64)
    bits = _finalise(_finalise(keys + of_site).unsqueeze(1) + counter)
    # Inverted dropout: x / (1 - p) with probability 1 - p, else 0
    kept = (bits & (2**24 - 1)) >= round(p * 2**24)
    return x * kept.view_as(x) / (1 - p)


def row_keys(batch: EntityBatch, layout: Layout) -> Tensor:
    """Return the random keys of the padded rows of a layout, (P,) int64: one for each entity."""
    keys = batch.keys
    if keys is None:
        keys = torch.randint(2**62, (batch.num_frames,)).numpy()
    lengths = layout.lengths
    of_row = np.zeros(layout.num_rows, dtype=np.int64)
    of_row[row_indices(layout.first_row, lengths)] = mix(
        np.repeat(keys, lengths), row_indices(np.zeros_like(lengths), lengths)
    ).view(np.int64)
    return to_device(of_row, layout.row_of_entity.device)


def _signed(bits: int) -> int:
    """Return the int64 with the bits of an unsigned integer of 64 bits."""
    return bits - 2**64 if bits >= 2**63 else bits


_GAMMA = _signed(0x9E3779B97F4A7C15)
_SITE = 0xD1342543DE82EF95


def _finalise(bits: Tensor) -> Tensor:
    """Mix the bits of int64 numbers with the output function of SplitMix64.

    Source: Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195.
    """
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    # Torch has no unsigned integers: the mask removes the copies of the sign bit.
    return torch.bitwise_and(bits >> by, 2 ** (64 - by) - 1)
