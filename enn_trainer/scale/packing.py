"""Gradients and input moments of shards, and their sums."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.scale.shards import tree_sum
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.ragged import EntityBatch

_ALIGNED = 64
"""Elements at multiples of which a parameter begins, as reductions depend on the alignment."""


class FlatGradients:
    """Gradients of each shard, in one row of memory each.

    Args:
        parameters: parameters of an agent.
        num_shards: shards of this process.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], num_shards: int) -> None:
        self.learnt = [parameter for parameter in parameters if parameter.requires_grad]
        self._known = np.zeros((num_shards, len(self.learnt)), np.bool_)
        sizes: dict[torch.dtype, int] = {}
        places: list[tuple[torch.dtype, slice]] = []
        for parameter in self.learnt:
            start = sizes.get(parameter.dtype, 0)
            places.append((parameter.dtype, slice(start, start + parameter.numel())))
            sizes[parameter.dtype] = start + -(-parameter.numel() // _ALIGNED) * _ALIGNED
        device = self.learnt[0].device if self.learnt else None
        self._rows = {
            dtype: torch.zeros(num_shards, size, dtype=dtype, device=device)
            for dtype, size in sizes.items()
        }
        self._places = places

    def clear(self) -> None:
        """Forget all gradients."""
        self._known[:] = False

    def add(self, shard: int, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients of the parameters, None where there is none, to those of a shard."""
        for i, gradient in enumerate(gradients):
            if gradient is None:
                continue
            row = self._of_row(shard, i)
            row.add_(gradient) if self._known[shard, i] else row.copy_(gradient)
            self._known[shard, i] = True

    def sum(self) -> None:
        """Let `grad` of the parameters be the sums over all shards, None where there is none."""
        for shard, parameter in zip(*np.nonzero(~self._known), strict=True):
            self._of_row(shard, parameter).zero_()
        sums = {dtype: tree_sum([*rows], torch.add) for dtype, rows in self._rows.items()}
        known = self._known.any(axis=0)
        for parameter, (dtype, place), is_known in zip(
            self.learnt, self._places, known, strict=True
        ):
            parameter.grad = sums[dtype][place].view_as(parameter) if is_known else None

    def _of_row(self, shard: int, parameter: int) -> Tensor:
        dtype, place = self._places[parameter]
        return self._rows[dtype][shard, place].view_as(self.learnt[parameter])


def update_input_stats(agent: Any, frames: Sequence[EntityBatch]) -> None:
    """Add the frames of all shards to the input statistics of an agent, in the order of shards.

    Args:
        agent: the network.
        frames: of each shard.
    """
    if len(frames) == 1:
        agent.update_input_stats(frames[0])
        return
    norms = [module for module in agent.modules() if isinstance(module, InputNorm)]
    before = [_moments_of(norm) for norm in norms]
    of_shards: list[list[Moments]] = []
    for batch in frames:
        for norm, moments in zip(norms, before, strict=True):
            _set_moments(norm, Moments(*map(torch.zeros_like, moments)))
        agent.update_input_stats(batch)
        of_shards.append([_moments_of(norm) for norm in norms])
    for norm, moments, *others in zip(norms, before, *of_shards, strict=True):
        _set_moments(norm, moments)
        for of_shard in others:
            norm.merge(of_shard)


def _moments_of(norm: InputNorm) -> Moments:
    return Moments(norm.count.clone(), norm.mean.clone(), norm.squares_sum.clone())


@torch.no_grad()
def _set_moments(norm: InputNorm, moments: Moments) -> None:
    for kept, value in zip((norm.count, norm.mean, norm.squares_sum), moments, strict=True):
        kept.copy_(value)
