"""Program of ranks whose environments step on a Ray cluster.

The first argument says what happens after the first update of its last run.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray

from enn_trainer import Callback, ConfigError, StateManager, Trainer, command, train
from enn_trainer.runtime.exchange import digest_of
from entity_env.examples import Minefield
from entity_env.vec.ray_worker import RayWorker
from tests.enn_trainer.losing_workers import noted

WHAT = sys.argv.pop(1)


class AfterFirstUpdate(Callback):
    """Prints the cluster and the processes below this one; kills a worker, or raises an error."""

    def __init__(self, what: str, workers: list[Any]) -> None:
        self._what, self._workers = what, workers

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        """Act once."""
        if trainer.state.step != 56:
            return
        address = ray.get_runtime_context().gcs_address
        print(f"\nrank {trainer.rank} at {address} has {below(os.getpid())}\n", flush=True)
        if self._what == f"rank {trainer.rank} raises":
            raise ValueError("no such thing")
        if self._what == f"rank {trainer.rank} loses a worker":
            ray.kill(self._workers[-1]._actor)
        if self._what == f"rank {trainer.rank} dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._what == "the head goes away" and trainer.rank == 0:
            for pid in below(os.getpid()):
                if Path(f"/proc/{pid}/comm").read_text().strip() in ("gcs_server", "raylet"):
                    os.kill(pid, signal.SIGKILL)


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that these have."""
    command = ["pgrep", "-P", str(pid)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    started = [int(line) for line in ran.stdout.split()]
    return [pid for one in started for pid in (one, *below(one))]


def rehearse() -> None:
    """Ask too much of a cluster that is there; lose a worker in rank 1, and print the digest."""
    settings = [*sys.argv[1:], f"rollout.ray={os.environ['GIVEN_CLUSTER']}"]
    try:
        too_much = [*settings, "rollout.ray_resources={arm: 0.5}"]
        Trainer(StateManager(overrides=too_much), Minefield)
    except ConfigError as error:
        print(f"\n{error}\n", flush=True)
    workers: list[Any] = []
    callbacks = [AfterFirstUpdate("rank 1 loses a worker", workers)]
    manager = StateManager(overrides=settings)
    with noted(RayWorker, workers), Trainer(manager, Minefield, callbacks=callbacks) as trainer:
        trainer.run()
        digest = digest_of(trainer.state.agent)
        print(f"\nrank {trainer.rank}: {digest} with {len(workers)} workers\n", flush=True)


@command()
def train_until(manager: StateManager) -> None:
    """Train until something happens."""
    train(manager, Minefield, callbacks=[AfterFirstUpdate(WHAT, [])])


def main() -> None:
    """Do what the first argument says."""
    if WHAT == "rank 1 raises":
        rehearse()
        del os.environ["RAY_AUTH_TOKEN"]  # that of the given cluster
    train_until()
