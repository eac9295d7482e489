"""`SquashedGaussian`: the distribution of continuous actions, a Gaussian squashed to the bounds.

A bounded component is `low + (high - low) * sigmoid(z)` of a Gaussian z, so that y = sigmoid(z) is
logit-normal on the unit interval. Densities are with respect to y, so they do not depend on the
size of the range; an unbounded component is z itself.
"""

import math
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rogue_net.actions.distributions import ActionDistribution
from rogue_net.ragged import ActionBatch, ActionSubset, RaggedTensor, to_device

LOG_2PI = math.log(2 * math.pi)
MARGIN = 1e-6
"""Smallest distance from the bounds in `from_env`, as a fraction of the range."""
_NODES = 20


def to_env(chosen: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Squash choices to the bounds of the environment, (A, D) float32, never beyond them.

    Args:
        chosen: (A, D) float, z.
        low: (A, D) float, lower bounds; -inf if unbounded.
        high: (A, D) float, upper bounds; inf if unbounded.
    """
    # low * (1 - y) + high * y, where y = sigmoid(z)
    is_bounded, drawn = torch.isfinite(low), chosen.double()
    start, end = (torch.where(is_bounded, bound.double(), 0.0) for bound in (low, high))
    number = torch.where(is_bounded, start.lerp(end, torch.sigmoid(drawn)), drawn)
    return number.float().clamp(low.float(), high.float())


def unsquash(env_choices: Tensor, action: ActionBatch) -> Tensor:
    """Convert actions of `VecEnv.act` to choices; only bounded actions are squashed.

    Args:
        env_choices: (A,) int64 or (A, D) float32, of all actors.
        action: these actors.
    """
    if action.bounds is None:
        return env_choices
    return SquashedGaussian.uniform(action).from_env(env_choices)


@cache
def _quadrature(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Hermite quadrature over N(0, 1), (20,) each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)  # type: ignore[no-untyped-call]
    rows = nodes, weights / math.sqrt(2 * math.pi)
    points, point_weights = (torch.from_numpy(row).to(device, dtype) for row in rows)
    return points, point_weights


class _ExpectedLogSlope(torch.autograd.Function):
    """E[log dy/dz] for z ~ N(m, s) and y = sigmoid(z); the forward pass computes its gradients."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor) -> Tensor:
        """Integrate by Gauss-Hermite quadrature, (A, D) -> (A, D)."""
        # E[f(z)] = sum_k w_k f(m + s x_k)
        nodes, weights = _quadrature(mean.dtype, mean.device)
        z = torch.addcmul(mean.unsqueeze(-1), std.unsqueeze(-1), nodes)
        # log dy/dz = -|z| - 2 log(1 + exp(-|z|)), with derivative 1 - 2 y
        if any(ctx.needs_input_grad):
            y = torch.sigmoid(z)
            ctx.save_for_backward(1 - 2 * (y @ weights), -2 * (y @ (nodes * weights)))
        size = z.abs_().neg_()
        expected: Tensor = size.sub(size.exp().log1p_(), alpha=2) @ weights
        return expected

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of mean and standard deviation."""
        by_mean, by_std = ctx.saved_tensors
        return gradient * by_mean, gradient * by_std


class SquashedGaussian(ActionDistribution):
    """Distribution over D independent components of each actor.

    Choices are samples of z, float32 (A, D). A component with equal bounds is fixed: its
    log-probability and entropy are 0.

    Args:
        mean: (A, D) float, of z.
        log_std: (A, D) float, the logarithm of the standard deviation of z. Where it is inf, the
            component is uniform between its bounds, or standard normal if unbounded. Where it is
            -inf, it equals `mean` and has no density.
        low: (A, D) float, lower bounds; -inf if unbounded.
        high: (A, D) float, upper bounds; inf if unbounded.
    """

    def __init__(self, mean: Tensor, log_std: Tensor, low: Tensor, high: Tensor) -> None:
        self.mean, self.log_std, self.low, self.high = mean, log_std, low, high

    @property
    def parameters(self) -> Tensor:
        """(A, 2 * D), means and logarithms of standard deviations."""
        return torch.cat([self.mean, self.log_std], dim=1)

    @cached_property
    def _is_bounded(self) -> Tensor:
        return torch.isfinite(self.low)

    @cached_property
    def _is_fixed(self) -> Tensor:
        return self.low == self.high

    @cached_property
    def _is_uniform(self) -> Tensor:
        return self.log_std.isposinf()

    @cached_property
    def has_uniform(self) -> bool:
        """True if a component is uniform."""
        return bool(self._is_uniform.any())

    @cached_property
    def _log_std(self) -> Tensor:
        """(A, D), `log_std` of Gaussian components, 0 for uniform ones."""
        return self.log_std.masked_fill(self._is_uniform, 0.0) if self.has_uniform else self.log_std

    @cached_property
    def std(self) -> Tensor:
        """(A, D), standard deviations of z; 1 for uniform components."""
        return self._log_std.exp()

    def _sum(self, terms: Tensor) -> Tensor:
        """Sum over the components that are not fixed, (A, D) -> (A,)."""
        return terms.masked_fill(self._is_fixed, 0.0).sum(dim=-1)

    def sample(self, draws: Tensor) -> Tensor:
        """Sample z by inverting the distribution function, (A, D) float32.

        Args:
            draws: float32 in [0, 1), multiples of 2**-23: (A, D), or (A,) if D is 1.
        """
        # z = m + s * Phi^-1(u + 2**-24); uniform y = sigmoid(z): z = logit(u + 2**-24)
        u = draws.reshape(self.mean.shape).double() + 2.0**-24
        standard: Tensor = torch.special.ndtri(u)
        gaussian: Tensor = self.mean.double() + self.log_std.double().exp() * standard
        if not self.has_uniform:
            return gaussian.float()
        uniform = torch.where(self._is_bounded, torch.logit(u), standard)
        return torch.where(self._is_uniform, uniform, gaussian).float()

    def mode(self) -> Tensor:
        """Return the means of z, the medians of the actions, (A, D) float32."""
        return self.mean.float()

    def log_prob(self, chosen: Tensor) -> Tensor:
        """Compute the log-densities, (A, D) -> (A,)."""
        # log N(z; m, s) = -((z - m) / s)^2 / 2 - log s - log(2 pi) / 2
        standard = (chosen - self.mean) / self.std
        density = -0.5 * (standard.square() + LOG_2PI) - self._log_std
        # log p(y) = log N(z) - log dy/dz (arXiv:1801.01290, appendix C)
        density = density - self._log_slope(chosen)
        if not self.has_uniform:
            return self._sum(density)
        uniform = torch.where(self._is_bounded, 0.0, density)
        return self._sum(torch.where(self._is_uniform, uniform, density))

    def entropy(self) -> Tensor:
        """Compute the entropies, (A,)."""
        # H(y) = log s + log(2 pi e) / 2 + E[log dy/dz], by Gauss-Hermite quadrature
        expected = _ExpectedLogSlope.apply(self.mean, self.std)  # type: ignore[no-untyped-call]
        entropy = self._log_std + torch.where(self._is_bounded, expected, 0.0)
        entropy = entropy + 0.5 * (1 + LOG_2PI)
        if self.has_uniform:
            entropy = entropy.masked_fill(self._is_uniform & self._is_bounded, 0.0)
        return self._sum(entropy)

    def normalised_entropy(self, entropies: Tensor) -> Tensor:
        """Compute the sum of exp(entropy), the share of the range in use, of bounded actions."""
        choosing = (~self._is_fixed & self._is_bounded).any(dim=-1)
        choosing &= (self._is_fixed | self._is_bounded).all(dim=-1)
        share = entropies.exp().masked_fill(~choosing, 0.0)
        return torch.stack([share, choosing.to(share)]).sum(dim=1)

    def kl(self, other: Self) -> Tensor:
        """Compute KL(self, other), (A,), which squashing does not change."""
        # KL = log(s2 / s1) + (s1^2 + (m1 - m2)^2) / (2 s2^2) - 1/2
        log_std = self._log_std
        shift = (self.mean - other.mean) * torch.exp(-other.log_std)
        ratio = torch.exp(2 * (log_std - other.log_std))
        gaussian = other.log_std - log_std + 0.5 * (ratio + shift.square() - 1)
        # Uniform y: z is logistic with variance pi^2 / 3, E[log dy/dz] = -2 and H(y) = 0:
        # KL = log s2 + log(2 pi) / 2 + (pi^2 / 3 + m2^2) / (2 s2^2) - 2
        square = math.pi**2 / 3 + other.mean.square()
        uniform = other.log_std + 0.5 * LOG_2PI - 2
        uniform = uniform + 0.5 * square * torch.exp(-2 * other.log_std)
        uniform = torch.where(self._is_bounded, uniform, gaussian)
        return self._sum(torch.where(self._is_uniform, uniform, gaussian))

    def total_variation(self, other: Self) -> Tensor:
        """Compute the largest total variation distance of a component, (A,)."""
        # TV = |D(x) - D(x')|, where D = P - Q is the difference of the distribution functions, and
        # the densities are equal at x and x', the roots of a z^2 + b z + c = 0
        (m, s), (n, t) = ((d.mean.double(), d.log_std.double().exp()) for d in (self, other))
        a, b = 0.5 * (t**-2 - s**-2), m * s**-2 - n * t**-2
        c = 0.5 * ((n / t) ** 2 - (m / s) ** 2) + torch.log(t / s)
        root = (b.square() - 4 * a * c).clamp(min=0).sqrt()
        q = -0.5 * (b + torch.where(b < 0, -root, root))
        first, second = (
            torch.special.ndtr((x - m) / s) - torch.special.ndtr((x - n) / t)
            for x in (q / a, c / q)
        )
        distance = (first - second).abs().masked_fill((m == n) & (s == t), 0.0)
        largest: Tensor = distance.masked_fill(self._is_fixed, 0.0).amax(dim=-1)
        return largest

    def tempered(self, temperature: float) -> Self:
        """Multiply the variances of z by a temperature above 0."""
        if temperature == 1:
            return self
        log_std = self.log_std + 0.5 * math.log(temperature)
        return type(self)(self.mean, log_std, self.low, self.high)

    def to_env(self, chosen: Tensor) -> Tensor:
        """Squash choices to the bounds, (A, D) float32, never beyond them."""
        return to_env(chosen, self.low, self.high)

    def from_env(self, numbers: Tensor) -> Tensor:
        """Return z of actions of the environment, (A, D) float32: the inverse of `to_env`.

        Actions are first moved away from the bounds, by at least 1e-6 of the range.
        """
        size = torch.where(self._is_bounded, self.high - self.low, 1.0).double()
        share = (numbers.double() - torch.where(self._is_bounded, self.low, 0.0)) / size
        share = torch.where(size == 0, 0.5, share)
        z = torch.logit(share.clamp(MARGIN, 1 - MARGIN))
        return torch.where(self._is_bounded, z, numbers.double()).float()

    def to_rows(self, action: ActionBatch) -> RaggedTensor:
        """Return means and logarithms of standard deviations, (actors, 2 * D) per frame."""
        return RaggedTensor(self.parameters, action.actors.lengths)

    def from_rows(self, rows: Tensor, action: ActionBatch) -> Self:
        """Restore the distribution from recorded parameters."""
        mean, log_std = rows.view(len(self.mean), 2, self.mean.shape[1]).unbind(dim=1)
        return type(self)(mean, log_std, self.low, self.high)

    def certain(self, chosen: Tensor) -> Self:
        """Return the deterministic distribution at the choices, with standard deviations of 0."""
        return type(self)(chosen, torch.full_like(chosen, -math.inf), self.low, self.high)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate distributions along the actors."""
        return cls(
            torch.cat([piece.mean for piece in pieces]),
            torch.cat([piece.log_std for piece in pieces]),
            torch.cat([piece.low for piece in pieces]),
            torch.cat([piece.high for piece in pieces]),
        )

    def take(self, actors: Tensor) -> Self:
        """Select actors by index, (n,) int64."""
        rows = (self.mean, self.log_std, self.low, self.high)
        return type(self)(*(row.index_select(0, actors) for row in rows))

    def widened(self, part: ActionSubset) -> Self:
        """Extend the distribution to all actors; those not in `part` choose uniformly."""
        wide = self.uniform(part.whole)
        actors = to_device(np.flatnonzero(part.actors), self.mean.device)
        mean, log_std = wide.mean.to(self.mean.dtype), wide.log_std.to(self.mean.dtype)
        mean, log_std = (
            mean.index_copy(0, actors, self.mean),
            log_std.index_copy(0, actors, self.log_std),
        )
        return type(self)(mean, log_std, wide.low, wide.high)

    def relabelled(self, labels: Sequence[int]) -> Self:
        """Reorder the components."""
        rows = (self.mean, self.log_std, self.low, self.high)
        return type(self)(*(row[:, labels] for row in rows))

    @classmethod
    def uniform(cls, action: ActionBatch) -> Self:
        """Return the uniform distribution between the bounds, standard normal if unbounded."""
        assert action.bounds is not None
        low, high = action.bounds.values.unbind(dim=1)
        return cls(torch.zeros_like(low), torch.full_like(low, math.inf), low, high)

    def _log_slope(self, z: Tensor) -> Tensor:
        """Compute log dy/dz = log sigmoid(z) + log sigmoid(-z); 0 if unbounded."""
        size = z.abs()
        return torch.where(self._is_bounded, -size - 2 * F.softplus(-size), 0.0)
