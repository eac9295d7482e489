"""PPO loss: formulas, computation by microbatch, and statistics."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from enn_trainer.algorithms.algorithm import AuxiliaryLoss
from enn_trainer.algorithms.ppo.entropy_targets import coef_of_actor
from enn_trainer.algorithms.ppo.returns import Estimate
from enn_trainer.base.errors import AgentError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.config.ppo_config import PerActorOrFrame, PPOConfig
from enn_trainer.experience.collector import Rollout
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.spans import Spans
from entity_env.arrays import IntArray
from entity_env.ragged import Selection
from rogue_net.actions.parts import joint, num_active
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor, to_device
from rogue_net.value_bins import bin_targets
from rogue_net.value_head import TargetUnits

_LARGEST_LOGRATIO = 30.0  # exp overflows in float32 from 89 on


def normalize(advantages: Tensor, least_std: float | Tensor = 0.0) -> Tensor:
    """Normalise advantages to mean 0 and standard deviation 1: (n,) -> (n,).

    The mean is over the n frames of one optimizer step. A single frame has no deviation and gets 0.
    A standard deviation below `least_std` is replaced by it, so that small advantages stay small.
    """
    if len(advantages) < 2:
        return torch.zeros_like(advantages)
    return (advantages - advantages.mean()) / (advantages.std().clamp(min=least_std) + 1e-8)


def normalize_acting(
    advantages: Tensor, num_decisions: IntArray, least_std: float | Tensor = 0.0
) -> Tensor:
    """Normalise advantages to mean 0 and standard deviation 1 over the frames with decisions.

    The advantages of other frames enter no policy loss; they are shifted and scaled alike. With
    fewer than two frames with decisions there is no deviation, and advantages are not changed.

    Args:
        advantages: (n,) float, of the n frames of one optimizer step.
        num_decisions: (n,) int64, number of decisions of each frame.
        least_std: see `normalize`.

    Returns:
        (n,) float.
    """
    acting = np.flatnonzero(num_decisions)
    if len(acting) < 2:
        return advantages
    all_act = len(acting) == len(num_decisions)
    selected = advantages if all_act else advantages[to_device(acting, advantages.device)]
    return (advantages - selected.mean()) / (selected.std().clamp(min=least_std) + 1e-8)


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
    ratio, costs = logratio.exp(), -advantages
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    loss = torch.maximum(costs * ratio, costs * clipped)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, costs * dual_clip), loss)


def joint_logratio(logratio: Tensor, frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """Return the log-ratio of the joint action of a frame, for each of its actors.

    Args:
        logratio: (actors,) float, log-ratio of the choice of each actor.
        frame_of_actor: (actors,) int64, index of the frame of each actor.
        num_frames: number of frames.

    Returns:
        (actors,) float, the sum of `logratio` over the actors of the same frame.
    """
    frame_logratio = logratio.new_zeros(num_frames).index_add(0, frame_of_actor, logratio)
    # Sums over hundreds of actors can exceed the range of exp in float32.
    return frame_logratio.clamp(max=_LARGEST_LOGRATIO).index_select(0, frame_of_actor)


def equal_frames(frame_of_actor: Tensor, num_frames: int) -> Tensor:
    """Return weights of actors that sum to 1 in each frame: (actors,) -> (actors,) float64."""
    ones = torch.ones_like(frame_of_actor, dtype=torch.float64)
    # bincount would synchronise with the GPU.
    counts = ones.new_zeros(num_frames).index_add(0, frame_of_actor, ones)
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


def approx_kl(logratio: Tensor, change: Tensor | None = None) -> Tensor:
    """Return a non-negative estimate of KL(old || new) for each actor: (actors,) -> (actors,).

    Its mean under the old policy is the KL divergence.

    Source: Schulman 2020, http://joschu.net/blog/kl-approx.html, estimator k3.

    Args:
        logratio: (actors,) float, new minus old log-probability of the choice of each actor.
        change: (actors,) float, `logratio.exp() - 1`; None to compute it.
    """
    # k3 = (r - 1) - log(r), with r = p_new / p_old
    return (logratio.exp() - 1 if change is None else change) - logratio


def is_clipped(logratio: Tensor, clip_coef: float, change: Tensor | None = None) -> Tensor:
    """Return True for actors with a clipped ratio, `|ratio - 1| > clip_coef`: (actors,) bool.

    For `change` see `approx_kl`.
    """
    return (logratio.exp() - 1 if change is None else change).abs() > clip_coef


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return 1 - Var(returns - values) / Var(returns); NaN if all returns are equal."""
    if not len(returns):
        return returns.new_full((), torch.nan)
    variance = returns.var(correction=0)
    return torch.where(variance > 0, 1 - (returns - values).var(correction=0) / variance, torch.nan)


