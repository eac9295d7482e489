"""Runs with the symptoms of `docs/it-does-not-learn.md`, with and without the fault.

    python benchmarks/symptoms.py [SYMPTOM ...] [--seeds 3] [--jobs 2] [--results FILE.md]

Every case of a symptom is trained with each seed in a separate process with one thread, in seconds.
Finished runs are stored as JSON lines next to the table and are not repeated: delete the lines of a
run to train it again. The table, a figure and the examples on the page are generated from all
stored runs.
"""

import argparse
import json
import math
import platform
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import symptom_worlds
import torch
from kept_runs import Result, read_kept, run_all
from learning_curves import Line, draw, thinned
from measured_on import processor, short_revision
from overrides import SQUARED_ERRORS

from enn_trainer import StateManager, train

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/it-does-not-learn.md"
PART = 0.1
"""Fraction of updates over which a metric is averaged: the last ones, or the first ones."""
FIRST = "first "
"""Prefix of columns averaged over the first updates."""
SMALL = (
    *("rollout.num_envs=128", "rollout.steps=8", "optim.bs=256", "optim.update_epochs=3"),
    *("optim.lr=0.005", "ppo.ent_coef=0.02", "net.d_model=16", "net.n_layer=1"),
)


class Case(NamedTuple):
    """A run: arguments of the environment, and settings in addition to the symptom's."""

    kwargs: Mapping[str, Any] = MappingProxyType({})
    settings: tuple[str, ...] = ()


class Symptom(NamedTuple):
    """A symptom and its fix.

    Attributes:
        name: anchor of the heading on the page.
        world: class in `symptom_worlds.py`.
        introduction: text before the table.
        frames: number of frames of each run.
        metrics: columns of the table; "first " is the prefix for averages over the first updates.
        bar: threshold of the first metric, which runs with the fault miss.
        cases: the first has the fault, the last does not.
        settings: settings of all cases.
    """

    name: str
    world: str
    introduction: str
    frames: int
    metrics: tuple[str, ...]
    bar: float
    cases: tuple[Case, ...]
    settings: tuple[str, ...] = SMALL


