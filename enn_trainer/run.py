"""The clocks of a run and what it tells people: everything around the learning."""

import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

from enn_trainer.action_statistics import action_statistics
from enn_trainer.annealing import Rates, num_updates, rates_at
from enn_trainer.config import TrainConfig
from enn_trainer.interrupt import Interrupts
from enn_trainer.open_track import open_track
from enn_trainer.optimizers import begin_update
from enn_trainer.progress import Progress, ProgressLine
from enn_trainer.reward_scaling import reward_scalars
from enn_trainer.rollout import Rollout
from enn_trainer.schedules import scheduled_fields
from enn_trainer.spans import Spans
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.system_numbers import system_numbers
from enn_trainer.track import metric_scalars
from entity_env.vec_env import Metric

SAVE_SPANS_EVERY_S = 60.0


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


class Run:
    """A run that goes on.

    Args:
        config: of the run.
        state: of the run; its clocks are advanced.
        manager: saves it.
        stack: closes what the run opens.
    """

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
        self.spans = Spans()
        self.spans_saved = self.start
        self.progress = Progress(self.total_steps, state.step)
        track, self.folder = open_track(manager, self.progress.say)
        self.track = stack.enter_context(track)
        stack.callback(self._save_spans)
        stack.enter_context(self.progress)
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
        own_ms, phases = self.spans.since_last()
        with self.spans.span("track"):
            statistics = action_statistics(rollout, self.state.action_space)
            memory = system_numbers(rollout.values.device)
            self.track.write(
                self.state.step,
                {
                    **metric_scalars(rollout.metrics),
                    **losses,
                    **statistics,
                    "charts/learning_rate": rates.lr,
                    "charts/entropy_coef": rates.ent_coef,
                    **reward_scalars(self.state.reward_scaling),
                    **{f"schedule/{at}": now for at, now in scheduled_fields(self.config).items()},
                    "charts/SPS": (self.state.step - self.first_step) / (now - self.start),
                    "restart": self.state.restart,
                    "throughput": fps,
                    "fps": fps,
                    "eps": eps,
                    **memory,
                    **{f"trace/{path}": ms for path, ms in own_ms.items()},
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
                normalised_entropies={
                    name: statistics[f"policy/{name}/normalised_entropy"]
                    for name in rollout.actions
                    if f"policy/{name}/normalised_entropy" in statistics
                },
                phases_ms=phases,
                memory_mb=memory["system/rss_mb"],
            )
        )
        if now - self.spans_saved >= SAVE_SPANS_EVERY_S:
            self._save_spans()

    def begin_eval(self) -> Callable[[], bool]:
        """What an evaluation asks before each step: whether to end early. Shows how far it is."""
        assert self.config.eval is not None
        steps, asked = self.config.eval.steps, itertools.count()

        def is_to_end() -> bool:
            self.progress.evaluating(next(asked) / steps)
            return self.interrupts.requested

        return is_to_end

    def end_eval(self, metrics: Mapping[str, Metric]) -> None:
        """Tell how an evaluation went, unless it was cut short."""
        if self.interrupts.requested:
            return
        self.last_eval = metric_scalars(metrics, "eval/")
        self.track.write(self.state.step, self.last_eval)
        means = "  ".join(
            f"{name} {metric.mean:.4g}" for name, metric in metrics.items() if metric.count
        )
        self.progress.evaluated(self.state.step, means)

    def save(self) -> None:
        """Save the end of the run, and say where."""
        stopped = self.interrupts.requested
        self.saved = self.manager.save("interrupted" if stopped else "end")
        if self.saved is not None:
            self.progress.say(f"{'interrupted, ' if stopped else ''}saved {self.saved}")
        elif stopped:
            self.progress.say("interrupted; nothing was saved, there is no --checkpoint-dir")

    def _save_spans(self) -> None:
        self.spans.save(self.folder / "spans.json")
        self.spans_saved = time.monotonic()

    def result(self) -> TrainResult:
        """What `train` returns."""
        result = TrainResult(self.mean_return)
        result.step, result.checkpoint = self.state.step, self.saved
        result.eval, result.interrupted = self.last_eval, self.interrupts.requested
        return result
