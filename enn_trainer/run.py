"""Clocks, metrics, progress display and tracking of a run."""

import difflib
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from enn_trainer.checkpoints.retention import measured
from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import scheduled_fields
from enn_trainer.config.train_config import read_best
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.evaluator import SuiteResult
from enn_trainer.experience.collector import Rollout
from enn_trainer.ppo.annealing import total_steps
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.stop_conditions import Condition, Now
from enn_trainer.tracking.action_statistics import action_statistics
from enn_trainer.tracking.open_track import open_track
from enn_trainer.tracking.progress import Progress, ProgressLine
from enn_trainer.tracking.spans import Spans
from enn_trainer.tracking.system_numbers import system_numbers
from enn_trainer.tracking.track import metric_scalars
from enn_trainer.tracking.track_jsonl import EVAL_PREFIX

SAVE_SPANS_EVERY_S = 60.0


class TrainResult(float):
    """Result of training: the mean return of the last rollout in which an episode ended.

    NaN if no episode ended.

    Attributes:
        step: frames of the run, over all restarts.
        checkpoint: the last save, or None.
        eval: scalars of the last evaluation by name, empty without one.
        interrupted: True if a signal requested to stop.
        stopped_by: the reason why the run ended, as text.
    """

    step: int
    checkpoint: Path | None
    eval: Mapping[str, float]
    interrupted: bool
    stopped_by: str