SYMPTOMS = [
    Symptom(
        "a-reward-that-is-always-zero",
        "Lock",
        "`Lock` opens after eight right turns in a row, each of them one of four, and pays 1 then. "
        "With a reward for each place gained, and a cost for each place lost, it is learnt.",
        30_720,
        ("open.mean", "reward.max", "episodic_reward.mean"),
        0.9,
        (Case(), Case({"progress": 0.1})),
    ),
    Symptom(
        "a-return-that-is-always-the-same",
        "Lock",
        "Here each step pays .001 as well, and an episode is cut off after eight steps. Where "
        "episodes begin at random places, the way is short in some, and is learnt from its end.",
        30_720,
        ("open.mean", "episodic_reward.min", "episodic_reward.max"),
        0.9,
        (Case({"wage": 0.001}), Case({"wage": 0.001, "anywhere": True})),
    ),
    Symptom(
        "an-episode-that-never-ends",
        "Lock",
        "The same lock is closed again when it opens, and nothing ends an episode. With "
        "`terminated=True` for the open lock, and `truncated=True` after eight steps, there are "
        "returns.",
        12_288,
        ("episodic_reward.count", "episodic_reward.mean", "step.max"),
        1,
        (Case({"progress": 0.1, "ends": False}), Case({"progress": 0.1})),
        (*SMALL, "rollout.num_envs=8", "rollout.steps=128"),
    ),
    Symptom(
        "frames-without-actors",
        "Turns",
        "`Turns` shows a mark, which may be named in the last of some frames. Without the frames "
        "before it, as many frames are twenty times as many choices.",
        6_144,
        ("episodic_reward.mean", "policy/say/actors_per_frame"),
        0.9,
        (Case({"wait": 19}), Case()),
    ),
    Symptom(
        "a-feature-that-never-varies",
        "Marked",
        "`Marked` pays 1 for naming a mark. Here its feature is not set, then it is.",
        30_720,
        ("episodic_reward.mean", "policy/say/normalised_entropy"),
        0.9,
        (Case({"shown": False}), Case()),
    ),
    Symptom(
        "a-choice-that-is-never-taken",
        "Corridor",
        "In `Corridor`, to go is right where a light is green, one time in ten, and else ends the "
        "episode with -1. The fourth right time pays 1. A policy that gave it up waits or turns, "
        "whatever the light: its entropy is near ln 2, which is .63 of the maximum. The last row "
        "has the default settings.",
        61_440,
        ("episodic_reward.mean", "actions/do/go", "policy/do/normalised_entropy"),
        0.5,
        tuple(
            Case({"cells": 8}, settings)
            for settings in (
                ("optim.bs=1024",),
                ("optim.bs=1024", "ppo.ent_coef=0.0"),
                ("optim.bs=1024", "ppo.ent_coef=0.5"),
                ("optim.bs=1024", 'ppo.ent_targets={"do":0.75}'),
                ("net.init=published",),
                ("ppo.ent_coef=0.0",),
                (),
            )
        ),
        (),
    ),
    Symptom(
        "a-mean-that-does-not-move",
        "Tap",
        "`Tap` pays for an opening that meets a demand, between 0 and 10. The policy of a range of "
        "1,000 never tries one; in the second row it begins near 10, in the third it can open to "
        "20.",
        30_720,
        ("episodic_reward.mean", "actions/turn/opening.mean", "policy/turn/normalised_entropy"),
        6.5,
        (Case(), Case({"start": 10.0}), Case({"most": 20.0})),
    ),
    Symptom(
        "an-entropy-of-fewer-choices",
        "Gate",
        "In `Gate`, forward pays 1 where a gate is open, one time in ten, and costs 1 where it is "
        "not. If the frame does not show the gate, the best is to turn left or right at random; if "
        "it does, the best return is .1.",
        30_720,
        ("episodic_reward.mean", "policy/do/entropy", "actions/do/forward"),
        0.08,
        (Case({"shown": False}), Case()),
    ),
    Symptom(
        "an-entropy-that-stays-at-its-maximum",
        "Noisy",
        "In `Noisy`, the right word pays .2, plus 1 or -1 at random. An entropy bonus as large as "
        "the advantages, which are normalised, hides that.",
        20_480,
        ("right.mean", "policy/say/normalised_entropy"),
        0.9,
        (Case(settings=("ppo.ent_coef=1.0",)), Case(settings=("ppo.ent_coef=0.02",))),
        (*SMALL, "ppo.anneal_entropy=false"),
    ),
    Symptom(
        "a-value-function-that-explains-nothing",
        "Lock",
        "`Lock` with rewards of a thousandth: the values of a new network are larger, and so are "
        "their errors, unless they are learnt in units of the returns, as by default.",
        30_720,
        ("open.mean", "losses/explained_variance", "policy/turn/normalised_entropy"),
        0.9,
        (
            Case({"prize": 0.001, "progress": 0.0001}, ("ppo.value_norm=false",)),
            Case({"prize": 0.001, "progress": 0.0001}),
        ),
        (*SMALL, "ppo.ent_coef=0.05"),
    ),
    Symptom(
        "values-that-cannot-reach-the-returns",
        "Lock",
        "`Lock` with rewards of hundreds, and `ppo.clip_vloss=true`: values move by .2 in each "
        "update, of their own unit or of the deviation of the returns.",
        15_360,
        ("open.mean", "losses/explained_variance", "losses/returns"),
        0.9,
        (
            Case({"prize": 1000.0, "progress": 100.0}, ("ppo.value_norm=false",)),
            Case({"prize": 1000.0, "progress": 100.0}),
        ),
        (*SMALL, "ppo.clip_vloss=true"),
    ),
    Symptom(
        "gradients-far-above-their-limit",
        "Lock",
        "The same without clipping. Where errors are squared, they are hundreds of thousands.",
        30_720,
        ("open.mean", "losses/gradnorm", "losses/gradnorm_large"),
        0.9,
        (
            Case({"prize": 1000.0, "progress": 100.0}, ("ppo.value_norm=false", SQUARED_ERRORS)),
            Case({"prize": 1000.0, "progress": 100.0}),
        ),
    ),
    Symptom(
        "a-return-that-is-lost-again",
        "Lock",
        "A rate that learns the lock in a few updates, and does not fall: one of the next updates "
        "undoes it.",
        30_720,
        ("open.mean", "episodic_reward.mean", "losses/approx_kl"),
        0.9,
        (
            Case({"progress": 0.1}, ("optim.lr=0.02", "optim.anneal_lr=false")),
            Case({"progress": 0.1}, ("optim.lr=0.005",)),
        ),
    ),
    Symptom(
        "steps-that-are-too-small",
        "Lock",
        "`Lock` with rewards for progress, learnt with `optim.lr=0.005`. The KL is that of the "
        "first tenth of the updates: in a policy that has learnt all it is near 0 as well.",
        30_720,
        ("open.mean", "first losses/approx_kl", "policy/turn/normalised_entropy"),
        0.9,
        (
            Case({"progress": 0.1}, ("optim.lr=0.00001",)),
            Case({"progress": 0.1}, ("optim.lr=0.005",)),
        ),
    ),
    Symptom(
        "steps-that-are-too-large",
        "Lock",
        "`Lock` again, with a rate that is too large: after the first updates the policy makes one "
        "choice everywhere, and there is nothing to learn from.",
        30_720,
        ("open.mean", "first losses/approx_kl", "policy/turn/normalised_entropy"),
        0.9,
        (
            Case({"progress": 0.1}, ("optim.lr=0.1",)),
            Case({"progress": 0.1}, ("optim.lr=0.005",)),
        ),
    ),
]
BY_NAME = {symptom.name: symptom for symptom in SYMPTOMS}


