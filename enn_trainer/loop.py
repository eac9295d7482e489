"""The training loop: rollout, returns, optimisation, again."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import hyperstate
import torch

from enn_trainer.agent import PPOAgent
from enn_trainer.annealing import Rates, num_updates, rates_at
from enn_trainer.capture import capture_of_rollouts, prepare_captures, recorded
from enn_trainer.checkpoint import make_run_dir
from enn_trainer.config import PPOConfig, TrainConfig
from enn_trainer.cuda_settings import cache_emptied_after_steps, choose_device, cudnn_deterministic
from enn_trainer.envs import EnvFactory, env_factory, global_randomness_kept
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.evaluate import evaluate
from enn_trainer.interrupt import Interrupts
from enn_trainer.opponents import CreateOpponent, space_differences
from enn_trainer.opponents import create_opponent as default_opponent
from enn_trainer.optimize import optimize
from enn_trainer.optimizers import begin_update
from enn_trainer.progress import Progress, ProgressLine
from enn_trainer.returns import Estimate, discounted_returns, gae, next_values
from enn_trainer.reward_scaling import RewardScaling, reward_scalars
from enn_trainer.rollout import Rollout, collect
from enn_trainer.schedules import follow_schedules, scheduled_fields
from enn_trainer.state import State, first_eval_step
from enn_trainer.state_manager import StateManager
from enn_trainer.threads import torch_threads
from enn_trainer.track import (
    Track,
    action_frequencies,
    flatten_config,
    metric_scalars,
    new_run_name,
)
from enn_trainer.unbuilt import check_supported
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.metrics import AddMetricsWrapper
from entity_env.seeding import derive_seed
from entity_env.vec_env import Metric, VecEnv
from rogue_net.ragged import EntityBatch


class TrainResult(float):
    """How a run ended: the mean return of the episodes of its last rollout that finished any.

    NaN when no episode ended.

    Attributes:
        step: frames of the run, over all restarts.
        checkpoint: the last save, or None.
        eval: scalars of the last evaluation by name, empty without one.
        interrupted: whether it was asked to stop.
    """

    step: int
    checkpoint: Path | None
    eval: Mapping[str, float]
    interrupted: bool


def train(
    state_manager: "hyperstate.StateManager[TrainConfig, State]",
    env: type[Environment] | type[Match] | EnvFactory,
    create_opponent: CreateOpponent | None = None,
    agent: PPOAgent | None = None,
) -> TrainResult:
    """Train an agent with PPO until `total_timesteps` or `max_train_time`.

    The first Ctrl-C or SIGTERM ends the run after the running update, saved; a second one at once.

    Args:
        state_manager: the configuration and state of the run. One of hyperstate's own is accepted
            and shows the trained configuration and state afterwards.
        env: an environment or match class; or a factory (EnvConfig, num_envs, processes,
            first_env_index) -> VecEnv, also one written for entity-gym.
        create_opponent: (path, obs_space, action_space, device) -> agent, for `eval.opponent`; by
            default a checkpoint or `random`.
        agent: a network of your own instead of `RogueNet`, see `PPOAgent`.

    Raises:
        ConfigError: the configuration cannot be used.
        CheckpointError: the checkpoint to resume from cannot be used.
        InvalidObservation: the environment broke its own spaces.
        WorkerError: a worker process failed.
    """
    manager = StateManager.adopt(state_manager)
    config = manager.config
    check_supported(config)
    device = choose_device(config.cuda)
    create_envs = env_factory(env)
    with ExitStack() as stack:
        widths = [net.d_model for net in (config.net, config.vf_net) if net is not None]
        stack.enter_context(torch_threads(max(widths)))
        stack.enter_context(cudnn_deterministic(config.torch_deterministic))
        stack.enter_context(global_randomness_kept())
        envs = _open_envs(create_envs, config, stack)
        state = _open_state(manager, envs, agent)
        state.to(device)
        if config.cuda_empty_cache and device.type == "cuda":
            stack.enter_context(cache_emptied_after_steps(state.optimizers()[-1]))
        manager.hand_back(state_manager)
        opponent = _open_opponent(config, create_opponent or default_opponent, state, device)
        is_recorded = prepare_captures(manager)
        run = _Run(config, state, manager, stack)
        envs = recorded(envs, capture_of_rollouts(config), state.run_name, stack)

        def evaluate_now() -> None:
            asked = run.interrupts.is_requested
            metrics = evaluate(config, create_envs, state, opponent, device, asked)
            run.end_eval(metrics)

        envs.seed(derive_seed(config.seed, "rollout", state.step))
        obs = envs.reset(state.obs_space)
        if state.reward_scaling is not None:
            state.reward_scaling.begin_episodes(config.rollout.num_envs)
        if state.step == 0 and manager.resumed_from is None:
            state.agent.update_input_stats(EntityBatch.of(obs, device))
            if is_recorded:
                manager.save("begin")  # so that there is always a save which the files belong to
        follow_schedules(config, state)  # so that a resumed run begins with what holds at its step
        while not run.is_over():
            if run.eval_is_due():
                evaluate_now()
                run.advance_eval_clock()
                continue
            rates = run.begin_update()
            rollout = collect(
                envs,
                state.agent,
                obs,
                state.obs_space,
                steps=config.rollout.steps,
                seed=derive_seed(config.seed, "act"),
                first_frame=state.step,
                device=device,
            )
            estimate = advantages(rollout, config.ppo, state.reward_scaling)
            losses = optimize(
                state.agent,
                state.optimizer,
                rollout,
                estimate,
                ppo=config.ppo,
                optim=config.optim,
                ent_coef=rates.ent_coef,
                seed=derive_seed(config.seed, "minibatches", state.step),
                ent_tunings=state.ent_tunings,
                vf_optimizer=state.vf_optimizer,
            )
            state.agent.update_input_stats(rollout.batch)
            obs = rollout.next_obs
            state.step += rollout.num_frames
            run.end_update(rollout, losses, rates)
            follow_schedules(config, state)
            manager.step()
        run.save()
        if config.eval is not None and not run.interrupts.requested:
            evaluate_now()
        return run.result()


def advantages(rollout: Rollout, ppo: PPOConfig, scaling: RewardScaling | None = None) -> Estimate:
    """Returns and advantages of a rollout, (T, B) each.

    Args:
        rollout: T steps of B environments.
        ppo: how to estimate.
        scaling: divides the rewards, after taking them in; None leaves them as they are.
    """
    following = next_values(
        rollout.values,
        rollout.last_values,
        rollout.terminated,
        rollout.truncated,
        rollout.final_values,
    )
    done = rollout.terminated | rollout.truncated
    rewards = rollout.rewards
    if scaling is not None:
        rewards = scaling.scaled(rewards, done, ppo.gamma)
    if ppo.gae:
        return gae(rewards, rollout.values, following, done, ppo.gamma, ppo.gae_lambda)
    return discounted_returns(rewards, rollout.values, following, done, ppo.gamma)


def _open_envs(create_envs: EnvFactory, config: TrainConfig, stack: ExitStack) -> VecEnv:
    envs = create_envs(config.env, config.rollout.num_envs, config.rollout.processes, 0)
    stack.callback(envs.close)
    return AddMetricsWrapper(envs)


def _open_state(manager: StateManager, envs: VecEnv, agent: PPOAgent | None) -> State:
    """The state of the run, if it is one of these environments."""
    if agent is not None and manager.config.vf_net is not None:
        raise ConfigError("vf_net: a network of your own has values of its own; leave it out")
    if not envs.action_space():
        raise ConfigError("env: expected a world with actions, its action space is empty")
    if not envs.obs_space().entities and not envs.has_global_entity():
        raise ConfigError("env: expected a world with entities or something global, got neither")
    if manager.checkpoint_dir is not None:
        make_run_dir(manager.checkpoint_dir)
    manager.set_deserialize_ctx("obs_space", envs.obs_space())
    manager.set_deserialize_ctx("action_space", envs.action_space())
    manager.set_deserialize_ctx("agent", agent)
    state = manager.state
    different = space_differences(
        state.obs_space, state.action_space, envs.obs_space(), envs.action_space()
    )
    if different:
        raise CheckpointError(f"the world is not the one of the checkpoint: {'; '.join(different)}")
    if manager.resumed_from is not None:
        state.restart += 1
    evaluation = manager.config.eval
    if evaluation is not None:  # perhaps switched on, or more often, since the run was saved
        if state.next_eval_step is None:
            state.next_eval_step = first_eval_step(evaluation, state.step)
        state.next_eval_step = min(state.next_eval_step, state.step + evaluation.interval)
    return state


def _open_opponent(
    config: TrainConfig, create: CreateOpponent, state: State, device: torch.device
) -> PPOAgent | None:
    """Whom to evaluate against; made before training, so that what is wrong shows at once."""
    if config.eval is None or config.eval.opponent is None:
        return None
    return create(config.eval.opponent, state.obs_space, state.action_space, device)


class _Run:
    """The clocks of a run and what it tells people: everything around the learning."""

    def __init__(
        self, config: TrainConfig, state: State, manager: StateManager, stack: ExitStack
    ) -> None:
        self.config = config
        self.state = state
        self.manager = manager
        self.total_steps = num_updates(config) * config.rollout.num_envs * config.rollout.steps
        self.time_before = state.time_used
        self.start = time.monotonic()
        self.update_start = self.start
        self.first_step = state.step
        self.mean_return = float("nan")
        self.saved: Path | None = None
        self.last_eval: dict[str, float] = {}
        runs = Path(config.data_dir) / "runs"
        if not state.run_name:
            trial = "" if config.trial is None else f"__{config.trial}"
            base = f"{config.env.id}__{config.name}__{config.seed}{trial}"
            state.run_name = new_run_name(runs, base)
        self.track = stack.enter_context(Track(runs / state.run_name, flatten_config(config)))
        self.progress = stack.enter_context(Progress(self.total_steps, state.step))
        self.interrupts = stack.enter_context(Interrupts())
        manager.say = self.progress.say
        state.agent.eval()
        if manager.resumed_from is not None:
            self.progress.say(f"resumed {manager.resumed_from.path} at step {state.step}")

    def is_over(self) -> bool:
        """Whether the run reached its end, its time limit, or was asked to stop."""
        limit = self.config.max_train_time
        if limit is not None and self.state.time_used >= limit:
            self.progress.say(f"max_train_time of {limit} seconds reached")
            return True
        return self.interrupts.requested or self.state.step >= self.total_steps

    def eval_is_due(self) -> bool:
        """Whether the evaluation clock has come round."""
        due = self.state.next_eval_step
        return self.config.eval is not None and due is not None and self.state.step >= due

    def advance_eval_clock(self) -> None:
        """Set the time of the next evaluation, unless this one was cut short."""
        if not self.interrupts.requested:
            assert self.config.eval is not None
            assert self.state.next_eval_step is not None
            while self.state.next_eval_step <= self.state.step:  # not twice at one step
                self.state.next_eval_step += self.config.eval.interval

    def begin_update(self) -> Rates:
        """Give the optimizers the settings of the update that begins."""
        self.update_start = time.monotonic()
        rates = rates_at(self.config, self.state.step, self.state.time_used)
        for optimizer in self.state.optimizers():
            weight_decay = float(self.config.optim.weight_decay)
            begin_update(optimizer, rates.lr, weight_decay, self.state.step)
        return rates

    def end_update(self, rollout: Rollout, losses: Mapping[str, float], rates: Rates) -> None:
        """Count the time and tell how the update went."""
        now = time.monotonic()
        self.state.time_used = self.time_before + now - self.start
        seconds = max(now - self.update_start, 1e-9)
        fps = rollout.num_frames / seconds
        eps = rollout.batch.num_entities() / seconds
        episodes, length = rollout.metrics["episodic_reward"], rollout.metrics["episode_length"]
        if episodes.count:
            self.mean_return = episodes.mean
        self.track.write(
            self.state.step,
            {
                **metric_scalars(rollout.metrics),
                **losses,
                **action_frequencies(
                    self.state.action_space,
                    {name: rows.values.cpu().numpy() for name, rows in rollout.actions.items()},
                ),
                "charts/learning_rate": rates.lr,
                "charts/entropy_coef": rates.ent_coef,
                **reward_scalars(self.state.reward_scaling),
                **{f"schedule/{path}": now for path, now in scheduled_fields(self.config).items()},
                "charts/SPS": (self.state.step - self.first_step) / (now - self.start),
                "restart": self.state.restart,
                "throughput": fps,
                "fps": fps,
                "eps": eps,
            },
        )
        self.progress.update(
            ProgressLine(
                step=self.state.step,
                mean_return=episodes.mean if episodes.count else None,
                episode_length=length.mean if episodes.count else None,
                episodes=episodes.count,
                entropy=losses["losses/entropy"],
                approx_kl=losses["losses/approx_kl"],
                explained_variance=losses["losses/explained_variance"],
                learning_rate=rates.lr,
                frames_per_s=fps,
                entities_per_s=eps,
                entities_per_frame=rollout.batch.num_entities() / rollout.num_frames,
            )
        )

    def end_eval(self, metrics: Mapping[str, Metric]) -> None:
        """Tell how an evaluation went, unless it was cut short."""
        if self.interrupts.requested:
            return
        self.last_eval = metric_scalars(metrics, "eval/")
        self.track.write(self.state.step, self.last_eval)
        means = "  ".join(
            f"{name} {metric.mean:.4g}" for name, metric in metrics.items() if metric.count
        )
        self.progress.say(f"[eval] step {self.state.step}  {means}")

    def save(self) -> None:
        """Save the end of the run, and say where."""
        stopped = self.interrupts.requested
        self.saved = self.manager.save("interrupted" if stopped else "end")
        if self.saved is not None:
            self.progress.say(f"{'interrupted, ' if stopped else ''}saved {self.saved}")
        elif stopped:
            self.progress.say("interrupted; nothing was saved, there is no --checkpoint-dir")

    def result(self) -> TrainResult:
        """What `train` returns."""
        result = TrainResult(self.mean_return)
        result.step, result.checkpoint = self.state.step, self.saved
        result.eval, result.interrupted = self.last_eval, self.interrupts.requested
        return result
