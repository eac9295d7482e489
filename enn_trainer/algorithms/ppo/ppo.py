"""Proximal policy optimisation.

Source: Schulman et al. 2017, arXiv:1707.06347.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.algorithms import optimizers
from enn_trainer.algorithms.algorithm import (
    AuxiliaryLoss,
    Clock,
    RewardTransform,
    RolloutAlgorithm,
    RunState,
)
from enn_trainer.algorithms.cloning.cloning_loss import CloningLoss
from enn_trainer.algorithms.minibatches import (
    FlatGradients,
    are_worth_threads,
    compute_gradients,
    minibatches,
    sequence_microbatches,
    sequence_minibatches,
    split_minibatch,
)
from enn_trainer.algorithms.ppo import losses
from enn_trainer.algorithms.ppo.entropy_targets import initial_tunings, tune, tuned_scalars
from enn_trainer.algorithms.ppo.magnet import Magnet
from enn_trainer.algorithms.ppo.returns import Estimate, advantages
from enn_trainer.algorithms.ppo.reward_scaling import RewardScaling
from enn_trainer.base.group import Group, tree_sum
from enn_trainer.base.state_part import (
    SpaceChange,
    StateDict,
    StatePart,
    check_tensor,
    with_prefix,
    without_prefix,
)
from enn_trainer.config import TrainConfig
from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.frame_limits import rows_of_frames
from enn_trainer.runtime.execution import (
    DEFAULT_CONTEXT,
    SINGLE_THREAD,
    ExecutionContext,
    cost_of_entity,
)
from entity_env.arrays import IntArray
from entity_env.seeding import derive_seed, mix
from entity_env.spaces import ActionSpace

FIRST_FRAMES = "first frames"
"""Key in `State.memory` while the input statistics are of the first frames only."""
TUNINGS = "ent_tunings"
SCALING = "reward_scaling"
MAGNET = "magnet"


class PPO(RolloutAlgorithm):
    """Proximal policy optimisation (PPO) of an agent.

    Args:
        config: configuration of the run.
        agent: the network; its parameters are modified.
        action_space: action space of the environment.

    Attributes:
        optimizer: optimizer of the agent, without a separate value network.
        vf_optimizer: optimizer of the separate value network, with a separate gradient norm; None
            without one.
        ent_tunings: for each action with an entropy target (2,) float32, the state of its entropy
            coefficient, see `tune`.
        auxiliary_losses: losses that are added to each optimizer step, by name.
        reward_transforms: functions of the rewards, by name, applied in this order.

    Raises:
        ConfigError: a group of `optim` matches no parameter, or a target names an unknown action.
    """

    def __init__(
        self, config: TrainConfig, agent: Any, action_space: Mapping[str, ActionSpace]
    ) -> None:
        self.config = config
        self.agent = agent
        self.optimizer, self.vf_optimizer = optimizers.make_optimizers(agent, config.optim)
        self.ent_tunings = initial_tunings(
            config.ppo.ent_targets, config.ppo.ent_coef, action_space
        )
        self.auxiliary_losses: dict[str, AuxiliaryLoss] = {}
        self.reward_transforms: dict[str, RewardTransform] = {}
        if config.bc is not None:
            self.auxiliary_losses["bc"] = CloningLoss(config, agent)
        if config.ppo.magnet is not None:
            self.auxiliary_losses[MAGNET] = Magnet(config, agent)
        if config.ppo.reward_scaling:
            self.reward_transforms[SCALING] = RewardScaling.fresh(config.rollout.num_envs)
        self._memory: dict[str, Any] = {}
        self._frames_per_step = config.rollout.num_envs
        self._parameters = dict(agent.named_parameters())

    def prepare(self, config: TrainConfig, state: RunState, device: torch.device) -> None:
        """Prepare for a run; auxiliary losses may read files.

        Raises:
            ConfigError: a setting of an auxiliary loss cannot be used.
        """
        self.config, self._memory = config, state.memory
        self._frames_per_step = state.frames_per_step(config)
        for loss in self.auxiliary_losses.values():
            loss.prepare(config, state, device)
        self.notes = [line for loss in self.auxiliary_losses.values() for line in loss.notes]

    def begin_episodes(self, num_envs: int) -> None:
        """Notify losses and reward transforms that all environments begin new episodes."""
        for plug_in in self._plug_ins().values():
            plug_in.begin_episodes(num_envs)

    def join(self, group: Group) -> None:
        """Gather the states of losses and reward transforms from all ranks."""
        for plug_in in self._plug_ins().values():
            plug_in.join(group)

    def begin_update(self, clock: Clock) -> None:
        """Set the learning rates, weight decay and frozen parameters of an update."""
        lr = self._rates(clock).lr
        weight_decay = float(self.config.optim.weight_decay)
        for optimizer in self.optimizers():
            optimizers.begin_update(optimizer, lr, weight_decay, clock.step)

    def update(self, data: Rollout, clock: Clock, context: ExecutionContext) -> dict[str, float]:
        """Compute returns, update the input statistics, and take optimizer steps."""
        # Returns and advantages of transformed rewards.
        rollout, config, span = data, self.config, context.spans.span
        rates = self._rates(clock)
        with span("returns"):
            rewards = rollout.rewards
            for transform in self.reward_transforms.values():
                rewards = transform.transform(rewards, rollout, config.ppo.gamma)
                if rewards.shape != rollout.rewards.shape:
                    raise ValueError(
                        f"{type(transform).__name__}.transform: expected rewards of shape "
                        f"{list(rollout.rewards.shape)}, got {list(rewards.shape)}"
                    )
            estimate = advantages(rollout, config.ppo, rewards)
            optimizers.value_norm(self.agent).add(rollout.of_played(estimate.returns))

        # Input statistics are updated after the optimisation, except in the first update: until
        # then they are of the first frames only, in which features that depend on time are equal.
        has_first_frames = self._memory.get(FIRST_FRAMES, False)
        if has_first_frames:
            with span("stats"):
                context.exchange.input_stats(self.agent, rollout.frames_of_shards())
        with span("optimize"):
            seed = derive_seed(config.seed, "minibatches", clock.step)
            auxiliary = {n: x for n, x in self.auxiliary_losses.items() if x.begin_update(clock)}
            metrics = self.optimize(rollout, estimate, rates.ent_coef, seed, auxiliary, context)
        if not has_first_frames:
            with span("stats"):
                context.exchange.input_stats(self.agent, rollout.frames_of_shards())
        metrics |= {"charts/learning_rate": rates.lr, "charts/entropy_coef": rates.ent_coef}
        for transform in self.reward_transforms.values():
            metrics |= transform.metrics()
        self._memory.pop(FIRST_FRAMES, None)  # last, as it is not restored after an error
        return metrics

    def optimize(
        self,
        rollout: Rollout,
        estimate: Estimate,
        ent_coef: float,
        seed: int,
        auxiliary: Mapping[str, AuxiliaryLoss] | None = None,
        context: ExecutionContext = DEFAULT_CONTEXT,
    ) -> dict[str, float]:
        """Train for `update_epochs` epochs of minibatches, with one optimizer step each.

        Advantages are normalised over the frames of a minibatch with decisions. Losses are means
        over the whole minibatch, and do not depend on the microbatches. The update ends early after
        a minibatch with a KL above `ppo.target_kl`.

        Args:
            rollout: T * B frames.
            estimate: returns and advantages, (T, B).
            ent_coef: coefficient of the entropy bonus.
            seed: seed of this update, from which the order of the frames is derived.
            auxiliary: auxiliary losses of this update, by name.
            context: threads, interrupt check, timers, and the callback of optimizer steps.

        Returns:
            The losses by tag.

        Raises:
            AgentError: the network lacks an output that `ppo.value_loss` needs.
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite. On the CPU the
                agent is as before that minibatch; on other devices it is detected at the end of the
                update.
        """
        # Prepare.
        agent, ppo, optim = self.agent, self.config.ppo, self.config.optim
        agent.train()
        value_norm = optimizers.value_norm(agent)
        device, num_actions = estimate.returns.device, len(rollout.actions)
        zero = partial(losses.LossStats.zero, device, num_actions, len(self.ent_tunings))
        total, auxiliary = zero(), auxiliary or {}
        shards = rollout.shards
        decisions, targets = (
            rollout.num_decisions(),
            losses.targets_of(rollout, estimate, value_norm),
        )
        gradients = FlatGradients(agent.parameters(), len(shards.local))
        is_checked = _is_synchronous(device)
        exchange = context.exchange
        loss_context = replace(context, check=exchange.check_in_minibatch(context.check))
        loss_of = partial(
            losses.loss_of_piece, agent, ppo, ent_coef, self.ent_tunings, auxiliary, loss_context
        )
        cost_of_frame = _cost_of_frame(agent, rollout)
        for frames, by_shard in self._minibatches(rollout, seed):
            step = total.counts["steps"]
            keys = mix(derive_seed(seed, "dropout"), step, frames).view(np.int64)
            minibatch = losses.Minibatch.of(
                rollout, targets, decisions, frames, keys, ppo, value_norm
            )

            # Gradient, summed over the microbatches of each shard, and of auxiliary losses.
            gradients.clear()
            shard_stats = [zero() for _ in shards.local]
            owner = iter([shard for shard, group in enumerate(by_shard) for _ in group])
            take = partial(_add_result, gradients, shard_stats, owner)
            with context.spans.span("gradient"):
                microbatches = [part for group in by_shard for part in group]
                tasks = [partial(loss_of, minibatch, part) for part in microbatches]
                cost = sum(map(len, microbatches)) * cost_of_frame
                threads = context.threads if are_worth_threads(cost) else SINGLE_THREAD
                compute_gradients(gradients.trainable, tasks, take, threads, context.spans)
                sums = exchange.gradient(gradients, shard_stats, context.check)
                stats = tree_sum(sums, losses.LossStats.plus)
            stats.auxiliary = _add_auxiliary_gradients(auxiliary, step, loss_context)

            # Optimizer step.
            with context.spans.span("step"):
                clip = optim.max_grad_norm
                norms = [optimizers.clipped_step(x, clip, is_checked) for x in self.optimizers()]
                stats.norms = losses.norms_of_step(norms, clip)
            stats.counts["steps"] = 1
            if is_checked:
                optimizers.check_finite(agent, stats.losses(), f"minibatch {step + 1}")

            # Entropy coefficients, statistics, and early stopping by KL.
            tune(self.ent_tunings, stats.tuned_entropy, ppo.ent_targets, ppo.ent_target_lr)
            total.add(stats)
            context.on_optimizer_step(stats)
            if _exceeds_kl(stats, ppo.target_kl):
                break

        # Checks and metrics of the whole update.
        if not is_checked:
            optimizers.check_finite(agent, total.losses(), "the update")
        optimizers.check_finite_weights(agent)
        agent.eval()
        return {
            **total.means(),
            **total.kl_scalars(rollout.actions),
            **tuned_scalars(self.ent_tunings, total.tuned_entropy),
            **_outside_bins(value_norm.normalized(rollout.of_played(estimate.returns)), ppo),
            **total.auxiliary_means(),
            "losses/returns": rollout.of_played(estimate.returns).mean().item(),
            "losses/explained_variance": losses.explained_variance(
                rollout.of_played(rollout.values), rollout.of_played(estimate.returns)
            ).item(),
        }

    def _minibatches(
        self, rollout: Rollout, seed: int
    ) -> Iterator[tuple[IntArray, Sequence[Sequence[IntArray]]]]:
        """Yield the frames of each minibatch, and the microbatches of each shard.

        Microbatches are positions in the minibatch. With memory, minibatches have whole sequences.
        Frames between two episodes are skipped.
        """
        optim, entities = self.config.optim, rollout.batch.entities_of_frames()
        steps, shards = len(rollout.rewards), rollout.shards
        size, epochs, cost = optim.bs, optim.update_epochs, cost_of_entity(self.agent)
        if rollout.batch.past is None:
            played = rollout.played_frames()
            for chosen in minibatches(len(played), size, epochs, seed, optim.shuffle):
                frames = played[chosen]
                rows, cut = shards.rows(frames), list[list[IntArray]]()
                for positions in shards.positions(frames):
                    parts = split_minibatch(
                        entities[rows[positions]], optim.micro_bs, optim.max_entities, cost
                    )
                    cut.append([positions[part] for part in parts])
                yield frames, cut
            return
        sequences = rollout.sequences(self.config.ppo.seq_len or steps)
        pairs = rows_of_frames(self.agent, rollout.batch) ** 2
        for batch in sequence_minibatches(sequences, size, epochs, seed, optim.shuffle):
            frames, lengths = np.concatenate(batch), np.array([len(frames) for frames in batch])
            rows, cut = shards.rows(frames), []
            for positions in shards.positions(frames):
                parts = sequence_microbatches(
                    lengths[np.isin(np.cumsum(lengths) - 1, positions)],
                    entities[rows[positions]],
                    pairs[rows[positions]],
                    optim.micro_bs,
                    optim.max_entities,
                    cost,
                )
                cut.append([positions[part] for part in parts])
            yield frames, cut

    def _rates(self, clock: Clock) -> optimizers.Rates:
        """Return the learning rate and entropy coefficient of an update."""
        return optimizers.rates_at(self.config, clock.step, clock.seconds, self._frames_per_step)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizer of the policy, and of a separate value network if there is one."""
        candidates = [self.optimizer, self.vf_optimizer]
        return [optimizer for optimizer in candidates if optimizer is not None]

    def state_dict(self) -> StateDict:
        """Return optimizer moments, and the states of entropy coefficients and plug-ins."""
        state = {
            **optimizers.moments_of(self.optimizers(), self._parameters),
            **with_prefix(TUNINGS, self.ent_tunings),
        }
        for name, plug_in in self._plug_ins().items():
            state |= with_prefix(name, plug_in.state_dict())
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Restore a state; learning rates stay as configured.

        The state of a disabled option is dropped; a new option starts with its initial state.

        Raises:
            ValueError: an entry belongs to no parameter or plug-in, or has an invalid shape.
        """
        # Entries by owner.
        plug_ins, moments = self._plug_ins(), {}
        known_prefixes = {TUNINGS, SCALING, MAGNET, *plug_ins}
        for key, value in state.items():
            parameter = key.rpartition("/")[0]
            if parameter in self._parameters:
                moments[key] = value
            elif key.partition("/")[0] not in known_prefixes:
                raise ValueError(
                    f"has {key}, but the network has no {parameter}, and the run no loss or reward "
                    "transform of that name; give StateManager, or evolve, the initial_state that "
                    "makes it"
                )

        # Restore.
        optimizers.load_moments(self.optimizers(), self._parameters, moments)
        saved = without_prefix(TUNINGS, state)
        for name, tuning in self.ent_tunings.items():
            saved_tuning = saved.get(name, tuning)
            check_tensor(f"{TUNINGS}/{name}", saved_tuning, tuning.dtype, (2,))
            self.ent_tunings[name] = saved_tuning
        for name, plug_in in plug_ins.items():
            try:
                plug_in.load_state_dict(without_prefix(name, state))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state for other spaces, matched by names of parameters and actions."""
        tunings = without_prefix(TUNINGS, state)
        evolved = {
            **change.moments(state),
            **with_prefix(TUNINGS, {change.action(n): tuning for n, tuning in tunings.items()}),
        }
        for name, plug_in in self._plug_ins().items():
            evolved |= with_prefix(name, plug_in.evolve(without_prefix(name, state), change))
        return evolved

    def _plug_ins(self) -> dict[str, StatePart]:
        """Return auxiliary losses and reward transforms by name.

        Raises:
            ValueError: a name makes entries of the state ambiguous.
        """
        used_names = {TUNINGS, *(parameter.partition("/")[0] for parameter in self._parameters)}
        for names in (self.auxiliary_losses, self.reward_transforms):
            for name in names:
                if "/" in name or name in used_names:
                    raise ValueError(
                        "auxiliary_losses, reward_transforms: expected unique names without '/' "
                        f"that no parameter has, got {name!r}"
                    )
            used_names.update(names)
        for name in {
            "policy",
            "value",
            *losses.LOSSES,
            *losses.NORM_METRICS,
        } & self.auxiliary_losses.keys():
            raise ValueError(
                f"auxiliary_losses: {name}: losses/{name} or losses/{name}_loss is a metric "
                "already; expected another name"
            )
        return {**self.auxiliary_losses, **self.reward_transforms}


