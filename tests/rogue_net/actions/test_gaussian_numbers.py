"""Squashed Gaussians against `torch.distributions`, quadrature and samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import SigmoidTransform

from rogue_net.actions.gaussian_numbers import SquashedGaussian
from rogue_net.ragged import ActionBatch, RaggedTensor, restrict_action

LARGEST_UNIFORM = 1 - 2**-23
INF = math.inf
MEANS = [-8.0, -1.5, 0.0, 0.3, 4.0]
STDS = [0.01, 0.2, 1.0, 2.0]
RANGES = [(-1.0, 1.0), (0.0, 1e-3), (-5e5, 5e5), (100.0, 101.0), (-INF, INF)]


def of(
    mean: float, std: float, bounds: tuple[float, float], dtype: torch.dtype = torch.float64
) -> SquashedGaussian:
    one = [torch.tensor([[x]], dtype=dtype) for x in (mean, math.log(std), *bounds)]
    return SquashedGaussian(*one)


def all_of(dtype: torch.dtype = torch.float64) -> list[tuple[float, float, SquashedGaussian]]:
    """All means and deviations, in all ranges."""
    cases = [(m, s, r) for m in MEANS for s in STDS for r in RANGES]
    return [(m, s, of(m, s, r, dtype)) for m, s, r in cases]


def draws(n: int, columns: int = 1) -> Tensor:
    bits = torch.randint(2**23, (n, columns), generator=torch.Generator().manual_seed(1))
    return bits.float() * 2.0**-23


def test_densities_and_gradients_equal_torch_distributions() -> None:
    for mean, std, distribution in all_of():
        for z in (-12.0, mean, mean + 2 * std, 0.0, 9.0):
            parameters = [distribution.mean.clone(), distribution.log_std.clone()]
            for p in parameters:
                p.requires_grad_()
            fresh = SquashedGaussian(*parameters, distribution.low, distribution.high)
            drawn = torch.tensor([[z]], dtype=torch.float64)
            log_prob = fresh.log_prob(drawn)
            assert log_prob.shape == (1,)
            base = Normal(parameters[0], parameters[1].exp())
            if distribution.low.isfinite():
                # Far from the middle torch rounds y to 1, so that only z near it can be compared.
                if abs(z) > 9.5:
                    continue
                reference = TransformedDistribution(base, [SigmoidTransform()])
                expected = reference.log_prob(torch.sigmoid(drawn)).sum(dim=1)
            else:
                expected = base.log_prob(drawn).sum(dim=1)
            torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)
            ours = torch.autograd.grad(log_prob.sum(), parameters)
            expected_gradients = torch.autograd.grad(expected.sum(), parameters)
            torch.testing.assert_close(ours, expected_gradients, rtol=1e-5, atol=1e-6)


def test_density_does_not_depend_on_the_size_of_the_range() -> None:
    small, large = of(0.3, 0.7, (-1e-3, 1e-3)), of(0.3, 0.7, (-1e6, 1e6))
    drawn = torch.tensor([[1.1]], dtype=torch.float64)
    torch.testing.assert_close(small.log_prob(drawn), large.log_prob(drawn), rtol=0, atol=0)
    torch.testing.assert_close(small.entropy(), large.entropy(), rtol=0, atol=0)


@pytest.mark.slow
def test_entropies_and_gradients_match_numerical_integration() -> None:
    for _mean, _std, distribution in all_of():
        m, log_s = (
            distribution.mean.clone().requires_grad_(),
            distribution.log_std.clone().requires_grad_(),
        )
        entropy = SquashedGaussian(m, log_s, distribution.low, distribution.high).entropy()
        # -E[log p(y)] over 200,001 points of z, in which m and s stand for themselves.
        standard = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
        weights = torch.exp(-0.5 * standard.square()) / math.sqrt(2 * math.pi)
        z = m + log_s.exp() * standard.unsqueeze(0)
        density = -0.5 * standard.square() - log_s - 0.5 * math.log(2 * math.pi)
        if distribution.low.isfinite():
            density = density - torch.nn.functional.logsigmoid(z)
            density = density - torch.nn.functional.logsigmoid(-z)
        expected = -torch.trapezoid(weights * density, standard) + 0 * m.flatten()
        torch.testing.assert_close(entropy, expected.flatten(), rtol=0, atol=1e-3)
        ours = torch.autograd.grad(entropy.sum(), [m, log_s])
        expected_gradients = torch.autograd.grad(expected.sum(), [m, log_s])
        torch.testing.assert_close(ours, expected_gradients, rtol=1e-3, atol=2e-3)


def test_kl_equals_the_kl_of_gaussians() -> None:
    for m1, s1, one in all_of():
        for m2, s2 in ((0.0, 1.0), (-1.0, 0.05), (m1, s1)):
            other = SquashedGaussian(
                *(x.clone() for x in (one.mean, one.log_std, one.low, one.high))
            )
            other.mean, other.log_std = (
                torch.full_like(one.mean, m2),
                torch.full_like(one.mean, math.log(s2)),
            )
            expected = kl_divergence(Normal(m1, s1), Normal(m2, s2))
            torch.testing.assert_close(one.kl(other).item(), expected.item(), rtol=1e-6, atol=1e-9)


def test_kl_of_uniform_actions_matches_numerical_integration() -> None:
    distribution = of(0.4, 0.8, (-3.0, 5.0))
    uniform = SquashedGaussian(
        distribution.mean * 0, distribution.mean * 0 + INF, distribution.low, distribution.high
    )
    y = torch.linspace(0, 1, 2_000_002, dtype=torch.float64)[1:-1]
    z = torch.logit(y).unsqueeze(1)
    wide = SquashedGaussian(*(x.expand(len(z), 1) for x in vars(distribution).values()))
    torch.testing.assert_close(
        uniform.kl(distribution).item(), -wide.log_prob(z).mean().item(), rtol=1e-4, atol=1e-4
    )
    assert uniform.entropy().item() == 0
    assert uniform.log_prob(distribution.mean).item() == 0


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("is_uniform", [False, True])
def test_samples_match_the_distribution(bounds: tuple[float, float], is_uniform: bool) -> None:
    n, mean, std = 100_000, 0.5, 0.0 if is_uniform else 0.6
    low, high = (torch.full((n, 1), x) for x in bounds)
    if is_uniform:
        distribution = SquashedGaussian(low * 0, torch.full((n, 1), INF), low, high)
        distribution.mean = torch.zeros(n, 1)
    else:
        distribution = SquashedGaussian(
            torch.full((n, 1), mean), torch.full((n, 1), math.log(std)), low, high
        )
    drawn = distribution.sample(draws(n))
    assert drawn.dtype == torch.float32
    assert drawn.shape == (n, 1)
    numbers = distribution.to_env(drawn)
    assert numbers.dtype == torch.float32
    assert ((numbers >= low) & (numbers <= high)).all()
    # Kolmogorov-Smirnov: p > 1e-3 if sqrt(n) * max |F_n - F| < 1.95
    if is_uniform and math.isfinite(bounds[0]):
        sizes = (numbers.double() - bounds[0]) / (bounds[1] - bounds[0])
    else:
        center, scale = (0.0, 1.0) if is_uniform else (mean, std)
        sizes = Normal(center, scale).cdf(drawn.double())
    ordered = sizes.flatten().sort().values
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    distance = torch.maximum((steps - ordered).abs(), (steps - 1 / n - ordered).abs()).max()
    assert math.sqrt(n) * distance < 1.95


def test_fixed_components_have_zero_density_and_entropy() -> None:
    low = torch.tensor([[-1.0, 0.25], [0.5, 2.0]])
    high = torch.tensor([[1.0, 0.25], [0.5, 2.0]])
    distribution = SquashedGaussian(torch.zeros(2, 2), torch.zeros(2, 2), low, high)
    drawn = distribution.sample(draws(2, 2))
    parts = (distribution.mean, distribution.log_std, distribution.low, distribution.high)
    alone = SquashedGaussian(*(x[:1, :1] for x in parts))
    torch.testing.assert_close(distribution.log_prob(drawn)[:1], alone.log_prob(drawn[:1, :1]))
    assert distribution.log_prob(drawn)[1] == 0
    assert distribution.entropy()[1] == 0
    assert distribution.to_env(drawn)[0, 1] == 0.25
    assert distribution.to_env(drawn)[1].tolist() == [0.5, 2.0]
    assert distribution.kl(distribution.tempered(4.0))[1] == 0
    total, count = distribution.normalised_entropy(distribution.entropy()).tolist()
    assert count == 1
    assert total == pytest.approx(math.exp(alone.entropy().item()))


FLOATS = st.floats(-1e30, 1e30, width=32)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.floats(-1e6, 1e6, width=32),
    st.floats(math.log(0.01), math.log(10)),
    st.sampled_from(RANGES),
    st.sampled_from([0.0, 2**-23, 0.5, LARGEST_UNIFORM]),
)
def test_actions_are_finite_and_within_bounds(
    mean: float, log_std: float, bounds: tuple[float, float], uniform: float
) -> None:
    distribution = of(mean, math.exp(log_std), bounds, torch.float32)
    distribution.mean.requires_grad_()
    drawn = distribution.sample(torch.tensor([uniform]))
    numbers = distribution.to_env(drawn.detach())
    assert (numbers >= distribution.low).all()
    assert (numbers <= distribution.high).all()
    assert numbers.isfinite().all()
    terms = distribution.log_prob(drawn.detach()) + distribution.entropy()
    assert terms.isfinite().all()
    (gradient,) = torch.autograd.grad(terms.sum(), distribution.mean)
    assert gradient.isfinite().all()


@settings(max_examples=100)
@given(st.sampled_from(RANGES), st.floats(1e-5, 1 - 1e-5), st.floats(-1e3, 1e3, width=32))
def test_from_env_inverts_to_env(bounds: tuple[float, float], share: float, number: float) -> None:
    distribution = of(0.0, 1.0, bounds, torch.float32)
    if math.isfinite(bounds[0]):
        number = bounds[0] + share * (bounds[1] - bounds[0])
    given_ = torch.tensor([[number]]).clamp(distribution.low, distribution.high)
    again = distribution.to_env(distribution.from_env(given_))
    size = bounds[1] - bounds[0] if math.isfinite(bounds[0]) else 1.0
    scale = max(abs(number), *(abs(x) for x in bounds if math.isfinite(x)), 1e-9)
    torch.testing.assert_close(again, given_, rtol=0, atol=max(2e-6 * size, 1e-6 * scale))


@pytest.mark.parametrize("bounds", RANGES[:4])
def test_actions_at_their_bounds_are_inverted_with_a_margin(bounds: tuple[float, float]) -> None:
    distribution = of(0.0, 1.0, bounds)
    for bound in bounds:
        drawn = distribution.from_env(torch.tensor([[bound]]))
        assert drawn.abs().item() == pytest.approx(math.log((1 - 1e-6) / 1e-6), rel=1e-4)


def test_temperature_multiplies_the_variance() -> None:
    distribution = of(0.3, 0.5, (-1.0, 1.0))
    assert distribution.tempered(4.0).log_std.exp().item() == pytest.approx(1.0)
    assert distribution.tempered(1.0) is distribution
    torch.testing.assert_close(distribution.tempered(9.0).mode(), distribution.mode())


def numbers_of(actors: int, columns: int = 2) -> tuple[SquashedGaussian, ActionBatch]:
    generator = torch.Generator().manual_seed(actors)
    mean, log_std = torch.randn(2, actors, columns, generator=generator)
    bounds = torch.stack([torch.full((actors, columns), -1.0), torch.ones(actors, columns)], dim=1)
    lengths = np.array([1, actors - 1])
    action = ActionBatch(
        RaggedTensor(torch.arange(actors), lengths), bounds=RaggedTensor(bounds, lengths)
    )
    return SquashedGaussian(mean, log_std, *bounds.unbind(dim=1)), action


def same(one: SquashedGaussian, other: SquashedGaussian) -> None:
    torch.testing.assert_close(vars(one), vars(other), rtol=0, atol=0)


def test_actors_are_selected_concatenated_and_recorded() -> None:
    distribution, action = numbers_of(5)
    pieces = [distribution.take(torch.tensor([0, 1])), distribution.take(torch.tensor([2, 3, 4]))]
    same(SquashedGaussian.cat(pieces), distribution)
    rows = distribution.to_rows(action)
    assert rows.values.shape == (5, 4)
    same(distribution.from_rows(rows.values.reshape(-1), action), distribution)
    same(distribution.relabelled([1, 0]).relabelled([1, 0]), distribution)
    torch.testing.assert_close(distribution.relabelled([1, 0]).mean, distribution.mean[:, [1, 0]])


def test_recorded_parameters_without_actors_are_read() -> None:
    distribution, action = numbers_of(5)
    no_actors = distribution.take(torch.zeros(0, dtype=torch.int64))
    same(no_actors.from_rows(torch.zeros(0), action.take(np.zeros(0, np.int64))), no_actors)


def test_unknown_actors_choose_uniformly() -> None:
    distribution, whole = numbers_of(5)
    is_known = np.array([True, False, True, True, False])
    part = restrict_action(whole, is_known, None)
    wide = distribution.take(torch.from_numpy(np.flatnonzero(is_known))).widened(part)
    same(
        wide.take(torch.from_numpy(np.flatnonzero(is_known))),
        distribution.take(torch.tensor([0, 2, 3])),
    )
    assert wide.log_prob(torch.zeros(5, 2))[[1, 4]].tolist() == [0, 0]
