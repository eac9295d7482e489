"""Normalisation of input features by their running mean and variance."""

import torch
from torch import Tensor, nn


class InputNorm(nn.Module):
    """Centres and scales features by statistics that change only when `update` is called.

    The statistics are kept in 64 bit: counts beyond 2**24 and sums of squares stay exact enough.

    Args:
        num_features: F.
        clip: normalised values are clipped to [-clip, clip].
    """

    count: Tensor
    mean: Tensor
    squares_sum: Tensor

    def __init__(self, num_features: int, clip: float = 5.0) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("squares_sum", torch.zeros(num_features, dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Take a batch into the statistics.

        Args:
            x: (n, F) float.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for
            computing sample variances".
        """
        n = x.shape[0]
        if n == 0:
            return
        x = x.double()
        mean = x.mean(dim=0)
        squares_sum = (x - mean).square().sum(dim=0)
        before = self.count.double()  # the quotient of two int64 would be float32
        total = before + n
        delta = mean - self.mean
        self.squares_sum += squares_sum + delta.square() * (before * n / total)
        self.mean += delta * (n / total)
        self.count += n

    def forward(self, x: Tensor) -> Tensor:
        """(n, F) float -> (n, F) float. Before two rows were seen, values are only clipped."""
        with torch.no_grad():
            known = self.count > 1
            std = (self.squares_sum / (self.count - 1).clamp(min=1)).sqrt().to(x.dtype)
            std = torch.where(known & (std > 0), std, 1.0)
            mean = torch.where(known, self.mean, 0.0).to(x.dtype)
            return ((x - mean) / std).clamp(-self.clip, self.clip)
