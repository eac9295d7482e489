"""Heads that learn in normalised units what they return in those of their targets."""

from typing import TypeAlias

import torch
from torch import Tensor, nn

from rogue_net.input_norm import InputNorm, Moments


class NoTargetNorm(nn.Module):
    """Units of an output that is learnt in those of its targets.

    Attributes:
        std: the standard deviation of the targets; 0, as it is not known.
    """

    std = 0.0

    def add(self, targets: Tensor) -> None:
        """Add targets to the statistics; here there are none."""

    def normalized(self, y: Tensor) -> Tensor:
        """Return targets, or outputs, in the units in which they are learnt."""
        return y

    def forward(self, x: Tensor) -> Tensor:
        """Return what a head computes in the units of the targets: the inverse of `normalized`."""
        return x


class TargetNorm(InputNorm):
    """Units of an output that is learnt in standard deviations from the mean of its targets.

    Mean and deviation are those of all targets so far, and change only by `add`. Until two targets
    differ the deviation counts as 1.

    Source: van Hasselt et al. 2016, arXiv:1602.07714, without its correction of the weights: the
    statistics of all targets so far change little in one update.
    """

    least_std = 1e-6  # equal targets differ by rounding, which must not become the unit

    def __init__(self) -> None:
        super().__init__(1)

    @property
    def std(self) -> Tensor:
        """() float64, the standard deviation of the targets."""
        return self.mean_and_std(torch.float64)[1].squeeze(0)

    def add(self, targets: Tensor) -> None:
        """Add (n,) targets to the statistics."""
        self.merge(Moments.of(targets.to(self.mean.device)[:, None]))

    def normalized(self, y: Tensor) -> Tensor:
        """Return targets, or outputs, in the units in which they are learnt."""
        mean, std = self.mean_and_std(y.dtype)
        return (y - mean) / std

    def forward(self, x: Tensor) -> Tensor:
        """Return what a head computes in the units of the targets: the inverse of `normalized`."""
        mean, std = self.mean_and_std(x.dtype)
        return mean + std * x


TargetUnits: TypeAlias = TargetNorm | NoTargetNorm
"""The units in which an output is learnt."""
AS_TARGETS = NoTargetNorm()
"""The units of the targets themselves."""


class RegressionHead(nn.Linear):
    """Linear head, zero at first.

    Args:
        d_model: size of its input.
        size: numbers that it computes.
        normalized: learn them in normalised units.

    Attributes:
        norm: the units.
    """

    norm: TargetUnits

    def __init__(self, d_model: int, size: int, normalized: bool = False) -> None:
        super().__init__(d_model, size)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.norm = TargetNorm() if normalized else NoTargetNorm()
