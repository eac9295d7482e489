"""The terms of the PPO loss, per actor and per frame. The caller takes the means.

Source: Schulman et al. 2017, arXiv:1707.06347.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LARGEST_LOGRATIO = 30.0


def normalize(advantages: Tensor) -> Tensor:
    """(n,) -> (n,), with mean 0 and deviation 1 over the frames of one optimizer step.

    A frame alone has no deviation; its advantage becomes 0.
    """
    if len(advantages) < 2:
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def policy_loss(
    logratio: Tensor, advantages: Tensor, clip_coef: float, dual_clip: float | None = None
) -> Tensor:
    """The clipped surrogate loss.

    Args:
        logratio: (actors,) float, new minus old log-probability of what each actor chose.
        advantages: (actors,) float, of the frame of each actor.
        clip_coef: the ratio gains nothing outside [1 - clip_coef, 1 + clip_coef].
        dual_clip: where the advantage is negative, the ratio loses nothing beyond this; None for
            no limit. Source: Ye et al. 2020, arXiv:1912.09729, equation 5.

    Returns:
        (actors,) float.
    """
    ratio = logratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def joint_logratio(logratio: Tensor, frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """The log-ratio of all that was chosen in a frame, for each of its actors.

    Args:
        logratio: (actors,) float.
        frame_of_actor: (actors,) int64.
        num_frames: how many frames there are.

    Returns:
        (actors,) float, the sum over the actors of the same frame.
    """
    of_frame = logratio.new_zeros(num_frames).index_add(0, frame_of_actor, logratio)
    # Those of hundreds of actors add up to more than has an exponential in float32.
    return of_frame.clamp(max=_LARGEST_LOGRATIO).index_select(0, frame_of_actor)


def equal_frames(frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """(actors,) int64 -> (actors,) float64 weights, which add up to 1 in each frame with actors."""
    one = torch.ones_like(frame_of_actor, dtype=torch.float64)
    counts = one.new_zeros(num_frames).index_add(0, frame_of_actor, one)  # `bincount` has to wait
    return counts.reciprocal().index_select(0, frame_of_actor)


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    clip_coef: float | None,
    huber_delta: float | None = None,
) -> Tensor:
    """Half the squared error of the values.

    Args:
        values: (frames,) float, of the network now.
        returns: (frames,) float, what they should be.
        old_values: (frames,) float, of the network that acted.
        clip_coef: a value gains nothing from moving further than this from its old value;
            None for no clipping.
        huber_delta: errors beyond it count linearly; None for squares throughout.
            Source: Huber 1964, "Robust estimation of a location parameter".

    Returns:
        (frames,) float.
    """
    loss = _half_square(values, returns, huber_delta)
    if clip_coef is not None:
        near = old_values + (values - old_values).clamp(-clip_coef, clip_coef)
        loss = torch.maximum(loss, _half_square(near, returns, huber_delta))
    return loss


def _half_square(values: Tensor, returns: Tensor, huber_delta: float | None) -> Tensor:
    if huber_delta is None:
        return 0.5 * (values - returns).square()
    return F.huber_loss(values, returns, reduction="none", delta=huber_delta)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """(frames, bins) logits, (frames, bins) probabilities they should have -> (frames,) float."""
    return -(targets * logits.log_softmax(dim=-1)).sum(dim=-1)


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
