"""Conformance check for distributions of your own kinds of actions."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rogue_net.actions.distributions import ActionDistribution
from rogue_net.ragged import ActionBatch

_TOLERANCE = 1e-4  # of float32
_MOST_ERRORS = 5.0  # standard errors of a mean


def check_distribution(
    distribution: ActionDistribution,
    action: ActionBatch | None = None,
    num_draws: int = 1,
    samples: int = 4000,
    seed: int = 0,
) -> None:
    """Raise if a distribution contradicts itself.

    Samples have to fit `log_prob`, `entropy` and `kl`; actors that are taken apart and joined, and
    distributions that are recorded and read, have to be the same as before.

    Args:
        distribution: of A actors, at least one.
        action: these actors; None to leave recordings out.
        num_draws: random numbers that a choice takes.
        samples: number of choices of each actor.
        seed: of the draws.

    Raises:
        ValueError: there are problems; the message lists all of them.
    """
    generator = torch.Generator().manual_seed(seed)
    device = distribution.entropy().device
    rows = torch.arange(len(distribution.entropy()), device=device)
    many = distribution.take(rows.repeat_interleave(samples))
    shape = (len(rows) * samples,) if num_draws == 1 else (len(rows) * samples, num_draws)
    draws = torch.randint(2**23, shape, generator=generator).float().to(device) * 2.0**-23
    problems = [*_samples(distribution, many, draws, samples)]
    if not problems:
        problems += _actors(distribution)
        problems += [] if action is None else _records(distribution, action)
    if problems:
        raise ValueError(f"{type(distribution).__name__}: {'; '.join(problems)}")


def _samples(one: Any, many: Any, draws: Tensor, samples: int) -> Iterator[str]:
    """Compare choices with their probabilities, the entropy and a divergence."""
    chosen = many.sample(draws)
    if not torch.equal(_known(chosen), _known(many.sample(draws))):
        yield "sample: expected the same choices of the same draws"
        return
    log_probs, mode = many.log_prob(chosen), one.log_prob(one.mode())
    for name, found, size in (("sample", log_probs, len(chosen)), ("mode", mode, len(one.mode()))):
        if found.shape != (size,) or not found.isfinite().all():
            yield f"log_prob of {name}: expected ({size},) finite numbers, got {found}"
            return
    # H = E[-log p], and KL(p, q) = E[log p - log q].
    yield from _mean_is("entropy", one.entropy(), -log_probs, samples)
    hot, hot_many = one.tempered(2.0), many.tempered(2.0)
    ratios = log_probs - hot_many.log_prob(chosen)
    yield from _mean_is("kl", one.kl(hot), ratios, samples)
    if not one.kl(one).abs().max() < _TOLERANCE:
        yield f"kl: expected 0 of the distribution itself, got {one.kl(one)}"
    if not _same(one.tempered(1.0).log_prob(one.mode()), mode):
        yield "tempered: expected the same distribution at temperature 1"
    given = many.to_env(chosen)
    if not _same(many.to_env(many.from_env(given)), given):
        yield "from_env: expected the inverse of to_env"


def _actors(one: Any) -> Iterator[str]:
    """Take actors apart, and join them."""
    rows = torch.arange(len(one.entropy()), device=one.entropy().device)
    expected = one.log_prob(one.mode())
    backwards = one.take(rows.flip(0))
    if not _same(backwards.log_prob(one.mode().flip(0)), expected.flip(0)):
        yield "take: expected the distributions of the given actors"
    joined = one.cat([one.take(rows[:1]), one.take(rows[1:])])
    if not _same(joined.log_prob(one.mode()), expected):
        yield "cat: expected the actors of all distributions, in their order"


def _records(one: Any, action: ActionBatch) -> Iterator[str]:
    """Record the distribution, and read it."""
    rows = one.to_rows(action)
    read = one.from_rows(rows.values, action)
    if not _same(read.log_prob(one.mode()), one.log_prob(one.mode())):
        yield "from_rows: expected the distribution of to_rows"
    if not _same(read.entropy(), one.entropy()):
        yield "from_rows: expected the entropies of the distribution of to_rows"


def _mean_is(name: str, expected: Tensor, values: Tensor, samples: int) -> Iterator[str]:
    """Compare numbers of actors with means of their samples."""
    found = values.view(-1, samples).double()
    error = found.std(dim=1) / samples**0.5
    off = (found.mean(dim=1) - expected).abs() > _MOST_ERRORS * error + 10 * _TOLERANCE
    for row in off.nonzero().flatten().tolist():
        yield (
            f"{name} of actor {row}: expected {found[row].mean():.4f} +- {error[row]:.4f}, as the "
            f"samples say, got {expected[row]:.4f}"
        )


def _known(chosen: Tensor) -> Tensor:
    """Return choices with 0 for those that are none."""
    return chosen.nan_to_num(nan=0.0) if chosen.is_floating_point() else chosen


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(_known(one), _known(other), rtol=_TOLERANCE, atol=_TOLERANCE)
