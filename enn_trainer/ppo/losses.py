"""Terms of the PPO loss per actor or per frame, without the means over them.

Source: Schulman et al. 2017, arXiv:1707.06347.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_LARGEST_LOGRATIO = 30.0  # exp overflows in float32 from 89 on


def normalize(advantages: Tensor) -> Tensor:
    """Normalise advantages to mean 0 and standard deviation 1: (n,) -> (n,).

    The mean is over the n frames of one optimizer step. A single frame has no deviation and gets 0.
    """
    if len(advantages) < 2:
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def policy_loss(
    logratio: Tensor, advantages: Tensor, clip_coef: float, dual_clip: float | None = None
) -> Tensor:
    """Return the clipped surrogate loss.

    Args:
        logratio: (actors,) float, new minus old log-probability of the choice of each actor.
        advantages: (actors,) float, advantage of the frame of each actor.
        clip_coef: epsilon; ratios outside [1 - epsilon, 1 + epsilon] do not improve the loss.
        dual_clip: c > 1, which bounds the loss by -c * A where the advantage A is negative; None
            for no bound. Source: Ye et al. 2020, arXiv:1912.09729, equation 5.

    Returns:
        (actors,) float.
    """
    # L = max(-A * ratio, -A * clip(ratio, 1 - epsilon, 1 + epsilon)), equation 7 negated
    ratio = logratio.exp()
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)


def joint_logratio(logratio: Tensor, frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """Return the log-ratio of the joint action of a frame, for each of its actors.

    Args:
        logratio: (actors,) float, log-ratio of each actor's own choice.
        frame_of_actor: (actors,) int64, index of the frame of each actor.
        num_frames: number of frames.

    Returns:
        (actors,) float, the sum of `logratio` over the actors of the same frame.
    """
    of_frame = logratio.new_zeros(num_frames).index_add(0, frame_of_actor, logratio)
    # Sums over hundreds of actors can exceed the range of exp in float32.
    return of_frame.clamp(max=_LARGEST_LOGRATIO).index_select(0, frame_of_actor)


def equal_frames(frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """Return weights of actors that sum to 1 in each frame: (actors,) -> (actors,) float64."""
    one = torch.ones_like(frame_of_actor, dtype=torch.float64)
    # bincount would synchronise with the GPU.
    counts = one.new_zeros(num_frames).index_add(0, frame_of_actor, one)
    return counts.reciprocal().index_select(0, frame_of_actor)


def value_loss(
    values: Tensor,
    returns: Tensor,
    old_values: Tensor,
    clip_coef: float | None,
    huber_delta: float | None = None,
) -> Tensor:
    """Return half the squared error of the values, optionally clipped or with a Huber loss.

    Args:
        values: (frames,) float, values of the current network.
        returns: (frames,) float, targets.
        old_values: (frames,) float, values of the network that collected the frames.
        clip_coef: epsilon; moving further than this from the old value does not improve the loss.
            None for no clipping.
        huber_delta: errors beyond it count linearly; None for squared errors.
            Source: Huber 1964, "Robust estimation of a location parameter".

    Returns:
        (frames,) float.
    """
    # L = max(0.5 * (V - R)^2, 0.5 * (V_old + clip(V - V_old, -epsilon, epsilon) - R)^2)
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
    """Return the cross-entropy of target probabilities and logits.

    Args:
        logits: (frames, bins) float.
        targets: (frames, bins) float, probabilities.

    Returns:
        (frames,) float, -sum_i targets_i * log(softmax(logits)_i).
    """
    return -(targets * logits.log_softmax(dim=-1)).sum(dim=-1)


def approx_kl(logratio: Tensor) -> Tensor:
    """Return a non-negative estimate of KL(old || new) for each actor: (actors,) -> (actors,).

    Its mean under the old policy is the KL divergence.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3.
    """
    # k3 = (r - 1) - log(r), with r = p_new / p_old
    return logratio.exp() - 1 - logratio


def is_clipped(logratio: Tensor, clip_coef: float) -> Tensor:
    """Return True for actors whose ratio is clipped, |ratio - 1| > clip_coef: (actors,) bool."""
    return (logratio.exp() - 1).abs() > clip_coef


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); NaN if all returns are equal."""
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values).var(correction=0) / variance, torch.nan)
