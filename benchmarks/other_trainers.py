"""Processor seconds of our trainer and of others to equal results, with equal parameters.

    python benchmarks/other_trainers.py [CASE ...] [--seeds 11 12 13] [--cap 100]
        [--cleanrl FILE]   a copy of CleanRL's ppo.py, instead of benchmarks/mlp_ppo.py
        [--sb3 PYTHON]     a Python with this project and stable-baselines3; for CleanRL also with
                           tyro and tensorboard

The cases are in `other_cases.py`. Training ends at the first evaluation with .9 of the way from
random play to the bar of `panel_rows.py`, or after `--cap` processor seconds. Processor seconds are
those of all processes, user and system, from the first update on; imports, creating the trainer and
evaluations are not counted. Evaluations are the same for all: the mean return of two episodes in
each of 64 environments, with sampled actions, at the same intervals in frames.

A frame is the observation of one agent; one policy plays all agents. Ours gets entities, others
get vectors, padded and scaled to about 1, without action masks; the two thrusters of MoveToOrigin
are one choice among 25 for them. MLPs have the width of equal parameters.

Ours has `configs/foraging_8x8.ron` or the settings of the panel, with one layer and larger
minibatches. All others share settings: published ones for the environment, or the best of a few,
with constant rates. All were chosen with seeds below 11. Every run has one thread and a separate
process, one run at a time. Runs that are done are stored as JSON lines, and not repeated.
"""

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from kept_runs import Result, read_kept, run_all
from measured_on import processor, short_revision
from other_cases import CASES
from other_learners import CORES, run
from strangers_worlds import ROOT
from trained import table

RESULTS = ROOT / "benchmarks/results/other_trainers.md"
OURS, PROFILE = "ours", "profile"
TRAINERS = {
    OURS: "enn-trainer",
    "workers": f"enn-trainer, {CORES} processes",
    "mlp": "benchmarks/mlp_ppo.py",
    "cleanrl": "CleanRL",
    "sb3": "Stable-Baselines3",
}
MODULES = {"cleanrl": ("gymnasium", "tyro", "tensorboard"), "sb3": ("stable_baselines3",)}
"""Modules of trainers that run in the Python of `--sb3`."""


def line(name: str, runs: Sequence[Result]) -> list[str]:
    """Return the cells of a trainer: of each seed, and medians with ranges."""
    speeds = [r["frames_per_s"] for r in runs]
    speed = f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})"
    parameters = f"{runs[0]['parameters']:,}"
    amounts = [_amounts(runs, what) for what in ("processor_seconds", "seconds", "frames")]
    return [TRAINERS[name], parameters, speed, *amounts]


def _amounts(runs: Sequence[Result], what: str) -> str:
    """Format the median and the range of what the goal took, and the results without it."""
    spec = ",.0f" if what == "frames" else ".3g"
    median, texts = _median(runs, what), list[str]()
    if reached := [r["reached"][what] for r in runs if r["reached"]]:
        texts.append("" if math.isinf(median) else f"{median:{spec}} ")
        texts.append(f"({min(reached):{spec}} to {max(reached):{spec}})")
    if missed := [f"{r['result']:.3g}" for r in runs if not r["reached"]]:
        texts.append(f"; not reached: {', '.join(missed)}")
    return "".join(texts).removeprefix("; ")


def _median(runs: Sequence[Result], what: str) -> float:
    """Return the median of what the goal took, infinite for a run that does not reach it."""
    return statistics.median(r["reached"][what] if r["reached"] else float("inf") for r in runs)


def by_trainer(results: Sequence[Result], case: str) -> dict[str, list[Result]]:
    """Return the runs of a case by trainer, ordered by seed."""
    of_case = sorted((r for r in results if r["case"] == case), key=lambda r: r["seed"])
    names = [*TRAINERS, PROFILE]
    runs = {name: [r for r in of_case if r["trainer"] == name] for name in names}
    return {name: of_name for name, of_name in runs.items() if of_name}


