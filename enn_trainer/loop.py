"""The training loop: rollout, returns, optimisation, again."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Literal, Self

import hyperstate

from enn_trainer.agent import PPOAgent
from enn_trainer.algorithm import Clock
from enn_trainer.callbacks import Callback, Callbacks
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.evaluation.evaluator import Evaluator, scalars_of
from enn_trainer.evaluation.opponents import CreateOpponent
from enn_trainer.evaluation.opponents import create_opponent as default_opponent
from enn_trainer.experience.collector import Collector, Rollout, collect
from enn_trainer.experience.envs import EnvSource, env_factory, global_randomness_kept
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.recording import capture_of_rollouts, prepare_captures, recorders
from enn_trainer.interrupt import Interrupts, StoppedAtOnce, UpdateAbandoned
from enn_trainer.lanes import ONE_LANE, Lanes
from enn_trainer.open_run import open_envs, open_state
from enn_trainer.ppo.loss_stats import LossStats
from enn_trainer.ppo.ppo import FIRST_FRAMES
from enn_trainer.run import Run, TrainResult
from enn_trainer.running_episodes import continue_episodes, take_episodes, why_not_saved
from enn_trainer.runtime.execution import ExecutionContext
from enn_trainer.runtime.process import (
    choose_device,
    cudnn_deterministic,
    infrequent_garbage_collection,
    keep_freed_memory,
)
from enn_trainer.snapshot import Snapshot
from enn_trainer.start_folder import paths_from
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.stop_conditions import Condition, any_of, read_bound
from enn_trainer.tracking.spans import Spans
from entity_env.seeding import derive_seed
from entity_env.standard_streams import reader_may_leave
from entity_env.vec.vec_env import VecObs
from rogue_net.ragged import EntityBatch


def train(
    state_manager: "hyperstate.StateManager[TrainConfig, State]",
    env: EnvSource,
    create_opponent: CreateOpponent | None = None,
    agent: PPOAgent | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    stop: Condition | None = None,
) -> TrainResult:
    """Train an agent with PPO until `total_timesteps`, `max_train_time`, or a stop condition.

    The first Ctrl-C or SIGTERM saves and ends the run within seconds; a second one ends it at once.

    Args:
        state_manager: the configuration and state of the run. One of hyperstate's own is accepted
            and has the trained configuration and state afterwards.
        env: an environment or match class, or a function that makes one from `env.kwargs`; a
            `VecEnv` class that takes (num_envs, first_env_index) before other arguments; or a
            factory (EnvConfig, num_envs, processes, first_env_index) -> VecEnv, also one written
            for entity-gym.
        create_opponent: (path, obs_space, action_space, device) -> agent, for `eval.opponent`; by
            default a checkpoint or `random`.
        agent: a network of your own instead of `RogueNet`, see `PPOAgent`.
        callbacks: hooks, called at fixed points of the run; see `Callback`.
        stop: condition that ends the run early, besides those of the configuration.

    Raises:
        ConfigError: the configuration cannot be used.
        CheckpointError: the checkpoint to resume from cannot be used.
        InvalidObservation: an observation does not match the spaces of the environment.
        WorkerError: a worker process failed.
        NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
    """
    with Trainer(state_manager, env, create_opponent, agent, callbacks) as trainer:
        return trainer.run(stop)


class Trainer:
    """Training run that can be taken step by step, for example in a notebook.

    Example:
        >>> with Trainer(StateManager(init_path="configs/xor.ron"), Xor) as trainer:
        ...     trainer.step()                                     # one update
        ...     trainer.evaluate()                                 # with the settings of `eval`
        ...     trainer.run(stop=AtLeast("episodic_reward.mean", 0.9))

    Without `with`, call `close` to end the environments. Between calls, signal handlers, threads
    and random number generators are as they were before. If a call raises, the state is that after
    the last complete update.

    Args:
        state_manager: configuration and state of the run; all arguments are those of `train`.
        env: the environment.
        create_opponent: makes opponents.
        agent: a network of your own.
        callbacks: hooks, called at fixed points of the run.

    Attributes:
        config: configuration of the run.
        state: state of the run.
        manager: saves the state.
    """

    def __init__(
        self,
        state_manager: "hyperstate.StateManager[TrainConfig, State]",
        env: EnvSource,
        create_opponent: CreateOpponent | None = None,
        agent: PPOAgent | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.manager = StateManager.adopt(state_manager)
        self.config = self.manager.config
        self._world = env.__name__ if isinstance(env, type) else None
        self._device = choose_device(self.config.cuda)
        create_envs = env_factory(env)
        self._callbacks = Callbacks(callbacks)
        self._before = Snapshot()
        self._interrupts = Interrupts()
        self._stop_request: str | None = None
        self._reported_save: Path | None = None
        self._is_updating = False
        self._defers_saves = False
        self._is_save_requested = False
        self._is_update_discarded = False
        self._has_failed = False
        folder = self.manager.start_folder
        with ExitStack() as stack, _settings(self.config, ONE_LANE, folder):
            # Environments and state, under the lock of the run.
            stack.enter_context(self.manager.training())
            envs = open_envs(create_envs, self.config, stack)
            self.state = open_state(self.manager, envs, agent, self._device, stack)
            keep_freed_memory()  # before there are lanes, which then share the allocator
            self._lanes = stack.enter_context(Lanes.of(self.state.agent))
            self.manager.hand_back(state_manager)
            self._callbacks.load_states(self.state.memory, self.manager.say)
            stack.enter_context(self.manager.call_before_saves(self._save_callbacks))

            # What evaluates, learns, reports and records.
            self._evaluator = Evaluator(
                self.config,
                create_envs,
                create_opponent or default_opponent,
                self.state,
                self._device,
                self._lanes,
            )
            prepare_captures(self.manager, self._evaluator.action_space)
            self._run = Run(self.config, self.state, self.manager, stack)
            capture = capture_of_rollouts(self.config)
            watchers = recorders(capture, envs, self.state.run_name, stack)
            seed = derive_seed(self.config.seed, "act")
            player = AgentPlayer(self.state.agent, seed, self._lanes, learning=True)
            self._envs = Collector(envs, player, self._device, watchers)
            stack.enter_context(self.manager.call_before_saves(self._take_episodes))

            # First frames, and the first save of a new run.
            self._begin()
            self._stack = stack.pop_all()

    def _begin(self) -> None:
        """Continue the episodes of the save or begin new ones, and save a run that is new."""
        self.state.agent.eval()
        saved = self.manager.resumed_from
        where = "the state" if saved is None else str(saved.path)
        resumed = continue_episodes(self._envs, self.state, self.config, where)
        self._obs: VecObs | None = resumed.obs
        self._run.episodes = "its episodes go on"
        if self._obs is None:
            self._obs = self._first_frames()
            why = resumed.why_not or why_not_saved(self._envs, self.config, self._world)
            self._run.episodes = f"episodes restart, because {why}"
        is_new = self.state.step == 0 and saved is None
        if is_new and not self.manager.has_input_statistics:
            self.state.agent.update_input_stats(EntityBatch.of(self._obs, self._device))
            self.state.memory[FIRST_FRAMES] = True
        if not self.manager.is_resumed_in_place:
            # Recorded here, as on_checkpoint is not called for the save of step 0.
            self._reported_save = self.manager.begin()
        # A resumed run begins with the scheduled values of its step.
        follow_schedules(self.config, self.state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the environments and close all files, after waiting for a save in progress."""
        self._stack.close()

    @property
    def metrics(self) -> dict[str, float]:
        """Latest value of every tag, of updates and evaluations."""
        return self._run.metrics

    @property
    def spans(self) -> Spans:
        """Time that each phase of the run has taken so far."""
        return self._run.spans

    def step(self) -> dict[str, float]:
        """Run one update and return its metrics by tag.

        Raises:
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
            CheckpointError: a save that a callback requested cannot be written.
        """
        with self._at_work():
            metrics = self._update()
            self._save_if_requested()
            return metrics

    def evaluate(self, settings: EvalConfig | None = None) -> dict[str, float]:
        """Evaluate now and return the metrics by tag.

        Args:
            settings: settings of an evaluation that is not tracked; by default `eval` of the
                configuration, which is.

        Raises:
            ConfigError: the configuration has no `eval`, or the settings cannot be used.
            CheckpointError: a save that a callback requested cannot be written.
        """
        if settings is None and self.config.eval is None:
            raise ConfigError("eval: expected what to play, such as eval.steps; there is none")
        with self._at_work():
            if settings is not None:
                return scalars_of(self._evaluator.measure_with(settings))
            metrics = self._evaluate()
            self._save_if_requested()
            return metrics

    def save(self) -> Path | None:
        """Save the run now and return the path, or None without a `checkpoint_dir`.

        In `on_update_end` and `on_eval_end` it returns None: the save is made once the metrics are
        recorded and the stop conditions evaluated, after an evaluation that is due, and
        `on_checkpoint` gets its path.

        Raises:
            ValueError: it is called in the middle of an update.
            CheckpointError: the save cannot be written.
        """
        if self._is_updating:
            raise ValueError(
                "save: expected to be called between updates, as in on_update_end, got a call in "
                "the middle of one, when half of it is learnt"
            )
        self._is_save_requested = self._defers_saves
        if self._defers_saves:
            return None
        self._saved(self.manager.wait())
        return self._saved(self.manager.save("asked for", self._run.measured))

    def request_stop(self, why: str) -> None:
        """Request that `run` ends after the current update."""
        self._stop_request = why

    def run(self, stop: Condition | None = None) -> TrainResult:
        """Train until `total_timesteps`, `max_train_time`, or a stop condition.

        The run is saved at the end, also if it fails, and evaluated if it was not interrupted.

        Args:
            stop: condition that ends the run early, besides those of the configuration.

        Raises:
            ConfigError: `stop` reads metrics of evaluations, but `eval` is not set.
            NotFiniteError: a loss, a gradient or a parameter is NaN or infinite.
            CheckpointError: the save at the end, or one that a callback requested, cannot be
                written.
        """
        # Conditions: those of the configuration and of the caller.
        bounds = [read_bound(text, "stop") for text in self.config.stop]
        stop = any_of(bounds if stop is None else [stop, *bounds])
        self._run.check_condition(stop)
        self._stop_request, self._is_update_discarded = None, False
        with self._at_work(), self._run.show_progress(), self._signals():
            is_over = False
            try:
                if self.manager.resumed_from is not None:
                    self._callbacks.on_restore(self)
                self._callbacks.on_train_start(self)
                why = self._until(stop)

                # Final evaluation, unless interrupted or already made at this step.
                interrupted = self.manager.is_interrupted = self._interrupts.requested
                is_measured = self._run.last_eval_step == self.state.step
                if self.config.eval is not None and not interrupted and not is_measured:
                    self._evaluate()  # before the save, whose manifest has the result
                    self._reason_to_end(stop)  # updates the memory of conditions for the save
                    interrupted = self.manager.is_interrupted = self._interrupts.requested

                # Final save.
                self._saved(self.manager.wait())
                try:
                    self._save_at_end(why, "interrupted" if interrupted else "end")
                except CheckpointError:
                    is_over = True  # a save that failed is not tried again
                    raise
            except BaseException as error:
                try:
                    if not (is_over or isinstance(error, StoppedAtOnce)):
                        self._save_after_failure()
                finally:
                    self._callbacks.on_train_end(self, error)
                raise
            self._callbacks.on_train_end(self, None)
            return self._run.result(why, interrupted)

    def _until(self, stop: Condition | None) -> str:
        """Evaluate and update until there is a reason to end, and return the reason."""
        why = self._reason_to_end(stop)
        while why is None:
            evaluates = self._run.eval_is_due()
            try:
                self._evaluate() if evaluates else self._update()
            except UpdateAbandoned:
                self._is_update_discarded = True
                return "interrupted mid-update; the update was discarded"
            why = self._reason_to_end(stop)  # before a save, which has the memory of conditions
            if why is None and not self._run.eval_is_due():  # an evaluation comes before the save
                with self._run.spans.span("checkpoint"):
                    self._save_if_requested()
                    path = self.manager.step(self._run.measured)
                self._saved(path)
        return why

    def _update(self) -> dict[str, float]:
        """Collect a rollout and learn from it; restore the state after any error."""
        # Begin, with a copy of the state to go back to.
        state, run = self.state, self._run
        if self._obs is None:
            self._obs = self._first_frames()
        self._callbacks.on_update_start(self)
        self._before.take(state)
        self._is_updating = True

        # Collect and learn.
        try:
            clock = Clock(state.step, state.time_used)
            context = self._context()
            run.begin_update()
            state.algorithm.begin_update(clock)
            with run.spans.span("rollout"):
                rollout = self._collect(context)
            self._callbacks.on_rollout_end(self, rollout)
            learnt = state.algorithm.update(rollout, clock, context)
            state.step += rollout.num_frames
        except BaseException:
            self._before.put_back(state)
            self._obs = None
            raise
        finally:
            self._is_updating = False

        # Report; callbacks may add metrics before they are tracked.
        self._obs = rollout.next_obs
        metrics = run.end_update(rollout, learnt)
        run.measure(metrics)
        with self._deferred_saves():
            self._callbacks.on_update_end(self, metrics)
        run.report_update(rollout, metrics)
        follow_schedules(self.config, state)
        return metrics

    def _collect(self, context: ExecutionContext) -> Rollout:
        steps = self.config.rollout.steps
        return collect(self._envs, steps=steps, first_frame=self.state.step, context=context)

    def _context(self) -> ExecutionContext:
        return ExecutionContext(
            self._lanes, self._interrupts.check, self._run.spans, self._on_optimizer_step
        )

    def _evaluate(self) -> dict[str, float]:
        """Evaluate the agent and return the metrics, none if the evaluation was interrupted."""
        is_interrupted = self._interrupts.is_requested
        with self._run.spans.span("eval"):
            suites = self._evaluator.measure(is_interrupted, self._run.show_eval)
        self._run.tick()
        if is_interrupted():
            return {}
        if self._run.eval_is_due():
            self._run.advance_eval_clock()
        metrics = scalars_of(suites)
        self._run.measure(metrics)
        with self._deferred_saves():
            self._callbacks.on_eval_end(self, metrics)
        self._run.report_eval(suites, metrics)
        return metrics

    def _first_frames(self) -> VecObs:
        """Begin new episodes; they are a function of the seed and the step."""
        self._envs.seed(derive_seed(self.config.seed, "rollout", self.state.step))
        self.state.algorithm.begin_episodes(self.config.rollout.num_envs)
        return self._envs.reset(self.state.obs_space)

    def _reason_to_end(self, stop: Condition | None) -> str | None:
        """Return the reason why the run ends, or None if it goes on.

        Call it once after each update and evaluation, as conditions have a memory.
        """
        reasons = [
            self._run.condition_met(stop),
            self._run.limit_reached(),
            "interrupted" if self._interrupts.requested else None,
            self._stop_request,
        ]
        return next((reason for reason in reasons if reason is not None), None)

    def _take_episodes(self) -> None:
        """Store the state of the episodes; None in an update and after one that failed."""
        is_between = self._obs is not None and not self._is_updating
        self.state.envs = (
            take_episodes(self._envs, self.config, self.state.step) if is_between else None
        )

    def _save_at_end(self, why: str, kept_as: Literal["end", "interrupted"]) -> None:
        """Save the run, unless the newest save has episodes that this one would lack."""
        self._is_save_requested = False  # this is the save that was requested
        newest = self.manager.newest_save() if self._is_update_discarded else None
        if newest is not None and self.state.envs is not None:
            self._run.keep(why, newest)
        else:
            self._saved(self._run.save(why, kept_as))

    def _save_after_failure(self) -> None:
        """Save the state before the failed update, without episodes, as these may be broken."""
        self._obs, self._has_failed = None, True
        try:
            with suppress(Exception):  # the first error is the one to raise
                self._saved(self.manager.wait())
            with suppress(Exception):  # also if an earlier save failed
                self._saved(self._run.save("failed", "failed"))
        finally:
            self._has_failed = False

    def _save_if_requested(self) -> None:
        """Save if a hook requested it."""
        if self._is_save_requested:
            self.save()

    @contextmanager
    def _deferred_saves(self) -> Iterator[None]:
        """Return a context in which `save` is deferred, as metrics are not recorded yet."""
        self._defers_saves = True
        try:
            yield
        finally:
            self._defers_saves = False

    def _on_optimizer_step(self, stats: LossStats) -> None:
        if len(self._callbacks):  # else spare the transfer of the numbers from the device
            self._callbacks.on_minibatch(self, stats.means())

    def _save_callbacks(self) -> None:
        # A failed run is saved even if a callback raises, then with the states of the save before.
        with suppress(Exception) if self._has_failed else nullcontext():
            self._callbacks.save_states(self.state.memory)

    def _saved(self, path: Path | None) -> Path | None:
        """Notify the callbacks of a save that is new, and return its path."""
        if path is not None and path != self._reported_save:
            self._reported_save = path
            self._callbacks.on_checkpoint(self, path)
        return path

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Return a context in which signals request that the run stops."""
        with Interrupts() as self._interrupts:
            try:
                yield
            finally:
                self._interrupts = Interrupts()  # a request ends with its run

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """Return a context for updates and evaluations, whose time is counted."""
        with _settings(self.config, self._lanes, self.manager.start_folder):
            self._run.start_clock()
            yield


@contextmanager
def _settings(config: TrainConfig, lanes: Lanes, folder: Path) -> Iterator[None]:
    """Apply the process-wide settings of a run; relative paths begin in `folder`."""
    with (
        paths_from(folder),
        reader_may_leave(),
        lanes.at_work(),
        cudnn_deterministic(config.torch_deterministic),
        global_randomness_kept(),
        infrequent_garbage_collection(),
    ):
        yield
