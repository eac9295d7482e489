"""Runs with environments that start long-lived processes, killed at random times.

After each kill no process may hold the locks of the run, and no worker may be left; the final
result must equal that of an undisturbed run.
"""

import contextlib
import fcntl
import io
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch

from enn_trainer import State, StateManager, train
from enn_trainer.checkpoints.run_lock import LOCK
from entity_env import Action, Observation
from tests.enn_trainer.resuming import assert_same, assert_same_clocks
from tests.enn_trainer.worlds import Pasture
from tests.soak.children import run_and_exit
from tests.soak.small_saves import SETTINGS

STEPS = 96
LIFE_S = 120.0
"""In which a run that is not killed ends."""
SOON_S = 20.0
"""In which the system does what follows from a death, also on a busy machine."""
PIDS = "SOAK_PIDS"
"""The variable with the folder in which processes leave their numbers."""
SAVES, ERRORS, CHILDREN, WORKERS = "saves", "errors", "children", "workers"


class Forks(Pasture):
    """An environment that starts long-lived processes from time to time.

    It starts none where their numbers have nowhere to go.
    """

    steps = 0  # of all environments of a process

    def reset(self) -> Observation:
        if PIDS in os.environ:
            _note(WORKERS, os.getpid())
        return super().reset()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        if PIDS not in os.environ:
            return super().act(actions)
        Forks.steps += 1
        if self.steps % 20 == 5:
            _note(CHILDREN, subprocess.Popen(["sleep", "600"], close_fds=False).pid)
        elif self.steps % 20 == 15:
            child = os.fork()
            if child == 0:
                time.sleep(600)
                os._exit(0)
            _note(CHILDREN, child)
        return super().act(actions)


class Summary(NamedTuple):
    """Counts of what was done.

    Attributes:
        kills: of trainers.
        children: that environments started and that outlived them.
        workers: that ended with their trainers.
        runs: that came to their end in spite of the kills.
        seconds: for all of them.
    """

    kills: int
    children: int
    workers: int
    runs: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.kills} kills of runs whose environments had started {self.children} processes, "
            f"{self.workers} workers ended, no lock was held, {self.runs} runs ended as if never "
            f"killed, {self.seconds:.0f} s"
        )


def fork_and_kill(folder: Path, seed: int, count: int) -> Summary:
    """Kill runs a number of times, and check held locks and workers after each kill.

    Raises:
        AssertionError: a lock was held or a worker was left after a kill, or a run ended otherwise
            than one that was never killed.
    """
    assert torch.get_num_threads() == 1, "threads do not survive a fork"
    rng, start = Random(seed), time.monotonic()
    straight = folder / "straight"
    straight.mkdir()
    with contextlib.redirect_stdout(io.StringIO()):
        _train(straight, 1)
    run_s = time.monotonic() - start
    kills = children = workers = runs = 0
    while kills < count:
        run_dir, ended = folder / f"run-{runs}", False
        run_dir.mkdir()
        while not ended:
            processes = (1, 2, 1)[kills % 3]
            # Killed after the start of some processes, or anywhere; the last one of all is not.
            most_s, most_children = LIFE_S, None
            if kills < min(2, count) or (kills < count and rng.random() < 0.6):
                most_children = rng.randint(1, 4)
            elif kills < count:
                most_s = rng.uniform(0, (1 if processes == 1 else 4) * run_s)
            ended = _lived(run_dir, processes, most_s, most_children)
            kills += not ended
            _check_locks(run_dir)
            workers += _check_workers(run_dir)
            children += _end_children(run_dir)
        expected, got = _state(straight), _state(run_dir)
        assert got.step == STEPS
        assert_same(expected, got)
        assert_same_clocks(expected, got)
        runs += 1
    return Summary(kills, children, workers, runs, time.monotonic() - start)


def _lived(run_dir: Path, processes: int, most_s: float, most_children: int | None) -> bool:
    """Let a process continue a run for a time, and return whether it came to its end.

    Args:
        run_dir: folder of the run.
        processes: of its environments.
        most_s: time until it is killed.
        most_children: number of processes that environments start until it is killed.
    """
    trainer = os.fork()
    if trainer == 0:
        os.environ[PIDS] = str(run_dir)
        run_and_exit(run_dir / ERRORS, lambda: _train(run_dir, processes))

    def has_ended() -> bool:
        return os.waitid(os.P_PID, trainer, _PEEK) is not None

    def is_time() -> bool:
        return has_ended() or (
            most_children is not None and len(_numbers(run_dir, CHILDREN)) >= most_children
        )

    assert _within(most_s, is_time) or most_s < LIFE_S, "a run took too long"
    os.kill(trainer, signal.SIGKILL)
    status = os.waitpid(trainer, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0, (run_dir / ERRORS).read_text()
    return os.WIFEXITED(status)


_PEEK = os.WEXITED | os.WNOHANG | os.WNOWAIT


def _train(run_dir: Path, processes: int) -> None:
    settings = [*SETTINGS, f"data_dir={run_dir}", f"total_timesteps={STEPS}"]
    settings += [f"rollout.processes={processes}", "checkpoint.every_seconds=0"]
    train(StateManager(overrides=settings, checkpoint_dir=run_dir / SAVES), Forks)


def _state(run_dir: Path) -> State:
    return StateManager(checkpoint_dir=run_dir / SAVES).state


def _check_locks(run_dir: Path) -> None:
    """Raise if somebody holds a lock of a run that nobody trains."""
    for path in (run_dir / SAVES / LOCK, run_dir / SAVES):
        if not path.exists():  # killed before it was made
            continue
        descriptor = os.open(path, os.O_RDONLY)
        try:
            assert _within(SOON_S, lambda file=descriptor: _is_free(file)), f"{path} is locked"  # type: ignore[misc]
        finally:
            os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True


def _check_workers(run_dir: Path) -> int:
    """Raise if a worker outlives its trainer; return how many ended."""
    workers = _noted(run_dir, WORKERS)
    assert _within(SOON_S, lambda: not any(map(_is_running, workers))), "a worker is left"
    return len(workers)


def _end_children(run_dir: Path) -> int:
    """End what environments started, and return how many were running until now."""
    running = [pid for pid in _noted(run_dir, CHILDREN) if _is_running(pid)]
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    return len(running)


def _note(kind: str, pid: int) -> None:
    file = os.open(Path(os.environ[PIDS], kind), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(file, f"{pid}\n".encode())
    os.close(file)


def _numbers(run_dir: Path, kind: str) -> set[int]:
    """Return the numbers that processes left."""
    path = run_dir / kind
    return {int(line) for line in path.read_text().split()} if path.exists() else set()


def _noted(run_dir: Path, kind: str) -> set[int]:
    """Return the numbers that processes left, and forget them."""
    pids = _numbers(run_dir, kind)
    (run_dir / kind).unlink(missing_ok=True)
    return pids


def _within(seconds: float, is_true: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() >= end:
            return False
        time.sleep(0.002)
    return True


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
