"""PPO optimisation of a rollout: epochs of minibatches, each one optimizer step."""

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
        optimizer: optimizer of these parameters with the learning rate set; without those of the
            value network where that is separate.
        rollout: T * B frames.
        estimate: returns and advantages, (T, B).
        ppo: settings of the loss.
        optim: sizes of minibatches and microbatches, epochs, gradient clipping.
        ent_coef: coefficient of the entropy bonus.
        seed: seed of this update; the order of the frames is a function of it.
        ent_tunings: for each action of `ppo.ent_targets` the state of its entropy coefficient, see
            `tune`; updated in place.
        vf_optimizer: optimizer of a separate value network, whose gradient is clipped on its own.
        add_bc_gradient: adds the gradient of behavioural cloning to that of an optimizer step,
            counted from 0, and returns its loss; None without cloning.
        context: threads, interrupt check, timers, and the function notified of optimizer steps.

    Returns:
        The losses by their published names.

    Raises:
        AgentError: the network lacks an output that `ppo.value_loss` needs.
        NotFiniteError: a loss, a gradient or a parameter is NaN or infinite. On the CPU the agent
            is as before that minibatch; on other devices it is detected at the end of the update.
    """
    # Prepare.
    assert isinstance(agent, nn.Module)
    ent_tunings = {} if ent_tunings is None else ent_tunings
    agent.train()
    device, num_actions = estimate.returns.device, len(rollout.actions)
    total = LossStats.zero(device, num_actions, len(ent_tunings))
    entities = rollout.batch.entities_of_frames()
    cost = cost_of_entity(agent)
    parameters = [*agent.parameters()]
    is_checked = _is_synchronous(device)
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

        # Gradient, as a sum over pieces.
        for parameter in parameters:
            parameter.grad = None
        done = LossStats.zero(device, num_actions, len(ent_tunings))
        cut = pieces(entities[frames], optim.micro_bs, optim.max_entities, cost)
        to_add = [partial(loss_of, piece) for piece in cut]
        with context.spans.span("gradient"):
            add_gradients(parameters, to_add, done.add, context.lanes, context.spans)
        if add_bc_gradient is not None:
            done.bc_loss = add_bc_gradient(total.optimizer_steps)

        # Optimizer step.
        with context.spans.span("step"):
            done.grad_norm = clipped_step(optimizer, optim.max_grad_norm, is_checked)
            if vf_optimizer is not None:
                done.vf_grad_norm = clipped_step(vf_optimizer, optim.max_grad_norm, is_checked)
        done.optimizer_steps = 1
        if is_checked:
            check_finite(agent, done.losses(), f"minibatch {total.optimizer_steps + 1}")

        # Entropy coefficients, statistics, and early stopping by KL.
        tune(ent_tunings, done.tuned_entropy, ppo.ent_targets, ppo.ent_target_lr)
        total.add(done)
        context.on_optimizer_step(done)
        if ppo.target_kl is not None and done.means()["losses/approx_kl"] > ppo.target_kl:
            break

    # Checks and metrics of the whole update.
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


def _is_synchronous(device: torch.device) -> bool:
    """Return True if reading a number from a device does not wait for a queue of operations."""
    return device.type == "cpu"


def _beyond_bins(returns: Tensor, ppo: PPOConfig) -> dict[str, float]:
    """Return the share of returns outside the range of the value bins, as a metric."""
    bins = ppo.value_bins
    if bins is None:
        return {}
    beyond = (returns < bins.low) | (returns > bins.high)
    return {"losses/returns_beyond_bins": beyond.float().mean().item()}
