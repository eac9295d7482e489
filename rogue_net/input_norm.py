"""Normalisation of input features by their running mean and variance."""

import math
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

CLIP = 5.0
"""Largest magnitude of normalised values."""


class Moments(NamedTuple):
    """Count, mean and sum of squares of a set of rows; can be merged with other moments.

    Attributes:
        num_rows: (F,) int64, the number of rows of each feature.
        mean: (F,) float64.
        squares_sum: (F,) float64, the sum of squared differences from the mean.
    """

    num_rows: Tensor
    mean: Tensor
    squares_sum: Tensor

    @staticmethod
    def of(x: Tensor) -> "Moments":
        """Compute the moments of rows, (n, F)."""
        x = x.detach().double()
        mean = x.sum(dim=0) / max(1, len(x))
        count = torch.full_like(mean, len(x), dtype=torch.int64)
        return Moments(count, mean, (x - mean).square().sum(dim=0))

    def merged(self, other: "Moments") -> "Moments":
        """Merge the moments of two sets of rows.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for
            computing sample variances".
        """
        count = self.num_rows + other.num_rows
        # n = n_a + n_b, delta = mean_b - mean_a
        # mean = mean_a + delta * n_b / n
        # M2 = M2_a + M2_b + delta^2 * n_a * n_b / n
        # In float64, as the quotient of two int64 would be float32.
        share = other.num_rows.double() / count.double().clamp(min=1)
        delta = other.mean - self.mean
        between = delta.square() * (self.num_rows.double() * share)
        squares_sum = self.squares_sum + other.squares_sum + between
        return Moments(count, self.mean + delta * share, squares_sum)


_CACHE: MutableMapping[Tensor, dict[torch.dtype, tuple[Any, ...]]] = WeakIdKeyDictionary()
"""Results of `InputNorm.mean_and_std`, by the buffer `mean` and dtype: key, results, other buffers.

The entries keep the buffers alive, as otherwise a new tensor could reuse an `id` in the key. The
cache is outside the modules, as a forward pass must not change them.
"""


class InputNorm(nn.Module):
    """Normalisation of features by running statistics, which only `merge` updates.

    The statistics stay in 64 bits when the module is converted to another dtype, as counts beyond
    2**24 and sums of squares are not exact in float32. Each feature has its own count, so that the
    statistics of a feature that is added to a trained network start from zero.

    Args:
        num_features: F.
    """

    least_std = 0.0
    """Standard deviations up to this fraction of the mean's magnitude are treated as 0."""

    count: Tensor
    mean: Tensor
    squares_sum: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(num_features, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("squares_sum", torch.zeros(num_features, dtype=torch.float64))

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        """Update the statistics with the moments of more rows."""
        merged = Moments(self.count, self.mean, self.squares_sum).merged(moments)
        for buffer, value in zip((self.count, self.mean, self.squares_sum), merged, strict=True):
            buffer.copy_(value)

    def problem(self) -> str | None:
        """Return an error message if a statistic is invalid, or None."""
        for name, least in (("count", 0.0), ("mean", -math.inf), ("squares_sum", 0.0)):
            buffer = self.get_buffer(name)
            is_wrong = ~buffer.isfinite() | (buffer < least)
            if is_wrong.any():
                expected = "finite numbers" + (" of at least 0" if least == 0 else "")
                return f"{name}: expected {expected}, got {buffer[is_wrong][0].item():g}"
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        """Load statistics; old checkpoints have a single count for all features."""
        count = state_dict.get(f"{prefix}count")
        if count is not None and count.ndim == 0:
            state_dict[f"{prefix}count"] = count.expand(len(self.count))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise rows, (n, F) float -> (n, F) float.

        Features with statistics of fewer than two rows are only clipped.
        """
        mean, std = self.mean_and_std(x.dtype)
        # clip((x - mean) / std, -CLIP, CLIP)
        return ((x - mean) / std).clamp(-CLIP, CLIP)

    def mean_and_std(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return mean and standard deviation, (F,) each; cached until the statistics change."""
        buffers = (self.count, self.mean, self.squares_sum)
        key = [None if x.is_inference() else (id(x), x._version) for x in buffers]
        by_dtype = _CACHE.setdefault(self.mean, {})
        cached = by_dtype.get(dtype)
        if cached is None or cached[0] != key or None in key:
            # Later calls reuse the tensors, so they must not be inference tensors.
            with torch.inference_mode(False), torch.no_grad():
                has_rows = self.count > 1
                # std = sqrt(M2 / (n - 1)); 1 with fewer than two rows or without variance
                std = (self.squares_sum / (self.count - 1).clamp(min=1)).sqrt().to(dtype)
                varies = std > self.least_std * self.mean.abs()
                std = torch.where(has_rows & varies, std, 1.0)
                mean = torch.where(has_rows, self.mean, 0.0).to(dtype)
            cached = by_dtype[dtype] = (key, mean, std, self.count, self.squares_sum)
        return cached[1], cached[2]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "InputNorm":
        """Move the statistics between devices, but keep their dtype in `half()` and `float()`."""
        exact = {name: self.get_buffer(name) for name in ("mean", "squares_sum")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch has no types for it
        for name, before in exact.items():
            after = self.get_buffer(name)
            if after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self
