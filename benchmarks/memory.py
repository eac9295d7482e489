"""Agents that remember: worlds that need memory, controls without it, and the speed of training.

    python benchmarks/memory.py learn [ROW ...] [--seeds 3] [--jobs 2]
    python benchmarks/memory.py speed [--updates 20]

Results are in `results/memory.md`. Runs that are done are kept as JSON lines beside it, and are not
repeated. Agents are measured after training, with sampled actions.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kept_runs import read_kept, run_all
from measured_on import processor, short_revision

from enn_trainer import EvalConfig, StateManager, Trainer
from entity_env import EnvList
from entity_env.examples import ENV_REGISTRY, VecMinefield
from entity_env.examples.cherry_pick import CherryPick

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/memory.md"
EPISODES = 2000
"""Episodes to measure an agent in."""


class Row(NamedTuple):
    """A world, and the settings to train an agent with.

    Attributes:
        name: on the command line.
        config: file in `configs/`, without ".ron".
        overrides: changes of the configuration.
        bar: number to reach.
        is_control: True for settings that cannot do it: the number is not to be exceeded, and one
            seed is enough.
        metric: that is compared.
    """

    name: str
    config: str
    overrides: tuple[str, ...]
    bar: float
    is_control: bool = False
    metric: str = "episodic_reward"


_HIDDEN, _NAMED = 'env.kwargs={"hidden": 4}', 'env.kwargs={"named": true}'
_CONTROL = "total_timesteps=100000"
_NO_MEMORY = ("net.memory=None", "ppo.seq_len=None")
ROWS = [
    Row("Shells", "shells", (), 0.98),
    Row("Shells, no memory", "shells", (*_NO_MEMORY, _CONTROL), 0.28, True),
    Row("Shells, of frame", "shells", ('net.memory=(of: "frame")', _CONTROL), 0.28, True),
    Row("Shells, new ids", "shells", ('env.kwargs={"new_ids": true}', _CONTROL), 0.28, True),
    Row("Shells hidden", "shells", (_HIDDEN, "net.memory=(keep_absent: 4)"), 0.98),
    Row(
        "Shells hidden, keep_absent=3",
        "shells",
        (_HIDDEN, "net.memory=(keep_absent: 3)", _CONTROL),
        0.28,
        True,
    ),
    Row("Shells named", "shells", (_NAMED, 'net.memory=(of: "entity")'), 0.98),
    Row(
        "Shells named, keep_absent=0",
        "shells",
        (_NAMED, 'net.memory=(of: "entity", keep_absent: 0)', _CONTROL),
        0.29,
        True,
    ),
    Row("HiddenArm", "hidden_arm", (), 17.0),
    Row("HiddenArm, no inputs", "hidden_arm", ('net.memory=(of: "frame")',), 6.0, True),
    Row("Pairs", "pairs", (), 14.0, metric="moves"),
]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Train an agent with one seed in this process, and measure it."""
    with tempfile.TemporaryDirectory() as folder:
        start, path = time.perf_counter(), Path(folder) / "run"
        own = (f"seed={seed}", f"data_dir={folder}", "rollout.processes=1")
        config = ROOT / "configs" / f"{row.config}.ron"
        changes = [*row.overrides, *own]
        manager = StateManager(init_path=config, checkpoint_dir=path, overrides=changes)
        env = manager.config.env
        world = partial(ENV_REGISTRY[env.id], **json.loads(env.kwargs))
        with Trainer(manager, world) as trainer:
            trainer.run()
            seconds = time.perf_counter() - start
            settings = EvalConfig(episodes=EPISODES, num_envs=200, seed=1, max_steps=100_000)
            measured = trainer.evaluate(settings)
        return {
            "row": row.name,
            "seed": seed,
            "frames": manager.state.step,
            "value": measured[f"eval/{row.metric}.mean"],
            "seconds": round(seconds, 1),
            "commit": short_revision(),
        }


