"""Steps of environments in actors of a local Ray cluster, compared with worker processes.

    python benchmarks/ray_workers.py [--sleep-ms 1 5 20 100] [--workers 8] [--seconds 3]

Each environment sleeps in its step. Both kinds alternate, and the ratio is the median over the
rounds of one run. The table is written to `results/ray_workers.md`.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from measured_on import processor, short_revision

from entity_env import Action, Observation, ParallelEnvList, Ragged
from entity_env.examples import MoveToOrigin
from entity_env.vec.ray_cluster import cluster
from entity_env.vec.ray_worker import RayWorker

RESULTS = Path(__file__).parent / "results/ray_workers.md"
TARGETS = {1.0: 0.25, 5.0: 0.6, 20.0: 0.85, 100.0: 0.96}
ROUNDS = 3


class SleepingWorld(MoveToOrigin):
    """Simulator with a step of given duration that does not use the processor."""

    sleep_s = 0.0

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Sleep, then take a step."""
        time.sleep(self.sleep_s)
        return super().act(actions)


def make_world(sleep_s: float) -> SleepingWorld:
    """Create an environment that sleeps for `sleep_s` seconds in each step."""
    world = SleepingWorld()
    world.sleep_s = sleep_s
    return world


def steps_per_s(envs: ParallelEnvList, seconds: float) -> float:
    """Measure steps of all environments per second."""
    ones = np.ones(len(envs), dtype=np.int64)
    space = envs.obs_space()
    names = [*envs.action_space()]
    chosen = {name: Ragged(0 * ones, ones) for name in names}
    steps, start_s = 0, time.monotonic()
    while time.monotonic() - start_s < seconds:
        envs.act(chosen, space)
        steps += 1
    return steps / (time.monotonic() - start_s)


def measure(ray: Any, sleep_ms: float, workers: int, seconds: float) -> tuple[float, float, float]:
    """Return steps per second in processes and in actors, and the median ratio over rounds."""
    create = functools.partial(make_world, sleep_ms / 1000)
    new: Callable[..., Any] = functools.partial(RayWorker, ray, {"CPU": 0.01})
    with (
        closing(ParallelEnvList(create, workers, workers)) as process_envs,
        closing(ParallelEnvList(create, workers, workers, new_worker=new)) as actor_envs,
    ):
        for envs in (process_envs, actor_envs):
            envs.seed(0)
            envs.reset(envs.obs_space())
            steps_per_s(envs, 0.5)
        rounds = [
            (steps_per_s(process_envs, seconds), steps_per_s(actor_envs, seconds))
            for _ in range(ROUNDS)
        ]
    ratios = [actors / processes for processes, actors in rounds]
    processes, actors = (statistics.median(column) for column in zip(*rounds, strict=True))
    return processes, actors, statistics.median(ratios)


def main() -> None:
    """Measure all rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleep-ms", type=float, nargs="+", default=[*TARGETS])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    rows = []
    with cluster("auto", "ray_workers") as ray:
        for sleep_ms in options.sleep_ms:
            got = measure(ray, sleep_ms, options.workers, options.seconds)
            target = TARGETS.get(sleep_ms)
            rows.append(
                f"| {sleep_ms:g} | {got[0]:.1f} | {got[1]:.1f} | {got[2]:.2f} | {target or '-'} |"
            )
            print(rows[-1], flush=True)
    text = (
        f"# Ray workers and worker processes\n\n{options.workers} workers of one environment, "
        f"medians of {ROUNDS} rounds of {options.seconds:g} s in turns, on {processor()}, commit "
        f"{short_revision()}. Measured by `benchmarks/ray_workers.py`.\n\n"
        "| a step sleeps, ms | steps/s, processes | steps/s, actors | ratio | at least |\n"
        "| --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
