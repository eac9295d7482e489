"""Default settings on a panel of environments, none of which they are tuned for.

    python benchmarks/panel.py [ROW ...] [--settings NAME ...] [--seeds 1 2 3] [--jobs 2]

An agent is trained with nothing but the environment's id and what its page says it needs, and then
plays 240 episodes with sampled and as many with the most probable actions. Its score is the share
of the way from random play to a bar. Environments, frames and bars are in `panel_rows.py`. Each run
has one thread. Runs that are done are kept as JSON lines beside the table, and are not repeated.
Rows whose modules are not installed are left out; all are there after

    pip install minigrid mpe2 popgym lbforaging==2.0.0 "gymnasium[box2d,mujoco]"
"""

import argparse
import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kept_runs import Result, read_kept, run_all
from measured_on import processor, short_revision
from panel_rows import BY_NAME, ROWS, Row
from strangers_worlds import ROOT
from trained import of_row, table, train_and_measure

from enn_trainer import EvalConfig

RESULTS = ROOT / "benchmarks/results/panel.md"
EPISODES, NUM_ENVS = 240, 60


class Settings(NamedTuple):
    """Changes of the defaults.

    Attributes:
        overrides: of the configuration; "{0.4}" stands for that share of the frames.
        num_envs: the largest number of environments; in a row a multiple of its sides.
    """

    overrides: tuple[str, ...] = ()
    num_envs: int = 128

    def of(self, row: Row) -> list[str]:
        """Return the changes in a row."""
        changes = [
            re.sub(r"\{(.+?)\}", lambda share: f"{float(share[1]) * row.frames:.0f}", text)
            for text in self.overrides
        ]
        return [f"rollout.num_envs={self.num_envs // row.sides * row.sides}", *changes]


_SCALED = ("ppo.reward_scaling=true",)
_LONG = ("rollout.steps=64",)
_FALLING = "ppo.ent_coef=step: 0.2@0 lin 0.02@{0.4} lin 0@{1.0}"
SETTINGS = {
    "defaults": Settings(),
    "scaled": Settings(_SCALED),
    "scaled, 32 x 64": Settings((*_SCALED, *_LONG), 32),
    "scaled, 32 x 64, entropy .02": Settings((*_SCALED, *_LONG, "ppo.ent_coef=0.02"), 32),
    "scaled, 32 x 64, entropy falls": Settings((*_SCALED, *_LONG, _FALLING), 32),
}


def run(row: Row, name: str, seed: int) -> Result:
    """Train and measure one row with one seed in this process."""
    own = [
        f"env.id={row.env_id}",
        f"env.kwargs={json.dumps(row.kwargs)}",
        f"total_timesteps={row.frames}",
    ]
    plays = {
        how: EvalConfig(
            episodes=EPISODES,
            num_envs=NUM_ENVS,
            seed=10_000 + seed,
            deterministic=how == "greedy",
            opponent=row.opponent,
        )
        for how in ("sampled", "greedy")
    }
    overrides = [*own, *row.needs, *SETTINGS[name].of(row)]
    done = train_and_measure(None, overrides, seed, plays, row.metric, world=row.world())
    done |= {how: row.scale * done[how] for how in plays}
    of_run = {"row": row.name, "settings": name, "seed": seed}
    return {**of_run, **done, "commit": short_revision()}


def document(results: Sequence[Result]) -> str:
    """Return the page with all results."""
    lines = [
        "# Defaults on a panel of environments",
        "",
        f"`python benchmarks/panel.py` on {os.cpu_count()} cores ({processor()}), Python "
        f"{platform.python_version()}. Each run has one thread; its processor seconds are those of "
        "training. The environments and what their pages say they need are in "
        "`benchmarks/panel_rows.py`, the settings in `benchmarks/panel.py`. A score is the share "
        "of the way from random play to the bar, at most 1, of sampled play; the last table has "
        "the medians of its seeds.",
        "",
    ]
    rows = [["environment", "frames", "random", "bar", "settings", "sampled", "greedy", "seconds"]]
    for row in ROWS:
        for name in SETTINGS:
            mine = _of(results, row, name)
            if mine:
                shown = [_list(mine, how, ".4g") for how in ("sampled", "greedy")]
                seconds = _list(mine, "processor_seconds", ".0f")
                about = [row.name, f"{row.frames:,}", f"{row.random:g}", f"{row.bar:g}"]
                rows.append([*about, name, *shown, seconds])
    lines += [*table(rows), "", "## Scores", ""]
    scores = [["environment", *SETTINGS]]
    medians: dict[str, list[float]] = {name: [] for name in SETTINGS}
    for row in ROWS:
        line = [row.name]
        for name in SETTINGS:
            of_seeds = [row.score(r["sampled"]) for r in _of(results, row, name)]
            if of_seeds:
                medians[name].append(statistics.median(of_seeds))
            line.append(f"{medians[name][-1]:.2f}, least {min(of_seeds):.2f}" if of_seeds else "")
        scores.append(line)
    means = [f"{statistics.mean(of_all):.3f}" if of_all else "" for of_all in medians.values()]
    return "\n".join([*lines, *table([*scores, ["mean", *means]]), ""])


def _of(results: Sequence[Result], row: Row, name: str) -> list[Result]:
    return [result for result in of_row(row.name, results) if result["settings"] == name]


def _list(results: Sequence[Mapping[str, float]], field: str, spec: str) -> str:
    return ", ".join(f"{result['seed']}: {format(result[field], spec)}" for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(BY_NAME))
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=["defaults"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, settings, seed = options.one
        print(json.dumps(run(BY_NAME[name], settings, int(seed))))
        return
    if unknown := [name for name in options.rows if name not in BY_NAME]:
        parser.error(f"ROW: expected some of {'; '.join(BY_NAME)}; got {'; '.join(unknown)}")
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    for row in chosen:
        if row.missing:
            print(f"{row.name} is left out: {', '.join(row.missing)} cannot be imported")
    kept = options.results.with_suffix(".jsonl")
    done = {(r["row"], r["settings"], r["seed"]) for r in read_kept(kept)}
    todo = [
        (row.name, name, str(seed))
        for seed in options.seeds
        for name in options.settings
        for row in chosen
        if not row.missing and (row.name, name, seed) not in done
    ]
    run_all(__file__, todo, kept, options.jobs)
    options.results.write_text(document(read_kept(kept)))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
