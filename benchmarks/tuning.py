"""Searches of settings: gains on fresh seeds, time of the driver, frames that early ends save.

    python benchmarks/tuning.py [--minutes 30] [--jobs 2] [--out benchmarks/results/tuning.md]

TreasureHunt is searched from settings with which it learns little, MoveToOrigin from the shipped
configuration, which was tuned by hand. The best trials and the settings that a search began with
are trained with fresh seeds. In the remaining time, all seeds of the trials of TreasureHunt are
trained to their end, to see what pruning and the race of seeds saved, and whether the winner is
the same.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from measured_on import processor, short_revision

from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.shipped import shipped_configs
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.judge import Score, best_trials, is_better, score_of_run
from enn_trainer.tuning.report import confirmed_scores, verdict, winner
from enn_trainer.tuning.search import open_search
from enn_trainer.tuning.study import Plan, Study
from enn_trainer.tuning.trials import TrialRun, read_metric

METRIC = "episodic_reward.mean max"
"""A metric of training, as evaluations of TreasureHunt take longer: it has no time limit."""
RANGES = {
    "ppo.ent_coef": "loguniform 0.003 0.3",
    "optim.lr": "loguniform 1e-4 1e-2",
    "ppo.gamma": "1-loguniform 0.005 0.1",
    "optim.update_epochs": "int 1 6",
}
SEEDS = 3


class Search(NamedTuple):
    """A search.

    Attributes:
        config: name of the shipped configuration.
        settings: its changes.
        frames: frames of a run.
        share: share of the minutes that it trains, without fresh seeds.
    """

    config: str
    settings: tuple[str, ...]
    frames: int
    share: float


POOR = ("ppo.ent_coef=0.2", "ppo.anneal_entropy=false", "optim.lr=0.0001")
TREASURE_HUNT = Search("treasure_hunt", POOR, 60_000, 0.25)
MOVE_TO_ORIGIN = Search("move_to_origin", (), 200_000, 0.15)


class Result(NamedTuple):
    """Result of a search.

    Attributes:
        study: its study.
        driver_s: processor seconds of the driver.
        runs_s: processor seconds of the runs.
    """

    study: Study
    driver_s: float
    runs_s: float


def searched(row: Search, folder: Path, frames: int, options: argparse.Namespace) -> Result:
    """Run a search in a folder."""
    settings = [*row.settings, f"total_timesteps={frames}"]
    base = load_config(TrainConfig, shipped_configs()[row.config], settings)
    limits = {"jobs": options.jobs, "confirm": options.confirm, "keep": "all"}
    limits["budget_s"] = 60 * options.minutes * row.share
    plan = Plan(dump_config(base), RANGES, METRIC, SEEDS)
    study, all_limits = open_search(folder, plan, limits)
    driver_s, runs_s = time.process_time(), children_s()
    Driver(study, all_limits).run()
    return Result(study, time.process_time() - driver_s, children_s() - runs_s)


def children_s() -> float:
    """Return the processor seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Trained(NamedTuple):
    """Run of a trial that was trained to its end.

    Attributes:
        score: its score, signed.
        frames: number of frames.
    """

    score: float
    frames: int


def trained_to_the_end(study: Study, jobs: int, end_s: float) -> dict[int, list[Trained]]:
    """Train all seeds of trials to their end, in the order of trials, until a monotonic time.

    Returns:
        The runs of each trial with all seeds, by trial.
    """
    plan = study.plan

    def trained(number: int, seed: int) -> Trained | None:
        if time.monotonic() > end_s:
            return None
        run = TrialRun(study.run_dir(number, seed), study.arguments(number, seed))
        record = study.runs(number).get(seed)
        if record is None or record.ending != "completed":
            record = run.follow(plan.tag, is_stopped=lambda: time.monotonic() > end_s)
            if record.ending != "completed":
                return None
        metrics = read_metric(study.run_dir(number, seed), plan.tag)
        return Trained(plan.sign * score_of_run(metrics.curve), metrics.frames)

    numbers = [trial.number for trial in study.trials("COMPLETE", "PRUNED")]
    seeds = range(plan.base.seed, plan.base.seed + plan.seeds)
    with ThreadPoolExecutor(jobs) as pool:
        tasks = {n: [pool.submit(trained, n, seed) for seed in seeds] for n in numbers}
    results = {n: [run.result() for run in runs] for n, runs in tasks.items()}
    return {n: [r for r in runs if r is not None] for n, runs in results.items() if all(runs)}


