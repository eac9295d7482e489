"""Training with arguments that vary, beside the same training without.

    python benchmarks/vary_speed.py [--rounds 24] [--processes 1 2]

Both runs see the same frames: the sampler draws the value that the argument has anyway. They take
turns update by update, and ratios are medians over pairs of neighbours. Processor time counts all
processes, and is the same on a machine that others use. The table is written to
`results/vary_speed.md`.
"""

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from measured_on import processor, short_revision

from enn_trainer import StateManager
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import env_factory
from enn_trainer.trainer import Trainer
from entity_env.examples import Minefield
from entity_env.vec.vec_env import VecEnv

RESULTS = Path(__file__).parent / "results/vary_speed.md"
TARGET = 0.98
NUM_ENVS = 512
STEPS = 4
SETTINGS = [
    f"rollout.num_envs={NUM_ENVS}",
    f"rollout.steps={STEPS}",
    "optim.bs=2048",
    "optim.update_epochs=1",
    "net.d_model=32",
    "net.n_layer=1",
    "cuda=false",
]
VARY = 'env.vary.max_mines="int 10 10"'
WARM_UP = 2


class Anew(Minefield):
    """Minefield that is made anew for each episode, as it hides `set_parameters`."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; that one is for the constructor alone."""
        if name == "set_parameters" and "max_mines" in vars(self):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Measured(NamedTuple):
    """Medians over pairs of neighbours; ratios are of speed, varied by fixed."""

    fixed: float
    varied: float
    ratio: float
    cpu_ratio: float


class Run:
    """A training run, whose updates are timed.

    Args:
        world: its environment.
        settings: its settings.
        stack: closes it.
    """

    def __init__(self, world: type[Minefield], settings: list[str], stack: ExitStack) -> None:
        factory = env_factory(world)

        def create(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
            self.envs = factory(config, num_envs, processes, first)
            return self.envs

        self.trainer = stack.enter_context(Trainer(StateManager(overrides=settings), create))

    def update(self) -> tuple[float, float]:
        """Train for an update; return its seconds, and those of processors."""
        start_s, cpu_s = time.perf_counter(), self._cpu_s()
        self.trainer.step()
        wall_s = time.perf_counter() - start_s
        return wall_s, self._cpu_s() - cpu_s

    def _cpu_s(self) -> float:
        others = [t.cpu_s for t in self.envs.process_times() if t.pid != os.getpid()]
        return time.process_time() + sum(others)


def measure(world: type[Minefield], processes: int, rounds: int) -> Measured:
    """Compare training with varied and with fixed arguments."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        settings = [*SETTINGS, f"rollout.processes={processes}", f"data_dir={folder}"]
        runs = [Run(world, [*settings, *more], stack) for more in ([], [VARY])]
        pairs = []
        for i in range(WARM_UP + rounds):
            order = (0, 1) if i % 2 else (1, 0)  # each kind is first in half of the pairs
            seconds = {which: runs[which].update() for which in order}
            pairs += [(*seconds[0], *seconds[1])] if i >= WARM_UP else []
    fixed_s, _, varied_s, _ = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Measured(
        NUM_ENVS * STEPS / fixed_s,
        NUM_ENVS * STEPS / varied_s,
        statistics.median(fixed / varied for fixed, _, varied, _ in pairs),
        statistics.median(fixed / varied for _, fixed, _, varied in pairs),
    )


def main() -> None:
    """Measure all rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    rows = []
    for world, name in (Minefield, "set_parameters"), (Anew, "made anew"):
        for processes in options.processes:
            got = measure(world, processes, options.rounds)
            target = f"{TARGET}" if world is Minefield else "-"
            numbers = (
                f"{got.fixed:,.0f} | {got.varied:,.0f} | {got.ratio:.3f} | {got.cpu_ratio:.3f}"
            )
            rows.append(f"| {name} | {processes} | {numbers} | {target} |")
            print(rows[-1], flush=True)
            write(rows, options.rounds)  # also what is there if the rest is not waited for


def write(rows: list[str], rounds: int) -> None:
    """Write the table."""
    text = (
        f"# Arguments that vary, beside fixed ones\n\nMinefield, {NUM_ENVS} environments, whole "
        f"updates; medians of {rounds} pairs of neighbours in one run, on {processor()}, "
        f"commit {short_revision()}. Measured by "
        "`benchmarks/vary_speed.py`.\n\n"
        "| arguments | processes | frames/s, fixed | frames/s, varied | ratio | by processor time "
        "| at least |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