class Run:
    """Clocks, metrics, progress display and tracking of a run.

    Args:
        config: configuration of the run.
        state: state of the run; its clocks are advanced.
        manager: saves the state.
        stack: closes the tracker.
    """

    def __init__(
        self, config: TrainConfig, state: State, manager: StateManager, stack: ExitStack
    ) -> None:
        self.config = config
        self.state = state
        self.manager = manager

        # Clocks.
        self.total_steps = total_steps(config)
        self.first_step = state.step
        self.seconds = 0.0  # of updates in this process
        self.tick_s = self.update_start = time.monotonic()

        # Metrics, also of the save that the run resumes.
        self.metrics = state.metrics
        self.mean_return = self.metrics.get("episodic_reward.mean", float("nan"))
        self.saved: Path | None = None
        self.episodes = ""  # message on how episodes continue after a resume
        self._measured = (state.step, _measured_before(manager))
        self.last_eval = {t: v for t, v in self.metrics.items() if t.startswith(EVAL_PREFIX)}
        is_measured = any(tag.startswith(EVAL_PREFIX) for tag in self.measured)
        self.last_eval_step = state.step if is_measured else None
        self.fresh: set[str] = set()
        self.unknown: set[str] = set()
        self._best_keys = [read_best(text).key for text in config.checkpoint.best]

        # Display, timers and trackers.
        self.progress: Progress | None = None
        self.spans = Spans()
        self.spans_saved_s = self.tick_s
        track, self.folder = open_track(manager, self.say)
        self.track = stack.enter_context(track)
        stack.callback(self._save_spans)

    @contextmanager
    def show_progress(self) -> Iterator[None]:
        """Return a context in which the progress of the run is displayed."""
        limit = self.config.max_train_time
        seconds_left = None if limit is None else limit - self.state.time_used
        progress = Progress(self.total_steps, self.state.step, max_seconds=seconds_left)
        with progress as self.progress:
            before, self.manager.say = self.manager.say, self.progress.say
            try:
                if self.manager.resumed_from is not None and self.state.step == self.first_step:
                    path = self.manager.resumed_from.path
                    at = f"resumed {path} at step {self.state.step}"
                    self.progress.say(f"{at}; {self.episodes}")
                yield
            finally:
                self.manager.say = before
        self.progress = None

    def say(self, message: str) -> None:
        """Print a line that the progress display does not overwrite."""
        print(message) if self.progress is None else self.progress.say(message)

    def limit_reached(self) -> str | None:
        """Return the limit of steps or time that is reached, or None."""
        if self.state.step >= self.total_steps:
            return f"total_timesteps of {self.config.total_timesteps} reached"
        limit = self.config.max_train_time
        if limit is not None and self.state.time_used >= limit:
            return f"max_train_time of {limit} seconds reached"
        return None

    def condition_met(self, condition: Condition | None) -> str | None:
        """Return the condition if it is met, else None; call it once after new metrics."""
        fresh, self.fresh = frozenset(self.fresh), set()
        self._warn_of_unknown("checkpoint.best", self._best_keys)
        if condition is None:
            return None
        self._warn_of_unknown("stop", condition.keys())
        memory = self.state.memory
        # A resumed run evaluates its condition once more, without new metrics: do not count that.
        number = memory["asked"] = memory.get("asked", 0) + bool(fresh)
        now = Now(self.state.step, self.state.time_used, self.metrics, fresh, number)
        return str(condition) if condition.is_met(now, memory) else None

    def check_condition(self, condition: Condition | None) -> None:
        """Raise if a condition can never be met.

        Raises:
            ConfigError: it reads metrics of evaluations, but `eval` is not set.
        """
        for key in () if condition is None else condition.keys():
            if key.startswith(EVAL_PREFIX) and self.config.eval is None:
                raise ConfigError(
                    f"stop: {key}: expected evaluations, there are none; set eval.interval and "
                    "what to play, such as eval.steps"
                )

    def eval_is_due(self) -> bool:
        """Return True if an evaluation is due at this step."""
        due = self.state.next_eval_step
        return self.config.eval is not None and due is not None and self.state.step >= due

    def advance_eval_clock(self) -> None:
        """Set the step of the next evaluation."""
        assert self.config.eval is not None
        assert self.state.next_eval_step is not None
        while self.state.next_eval_step <= self.state.step:  # not twice at one step
            self.state.next_eval_step += self.config.eval.interval

    def start_clock(self) -> None:
        """Count time from now on."""
        self.tick_s = time.monotonic()

    def tick(self) -> None:
        """Count the time since the last tick."""
        now = time.monotonic()
        self.state.time_used += now - self.tick_s
        self.seconds += now - self.tick_s
        self.tick_s = now

    def begin_update(self) -> None:
        """Store the time at which an update begins."""
        self.update_start = time.monotonic()

    def end_update(self, rollout: Rollout, learnt: Mapping[str, float]) -> dict[str, float]:
        """Count the time of an update and return its metrics by tag."""
        self.tick()
        seconds = max(self.tick_s - self.update_start, 1e-9)
        own_ms, self.phases_ms = self.spans.since_last()
        with self.spans.span("track"):
            fps = rollout.num_frames / seconds
            scheduled = scheduled_fields(self.config).items()
            return {
                **metric_scalars(rollout.metrics),
                **learnt,
                **action_statistics(rollout, self.state.action_space),
                **{f"schedule/{path}": value for path, value in scheduled},
                "charts/SPS": (self.state.step - self.first_step) / max(self.seconds, 1e-9),
                "restart": self.state.restart,
                "throughput": fps,
                "fps": fps,
                "eps": rollout.batch.num_entities() / seconds,
                **system_numbers(rollout.values.device),
                **self.manager.take_save_numbers(),
                **{f"trace/{path}": ms for path, ms in own_ms.items()},
            }

    def measure(self, scalars: Mapping[str, float]) -> None:
        """Add metrics that were measured at this step."""
        self._measured = (self.state.step, {**self.measured, **scalars})

    @property
    def measured(self) -> dict[str, float]:
        """Metrics that were measured at exactly this step, by tag."""
        step, scalars = self._measured
        return scalars if step == self.state.step else {}

    def report_update(self, rollout: Rollout, metrics: Mapping[str, float]) -> None:
        """Track the metrics of an update and display its progress."""
        # Tracking, and the spans from time to time.
        with self.spans.span("track"):
            self._track(metrics)
        episodes, length = rollout.metrics["episodic_reward"], rollout.metrics["episode_length"]
        if episodes.count:
            self.mean_return = episodes.mean
        if self.tick_s - self.spans_saved_s >= SAVE_SPANS_EVERY_S:
            self._save_spans()

        # Progress display.
        if self.progress is None:
            return
        tags = {name: f"policy/{name}/normalised_entropy" for name in rollout.actions}
        self.progress.update(
            ProgressLine(
                step=self.state.step,
                mean_return=episodes.mean if episodes.count else None,
                episode_length=length.mean if episodes.count else None,
                episodes=episodes.count,
                entropy=metrics["losses/entropy"],
                approx_kl=metrics["losses/approx_kl"],
                explained_variance=metrics["losses/explained_variance"],
                learning_rate=metrics["charts/learning_rate"],
                frames_per_s=metrics["fps"],
                entities_per_s=metrics["eps"],
                entities_per_frame=rollout.batch.num_entities() / rollout.num_frames,
                normalised_entropies={n: metrics[tag] for n, tag in tags.items() if tag in metrics},
                phases_ms=self.phases_ms,
                memory_mb=metrics["system/rss_mb"],
            )
        )

    def show_eval(self, suite: str, share: float) -> None:
        """Display the share of a suite that is played, from 0 to 1."""
        if self.progress is not None:
            self.progress.evaluating(share)

    def report_eval(self, suites: Mapping[str, SuiteResult], scalars: Mapping[str, float]) -> None:
        """Track the metrics of an evaluation and print its results."""
        self.last_eval, self.last_eval_step = dict(scalars), self.state.step
        self._track(scalars)
        for name, suite in suites.items():
            if suite.film is not None:
                tag = f"eval/{name}/video" if name else "eval/video"
                self.track.video(self.state.step, tag, suite.film)
            if self.progress is not None and not name:
                self.progress.evaluated(self.state.step, suite.in_words())
            else:
                where = f"[eval {name}]" if name else "[eval]"
                self.say(f"{where} step {self.state.step}  {suite.in_words()}")

    def save(self, why: str, kept_as: Literal["end", "interrupted", "failed"]) -> Path | None:
        """Save the run at its end, and print why it ends and the path of the save.

        Args:
            why: reason why the run ends, for the message.
            kept_as: reason of the save, for its manifest.
        """
        # The save of a failed run lacks episodes, so it does not replace one that has them.
        supersedes = kept_as != "failed"
        self.saved = self.manager.save(kept_as, self.measured, supersedes)
        where = f"saved {self.saved}" if self.saved is not None else "nothing was saved"
        if self.saved is not None or kept_as != "end":
            self.say(f"{why}, {where}")
        return self.saved

    def keep(self, why: str, newest: Path) -> None:
        """Print why the run ends, and that the newest save is kept instead of a new one."""
        self.saved = newest
        self.say(f"{why}, {newest} is kept")

    def result(self, why: str, interrupted: bool) -> TrainResult:
        """Return the result of `train`."""
        result = TrainResult(self.mean_return)
        result.step, result.checkpoint = self.state.step, self.saved
        result.eval, result.interrupted, result.stopped_by = self.last_eval, interrupted, why
        return result

    def _save_spans(self) -> None:
        self.spans.save(self.folder / "spans.json")
        self.spans_saved_s = time.monotonic()

    def _warn_of_unknown(self, field: str, keys: Iterable[str]) -> None:
        """Warn once if a setting names a metric that was not logged so far.

        It is no error, as the environment may log the metric later.
        """
        for key in sorted(set(keys) - self.metrics.keys() - self.unknown):
            of_eval = key.startswith(EVAL_PREFIX)
            if self.last_eval if of_eval else not math.isnan(self.mean_return):
                others = self.last_eval if of_eval else self.metrics
                nearest = difflib.get_close_matches(key, others, n=1, cutoff=0.0)[0]
                self.say(f"{field}: no metric {key!r} so far, did you mean {nearest!r}?")
                self.unknown.add(key)

    def _track(self, scalars: Mapping[str, float]) -> None:
        self.measure(scalars)
        self.metrics.update(scalars)
        self.fresh.update(scalars)
        self.track.write(self.state.step, scalars)


def _measured_before(manager: StateManager) -> dict[str, float]:
    """Return the metrics in the manifest of the save that the run resumes, if taken at its step."""
    saved = manager.resumed_from
    if saved is None or not manager.is_resumed_in_place or saved.step != manager.state.step:
        return {}
    return measured(saved.manifest)