def label(symptom: Symptom, case: Case) -> str:
    """Return the code that identifies a case of a symptom."""
    kwargs = ", ".join(f"{name}={value!r}" for name, value in case.kwargs.items())
    return " ".join([f"{symptom.world}({kwargs})", *case.settings])


def settings(symptom: Symptom, case: Case, seed: int) -> list[str]:
    """Return the settings of a run that differ from the defaults."""
    return [
        f"seed={seed}",
        f"total_timesteps={symptom.frames}",
        f"env.kwargs={json.dumps(dict(case.kwargs))}",
        *symptom.settings,
        *case.settings,
    ]


# -- Runs ------------------------------------------------------------------------------------------


def numbers(updates: Sequence[dict[str, Any]], metric: str) -> list[list[float]]:
    """Return frames and values of a metric, where finite."""
    rows = [[row["step"], float(row[metric])] for row in updates if metric in row]
    return [row for row in rows if math.isfinite(row[1])]


def column(updates: Sequence[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a metric over the last or the first updates; None if it is missing."""
    size = math.ceil(PART * len(updates))
    part = updates[:size] if name.startswith(FIRST) else updates[-size:]
    values = numbers(part, name.removeprefix(FIRST))
    return float(np.mean([x for _, x in values])) if values else None


def run(symptom: Symptom, case: Case, seed: int) -> Result:
    """Train one case with one seed in this process."""
    with tempfile.TemporaryDirectory() as folder:
        run_settings = [f"data_dir={folder}", "rollout.processes=1"]
        manager = StateManager(overrides=[*settings(symptom, case, seed), *run_settings])
        start = time.perf_counter()
        train(manager, getattr(symptom_worlds, symptom.world))
        seconds = time.perf_counter() - start
        (metrics,) = Path(folder).rglob("metrics.jsonl")
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    updates = [row for row in rows if row["kind"] == "update"]
    return {
        "symptom": symptom.name,
        "case": label(symptom, case),
        "seed": seed,
        "frames": manager.state.step,
        "metrics": {name: column(updates, name) for name in symptom.metrics},
        "notices": [f"{row['text']}; see {row['page']}" for row in rows if row["kind"] == "notice"],
        "seconds": round(seconds, 1),
        "curve": thinned(numbers(updates, symptom.metrics[0]), 1.0),
        "commit": short_revision(),
    }


# -- Tables ----------------------------------------------------------------------------------------


def results_of_case(results: Sequence[Result], symptom: Symptom, case: Case) -> list[Result]:
    """Return the results of a case, by seed."""
    key = (symptom.name, label(symptom, case))
    return sorted(
        (r for r in results if (r["symptom"], r["case"]) == key), key=lambda r: int(r["seed"])
    )


def cell(results: Sequence[Result], metric: str) -> str:
    """Format the values of a metric, seed by seed."""
    return ", ".join(short(result["metrics"][metric]) for result in results)


def short(x: float | None) -> str:
    """Format a number with two significant digits, and at most five decimals."""
    if x is None:
        return "none"
    if abs(x) >= 100:
        return f"{x:,.0f}"
    return np.format_float_positional(round(float(f"{x:.2g}"), 5), trim="-")


def reached(results: Sequence[Result], symptom: Symptom) -> str:
    """Format the number of runs that reached the threshold."""
    values = [result["metrics"][symptom.metrics[0]] for result in results]
    return f"{sum(x is not None and x >= symptom.bar for x in values)} of {len(values)}"


def example(results: Sequence[Result], symptom: Symptom) -> str:
    """Return the example of a symptom: a table, and the diagnostics of the first run."""
    columns = " | ".join(f"`{metric}`" for metric in symptom.metrics)
    lines = [
        symptom.introduction,
        "",
        f"| {symptom.frames:,} frames | {columns} | at least {symptom.bar:g} |",
        "| --- " * (len(symptom.metrics) + 2) + "|",
    ]
    for case in symptom.cases:
        runs = results_of_case(results, symptom, case)
        cells = [cell(runs, metric) for metric in symptom.metrics]
        name = f"`{label(symptom, case)}`"
        lines.append(f"| {' | '.join([name, *cells, reached(runs, symptom)])} |")
    notices = results_of_case(results, symptom, symptom.cases[0])[0]["notices"]
    runs = [line for line in notices if line.endswith(f"#{symptom.name}")]
    if runs:
        lines += ["", *(f"    notice: {line}" for line in runs)]
    return "\n".join(lines)


def with_examples(page: str, results: Sequence[Result]) -> str:
    """Return the page with the examples of all symptoms inserted at their marks."""
    for symptom in SYMPTOMS:
        begin, end = f"<!-- run: {symptom.name} -->\n", "\n<!-- end of run -->"
        pattern = f"(?<={re.escape(begin)}).*?(?={re.escape(end)})"
        text = example(results, symptom)
        page, count = re.subn(pattern, lambda _, x=text: x, page, count=1, flags=re.DOTALL)
        if not count:
            raise SystemExit(f"{PAGE}: expected the marks {begin!r} and {end!r}, got neither")
    return page


def table(results: Sequence[Result]) -> str:
    """Return the document with the results."""
    lines = [
        "# Symptoms of agents that do not learn",
        "",
        f"`python benchmarks/symptoms.py` on {processor()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}; one thread for each run, on a shared machine: the seconds are "
        "a rough measure. The environments are in "
        "`benchmarks/symptom_worlds.py`; the settings of symptoms are in "
        "`benchmarks/symptoms.py`. Numbers are means over the last tenth of the updates (*first*: "
        "the first tenth), seed by seed; *reached* is the number of seeds whose first metric is "
        "at least the bar.",
        "",
        "| symptom | run | frames | metrics | bar | reached | seconds | commit |",
        "| --- " * 8 + "|",
    ]
    for symptom in SYMPTOMS:
        for case in symptom.cases:
            runs = results_of_case(results, symptom, case)
            if not runs:
                continue
            metrics = "; ".join(f"`{name}` {cell(runs, name)}" for name in symptom.metrics)
            seconds = ", ".join(f"{result['seconds']:.0f}" for result in runs)
            commits = ", ".join(dict.fromkeys(result["commit"] for result in runs))
            cells = [
                *(symptom.name, f"`{label(symptom, case)}`", f"{runs[0]['frames']:,}", metrics),
                *(f"{symptom.bar:g}", reached(runs, symptom), seconds, commits),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "The first metric of each symptom against frames; the bars are dashed.", ""]
    return "\n".join([*lines, "![curves](symptoms.svg)", ""])


def picture(results: Sequence[Result]) -> str:
    """Return a figure with the curves of the first and the last case of each symptom."""
    panels = {}
    for symptom in SYMPTOMS:
        lines = []
        for case in (symptom.cases[0], symptom.cases[-1]):
            curves = [result["curve"] for result in results_of_case(results, symptom, case)]
            lines.append(Line(f"{label(symptom, case)} ", curves))
        if any(curve for line in lines for curve in line.curves):
            panels[symptom.name] = lines
    return draw(panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("symptoms", nargs="*", metavar="SYMPTOM", help=", ".join(BY_NAME))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/symptoms.md")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        symptom = BY_NAME[options.one[0]]
        print(json.dumps(run(symptom, symptom.cases[int(options.one[1])], int(options.one[2]))))
        return
    if unknown := [name for name in options.symptoms if name not in BY_NAME]:
        parser.error(f"SYMPTOM: expected some of {', '.join(BY_NAME)}; got {', '.join(unknown)}")
    runs_file = options.results.with_suffix(".jsonl")
    done = {(r["symptom"], r["case"], r["seed"]) for r in read_kept(runs_file)}
    todo = [
        (symptom.name, str(i), str(seed))
        for symptom in SYMPTOMS
        if not options.symptoms or symptom.name in options.symptoms
        for i, case in enumerate(symptom.cases)
        for seed in range(1, options.seeds + 1)
        if (symptom.name, label(symptom, case), seed) not in done
    ]
    run_all(__file__, todo, runs_file, options.jobs)
    results = read_kept(runs_file)
    options.results.write_text(table(results))
    if {result["symptom"] for result in results} >= set(BY_NAME):
        options.results.with_suffix(".svg").write_text(picture(results))
        PAGE.write_text(with_examples(PAGE.read_text(), results))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
