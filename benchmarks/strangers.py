"""Returns in worlds that others wrote, of ours and of Stable-Baselines3's PPO.

    python benchmarks/strangers.py [WORLD ...] [--seeds 3] [--jobs 2] [--sides ours defaults sb3]
        [--frames N] [--results FILE.md]

The worlds are the files in `strangers/`; settings and frames are in `strangers_worlds.py`. Each run
is a process of its own with one thread. Then the agent plays whole episodes, as many in each
environment, with sampled and with the most probable actions; also in worlds of other sizes, which
it never saw. Runs that are done are kept as JSON lines beside the table, with their learning
curves, and are not repeated, unless they had another number of frames. Worlds whose modules are not
installed are left out; all are there after

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
"""Changes of the default settings: a multiple of all numbers of agents."""
DEFAULTS_FRAMES = 100_000
"""At most so many with the defaults: a run that gives up a choice does so early."""
WORLD_OF = {world.name: world for world in WORLDS}


def frames_of(world: World, side: str) -> int:
    """Return the frames of training."""
    return min(world.frames, DEFAULTS_FRAMES) if side == "defaults" else world.frames


def manager_of(world: World, seed: int, frames: int, folder: str) -> StateManager:
    """Return the manager with the settings of our side."""
    path = world.config and ROOT / f"configs/{world.config}.ron"
    own = [f"seed={seed}", f"data_dir={folder}", "rollout.processes=1", f"total_timesteps={frames}"]
    kwargs = f"env.kwargs={json.dumps(world.kwargs)}"
    manager = StateManager(init_path=path, overrides=[kwargs, *world.ours, *own])
    manager.config.eval = None
    return manager


def played(world: World, manager: StateManager, seed: int, play: Play) -> dict[str, float]:
    """Return the mean return of sampled and of greedy play, and the best one if it counts."""
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
    """Train one side in this process and let it play."""
    if side != "sb3":
        if side == "defaults":
            world = world._replace(ours=DEFAULTS, config=None)
        manager, seconds, curve = learn(world, seed, frames)
        done = manager.state.step
        plays = {one.name: played(world, manager, seed, one) for one in world.plays}
    else:
        import strangers_sb3
        import torch

        torch.set_num_threads(1)
        model, seconds, curve = strangers_sb3.train(world, seed, frames)
        done = model.num_timesteps
        plays = {one.name: strangers_sb3.played(world, model, seed, one) for one in world.plays}
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
    """Return the results of all seeds of one side."""
    of_seeds = [run["plays"].get(name) for run in runs]
    if None in of_seeds:
        return "cannot"
    return ", ".join(f"{one[kind]:.4g}" for one in of_seeds if kind in one)


def table(results: list[Result], command: str) -> str:
    """Return the document with the results."""
    versions = [f"{name} {found}" for name in PACKAGES.split() if (found := version_of(name))]
    lines = [
        "# In worlds of others",
        "",
        f"`{command}` on {os.cpu_count()} cores ({processor()}), Python "
        f"{platform.python_version()}; {', '.join(versions)}. Each run has one thread. The worlds "
        "are in `benchmarks/strangers/`, the settings of both sides in "
        "`benchmarks/strangers_worlds.py`; defaults are the settings of a run that names only its "
        "environment, with 126 of them, a multiple of all numbers of agents, and fewer frames: "
        "they show that no choice is given up, not all that can be learnt.",
        "",
        "Mean returns by seed; of foraging those of all players together; of the job shop the "
        "makespan, where less is better. The first line of a world is as in training, the others "
        "are worlds that the agent never saw. Greedy play takes the most probable actions; the "
        "best is that of 32 sampled episodes. Stable-Baselines3 cannot play where its vector has "
        "another length; in spread the vector is padded for five agents by the world itself. The "
        "settings of a row are those of its commit; one that is dirty had them before they were "
        "committed.",
        "",
        "| world | played | side | sampled | greedy | best | frames | frames/s | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for world in WORLDS:
        for one in world.plays:
            for side, title in SIDES.items():
                runs = [r for r in results if (r["world"], r["side"]) == (world.name, side)]
                if runs:
                    cells = [cell(runs, one.name, kind) for kind in ("sampled", "greedy", "best")]
                    speed = ", ".join(f"{r['frames'] / r['seconds']:,.0f}" for r in runs)
                    commits = ", ".join(dict.fromkeys(r["commit"] for r in runs))
                    frames = f"{runs[0]['frames']:,}"
                    row = [world.name, one.name, title, *cells, frames, speed, commits]
                    lines.append(f"| {' | '.join(row)} |")
    lines += ["", "The mean return while training, against frames:", ""]
    return "\n".join([*lines, "![learning curves](strangers.svg)", ""])


def version_of(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def picture(results: list[Result]) -> str:
    """Return a picture of the learning curves, with a panel for each world."""
    panels: dict[str, list[Line]] = {}
    for world in WORLDS:
        for side, title in SIDES.items():
            of_side = [r for r in results if (r["world"], r["side"]) == (world.name, side)]
            if curves := [r["curve"] for r in of_side if r["curve"]]:
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
    wanted = {
        (world.name, side): options.frames or frames_of(world, side)
        for world in WORLDS
        for side in SIDES
    }
    for world in chosen:
        if missing := world.missing(options.sides):
            print(f"{world.name} is left out: {', '.join(missing)} cannot be imported")
    kept = options.results.with_suffix(".jsonl")
    done = {(r["world"], r["side"], r["seed"], r["asked"]) for r in read_kept(kept)}
    todo = [
        (world.name, side, str(seed), str(wanted[world.name, side]))
        for seed in range(1, options.seeds + 1)
        for world in chosen
        for side in options.sides
        if not world.missing(options.sides)
        and (world.name, side, seed, wanted[world.name, side]) not in done
    ]
    run_all(__file__, todo, kept, options.jobs)
    results = [r for r in read_kept(kept) if r["asked"] == wanted.get((r["world"], r["side"]))]
    results.sort(key=lambda r: int(r["seed"]))
    command = " ".join(["python benchmarks/strangers.py", *sys.argv[1:]])
    options.results.write_text(table(results, command))
    if results:
        options.results.with_suffix(".svg").write_text(picture(results))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
