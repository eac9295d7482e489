"""Value prediction by classification into bins (HL-Gauss).

Source: Farebrother et al. 2024, arXiv:2403.03950; Imani and White 2018, arXiv:1806.04613.
"""

import math

import torch
from torch import Tensor

from rogue_net.config import ValueBinsConfig


def expected_values(logits: Tensor, bins: ValueBinsConfig) -> Tensor:
    """Compute the expected value of logits, (B, num_bins) -> (B, 1)."""
    edges = _edges(logits, bins)
    # E[v] = sum_k p_k * (edge_k + edge_(k+1)) / 2
    return logits.softmax(dim=-1) @ (edges[:-1] + edges[1:]).unsqueeze(-1) / 2


def bin_targets(values: Tensor, bins: ValueBinsConfig) -> Tensor:
    """Compute the target probabilities of the bins.

    Args:
        values: (n,) float, clipped to the range of the bins.
        bins: the bins.

    Returns:
        (n, num_bins) float, the probabilities of the bins under a Gaussian around each value,
        truncated to the range of the bins.
    """
    std = bins.sigma * (bins.high - bins.low) / bins.num_bins
    values = values.clamp(bins.low, bins.high).unsqueeze(-1)
    # p_k = (Phi(edge_(k+1)) - Phi(edge_k)) / (Phi(high) - Phi(low)), Phi(x) = (1 + erf(x)) / 2
    below = torch.erf((_edges(values, bins) - values) / (math.sqrt(2) * std))
    return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


def _edges(like: Tensor, bins: ValueBinsConfig) -> Tensor:
    return torch.linspace(
        bins.low, bins.high, bins.num_bins + 1, dtype=like.dtype, device=like.device
    )
