"""Built-in callbacks: tracking, progress and schedules."""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.callbacks.export_saves import ExportSaves
from enn_trainer.callbacks.learning_diagnostics import LearningDiagnostics
from enn_trainer.callbacks.run_metrics import MetricsLog, RunMetrics, Stopwatch
from enn_trainer.checkpoints.format import step_of
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.schedules import follow_schedules, total_steps
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.exchange import Exchange
from enn_trainer.runtime.spans import Spans
from enn_trainer.runtime.trust import env_label
from enn_trainer.tracking.progress import Progress, ProgressLine, ReturnHistory, main_metric
from enn_trainer.tracking.track import Track, open_track
from entity_env.vec.vec_env import VecEnv
from rogue_net.native.backend import advice

MOST_NAMES = 8
"""Largest number of entity types and actions in the header of a run."""
MOST_RELPOS = 4
"""Least ratio of parameters with and without relative positions that gets a message."""
RETURNS = "returns"
"""Key of the return history in `State.memory`."""


class ProgressDisplay(Callback):
    """Displays the progress of a run within the context `shown`.

    Args:
        manager: state manager of the run, which also displays its messages.
        numbers: metrics with the durations of the phases of the last update.
        evaluator: evaluator with the results of the last evaluation.
    """

    def __init__(self, manager: StateManager, numbers: RunMetrics, evaluator: RunEvaluator) -> None:
        self._manager, self._numbers, self._evaluator = manager, numbers, evaluator
        self._first_step = manager.state.step
        self._history = ReturnHistory.restored(manager.state.memory.get(RETURNS))
        self._progress: Progress | None = None
        self._is_silent = manager.follows

    @contextmanager
    def shown(self, episodes: str, random: Measured | None) -> Iterator[None]:
        """Display the progress of the run within this context.

        Args:
            episodes: message about how episodes continue after a resume.
            random: return of random play, if it was measured.
        """
        config, state, manager = self._manager.config, self._manager.state, self._manager
        if self._is_silent:
            yield
            return
        limit = config.max_train_time
        progress = Progress(
            total_steps(config, state.frames_per_step(config)),
            state.step,
            max_seconds=None if limit is None else limit - state.time_used,
            header=list(header(manager)),
            history=self._history,
            random=random,
        )
        with progress as self._progress:
            before, manager.say = manager.say, progress.say
            try:
                if manager.resumed_from is not None and state.step == self._first_step:
                    path = manager.resumed_from.path
                    progress.say(f"resumed {path} at step {state.step}; {episodes}")
                yield
            finally:
                manager.say = before
        self._progress = None

    def say(self, message: str) -> None:
        """Print a line that the progress display does not overwrite."""
        if not self._is_silent:
            print(message) if self._progress is None else self._progress.say(message)

    def evaluating(self, suite: str, share: float) -> None:
        """Display the finished share of a suite, from 0 to 1."""
        if self._progress is not None:
            self._progress.evaluating(share)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Display the metrics of an update, and store the return history in the state."""
        tags = {n: f"policy/{n}/normalised_entropy" for n in trainer.state.action_space}
        entropies = {n: metrics[tag] for n, tag in tags.items() if tag in metrics}
        line = ProgressLine(trainer.state.step, metrics, entropies, self._numbers.phases_ms)
        history = self._history
        if self._progress is None:
            history.add(metrics.get(main_metric(metrics), math.nan))
        else:
            self._progress.update(line)
        trainer.state.memory[RETURNS] = {**vars(history), "means": [*history.means]}

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Print the results of an evaluation."""
        step = self._evaluator.evaluated_step or 0
        for name, suite in self._evaluator.results.items():
            if self._progress is not None and not name:
                self._progress.evaluated(step, suite.in_words())
            else:
                where = f"[eval {name}]" if name else "[eval]"
                self.say(f"{where} step {step}  {suite.in_words()}")


def header(manager: StateManager) -> Iterator[str]:
    """Yield lines that describe a run: environment, network, machine and folder."""
    config, state, folder = manager.config, manager.state, manager.checkpoint_dir
    named = [*state.obs_space.entities] or ["none"], [*state.action_space]
    types, actions = (
        ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")
        for names in named
    )
    yield f"{env_label(config.env.id)}  entities: {types}  actions: {actions}"
    parameters = dict(state.agent.named_parameters())
    device = next((p.device.type for p in parameters.values()), "cpu")
    processes = f"{config.rollout.processes} process{'es'[: 2 * (config.rollout.processes > 1)]}"
    num_parameters = sum(p.numel() for p in parameters.values())
    network = f"{num_parameters:,} parameters on {device}"
    where = "no saves" if folder is None else f"folder {folder}"
    yield f"{network}  {processes}  seed {config.seed}  {where}"
    relpos = sum(p.numel() for name, p in parameters.items() if "relpos" in name.split("."))
    if num_parameters > MOST_RELPOS * (num_parameters - relpos):
        yield (
            f"net.relpos_encoding has {relpos:,} of these parameters; a smaller extent or a larger "
            "scale makes the network smaller"
        )
    if device == "cpu" and (missing := advice()) is not None:
        yield missing