LOSSES = {
    "policy_loss": "terms",
    "entropy": "terms",
    "approx_kl": "actors",
    "clipfrac": "actors",
    "value_loss": "frames",
}
"""Units over which the metrics `losses/...` are means; terms are actors, or frames with actors."""
NORMS = ("gradnorm", "vf_gradnorm")
"""Norms of the gradient before clipping: of the policy, and of a separate value network."""
NORM_METRICS = (*NORMS, "gradnorm_large")
"""Metrics that are means over optimizer steps."""
LARGE_NORM = 10.0
"""Multiple of the limit from which a norm counts for `losses/gradnorm_large`."""
_TENSORS = ("sums", "norms", "kl_of_actions", "tuned_entropy")


def norms_of_step(norms: Sequence[Tensor], max_norm: float) -> Tensor:
    """Return the norms of an optimizer step by `NORM_METRICS`, (norms,) float.

    Args:
        norms: () float, of the policy and, if it is separate, of the value network.
        max_norm: limit of the norms.
    """
    policy, values = norms[0], norms[1] if len(norms) > 1 else torch.zeros_like(norms[0])
    return torch.stack([policy, values, (policy > LARGE_NORM * max_norm).to(policy)])


@dataclass
class LossStats:
    """Running sums of the loss statistics of an update.

    The sums stay on the device until the update ends, as reading them would synchronise with it.

    Attributes:
        sums: (losses,), of the losses in `LOSSES`.
        norms: (norms,), of the norms in `NORMS`, and of the large ones.
        counts: number of terms, actors, frames and optimizer steps, by unit.
        kl_of_actions: (actions,), approx_kl of the actors of each action.
        actors_of_actions: (actions,) int64 on the host, number of actors of each action.
        tuned_entropy: (actions with a target, 2), sums of `normalised_entropy`.
        auxiliary: by name, sum over optimizer steps of each auxiliary loss on separate data.
        per_actor: by name, sum over terms of each auxiliary loss of actors.
    """

    sums: Tensor
    norms: Tensor
    counts: Counter[str]
    kl_of_actions: Tensor
    actors_of_actions: IntArray
    tuned_entropy: Tensor
    auxiliary: dict[str, Tensor] = field(default_factory=dict)
    per_actor: dict[str, Tensor] = field(default_factory=dict)

    @staticmethod
    def zero(device: torch.device, num_actions: int, num_tuned: int = 0) -> "LossStats":
        """Create sums of 0."""
        return LossStats(
            torch.zeros(len(LOSSES), device=device),
            torch.zeros(len(NORM_METRICS), device=device),
            Counter(),
            torch.zeros(num_actions, device=device),
            np.zeros(num_actions, dtype=np.int64),
            torch.zeros(num_tuned, 2, device=device),
        )

    def plus(self, other: "LossStats") -> "LossStats":
        """Add the sums of `other` in place, and return `self`."""
        self.add(other)
        return self

    def add(self, other: "LossStats") -> None:
        """Add the sums of `other`."""
        self.sums = self.sums + other.sums
        self.norms = self.norms + other.norms
        for sums, other_sums in (
            (self.auxiliary, other.auxiliary),
            (self.per_actor, other.per_actor),
        ):
            for name, loss in other_sums.items():
                sums[name] = sums.get(name, 0.0) + loss
        self.counts += other.counts
        self.kl_of_actions = self.kl_of_actions + other.kl_of_actions
        self.actors_of_actions = self.actors_of_actions + other.actors_of_actions
        self.tuned_entropy = self.tuned_entropy + other.tuned_entropy

    def plain(self) -> dict[str, Any]:
        """Return the sums as plain data."""
        named = {name: getattr(self, name) for name in ("auxiliary", "per_actor")}
        tensors = {name: getattr(self, name) for name in _TENSORS}
        return {
            **{k: {n: x.cpu().numpy() for n, x in each.items()} for k, each in named.items()},
            **{name: x.cpu().numpy() for name, x in tensors.items()},
            "counts": dict(self.counts),
            "actors_of_actions": self.actors_of_actions,
        }

    @staticmethod
    def from_plain(data: Mapping[str, Any], device: torch.device) -> "LossStats":
        """Create sums from the result of `plain`."""

        def tensor(x: Any) -> Tensor:
            return torch.from_numpy(x).to(device)

        def tensors(name: str) -> dict[str, Tensor]:
            return {key: tensor(x) for key, x in data[name].items()}

        return LossStats(
            counts=Counter(data["counts"]),
            actors_of_actions=data["actors_of_actions"],
            auxiliary=tensors("auxiliary"),
            per_actor=tensors("per_actor"),
            **{name: tensor(data[name]) for name in _TENSORS},
        )

    def losses(self) -> dict[str, Tensor]:
        """Return the losses and gradient norms that must be finite, by name."""
        sums = dict(zip(LOSSES, self.sums.unbind(), strict=True))
        of_policy, of_values, _ = self.norms.unbind()
        return {
            "the policy loss": sums["policy_loss"],
            "the entropy": sums["entropy"],
            "the value loss": sums["value_loss"],
            **{
                f"the auxiliary loss {name}": loss
                for name, loss in [*self.auxiliary.items(), *self.per_actor.items()]
            },
            "the norm of the gradient": of_policy,
            "the norm of the value network's gradient": of_values,
        }

    def means(self) -> dict[str, float]:
        """Return the mean losses by their tags."""
        sums, steps = zip(LOSSES, self.sums.tolist(), strict=True), max(1, self.counts["steps"])
        norms = zip(NORM_METRICS, self.norms.tolist(), strict=True)
        return {
            **{f"losses/{name}": x / max(1, self.counts[LOSSES[name]]) for name, x in sums},
            **{f"losses/{name}": x / steps for name, x in norms},
        }

    def auxiliary_means(self) -> dict[str, float]:
        """Return `losses/<name>_loss`, a mean over steps, or `losses/<name>`, a mean over terms."""
        steps, terms = max(1, self.counts["steps"]), max(1, self.counts["terms"])
        return {
            **{f"losses/{name}_loss": float(x) / steps for name, x in self.auxiliary.items()},
            **{f"losses/{name}": float(x) / terms for name, x in self.per_actor.items()},
        }

    def kl_scalars(self, actions: Iterable[str]) -> dict[str, float]:
        """Return `policy/<action>/kl` of each action that had actors.

        Args:
            actions: names of the actions in the order of the sums.
        """
        sums = self.kl_of_actions.tolist()
        return {
            f"policy/{name}/kl": kl / actors
            for name, kl, actors in zip(actions, sums, self.actors_of_actions.tolist(), strict=True)
            if actors
        }


