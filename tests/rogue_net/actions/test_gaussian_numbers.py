"""Distributions of numbers, against `torch.distributions`, quadrature and their own draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, TransformedDistribution, kl_divergence
from torch.distributions.transforms import SigmoidTransform

from rogue_net.actions.gaussian_numbers import GaussianNumbers
from rogue_net.ragged import ActionBatch, RaggedTensor, restrict_action

LARGEST_UNIFORM = 1 - 2**-23
INF = math.inf
MEANS = [-8.0, -1.5, 0.0, 0.3, 4.0]
STDS = [0.01, 0.2, 1.0, 2.0]
RANGES = [(-1.0, 1.0), (0.0, 1e-3), (-5e5, 5e5), (100.0, 101.0), (-INF, INF)]


def of(
    mean: float, std: float, bounds: tuple[float, float], dtype: torch.dtype = torch.float64
) -> GaussianNumbers:
    one = [torch.tensor([[x]], dtype=dtype) for x in (mean, math.log(std), *bounds)]
    return GaussianNumbers(*one)


def all_of(dtype: torch.dtype = torch.float64) -> list[tuple[float, float, GaussianNumbers]]:
    """All means and deviations, in all ranges."""
    cases = [(m, s, r) for m in MEANS for s in STDS for r in RANGES]
    return [(m, s, of(m, s, r, dtype)) for m, s, r in cases]


def draws(n: int, columns: int = 1) -> Tensor:
    bits = torch.randint(2**23, (n, columns), generator=torch.Generator().manual_seed(1))
    return bits.float() * 2.0**-23


def test_densities_and_their_gradients_are_those_of_torch() -> None:
    for mean, std, found in all_of():
        for z in (-12.0, mean, mean + 2 * std, 0.0, 9.0):
            parameters = [found.mean.clone(), found.log_std.clone()]
            for p in parameters:
                p.requires_grad_()
            own = GaussianNumbers(*parameters, found.low, found.high)
            drawn = torch.tensor([[z]], dtype=torch.float64)
            log_prob = own.log_prob(drawn)
            assert log_prob.shape == (1,)
            base = Normal(parameters[0], parameters[1].exp())
            if found.low.isfinite():
                # Far from the middle torch rounds y to 1, so that only z near it can be compared.
                if abs(z) > 9.5:
                    continue
                reference = TransformedDistribution(base, [SigmoidTransform()])
                expected = reference.log_prob(torch.sigmoid(drawn)).sum(dim=1)
            else:
                expected = base.log_prob(drawn).sum(dim=1)
            torch.testing.assert_close(log_prob, expected, rtol=1e-6, atol=1e-6)
            ours = torch.autograd.grad(log_prob.sum(), parameters)
            theirs = torch.autograd.grad(expected.sum(), parameters)
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_density_does_not_depend_on_the_size_of_the_range() -> None:
    small, large = of(0.3, 0.7, (-1e-3, 1e-3)), of(0.3, 0.7, (-1e6, 1e6))
    drawn = torch.tensor([[1.1]], dtype=torch.float64)
    torch.testing.assert_close(small.log_prob(drawn), large.log_prob(drawn), rtol=0, atol=0)
    torch.testing.assert_close(small.entropy(), large.entropy(), rtol=0, atol=0)


@pytest.mark.slow
def test_entropies_and_their_gradients_are_those_of_numerical_integration() -> None:
    for _mean, _std, found in all_of():
        m, log_s = found.mean.clone().requires_grad_(), found.log_std.clone().requires_grad_()
        entropy = GaussianNumbers(m, log_s, found.low, found.high).entropy()
        # -E[log p(y)] over 200,001 points of z, in which m and s stand for themselves.
        standard = torch.linspace(-12, 12, 200_001, dtype=torch.float64)
        weights = torch.exp(-0.5 * standard.square()) / math.sqrt(2 * math.pi)
        z = m + log_s.exp() * standard.unsqueeze(0)
        density = -0.5 * standard.square() - log_s - 0.5 * math.log(2 * math.pi)
        if found.low.isfinite():
            density = density - torch.nn.functional.logsigmoid(z)
            density = density - torch.nn.functional.logsigmoid(-z)
        expected = -torch.trapezoid(weights * density, standard) + 0 * m.flatten()
        torch.testing.assert_close(entropy, expected.flatten(), rtol=0, atol=1e-3)
        ours = torch.autograd.grad(entropy.sum(), [m, log_s])
        theirs = torch.autograd.grad(expected.sum(), [m, log_s])
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-3)


def test_divergence_is_that_of_the_gaussians() -> None:
    for m1, s1, one in all_of():
        for m2, s2 in ((0.0, 1.0), (-1.0, 0.05), (m1, s1)):
            other = GaussianNumbers(
                *(x.clone() for x in (one.mean, one.log_std, one.low, one.high))
            )
            other.mean, other.log_std = (
                torch.full_like(one.mean, m2),
                torch.full_like(one.mean, math.log(s2)),
            )
            expected = kl_divergence(Normal(m1, s1), Normal(m2, s2))
            torch.testing.assert_close(one.kl(other).item(), expected.item(), rtol=1e-6, atol=1e-9)


def test_divergence_of_uniform_numbers_is_that_of_numerical_integration() -> None:
    found = of(0.4, 0.8, (-3.0, 5.0))
    uniform = GaussianNumbers(found.mean * 0, found.mean * 0 + INF, found.low, found.high)
    y = torch.linspace(0, 1, 2_000_002, dtype=torch.float64)[1:-1]
    z = torch.logit(y).unsqueeze(1)
    wide = GaussianNumbers(*(x.expand(len(z), 1) for x in vars(found).values()))
    torch.testing.assert_close(
        uniform.kl(found).item(), -wide.log_prob(z).mean().item(), rtol=1e-4, atol=1e-4
    )
    assert uniform.entropy().item() == 0
    assert uniform.log_prob(found.mean).item() == 0


@pytest.mark.parametrize("bounds", RANGES)
@pytest.mark.parametrize("is_uniform", [False, True])
def test_draws_fit_their_distribution(bounds: tuple[float, float], is_uniform: bool) -> None:
    n, mean, std = 100_000, 0.5, 0.0 if is_uniform else 0.6
    low, high = (torch.full((n, 1), x) for x in bounds)
    if is_uniform:
        found = GaussianNumbers(low * 0, torch.full((n, 1), INF), low, high)
        found.mean = torch.zeros(n, 1)
    else:
        found = GaussianNumbers(
            torch.full((n, 1), mean), torch.full((n, 1), math.log(std)), low, high
        )
    drawn = found.sample(draws(n))
    assert drawn.dtype == torch.float32
    assert drawn.shape == (n, 1)
    numbers = found.to_env(drawn)
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


def test_fixed_numbers_have_no_density_and_no_entropy() -> None:
    low = torch.tensor([[-1.0, 0.25], [0.5, 2.0]])
    high = torch.tensor([[1.0, 0.25], [0.5, 2.0]])
    found = GaussianNumbers(torch.zeros(2, 2), torch.zeros(2, 2), low, high)
    drawn = found.sample(draws(2, 2))
    parts = (found.mean, found.log_std, found.low, found.high)
    alone = GaussianNumbers(*(x[:1, :1] for x in parts))
    torch.testing.assert_close(found.log_prob(drawn)[:1], alone.log_prob(drawn[:1, :1]))
    assert found.log_prob(drawn)[1] == 0
    assert found.entropy()[1] == 0
    assert found.to_env(drawn)[0, 1] == 0.25
    assert found.to_env(drawn)[1].tolist() == [0.5, 2.0]
    assert found.kl(found.tempered(4.0))[1] == 0
    total, count = found.normalised_entropy(found.entropy()).tolist()
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
def test_nothing_is_infinite_and_numbers_keep_to_their_bounds(
    mean: float, log_std: float, bounds: tuple[float, float], uniform: float
) -> None:
    found = of(mean, math.exp(log_std), bounds, torch.float32)
    found.mean.requires_grad_()
    drawn = found.sample(torch.tensor([uniform]))
    numbers = found.to_env(drawn.detach())
    assert (numbers >= found.low).all()
    assert (numbers <= found.high).all()
    assert numbers.isfinite().all()
    terms = found.log_prob(drawn.detach()) + found.entropy()
    assert terms.isfinite().all()
    (gradient,) = torch.autograd.grad(terms.sum(), found.mean)
    assert gradient.isfinite().all()


@settings(max_examples=100)
@given(st.sampled_from(RANGES), st.floats(1e-5, 1 - 1e-5), st.floats(-1e3, 1e3, width=32))
def test_recorded_numbers_are_inverted(
    bounds: tuple[float, float], share: float, number: float
) -> None:
    found = of(0.0, 1.0, bounds, torch.float32)
    if math.isfinite(bounds[0]):
        number = bounds[0] + share * (bounds[1] - bounds[0])
    given_ = torch.tensor([[number]]).clamp(found.low, found.high)
    again = found.to_env(found.from_env(given_))
    size = bounds[1] - bounds[0] if math.isfinite(bounds[0]) else 1.0
    scale = max(abs(number), *(abs(x) for x in bounds if math.isfinite(x)), 1e-9)
    torch.testing.assert_close(again, given_, rtol=0, atol=max(2e-6 * size, 1e-6 * scale))


@pytest.mark.parametrize("bounds", RANGES[:4])
def test_numbers_at_their_bounds_are_inverted_with_a_margin(bounds: tuple[float, float]) -> None:
    found = of(0.0, 1.0, bounds)
    for bound in bounds:
        drawn = found.from_env(torch.tensor([[bound]]))
        assert drawn.abs().item() == pytest.approx(math.log((1 - 1e-6) / 1e-6), rel=1e-4)


def test_temperature_multiplies_the_variance() -> None:
    found = of(0.3, 0.5, (-1.0, 1.0))
    assert found.tempered(4.0).log_std.exp().item() == pytest.approx(1.0)
    assert found.tempered(1.0) is found
    torch.testing.assert_close(found.tempered(9.0).mode(), found.mode())


def numbers_of(actors: int, columns: int = 2) -> tuple[GaussianNumbers, ActionBatch]:
    generator = torch.Generator().manual_seed(actors)
    mean, log_std = torch.randn(2, actors, columns, generator=generator)
    bounds = torch.stack([torch.full((actors, columns), -1.0), torch.ones(actors, columns)], dim=1)
    lengths = np.array([1, actors - 1])
    action = ActionBatch(
        RaggedTensor(torch.arange(actors), lengths), bounds=RaggedTensor(bounds, lengths)
    )
    return GaussianNumbers(mean, log_std, *bounds.unbind(dim=1)), action


def same(one: GaussianNumbers, other: GaussianNumbers) -> None:
    torch.testing.assert_close(vars(one), vars(other), rtol=0, atol=0)


def test_actors_are_taken_joined_and_recorded() -> None:
    found, action = numbers_of(5)
    pieces = [found.take(torch.tensor([0, 1])), found.take(torch.tensor([2, 3, 4]))]
    same(GaussianNumbers.cat(pieces), found)
    rows = found.to_rows(action)
    assert rows.values.shape == (5, 4)
    same(found.from_rows(rows.values.reshape(-1), action), found)
    same(found.relabelled([1, 0]).relabelled([1, 0]), found)
    torch.testing.assert_close(found.relabelled([1, 0]).mean, found.mean[:, [1, 0]])


def test_parameters_of_no_actor_are_read() -> None:
    found, action = numbers_of(5)
    nobody = found.take(torch.zeros(0, dtype=torch.int64))
    same(nobody.from_rows(torch.zeros(0), action.take(np.zeros(0, np.int64))), nobody)


def test_actors_that_a_network_does_not_know_choose_uniformly() -> None:
    found, whole = numbers_of(5)
    known = np.array([True, False, True, True, False])
    part = restrict_action(whole, known, None)
    wide = found.take(torch.from_numpy(np.flatnonzero(known))).widened(part)
    same(wide.take(torch.from_numpy(np.flatnonzero(known))), found.take(torch.tensor([0, 2, 3])))
    assert wide.log_prob(torch.zeros(5, 2))[[1, 4]].tolist() == [0, 0]
