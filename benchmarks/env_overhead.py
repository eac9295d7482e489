"""Cost of a frame beyond `Environment.act`: batching, checks, and decoding of actions.

    python benchmarks/env_overhead.py [--peer PEER/bin/python] [--results FILE.md]

A null environment with 4 entity types, 3 actions and a number of entities returns the same
observation in every step. The cost of a frame is the time of a step divided by the number of
environments, less that of calling `act` alone. PEER is a Python with entity-gym 0.1.10, measured in
turns in the same run. Each figure is the median of several repeats, with the smallest and largest.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

STEPS = 40
CASES = [(4, 1, 256), (32, 1, 256), (500, 1, 256), (32, 2, 256), (32, 2, 1024)]
"""(entities, processes, environments)"""


def measure(num_entities: int, processes: int, num_envs: int) -> float:
    """Measure microseconds per frame with the installed library (ours, or entity-gym)."""
    import numpy as np

    try:
        import entity_env as library
        from entity_env import Ragged

        def chosen(rows: int, per_env: int) -> object:
            return Ragged(np.zeros(rows, np.int64), np.full(num_envs, per_env))

    except ImportError:
        import entity_gym.env as library  # type: ignore[no-redef]
        from ragged_buffer import RaggedBufferI64

        def chosen(rows: int, per_env: int) -> object:
            return RaggedBufferI64.from_flattened(
                np.zeros((rows, 1), np.int64), np.full(num_envs, per_env)
            )

    per_type = num_entities // 4
    types = {name: library.Entity(["a", "b", "c", "d"]) for name in "wxyz"}

    class Null(library.Environment):  # type: ignore[misc,name-defined]
        def obs_space(self) -> object:
            return library.ObsSpace(global_features=["t"], entities=types)

        def action_space(self) -> object:
            return {
                "move": library.CategoricalActionSpace(["a", "b", "c"]),
                "aim": library.SelectEntityActionSpace(),
                "call": library.GlobalCategoricalActionSpace(["x", "y"]),
            }

        def reset(self) -> object:
            rows = np.zeros((per_type, 4), np.float32)
            self.frame = library.Observation(
                features=dict.fromkeys(types, rows),
                ids={name: [f"{name}{i}" for i in range(per_type)] for name in types},
                global_features=[0.0],
                actions={
                    "move": library.CategoricalActionMask(actor_types=["w"]),
                    "aim": library.SelectEntityActionMask(actor_types=["w"], actee_types=["x"]),
                    "call": library.GlobalCategoricalActionMask(),
                },
                reward=0.0,
                done=False,
            )
            return self.frame

        def act(self, actions: object) -> object:
            return self.frame

    if processes == 1:
        envs = library.EnvList(Null, num_envs)
    else:
        envs = library.ParallelEnvList(Null, num_envs, processes)
    space = envs.obs_space()
    envs.reset(space)
    actors = num_envs * per_type
    actions = {
        "move": chosen(actors, per_type),
        "aim": chosen(actors, per_type),
        "call": chosen(num_envs, 1),
    }
    for _ in range(3):
        envs.act(actions, space)
    start = time.perf_counter()
    for _ in range(STEPS):
        envs.act(actions, space)
    seconds = time.perf_counter() - start
    envs.close()
    null = Null()
    null.reset()
    start = time.perf_counter()
    for _ in range(10_000):
        null.act(None)
    act_seconds = (time.perf_counter() - start) / 10_000
    return (seconds / STEPS / num_envs - act_seconds) * 1e6


def run_in(python: str, case: tuple[int, int, int]) -> float:
    """Measure in a separate process."""
    command = [python, __file__, "--one", *map(str, case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return float(json.loads(done.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", help="a Python with entity-gym 0.1.10")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--one", nargs=3, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    sides = {"ours": sys.executable} | ({"peer": options.peer} if options.peer else {})
    lines = [
        "# The cost of a frame beyond the environment's own code",
        "",
        f"`{' '.join(['python', *sys.argv])}`, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}. Microseconds a frame, median (smallest to largest) of "
        f"{options.repeats}; 4 types, 3 actions.",
        "",
        "| entities | processes | environments | " + " | ".join(sides) + " | peer / ours |",
        "| --- | --- | --- | " + " | ".join("---" for _ in sides) + " | --- |",
    ]
    for case in CASES:
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.repeats):
            for name, python in sides.items():
                times[name].append(run_in(python, case))
        cells = [f"{statistics.median(t):.1f} ({min(t):.1f}-{max(t):.1f})" for t in times.values()]
        ratio = "-"
        if options.peer:
            ratio = f"{statistics.median(times['peer']) / statistics.median(times['ours']):.2f}"
        lines.append(f"| {' | '.join(map(str, case))} | {' | '.join(cells)} | {ratio} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    if options.results:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
