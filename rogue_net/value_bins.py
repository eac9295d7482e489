"""A value said as probabilities of bins, learnt as a class rather than as a number.

Source: Farebrother et al. 2024, arXiv:2403.03950; Imani and White 2018, arXiv:1806.04613.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class ValueBinsConfig:
    """Bins of equal width that a value function tells the probabilities of.

    Attributes:
        low: Where the lowest bin begins. Leave room: lower than any return that is to be told.
        high: Where the highest bin ends; higher than any return that is to be told.
        num_bins: Number of bins.
        sigma: Standard deviation, in widths of a bin, of the Gaussian around a return that is the
            target of its frame.
    """

    low: float
    high: float
    num_bins: int = 51
    sigma: float = 0.75

    def __post_init__(self) -> None:
        problems = []
        if not -math.inf < self.low < self.high < math.inf:
            problems.append(
                f"high: expected finite numbers with low < high, got low={self.low}, "
                f"high={self.high}"
            )
        if self.num_bins < 2:
            problems.append(f"num_bins: expected at least 2, got {self.num_bins}")
        if not 0 < self.sigma < math.inf:
            problems.append(f"sigma: expected a finite number above 0, got {self.sigma}")
        if problems:
            raise ValueError("; ".join(problems))


def expected_values(logits: Tensor, bins: ValueBinsConfig) -> Tensor:
    """(B, num_bins) logits -> (B, 1), the mean of the middles of the bins."""
    edges = _edges(logits, bins)
    return logits.softmax(dim=-1) @ (edges[:-1] + edges[1:]).unsqueeze(-1) / 2


def bin_targets(values: Tensor, bins: ValueBinsConfig) -> Tensor:
    """What the probabilities of the bins should be.

    Args:
        values: (n,) float; what lies beyond the bins counts as their end.
        bins: the bins.

    Returns:
        (n, num_bins) float, the share of a Gaussian around each value that falls into each bin,
        of what falls into any.
    """
    deviation = bins.sigma * (bins.high - bins.low) / bins.num_bins
    values = values.clamp(bins.low, bins.high).unsqueeze(-1)
    below = torch.erf((_edges(values, bins) - values) / (math.sqrt(2) * deviation))
    return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


def _edges(like: Tensor, bins: ValueBinsConfig) -> Tensor:
    return torch.linspace(
        bins.low, bins.high, bins.num_bins + 1, dtype=like.dtype, device=like.device
    )
