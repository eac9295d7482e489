"""Upper bound of the training speed, and the speed that training reaches.

    python benchmarks/ceiling.py [CASE ...] [--repeats 2] [--seconds 3] [--results FILE.md]

*Environments* and *network* are microseconds of one core a frame. The former is the time of `act`
and `reset` in a plain loop, with random legal actions. The latter is the time of the arithmetic of
a frame in one thread: a forward pass while acting, and a forward and a backward pass for every
epoch, in the pieces that training cuts a minibatch into; with torch's own blocks (without the
compiled ones), as in training, and, for networks wider than 64, in bfloat16.

The *ceiling* is the number of frames a second if nothing else took any time and both cores were
always busy. *Trained* is the speed of the trainer with two worker processes, after a warm-up;
*cores used* is the core time of trainer and workers by wall-clock time. *Overhead* is the share of
the time in which the trainer neither waits for the environments nor is in a forward or backward
pass; the promise is 15% at most from d_model 32 on.

Each measurement has a process of its own, in turns. Values are medians of the repeats.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from ceiling_measure import CORES
from measured_on import short_revision

from rogue_net.native.compiled import INSTRUCTIONS, SWITCH

MEASURE = Path(__file__).with_name("ceiling_measure.py")
POLAR = {"extent": "[8,2]", "interpolate": "true", "radial": "true", "distance": "true"}


def positions(features: str, **more: str) -> list[str]:
    """Return the settings of relative position encodings."""
    settings = {"position_features": features, **more, "per_entity_values": "true"}
    return [f"net.relpos_encoding.{name}={value}" for name, value in settings.items()]


MINES = [
    'env.kwargs={"max_mines": 10}',
    *("ppo.ent_coef=0.0001", "ppo.gamma=0.999", "ppo.anneal_entropy=false"),
]
CASES = {
    "move_to_origin": [
        *("env.id=MoveToOrigin", "rollout.num_envs=64", "rollout.steps=32"),
        *("net.d_model=16", "net.n_layer=1", "optim.lr=0.003", "optim.bs=2048"),
    ],
    "xor": [
        *("env.id=Xor", "rollout.num_envs=2048", "rollout.steps=1", "net.d_model=16"),
        *("optim.lr=0.003", "optim.bs=2048", "ppo.ent_coef=0.3", "ppo.anneal_entropy=false"),
    ],
    "floor_is_lava": [
        *("env.id=FloorIsLava", "rollout.num_envs=256", "rollout.steps=1", "net.d_model=16"),
        *("optim.lr=0.01", "optim.bs=256", "ppo.ent_coef=1.0"),
        *positions('["x","y"]', extent="[1,1]"),
    ],
    "multi_snake": [
        *("env.id=MultiSnake", 'env.kwargs={"num_snakes": 1, "max_snake_length": 11}'),
        *("rollout.num_envs=512", "rollout.steps=64", "net.d_model=32"),
        *("optim.lr=0.018", "optim.bs=32768", "ppo.ent_coef=0.02", "ppo.gamma=0.97"),
        *positions('["x","y"]', extent="[10,10]"),
    ],
    "minefield": [
        *("env.id=Minefield", *MINES, "rollout.num_envs=512", "rollout.steps=32"),
        *("net.d_model=32", "optim.lr=0.001", "optim.bs=1024"),
        'net.translation.reference_entity="Vehicle"',
        'net.translation.position_features=["x_pos","y_pos"]',
        'net.translation.rotation_angle_feature="direction"',
    ],
    "minefield_polar": [
        *("env.id=Minefield", *MINES, "rollout.num_envs=256", "rollout.steps=32"),
        *("net.d_model=32", "optim.lr=0.005", "optim.bs=1024"),
        *positions('["x_pos","y_pos"]', **POLAR, scale="300.0"),
        'net.relpos_encoding.rotation_angle_feature="direction"',
    ],
    "cherry_pick": [
        *("env.id=CherryPick", 'env.kwargs={"num_cherries": 32}', "rollout.num_envs=128"),
        *("rollout.steps=16", "net.d_model=128", "optim.lr=0.001", "optim.bs=2048"),
        "ppo.vf_coef=0.25",
    ],
    "pick_matching_balls": [
        "env.id=PickMatchingBalls",
        'env.kwargs={"max_balls": 32, "one_hot": true, "randomize": true}',
        *("rollout.num_envs=64", "rollout.steps=16", "net.d_model=128", "net.n_layer=4"),
        *("net.d_qk=32", "optim.lr=0.001", "optim.bs=1024", "ppo.ent_coef=0.5"),
    ],
}
"""Settings of the throughput comparison with the published trainer, `results/training.md`."""
NETWORKS = {"torch": ("0", "float32"), "compiled": ("1", "float32"), "bfloat16": ("1", "bfloat16")}
"""Network backends: switch of compiled blocks, and precision."""
PROMISED = 0.15
NO_SHARES = ("frames_s", "cores", "overhead")
"""Training figures that are not shares of time."""

Results = dict[str, dict[str, float]]
"""Measured values by measurement."""


def measured(case: str, seconds: float) -> Results:
    """Measure environments, network and training of a case once."""
    settings = [*CASES[case], f"rollout.processes={CORES}"]
    results = {"environments": in_process("environments", settings, seconds / 3)}
    for name, (switch, precision) in NETWORKS.items():
        if precision == "float32" or width(case) > 64:
            network_settings = [*settings, f"net.precision={precision}"]
            results[name] = in_process("network", network_settings, seconds, switch)
    results["train"] = in_process("train", settings, seconds)
    return results


def width(case: str) -> int:
    """Return d_model of a case's network."""
    return next(int(s.partition("=")[2]) for s in CASES[case] if s.startswith("net.d_model="))


