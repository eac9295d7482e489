"""Environments, initial state, players and first frames of a run."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch

from enn_trainer.algorithms.ppo.ppo import FIRST_FRAMES
from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.group import Group
from enn_trainer.base.policy import CreateOpponent, PPOAgent
from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.checkpoints.migrate.evolve import evolved_state
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.named_code import ENVIRONMENT_KINDS, check_run
from enn_trainer.checkpoints.run_captures import run_folder
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state import State, first_eval_step
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.load import COMMAND_LINE, DEFAULT
from enn_trainer.evaluation.opponents import NamedOpponents
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.env_names import record_env_name
from enn_trainer.experience.envs import (
    EnvFactory,
    EnvSource,
    WorkerOptions,
    check_whole_matches,
    in_section,
    make_whole_matches,
    sides_of,
    worker_options,
)
from enn_trainer.experience.memories import check_identity
from enn_trainer.experience.players import AgentPlayer, Players
from enn_trainer.experience.run_memories import RecurrentStates
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.experience.varied_envs import VariedEnvs
from enn_trainer.run.checkpointing import Checkpoints
from enn_trainer.run.clusters import join_cluster
from enn_trainer.run.curriculum import Curriculum, RoundCounter
from enn_trainer.run.joining import share_start
from enn_trainer.run.rank_recording import record_rollouts
from enn_trainer.run.running_episodes import NOT_SAVED, RunningEpisodes
from enn_trainer.run.selfplay import SelfPlay, seat_players
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.process import empty_cache_after_steps
from enn_trainer.runtime.shards import Shards
from enn_trainer.selfplay.league import League, Matchmaker
from enn_trainer.selfplay.seating import PoolLineups
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.vec.ray_worker import RayWorker
from entity_env.vec.vec_env import VecEnv
from entity_env.vec.worker import WorkerSetup
from rogue_net.ragged import EntityBatch
from rogue_net.space_diff import diff_spaces


def record_env_id(manager: StateManager, env: EnvSource) -> None:
    """Set `env.id` to the name of the environment argument."""
    config = manager.config.env
    configured, is_typed = config.id, manager.sources.of("env.id") == COMMAND_LINE
    if record_env_name(config, env, manager.start_folder) and is_typed:
        manager.say(f"env.id={configured}: not used, the program passes another environment")


def open_envs(
    create_envs: EnvFactory, manager: StateManager, stack: ExitStack
) -> tuple[VariedEnvs, Shards]:
    """Create the environments of this rank, wrapped for episode metrics, and their shards.

    The environments are closed with the stack.

    Raises:
        ConfigError: settings do not match the environments.
    """
    config, group = manager.config, manager.group
    rollout, count = config.rollout, config.scale.shards or 1
    new_worker: Callable[[WorkerSetup], RayWorker] | None = None
    if rollout.ray is not None:
        ray = join_cluster(config, group, stack)
        new_worker = partial(RayWorker, ray, rollout.ray_resources)
    stack.push(lambda kind, error, traceback: None if error is None else manager.leave(error))
    saved = None if manager.follows else manager.resumed_from
    if saved is not None and (before := read_config(saved).scale.shards or 1) != count:
        manager.say(
            f"scale.shards={count}: was {before} in the checkpoint; results differ by rounding"
        )
    try:
        with worker_options(WorkerOptions(rollout.recover, new_worker)):
            make = partial(create_envs, config.env)
            is_chosen = manager.sources.of("rollout.num_envs") != DEFAULT
            make_shards = partial(_make_shards, make, rollout.processes, count, group)
            made, num_envs = make_whole_matches(make_shards, rollout.num_envs, is_chosen)
            envs, shards = made
            if num_envs != rollout.num_envs:
                rollout.num_envs = num_envs
                manager.say(f"rollout.num_envs={num_envs}: matches of {envs.sides} sides")
    except ConfigError as error:
        raise ConfigError(*(in_section(p, "rollout.num_envs") for p in error.problems)) from None
    stack.callback(envs.close)
    measured = VariedEnvs(envs)
    if group.size == 1:
        if count > len(envs) // envs.sides:
            raise _too_many_shards(len(envs), envs.sides, count)
        shards = Shards.of(len(envs), envs.sides, count)
    elif len(envs) != (expected := len(shards.columns)):
        raise ConfigError(f"env: expected {expected} environments of a rank, got {len(envs)}")
    measured.groups = shards.slices
    measured.running.first_match = shards.columns.start // envs.sides
    measured.finite.first_env_index = shards.columns.start
    return measured, shards


def _make_shards(
    make: Callable[[int, int, int], VecEnv], processes: int, count: int, group: Group, num_envs: int
) -> tuple[VecEnv, Shards]:
    """Create the environments of a rank, and its shards.

    Args:
        make: (num_envs, processes, first_env_index) -> environments.
        processes: number of worker processes.
        count: number of shards of the run.
        group: processes of the run.
        num_envs: number of environments of the run.

    Raises:
        ConfigError: there are fewer matches than shards, or the environments cannot be created.
    """
    sides, first = sides_of(make, num_envs) if group.size > 1 else 1, 0
    check_whole_matches(num_envs, sides)
    if count > num_envs // sides:
        raise _too_many_shards(num_envs, sides, count)
    shards = Shards.of(num_envs, sides, count).for_rank(group.rank, group.size)
    if group.size > 1:
        num_envs, first = len(shards.columns), shards.columns.start
    return make(num_envs, processes, first), shards


def _too_many_shards(num_envs: int, sides: int, count: int) -> ConfigError:
    return ConfigError(
        f"scale.shards: expected at most the {num_envs // sides} matches of "
        f"rollout.num_envs={num_envs}, got {count}"
    )


def learnt_shards(state: State, shards: Shards) -> Shards:
    """Return the shards of the environments that the agent learns from."""
    seating = state.part(PoolLineups)
    table = None if seating is None else seating.table
    return shards if table is None else shards.map(table.learnt_before)


def open_state(
    manager: StateManager,
    envs: VecEnv,
    shards: Shards,
    agent: PPOAgent | None,
    device: torch.device,
    stack: ExitStack,
) -> State:
    """Create or restore the state of the run, and move it to the device.

    Raises:
        ConfigError: the environments or the network are invalid.
        CheckpointError: the checkpoint is of another environment.
    """
    # Validate the combination, and create or restore the state.
    if agent is not None and manager.config.vf_net is not None:
        raise ConfigError("vf_net: a custom network has its own values; remove vf_net")
    if not envs.action_space():
        raise ConfigError("env: expected an environment with actions, got an empty action space")
    if not envs.obs_space().entities and not envs.has_global_entity():
        raise ConfigError("env: expected entities, global features or global actions, got none")
    manager.set_deserialize_ctx("obs_space", envs.obs_space())
    manager.set_deserialize_ctx("action_space", envs.action_space())
    manager.set_deserialize_ctx("agent", agent)
    state = manager.state

    # A restored state must match the environment; labels in another order are upgraded.
    diff = diff_spaces(state.spaces, Spaces.of(envs))
    if diff.changed:
        raise CheckpointError(
            f"the environment differs from the checkpoint: {'; '.join(diff.changed)}; start a new "
            "run with --init-from, or upgrade the checkpoint with enn checkpoints evolve"
        )
    if diff.reordered_labels and agent is not None:
        raise CheckpointError(
            f"the environment differs from the checkpoint: {'; '.join(diff.reordered_labels)}; a "
            "custom network needs the labels in the same order"
        )
    if diff.reordered_labels:
        config, spaces = manager.config, Spaces(state.obs_space, envs.action_space())
        make = manager._initial_state
        state, _ = evolved_state(state, config, config, spaces, Rules(), make)
        manager.take_state(state)

    # Clocks and device.
    if manager.resumed_from is not None:
        state.restart += 1
    evaluation = manager.config.eval
    if evaluation is not None:  # the setting may have changed since the checkpoint
        if state.next_eval_step is None:
            state.next_eval_step = first_eval_step(evaluation, state.step)
        state.next_eval_step = min(state.next_eval_step, state.step + evaluation.interval)
    if names := [name for name in state.parts if "/" in name]:
        raise ValueError(f"State.parts: expected names without '/', got {', '.join(names)}")
    state.to(device)
    if manager.config.selfplay is not None:
        seat_players(manager.config, state, shards.num_columns, envs.sides)
    state.algorithm.prepare(manager.config, state, device)
    for line in state.algorithm.notes:
        manager.say(line)
    if manager.config.cuda_empty_cache and device.type == "cuda":
        for optimizer in state.optimizers()[-1:]:
            stack.enter_context(empty_cache_after_steps(optimizer))
    share_start(state, envs, manager.group)
    return state


def trusted_opponents(
    manager: StateManager, create_opponent: CreateOpponent | None
) -> CreateOpponent:
    """Return the factory of opponents, after a check of the code that the checkpoint names.

    Args:
        manager: state manager of the run.
        create_opponent: factory of the program; None to load opponents by path and name.

    Raises:
        ConfigError: the checkpoint names a bot or a cluster that the user does not name.
    """
    if create_opponent is not None:
        check_run(manager, without=(*ENVIRONMENT_KINDS, "bot"))
        return create_opponent
    return NamedOpponents(check_run(manager, without=ENVIRONMENT_KINDS))


@dataclass(frozen=True)
class RunParts:
    """Components of a run that its players and episodes need.

    Attributes:
        manager: state manager of the run.
        envs: environments of this process.
        env: class or function that creates them.
        configured_id: `env.id` of the configuration.
        opponents: factory of opponents.
        matchmaker: draws opponents; None for `selfplay.choose`.
        callbacks: callbacks of the run.
        context: threads, timers and shards.
        device: device of the agent.
        evaluation: evaluator of the run.
        checkpoints: saves the run.
        stack: closes recordings, and removes the hook that saves episodes.
    """

    manager: StateManager
    envs: VariedEnvs
    env: EnvSource
    configured_id: str
    opponents: CreateOpponent
    matchmaker: Matchmaker | None
    callbacks: Callbacks
    context: ExecutionContext
    device: torch.device
    evaluation: RunEvaluator
    checkpoints: Checkpoints
    stack: ExitStack


def open_players(run: RunParts) -> tuple[Players, League | None]:
    """Create the players of a run; with self-play also the league, and register its callback."""
    manager, context = run.manager, run.context
    config, shards = manager.config, context.shards
    player = AgentPlayer(
        manager.state.agent,
        derive_seed(config.seed, "act"),
        context.threads,
        learning=True,
        spans=context.spans,
        shards=shards,
    )
    if config.selfplay is None:
        if run.matchmaker is not None:
            raise ConfigError("matchmaker: expected the setting selfplay too, got none")
        memories = manager.state.part(RecurrentStates)
        if memories is not None:
            if context.exchange.group.size > 1:
                memories.columns = shards.columns
            memories.source = lambda: {AGENT: player.memory}
            player.restore_memory = partial(memories.begin, AGENT)
        return player, None
    pool = SelfPlay(
        manager=manager,
        envs=run.envs,
        agent=player,
        create_opponent=run.opponents,
        matchmaker=run.matchmaker,
        device=run.device,
    )
    run.callbacks.first.append(pool)
    return pool.players, pool.league


def open_episodes(run: RunParts) -> tuple[RunningEpisodes, League | None, Curriculum]:
    """Start or resume the episodes of a run; return them, the league or None, and the curriculum.

    Registers the callbacks of the run, and saves the episodes until the stack is closed.
    """
    manager, envs, callbacks, context = run.manager, run.envs, run.callbacks, run.context
    watchers = record_rollouts(manager, envs, run_folder(manager), run.stack)
    players, league = open_players(run)
    collector = Collector(envs, players, run.device, watchers)
    episodes = RunningEpisodes(collector, manager.config, manager.state, run.configured_id, context)
    num_envs = context.shards.num_columns
    counter = RoundCounter(manager.state, num_envs)
    callbacks.first.append(counter)
    curriculum = Curriculum(manager, envs, episodes, run.evaluation, counter.rounds, num_envs)
    callbacks.last.insert(0, curriculum)
    run.stack.enter_context(run.checkpoints.storing(callbacks, episodes, run.evaluation))
    begin_episodes(run, episodes)
    return episodes, league, curriculum


def begin_episodes(run: RunParts, episodes: RunningEpisodes) -> None:
    """Resume the saved episodes or start new ones; initialise input statistics of a new run."""
    manager, context = run.manager, run.context
    state, saved = manager.state, manager.resumed_from
    state.agent.eval()
    where = "the state" if saved is None else str(saved.path)
    obs = episodes.begin(where, run.env.__name__ if isinstance(run.env, type) else None)
    if episodes.unsaved and saved is None:  # the message of a resumed run includes it
        manager.say(f"{NOT_SAVED}: {episodes.unsaved}")
    if nameless := check_identity(state.agent, obs):
        manager.say(
            f"net.memory: {', '.join(nameless)} get no memory, because observations have no ids; "
            "set Observation.ids"
        )
    source = manager.init_from
    if state.step == 0 and saved is None and (source is None or "norm" not in source.parts):
        learnt = episodes.players.learnt_envs(len(obs))
        frames = EntityBatch.of(obs, run.device).take(learnt)
        shards = context.learnt or Shards.one(frames.num_frames)
        context.exchange.input_stats(state.agent, shards.split_frames(frames))
        state.memory[FIRST_FRAMES] = True
