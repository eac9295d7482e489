"""Training and evaluation in one process, for benchmarks of learning."""

import os
import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_trainer import EvalConfig, StateManager, Trainer
from enn_trainer.callbacks import Callback
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import env_factory
from entity_env.named_world import find_world
from entity_env.vec.vec_env import VecEnv

ROOT = Path(__file__).parent.parent
RECENT = 4
"""Number of updates over which the training return is averaged."""


class FramesTo(Callback):
    """Callback that records the number of frames until the mean training return is high enough.

    Args:
        least: threshold of the mean return over `RECENT` updates.

    Attributes:
        frames: number of frames; None if the threshold was not reached.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self.frames: int | None = None
        self._means: deque[float] = deque(maxlen=RECENT)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Compare the mean return of the last updates with the threshold."""
        if (mean := metrics.get("episodic_reward.mean")) is not None:
            self._means.append(mean)
        is_high = len(self._means) == RECENT and statistics.mean(self._means) >= self.least
        if self.frames is None and is_high:
            self.frames = trainer.state.step


class Tenths(Callback):
    """Callback that averages an episode metric over each tenth of a run.

    Args:
        metric: name, such as "episodic_reward".
        frames: number of frames of the run.
    """

    def __init__(self, metric: str, frames: int) -> None:
        self._metric, self._frames = metric, frames
        self._sums, self._counts = np.zeros(10), np.zeros(10)

    @property
    def means(self) -> list[float]:
        """Mean of each tenth; NaN where no episode ended."""
        with np.errstate(invalid="ignore"):
            return [float(mean) for mean in self._sums / self._counts]

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add the episodes that ended in an update."""
        self.on_eval_end(trainer, metrics)

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add the episodes of an evaluation."""
        if count := metrics.get(f"{self._metric}.count", 0.0):
            tenth = min(9, 10 * (trainer.state.step - 1) // self._frames)
            self._sums[tenth] += count * metrics[f"{self._metric}.mean"]
            self._counts[tenth] += count


def train_and_measure(
    config: str | None,
    overrides: Sequence[str],
    seed: int,
    evaluations: Mapping[str, EvalConfig],
    metric: str = "episodic_reward",
    almost: float | None = None,
    world: Any = None,
    callbacks: Sequence[Callback] = (),
) -> dict[str, Any]:
    """Train an agent and return its results.

    Args:
        config: file in `configs/`, without ".ron"; None for the default settings.
        overrides: changes of the configuration.
        seed: seed of the run.
        evaluations: settings of evaluations after training, by name of the result.
        metric: metric of the evaluations; the result is its mean.
        almost: mean training return; the frames to reach it are reported.
        world: environment class; None for that of the configuration.
        callbacks: further callbacks of the run.

    Returns:
        "frames", "seconds" and "processor_seconds" of training, the result of each evaluation, and
        "almost" if requested.
    """
    with tempfile.TemporaryDirectory() as folder:
        start, path = time.perf_counter(), Path(folder) / "run"
        start_cpu = time.process_time()
        run_settings = (f"seed={seed}", f"data_dir={folder}", "rollout.processes=1")
        file = config and ROOT / "configs" / f"{config}.ron"
        manager = StateManager(
            init_path=file, checkpoint_dir=path, overrides=[*overrides, *run_settings]
        )
        frames_to = FramesTo(float("inf") if almost is None else almost)
        env = find_world(manager.config.env.id) if world is None else world
        with Trainer(manager, env, callbacks=[frames_to, *callbacks]) as trainer:
            trainer.run()
            done: dict[str, Any] = {
                "frames": manager.state.step,
                "seconds": round(time.perf_counter() - start, 1),
                "processor_seconds": round(time.process_time() - start_cpu, 1),
            }
            for name, settings in evaluations.items():
                done[name] = trainer.evaluate(settings)[f"eval/{metric}.mean"]
        return done if almost is None else done | {"almost": frames_to.frames}


class Seconds(NamedTuple):
    """Seconds of each update of a run.

    Attributes:
        wall: wall-clock time.
        cpu: processor time of all processes of the run.
    """

    wall: list[float]
    cpu: list[float]


def times_in_turns(
    cases: Mapping[str, tuple[Any, Sequence[str]]], updates: int
) -> dict[str, Seconds]:
    """Measure single-threaded runs that alternate update by update, in rotating order.

    Args:
        cases: environment and settings of each run.
        updates: number of measured updates, after one warm-up.

    Returns:
        Seconds of the updates, by case.
    """
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trainers, envs = {}, {}
        for name, (world, settings) in cases.items():
            more = (*settings, "total_timesteps=1000000000", f"data_dir={folder}")
            noted = CountedEnvs(world)
            trainer = Trainer(StateManager(overrides=more), noted.create)
            trainers[name], envs[name] = stack.enter_context(trainer), noted
        times = {name: Seconds([], []) for name in cases}
        for i in range(updates + 1):
            for name in np.roll([*cases], i):
                start_s, start_cpu_s = time.perf_counter(), envs[name].cpu_s()
                trainers[name].step()
                if i > 0:
                    times[name].wall.append(time.perf_counter() - start_s)
                    times[name].cpu.append(envs[name].cpu_s() - start_cpu_s)
        return times


class CountedEnvs:
    """Factory of the environments of a run that keeps a reference to them."""

    def __init__(self, world: Any) -> None:
        self._factory = env_factory(world)

    def create(self, config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
        """Create the environments."""
        self._envs = self._factory(config, num_envs, processes, first)
        return self._envs

    def cpu_s(self) -> float:
        """Return the processor time of this process and of the worker processes."""
        worker_seconds = [
            times.cpu_s for times in self._envs.process_times() if times.pid != os.getpid()
        ]
        return time.process_time() + sum(worker_seconds)


def seconds_in_turns(
    cases: Mapping[str, tuple[Any, Sequence[str]]], updates: int
) -> dict[str, float]:
    """Return the median seconds of an update of each case, see `times_in_turns`."""
    times = times_in_turns(cases, updates)
    return {name: statistics.median(seconds.wall) for name, seconds in times.items()}


def relative_speed(first: Seconds, other: Seconds) -> tuple[float, float]:
    """Return the speed relative to the first run, by wall-clock and by processor time.

    Both are medians over the ratios of rounds.
    """
    wall, cpu = (
        statistics.median(a / b for a, b in zip(first_times, other_times, strict=True))
        for first_times, other_times in zip(first, other, strict=True)
    )
    return wall, cpu


def results_of_row(name: str, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of a row, ordered by seed."""
    return sorted((r for r in results if r["row"] == name), key=lambda r: r["seed"])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format a Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "| " + " | ".join(["---"] * len(rows[0])) + " |", *lines[1:]]


def frames_by_seed(results: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Format "almost" of each seed, and return its median, infinite if it is never reached."""
    text = ", ".join(
        f"{r['seed']}: {'never' if r['almost'] is None else format(r['almost'], ',')}"
        for r in results
    )
    frames = [float("inf") if r["almost"] is None else r["almost"] for r in results]
    return text, statistics.median(frames)