def in_process(
    what: str, settings: Sequence[str], seconds: float, switch: str = "1"
) -> dict[str, float]:
    """Run `ceiling_measure.py` in a separate process and return its result."""
    arguments = json.dumps([what, {"settings": settings, "seconds": seconds}])
    command = [sys.executable, str(MEASURE), arguments]
    env = os.environ | {SWITCH: switch}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def medians(repeats: Sequence[Results]) -> Results:
    """Return the median of each value."""
    return {
        what: {
            name: statistics.median(repeat[what].get(name, 0.0) for repeat in repeats)
            for name in repeats[0][what]
        }
        for what in repeats[0]
    }


def ceiling(env_us: float, network_us: float) -> float:
    """Return the frames per second of all cores, from core-microseconds per frame."""
    return CORES * 1e6 / (env_us + network_us)


def floor_row(case: str, results: Results) -> str:
    """Format a row of the table of minimal costs."""
    env_us = results["environments"]["env_us"]
    network_us = [results[name]["us"] if name in results else None for name in NETWORKS]
    ceilings = [None if us is None else ceiling(env_us, us) for us in network_us]
    cells = [
        *(case, f"{width(case)}", f"{env_us:.1f}"),
        *("-" if us is None else f"{us:,.1f}" for us in network_us),
        *("-" if rate is None else f"{rate:,.0f}" for rate in ceilings),
    ]
    return f"| {' | '.join(cells)} |"


def train_row(case: str, results: Results) -> str:
    """Format a row of the table of training."""
    train, floor_us = (
        results["train"],
        results["environments"]["env_us"] + results["compiled"]["us"],
    )
    share = train["frames_s"] / ceiling(
        results["environments"]["env_us"], results["compiled"]["us"]
    )
    core_us = 1e6 * train["cores"] / train["frames_s"]
    overhead = f"{train['overhead']:.1%}"
    if width(case) >= 32 and train["overhead"] > PROMISED:
        overhead += f" (promised: {PROMISED:.0%})"
    cells = [
        *(case, f"{train['frames_s']:,.0f}", f"{share:.2f}", f"{train['cores']:.2f}"),
        *(f"{core_us:,.1f}", f"{floor_us / core_us:.2f}", overhead),
    ]
    return f"| {' | '.join(cells)} |"


def shares(case: str, train: Mapping[str, float]) -> str:
    """Format the shares of the training time."""
    parts = {n: x for n, x in train.items() if n not in NO_SHARES and x >= 0.003}
    text = ", ".join(
        f"{name} {share:.1%}" for name, share in sorted(parts.items(), key=lambda p: -p[1])
    )
    return f"- {case}: {text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each figure")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if unknown := {*options.cases} - {*CASES}:
        parser.error(f"expected some of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    if INSTRUCTIONS is None:
        parser.error("expected the compiled extension, got none; build it")
    cases = options.cases or [*CASES]
    repeats: dict[str, list[Results]] = {case: [] for case in cases}
    for i in range(options.repeats):
        for case in cases:
            repeats[case].append(measured(case, options.seconds))
            print(f"{i + 1} of {options.repeats}: {train_row(case, repeats[case][-1])}", flush=True)
    results = {case: medians(repeats[case]) for case in cases}
    text = "\n".join(report(results, options))
    print(f"\n{text}")
    if options.results:
        options.results.write_text(f"{text}\n")


def report(results: Mapping[str, Results], options: argparse.Namespace) -> list[str]:
    """Return the document as lines of Markdown."""
    return [
        "# How far there is to go",
        "",
        f"`python benchmarks/ceiling.py --repeats {options.repeats} --seconds "
        f"{options.seconds:g}`, {os.cpu_count()} cores, {INSTRUCTIONS}, torch {torch.__version__}, "
        f"Python {platform.python_version()}, commit {short_revision()}. Definitions are in the "
        "script.",
        "",
        "| case | d_model | environments, core-µs a frame | network: torch | compiled | bfloat16 | "
        "ceiling, frames/s: torch | compiled | bfloat16 |",
        f"|{' --- |' * 9}",
        *(floor_row(case, one) for case, one in results.items()),
        "",
        "| case | trained, frames/s | / compiled ceiling | cores used | core-µs a frame | "
        "share of environments and network | overhead |",
        f"|{' --- |' * 7}",
        *(train_row(case, one) for case, one in results.items()),
        "",
        "Shares of the time of training:",
        "",
        *(shares(case, one["train"]) for case, one in results.items()),
    ]


if __name__ == "__main__":
    main()