def savings(study: Study, trained: dict[int, list[Trained]]) -> tuple[float, str]:
    """Return the share of frames that early ends saved, and how good the winner of the search is.

    Args:
        study: a search that ended runs early.
        trained: the runs of its first trials, trained to their end.
    """
    scores = {n: Score.of([run.score for run in runs]) for n, runs in trained.items()}
    in_search = {n: score for n, score in study.completed_scores().items() if n in scores}
    if not in_search:
        return 0.0, "no trial was trained to its end"
    used = sum(run.frames for n in trained for run in study.runs(n).values())
    share = 1 - used / sum(run.frames for runs in trained.values() for run in runs)
    (best,), (chosen,) = best_trials(scores, 1), best_trials(in_search, 1)
    (low, high), mean = scores[best].interval, scores[chosen].mean
    is_within = chosen == best or mean >= low
    return share, (
        f"{share:.0%} of the frames of all seeds of {len(scores)} trials; best of them "
        f"with all seeds: trial {best}, {scores[best].mean:.4g} ({low:.4g} to {high:.4g}); winner "
        f"of the search: trial {chosen}, {mean:.4g}, within the interval: {yes(is_within)}"
    )


def yes(value: bool) -> str:
    return "yes" if value else "no"


def gains(study: Study) -> str:
    """Return whether the winner is above the first settings on fresh seeds, intervals apart."""
    number, scores = winner(study), confirmed_scores(study)
    if number is None or 0 not in scores:
        return "not confirmed"
    return yes(is_better(scores[number], scores[0]))


def described(row: Search, study: Study) -> str:
    """Return a search in words, with the settings of its winner."""
    settings = f"`{' '.join(row.settings)}`" if row.settings else "the shipped configuration"
    best = study.overrides(winner(study) or 0)
    trials = f"{len(study.trials())} trials of {study.plan.base.total_timesteps:,} frames"
    return f"{row.config} from {settings}, {trials}; winner: `{' '.join(best) or 'trial 0'}`"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="time of all searches")
    parser.add_argument("--frames", type=int, help="frames of a run, for a quick try")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--confirm", type=int, default=5, help="fresh seeds")
    parser.add_argument("--out", type=Path, help="file to write")
    options = parser.parse_args(arguments)
    begin_s = time.monotonic()
    rows, results = (TREASURE_HUNT, MOVE_TO_ORIGIN), []
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            frames = options.frames or row.frames
            results.append(searched(row, Path(folder, row.config), frames, options))
        study = results[0].study
        trained = trained_to_the_end(study, options.jobs, begin_s + 60 * options.minutes)
        share, saved = savings(study, trained)
        searches = [
            f"| {described(row, result.study)} | {verdict(result.study)}"
            for row, result in zip(rows, results, strict=True)
        ]
        shares = [r.driver_s / max(r.runs_s, 1e-9) for r in results]
        origin = results[1].study
        lines = [
            "| what | measured | target | reached |",
            "| --- | --- | --- | --- |",
            f"{searches[0]} | above the first settings on fresh seeds, intervals apart | "
            f"{gains(study)} |",
            f"{searches[1]} | none: it was tuned by hand | above: {gains(origin)} |",
            "| processor time of the driver, by the time of its runs | "
            f"{', '.join(f'{share:.2%}' for share in shares)} | below 3% | "
            f"{yes(max(shares) < 0.03)} |",
            f"| frames saved by pruning and the race of seeds | {saved} | half, winner within the "
            f"interval of the best | {yes(share >= 0.5)} |",
        ]
    text = "\n".join(
        [
            "# Searches of settings",
            "",
            f"`python benchmarks/tuning.py` at {short_revision()}, on {os.cpu_count()} cores "
            f"({processor()}): {(time.monotonic() - begin_s) / 60:.1f} minutes.",
            "",
            *lines,
            "",
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