def _cost_of_frame(agent: Any, rollout: Rollout) -> float:
    """Return the mean cost of a frame, in entities times `cost_of_entity`."""
    batch = rollout.batch
    return (cost_of_entity(agent) or 0) * (1 + batch.num_entities() / max(1, batch.num_frames))


def _add_result(
    gradients: FlatGradients,
    shard_stats: Sequence[losses.LossStats],
    owner: Iterator[int],
    tensors: Sequence[Tensor | None],
    stats: losses.LossStats,
) -> None:
    """Add the gradients and statistics of a microbatch to the next shard of `owner`."""
    shard = next(owner)
    gradients.add(shard, tensors)
    shard_stats[shard].add(stats)


def _is_synchronous(device: torch.device) -> bool:
    """Return True if operations on a device are synchronous, so that reading results is free."""
    return device.type == "cpu"


def _add_auxiliary_gradients(
    auxiliary: Mapping[str, AuxiliaryLoss], step: int, context: ExecutionContext
) -> dict[str, Tensor]:
    """Add the gradients of auxiliary losses on separate data, and return these losses."""
    added = {name: loss.add_gradient(step, context) for name, loss in auxiliary.items()}
    return {name: loss.detach() for name, loss in added.items() if loss is not None}


def _exceeds_kl(stats: losses.LossStats, target_kl: float | None) -> bool:
    """Return True if the KL exceeds its target; without a target the device is not read."""
    return target_kl is not None and stats.means()["losses/approx_kl"] > target_kl


def _outside_bins(returns: Tensor, ppo: PPOConfig) -> dict[str, float]:
    """Return the share of returns outside the range of the value bins, as a metric."""
    bins = ppo.value_bins
    if bins is None or not len(returns):
        return {}
    beyond = (returns < bins.low) | (returns > bins.high)
    return {"losses/returns_beyond_bins": beyond.float().mean().item()}
