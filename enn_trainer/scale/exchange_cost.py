"""The cheaper of two ways to exchange gradients; `docs/scale.md` has the formula of both."""

_MOST_GATHERED = 2**20
"""Bytes of the gradients of a rank that are sent whole, at most, as they are copied some times."""
_WORTH_A_MESSAGE = 2**17
"""Bytes that take about as long as two messages."""


def are_gathered(num_bytes: int, ranks: int, shards: int) -> bool:
    """Return True if ranks send gradients whole, with their statistics, in one message.

    Otherwise each rank gets a slice of those of each shard, adds them, and sends the sum: further
    messages of fewer bytes. Sums are the same.

    Args:
        num_bytes: bytes of the gradients of a shard.
        ranks: number of ranks.
        shards: number of shards.
    """
    whole, slices = shards * (ranks - 1) / ranks, (shards / ranks + 1) * (ranks - 1) / ranks
    is_cheap = num_bytes * (whole - slices) <= _WORTH_A_MESSAGE
    return ranks > 1 and is_cheap and num_bytes * -(-shards // ranks) <= _MOST_GATHERED
