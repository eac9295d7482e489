"""Searches of settings: gains on fresh seeds, cost of the driver, frames that pruning saves.

    python benchmarks/tuning.py [ROW ...] [--minutes 25] [--trials N] [--frames 60000] [--jobs 2]

Rows are treasure_hunt, from settings with which it learns little; move_to_origin, from the shipped
configuration, which was tuned by hand; and pruning, which searches treasure_hunt again without
pruning and with one seed. A search ends with five fresh seeds of its best trials and of the
settings that it began with. Prints the table of `results/tuning.md`, which `--write` replaces.
"""

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from measured_on import processor, short_revision

from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_config
from enn_trainer.config.shipped import shipped_configs
from enn_trainer.tuning.judge import Score, is_better
from enn_trainer.tuning.report import confirmed_scores, verdict, winner
from enn_trainer.tuning.search import open_search, search
from enn_trainer.tuning.study import Plan, Study

RESULTS = Path(__file__).parent / "results/tuning.md"
METRIC = "eval/episodic_reward.mean max"
EVALS = ("eval.episodes=100", "eval.num_envs=50")
POOR = ("ppo.ent_coef=0.2", "ppo.anneal_entropy=false", "optim.lr=0.0001")
"""Settings with which TreasureHunt learns little in few frames."""
RANGES = {
    "ppo.ent_coef": "loguniform 0.003 0.3",
    "optim.lr": "loguniform 1e-4 1e-2",
    "ppo.gamma": "1-loguniform 0.005 0.1",
    "optim.update_epochs": "int 1 6",
}
CONFIRM = 5


class Row(NamedTuple):
    """A search.

    Attributes:
        config: name of the shipped configuration.
        settings: its changes.
        options: other fields of the plan.
        target: text of the target.
    """

    config: str
    settings: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 (a default that is not changed)
    target: str = "none"


ROWS = {
    "treasure_hunt": Row("treasure_hunt", POOR, {"seeds": 3}, "above, intervals apart"),
    "move_to_origin": Row("move_to_origin", (), {"seeds": 3}),
    "pruning": Row("treasure_hunt", POOR, {"prune": "none"}),
}


class Result(NamedTuple):
    """Result of a search.

    Attributes:
        study: its study.
        driver_s: processor seconds of the driver.
        trials_s: processor seconds of the runs.
        wall_s: seconds.
    """

    study: Study
    driver_s: float
    trials_s: float
    wall_s: float

    @property
    def frames(self) -> int:
        """Number of frames of the search, without confirmations."""
        study = self.study
        runs = [run for t in study.trials() for run in study.runs(t.number).values()]
        return sum(run.frames for run in runs)


def searched(row: Row, folder: Path, frames: int, limits: dict[str, Any]) -> Result:
    """Run the search of a row in a folder."""
    every = max(frames // 10, 1)
    settings = [*row.settings, *EVALS, f"eval.interval={every}", f"total_timesteps={frames}"]
    base = load_config(TrainConfig, shipped_configs()[row.config], settings)
    plan = Plan(dump_config(base), RANGES, METRIC, **row.options)
    study, all_limits = open_search(folder, plan, {"confirm": CONFIRM, **limits})
    begin_s, driver_s, trials_s = time.monotonic(), time.process_time(), children_s()
    search(study, all_limits)
    return Result(
        study,
        time.process_time() - driver_s,
        children_s() - trials_s,
        time.monotonic() - begin_s,
    )


def children_s() -> float:
    """Return the processor seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def gains(study: Study) -> str:
    """Return whether the winner is above the first settings on fresh seeds, intervals apart."""
    number, scores = winner(study), confirmed_scores(study)
    if number is None or 0 not in scores:
        return "not confirmed"
    return "yes" if is_better(scores[number], scores[0]) else "no"


def overlap(first: Score, second: Score) -> bool:
    """Return whether the confidence intervals of two scores overlap."""
    return not is_better(first, second) and not is_better(second, first)


def table(results: dict[str, Result], frames: int) -> list[str]:
    """Return the lines of the table, and below them what pruning saves."""
    columns = ["search", "trials", "result", "above the first settings", "target"]
    columns += ["driver, % of the runs", "minutes"]
    lines = [f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    for name, result in results.items():
        study = result.study
        share = 100 * result.driver_s / max(result.trials_s, 1e-9)
        cells = [len(study.trials()), verdict(study), gains(study), ROWS[name].target]
        lines.append(
            f"| {name} | {' | '.join(map(str, cells))} | {share:.1f} | {result.wall_s / 60:.1f} |"
        )
    if {"treasure_hunt", "pruning"} <= results.keys():
        saved, full = results["treasure_hunt"].study, results["pruning"].study
        whole = len(saved.trials()) * saved.plan.seeds * frames
        share = 100 * (1 - results["treasure_hunt"].frames / whole)
        best, other = ((confirmed_scores(s) or {}).get(winner(s) or 0) for s in (saved, full))
        same = "unknown" if best is None or other is None else str(overlap(best, other)).lower()
        lines += [
            "",
            f"Pruning and the race of seeds save {share:.0f}% of the frames of all seeds of all "
            f"trials; winners with overlapping intervals: {same}.",
        ]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--minutes", type=float, default=25.0, help="budget of each search")
    parser.add_argument("--trials", type=int, help="number of trials of each search")
    parser.add_argument("--frames", type=int, default=60_000, help="frames of a run")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument("--confirm", type=int, default=CONFIRM, help="fresh seeds")
    parser.add_argument("--write", action="store_true", help="replace results/tuning.md")
    options = parser.parse_args(arguments)
    limits = {
        "trials": options.trials,
        "budget_s": 60 * options.minutes,
        "jobs": options.jobs,
        "confirm": options.confirm,
    }
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.rows or ("treasure_hunt", "move_to_origin"):
            results[name] = searched(ROWS[name], Path(folder, name), options.frames, limits)
        lines = table(results, options.frames)
    where = f"{processor()}, {os.cpu_count()} cores, commit {short_revision()}"
    text = "\n".join(["# Searches of settings", "", where, "", *lines]) + "\n"
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
