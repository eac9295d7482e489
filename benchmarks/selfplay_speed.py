"""Speed and memory of training against a pool, compared with mirror play.

    python benchmarks/selfplay_speed.py [--updates 60] [--results FILE.md]

The runs alternate update by update in one process, under equal load. Frames of all sides count. A
ratio compares the median times of an update.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from measured_on import processor, short_revision

from enn_trainer import StateManager, Trainer, train
from enn_trainer.base.tables import aligned
from enn_trainer.run.selfplay import SelfPlay
from entity_env.examples import Duel

RESULTS = Path(__file__).parent / "results" / "selfplay_speed.md"
SETTINGS = [
    *("rollout.num_envs=128", "rollout.steps=32", "rollout.processes=1"),
    *("net.d_model=32", "optim.bs=1024", "ppo.ent_coef=0.1", "total_timesteps=1000000000"),
]
IN_PLAY = {1: 1.0, 4: 0.95, 8: 0.85}
"""Numbers of members in play, and the target ratio."""
MEMBERS = 64
LARGE = ["net.d_model=144", "net.n_layer=4"]
"""Network of a million parameters."""


class Speed(NamedTuple):
    """Times of updates.

    Attributes:
        ms: median time of an update.
        league_ms: mean time of draws, results, ratings and snapshots per update.
    """

    ms: float
    league_ms: float


_HOOKS = ("on_update_start", "on_rollout_end", "on_update_end")
_league_s = 0.0
"""Total time of the hooks of `SelfPlay` in seconds."""


def _time_hooks() -> None:
    """Instrument the hooks of `SelfPlay` to add their time to `_league_s`."""
    for name in _HOOKS:
        setattr(SelfPlay, name, _timed(getattr(SelfPlay, name)))


def _timed(hook: Callable[..., None]) -> Callable[..., None]:
    def timed(*args: Any) -> None:
        global _league_s
        start = time.perf_counter()
        hook(*args)
        _league_s += time.perf_counter() - start

    return timed


def measure_speed(pool: Path, updates: int) -> dict[str, Speed]:
    """Measure the speed of alternating runs with and without a pool.

    Args:
        pool: run with the maximal number of opponents in play.
        updates: number of updates of each run.
    """
    _time_hooks()
    against = ["selfplay.share=0.5", "selfplay.snapshot_every=0", "selfplay.choose=uniform"]
    named = f'selfplay.opponents=["{pool}@opponents"]'
    cases = {"mirror": SETTINGS}
    for count in IN_PLAY:
        cases[f"{count} in play"] = [*SETTINGS, *against, named, f"selfplay.in_play={count}"]
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        trainers = {
            name: stack.enter_context(
                Trainer(StateManager(overrides=[*settings, f"data_dir={folder}"]), Duel)
            )
            for name, settings in cases.items()
        }
        for i in range(updates + 2):
            for name, trainer in trainers.items():
                before, start = _league_s, time.perf_counter()
                trainer.step()
                if i >= 2:  # the first updates are slower
                    took = time.perf_counter() - start
                    seconds[name].append((took, _league_s - before))
    return {
        name: Speed(
            1000 * statistics.median(whole for whole, _ in times),
            1000 * statistics.mean(part for _, part in times),
        )
        for name, times in seconds.items()
    }


def measure_memory() -> float:
    """Return the additional memory in MB of a run with many members of a million parameters."""
    with_pool, without = (_resident_apart(case) for case in ("with", "without"))
    return with_pool - without


def _resident_apart(case: str) -> float:
    """Return the memory of a run in a separate process, in MB."""
    command = [sys.executable, __file__, "--resident", case]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def print_resident(case: str) -> None:
    """Print the memory of this process after one update per member."""
    settings = [*SETTINGS, *LARGE, "rollout.num_envs=32", "rollout.steps=8", "optim.bs=192"]
    if case == "with":
        settings += [f"selfplay.capacity={MEMBERS}", "selfplay.snapshot_every=192"]
        settings += ["selfplay.share=0.5"]
    with TemporaryDirectory() as folder:
        manager = StateManager(overrides=[*settings, f"data_dir={folder}"])
        with Trainer(manager, Duel) as trainer:
            for _ in range(MEMBERS):
                trainer.step()
            members = 0 if trainer.league is None else len(trainer.league.pool)
            assert members == (MEMBERS if case == "with" else 0)
            print(_resident_mb())


def _resident_mb() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


def new_pool(folder: Path, members: int) -> Path:
    """Train a run that collects `members` opponents."""
    every = 4 * 128
    settings = [*SETTINGS, "rollout.steps=4", "optim.bs=256", "selfplay.share=0.0"]
    settings += [f"selfplay.snapshot_every={every}", f"data_dir={folder}"]
    total = f"total_timesteps={every * (members - 1)}"
    train(StateManager(overrides=[*settings, total], checkpoint_dir=folder / "pool"), Duel)
    return folder / "pool"


def document(speeds: dict[str, Speed], memory_mb: float, updates: int) -> str:
    """Return the document with the results."""
    mirror = speeds["mirror"]
    bars = {f"{count} in play": bar for count, bar in IN_PLAY.items()}
    rows: list[Sequence[str]] = [["run", "ms/update", "ratio", "to reach", "league"]]
    for name, speed in speeds.items():
        share = speed.league_ms / speed.ms
        bar = str(bars.get(name, ""))
        rows.append([name, f"{speed.ms:.1f}", f"{mirror.ms / speed.ms:.3f}", bar, f"{share:.2%}"])
    return "\n".join(
        [
            "# Speed of training against a pool",
            "",
            f"`python benchmarks/selfplay_speed.py`, commit {short_revision()}, {processor()}, "
            f"{os.cpu_count()} cores, torch {torch.__version__}. Duel with 128 sides, d_model 32, "
            f"share 0.5; medians of {updates} updates of 4,096 frames of all sides, runs in turns. "
            "The ratio is that of frames/s of all sides; three quarters of them are learnt from. "
            "*league* is the share of draws, results and ratings in an update.",
            "",
            "```",
            *aligned(rows),
            "```",
            "",
            f"{MEMBERS} members of a million parameters: {memory_mb:.0f} MB more (at most 300).",
            "",
        ]
    )


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--resident", choices=["with", "without"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.resident:
        print_resident(options.resident)
        return
    memory_mb = measure_memory()
    with TemporaryDirectory() as folder:
        pool = new_pool(Path(folder), max(IN_PLAY))
        speeds = measure_speed(pool, options.updates)
    options.results.write_text(document(speeds, memory_mb, options.updates))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
