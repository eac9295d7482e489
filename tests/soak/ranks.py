"""Ranks of one run that are killed and stopped at any moment, and learn the bits of one process."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from enn_trainer import State, StateManager, train
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import SET_ASIDE
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore
from entity_env.examples import Minefield
from tests.enn_trainer.losing_workers import StopsAt
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, tracked

RANKS = 2
SAVES, METRICS, ERRORS = "saves", "metrics.jsonl", "errors"
BYTE_FOR_BYTE = ("state.agent.safetensors", "state.optimizer.safetensors")
WAIT_S = 240.0
"""Longest time until a rank begins, learns or ends."""
STARTING = 0.3
"""Share of the kills that may come before the ranks learn."""
LONGEST_S = 2.0
"""Time from then, or from the begin of the processes, to a disturbance at most."""
TIMEOUT_S = 6
SETTINGS = [
    *("rollout.num_envs=6", "rollout.steps=8", "rollout.processes=1", "optim.bs=16"),
    *("optim.update_epochs=2", "net.d_model=16", "net.n_layer=1", "net.n_head=2"),
    *("eval.interval=480", "eval.steps=5", "eval.num_envs=2", "eval.processes=1"),
    *("scale.shards=3", f"scale.timeout_s={TIMEOUT_S}", "ppo.reward_scaling=true"),
    *("checkpoint.every_seconds=0", "total_timesteps=100000000"),
]


class Summary(NamedTuple):
    """Counts of what was done.

    Attributes:
        kills: ranks that were killed.
        starting: of these, before they learnt.
        stops: ranks that were stopped, and named by the others.
        step: of the run at its end.
        seconds: for all of it.
    """

    kills: int
    starting: int
    stops: int
    step: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.kills} killed ({self.starting} of them while starting) and {self.stops} "
            f"stopped within {self.step} frames, each of these named by the others, and weights, "
            f"moments, episodes and metrics have the bits of one undisturbed process, "
            f"{self.seconds:.0f} s"
        )


def disturb_ranks(folder: Path, seed: int, kills: int, stops: int) -> Summary:
    """Kill and stop ranks of one run, which torchrun restarts each time.

    Args:
        folder: of the run.
        seed: of the run, and of the order of disturbances and the ranks that they hit.
        kills: number of ranks that are killed.
        stops: number of ranks that are stopped until the others have ended.

    Raises:
        AssertionError: a stopped rank was not named, a rank ended by itself, or the run ended
            otherwise than in one process that nothing disturbs.
    """
    rng, start, starting = Random(seed), time.monotonic(), 0
    numbers = [signal.SIGKILL] * kills + [signal.SIGSTOP] * stops
    rng.shuffle(numbers)
    with _begun(folder, seed, len(numbers)) as torchrun:
        for attempt, number in enumerate(numbers):
            rank, is_anywhere = rng.randrange(RANKS), rng.random() < STARTING
            processes = [int(_waited(folder, "begun", attempt, i, torchrun)) for i in range(RANKS)]
            if number == signal.SIGSTOP or not is_anywhere:
                for i in range(RANKS):
                    _waited(folder, "learns", attempt, i, torchrun)
            time.sleep(rng.uniform(0, LONGEST_S))
            learns = (folder / f"learns-{attempt}-{rank}").exists()
            printed = (folder / ERRORS).stat().st_size
            os.kill(processes[rank], number)
            if number == signal.SIGSTOP:
                others = processes[:rank] + processes[rank + 1 :]
                _wait(partial(_have_ended, others), "ranks to end")
                os.kill(processes[rank], signal.SIGCONT)
                _check_named(folder, rank, printed)
            starting += not learns
            done = "stopped" if number == signal.SIGSTOP else "killed"
            when = "learning" if learns else "starting"
            print(f"rank {rank} {done} while {when}, {attempt + 1} of {len(numbers)}", flush=True)
        for i in range(RANKS):
            _waited(folder, "learns", len(numbers), i, torchrun)
        (folder / "enough").touch()
        assert torchrun.wait(WAIT_S) == 0, (folder / ERRORS).read_text()[-4000:]
    attempts = len([*folder.glob("begun-*")]) // RANKS
    assert attempts == len(numbers) + 1, f"{attempts} starts after {len(numbers)} disturbances"
    step = find(folder / SAVES).step
    _check_undisturbed(folder, seed, step)
    return Summary(kills, starting, stops, step, time.monotonic() - start)


@contextlib.contextmanager
def _begun(folder: Path, seed: int, restarts: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Return a context of a run by torchrun, which is ended with its ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ranks = ["--nproc-per-node", str(RANKS), "--max-restarts", str(restarts)]
    program = ["-m", "tests.soak.rank_of_run", *SETTINGS, f"seed={seed}", f"data_dir={folder}"]
    there = ["--checkpoint-dir", str(folder / SAVES), "--resume-or-start"]
    with (folder / ERRORS).open("wb") as errors:
        torchrun = subprocess.Popen(
            [*command, *ranks, *program, *there],
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**os.environ, "SOAK_RANKS": str(folder), "OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[2],
        )
    try:
        yield torchrun
    finally:
        if torchrun.poll() is None:
            for begun in folder.glob("begun-*"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(begun.read_text()), signal.SIGKILL)
            torchrun.kill()
        torchrun.wait()


def _waited(
    folder: Path, what: str, attempt: int, rank: int, torchrun: "subprocess.Popen[bytes]"
) -> str:
    """Return the content of a file of a rank, once it is there."""
    file = folder / f"{what}-{attempt}-{rank}"
    _wait(lambda: file.exists() or torchrun.poll() is not None, file.name)
    assert file.exists(), (folder / ERRORS).read_text()[-4000:]
    return file.read_text()


def _wait(is_met: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_met():
        assert time.monotonic() < end_s, f"waited {WAIT_S} s for {what}"
        time.sleep(0.01)


def _have_ended(processes: Sequence[int]) -> bool:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, 0)
            return False
    return True


def _check_named(folder: Path, rank: int, printed: int) -> None:
    """Raise if the others did not name a stopped rank, in what they printed since."""
    text = (folder / ERRORS).read_bytes()[printed:].decode()
    others = rf"rank \d+ \(\S+\) ends while [a-z ]+: rank {rank} \(\S+\) does not answer, last seen"
    assert re.search(others + rf" while [a-z ]+ \(scale.timeout_s={TIMEOUT_S};", text), text


def _check_undisturbed(folder: Path, seed: int, step: int) -> None:
    """Raise if the run is not that of one process, which is trained here."""
    alone = folder / "alone"
    overrides = [*SETTINGS, f"seed={seed}", f"data_dir={folder}"]
    manager = StateManager(overrides=overrides, checkpoint_dir=alone)
    with contextlib.redirect_stdout(io.StringIO()):
        train(manager, Minefield, callbacks=[StopsAt(step)])
    expected, got = _state_of(alone), _state_of(folder / SAVES)
    assert_same(expected, got)
    assert_same_clocks(expected, got)
    assert got.envs is not None
    assert tracked(folder / SAVES / METRICS) == tracked(alone / METRICS)
    for name in BYTE_FOR_BYTE:
        contents = [find(run_dir).read(name) for run_dir in (alone, folder / SAVES)]
        assert contents[0] == contents[1], name
    assert _names(folder / SAVES) == _names(alone)


def _state_of(run_dir: Path) -> State:
    saved = find(run_dir)
    return restore(saved, read_config(saved))


def _names(run_dir: Path) -> list[str]:
    names = [path.name for path in run_dir.iterdir()]
    return sorted(name for name in names if "tfevents" not in name and SET_ASIDE not in name)
