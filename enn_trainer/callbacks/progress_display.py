"""Progress display of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import nan

from enn_trainer.algorithms.optimizers import total_steps
from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.callbacks.run_metrics import RunMetrics
from enn_trainer.evaluation.evaluator import RunEvaluator
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.progress import Progress, ProgressLine


class ProgressDisplay(Callback):
    """Displays the progress of a run while it is shown.

    Args:
        manager: state manager of the run, whose messages are displayed.
        numbers: the last rollout, and the durations of its phases.
        evaluator: has the results of the last evaluation.
    """

    def __init__(self, manager: StateManager, numbers: RunMetrics, evaluator: RunEvaluator) -> None:
        self._manager, self._numbers, self._evaluator = manager, numbers, evaluator
        self._first_step = manager.state.step
        self._progress: Progress | None = None

    @contextmanager
    def shown(self, episodes: str) -> Iterator[None]:
        """Return a context in which the progress of the run is displayed.

        Args:
            episodes: message on how episodes continue after a resume.
        """
        config, state, manager = self._manager.config, self._manager.state, self._manager
        limit = config.max_train_time
        seconds_left = None if limit is None else limit - state.time_used
        progress = Progress(total_steps(config), state.step, max_seconds=seconds_left)
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
        print(message) if self._progress is None else self._progress.say(message)

    def evaluating(self, suite: str, share: float) -> None:
        """Display the share of a suite that is played, from 0 to 1."""
        if self._progress is not None:
            self._progress.evaluating(share)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Display the progress of an update."""
        rollout = self._numbers.rollout
        if self._progress is None or rollout is None:
            return
        episodes, length = rollout.metrics["episodic_reward"], rollout.metrics["episode_length"]
        tags = {name: f"policy/{name}/normalised_entropy" for name in rollout.actions}
        self._progress.update(
            ProgressLine(
                step=trainer.state.step,
                mean_return=episodes.mean if episodes.count else None,
                episode_length=length.mean if episodes.count else None,
                episodes=episodes.count,
                entropy=metrics.get("losses/entropy", nan),
                approx_kl=metrics.get("losses/approx_kl", nan),
                explained_variance=metrics.get("losses/explained_variance", nan),
                learning_rate=metrics.get("charts/learning_rate", nan),
                frames_per_s=metrics["fps"],
                entities_per_s=metrics["eps"],
                entities_per_frame=rollout.batch.num_entities() / rollout.num_frames,
                normalised_entropies={n: metrics[tag] for n, tag in tags.items() if tag in metrics},
                phases_ms=self._numbers.phases_ms,
                memory_mb=metrics["system/rss_mb"],
            )
        )

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Print the results of an evaluation."""
        step = trainer.state.step
        for name, suite in self._evaluator.results.items():
            if self._progress is not None and not name:
                self._progress.evaluated(step, suite.in_words())
            else:
                where = f"[eval {name}]" if name else "[eval]"
                self.say(f"{where} step {step}  {suite.in_words()}")
