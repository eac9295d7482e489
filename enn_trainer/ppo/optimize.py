"""Learning from a rollout: epochs of minibatches, each one step of the optimizer."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from enn_trainer.agent import PPOAgent
from enn_trainer.config.ppo_config import OptimizerConfig, PPOConfig
from enn_trainer.lanes import cost_of_entity
from enn_trainer.ppo import losses
from enn_trainer.ppo.entropy_targets import tune, tuned_scalars
from enn_trainer.ppo.gradients import add_gradients
from enn_trainer.ppo.loss_stats import LossStats
from enn_trainer.ppo.minibatch_loss import Minibatch, loss_of_piece
from enn_trainer.ppo.minibatches import Frames, minibatches, pieces
from enn_trainer.ppo.not_finite import check_finite, check_finite_weights
from enn_trainer.ppo.optimizers import clipped_step
from enn_trainer.ppo.returns import Estimate
from enn_trainer.ppo.rollout import Rollout
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from entity_env.seeding import derive_seed, mix


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
    add_bc_gradient: Callable[[int], Tensor] | None = None,
    context: ExecutionContext = DEFAULT_CONTEXT,
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
        add_bc_gradient: adds what is to be learnt from recordings to the gradient of an optimizer
            step, counted from 0, and returns its loss; None for nothing.
        context: threads, interrupt check, timers, and who is notified of optimizer steps.

    Returns:
        The losses by their published names.

    Raises:
        AgentError: the network does not tell what `ppo.value_loss` needs.
        NotFiniteError: a loss, a gradient, or a parameter afterwards. On the CPU the agent is left
            as it was before that minibatch; elsewhere it is found when the update is over.
    """
    assert isinstance(agent, nn.Module)
    ent_tunings = {} if ent_tunings is None else ent_tunings
    agent.train()
    device, num_actions = estimate.returns.device, len(rollout.actions)
    total = LossStats.zero(device, num_actions, len(ent_tunings))
    entities = rollout.batch.entities_of_frames()
    cost = cost_of_entity(agent)
    parameters = [*agent.parameters()]
    is_checked = _answers_at_once(device)
    for frames in minibatches(
        rollout.num_frames, optim.bs, optim.update_epochs, seed, optim.shuffle
    ):
        keys = mix(derive_seed(seed, "dropout"), total.optimizer_steps, frames).view(np.int64)
        minibatch = Minibatch.of(rollout, estimate, frames, keys, ppo)

        def loss_of(piece: Frames, minibatch: Minibatch = minibatch) -> tuple[Tensor, LossStats]:
            context.check()
            return loss_of_piece(
                agent, rollout, minibatch, piece, ppo, ent_coef, ent_tunings, context.spans
            )

        for parameter in parameters:
            parameter.grad = None
        done = LossStats.zero(device, num_actions, len(ent_tunings))
        cut = pieces(entities[frames], optim.micro_bs, optim.max_entities, cost)
        to_add = [partial(loss_of, piece) for piece in cut]
        with context.spans.span("gradient"):
            add_gradients(parameters, to_add, done.add, context.lanes, context.spans)
        if add_bc_gradient is not None:
            done.bc_loss = add_bc_gradient(total.optimizer_steps)
        with context.spans.span("step"):
            done.grad_norm = clipped_step(optimizer, optim.max_grad_norm, is_checked)
            if vf_optimizer is not None:
                done.vf_grad_norm = clipped_step(vf_optimizer, optim.max_grad_norm, is_checked)
        done.optimizer_steps = 1
        if is_checked:
            check_finite(agent, done.losses(), f"minibatch {total.optimizer_steps + 1}")
        tune(ent_tunings, done.tuned_entropy, ppo.ent_targets, ppo.ent_target_lr)
        total.add(done)
        context.on_optimizer_step(done)
        if ppo.target_kl is not None and done.means()["losses/approx_kl"] > ppo.target_kl:
            break
    if not is_checked:
        check_finite(agent, total.losses(), "the update")
    check_finite_weights(agent)
    agent.eval()
    return {
        **total.means(),
        **total.kl_scalars(rollout.actions),
        **tuned_scalars(ent_tunings, total.tuned_entropy),
        **_beyond_bins(estimate.returns, ppo),
        **(
            {}
            if add_bc_gradient is None
            else {"losses/bc_loss": float(total.bc_loss) / max(1, total.optimizer_steps)}
        ),
        "losses/explained_variance": losses.explained_variance(
            rollout.values.flatten(), estimate.returns.flatten()
        ).item(),
    }


def _answers_at_once(device: torch.device) -> bool:
    """Whether numbers can be asked for without waiting until a queue of work is done."""
    return device.type == "cpu"


def _beyond_bins(returns: Tensor, ppo: PPOConfig) -> dict[str, float]:
    """How much of what the value function should tell it has no bins for."""
    bins = ppo.value_bins
    if bins is None:
        return {}
    beyond = (returns < bins.low) | (returns > bins.high)
    return {"losses/returns_beyond_bins": beyond.float().mean().item()}
