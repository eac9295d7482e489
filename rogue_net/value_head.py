"""Regression heads, and normalisation of their targets (PopArt without weight correction)."""

from typing import TypeAlias

import torch
from torch import Tensor, nn

from rogue_net.input_norm import InputNorm, Moments


class NoTargetNorm(nn.Module):
    """Identity normalisation: an output is trained in the units of its targets.

    Attributes:
        std: 0 in place of the standard deviation of the targets, which is not tracked.
    """

    std = 0.0

    def add(self, targets: Tensor) -> None:
        """Ignore targets, as there are no statistics."""

    def normalized(self, y: Tensor) -> Tensor:
        """Return targets, or outputs, unchanged."""
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs unchanged: the inverse of `normalized`."""
        return x


class TargetNorm(InputNorm):
    """Normalisation of targets by their running mean and standard deviation.

    The statistics are over all targets so far, and change only by `add`. The standard deviation is
    1 until two targets differ.

    Source: van Hasselt et al. 2016, arXiv:1602.07714, without its correction of the weights, as the
    statistics over all targets so far change little in one update.
    """

    least_std = 1e-6  # ignore rounding errors of equal targets

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def std(self) -> Tensor:
        """() float64, the standard deviation of the targets."""
        return self.mean_and_std(torch.float64)[1].squeeze(0)

    def add(self, targets: Tensor) -> None:
        """Update the statistics with targets, (n,)."""
        self.merge(Moments.of(targets.to(self.mean.device)[:, None]))

    def normalized(self, y: Tensor) -> Tensor:
        """Convert targets, or outputs, to normalised units: (y - mean) / std."""
        mean, std = self.mean_and_std(y.dtype)
        return (y - mean) / std

    def forward(self, x: Tensor) -> Tensor:
        """Convert normalised outputs to the units of the targets: mean + std * x."""
        mean, std = self.mean_and_std(x.dtype)
        return mean + std * x


TargetUnits: TypeAlias = TargetNorm | NoTargetNorm
"""Normalisation of the targets of an output."""
AS_TARGETS = NoTargetNorm()
"""No normalisation."""


class RegressionHead(nn.Linear):
    """Linear head, initialised to zero.

    Args:
        d_model: size of the input.
        size: size of the output.
        normalized: True to normalise targets.

    Attributes:
        norm: normalisation of targets.
    """

    norm: TargetUnits

    def __init__(self, d_model: int, size: int, normalized: bool = False) -> None:
        super().__init__(d_model, size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.norm = TargetNorm() if normalized else NoTargetNorm()
