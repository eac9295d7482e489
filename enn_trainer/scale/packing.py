"""Gradients, input moments and statistics of shards, and their sums."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from enn_trainer.errors import RankError
from enn_trainer.scale.exchange import are_gathered
from enn_trainer.scale.group import ALONE, Group
from enn_trainer.scale.shards import tree_sum
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet

T = TypeVar("T")

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

    def sum(self, group: Group, counts: Sequence[int], values: Sequence[T]) -> list[T]:
        """Let `grad` of the parameters be the sums over all shards, None where there is none.

        Args:
            group: processes of the run.
            counts: number of shards of each rank.
            values: plain data of each shard of this process, which all ranks get.

        Returns:
            The values of all shards.
        """
        for shard, parameter in zip(*np.nonzero(~self._known), strict=True):
            self._of_row(shard, parameter).zero_()
        rows = self._plain() if self._are_gathered(group, counts) else [None] * len(values)
        own: list[tuple[Any, T, Any]] = [*zip(self._known, values, rows, strict=True)]
        of_shards = own if group.size == 1 else group.gather_shards(own, "learning")
        if of_shards[0][2] is None:
            sums = {dtype: group.tree_sum(rows, counts) for dtype, rows in self._rows.items()}
        else:
            columns = zip(*(rows for _, _, rows in of_shards), strict=True)
            sums = {
                dtype: tree_sum([torch.from_numpy(x).to(rows.device) for x in column], torch.add)
                for (dtype, rows), column in zip(self._rows.items(), columns, strict=True)
            }
        is_known = np.any([known for known, _, _ in of_shards], axis=0)
        for parameter, (dtype, place), has_any in zip(
            self.learnt, self._places, is_known, strict=True
        ):
            parameter.grad = sums[dtype][place].view_as(parameter) if has_any else None
        return [value for _, value, _ in of_shards]

    def _are_gathered(self, group: Group, counts: Sequence[int]) -> bool:
        num_bytes = sum(rows.shape[1] * rows.element_size() for rows in self._rows.values())
        return group.size > 1 and are_gathered(num_bytes, group.size, sum(counts))

    def _plain(self) -> list[list[npt.NDArray[Any]]]:
        """Return the gradients of each shard of this process, by dtype."""
        rows = [of_dtype.cpu().numpy() for of_dtype in self._rows.values()]
        return [[of_dtype[shard] for of_dtype in rows] for shard in range(len(self._known))]

    def _of_row(self, shard: int, parameter: int) -> Tensor:
        dtype, place = self._places[parameter]
        return self._rows[dtype][shard, place].view_as(self.learnt[parameter])


def update_input_stats(agent: Any, frames: Sequence[EntityBatch], group: Group = ALONE) -> None:
    """Add the frames of all shards to the input statistics of an agent, in the order of shards.

    Args:
        agent: the network.
        frames: of each shard of this process.
        group: processes of the run.
    """
    if len(frames) == 1 and group.size == 1:
        agent.update_input_stats(frames[0])
        return
    own = [_input_moments(agent, batch) for batch in frames]
    if group.size > 1:
        plain = [
            {name: [x.cpu().numpy() for x in moments] for name, moments in of_shard.items()}
            for of_shard in own
        ]
        device = next(agent.parameters()).device
        own = [
            {
                name: Moments(*(torch.from_numpy(x).to(device) for x in moments))
                for name, moments in of_shard.items()
            }
            for of_shard in group.gather_shards(plain, "input statistics")
        ]
    norms = dict(agent.named_modules())
    for of_shard in own:
        for name, moments in of_shard.items():
            norms[name].merge(moments)


def _input_moments(agent: Any, batch: EntityBatch) -> dict[str, Moments]:
    """Return the moments of a batch, by the module whose statistics they update."""
    if isinstance(agent, RogueNet | RogueNetWithValueNet):
        return agent.input_moments(batch)

    # A network of another kind can only add them to its statistics.
    norms = {name: one for name, one in agent.named_modules() if isinstance(one, InputNorm)}
    before = {name: _moments_of(norm) for name, norm in norms.items()}
    for name, norm in norms.items():
        _set_moments(norm, Moments(*map(torch.zeros_like, before[name])))
    agent.update_input_stats(batch)
    moments = {name: _moments_of(norm) for name, norm in norms.items()}
    for name, norm in norms.items():
        _set_moments(norm, before[name])
    return moments


def _moments_of(norm: InputNorm) -> Moments:
    return Moments(norm.count.clone(), norm.mean.clone(), norm.squares_sum.clone())


@torch.no_grad()
def _set_moments(norm: InputNorm, moments: Moments) -> None:
    for kept, value in zip((norm.count, norm.mean, norm.squares_sum), moments, strict=True):
        kept.copy_(value)


def digest_of(agent: nn.Module) -> int:
    """Return a checksum of the parameters and buffers of an agent."""
    digest = 0
    for name, tensor in agent.state_dict().items():
        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest = zlib.crc32(content, zlib.crc32(name.encode(), digest))
    return digest


def digest_of_bytes(data: bytes) -> int:
    """Return a checksum of bytes."""
    return zlib.crc32(data)


def summarize(
    group: Group, state: Any, sums: Sequence[T], numbers: Mapping[str, float]
) -> tuple[list[T], dict[str, float]]:
    """Return the statistics of all shards, and the numbers of rank 0.

    All ranks get the training time of rank 0, on which schedules may depend.

    Args:
        group: processes of the run.
        state: state of the run.
        sums: statistics of the shards of this process, plain data.
        numbers: metrics of this process.

    Raises:
        RankError: the agents of some ranks differ.
    """
    own = [[*sums], dict(numbers), state.time_used, digest_of(state.agent)]
    found: list[list[Any]] = group.gather(own, "metrics")
    differ = [rank for rank, of_rank in enumerate(found) if of_rank[3] != found[0][3]]
    if differ:
        raise RankError(
            f"rank {', '.join(map(str, differ))}: expected the parameters of rank 0 after step "
            f"{state.step}, got others; ranks need processors and versions of one kind"
        )
    state.time_used = found[0][2]
    of_all = {**found[0][1], "eps": sum(of_rank[1]["eps"] for of_rank in found)}
    return [one for of_rank in found for one in of_rank[0]], of_all
