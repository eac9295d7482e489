"""Agents that are trained in one process and then measured, for benchmarks of learning."""

import statistics
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from enn_trainer import EvalConfig, StateManager, Trainer
from enn_trainer.callbacks import Callback
from enn_trainer.callbacks.callback import RunningTrainer
from entity_env.named_world import find_world

ROOT = Path(__file__).parent.parent
RECENT = 4
"""Updates whose mean return tells when a return is reached while training."""


class FramesTo(Callback):
    """Finds the number of frames after which the mean return while training is high enough.

    Args:
        least: the mean return of `RECENT` updates.

    Attributes:
        frames: the number; None if it is not reached.
    """

    def __init__(self, least: float) -> None:
        self.least = least
        self.frames: int | None = None
        self._means: deque[float] = deque(maxlen=RECENT)

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Look at the returns of the last updates."""
        if (mean := metrics.get("episodic_reward.mean")) is not None:
            self._means.append(mean)
        is_high = len(self._means) == RECENT and statistics.mean(self._means) >= self.least
        if self.frames is None and is_high:
            self.frames = trainer.state.step


def train_and_measure(
    config: str | None,
    overrides: Sequence[str],
    seed: int,
    evaluations: Mapping[str, EvalConfig],
    metric: str = "episodic_reward",
    almost: float | None = None,
    world: Any = None,
) -> dict[str, Any]:
    """Train an agent and return its results.

    Args:
        config: file in `configs/`, without ".ron"; None for the default settings.
        overrides: changes of the configuration.
        seed: of the run.
        evaluations: settings of evaluations after training, by the names of their results.
        metric: its mean is the result.
        almost: mean return while training, of which it is counted how many frames it takes.
        world: the environment; None for that of the configuration.

    Returns:
        "frames", "seconds" of training, the result of each evaluation, and "almost" if asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        start, path = time.perf_counter(), Path(folder) / "run"
        own = (f"seed={seed}", f"data_dir={folder}", "rollout.processes=1")
        file = config and ROOT / "configs" / f"{config}.ron"
        manager = StateManager(init_path=file, checkpoint_dir=path, overrides=[*overrides, *own])
        frames_to = FramesTo(float("inf") if almost is None else almost)
        env = find_world(manager.config.env.id) if world is None else world
        with Trainer(manager, env, callbacks=[frames_to]) as trainer:
            trainer.run()
            done: dict[str, Any] = {
                "frames": manager.state.step,
                "seconds": round(time.perf_counter() - start, 1),
            }
            for name, settings in evaluations.items():
                done[name] = trainer.evaluate(settings)[f"eval/{metric}.mean"]
        return done if almost is None else done | {"almost": frames_to.frames}


def seconds_in_turns(
    cases: Mapping[str, tuple[Any, Sequence[str]]], updates: int
) -> dict[str, float]:
    """Let runs of one thread take turns, update by update.

    Args:
        cases: the environment and the settings of each run.
        updates: of each, after one that warms up.

    Returns:
        The median seconds of an update, by case.
    """
    torch.set_num_threads(1)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trainers = {}
        for name, (world, settings) in cases.items():
            more = (*settings, "total_timesteps=1000000000", f"data_dir={folder}")
            trainers[name] = stack.enter_context(Trainer(StateManager(overrides=more), world))
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for i in range(updates + 1):
            for name, trainer in trainers.items():
                start = time.perf_counter()
                trainer.step()
                if i > 0:
                    seconds[name].append(time.perf_counter() - start)
        return {name: statistics.median(times) for name, times in seconds.items()}


def of_row(name: str, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the results of a row, by seed."""
    return sorted((r for r in results if r["row"] == name), key=lambda r: r["seed"])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, whose first row is its head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "| " + " | ".join(["---"] * len(rows[0])) + " |", *lines[1:]]


def frames_shown(results: Sequence[Mapping[str, Any]]) -> tuple[str, float]:
    """Return "almost" of each seed in words, and the median, infinite if it is never reached."""
    shown = ", ".join(
        f"{r['seed']}: {'never' if r['almost'] is None else format(r['almost'], ',')}"
        for r in results
    )
    frames = [float("inf") if r["almost"] is None else r["almost"] for r in results]
    return shown, statistics.median(frames)
