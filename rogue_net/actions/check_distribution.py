"""Conformance check for custom action distributions."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rogue_net.actions.distributions import ActionDistribution
from rogue_net.ragged import ActionBatch

_TOLERANCE = 1e-4  # of float32
_MAX_ERRORS = 5.0  # standard errors of a mean


def check_distribution(
    distribution: ActionDistribution,
    action: ActionBatch | None = None,
    num_draws: int = 1,
    samples: int = 4000,
    seed: int = 0,
) -> None:
    """Check a distribution for consistency.

    Samples must agree with `log_prob`, `entropy` and `kl`; `take` then `cat`, and `to_rows` then
    `from_rows`, must return the same distribution.

    Args:
        distribution: of A actors, at least one.
        action: these actors; None to skip `to_rows` and `from_rows`.
        num_draws: random numbers per choice.
        samples: number of samples per actor.
        seed: of the samples.

    Raises:
        ValueError: the distribution is inconsistent; the message lists all problems.
    """
    generator = torch.Generator().manual_seed(seed)
    device = distribution.entropy().device
    rows = torch.arange(len(distribution.entropy()), device=device)
    repeated = distribution.take(rows.repeat_interleave(samples))
    shape = (len(rows) * samples,) if num_draws == 1 else (len(rows) * samples, num_draws)
    draws = torch.randint(2**23, shape, generator=generator).float().to(device) * 2.0**-23
    problems = [*_sampling_problems(distribution, repeated, draws, samples)]
    if not problems:
        problems += _indexing_problems(distribution)
        problems += [] if action is None else _recording_problems(distribution, action)
    if problems:
        raise ValueError(f"{type(distribution).__name__}: {'; '.join(problems)}")


def _sampling_problems(dist: Any, repeated: Any, draws: Tensor, samples: int) -> Iterator[str]:
    """Compare samples with `log_prob`, `entropy` and `kl`."""
    chosen = repeated.sample(draws)
    if not torch.equal(_without_nan(chosen), _without_nan(repeated.sample(draws))):
        yield "sample: expected the same choices for the same draws"
        return
    log_probs, mode = repeated.log_prob(chosen), dist.log_prob(dist.mode())
    for name, x, size in (("sample", log_probs, len(chosen)), ("mode", mode, len(dist.mode()))):
        if x.shape != (size,) or not x.isfinite().all():
            yield f"log_prob of {name}: expected ({size},) finite numbers, got {x}"
            return
    # H = E[-log p], and KL(p, q) = E[log p - log q].
    yield from _compare_means("entropy", dist.entropy(), -log_probs, samples)
    hot, hot_repeated = dist.tempered(2.0), repeated.tempered(2.0)
    ratios = log_probs - hot_repeated.log_prob(chosen)
    yield from _compare_means("kl", dist.kl(hot), ratios, samples)
    if not dist.kl(dist).abs().max() < _TOLERANCE:
        yield f"kl: expected 0 to the distribution itself, got {dist.kl(dist)}"
    if not _is_close(dist.tempered(1.0).log_prob(dist.mode()), mode):
        yield "tempered: expected the same distribution at temperature 1"
    env_choices = repeated.to_env(chosen)
    if not _is_close(repeated.to_env(repeated.from_env(env_choices)), env_choices):
        yield "from_env: expected the inverse of to_env"


def _indexing_problems(dist: Any) -> Iterator[str]:
    """Compare the distribution with permuted, and with split and concatenated actors."""
    rows = torch.arange(len(dist.entropy()), device=dist.entropy().device)
    expected = dist.log_prob(dist.mode())
    backwards = dist.take(rows.flip(0))
    if not _is_close(backwards.log_prob(dist.mode().flip(0)), expected.flip(0)):
        yield "take: expected the distributions of the given actors"
    concatenated = dist.cat([dist.take(rows[:1]), dist.take(rows[1:])])
    if not _is_close(concatenated.log_prob(dist.mode()), expected):
        yield "cat: expected the actors of all distributions, in their order"


def _recording_problems(dist: Any, action: ActionBatch) -> Iterator[str]:
    """Compare the distribution with itself after `to_rows` and `from_rows`."""
    rows = dist.to_rows(action)
    read = dist.from_rows(rows.values, action)
    if not _is_close(read.log_prob(dist.mode()), dist.log_prob(dist.mode())):
        yield "from_rows: expected the distribution of to_rows"
    if not _is_close(read.entropy(), dist.entropy()):
        yield "from_rows: expected the entropies of the distribution of to_rows"


def _compare_means(name: str, expected: Tensor, values: Tensor, samples: int) -> Iterator[str]:
    """Compare a quantity of each actor, (A,), with the mean over samples, (A * samples,)."""
    by_actor = values.view(-1, samples).double()
    error = by_actor.std(dim=1) / samples**0.5
    off = (by_actor.mean(dim=1) - expected).abs() > _MAX_ERRORS * error + 10 * _TOLERANCE
    for row in off.nonzero().flatten().tolist():
        yield (
            f"{name} of actor {row}: expected {by_actor[row].mean():.4f} +- {error[row]:.4f} from "
            f"the samples, got {expected[row]:.4f}"
        )


def _without_nan(chosen: Tensor) -> Tensor:
    """Replace NaN, the choice of inactive actors, by 0."""
    return chosen.nan_to_num(nan=0.0) if chosen.is_floating_point() else chosen


def _is_close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(_without_nan(a), _without_nan(b), rtol=_TOLERANCE, atol=_TOLERANCE)
