"""Gradients, input moments and statistics of shards, and their sums."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import numpy as np
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
        num_bytes = sum(rows.shape[1] * rows.element_size() for rows in self._rows.values())
        is_gathered = group.size > 1 and are_gathered(num_bytes, group.size, sum(counts))
        plain = {dtype: rows.cpu().numpy() for dtype, rows in self._rows.items() if is_gathered}
        own = [
            (known, value, [rows[shard] for rows in plain.values()])
            for shard, (known, value) in enumerate(zip(self._known, values, strict=True))
        ]
        of_shards = group.gather_shards(own, "learning")
        if is_gathered:
            columns = zip(*(rows for _, _, rows in of_shards), strict=True)
            sums = {
                dtype: tree_sum([torch.from_numpy(x).to(rows.device) for x in column], torch.add)
                for (dtype, rows), column in zip(self._rows.items(), columns, strict=True)
            }
        else:
            sums = {dtype: group.tree_sum(rows, counts) for dtype, rows in self._rows.items()}
        is_known = np.any([known for known, _, _ in of_shards], axis=0)
        for parameter, (dtype, place), has_any in zip(
            self.learnt, self._places, is_known, strict=True
        ):
            parameter.grad = sums[dtype][place].view_as(parameter) if has_any else None
        return [value for _, value, _ in of_shards]

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
    own = [
        {name: [x.cpu().numpy() for x in moments] for name, moments in of_shard.items()}
        for of_shard in (_input_moments(agent, batch) for batch in frames)
    ]
    norms, device = dict(agent.named_modules()), next(agent.parameters()).device
    for of_shard in group.gather_shards(own, "input statistics"):
        for name, moments in of_shard.items():
            norms[name].merge(Moments(*(torch.from_numpy(x).to(device) for x in moments)))


def _input_moments(agent: Any, batch: EntityBatch) -> dict[str, Moments]:
    """Return the moments of a batch, by the module whose statistics they update."""
    if isinstance(agent, RogueNet | RogueNetWithValueNet):
        return agent.input_moments(batch)

    # A network of another kind can only add them to its statistics.
    norms = {name: one for name, one in agent.named_modules() if isinstance(one, InputNorm)}
    before = {name: deepcopy(norm.state_dict()) for name, norm in norms.items()}
    for norm in norms.values():
        for statistic in norm.buffers():
            statistic.zero_()
    agent.update_input_stats(batch)
    moments = {name: Moments(*deepcopy([*norm.buffers()])) for name, norm in norms.items()}
    for name, norm in norms.items():
        norm.load_state_dict(before[name])
    return moments


def digest_of(agent: nn.Module) -> int:
    """Return a checksum of the parameters and buffers of an agent."""
    digest = 0
    for name, tensor in agent.state_dict().items():
        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest = zlib.crc32(content, zlib.crc32(name.encode(), digest))
    return digest


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
    all_sums, all_numbers, times, digests = zip(*group.gather(own, "metrics"), strict=True)
    differ = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if differ:
        raise RankError(
            f"rank {', '.join(map(str, differ))}: expected the parameters of rank 0 after step "
            f"{state.step}, got others; ranks need processors and versions of one kind"
        )
    state.time_used = times[0]
    of_all = {**all_numbers[0], "eps": sum(one["eps"] for one in all_numbers)}
    return [one for of_rank in all_sums for one in of_rank], of_all
