"""Learning from a rollout: epochs of minibatches, each one step of the optimizer."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.errors import AgentError
from enn_trainer.optimizer_config import OptimizerConfig
from enn_trainer.ppo import losses
from enn_trainer.ppo.entropy_targets import coef_of_actor, normalised_entropy, tune, tuned_scalars
from enn_trainer.ppo.not_finite import refuse_not_finite, refuse_not_finite_weights
from enn_trainer.ppo.optimizers import clipped_step
from enn_trainer.ppo.returns import Estimate
from enn_trainer.ppo.rollout import Rollout
from enn_trainer.ppo_config import PPOConfig
from enn_trainer.tracking.spans import OFF, Spans
from entity_env.seeding import derive_seed, mix
from entity_env.spaces import GLOBAL
from rogue_net.rogue_net import NetOutput
from rogue_net.value_bins import bin_targets


@dataclass
class Sums:
    """Sums over what an update has covered, kept on the device until it ends.

    Attributes:
        policy_loss, entropy: over terms, which are actors, or frames that have actors.
        approx_kl, clipped: over actors.
        value_loss: over frames.
        grad_norm: over optimizer steps, before clipping.
        tuned_entropy: (actions with a target, 2), `normalised_entropy` of each.
        kl_of_actions: (actions,), approx_kl of the actors of each.
        actors_of_actions: (actions,) int64 on the host, how many.
        terms, actors, frames, optimizer_steps: how many of each.
        vf_grad_norm: as grad_norm, of a value network apart from the policy.
        bc_loss: over optimizer steps.
    """

    policy_loss: Tensor
    entropy: Tensor
    approx_kl: Tensor
    clipped: Tensor
    value_loss: Tensor
    grad_norm: Tensor
    tuned_entropy: Tensor
    kl_of_actions: Tensor
    actors_of_actions: npt.NDArray[np.int64]
    terms: int = 0
    actors: int = 0
    frames: int = 0
    optimizer_steps: int = 0
    vf_grad_norm: Tensor | float = 0.0
    bc_loss: Tensor | float = 0.0

    @staticmethod
    def zero(device: torch.device, num_actions: int, num_tuned: int = 0) -> "Sums":
        """Nothing covered yet."""
        zero = torch.zeros((), device=device)
        return Sums(
            *(zero, zero, zero, zero, zero, zero),
            tuned_entropy=torch.zeros(num_tuned, 2, device=device),
            kl_of_actions=torch.zeros(num_actions, device=device),
            actors_of_actions=np.zeros(num_actions, dtype=np.int64),
        )

    def __iadd__(self, other: "Sums") -> "Sums":
        for f in fields(self):
            setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        return self

    def losses(self) -> dict[str, Tensor]:
        """What must be finite, by name."""
        zero = torch.zeros_like(self.policy_loss)
        return {
            "the policy loss": self.policy_loss,
            "the entropy": self.entropy,
            "the value loss": self.value_loss,
            "the loss of recorded frames": zero + self.bc_loss,
            "the norm of the gradient": self.grad_norm,
            "the norm of the value network's gradient": zero + self.vf_grad_norm,
        }

    def means(self) -> dict[str, float]:
        """The published names of the losses, each a mean over what it covers."""
        terms, actors, frames = max(1, self.terms), max(1, self.actors), max(1, self.frames)
        steps = max(1, self.optimizer_steps)
        return {
            "losses/policy_loss": self.policy_loss.item() / terms,
            "losses/entropy": self.entropy.item() / terms,
            "losses/approx_kl": self.approx_kl.item() / actors,
            "losses/clipfrac": self.clipped.item() / actors,
            "losses/value_loss": self.value_loss.item() / frames,
            "losses/gradnorm": self.grad_norm.item() / steps,
            "losses/vf_gradnorm": float(self.vf_grad_norm) / steps,
        }

    def kl_scalars(self, actions: Iterable[str]) -> dict[str, float]:
        """`policy/<action>/kl` of each action that had actors, in the order of the sums."""
        sums = self.kl_of_actions.tolist()
        return {
            f"policy/{name}/kl": kl / actors
            for name, kl, actors in zip(actions, sums, self.actors_of_actions.tolist(), strict=True)
            if actors
        }


def optimize(
    agent: PPOAgent,
    optimizer: torch.optim.Optimizer,
    rollout: Rollout,
    estimate: Estimate,
    *,
    ppo: PPOConfig,
    optim: OptimizerConfig,
    ent_coef: float,
    seed: int,
    ent_tunings: dict[str, Tensor] | None = None,
    vf_optimizer: torch.optim.Optimizer | None = None,
    check: Callable[[], None] = lambda: None,
    after_minibatch: Callable[[Sums], None] = lambda done: None,
    add_bc_gradient: Callable[[int], Tensor] | None = None,
    spans: Spans = OFF,
) -> dict[str, float]:
    """Improve the agent on a rollout.

    Advantages are normalised over the frames of a minibatch, which is one optimizer step. The
    losses of actors and of frames are means over the whole minibatch, however it is cut into
    microbatches. The update ends early after a minibatch whose KL exceeds `ppo.target_kl`.

    Args:
        agent: the network; its parameters are changed.
        optimizer: of these parameters, with the learning rate set; of the policy's alone where
            the value network is apart.
        rollout: T * B frames.
        estimate: returns and advantages, (T, B).
        ppo: the loss.
        optim: the sizes of minibatches and microbatches, epochs, gradient clipping.
        ent_coef: weight of the entropy.
        seed: of this update; the order of the frames is a function of it.
        ent_tunings: for each action of `ppo.ent_targets` what its own weight of the entropy is made
            of, see `tune`; they are tuned.
        vf_optimizer: of the value network, where it is apart. Its gradient is clipped for itself.
        check: called before each forward pass; what it raises ends the update.
        after_minibatch: called after each optimizer step, with what it covered.
        add_bc_gradient: adds what is to be learnt from recordings to the gradient of an optimizer
            step, counted from 0, and returns its loss; None for nothing.
        spans: measures the parts.

    Returns:
        The losses by their published names.

    Raises:
        AgentError: the network does not tell what `ppo.value_loss` needs.
        NotFiniteError: a loss, a gradient, or a parameter afterwards; the agent is left as it is.
    """
    assert isinstance(agent, nn.Module)
    ent_tunings = {} if ent_tunings is None else ent_tunings
    agent.train()
    returns, advantages = estimate.returns.flatten(), estimate.advantages.flatten()
    num_actions = len(rollout.actions)
    total = Sums.zero(returns.device, num_actions, len(ent_tunings))
    entities = _entities_of_each_frame(rollout)
    for frames in minibatches(
        rollout.num_frames, optim.bs, optim.update_epochs, seed, optim.shuffle
    ):
        index = torch.from_numpy(frames).to(returns.device)
        minibatch = _Minibatch(
            frames=frames,
            num_terms=_num_terms(rollout, frames, ppo.weight_by),
            advantages=losses.normalize(advantages[index]) if ppo.norm_adv else advantages[index],
            returns=returns[index],
            old_values=rollout.values.flatten()[index],
            keys=mix(derive_seed(seed, "dropout"), total.optimizer_steps, frames).view(np.int64),
        )
        agent.zero_grad(set_to_none=True)
        done = Sums.zero(returns.device, num_actions, len(ent_tunings))
        for piece in microbatches(entities[frames], optim.micro_bs, optim.max_entities):
            check()
            done += _backward(agent, rollout, minibatch, piece, ppo, ent_coef, ent_tunings, spans)
        if add_bc_gradient is not None:
            done.bc_loss = add_bc_gradient(total.optimizer_steps)
        with spans.span("step"):
            done.grad_norm = clipped_step(optimizer, optim.max_grad_norm)
            if vf_optimizer is not None:
                done.vf_grad_norm = clipped_step(vf_optimizer, optim.max_grad_norm)
        done.optimizer_steps = 1
        refuse_not_finite(agent, done.losses(), f"minibatch {total.optimizer_steps + 1}")
        tune(ent_tunings, done.tuned_entropy, ppo.ent_targets, ppo.ent_target_lr)
        total += done
        after_minibatch(done)
        if ppo.target_kl is not None and done.means()["losses/approx_kl"] > ppo.target_kl:
            break
    refuse_not_finite_weights(agent)
    agent.eval()
    return {
        **total.means(),
        **total.kl_scalars(rollout.actions),
        **tuned_scalars(ent_tunings, total.tuned_entropy),
        **_beyond_bins(returns, ppo),
        **(
            {}
            if add_bc_gradient is None
            else {"losses/bc_loss": float(total.bc_loss) / max(1, total.optimizer_steps)}
        ),
        "losses/explained_variance": losses.explained_variance(
            rollout.values.flatten(), returns
        ).item(),
    }


def minibatches(
    num_frames: int, size: int, epochs: int, seed: int, shuffle: bool = True
) -> Iterator[npt.NDArray[np.int64]]:
    """The frames of each minibatch: every frame once per epoch.

    They come in an order that `seed` gives, or one after the other.
    """
    for epoch in range(epochs):
        order = np.arange(num_frames)
        if shuffle:
            order = np.random.default_rng(derive_seed(seed, epoch)).permutation(num_frames)
        for start in range(0, num_frames, size):
            yield order[start : start + size]


def microbatches(
    entities: npt.NDArray[np.int64], size: int | None, max_entities: int | None
) -> Iterator[slice]:
    """Cut a minibatch, in its order, into pieces of as many frames as the limits allow.

    It is the minibatch that has a number of frames, as the optimizer's step and the normalisation
    of advantages are over it: a budget of entities there would let a frame with many entities,
    among fewer others, weigh more. Pieces only add up.

    Args:
        entities: (F,) int64, how many each frame has.
        size: frames of a piece at most, None for no limit.
        max_entities: entities of a piece at most, None for no limit; a frame with more of them is a
            piece of its own.
    """
    ends = np.cumsum(entities)
    start, before = 0, 0
    while start < len(entities):
        stop = len(entities) if size is None else min(start + size, len(entities))
        if max_entities is not None:
            fitting = int(np.searchsorted(ends, before + max_entities, side="right"))
            stop = min(stop, max(fitting, start + 1))
        yield slice(start, stop)
        start, before = stop, int(ends[stop - 1])


def _entities_of_each_frame(rollout: Rollout) -> npt.NDArray[np.int64]:
    """(T * B,) int64; what is global is no entity."""
    lengths = [rows.lengths for name, rows in rollout.batch.features.items() if name != GLOBAL]
    return sum(lengths, start=np.zeros(rollout.num_frames, dtype=np.int64))


def _num_terms(
    rollout: Rollout, frames: npt.NDArray[np.int64], weight_by: Literal["actor", "frame"]
) -> int:
    """What the policy loss of these frames is a mean over."""
    actors = sum(a.lengths[frames] for a in rollout.actions.values())
    return int(np.sum(actors) if weight_by == "actor" else np.count_nonzero(actors))


@dataclass(frozen=True)
class _Minibatch:
    """The frames of one optimizer step, (F,) each, and how many terms their policy loss has.

    Attributes:
        keys: int64, what the dropout of each frame is a function of.
    """

    frames: npt.NDArray[np.int64]
    num_terms: int
    advantages: Tensor
    returns: Tensor
    old_values: Tensor
    keys: npt.NDArray[np.int64]


def _backward(
    agent: PPOAgent,
    rollout: Rollout,
    minibatch: _Minibatch,
    piece: slice,
    ppo: PPOConfig,
    ent_coef: float,
    ent_tunings: Mapping[str, Tensor],
    spans: Spans,
) -> Sums:
    """Add the gradient of some frames of a minibatch."""
    frames = minibatch.frames[piece]
    with spans.span("gather"):
        chosen = {name: rows.take(frames) for name, rows in rollout.actions.items()}
        batch = replace(rollout.batch.take(frames), keys=minibatch.keys[piece])
    with spans.span("forward"):
        out = agent(batch, actions={name: rows.values for name, rows in chosen.items()})
    old_logprobs = {name: rows.take(frames).values for name, rows in rollout.logprobs.items()}
    logratio, entropies = _of_all_actors(out, old_logprobs)
    frame_of_row = np.concatenate([rows.frame_of_row() for rows in chosen.values()])
    frame_of_actor = torch.from_numpy(frame_of_row).to(logratio.device)
    advantages = minibatch.advantages[piece][frame_of_actor]
    weights = torch.ones_like(logratio)
    if ppo.weight_by == "frame":
        weights = losses.equal_frames(frame_of_actor, len(frames)).to(logratio)
    judged = logratio
    if ppo.ratio == "frame":
        judged = losses.joint_logratio(logratio, frame_of_actor, len(frames))
    surrogate = losses.policy_loss(judged, advantages, ppo.clip_coef, ppo.dual_clip)
    policy_loss = (weights * surrogate).sum()
    entropy = (weights * entropies).sum()
    bonus = ent_coef * entropy
    if ent_tunings:
        num_actors = {name: len(rows.values) for name, rows in chosen.items()}
        coefs = coef_of_actor(ent_tunings, ent_coef, num_actors, like=entropies)
        bonus = (weights * coefs * entropies).sum()
    value_loss = value_loss_of(
        out.values, minibatch.returns[piece], minibatch.old_values[piece], ppo
    ).sum()
    loss = (policy_loss - bonus) / max(1, minibatch.num_terms)
    loss = loss + ppo.vf_coef * value_loss / len(minibatch.frames)
    with spans.span("backward"):
        loss.backward()  # type: ignore[no-untyped-call]
    logratio, judged = logratio.detach(), judged.detach()
    approx_kl = losses.approx_kl(logratio)
    actors_of_actions = [len(rows.values) for rows in chosen.values()]
    tuned_entropy = [
        normalised_entropy(out.log_probs[name].detach(), out.entropies[name].detach())
        for name in ent_tunings
    ]
    return Sums(
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


def _beyond_bins(returns: Tensor, ppo: PPOConfig) -> dict[str, float]:
    """How much of what the value function should tell it has no bins for."""
    bins = ppo.value_bins
    if bins is None:
        return {}
    beyond = (returns < bins.low) | (returns > bins.high)
    return {"losses/returns_beyond_bins": beyond.float().mean().item()}


def _of_all_actors(out: NetOutput, old_logprobs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log-ratios and entropies, (actors,) each, of all actions one after the other."""
    logratios = [out.logprobs[name] - old for name, old in old_logprobs.items()]
    return torch.cat(logratios), torch.cat([out.entropies[name] for name in old_logprobs])


def value_loss_of(
    values: Mapping[str, Tensor], returns: Tensor, old_values: Tensor, ppo: PPOConfig
) -> Tensor:
    """(F,) float, what is wrong with what a network says about the values of F frames."""
    if ppo.value_bins is not None:
        logits, expected = values.get("value_logits"), (len(returns), ppo.value_bins.num_bins)
        if logits is None or logits.shape != expected:
            got = "none" if logits is None else f"shape {tuple(logits.shape)}"
            raise AgentError(
                f"values['value_logits']: expected shape {expected}, as ppo.value_bins says, "
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