@dataclass(frozen=True)
class Minibatch:
    """The F frames of one optimizer step.

    Attributes:
        rollout: the rollout.
        frames: (F,) int64, positions among the frames of all processes.
        rows: (F,) int64, positions in `rollout`; undefined for frames of other processes.
        num_decisions: (F,) int64, number of decisions of each frame.
        num_terms: number of terms in the mean of the policy loss.
        targets: (3, F) float, advantages, normalised returns, and normalised predictions of these
            during the rollout.
        norm: normalisation of the returns.
        keys: (F,) int64, seeds of the dropout of each frame.
    """

    rollout: Rollout
    frames: IntArray
    rows: IntArray
    num_decisions: IntArray
    num_terms: int
    targets: Tensor
    norm: TargetUnits
    keys: IntArray

    @staticmethod
    def of(
        rollout: Rollout,
        targets: Tensor,
        decisions: IntArray,
        frames: IntArray,
        keys: IntArray,
        ppo: PPOConfig,
        norm: TargetUnits,
    ) -> "Minibatch":
        """Select frames of a rollout; advantages are normalised over them with `ppo.norm_adv`.

        `targets` are of `targets_of`, `decisions` of `Rollout.num_decisions`.
        """
        selected = targets.index_select(1, to_device(frames, targets.device))
        advantages, num_decisions = selected[0], decisions[frames]
        least_std = ppo.norm_adv_floor * norm.std
        if ppo.norm_adv and ppo.norm_adv_over == "acting":
            selected[0] = normalize_acting(advantages, num_decisions, least_std)
        elif ppo.norm_adv:
            selected[0] = normalize(advantages, least_std)
        return Minibatch(
            rollout=rollout,
            frames=frames,
            rows=rollout.shards.rows(frames),
            num_decisions=num_decisions,
            num_terms=_num_terms(num_decisions, ppo.weight_by),
            targets=selected,
            norm=norm,
            keys=keys,
        )


def targets_of(rollout: Rollout, estimate: Estimate, norm: TargetUnits) -> Tensor:
    """Return advantages, normalised returns, and their normalised predictions, (3, T * B)."""
    returns, old_values = norm.normalized(estimate.returns), norm.normalized(rollout.values)
    return torch.stack([estimate.advantages, returns, old_values]).flatten(1)


