"""Default settings on a panel of environments, none of which they are tuned for.

    python benchmarks/panel.py [ROW ...] [--settings NAME ...] [--seeds 1 2 3] [--jobs 2]

An agent is trained with nothing but the environment's id and what its page says it needs, and then
plays 240 episodes with sampled and as many with the most probable actions. Its score is the share
of the way from random play to a bar. Environments, frames and bars are in `panel_rows.py`. Each run
has one thread. Runs that are done are kept as JSON lines beside the table, and are not repeated.
Rows whose modules are not installed are left out; all are there after

    pip install minigrid mpe2 popgym lbforaging==2.0.0 "gymnasium[box2d,mujoco]"

With `stable-baselines3 sb3-contrib` installed as well, `--settings SB3 "SB3, equal seconds"` trains
its PPO with its own default settings where an environment has a vector of one size: for as many
frames, or for as many processor seconds as the defaults took.
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
from panel_rows import BY_NAME, ROWS, Row
from strangers_worlds import ROOT
from trained import Tenths, of_row, table, train_and_measure

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
SETTINGS = {
    "defaults": Settings(),
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
    "lambda .8": Settings(("ppo.gae_lambda=0.8",)),
    "squared errors": Settings((SQUARED_ERRORS,)),
    "entropy falls by the power of 4": Settings((_SLOWER,)),
    "squared errors, power of 4": Settings((SQUARED_ERRORS, _SLOWER)),
    "squared errors, power of 4, lambda .8": Settings(
        (SQUARED_ERRORS, _SLOWER, "ppo.gae_lambda=0.8")
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
    overrides = [*own, *row.needs, *SETTINGS["defaults" if name == LONG else name].of(row)]
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
        "of the way from random play to the bar, at most 1, of sampled play; the last table has "
        "the medians of its seeds.",
        "",
    ]
    rows = [["environment", "frames", "random", "bar", "settings", "sampled", "greedy", "seconds"]]
    for row in ROWS:
        for name in NAMES:
            mine = _of(results, row, name)
            if mine:
                shown = [_list(mine, how, ".4g") for how in ("sampled", "greedy")]
                seconds = _list(mine, "processor_seconds", ".0f")
                frames = statistics.median(result["frames"] for result in mine)
                about = [row.name, f"{frames:,.0f}", f"{row.random:g}", f"{row.bar:g}"]
                rows.append([*about, name, *shown, seconds])
    lines += [*table(rows), "", "## Scores", ""]
    names = [name for name in NAMES if any(result["settings"] == name for result in results)]
    scores = [["environment", *names]]
    medians: dict[str, list[float]] = {name: [] for name in names}
    for row in ROWS:
        line = [row.name]
        for name in names:
            of_seeds = [row.score(r["sampled"]) for r in _of(results, row, name)]
            if of_seeds:
                medians[name].append(statistics.median(of_seeds))
            line.append(f"{medians[name][-1]:.2f}, least {min(of_seeds):.2f}" if of_seeds else "")
        scores.append(line)
    means = [f"{statistics.mean(of_all):.3f}" if of_all else "" for of_all in medians.values()]
    lines += [*table([*scores, ["mean", *means]]), ""]
    lasting = [
        [row.name, f"{result['seed']}", f"{result['frames']:,}", *_lasting(row, result["tenths"])]
        for row in ROWS
        for result in _of(results, row, LONG)
    ]
    if lasting:
        head = ["environment", "seed", "frames", "best tenth", "last tenth", "last / best score"]
        about = f"{LONG}: mean result of the episodes that end in a tenth of the training."
        lines += ["## What was learnt stays", "", about, "", *table([head, *lasting]), ""]
    return "\n".join(lines)


def _lasting(row: Row, tenths: Sequence[float]) -> list[str]:
    """Return the best and the last result, and the ratio of their scores."""
    best, last = np.nanmax(tenths), tenths[-1]
    return [f"{best:.4g}", f"{last:.4g}", f"{row.score(last) / row.score(best):.3f}"]


def _of(results: Sequence[Result], row: Row, name: str) -> list[Result]:
    return [result for result in of_row(row.name, results) if result["settings"] == name]


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
    seconds = [result["processor_seconds"] for result in _of(results, row, "defaults")]
    return [str(statistics.median(seconds))] if seconds else None


def _list(results: Sequence[Mapping[str, float]], field: str, spec: str) -> str:
    return ", ".join(f"{result['seed']}: {format(result[field], spec)}" for result in results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(BY_NAME))
    parser.add_argument("--settings", nargs="+", choices=NAMES, default=["defaults"])
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
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
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
