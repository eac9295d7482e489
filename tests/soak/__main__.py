"""Damage saves and recordings and kill runs for ten minutes, and sum up what came of it.

    python -m tests.soak --seed 7
    python -m tests.soak --flip-every 20 --truncations 0 --mutations 0 --kills 20

The time of each kind is at the end of its line.
Everything is a function of the seed but the moments of kills, which depend on the machine as well.
"""

import argparse
import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.soak.damage import Summary, episodes, flips, mutations, truncations
from tests.soak.false_manifests import false_manifests
from tests.soak.forks import fork_and_kill
from tests.soak.kills import ALONE, TAUGHT, WITH_POOL, Case, kill_runs
from tests.soak.losses import lose_workers
from tests.soak.ranks import disturb_ranks
from tests.soak.recordings import recordings
from tests.soak.stops import stop_runs


def main() -> None:
    """Do what the command line asks for; an exception says what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all choices; a new one by default")
    parser.add_argument("--flip-every", type=int, default=1, help="of how many bytes one flips")
    parser.add_argument("--truncations", type=int, default=1_000)
    parser.add_argument("--mutations", type=int, default=6_000)
    parser.add_argument("--episodes", type=int, default=600)
    parser.add_argument("--manifests", type=int, default=3_000)
    parser.add_argument("--recordings", type=int, default=6_000)
    parser.add_argument("--kills", type=int, default=150)
    parser.add_argument("--pool-kills", type=int, default=80, help="of runs with opponents")
    parser.add_argument("--lesson-kills", type=int, default=40, help="of runs with a curriculum")
    at_operations = "kill before operations on the disk, of each kind in turn"
    parser.add_argument("--at-operations", action="store_true", help=at_operations)
    parser.add_argument("--forks", type=int, default=50, help="kills of runs that start processes")
    parser.add_argument("--losses", type=int, default=60, help="of workers")
    parser.add_argument("--rank-kills", type=int, default=8, help="in a run of several ranks")
    parser.add_argument("--rank-stops", type=int, default=2, help="in the same run")
    parser.add_argument("--stops", type=int, default=60, help="with evaluations due")
    parser.add_argument("--reasons", action="store_true", help="say why mutations were refused")
    asked = parser.parse_args()
    seed: int = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)  # threads do not survive the forks of `kill_runs`
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as path:
        for name, count, work in _kinds(asked, seed):
            if not count:
                continue
            folder = Path(path, name.replace(" ", "-"))
            folder.mkdir()
            begin = time.monotonic()
            done = work(folder)
            print(f"{name}: {done} [{time.monotonic() - begin:.0f} s]", flush=True)
            if asked.reasons and isinstance(done, Summary):
                _say_reasons(done.reasons)
    print(f"{time.monotonic() - start:.0f} s in all", flush=True)


def _kinds(asked: argparse.Namespace, seed: int) -> list[tuple[str, int, Callable[[Path], object]]]:
    """Return the name and count of each kind, and what does it in a folder and sums it up."""

    def kills(count: int, case: Case) -> Callable[[Path], object]:
        return lambda folder: kill_runs(folder, seed, count, case, asked.at_operations)

    def flip(pool: bool) -> Callable[[Path], object]:
        return lambda folder: flips(folder, seed, asked.flip_every, pool)

    def damage(of_kind: Callable[[Path, int, int], object], count: int) -> Any:
        return lambda folder: of_kind(folder, seed, count)

    ranks = asked.rank_kills, asked.rank_stops
    return [
        ("kills", asked.kills, kills(asked.kills, ALONE)),
        ("kills with a pool", asked.pool_kills, kills(asked.pool_kills, WITH_POOL)),
        ("kills with lessons", asked.lesson_kills, kills(asked.lesson_kills, TAUGHT)),
        ("forks", asked.forks, damage(fork_and_kill, asked.forks)),
        ("losses", asked.losses, damage(lose_workers, asked.losses)),
        ("ranks", sum(ranks), lambda folder: disturb_ranks(folder, seed, *ranks)),
        ("stops", asked.stops, damage(stop_runs, asked.stops)),
        ("flips", asked.flip_every, flip(pool=False)),
        ("flips in opponents", asked.flip_every, flip(pool=True)),
        ("truncations", asked.truncations, damage(truncations, asked.truncations)),
        ("mutations", asked.mutations, damage(mutations, asked.mutations)),
        ("manifests", asked.manifests, damage(false_manifests, asked.manifests)),
        ("episodes", asked.episodes, damage(episodes, asked.episodes)),
        ("recordings", asked.recordings, damage(recordings, asked.recordings)),
    ]


def _say_reasons(reasons: Counter[str]) -> None:
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")


if __name__ == "__main__":
    main()
