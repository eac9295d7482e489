"""Default settings on a panel of environments, none of which they are tuned for.

    python benchmarks/panel.py [ROW ...] [--settings NAME ...] [--seeds 1 2 3] [--jobs 2]

An agent is trained with nothing but the environment's id and what its page says it needs, and then
plays 240 episodes with sampled and as many with the most probable actions. Its score is the share
of the way from random play to a bar. Environments, frames and bars are in `panel_rows.py`; those
outside the panel, `HELD_OUT`, are trained if they are named. Each run has one thread. Runs that are
done are kept as JSON lines beside the table, and are not repeated. Rows whose modules are not
installed are left out; all are there after

    pip install minigrid mpe2 popgym lbforaging==2.0.0 "gymnasium[box2d,mujoco]"

With `stable-baselines3 sb3-contrib` installed as well, `--settings SB3 "SB3, equal seconds"` trains
its PPO with its own default settings where an environment has a vector of one size: for equal
frames, or for equal processor seconds. A third of those of "defaults, 3 times the frames" counts,
which is trained on the same machine as SB3.
"""

import argparse
import importlib.util
import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from kept_runs import Result, read_kept, run_all
from measured_on import processor, short_revision
from overrides import CLIPPED_VALUES, LAMBDA, LINEAR_ENTROPY, SQUARED_ERRORS
from panel_rows import BY_NAME, HELD_OUT, ROWS, Row
from strangers_worlds import ROOT
from trained import Tenths, results_of_row, table, train_and_measure

from enn_trainer import EvalConfig, RolloutConfig

RESULTS = ROOT / "benchmarks/results/panel.md"
EPISODES, NUM_ENVS = 240, 60


class Settings(NamedTuple):
    """Changes of the defaults.

    Attributes:
        overrides: of the configuration; "{0.4}" stands for that share of the frames.
        num_envs: the largest number of environments; in a row a multiple of its sides.
    """

    overrides: tuple[str, ...] = ()
    num_envs: int = RolloutConfig().num_envs

    def of(self, row: Row) -> list[str]:
        """Return the changes in a row."""
        changes = [
            re.sub(r"\{(.+?)\}", lambda share: f"{float(share[1]) * row.frames:.0f}", text)
            for text in self.overrides
        ]
        return [f"rollout.num_envs={self.num_envs // row.sides * row.sides}", *changes]


_SCALED = (*CLIPPED_VALUES, LAMBDA, "ppo.reward_scaling=true")
_SHORT = "rollout.steps=16"
_FALLING = "ppo.ent_coef=step: 0.2@0 lin 0.02@{0.4} lin 0@{1.0}"
_SLOWER = "ppo.ent_anneal_power=4"
DEFAULTS = "defaults"
SETTINGS = {
    DEFAULTS: Settings(),
    "defaults before": Settings((*CLIPPED_VALUES, LAMBDA, LINEAR_ENTROPY, _SHORT), 128),
    "scaled": Settings((*_SCALED, LINEAR_ENTROPY, _SHORT), 128),
    "scaled, 32 x 64": Settings((*_SCALED, LINEAR_ENTROPY)),
    "scaled, 32 x 64, entropy .02": Settings((*_SCALED, LINEAR_ENTROPY, "ppo.ent_coef=0.02")),
    "scaled, 32 x 64, entropy falls": Settings((*_SCALED, _FALLING)),
    "values in their own units": Settings(CLIPPED_VALUES),
    "clipped values": Settings(("ppo.clip_vloss=true",)),
    "no floor": Settings(("ppo.norm_adv_floor=0",)),
    "linear entropy": Settings((LINEAR_ENTROPY,)),
    "lambda .95": Settings((LAMBDA,)),
    "squared errors": Settings((SQUARED_ERRORS,)),
    "entropy falls by the power of 4": Settings((_SLOWER,)),
    "squared errors, power of 4": Settings((SQUARED_ERRORS, _SLOWER)),
    "squared errors, power of 4, lambda .8": Settings(
        (SQUARED_ERRORS, _SLOWER, "ppo.gae_lambda=0.8")
    ),
    "squared errors, power of 4, lambda .85": Settings(
        (SQUARED_ERRORS, _SLOWER, "ppo.gae_lambda=0.85")
    ),
    "squared errors, power of 4, entropy .1": Settings(
        (SQUARED_ERRORS, _SLOWER, "ppo.ent_coef=0.1")
    ),
    "entropy .1, power of 4": Settings(("ppo.ent_coef=0.1", _SLOWER)),
    "minibatches of 256": Settings(("optim.bs=256",)),
    "128 x 16": Settings((_SHORT,), 128),
}
SB3 = {"SB3": False, "SB3, equal seconds": True}
"""Runs of Stable-Baselines3 by name: whether they take the processor seconds of the defaults."""
LONG = "defaults, 3 times the frames"
"""Runs that show whether what was learnt stays."""
NAMES = (*SETTINGS, LONG, *SB3)
FIRST_REPORTED = 11
SEARCHED, REPORTED = range(FIRST_REPORTED), range(FIRST_REPORTED, 1000)
"""Seeds by which settings were chosen, and others with which the chosen ones are reported."""
LEAST_MEDIAN = 0.6
"""Least median score in every environment of settings that may be the defaults."""


