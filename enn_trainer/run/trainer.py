"""The training loop: rollout, update, callbacks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

from enn_trainer.algorithms.algorithm import Clock
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import CreateOpponent, PPOAgent
from enn_trainer.callbacks.built_in import add_built_in
from enn_trainer.callbacks.callback import Callback
from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.checkpoints.run_captures import prepare_captures, run_folder
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.evaluation.remote import use_remote_evaluator
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.envs import EnvSource, env_factory
from enn_trainer.experience.varied_envs import VariedEnvs
from enn_trainer.run.checkpointing import Checkpoints, Status
from enn_trainer.run.joining import join, settle_precision
from enn_trainer.run.open_run import (
    RunParts,
    learnt_shards,
    open_envs,
    open_episodes,
    open_state,
    record_env_id,
    trusted_opponents,
)
from enn_trainer.run.rank_exchange import exchange_of
from enn_trainer.run.session import TrainResult, session
from enn_trainer.run.snapshot import Snapshot
from enn_trainer.run.start import Manager, Resume, manager_and_env
from enn_trainer.run.stopping import Stopping
from enn_trainer.runtime.exchange import Exchange
from enn_trainer.runtime.execution import SINGLE_THREAD, ExecutionContext, ThreadPool
from enn_trainer.runtime.process import choose_device, keep_freed_memory, process_settings
from enn_trainer.runtime.spans import Spans
from enn_trainer.selfplay.league import Matchmaker
from enn_trainer.stop_conditions import Condition, is_read


def train(
    state_manager: "Manager | TrainConfig | EnvSource | None" = None,
    env: "EnvSource | None" = None,
    create_opponent: "CreateOpponent | None" = None,
    agent: PPOAgent | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    stop: Condition | None = None,
    matchmaker: "Matchmaker | None" = None,
    folder: str | Path | None = None,
    resume: "Resume" = False,
    overwrite: bool = False,
    settings: Mapping[str, object] | None = None,
    **names: object,
) -> TrainResult:
    """Train an agent with PPO until `total_timesteps`, `max_train_time`, or a stop condition.

    The first Ctrl-C or SIGTERM saves and ends the run within seconds; a second one ends it at once.

    Example:
        >>> from entity_env.examples import Xor
        >>> train(Xor, total_timesteps=2048, lr=0.003, folder="runs/xor")  # doctest: +SKIP
        >>> train(TrainConfig(seed=2), Xor, folder="runs/xor-2")  # doctest: +SKIP

    Args:
        state_manager: the configuration and state of the run, or only its configuration; may be
            left out, so that the environment is the first argument. A manager of hyperstate is
            accepted and has the trained configuration and state afterwards.
        env: an environment or match class, or a function that creates one from `env.kwargs`; a
            `VecEnv` class that takes (num_envs, first_env_index) before other arguments; or a
            factory (EnvConfig, num_envs, processes, first_env_index) -> VecEnv, also one written
            for entity-gym.
        create_opponent: (path, obs_space, action_space, device) -> agent, for `eval.opponent`; by
            default a checkpoint or `random`.
        agent: a custom network instead of `RogueNet`, see `PPOAgent`.
        callbacks: hooks, called at fixed points of the run; see `Callback`.
        stop: condition that ends the run early, in addition to the configuration.
        matchmaker: (members, step) -> weights by which opponents are drawn, instead of
            `selfplay.choose`.
        folder: folder of the run, by default a new one, `runs/<environment>-<n>`. Like the
            arguments below, only without a state manager.
        resume: True to continue the run in the folder, "if exists" to continue it or start one.
        overwrite: True to start over; an existing run in the folder is set aside.
        settings: settings by path, such as {"optim.lr": 0.001, "net.n_layer": 3}.
        **names: settings by the last part of their path, if that is unique, such as lr=0.001.

    Raises:
        ConfigError: the configuration is invalid.
        CheckpointError: the checkpoint to resume from is invalid, or the folder has a run.
        InvalidObservation: an observation does not match the spaces of the environment.
        WorkerError: a worker process failed.
        NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
    """
    settings = settings or {}
    if repeated := settings.keys() & names.keys():
        raise ConfigError(f"{min(repeated)}: expected one value, got another one in settings")
    manager, env = manager_and_env(
        state_manager,
        env,
        folder=folder,
        resume=resume,
        overwrite=overwrite,
        settings={**settings, **names},
    )
    trainer = Trainer(
        manager,
        env,
        create_opponent=create_opponent,
        agent=agent,
        callbacks=callbacks,
        matchmaker=matchmaker,
    )
    with trainer:
        return trainer.run(stop)


class Trainer:
    """Training run that can be controlled step by step, for example in a notebook.

    Example:
        >>> from enn_trainer.stop_conditions import AtLeast
        >>> from entity_env.examples import Xor
        >>> with Trainer(StateManager(overrides=["eval.episodes=32"]), Xor) as trainer:
        ...     metrics = trainer.step()                           # one update
        ...     metrics = trainer.evaluate()                       # with the settings of `eval`
        ...     result = trainer.run(stop=AtLeast("episodic_reward.mean", 0.3))
        [eval] step 2048 ...

    Without `with`, call `close` to close the environments. Signal handlers, threads and random
    number generators are restored after each call. If a call raises, the state is rolled back to
    the last complete update.

    Args:
        state_manager: configuration and state of the run, or only its configuration; all arguments
            are as for `train`.
        env: the environment.
        create_opponent: factory of opponents.
        agent: a custom network.
        callbacks: hooks, called at fixed points of the run.
        matchmaker: returns the weights of opponents.

    Attributes:
        config: configuration of the run.
        league: opponents of the run, with results and ratings; None without `selfplay`.
        state: state of the run.
        manager: saves the state.
        rank: rank of this process; rank 0 saves.
        spans: time of each phase of the run so far.
    """

    def __init__(
        self,
        state_manager: Manager | TrainConfig,
        env: EnvSource,
        create_opponent: CreateOpponent | None = None,
        agent: PPOAgent | None = None,
        callbacks: Sequence[Callback] = (),
        matchmaker: Matchmaker | None = None,
    ) -> None:
        self.manager = join(StateManager.adopt(state_manager))
        self.config = self.manager.config
        self.rank = self.manager.group.rank
        self.callbacks = Callbacks(callbacks)
        self.spans = Spans()
        self._snapshot = Snapshot()
        self._device = choose_device(self.config.cuda)
        settle_precision(self.manager, self._device)
        opponents = trusted_opponents(self.manager, create_opponent)
        create_envs = env_factory(env)
        configured_id = self.config.env.id
        record_env_id(self.manager, env)
        folder = self.manager.start_folder
        with ExitStack() as stack, process_settings(self.config, SINGLE_THREAD, folder):
            # Environments and state, under the lock of the run.
            stack.enter_context(self.manager.training())
            envs, shards = open_envs(create_envs, self.manager, stack)
            self.state = open_state(self.manager, envs, shards, agent, self._device, stack)
            keep_freed_memory()  # before there are threads, which then share the allocator
            threads = stack.enter_context(ThreadPool.of(self.state.agent))
            self.manager.copy_to(state_manager)
            self.callbacks.load_states(self.state.memory, self.manager.say)
            self.evaluation = RunEvaluator(
                config=self.config,
                create_envs=create_envs,
                create_opponent=opponents,
                state=self.state,
                device=self._device,
                threads=threads,
                folder=run_folder(self.manager),
            )
            use_remote_evaluator(self.evaluation, self.config, self._device, stack)
            stack.callback(self.manager.put_back)  # if the run does not start
            self.manager.set_aside()
            prepare_captures(self.manager, self.evaluation.action_space)
            exchange = exchange_of(self.manager.group, shards, self._device)
            self._open_reports(envs, exchange, stack)
            self.context = ExecutionContext(
                threads=threads,
                check=self.stopping.check,
                spans=self.spans,
                on_optimizer_step=partial(self.callbacks.on_optimizer_step, self),
                shards=shards,
                learnt=learnt_shards(self.state, shards),
                exchange=exchange,
            )
            run = RunParts(
                manager=self.manager,
                envs=envs,
                env=env,
                configured_id=configured_id,
                opponents=opponents,
                matchmaker=matchmaker,
                callbacks=self.callbacks,
                context=self.context,
                device=self._device,
                evaluation=self.evaluation,
                checkpoints=self.checkpoints,
                stack=stack,
            )
            self.episodes, self.league, self._curriculum = open_episodes(run)
            self.checkpoints.begin()
            follow_schedules(self.config, self.state)  # a resumed run starts at its step
            stack.callback(self.manager.group.leave_if_failed)  # first
            self._stack = stack.pop_all()

    def _open_reports(self, envs: VariedEnvs, exchange: Exchange, stack: ExitStack) -> None:
        """Create metrics, progress display, stopping and checkpoints."""
        self.log, self.watch, self.progress = add_built_in(
            callbacks=self.callbacks,
            manager=self.manager,
            spans=self.spans,
            evaluator=self.evaluation,
            stack=stack,
            envs=envs,
            exchange=exchange,
        )
        self.stopping = Stopping(self.manager, self.log, self.progress.say)
        envs.finite.is_required = partial(is_read, self.stopping.read_tags, "")
        envs.finite.validate = self.config.env.validate
        self.evaluation.read_tags = self.stopping.read_tags
        self.checkpoints = Checkpoints(
            manager=self.manager,
            log=self.log,
            say=self.progress.say,
            notify=lambda path: self.callbacks.on_checkpoint(self, path),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def close(self) -> None:
        """Close the environments and all files, after waiting for a checkpoint in progress."""
        self._stack.close()

    @property
    def metrics(self) -> dict[str, float]:
        """Latest value of every tag, of updates and evaluations."""
        return self.log.latest

    def step(self) -> dict[str, float]:
        """Run one update and return its metrics by tag.

        Raises:
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
            CheckpointError: a checkpoint that a callback requested cannot be written.
        """
        with self.at_work():
            metrics = self._update()
            self.checkpoints.save_if_requested()
            return metrics

    def run(self, stop: Condition | None = None) -> TrainResult:
        """Train until `total_timesteps`, `max_train_time`, or a stop condition.

        The run is saved at the end, also if it fails, and evaluated if it was not interrupted.

        Args:
            stop: condition that ends the run early, in addition to the configuration.

        Raises:
            ConfigError: `stop` reads metrics of evaluations, but `eval` is not set.
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
            CheckpointError: the final checkpoint, or one that a callback requested, cannot be
                written.
        """
        with session(self, stop) as current:
            while current.goes_on():
                self.evaluate_now() if self.evaluation.is_due() else self._update()
                current.update()  # evaluates stop conditions, then saves
        return current.result

    def _update(self) -> dict[str, float]:
        """Collect experience, learn from it, and notify the callbacks."""
        state, algorithm = self.state, self.state.algorithm
        collector = self.episodes.running_collector()
        self._snapshot.save(state)
        self.callbacks.on_update_start(self)
        restored = self._snapshot.restored_on_error(state, self.episodes)
        with self.checkpoints.during(Status.UPDATING), restored:
            self.watch.begin_update()
            clock = Clock(state.step, state.time_used)
            algorithm.begin_update(clock)
            with self.spans.span("rollout"):
                rollout = self._collect(collector)
            self.callbacks.on_rollout_end(self, rollout)
            metrics: dict[str, float] = algorithm.update(rollout, clock, self.context)
            state.step += rollout.num_frames
        with self.checkpoints.during(Status.REPORTING):
            self.callbacks.on_update_end(self, metrics)
        return metrics

    def _collect(self, collector: Collector) -> Rollout:
        """Collect this rank's rollout and gather what all ranks need."""
        config, state = self.config, self.state
        collect_local = partial(
            collect,
            collector,
            steps=config.rollout.steps,
            first_frame=state.step,
            seq_len=config.ppo.seq_len,
            context=self.context,
        )
        rollout: Rollout = self.context.exchange.rollout(collect_local, collector, state)
        return rollout

    def evaluate(self, settings: EvalConfig | None = None) -> dict[str, float]:
        """Evaluate now and return the metrics by tag.

        Args:
            settings: settings of an evaluation that is not logged; by default `eval` of the
                configuration, which is logged.

        Raises:
            ConfigError: the configuration has no `eval`, or the settings are invalid.
            CheckpointError: a checkpoint that a callback requested cannot be written.
        """
        if settings is None and self.config.eval is None:
            raise ConfigError("eval: expected settings such as eval.steps, got none")
        with self.at_work():
            if settings is not None:
                return self.evaluation.scalars_with(settings)
            metrics = self.evaluate_now(is_asked=True)
            self.checkpoints.save_if_requested()
            return metrics

    def evaluate_now(self, is_asked: bool = False, is_end: bool = False) -> dict[str, float]:
        """Evaluate, notify the callbacks and return the metrics; {} if there are no results yet.

        For the arguments see `RunEvaluator.play`.
        """
        with self.spans.span("eval"):
            finished = self.evaluation.play(
                stop=self.stopping.interrupts.is_requested,
                watch=self.progress.evaluating,
                is_asked=is_asked,
                is_end=is_end,
            )
        self.watch.tick()
        self.state.time_used = self.manager.group.broadcast(self.state.time_used, "evaluating")
        metrics: dict[str, float] = {}
        for evaluation in finished:
            metrics = self.evaluation.take(evaluation)
            self.log.measure(metrics)
            with self.checkpoints.during(Status.REPORTING):
                self.callbacks.on_eval_end(self, metrics)
        return metrics

    def save(self) -> Path | None:
        """Save the run now and return the path; None without a `checkpoint_dir`.

        In `on_update_end` and `on_eval_end` it returns None: the run is saved after metrics are
        recorded, an evaluation that is due has run, and stop conditions are evaluated;
        `on_checkpoint` gets the path.

        Raises:
            ValueError: it is called during an update.
            CheckpointError: the checkpoint cannot be written.
        """
        return self.checkpoints.save()

    def set_parameters(self, samplers: Mapping[str, str]) -> None:
        """Draw arguments of new episodes from other samplers, see `RunningTrainer`."""
        self.checkpoints.check_between("set_parameters")
        self._curriculum.set_parameters(samplers)

    def request_stop(self, why: str) -> None:
        """Request that `run` ends after the current update."""
        self.stopping.request(why)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Return a context for updates and evaluations, in which training time is counted."""
        with process_settings(self.config, self.context.threads, self.manager.start_folder):
            self.watch.start()
            yield
