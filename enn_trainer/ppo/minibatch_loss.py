"""PPO loss of a minibatch, computed in pieces that add up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.errors import AgentError
from enn_trainer.experience.collector import Rollout
from enn_trainer.ppo import losses
from enn_trainer.ppo.entropy_targets import coef_of_actor
from enn_trainer.ppo.loss_stats import LossStats
from enn_trainer.ppo.returns import Estimate
from enn_trainer.tracking.spans import OFF, Spans
from rogue_net.ragged import to_device
from rogue_net.rogue_net import NetOutput
from rogue_net.value_bins import bin_targets


@dataclass(frozen=True)
class Minibatch:
    """The F frames of one optimizer step.

    Attributes:
        frames: (F,) int64, positions in the rollout.
        num_terms: number of terms of which the policy loss is the mean.
        advantages: (F,) float.
        returns: (F,) float.
        old_values: (F,) float, the values predicted during the rollout.
        keys: (F,) int64, seeds of the dropout of each frame.
    """

    frames: npt.NDArray[np.int64]
    num_terms: int
    advantages: Tensor
    returns: Tensor
    old_values: Tensor
    keys: npt.NDArray[np.int64]

    @staticmethod
    def of(
        rollout: Rollout,
        estimate: Estimate,
        frames: npt.NDArray[np.int64],
        keys: npt.NDArray[np.int64],
        ppo: PPOConfig,
    ) -> "Minibatch":
        """Select frames of a rollout; advantages are normalised over them with `ppo.norm_adv`."""
        index = to_device(frames, estimate.returns.device)
        advantages = estimate.advantages.flatten()[index]
        return Minibatch(
            frames=frames,
            num_terms=_num_terms(rollout, frames, ppo.weight_by),
            advantages=losses.normalize(advantages) if ppo.norm_adv else advantages,
            returns=estimate.returns.flatten()[index],
            old_values=rollout.values.flatten()[index],
            keys=keys,
        )


def _num_terms(
    rollout: Rollout, frames: npt.NDArray[np.int64], weight_by: Literal["actor", "frame"]
) -> int:
    """Return the number of terms of which the policy loss is the mean: actors, or frames."""
    actors = sum(a.lengths[frames] for a in rollout.actions.values())
    return int(np.sum(actors) if weight_by == "actor" else np.count_nonzero(actors))


def loss_of_piece(
    agent: PPOAgent,
    rollout: Rollout,
    minibatch: Minibatch,
    piece: npt.NDArray[np.int64],
    ppo: PPOConfig,
    ent_coef: float,
    ent_tunings: Mapping[str, Tensor],
    spans: Spans = OFF,
) -> tuple[Tensor, LossStats]:
    """Compute the part of the loss of a minibatch that is due to some of its frames.

    Args:
        agent: the network.
        rollout: the rollout that the frames are from.
        minibatch: positions and targets of the frames of the minibatch.
        piece: (F,) int64, positions in the minibatch.
        ppo: settings of the loss.
        ent_coef: coefficient of the entropy bonus.
        ent_tunings: state of the coefficients of actions with an entropy target, see `tune`.
        spans: timers of the parts.

    Returns:
        () float, the part of the loss, and its statistics.

    Raises:
        AgentError: the network lacks an output that `ppo.value_loss` needs.
    """
    # Forward pass.
    frames = minibatch.frames[piece]
    with spans.span("gather"):
        chosen = {name: rows.take(frames) for name, rows in rollout.actions.items()}
        batch = replace(rollout.batch.take(frames), keys=minibatch.keys[piece])
        old_logprobs = {name: rows.take(frames).values for name, rows in rollout.logprobs.items()}
    with spans.span("forward"):
        out = agent(batch, actions={name: rows.values for name, rows in chosen.items()})

    # Policy loss: one term an actor, with the advantage of its frame.
    # log ratio: log pi(a|s) - log pi_old(a|s)
    logratio, entropies = _of_all_actors(out, old_logprobs)
    frame_of_row = np.concatenate([rows.frame_of_row() for rows in chosen.values()])
    frame_of_actor = to_device(frame_of_row, logratio.device)
    positions = to_device(piece, logratio.device)
    advantages = minibatch.advantages[positions][frame_of_actor]
    weights: Tensor | None = None
    if ppo.weight_by == "frame":
        weights = losses.equal_frames(frame_of_actor, len(frames)).to(logratio)
    judged = logratio
    if ppo.ratio == "frame":
        judged = losses.joint_logratio(logratio, frame_of_actor, len(frames))
    surrogate = losses.policy_loss(judged, advantages, ppo.clip_coef, ppo.dual_clip)
    policy_loss = _weighted_sum(surrogate, weights)

    # Entropy bonus: sum over actors of c_action * H(pi)
    entropy = _weighted_sum(entropies, weights)
    bonus = ent_coef * entropy
    if ent_tunings:
        num_actors = {name: len(rows.values) for name, rows in chosen.items()}
        coefs = coef_of_actor(ent_tunings, ent_coef, num_actors, like=entropies)
        bonus = _weighted_sum(coefs * entropies, weights)

    # loss = (policy_loss - bonus) / num_terms + vf_coef * value_loss / num_frames
    value_loss = value_loss_of(
        out.values, minibatch.returns[positions], minibatch.old_values[positions], ppo
    ).sum()
    loss = (policy_loss - bonus) / max(1, minibatch.num_terms)
    loss = loss + ppo.vf_coef * value_loss / len(minibatch.frames)

    # Statistics.
    logratio, judged = logratio.detach(), judged.detach()
    approx_kl = losses.approx_kl(logratio)
    actors_of_actions = [len(rows.values) for rows in chosen.values()]
    tuned_entropy = [
        out.distribution(name).normalised_entropy(out.entropies[name].detach())
        for name in ent_tunings
    ]
    return loss, LossStats(
        policy_loss=policy_loss.detach(),
        entropy=entropy.detach(),
        approx_kl=approx_kl.sum(),
        clipped=losses.is_clipped(judged, ppo.clip_coef).sum(),
        value_loss=value_loss.detach(),
        grad_norm=torch.zeros_like(policy_loss),
        tuned_entropy=torch.stack(tuned_entropy) if tuned_entropy else logratio.new_zeros(0, 2),
        kl_of_actions=torch.stack([kl.sum() for kl in torch.split(approx_kl, actors_of_actions)]),
        actors_of_actions=np.array(actors_of_actions),
        terms=_num_terms(rollout, frames, ppo.weight_by),
        actors=len(logratio),
        frames=len(frames),
    )


def _of_all_actors(out: NetOutput, old_logprobs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return log-ratios and entropies, (actors,) each, of all actions one after the other."""
    logratios = [out.logprobs[name] - old for name, old in old_logprobs.items()]
    entropies = [out.entropies[name] for name in old_logprobs]
    if len(logratios) == 1:
        return logratios[0], entropies[0]
    return torch.cat(logratios), torch.cat(entropies)


def _weighted_sum(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of (actors,) numbers, weighted if there are weights."""
    return (x if weights is None else weights * x).sum()


def value_loss_of(
    values: Mapping[str, Tensor], returns: Tensor, old_values: Tensor, ppo: PPOConfig
) -> Tensor:
    """Return the value loss of each of F frames, (F,) float."""
    if ppo.value_bins is not None:
        logits, expected = values.get("value_logits"), (len(returns), ppo.value_bins.num_bins)
        if logits is None or logits.shape != expected:
            got = "none" if logits is None else f"shape {tuple(logits.shape)}"
            raise AgentError(
                f"values['value_logits']: expected shape {expected}, as of ppo.value_bins, "
                f"got {got}"
            )
        return losses.cross_entropy(logits, bin_targets(returns, ppo.value_bins))
    clip_coef = ppo.clip_coef if ppo.vf_clip_coef is None else ppo.vf_clip_coef
    return losses.value_loss(
        values["value"].flatten(),
        returns,
        old_values,
        clip_coef if ppo.clip_vloss else None,
        ppo.huber_delta if ppo.value_loss == "huber" else None,
    )
