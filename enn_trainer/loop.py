"""The training loop: rollout, returns, optimisation, again."""

from contextlib import ExitStack

import hyperstate

from enn_trainer.agent import PPOAgent
from enn_trainer.capture import capture_of_rollouts, prepare_captures, recorded
from enn_trainer.config import TrainConfig
from enn_trainer.cuda_settings import cache_emptied_after_steps, choose_device, cudnn_deterministic
from enn_trainer.envs import EnvFactory, env_factory, global_randomness_kept
from enn_trainer.evaluate import evaluate
from enn_trainer.open_run import open_envs, open_opponent, open_state
from enn_trainer.opponents import CreateOpponent
from enn_trainer.opponents import create_opponent as default_opponent
from enn_trainer.optimize import optimize
from enn_trainer.ppo_config import PPOConfig
from enn_trainer.returns import Estimate, discounted_returns, gae, next_values
from enn_trainer.reward_scaling import RewardScaling
from enn_trainer.rollout import Rollout, collect
from enn_trainer.run import Run, TrainResult
from enn_trainer.schedules import follow_schedules
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.threads import torch_threads
from enn_trainer.unbuilt import check_supported
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.seeding import derive_seed
from rogue_net.ragged import EntityBatch


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
        envs = open_envs(create_envs, config, stack)
        state = open_state(manager, envs, agent)
        state.to(device)
        if config.cuda_empty_cache and device.type == "cuda":
            stack.enter_context(cache_emptied_after_steps(state.optimizers()[-1]))
        manager.hand_back(state_manager)
        opponent = open_opponent(config, create_opponent or default_opponent, state, device)
        is_recorded = prepare_captures(manager)
        run = Run(config, state, manager, stack)
        spans = run.spans
        envs = recorded(envs, capture_of_rollouts(config), state.run_name, stack)

        def evaluate_now() -> None:
            with run.spans.span("eval"):
                asked = run.begin_eval()
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
            with spans.span("rollout"):
                rollout = collect(
                    envs,
                    state.agent,
                    obs,
                    state.obs_space,
                    steps=config.rollout.steps,
                    seed=derive_seed(config.seed, "act"),
                    first_frame=state.step,
                    device=device,
                    spans=spans,
                )
            with spans.span("returns"):
                estimate = advantages(rollout, config.ppo, state.reward_scaling)
            with spans.span("optimize"):
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
                    spans=spans,
                )
            with spans.span("stats"):
                state.agent.update_input_stats(rollout.batch)
            obs = rollout.next_obs
            state.step += rollout.num_frames
            run.end_update(rollout, losses, rates)
            follow_schedules(config, state)
            with spans.span("checkpoint"):
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
