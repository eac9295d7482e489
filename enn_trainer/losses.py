"""The terms of the PPO loss, per actor and per frame. The caller takes the means.

Source: Schulman et al. 2017, arXiv:1707.06347.
"""

import torch
from torch import Tensor


def normalize(advantages: Tensor) -> Tensor:
    """(n,) -> (n,), with mean 0 and deviation 1 over the frames of one optimizer step.

    A frame alone has no deviation; its advantage becomes 0.
    """
    if len(advantages) < 2:
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def policy_loss(logratio: Tensor, advantages: Tensor, clip_coef: float) -> Tensor:
    """The clipped surrogate loss.

    Args:
        logratio: (actors,) float, new minus old log-probability of what each actor chose.
        advantages: (actors,) float, of the frame of each actor.
        clip_coef: the ratio gains nothing outside [1 - clip_coef, 1 + clip_coef].

    Returns:
        (actors,) float.
    """
    ratio = logratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip_coef: float | None
) -> Tensor:
    """Half the squared error of the values.

    Args:
        values: (frames,) float, of the network now.
        returns: (frames,) float, what they should be.
        old_values: (frames,) float, of the network that acted.
        clip_coef: a value gains nothing from moving further than this from its old value;
            None for no clipping.

    Returns:
        (frames,) float.
    """
    loss = (values - returns).square()
    if clip_coef is not None:
        near = old_values + (values - old_values).clamp(-clip_coef, clip_coef)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss


def approx_kl(logratio: Tensor) -> Tensor:
    """(actors,) -> (actors,), an estimate of KL(old, new) that is never negative.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3.
    """
    return logratio.exp() - 1 - logratio


def is_clipped(logratio: Tensor, clip_coef: float) -> Tensor:
    """(actors,) -> (actors,) bool, whether the ratio left the range that PPO trusts."""
    return (logratio.exp() - 1).abs() > clip_coef


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """1 - Var(returns - values) / Var(returns), NaN where the returns are all the same."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values).var(correction=0) / variance, torch.nan)