def _num_terms(actors: IntArray, weight_by: PerActorOrFrame) -> int:
    """Return the number of terms in the mean of the policy loss: decisions, or frames with any.

    Args:
        actors: (F,) int64, number of decisions of each frame.
        weight_by: unit of a term.
    """
    return int(np.sum(actors) if weight_by == "actor" else np.count_nonzero(actors))


def loss_of_piece(
    agent: PPOAgent,
    ppo: PPOConfig,
    ent_coef: float,
    ent_tunings: Mapping[str, Tensor],
    auxiliary: Mapping[str, AuxiliaryLoss],
    context: ExecutionContext,
    minibatch: Minibatch,
    positions: IntArray,
) -> tuple[Tensor, LossStats]:
    """Compute the contribution of a microbatch to the loss of its minibatch.

    Args:
        agent: the network.
        ppo: settings of the loss.
        ent_coef: coefficient of the entropy bonus.
        ent_tunings: state of the coefficients of actions with an entropy target, see `tune`.
        auxiliary: auxiliary losses of this update, by name.
        context: interrupt check and timers.
        minibatch: the frames of the minibatch and their targets.
        positions: (F,) int64, positions in the minibatch.

    Returns:
        () float, the contribution to the loss, and its statistics.

    Raises:
        AgentError: the network lacks an output that `ppo.value_loss` needs.
    """
    # Forward pass.
    context.check()
    with context.spans.span("gather"):
        batch, chosen, old_logprobs = _gather(minibatch, positions, context.spans)
    with context.spans.span("forward"):
        out = agent(batch, actions={name: rows.values for name, rows in chosen.items()})

    # Policy loss: one term for each decision, with the advantage of its frame.
    # log ratio: log pi(a|s) - log pi_old(a|s)
    # A parent action and its dependent actions are one decision: the sum over them.
    logratios = {name: out.logprobs[name] - old for name, old in old_logprobs.items()}
    decisions = joint(logratios, batch.actions)
    logratio = _cat(decisions.values())
    part_entropies = {name: out.entropies[name] for name in old_logprobs}
    entropies = _cat(joint(part_entropies, batch.actions).values())
    frame_of_row = np.concatenate([chosen[name].frame_of_row() for name in decisions])
    frame_of_actor = to_device(frame_of_row, logratio.device)
    index = to_device(positions, logratio.device)
    advantages, returns, old_values = minibatch.targets.index_select(1, index).unbind()
    advantages = advantages.index_select(0, frame_of_actor)
    weights: Tensor | None = None
    if ppo.weight_by == "frame":
        weights = equal_frames(frame_of_actor, len(positions)).to(logratio)
    clipped_logratio = logratio
    if ppo.ratio == "frame":
        clipped_logratio = joint_logratio(logratio, frame_of_actor, len(positions))
    surrogates = policy_loss(clipped_logratio, advantages, ppo.clip_coef, ppo.dual_clip)
    surrogate = _weighted_sum(surrogates, weights)

    # Entropy bonus: sum over actors of c_action * H(pi)
    entropy = _weighted_sum(entropies, weights)
    bonus = ent_coef * entropy
    if ent_tunings:
        tuned = _tuned_entropies(part_entropies, batch.actions, ent_tunings, ent_coef)
        bonus = _weighted_sum(tuned, weights)

    # loss = (surrogate - bonus) / num_terms + vf_coef * value_error / num_frames
    value_error = value_loss_of(out.values, returns, old_values, ppo, minibatch.norm).sum()
    loss = (surrogate - bonus) / max(1, minibatch.num_terms)
    loss = loss + ppo.vf_coef * value_error / len(minibatch.frames)

    # Auxiliary losses of actors: loss = loss + coef * sum over actors / num_terms
    per_actor = {}
    for name, auxiliary_loss in auxiliary.items():
        if (terms := auxiliary_loss.actor_losses(batch, out)) is not None:
            parts = {name: terms.losses[name] for name in old_logprobs}
            total = _weighted_sum(_cat(joint(parts, batch.actions).values()), weights)
            loss = loss + terms.coef * total / max(1, minibatch.num_terms)
            per_actor[name] = total.detach()

    # Statistics.
    actors_of_actions = [num_active(batch.actions[name], x.values) for name, x in chosen.items()]
    with torch.no_grad():
        change = logratio.exp() - 1
        kl = approx_kl(logratio, change).sum()
        kl_by_action = [kl]
        if len(logratios) > 1:
            kl_by_action = [approx_kl(one).sum() for one in logratios.values()]
        changes_of_ratio = change if clipped_logratio is logratio else None
        clipped = is_clipped(clipped_logratio, ppo.clip_coef, changes_of_ratio)
        tuned_entropy = [
            out.distribution(name).normalised_entropy(out.entropies[name]) for name in ent_tunings
        ]
        sums = [surrogate, entropy, kl, clipped.sum(dtype=kl.dtype), value_error]
        stats = LossStats(
            sums=torch.stack(sums),
            norms=_zeros(len(NORM_METRICS), device=logratio.device),
            counts=Counter(
                terms=_num_terms(minibatch.num_decisions[positions], ppo.weight_by),
                actors=len(logratio),
                frames=len(positions),
            ),
            kl_of_actions=torch.stack(kl_by_action),
            actors_of_actions=np.array(actors_of_actions),
            tuned_entropy=torch.stack(tuned_entropy)
            if tuned_entropy
            else _zeros(0, 2, device=logratio.device),
            per_actor=per_actor,
        )
    return loss, stats