def run(row: Row, name: str, seed: int, limit_s: float | None = None) -> Result:
    """Train and measure one row with one seed in this process.

    Args:
        row: the environment.
        name: of the settings, or of a run of Stable-Baselines3.
        seed: of the run.
        limit_s: processor seconds of Stable-Baselines3; None for the frames of the row.
    """
    of_run = {"row": row.name, "settings": name, "seed": seed}
    if name in SB3:
        import panel_sb3

        world = panel_sb3.world_of_vectors(row)
        assert world is not None
        done = panel_sb3.train_and_measure(row, world, seed, EPISODES, NUM_ENVS, limit_s)
        return {**of_run, **done, "commit": short_revision()}
    frames = 3 * row.frames if name == LONG else row.frames
    own = [
        f"env.id={row.env_id}",
        f"env.kwargs={json.dumps(row.kwargs)}",
        f"total_timesteps={frames}",
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
    overrides = [*own, *row.needs, *SETTINGS[DEFAULTS if name == LONG else name].of(row)]
    tenths = Tenths(row.metric, frames)
    if name == LONG and row.opponent is not None:
        # The result of a match with oneself says nothing.
        tenths = Tenths(f"eval/{row.metric}", frames)
        overrides += [f"eval.interval={frames // 40}", f"eval.opponent={row.opponent}"]
        overrides += [f"eval.episodes={EPISODES}", f"eval.num_envs={NUM_ENVS}"]
    done = train_and_measure(
        None, overrides, seed, plays, row.metric, world=row.world(), callbacks=[tenths]
    )
    done |= {how: row.scale * done[how] for how in plays}
    if name == LONG:
        done["tenths"] = [row.scale * mean for mean in tenths.means]
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
        "of the way from random play to the bar, at most 1, of sampled play. Defaults were chosen "
        f"by the seeds below {FIRST_REPORTED}; those from {FIRST_REPORTED} on were run once, with "
        "what was chosen.",
        "",
    ]
    sections = (("Report", ROWS, REPORTED), ("Search", ROWS, SEARCHED))
    for title, of_section, seeds in (*sections, ("Outside the panel", HELD_OUT, REPORTED)):
        names = [row.name for row in of_section]
        if part := [r for r in results if r["seed"] in seeds and r["row"] in names]:
            lines += [f"## {title}", "", *_scores(part), "", *_left_out(part)]
    lines += _lasting(results)
    rows = [["environment", "frames", "random", "bar", "settings", "sampled", "greedy", "seconds"]]
    for row in BY_NAME.values():
        for name in NAMES:
            mine = _of(results, row, name)
            if mine:
                shown = [_list(mine, how, ".4g") for how in ("sampled", "greedy")]
                seconds = _list(mine, "processor_seconds", ".0f")
                frames = statistics.median(result["frames"] for result in mine)
                about = [row.name, f"{frames:,.0f}", f"{row.random:g}", f"{row.bar:g}"]
                rows.append([*about, name, *shown, seconds])
    return "\n".join([*lines, "## Runs", "", *table(rows), ""])