# -- Speed -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Training in a world with and without memory, at equal numbers of blocks.

    Attributes:
        world: the environments.
        settings: of both.
        bars: number to reach by the kind of memory.
    """

    world: Any
    settings: tuple[str, ...]
    bars: Mapping[str, float]


CASES = {
    "Minefield, d_model 32": Case(
        VecMinefield,
        ("net.d_model=32", "rollout.num_envs=128", "rollout.processes=1"),
        {"both": 0.55, "frame": 0.75},
    ),
    "CherryPick, d_model 128": Case(
        CherryPick,
        ("net.d_model=128", "rollout.num_envs=64", "rollout.processes=1"),
        {"both": 0.75},
    ),
}


def measure_speed(case: Case, updates: int) -> dict[str, float]:
    """Let runs take turns, update by update; return the median seconds of an update by memory."""
    kinds = {"": ("net.n_layer=2",)}
    kinds |= {kind: ("net.n_layer=1", f'net.memory=(of: "{kind}")') for kind in case.bars}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        trainers = {}
        for kind, settings in kinds.items():
            more = (*case.settings, *settings, "total_timesteps=1000000000", f"data_dir={folder}")
            manager = StateManager(overrides=more)
            trainers[kind] = stack.enter_context(Trainer(manager, case.world))
        seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
        for i in range(updates + 1):
            for kind, trainer in trainers.items():
                start = time.perf_counter()
                trainer.step()
                if i > 0:  # the first one warms up
                    seconds[kind].append(time.perf_counter() - start)
        return {kind: statistics.median(times) for kind, times in seconds.items()}


def measure_tracking(steps: int = 300, num_envs: int = 64) -> float:
    """Return the cost of `track` in a step of environments with 4 types and 32 entities."""
    from entity_env import (
        CategoricalActionMask,
        CategoricalActionSpace,
        Entity,
        Environment,
        Observation,
        ObsSpace,
        PlainState,
        Ragged,
    )

    class Crowd(PlainState, Environment):
        """Four types of eight walkers."""

        names = ("Cat", "Dog", "Cow", "Hen")

        def obs_space(self) -> ObsSpace:
            """Return the space of the walkers."""
            return ObsSpace(entities={name: Entity(["x", "y", "age"]) for name in self.names})

        def action_space(self) -> dict[str, Any]:
            """Return the action of cats."""
            return {"go": CategoricalActionSpace(["left", "right"])}

        def reset(self) -> Observation:
            """Put the walkers anywhere."""
            self.places = self.rng.choices(range(100), k=32)
            self.step = 0
            return self.observe()

        def act(self, actions: Any) -> Observation:
            """Let all of them walk."""
            self.step += 1
            moves = self.rng.choices((-1, 0, 1), k=32)
            self.places = [x + dx for x, dx in zip(self.places, moves, strict=True)]
            return self.observe()

        def observe(self) -> Observation:
            """Show all walkers."""
            rows = [[float(x), float(x % 7), float(self.step)] for x in self.places]
            parts = {name: slice(8 * i, 8 * i + 8) for i, name in enumerate(self.names)}
            return Observation(
                features={name: rows[part] for name, part in parts.items()},
                ids={name: [*range(part.start, part.stop)] for name, part in parts.items()},
                actions={"go": CategoricalActionMask(actor_types=["Cat"])},
                done=self.step == 50,
            )

    envs = [EnvList(Crowd, num_envs), EnvList(Crowd, num_envs)]
    envs[1].track()
    choices = Ragged(np.zeros(8 * num_envs, np.int64), np.full(num_envs, 8))
    best = [float("inf")] * 2
    for env in envs:
        env.seed(1)
        env.reset(env.obs_space())
    for _ in range(steps):
        for i, env in enumerate(envs):
            start = time.perf_counter()
            env.act({"go": choices}, env.obs_space())
            best[i] = min(best[i], time.perf_counter() - start)
    return best[1] / best[0] - 1


# -- Results -----------------------------------------------------------------------------------


def document(results: Sequence[dict[str, Any]], speed: str) -> str:
    """Return the document with the results."""
    rows = [["world and settings", "frames", "metric", "to reach", "seeds: result", "seconds"]]
    for row in ROWS:
        mine = sorted((r for r in results if r["row"] == row.name), key=lambda r: r["seed"])
        if not mine:
            continue
        is_most = row.is_control or row.metric == "moves"
        bar = f"{'below' if row.is_control else 'at most'} {row.bar}" if is_most else f"{row.bar}"
        shown = ", ".join(f"{r['seed']}: {r['value']:.3f}" for r in mine)
        seconds = ", ".join(f"{r['seconds']:.0f}" for r in mine)
        rows.append([row.name, f"{mine[0]['frames']:,}", row.metric, bar, shown, seconds])
    table = [f"| {' | '.join(row)} |" for row in rows]
    table.insert(1, "| " + " | ".join(["---"] * len(rows[0])) + " |")
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    return "\n".join(
        [
            "# Memory",
            "",
            f"`python benchmarks/memory.py learn` on {os.cpu_count()} cores ({processor()}), at "
            f"{commits}. Settings are those in `configs/`, with the changes in "
            f"`benchmarks/memory.py`; {EPISODES:,} episodes with sampled actions. Runs have one "
            "thread and other runs beside them.",
            "",
            *table,
            "",
            speed.strip(),
            "",
        ]
    )


def speed_text(updates: int) -> str:
    """Measure the speed and return its part of the document."""
    lines = [
        "## Speed",
        "",
        f"`python benchmarks/memory.py speed` at {short_revision()}: frames a second of training "
        "relative to no memory, at equal numbers of blocks (1 + 1 beside 2); runs of one process "
        f"take turns, the median of {updates} updates.",
        "",
        "| world | memory of | ratio | to reach |",
        "| --- | --- | --- | --- |",
    ]
    for name, case in CASES.items():
        seconds = measure_speed(case, updates)
        for kind, bar in case.bars.items():
            lines.append(f"| {name} | {kind} | {seconds[''] / seconds[kind]:.2f} | {bar} |")
    lines += ["", f"`track` adds {measure_tracking():.1%} to a step of `EnvList` (at most 10%)."]
    return "\n".join(lines)


def main() -> None:
    """Train what was not trained yet, or measure the speed, and write the results."""
    by_name = {row.name: row for row in ROWS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["learn", "speed"], nargs="?", default="learn")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(by_name))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(by_name[options.one[0]], int(options.one[1]))))
        return
    if unknown := [name for name in options.rows if name not in by_name]:
        parser.error(f"ROW: expected some of {'; '.join(by_name)}; got {'; '.join(unknown)}")
    kept = RESULTS.with_suffix(".jsonl")
    before = RESULTS.read_text() if RESULTS.exists() else ""
    speed = before[before.index("## Speed") :] if "## Speed" in before else ""
    if options.what == "speed":
        speed = speed_text(options.updates)
    else:
        done = {(r["row"], r["seed"]) for r in read_kept(kept)}
        todo = [
            (name, str(seed))
            for name in options.rows or by_name
            for seed in range(1, 1 + (1 if by_name[name].is_control else options.seeds))
            if (name, seed) not in done
        ]
        run_all(__file__, todo, kept, options.jobs)
    RESULTS.write_text(document(read_kept(kept), speed))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
