"""Normalisation of input features by their running mean and variance."""

import math
from collections.abc import Callable, MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

CLIP = 5.0
"""Of normalised values."""


class Moments(NamedTuple):
    """What is kept of the rows that were seen, enough to merge it with what others saw.

    Attributes:
        num_rows: (F,) int64, of each feature.
        mean: (F,) float64.
        squares_sum: (F,) float64, the sum of squared differences from the mean.
    """

    num_rows: Tensor
    mean: Tensor
    squares_sum: Tensor

    @staticmethod
    def of(x: Tensor) -> "Moments":
        """Those of (n, F) rows."""
        x = x.detach().double()
        mean = x.sum(dim=0) / max(1, len(x))
        count = torch.full_like(mean, len(x), dtype=torch.int64)
        return Moments(count, mean, (x - mean).square().sum(dim=0))

    def merged(self, other: "Moments") -> "Moments":
        """Those of the rows of both.

        Source: Chan, Golub, LeVeque 1979, "Updating formulae and a pairwise algorithm for
            computing sample variances".
        """
        count = self.num_rows + other.num_rows
        # The quotient of two int64 would be float32.
        share = other.num_rows.double() / count.double().clamp(min=1)
        delta = other.mean - self.mean
        return Moments(
            count,
            self.mean + delta * share,
            self.squares_sum
            + other.squares_sum
            + delta.square() * (self.num_rows.double() * share),
        )


class _Known(NamedTuple):
    """What statistics come to, and which they were: kept, as else another may get their `id`."""

    key: tuple[Any, ...]
    kept: tuple[Tensor, ...]
    mean: Tensor
    std: Tensor


_KNOWN: MutableMapping[Tensor, _Known] = WeakIdKeyDictionary()
"""By the tensor of means. Outside of the modules, which a forward pass does not change."""


class InputNorm(nn.Module):
    """Centres and scales features by statistics that change only when asked to.

    The statistics are kept in 64 bit, whatever the module is converted to: counts beyond 2**24 and
    sums of squares stay exact enough. Rows are counted for each feature, so that one that was added
    to a trained network is known as soon as it was seen, whatever is known of the others.

    Args:
        num_features: F.
        clip: normalised values are clipped to [-clip, clip].
    """

    count: Tensor
    mean: Tensor
    squares_sum: Tensor

    def __init__(self, num_features: int, clip: float = CLIP) -> None:
        super().__init__()
        self.clip = clip
        self.register_buffer("count", torch.zeros(num_features, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(num_features, dtype=torch.float64))
        self.register_buffer("squares_sum", torch.zeros(num_features, dtype=torch.float64))

    def update(self, x: Tensor) -> None:
        """Take (n, F) rows into the statistics."""
        self.merge(Moments.of(x))

    @torch.no_grad()
    def merge(self, moments: Moments) -> None:
        """Take into the statistics what was seen elsewhere, as in another process."""
        merged = Moments(self.count, self.mean, self.squares_sum).merged(moments)
        for kept, value in zip((self.count, self.mean, self.squares_sum), merged, strict=True):
            kept.copy_(value)

    def problem(self) -> str | None:
        """Return in words which statistic no data can have, None if all are possible."""
        for name, kept, least in (
            ("count", self.count, 0.0),
            ("mean", self.mean, -math.inf),
            ("squares_sum", self.squares_sum, 0.0),
        ):
            is_wrong = ~kept.isfinite() | (kept < least)
            if is_wrong.any():
                expected = "finite numbers" + (" of at least 0" if least == 0 else "")
                return f"{name}: expected {expected}, got {kept[is_wrong][0].item():g}"
        return None

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        """Also read statistics that have one count for all features."""
        count = state_dict.get(f"{prefix}count")
        if count is not None and count.ndim == 0:
            state_dict[f"{prefix}count"] = count.expand(len(self.count))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, x: Tensor) -> Tensor:
        """(n, F) float -> (n, F) float. Before two rows were seen, values are only clipped."""
        mean, std = self.mean_and_std(x.dtype)
        return ((x - mean) / std).clamp(-self.clip, self.clip)

    def mean_and_std(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """(F,) each, computed again when the statistics have changed: forward passes are many."""
        kept = (self.count, self.mean, self.squares_sum)
        key = (dtype, *(None if x.is_inference() else (id(x), x._version) for x in kept))
        known = _KNOWN.get(self.mean)
        if known is None or known.key != key or None in key:
            # Whoever asks first, the numbers are for everyone, also for a backward pass.
            with torch.inference_mode(False), torch.no_grad():
                seen = self.count > 1
                std = (self.squares_sum / (self.count - 1).clamp(min=1)).sqrt().to(dtype)
                std = torch.where(seen & (std > 0), std, 1.0)
                mean = torch.where(seen, self.mean, 0.0).to(dtype)
            known = _KNOWN[self.mean] = _Known(key, (self.count, self.squares_sum), mean, std)
        return known.mean, known.std

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "InputNorm":
        """Follow the module to its device but not to another type, as of `half()` or `float()`."""
        exact = {name: self._buffers[name] for name in ("mean", "squares_sum")}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's own
        for name, before in exact.items():
            after = self._buffers[name]
            assert before is not None
            assert after is not None
            if after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self