def _gather(
    minibatch: Minibatch, positions: IntArray, spans: Spans
) -> tuple[EntityBatch, dict[str, RaggedTensor], dict[str, Tensor]]:
    """Return the frames of a microbatch, and by action their choices and old log-probabilities."""
    rollout, frames = minibatch.rollout, minibatch.rows[positions]
    selection = Selection(frames)
    chosen = {name: rows.select(selection) for name, rows in rollout.actions.items()}
    batch, past = replace(rollout.batch, past=None).select(selection), rollout.batch.past
    if past is not None:
        with spans.span("memory"):
            past = past.take(frames)
    batch = replace(batch, past=past, keys=minibatch.keys[positions])
    old_logprobs = {name: rows.select(selection).values for name, rows in rollout.logprobs.items()}
    return batch, chosen, old_logprobs


def _tuned_entropies(
    entropies: Mapping[str, Tensor],
    actions: Mapping[str, ActionBatch],
    ent_tunings: Mapping[str, Tensor],
    ent_coef: float,
) -> Tensor:
    """Return the entropy of each decision times its coefficient, with entropy targets.

    Args:
        entropies: (A,) float of each action.
        actions: their actors.
        ent_tunings: state of the coefficients of actions with an entropy target.
        ent_coef: coefficient of the other actions.
    """
    all_entropies = _cat(entropies.values())
    num_actors = {name: len(rows) for name, rows in entropies.items()}
    weighted = coef_of_actor(ent_tunings, ent_coef, num_actors, like=all_entropies) * all_entropies
    by_action = torch.split(weighted, [*num_actors.values()])
    by_decision = joint(dict(zip(entropies, by_action, strict=True)), actions)
    return _cat(by_decision.values())


@cache
def _zeros(*shape: int, device: torch.device) -> Tensor:
    """Return zeros that must not be modified."""
    return torch.zeros(shape, device=device)


def _cat(parts: Collection[Tensor]) -> Tensor:
    """Concatenate (n,) tensors."""
    return next(iter(parts)) if len(parts) == 1 else torch.cat([*parts])


def _weighted_sum(x: Tensor, weights: Tensor | None) -> Tensor:
    """Return the sum of (actors,) numbers, weighted if `weights` is not None."""
    return (x if weights is None else weights * x).sum()


def value_loss_of(
    values: Mapping[str, Tensor],
    returns: Tensor,
    old_values: Tensor,
    ppo: PPOConfig,
    norm: TargetUnits,
) -> Tensor:
    """Return the value loss of each frame, (F,) float; `norm` has normalised all but `values`."""
    if ppo.value_bins is not None:
        logits, expected = values.get("value_logits"), (len(returns), ppo.value_bins.num_bins)
        if logits is None or logits.shape != expected:
            got = "none" if logits is None else f"shape {tuple(logits.shape)}"
            raise AgentError(
                f"values['value_logits']: expected shape {expected} for ppo.value_bins, got {got}"
            )
        return cross_entropy(logits, bin_targets(returns, ppo.value_bins))
    clip_coef = ppo.clip_coef if ppo.vf_clip_coef is None else ppo.vf_clip_coef
    return value_loss(
        norm.normalized(values["value"].flatten()),
        returns,
        old_values,
        clip_coef if ppo.clip_vloss else None,
        ppo.huber_delta if ppo.value_loss == "huber" else None,
    )
