"""Damage saves and recordings and kill runs for as long as it takes, and sum up what came of it.

    python -m tests.soak --seed 7
    python -m tests.soak --flip-every 20 --truncations 0 --mutations 0 --kills 20

Everything is a function of the seed but the moments of kills, which depend on the machine as well.
"""

import argparse
import secrets
import tempfile
from collections import Counter
from pathlib import Path

import torch

from tests.soak.damage import Summary, episodes, flips, mutations, truncations
from tests.soak.false_manifests import false_manifests
from tests.soak.forks import fork_and_kill
from tests.soak.kills import TAUGHT, WITH_POOL, kill_runs
from tests.soak.losses import lose_workers
from tests.soak.ranks import disturb_ranks
from tests.soak.recordings import recordings
from tests.soak.stops import stop_runs


def main() -> None:
    """Do what the command line asks for; an exception says what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, help="of all choices; a new one by default")
    parser.add_argument("--flip-every", type=int, default=1, help="flip one byte of so many")
    parser.add_argument("--truncations", type=int, default=2_000)
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--manifests", type=int, default=5_000)
    parser.add_argument("--recordings", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--pool-kills", type=int, default=100, help="of runs with opponents")
    parser.add_argument("--lesson-kills", type=int, default=50, help="of runs with a curriculum")
    parser.add_argument("--forks", type=int, default=100, help="kills of runs that start processes")
    parser.add_argument("--losses", type=int, default=100, help="of workers")
    parser.add_argument("--rank-kills", type=int, default=20, help="in a run of several ranks")
    parser.add_argument("--rank-stops", type=int, default=5, help="in the same run")
    parser.add_argument("--stops", type=int, default=200, help="with evaluations due")
    parser.add_argument("--reasons", action="store_true", help="say why mutations were refused")
    asked = parser.parse_args()
    seed: int = secrets.randbelow(10**6) if asked.seed is None else asked.seed
    print(f"seed {seed}", flush=True)
    torch.set_num_threads(1)  # threads do not survive the forks of `kill_runs`
    with tempfile.TemporaryDirectory(prefix="soak-", ignore_cleanup_errors=True) as path:
        folder = Path(path)
        if asked.kills:
            print(f"kills: {kill_runs(_new(folder, 'kills'), seed, asked.kills)}", flush=True)
        if asked.pool_kills:
            done_kills = kill_runs(_new(folder, "pool"), seed, asked.pool_kills, WITH_POOL)
            print(f"kills with a pool: {done_kills}", flush=True)
        if asked.lesson_kills:
            done_kills = kill_runs(_new(folder, "lessons"), seed, asked.lesson_kills, TAUGHT)
            print(f"kills with lessons: {done_kills}", flush=True)
        if asked.forks:
            print(f"forks: {fork_and_kill(_new(folder, 'forks'), seed, asked.forks)}", flush=True)
        if asked.losses:
            print(f"losses: {lose_workers(_new(folder, 'losses'), seed, asked.losses)}", flush=True)
        if asked.rank_kills or asked.rank_stops:
            counts = asked.rank_kills, asked.rank_stops
            done_ranks = disturb_ranks(_new(folder, "ranks"), seed, *counts)
            print(f"ranks: {done_ranks}", flush=True)
        if asked.stops:
            print(f"stops: {stop_runs(_new(folder, 'stops'), seed, asked.stops)}", flush=True)
        if asked.flip_every:
            _say("flips", flips(_new(folder, "flips"), seed, asked.flip_every))
            of_opponents = flips(_new(folder, "opponents"), seed, asked.flip_every, pool=True)
            _say("flips in opponents", of_opponents)
        if asked.truncations:
            _say("truncations", truncations(_new(folder, "cuts"), seed, asked.truncations))
        if asked.mutations:
            done = mutations(_new(folder, "mutations"), seed, asked.mutations)
            _say("mutations", done)
            _say_reasons(done.reasons if asked.reasons else Counter())
        if asked.manifests:
            _say("manifests", false_manifests(_new(folder, "manifests"), seed, asked.manifests))
        if asked.episodes:
            done = episodes(_new(folder, "episodes"), seed, asked.episodes)
            _say("episodes", done)
            _say_reasons(done.reasons if asked.reasons else Counter())
        if asked.recordings:
            done = recordings(_new(folder, "recordings"), seed, asked.recordings)
            _say("recordings", done)
            _say_reasons(done.reasons if asked.reasons else Counter())


def _new(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def _say(what: str, summary: Summary) -> None:
    print(f"{what}: {summary}", flush=True)


def _say_reasons(reasons: Counter[str]) -> None:
    for reason, count in reasons.most_common():
        print(f"{count:6} {reason}")


if __name__ == "__main__":
    main()