def comparison(runs: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return the cells that compare our trainer with the fastest other one.

    These are the name of the other one, the ratios of processor seconds, of frames and of processor
    time per frame, ours to theirs, and the shares of our time.
    """
    others = [name for name in runs if name in ("mlp", "cleanrl", "sb3")]
    if not others or OURS not in runs:
        return []
    best = min(others, key=lambda name: _median(runs[name], "processor_seconds"))
    (ours_s, theirs_s), (our_frames, their_frames) = (
        [_median(runs[name], what) for name in (OURS, best)]
        for what in ("processor_seconds", "frames")
    )
    cells = ["none in most seeds", "", "", ""]
    if math.isfinite(theirs_s):
        ratios = ours_s / theirs_s, our_frames / their_frames
        per_frame = (ours_s / our_frames) / (theirs_s / their_frames)
        cells = [TRAINERS[best], *(f"{ratio:.2f}" for ratio in (*ratios, per_frame))]
    shares = runs[PROFILE][0]["shares"] if PROFILE in runs else {}
    return [*cells, ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items())]


def document(results: Sequence[Result], command: str) -> str:
    """Return the page with all results."""
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    cap_s = max(r["cap_s"] for r in results)
    lines = [
        "# Comparison with other trainers",
        "",
        f"`{command}`, {os.cpu_count()} cores ({processor()}), Python "
        f"{platform.python_version()}, torch {torch.__version__}, commit {commits}. Definitions "
        "are in the script. Columns after the speed: median of the seeds and range, to .9 of the "
        f"bar; where it was not reached in {cap_s:g} processor seconds, the last return.",
        "",
    ]
    head = ["trainer", "parameters", "frames/s (range)", "processor s", "wall s", "frames"]
    rows = [["case", "fastest other", "processor s", "frames", "per frame", "our time"]]
    for case in CASES.values():
        runs = by_trainer(results, case.row.name)
        measured = [line(name, r) for name, r in runs.items() if name != PROFILE]
        if not measured:
            continue
        lines += [f"## {case.row.name}, return {case.goal:.3g}", "", *table([head, *measured]), ""]
        if cells := comparison(runs):
            rows.append([case.row.name, *cells])
    about = "Ratios of ours to the fastest other trainer; below 1, ours takes less."
    return "\n".join([*lines, "## Ratios", "", about, "", *table(rows), ""])


def can_import(python: str, modules: Sequence[str]) -> bool:
    """Return True if a Python has the modules."""
    needs = [python, "-c", f"import {', '.join(modules)}"]
    return subprocess.run(needs, capture_output=True, check=False).returncode == 0


def trainers_of(options: argparse.Namespace) -> list[str]:
    """Return the trainers to run; those that are not installed are skipped with a message."""
    names = list(options.only or TRAINERS)
    if not options.only:
        names.remove("mlp" if options.cleanrl else "cleanrl")
    for name, modules in MODULES.items():
        if name in names and not can_import(options.sb3, modules):
            names.remove(name)
            missing = f"{options.sb3} cannot import {', '.join(modules)}"
            print(f"{TRAINERS[name]} is skipped: {missing}; pass --sb3 PYTHON")
    return names


def cases_of(options: argparse.Namespace) -> list[str]:
    """Return the cases to run; those without their modules are skipped with a message."""
    cases = list(options.cases or CASES)
    for name in [*cases]:
        if missing := CASES[name].row.missing:
            cases.remove(name)
            print(f"{name} is skipped: {', '.join(missing)} cannot be imported; install it")
    return cases


def left_to_run(
    options: argparse.Namespace, results: Sequence[Result]
) -> list[tuple[list[str], str]]:
    """Return the arguments of each run that is not done yet, and its Python.

    Trainers alternate, because the load of the machine may vary.
    """
    done = {(r["case"], r["trainer"], r["seed"]) for r in results}
    scripts = {"cleanrl": [str(Path(options.cleanrl).resolve())]} if options.cleanrl else {}
    names, cases = trainers_of(options), cases_of(options)
    return [
        (
            [case, name, str(seed), str(options.cap), *scripts.get(name, [])],
            options.sb3 if name in MODULES else sys.executable,
        )
        for seed in options.seeds
        for case in cases
        for name in (*names, *[PROFILE] * (seed == options.seeds[0]))
        if (case, name, seed) not in done
    ]


def command_line() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES))
    parser.add_argument("--cleanrl", metavar="FILE", help="a copy of CleanRL's ppo.py")
    of_python = "a Python with the packages of the other trainers"
    parser.add_argument("--sb3", default=sys.executable, metavar="PYTHON", help=of_python)
    parser.add_argument("--seeds", nargs="+", type=int, default=[11, 12, 13])
    parser.add_argument("--cap", type=float, default=100.0, help="processor seconds of each run")
    parser.add_argument("--only", nargs="+", choices=list(TRAINERS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    return parser


def main() -> None:
    parser = command_line()
    options = parser.parse_args()
    if options.one:
        case, name, seed, cap_s, *script = options.one
        result = run(CASES[case], name, int(seed), float(cap_s), *script)
        about = {"case": case, "trainer": name, "seed": int(seed), "cap_s": float(cap_s)}
        print(json.dumps({**about, **result, "commit": short_revision()}))
        return
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"CASE: expected some of {'; '.join(CASES)}; got {'; '.join(unknown)}")
    if options.cleanrl and not Path(options.cleanrl).is_file():
        parser.error(f"--cleanrl: expected a copy of cleanrl/ppo.py, got {options.cleanrl}")
    if "cleanrl" in (options.only or ()) and not options.cleanrl:
        parser.error("--cleanrl: expected a copy of cleanrl/ppo.py, got nothing")
    kept = options.results.with_suffix(".jsonl")
    for args, python in left_to_run(options, read_kept(kept)):
        run_all(__file__, [args], kept, jobs=1, python=python)
    options.results.write_text(document(read_kept(kept), _command(options)))
    print(options.results.read_text())


def _command(options: argparse.Namespace) -> str:
    """Return the command without the paths of this machine."""
    words = ["python", "benchmarks/other_trainers.py", *sys.argv[1:]]
    names = {options.cleanrl: "FILE", options.sb3: "PYTHON"}
    return " ".join(names.get(word, word) for word in words)


if __name__ == "__main__":
    main()
