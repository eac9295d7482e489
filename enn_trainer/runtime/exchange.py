"""`Exchange`: communication between the processes of a run in an update; none in a run of one."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from enn_trainer.base.group import ALONE, Group
from rogue_net.input_norm import InputNorm, Moments
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet

T = TypeVar("T")


class LossSums(Protocol):
    """Statistics of the losses of a shard."""

    def plain(self) -> dict[str, Any]:
        """Return the statistics as plain data."""

    @staticmethod
    def from_plain(plain: Mapping[str, Any], device: torch.device) -> Any:
        """Create statistics from the result of `plain`."""


S = TypeVar("S", bound=LossSums)


class Gradients(Protocol):
    """Gradients of the shards of this process."""

    def sum(self, group: Group, counts: Sequence[int], values: Sequence[T]) -> list[T]:
        """Set `grad` of the parameters to the sums over all shards, and return all values.

        Args:
            group: processes of the run.
            counts: number of shards of each rank.
            values: plain data of each shard of this process.
        """


Check = Callable[[], None]


class Exchange:
    """Communication of a run of one process, which computes all shards; the base class.

    Attributes:
        group: processes of the run.
    """

    group: Group = ALONE

    def rollout(self, collect: Callable[[], Any], collector: Any, state: Any) -> Any:
        """Collect this process's `Rollout` and gather what all processes need.

        Args:
            collect: collects the rollout of this process.
            collector: `Collector` of this process.
            state: `State` of the run.

        Raises:
            UpdateAbandoned: a process abandoned its rollout after a request to stop.
        """
        return collect()

    def check_in_minibatch(self, check: Check) -> Check:
        """Return the interrupt check of the forward passes of a minibatch."""
        return check

    def gradient(self, gradients: Gradients, sums: Sequence[S], check: Check) -> list[S]:
        """Set `grad` of the parameters to the sums over all shards.

        Args:
            gradients: gradients of the shards of this process.
            sums: statistics of each of these shards.
            check: interrupt check of the update.

        Returns:
            The statistics of all shards.

        Raises:
            UpdateAbandoned: a process abandons the update after a request to stop.
        """
        return gradients.sum(self.group, [len(sums)], sums)

    def input_stats(self, agent: Any, frames: Sequence[EntityBatch]) -> None:
        """Add the frames of all shards to the input statistics of an agent.

        Args:
            agent: the network.
            frames: frames of each shard of this process.
        """
        if len(frames) == 1:
            agent.update_input_stats(frames[0])
        else:
            merge_moments(agent, [input_moments(agent, batch) for batch in frames])

    def metrics(
        self, state: Any, sums: Sequence[dict[str, Any]], scalars: Mapping[str, float]
    ) -> tuple[list[dict[str, Any]], dict[str, float]]:
        """Return the statistics of all shards, and the scalars of rank 0.

        Args:
            state: `State` of the run.
            sums: statistics of the shards of this process, plain data.
            scalars: metrics of this process.
        """
        return [*sums], dict(scalars)


ONE_PROCESS = Exchange()
"""Communication of a run of one process."""


def merge_moments(agent: nn.Module, by_shard: Iterable[Mapping[str, Moments]]) -> None:
    """Add the moments of shards, by module, to an agent's input statistics, in the given order."""
    norms: dict[str, Any] = dict(agent.named_modules())
    for shard_moments in by_shard:
        for name, moments in shard_moments.items():
            norms[name].merge(moments)


def input_moments(agent: Any, batch: EntityBatch) -> dict[str, Moments]:
    """Return the moments of a batch, by the module with the statistics to update."""
    if isinstance(agent, RogueNet | RogueNetWithValueNet):
        return agent.input_moments(batch)

    # A custom network can only add the batch to its statistics.
    norms = {name: one for name, one in agent.named_modules() if isinstance(one, InputNorm)}
    saved = {name: deepcopy(norm.state_dict()) for name, norm in norms.items()}
    for norm in norms.values():
        for statistic in norm.buffers():
            statistic.zero_()
    agent.update_input_stats(batch)
    moments = {name: Moments(*deepcopy([*norm.buffers()])) for name, norm in norms.items()}
    for name, norm in norms.items():
        norm.load_state_dict(saved[name])
    return moments


def digest_of(agent: nn.Module) -> int:
    """Return a checksum of the parameters and buffers of an agent."""
    digest = 0
    for name, tensor in agent.state_dict().items():
        content = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
        digest = zlib.crc32(content, zlib.crc32(name.encode(), digest))
    return digest


_MAX_GATHERED_BYTES = 2**20
"""Maximal size of the gradients of a rank that are sent whole, as they are copied repeatedly."""


_MESSAGE_BYTES = 2**17
"""Bytes with about the transfer time of two messages."""


def are_gathered(num_bytes: int, ranks: int, shards: int) -> bool:
    """Return True if ranks send whole gradients, with their statistics, in one message.

    Otherwise each rank receives a slice of the gradients of each shard, and sends its sum: more
    messages with fewer bytes. The sums are the same.

    Args:
        num_bytes: size of the gradients of a shard.
        ranks: number of ranks.
        shards: number of shards.
    """
    whole, slices = shards * (ranks - 1) / ranks, (shards / ranks + 1) * (ranks - 1) / ranks
    is_cheap = num_bytes * (whole - slices) <= _MESSAGE_BYTES
    return ranks > 1 and is_cheap and num_bytes * -(-shards // ranks) <= _MAX_GATHERED_BYTES
