"""Messages and bytes that ranks exchange, as a formula."""

from typing import NamedTuple

_BYTES_OF_NUMBER = 4
_BYTES_OF_FRAME = 26
"""Value, reward, ends, number of decisions, and value of a last observation that was cut off."""
_BYTES_OF_MESSAGE = 350
"""Statistics of the losses of a shard, about."""
_MESSAGES_OF_UPDATE = 4
"""Frames, input statistics, metrics, and an agreement on stops, signals and saves."""
_MOST_GATHERED = 2**20
"""Bytes of the gradients of a rank that are sent whole, at most, as they are copied some times."""
_WORTH_A_MESSAGE = 2**17
"""Bytes that take about as long as two messages."""


class ExchangeCost(NamedTuple):
    """Exchanges of an update, in each of which every rank waits for all.

    Attributes:
        messages: number of exchanges.
        num_bytes: bytes that a rank gets from others.
    """

    messages: int
    num_bytes: float

    def seconds(self, latency_s: float, bytes_per_s: float) -> float:
        """Return the time of the exchanges in a network.

        Args:
            latency_s: time of an exchange without content.
            bytes_per_s: bytes that a rank gets in a second.
        """
        return self.messages * latency_s + self.num_bytes / bytes_per_s


def are_gathered(num_bytes: int, ranks: int, shards: int) -> bool:
    """Return True if ranks send gradients whole, with their statistics, in one message.

    Otherwise each rank gets a slice of those of each shard, adds them, and sends the sum: further
    messages of fewer bytes. Sums are the same.

    Args:
        num_bytes: bytes of the gradients of a shard.
        ranks: number of ranks.
        shards: number of shards.
    """
    whole, slices = shards * (ranks - 1) / ranks, _share_of_slices(ranks, shards)
    is_cheap = num_bytes * (whole - slices) <= _WORTH_A_MESSAGE
    return ranks > 1 and is_cheap and num_bytes * -(-shards // ranks) <= _MOST_GATHERED


def _share_of_slices(ranks: int, shards: int) -> float:
    """Return what a rank gets of the gradients if they are added in slices, in bytes of a shard."""
    return (shards / ranks + 1) * (ranks - 1) / ranks


def cost_of_update(
    num_parameters: int, num_frames: int, num_steps: int, ranks: int, shards: int
) -> ExchangeCost:
    """Return what several ranks exchange in an update.

    In an optimizer step, of P parameters, R ranks and S shards, a rank gets P S (R - 1) / R numbers
    in a message, or P (S / R + 1) (R - 1) / R in three, see `are_gathered`.

    Args:
        num_parameters: numbers that are learned.
        num_frames: frames of the rollout of all ranks.
        num_steps: optimizer steps.
        ranks: number of ranks.
        shards: number of shards.
    """
    share, num_bytes = (ranks - 1) / ranks, num_parameters * _BYTES_OF_NUMBER
    is_one = are_gathered(num_bytes, ranks, shards)
    gradients = num_bytes * (shards * share if is_one else _share_of_slices(ranks, shards))
    statistics = shards * share * _BYTES_OF_MESSAGE
    of_steps = num_steps * (gradients + statistics)
    messages = num_steps * (1 if is_one else 3) + _MESSAGES_OF_UPDATE
    return ExchangeCost(messages, of_steps + num_frames * share * _BYTES_OF_FRAME)
