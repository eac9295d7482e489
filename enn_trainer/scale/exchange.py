"""Messages and bytes that ranks exchange, as a formula."""

from typing import NamedTuple

_BYTES_OF_NUMBER = 4
_BYTES_OF_FRAME = 26
"""Value, reward, ends, number of decisions, and value of a last observation that was cut off."""
_BYTES_OF_MESSAGE = 350
"""Statistics of the losses of a shard, about."""
_MESSAGES_OF_STEP = 3
"""Statistics of the shards, slices of their gradients, and the sums of the slices."""
_MESSAGES_OF_UPDATE = 6
"""Frames and metrics, and agreements on clocks, stops, signals and saves."""


class Exchange(NamedTuple):
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


def exchange_of_update(
    num_parameters: int, num_frames: int, num_steps: int, ranks: int, shards: int
) -> Exchange:
    """Return what several ranks exchange in an update.

    Of each shard of another rank, a rank gets its slice of the gradients, and then the sums of the
    slices of others: P (s + 1) (R - 1) / R numbers in an optimizer step, of P parameters, R ranks
    and s = S / R shards of each.

    Args:
        num_parameters: numbers that are learned.
        num_frames: frames of the rollout of all ranks.
        num_steps: optimizer steps.
        ranks: number of ranks.
        shards: number of shards.
    """
    share, of_rank = (ranks - 1) / ranks, shards / ranks
    gradients = num_parameters * (of_rank + 1) * share * _BYTES_OF_NUMBER
    statistics = shards * share * _BYTES_OF_MESSAGE
    num_bytes = num_steps * (gradients + statistics) + num_frames * share * _BYTES_OF_FRAME
    return Exchange(_MESSAGES_OF_STEP * num_steps + _MESSAGES_OF_UPDATE, num_bytes)
