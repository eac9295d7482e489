"""Training with arguments that vary, beside the same training without.

    python benchmarks/vary_speed.py [--rounds 36] [--processes 1 2]

Both runs see the same frames: the sampler draws the value that the argument has anyway. They take
turns update by update with a second run of fixed arguments, which shows how exact the ratios are:
medians over neighbours. Processor time counts all processes, and depends less on what else a
machine does. The table is written to `results/vary_speed.md`.
"""

import argparse
import itertools
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
WARM_UP = 3


class Anew(Minefield):
    """Minefield that is made anew for each episode, as it hides `set_parameters`."""

    def __getattribute__(self, name: str) -> Any:
        """Return an attribute; that one is for the constructor alone."""
        if name == "set_parameters" and "max_mines" in vars(self):
            raise AttributeError(name)
        return super().__getattribute__(name)


class Measured(NamedTuple):
    """Medians over rounds; ratios are of speed, to that of fixed arguments.

    Attributes:
        fixed: frames/s with fixed arguments.
        varied: frames/s with varied arguments.
        ratios: of varied arguments, and of fixed ones again.
        cpu_ratios: the same by processor time.
    """

    fixed: float
    varied: float
    ratios: tuple[float, float]
    cpu_ratios: tuple[float, float]


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
        runs = [Run(world, [*settings, *more], stack) for more in ([], [VARY], [])]
        orders = itertools.cycle(itertools.permutations(range(len(runs))))
        wall_s: list[list[float]] = [[] for _ in runs]
        cpu_s: list[list[float]] = [[] for _ in runs]
        for order in itertools.islice(orders, WARM_UP + rounds):  # each is first equally often
            for which in order:
                wall, cpu = runs[which].update()
                wall_s[which].append(wall)
                cpu_s[which].append(cpu)
    fixed, varied, _ = (NUM_ENVS * STEPS / statistics.median(s[WARM_UP:]) for s in wall_s)
    return Measured(fixed, varied, ratios(wall_s), ratios(cpu_s))


def ratios(seconds: list[list[float]]) -> tuple[float, float]:
    """Return the median ratios of the first run's seconds to those of the others."""
    first, *others = (of_run[WARM_UP:] for of_run in seconds)
    varied, again = (
        statistics.median(a / b for a, b in zip(first, other, strict=True)) for other in others
    )
    return varied, again


def main() -> None:
    """Measure all rows and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=36)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    rows = []
    for world, name in (Minefield, "set_parameters"), (Anew, "made anew"):
        for processes in options.processes:
            got = measure(world, processes, options.rounds)
            target = f"{TARGET}" if world is Minefield else "-"
            each = zip(got.ratios, got.cpu_ratios, strict=True)
            shares = " | ".join(f"{wall:.3f}, {cpu:.3f}" for wall, cpu in each)
            numbers = f"{got.fixed:,.0f} | {got.varied:,.0f} | {shares}"
            rows.append(f"| {name} | {processes} | {numbers} | {target} |")
            print(rows[-1], flush=True)
            write(rows, options.rounds)  # also what is there if the rest is not waited for


def write(rows: list[str], rounds: int) -> None:
    """Write the table."""
    text = (
        f"# Arguments that vary, beside fixed ones\n\nMinefield, {NUM_ENVS} environments, whole "
        f"updates; medians of {rounds} rounds of neighbours in one run, on {processor()}, commit "
        f"{short_revision()}. Each ratio is by wall time, then by processor time of all processes; "
        "that of fixed arguments again is 1 but for the noise. Measured by "
        "`benchmarks/vary_speed.py`.\n\n"
        "| arguments | processes | frames/s, fixed | frames/s, varied | ratio | fixed again "
        "| at least |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )
    RESULTS.write_text(text)


if __name__ == "__main__":
    main()
