"""Scaling of throughput and memory with environments, entities, width and processes.

    python benchmarks/scaling.py [SECTION ...] [--seconds 4] [--peer PYTHON] [--results FILE.md]

*environments*: training in Minefield with 1 to 4096 environments, vectorised, or stepped one by one
in 1 and 2 processes.

*entities*: training with 1 to 512 entities per frame, in an environment of negligible cost.

*width*: training with d_model 16 to 256.

*gpu*: training on a GPU with d_model 64 to 512, and the GPU utilisation. Skipped without a GPU.

*memory*: peak memory of a rollout of 10 million entities, compared with the size of its data.

*collection*: acting and stepping alone in Minefield, compared with the published trainer with two
worker processes. PYTHON has enn-trainer 0.1.16.

FILE.md keeps sections that are not measured; figures of the curves are written next to it.
"""

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured_on import short_revision

from enn_trainer.cli.plot_command import Curve, draw

HERE = Path(__file__).parent
NUM_ENVS = [1, 4, 16, 64, 256, 1024, 4096]
NUM_UNITS = [1, 4, 16, 64, 128, 256, 512]
WIDTHS = [16, 32, 64, 128, 256]
WIDTHS_ON_GPU = [64, 128, 256, 512]
FRAMES_OF_UPDATE = 2048
"""Minimal number of frames of an update."""
ENTITIES_OF_UPDATE = 32768
ENTITIES_OF_ROLLOUT = 10_000_000

Lines = Callable[[str], None]
Curves = dict[str, list[tuple[float, float]]]