def add_built_in(
    callbacks: Callbacks,
    manager: StateManager,
    spans: Spans,
    evaluator: RunEvaluator,
    stack: ExitStack,
    envs: VecEnv,
    exchange: Exchange,
) -> tuple[MetricsLog, Stopwatch, ProgressDisplay]:
    """Register the built-in callbacks: metrics before, the other ones after the user's callbacks.

    Args:
        callbacks: callbacks of the run.
        manager: state manager of the run.
        spans: timers of the run.
        evaluator: evaluator of the run.
        stack: stack that closes the trackers.
        envs: the environments.
        exchange: exchange between the processes of the run.

    Returns:
        Metrics, stopwatch and progress display of the run.
    """
    log, watch = MetricsLog(manager), Stopwatch(manager.state)
    numbers = RunMetrics(manager, log, watch, spans, exchange)
    progress = ProgressDisplay(manager, numbers, evaluator)
    track, folder = open_track(manager, progress.say)
    stack.enter_context(track)
    tracking = Tracking(track, folder, manager, log, spans, evaluator)
    stack.callback(tracking.save_spans)
    callbacks.first = [numbers]
    diagnostics = LearningDiagnostics(
        manager.state,
        track.notice,
        progress.say,
        spans,
        num_sides=envs.sides,
        group=manager.group,
        obs_space=envs.obs_space(),
        newest_save=lambda step: newest_save_until(step, manager.checkpoint_dir),
    )
    callbacks.last = [tracking, progress, diagnostics, Schedules()]
    if manager.config.checkpoint.export is not None and not manager.follows:
        if manager.checkpoint_dir is None:
            progress.say("checkpoint.export: nothing is exported, as the run has no folder")
        else:
            callbacks.last.append(ExportSaves(manager, track.file, progress.say))
    return log, watch, progress


def newest_save_until(step: float, folder: Path | None) -> Path | None:
    """Return the newest save in the folder of a run at or before a step."""
    paths = [] if folder is None else RunDir(folder).saved_paths()
    return next((path for path in paths if (step_of(path) or 0) <= step), None)


SAVE_SPANS_EVERY_S = 60.0


class Tracking(Callback):
    """Sends metrics, videos and replay pages to the trackers of a run, and saves its timers.

    Args:
        track: the trackers.
        folder: folder of the run, for the timers.
        manager: state manager, which says whether this process still owns the folder.
        log: metrics of the run.
        spans: timers of the run.
        evaluator: evaluator with the results of the last evaluation.
    """

    def __init__(
        self,
        track: Track,
        folder: Path,
        manager: StateManager,
        log: MetricsLog,
        spans: Spans,
        evaluator: RunEvaluator,
    ) -> None:
        self._track, self._folder, self._manager, self._log = track, folder, manager, log
        self._spans, self._evaluator = spans, evaluator
        self._saved_s = time.monotonic()

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Track the metrics of an update, and save the timers periodically."""
        with self._spans.span("track"):
            self._log.record(metrics)
            self._track.write(trainer.state.step, metrics)
        if time.monotonic() - self._saved_s >= SAVE_SPANS_EVERY_S:
            self.save_spans()

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Track the metrics, videos and replay pages of an evaluation."""
        self._log.record_eval(metrics, self._evaluator.evaluated_step)
        self._track.write(trainer.state.step, metrics)
        for name, suite in self._evaluator.results.items():
            for kind, path in ("video", suite.video), ("replay", suite.page):
                if path is not None:
                    tag = f"eval/{name}/{kind}" if name else f"eval/{kind}"
                    self._track.file(trainer.state.step, tag, path)

    def save_spans(self) -> None:
        """Save the timers, if this process still owns the folder of the run."""
        if self._manager.owns_folder:
            self._spans.save(self._folder / "spans.json")
        self._saved_s = time.monotonic()


class Schedules(Callback):
    """Updates scheduled settings after each update."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Set the values at the current step."""
        follow_schedules(trainer.config, trainer.state)
