"""Values as probabilities of bins, learnt by classification (HL-Gauss).

Source: Farebrother et al. 2024, arXiv:2403.03950; Imani and White 2018, arXiv:1806.04613.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class ValueBinsConfig:
    """Bins of equal width whose probabilities a value function predicts.

    Attributes:
        low: Lower edge of the lowest bin. Leave room: it should be below the lowest return.
        high: Upper edge of the highest bin, above the highest return.
        num_bins: Number of bins.
        sigma: Standard deviation, in widths of a bin, of the Gaussian around a return, which is
            the target.
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
    """Return the expected values of logits, (B, num_bins) -> (B, 1)."""
    edges = _edges(logits, bins)
    # E[v] = sum_k p_k * (edge_k + edge_(k+1)) / 2
    return logits.softmax(dim=-1) @ (edges[:-1] + edges[1:]).unsqueeze(-1) / 2


def bin_targets(values: Tensor, bins: ValueBinsConfig) -> Tensor:
    """Return the target probabilities of the bins.

    Args:
        values: (n,) float, clipped to the range of the bins.
        bins: the bins.

    Returns:
        (n, num_bins) float, the probability of each bin under a Gaussian around each value,
        truncated to the range of the bins.
    """
    deviation = bins.sigma * (bins.high - bins.low) / bins.num_bins
    values = values.clamp(bins.low, bins.high).unsqueeze(-1)
    # p_k = (Phi(edge_(k+1)) - Phi(edge_k)) / (Phi(high) - Phi(low)), Phi(x) = (1 + erf(x)) / 2
    below = torch.erf((_edges(values, bins) - values) / (math.sqrt(2) * deviation))
    return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


def _edges(like: Tensor, bins: ValueBinsConfig) -> Tensor:
    return torch.linspace(
        bins.low, bins.high, bins.num_bins + 1, dtype=like.dtype, device=like.device
    )
