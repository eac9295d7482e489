"""Returns in third-party environments, of our trainer and of Stable-Baselines3's PPO.

    python benchmarks/strangers.py [WORLD ...] [--seeds 3] [--jobs 2] [--sides ours defaults sb3]
        [--frames N] [--results FILE.md]

The environments are in `strangers/`; settings and frames are in `strangers_worlds.py`. Each run is
a separate process with one thread. Then the agent plays complete episodes, equally many in each
environment, with sampled and with the most probable actions; also in environments of unseen sizes.
Finished runs are stored as JSON lines next to the table, with their learning curves, and are not
repeated, unless their number of frames differs. Environments with missing modules are skipped; to
install all:

    pip install stable-baselines3 sb3-contrib minigrid mpe2 jumanji lbforaging==2.0.0 highway-env
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from kept_runs import Result, read_kept, run_all
from learning_curves import Line, Points, draw, read_curve
from learning_measure import measure
from measured_on import processor, short_revision
from strangers_worlds import ROOT, WORLDS, Play, World, load

from enn_trainer import StateManager, train
from enn_trainer.experience.envs import env_factory

SIDES = {
    "ours": "enn-trainer",
    "defaults": "enn-trainer, defaults",
    "sb3": "Stable-Baselines3",
}
PACKAGES = (
    "torch numpy stable-baselines3 sb3-contrib gymnasium pettingzoo minigrid mpe2 jumanji jax "
    "lbforaging highway-env"
)
DEFAULTS = ("rollout.num_envs=30",)
"""Overrides of the default settings: a multiple of all numbers of agents."""
DEFAULTS_FRAMES = 100_000
"""Maximal number of frames with the defaults: a collapse of the policy happens early."""
WORLD_OF = {world.name: world for world in WORLDS}


def frames_of(world: World, side: str) -> int:
    """Return the number of training frames."""
    return min(world.frames, DEFAULTS_FRAMES) if side == "defaults" else world.frames


def manager_of(world: World, seed: int, frames: int, folder: str) -> StateManager:
    """Create the state manager with our settings."""
    path = world.config and ROOT / f"configs/{world.config}.ron"
    run_settings = [
        f"seed={seed}",
        f"data_dir={folder}",
        "rollout.processes=1",
        f"total_timesteps={frames}",
    ]
    kwargs = f"env.kwargs={json.dumps(world.kwargs)}"
    manager = StateManager(init_path=path, overrides=[kwargs, *world.ours, *run_settings])
    manager.config.eval = None
    return manager


def played(world: World, manager: StateManager, seed: int, play: Play) -> dict[str, float]:
    """Return the mean return of sampled and of greedy play, and the best one for `best_of`."""
    make = env_factory(load(world.entities))
    config = dataclasses.replace(
        manager.config.env, kwargs=json.dumps({**world.kwargs, **play.kwargs})
    )
    result = {}
    for name, greedy in (("sampled", False), ("greedy", True)):
        returns = play.scale * measure(
            make(config, play.best_of or world.num_envs, 1, 0),
            manager.state.agent,
            None,
            seed=10_000 + seed,
            episodes=play.best_of or world.episodes,
            greedy=greedy,
        )
        result[name] = float(np.mean(returns))
        if play.best_of and not greedy:
            result["best"] = float(max(returns) if play.scale > 0 else min(returns))
    return result


def learn(world: World, seed: int, frames: int) -> tuple[StateManager, float, Points]:
    """Train in this process; return the manager, the seconds and the learning curve."""
    with tempfile.TemporaryDirectory() as folder:
        manager = manager_of(world, seed, frames, folder)
        start = time.perf_counter()
        train(manager, load(world.entities))
        seconds = time.perf_counter() - start
        return manager, seconds, read_curve(Path(folder), world.plays[0].scale)


def run(world: World, side: str, seed: int, frames: int) -> Result:
    """Train one side in this process and evaluate it."""
    if side != "sb3":
        if side == "defaults":
            world = world._replace(ours=DEFAULTS, config=None)
        manager, seconds, curve = learn(world, seed, frames)
        done = manager.state.step
        plays = {play.name: played(world, manager, seed, play) for play in world.plays}
    else:
        import strangers_sb3
        import torch

        torch.set_num_threads(1)
        model, seconds, curve = strangers_sb3.train(world, seed, frames)
        done = model.num_timesteps
        plays = {play.name: strangers_sb3.played(world, model, seed, play) for play in world.plays}
    return {
        "world": world.name,
        "side": side,
        "seed": seed,
        "asked": frames,
        "frames": done,
        "seconds": round(seconds, 1),
        "plays": plays,
        "curve": curve,
        "commit": short_revision(),
    }


def cell(runs: list[Result], name: str, kind: str) -> str:
    """Format the results of all seeds of one side."""
    plays = [run["plays"].get(name) for run in runs]
    if None in plays:
        return "cannot"
    return ", ".join(f"{one[kind]:.4g}" for one in plays if kind in one)


def table(results: list[Result], command: str) -> str:
    """Return the document with the results."""
    versions = [f"{name} {version}" for name in PACKAGES.split() if (version := version_of(name))]
    lines = [
        "# Third-party environments",
        "",
        f"`{command}` on {os.cpu_count()} cores ({processor()}), Python "
        f"{platform.python_version()}; {', '.join(versions)}. Each run has one thread. "
        "Environments are in `benchmarks/strangers/`, the settings of both sides in "
        "`benchmarks/strangers_worlds.py`; *defaults* are the default settings "
        "with 126 environments, a multiple of all numbers of agents, and fewer frames: they show "
        "that the policy does not collapse, not the final return.",
        "",
        "Mean returns by seed; in foraging of all players together; in the job shop the makespan, "
        "where less is better. The first line of an environment is as in training, the others "
        "were never seen in training. Greedy play takes the most probable actions; the "
        "best is that of 32 sampled episodes. Stable-Baselines3 cannot play where its vector has a "
        "different length; in spread the environment pads the vector for five agents. The "
        "settings of a row are in its commit; a dirty one had them before they were committed.",
        "",
        "| world | played | side | sampled | greedy | best | frames | frames/s | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for world in WORLDS:
        for play in world.plays:
            for side, title in SIDES.items():
                runs = [r for r in results if (r["world"], r["side"]) == (world.name, side)]
                if runs:
                    cells = [cell(runs, play.name, kind) for kind in ("sampled", "greedy", "best")]
                    speed = ", ".join(f"{r['frames'] / r['seconds']:,.0f}" for r in runs)
                    commits = ", ".join(dict.fromkeys(r["commit"] for r in runs))
                    frames = f"{runs[0]['frames']:,}"
                    row = [world.name, play.name, title, *cells, frames, speed, commits]
                    lines.append(f"| {' | '.join(row)} |")
    lines += ["", "The mean return while training, against frames:", ""]
    return "\n".join([*lines, "![learning curves](strangers.svg)", ""])


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def picture(results: list[Result]) -> str:
    """Return a figure of the learning curves, with a panel for each environment."""
    panels: dict[str, list[Line]] = {}
    for world in WORLDS:
        for side, title in SIDES.items():
            runs = [r for r in results if (r["world"], r["side"]) == (world.name, side)]
            if curves := [r["curve"] for r in runs if r["curve"]]:
                lines = panels.setdefault(world.name, [])
                lines.append(Line(side if lines else f"{title} in {world.name}", curves))
    return draw(panels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=", ".join(WORLD_OF))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--frames", type=int, help="of each run, for a quick look")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/strangers.md")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        name, side, seed, frames = options.one
        print(json.dumps(run(WORLD_OF[name], side, int(seed), int(frames))))
        return
    if unknown := [name for name in options.worlds if name not in WORLD_OF]:
        parser.error(f"WORLD: expected some of {', '.join(WORLD_OF)}; got {', '.join(unknown)}")
    chosen = [world for world in WORLDS if not options.worlds or world.name in options.worlds]
    frames_by_run = {
        (world.name, side): options.frames or frames_of(world, side)
        for world in WORLDS
        for side in SIDES
    }
    for world in chosen:
        if missing := world.missing(options.sides):
            print(f"{world.name} is skipped: {', '.join(missing)} cannot be imported")
    runs_file = options.results.with_suffix(".jsonl")
    done = {(r["world"], r["side"], r["seed"], r["asked"]) for r in read_kept(runs_file)}
    todo = [
        (world.name, side, str(seed), str(frames_by_run[world.name, side]))
        for seed in range(1, options.seeds + 1)
        for world in chosen
        for side in options.sides
        if not world.missing(options.sides)
        and (world.name, side, seed, frames_by_run[world.name, side]) not in done
    ]
    run_all(__file__, todo, runs_file, options.jobs)
    results = [
        r for r in read_kept(runs_file) if r["asked"] == frames_by_run.get((r["world"], r["side"]))
    ]
    results.sort(key=lambda r: int(r["seed"]))
    command = " ".join(["python benchmarks/strangers.py", *sys.argv[1:]])
    options.results.write_text(table(results, command))
    if results:
        options.results.with_suffix(".svg").write_text(picture(results))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