def in_process(script: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
    """Run a script in a separate process and return its result."""
    ours = python == sys.executable
    env = {k: v for k, v in os.environ.items() if ours or k != "PYTHONPATH"}
    done = subprocess.run(
        [python, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=env,
    )
    if done.returncode:
        sys.exit(done.stderr)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def trained(world: str, settings: Mapping[str, object], seconds: float) -> dict[str, float]:
    """Measure frames and entities per second, and core-microseconds per frame, of training."""
    overrides = [f"{name}={value}" for name, value in settings.items()]
    what = {"world": world, "settings": overrides, "seconds": seconds}
    return in_process("scaling_measure.py", json.dumps(["train", what]))


def environments(add: Lines, options: argparse.Namespace) -> Curves:
    sides = {
        "in array operations": ("VecMinefield", 1),
        "one by one": ("Minefield", 1),
        "in 2 processes": ("Minefield", 2),
    }
    add("8 steps and more, at least 2,048 frames an update, minibatches of 1,024, d_model 32.")
    add("")
    add("| environments | stepped | frames/s | entities/s | core-µs a frame, trainer alone |")
    add("| --- | --- | --- | --- | --- |")
    curves: Curves = {name: [] for name in sides}
    core_us = {}
    for num_envs in NUM_ENVS:
        for name, (world, processes) in sides.items():
            if processes > num_envs:
                continue
            settings = {
                "rollout.num_envs": num_envs,
                "rollout.steps": max(8, FRAMES_OF_UPDATE // num_envs),
                "rollout.processes": processes,
                "optim.bs": 1024,
                "net.d_model": 32,
            }
            measured = trained(world, settings, options.seconds)
            add(f"| {num_envs} | {name} | {format_speed(measured)} |")
            curves[name].append((num_envs, measured["frames_s"]))
            core_us[name, num_envs] = measured["core_us"]
    for name in sides:
        by_core = core_us[name, 4096] / core_us[name, 256]
        rates = dict(curves[name])
        add("")
        add(
            f"Time per frame at 4096 environments over that at 256, {name}: "
            f"{rates[256] / rates[4096]:.2f} (core time {by_core:.2f})."
        )
    return curves


def entities(add: Lines, options: argparse.Namespace) -> Curves:
    add("Frames of equal size with one acting unit; 32,768 entities per update, d_model 32.")
    add("")
    add("| entities a frame | environments | frames/s | entities/s | core-µs a frame |")
    add("| --- | --- | --- | --- | --- |")
    curves: Curves = {"frames/s": [], "entities/s": []}
    for num_units in NUM_UNITS:
        frames = ENTITIES_OF_UPDATE // num_units
        num_envs = min(512, frames // 4)
        measured = trained(
            "Crowd", crowd_settings(num_units, num_envs, frames, 32), options.seconds
        )
        add(f"| {num_units} | {num_envs} | {format_speed(measured)} |")
        curves["frames/s"].append((num_units, measured["frames_s"]))
        curves["entities/s"].append((num_units, measured["entities_s"]))
    return curves


def width(add: Lines, options: argparse.Namespace) -> Curves:
    add("16 entities a frame, 2,048 frames an update, 512 environments.")
    return by_width(add, options, {d: crowd_settings(16, 512, 2048, d) for d in WIDTHS})


def gpu(add: Lines, options: argparse.Namespace) -> Curves:
    if not torch.cuda.is_available():
        add("Skipped: torch finds no GPU.")
        return {}
    add(f"{torch.cuda.get_device_name()}. 16 entities a frame, 32,768 frames an update, 4,096")
    add("environments.")
    settings = {d: {**crowd_settings(16, 4096, 32768, d), "cuda": "true"} for d in WIDTHS_ON_GPU}
    return by_width(add, options, settings, shows_gpu=True)


def by_width(
    add: Lines,
    options: argparse.Namespace,
    settings: Mapping[int, Mapping[str, object]],
    shows_gpu: bool = False,
) -> Curves:
    """Add a row per d_model; return the curves."""
    add("")
    add(
        "| d_model | frames/s | entities/s | core-µs a frame |"
        + " share of time the GPU computes |" * shows_gpu
    )
    add("| --- | --- | --- | --- |" + " --- |" * shows_gpu)
    curves: Curves = {"frames/s": []}
    for d_model, width_settings in settings.items():
        measured = trained("Crowd", width_settings, options.seconds)
        share = f" {measured['gpu_share']:.0%} |" * shows_gpu
        add(f"| {d_model} | {format_speed(measured)} |{share}")
        curves["frames/s"].append((d_model, measured["frames_s"]))
    return curves


def crowd_settings(num_units: int, num_envs: int, frames: int, d_model: int) -> dict[str, object]:
    """Return settings of updates with `frames` frames, in two minibatches."""
    return {
        "env.kwargs": json.dumps({"num_units": num_units}),
        "rollout.num_envs": num_envs,
        "rollout.steps": frames // num_envs,
        "optim.bs": frames // 2,
        "net.d_model": d_model,
    }


def memory(add: Lines, options: argparse.Namespace) -> Curves:
    add("Megabytes above those before the rollout, in a fresh process; 4 features, d_model 16.")
    add("")
    add(
        "| environments | entities a frame | entities | its data | kept afterwards | at most | "
        "at most / data |"
    )
    add("| --- | --- | --- | --- | --- | --- | --- |")
    for num_envs, num_units in ((512, 64), (512, 16)):
        what = {
            "num_envs": num_envs,
            "num_units": num_units,
            "num_entities": ENTITIES_OF_ROLLOUT,
        }
        measured = in_process("scaling_measure.py", json.dumps(["memory", what]))
        sizes = " | ".join(f"{measured[name]:.0f}" for name in ("data_mb", "after_mb", "peak_mb"))
        add(
            f"| {num_envs} | {num_units} | {measured['entities']:,} | {sizes} | "
            f"{measured['peak_mb'] / measured['data_mb']:.2f} |"
        )
    return {}


def collection(add: Lines, options: argparse.Namespace) -> Curves:
    sides = {
        "ours, in array operations": (sys.executable, "VecMinefield", 1),
        "ours, 2 processes": (sys.executable, "Minefield", 2),
    }
    if options.peer:
        sides["enn-trainer 0.1.16, 2 processes"] = (options.peer, "Minefield", 2)
    else:
        add("The published trainer is skipped; pass --peer PYTHON.")
        add("")
    rates: dict[str, list[float]] = {name: [] for name in sides}
    env_us: dict[str, list[float]] = {name: [] for name in sides}
    core_us: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.repeats):
        for name, (python, world, processes) in sides.items():
            arguments = world, str(processes), str(options.seconds)
            measured = in_process("scaling_collect.py", *arguments, python=python)
            rates[name].append(measured["frames_s"])
            env_us[name].append(measured.get("env_us", np.nan))
            core_us[name].append(measured["core_us"])
    add("512 environments, 32 steps, d_model 32, positions relative to the vehicle.")
    add("")
    add(
        "| | frames/s | of it µs a frame in the environments | core-µs a frame, trainer alone | "
        "times the last row |"
    )
    add("| --- | --- | --- | --- | --- |")
    last = rates[[*sides][-1]]
    for name, side_rates in rates.items():
        ratios = [a / b for a, b in zip(side_rates, last, strict=True)]
        stepping = statistics.median(env_us[name])
        cells = [
            spread(side_rates, ",.0f"),
            "-" if np.isnan(stepping) else f"{stepping:.2f}",
            spread(core_us[name], ".1f"),
            spread(ratios, ".2f"),
        ]
        add(f"| {name} | {' | '.join(cells)} |")
    return {}


def spread(values: list[float], form: str) -> str:
    """Format the median, minimum and maximum of values."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def format_speed(measured: Mapping[str, float]) -> str:
    return (
        f"{measured['frames_s']:,.0f} | {measured['entities_s']:,.0f} | {measured['core_us']:.1f}"
    )


SECTIONS: dict[str, tuple[str, Callable[[Lines, argparse.Namespace], Curves]]] = {
    "environments": ("Environments", environments),
    "entities": ("Entities in a frame", entities),
    "width": ("Width of the network", width),
    "gpu": ("Width of the network on a GPU", gpu),
    "memory": ("Memory of a rollout", memory),
    "collection": ("Collection alone", collection),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--seconds", type=float, default=4.0, help="of each point")
    parser.add_argument("--repeats", type=int, default=3, help="of collection")
    parser.add_argument("--peer", help="a Python with enn-trainer 0.1.16")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if unknown := {*options.sections} - {*SECTIONS}:
        parser.error(f"expected some of {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    for name in options.sections or SECTIONS:
        lines: list[str] = []

        def add(line: str, lines: list[str] = lines) -> None:
            lines.append(line)
            print(line, flush=True)

        title, measure = SECTIONS[name]
        add(f"## {title}")
        add("")
        curves = measure(add, options)
        if options.results:
            add("")
            add(about(name, options))
            if curves:
                picture = options.results.with_name(f"{options.results.stem}_{name}.svg")
                plot(curves, name, picture)
                lines += ["", f"![{title}]({picture.name})"]
            write_section(options.results, title, "\n".join(lines))


def plot(curves: Curves, name: str, path: Path) -> None:
    """Plot the curves with logarithmic axes."""
    lines = [
        Curve(label, *np.array(points, dtype=np.float64).T, None)
        for label, points in curves.items()
    ]
    against = {"environments": "environments", "entities": "entities a frame"}
    tag = "a second" if len(lines) == 2 else "frames a second"
    draw({tag: lines}, path, against=against.get(name, "d_model"), log=True)


def write_section(path: Path, title: str, text: str) -> None:
    """Replace or insert a section of the document, in the order of `SECTIONS`."""
    text_before = path.read_text() if path.exists() else ""
    parts = re.split(r"^(?=## )", text_before, flags=re.MULTILINE)[1:]
    by_title = {part.splitlines()[0].removeprefix("## "): part.strip() for part in parts}
    by_title[title] = text.strip()
    order = [section for section, _ in SECTIONS.values() if section in by_title]
    body = "\n\n".join(["# Scaling", *(by_title[section] for section in order)])
    path.write_text(f"{body}\n")


def about(name: str, options: argparse.Namespace) -> str:
    """Return the command, machine and versions of a measurement."""
    return (
        f"`python benchmarks/scaling.py {name} --seconds {options.seconds:g}`, {os.cpu_count()} "
        f"cores ({torch.backends.cpu.get_cpu_capability()}), torch {torch.__version__}, Python "
        f"{platform.python_version()}, commit {short_revision()}."
    )


if __name__ == "__main__":
    main()