def _medians(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Return the median score of each environment, by the settings."""
    medians: dict[str, dict[str, float]] = {}
    for name in NAMES:
        of_rows = {row.name: _of_seeds(results, row, name) for row in BY_NAME.values()}
        found = {row: statistics.median(scores) for row, scores in of_rows.items() if scores}
        if found:
            medians[name] = found
    return medians


def _of_seeds(results: Sequence[Result], row: Row, name: str) -> list[float]:
    return [row.score(result["sampled"]) for result in _of(results, row, name)]


def _scores(results: Sequence[Result]) -> list[str]:
    """Return a table of the scores: the median and the least of the seeds."""
    medians = _medians(results)
    rows = [["environment", *medians]]
    for row in BY_NAME.values():
        if not results_of_row(row.name, results):
            continue
        of_all = [_of_seeds(results, row, name) for name in medians]
        shown = [f"{statistics.median(s):.2f}, least {min(s):.2f}" if s else "" for s in of_all]
        rows.append([row.name, *shown])
    means = [
        f"{statistics.mean(m.values()):.3f}" + ("" if len(m) == len(ROWS) else f" of {len(m)}")
        for m in medians.values()
    ]
    return table([*rows, ["mean", *means]])


def _left_out(results: Sequence[Result]) -> list[str]:
    """Return which settings are the best if one environment is left out.

    Settings compete if they ran everywhere. The best ones have the largest mean of those without a
    median below `LEAST_MEDIAN`, or of all if there are none.
    """
    whole = {name: m for name, m in _medians(results).items() if len(m) == len(ROWS)}
    if len(whole) < 2:
        return []
    rows = [["left out", "best", "mean of the rest", "of the defaults"]]
    for left in ["none", *(row.name for row in ROWS)]:
        rest = {n: [s for row, s in m.items() if row != left] for n, m in whole.items()}
        able = [name for name, scores in rest.items() if min(scores) >= LEAST_MEDIAN] or [*rest]
        best = max(able, key=lambda name: statistics.mean(rest[name]))
        means = [f"{statistics.mean(rest[n]):.3f}" if n in rest else "" for n in (best, DEFAULTS)]
        rows.append([left, best, *means])
    about = f"Of the settings that ran everywhere, without those with a median below {LEAST_MEDIAN}"
    return [f"{about}, the best if one environment is left out:", "", *table(rows), ""]


def _lasting(results: Sequence[Result]) -> list[str]:
    """Return the section of the runs of three times the frames."""
    rows = [["environment", "seed", "frames", "best tenth", "last tenth", "last / best score"]]
    for row in ROWS:
        for result in _of(results, row, LONG):
            best, last = np.nanmax(result["tenths"]), result["tenths"][-1]
            ratio = f"{row.score(last) / row.score(best):.3f}" if row.score(best) else "never above"
            about = [row.name, f"{result['seed']}", f"{result['frames']:,}"]
            rows.append([*about, f"{best:.4g}", f"{last:.4g}", ratio])
    if len(rows) == 1:
        return []
    about = f"{LONG}: mean result of the episodes that end in a tenth of the training."
    return ["## What was learnt stays", "", about, "", *table(rows), ""]


def _of(results: Sequence[Result], row: Row, name: str) -> list[Result]:
    return [result for result in results_of_row(row.name, results) if result["settings"] == name]


def _limit(results: Sequence[Result], row: Row, name: str) -> list[str] | None:
    """Return the processor seconds of a run in a list, [] for any; None if it cannot be run."""
    if name not in SB3:
        return []
    if importlib.util.find_spec("stable_baselines3") is None:
        return None
    import panel_sb3

    if panel_sb3.world_of_vectors(row) is None:
        return None
    if not SB3[name]:
        return []
    long = _of(results, row, LONG)
    seconds = [result["processor_seconds"] * row.frames / result["frames"] for result in long]
    return [str(statistics.median(seconds))] if seconds else None


def _list(results: Sequence[Mapping[str, float]], field: str, spec: str) -> str:
    return ", ".join(f"{result['seed']}: {format(result[field], spec)}" for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(BY_NAME))
    parser.add_argument("--settings", nargs="+", choices=NAMES, default=[DEFAULTS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, settings, seed, *limit_s = options.one
        print(json.dumps(run(BY_NAME[name], settings, int(seed), *map(float, limit_s))))
        return
    if unknown := [name for name in options.rows if name not in BY_NAME]:
        parser.error(f"ROW: expected some of {'; '.join(BY_NAME)}; got {'; '.join(unknown)}")
    chosen = [BY_NAME[name] for name in options.rows] or ROWS
    for row in chosen:
        if row.missing:
            print(f"{row.name} is left out: {', '.join(row.missing)} cannot be imported")
    kept = options.results.with_suffix(".jsonl")
    results = read_kept(kept)
    done = {(r["row"], r["settings"], r["seed"]) for r in results}
    todo = [
        (row.name, name, str(seed), *limit_s)
        for seed in options.seeds
        for name in options.settings
        for row in chosen
        if not row.missing and (row.name, name, seed) not in done
        if (limit_s := _limit(results, row, name)) is not None
    ]
    run_all(__file__, todo, kept, options.jobs)
    options.results.write_text(document(read_kept(kept)))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
