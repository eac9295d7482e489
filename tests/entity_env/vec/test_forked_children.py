"""Child processes of environments keep no resources of workers and do not delay their end."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from entity_env import ParallelEnvList
from tests.entity_env.builders import stepped
from tests.entity_env.worker_worlds import LIFE_S, Forks, ForksInStep
from tests.entity_env.worlds import SPACE, Walk

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="looks processes up in /proc")

SOON_S = 40
"""Less than children live, and far more than a busy machine needs."""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """A file for the numbers of children, which are ended afterwards."""
    file = tmp_path / "pids"
    yield file
    for line in file.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("how", ["fork", "exec", "multiprocessing"])
def test_the_loss_of_a_worker_is_detected_while_its_child_lives(how: str, pids: Path) -> None:
    def create_env() -> Forks:
        return Forks(how, str(pids))

    with contextlib.closing(ParallelEnvList(create_env, 2, 1, timeout_s=LIFE_S)) as workers:
        obs = workers.reset(SPACE)
        start = time.monotonic()
        assert stepped(workers, obs).truncated.all()
        assert time.monotonic() - start < SOON_S
        children = [int(line) for line in pids.read_text().split()]
        assert len(children) == 4, "the worker that took its place started some as well"
        assert all(_is_running(pid) for pid in children[:2]), "the test tests nothing else"
        for pid in children[2:]:  # or multiprocessing waits for them as the worker ends
            os.kill(pid, signal.SIGKILL)


@pytest.mark.alone
def test_workers_end_with_a_trainer_whose_child_lives(pids: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from entity_env import ParallelEnvList\n"
        "from tests.entity_env.worlds import Walk\n"
        "envs = ParallelEnvList(Walk, 2, 2)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        f"    time.sleep({LIFE_S})\n"
        "    os._exit(0)\n"
        "print(child, *[worker.process.pid for worker in envs._workers], flush=True)\n"
        f"time.sleep({LIFE_S})\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert trainer.stdout is not None
    with trainer.stdout:
        child, *workers = map(int, trainer.stdout.readline().split())
    pids.write_text(f"{child}\n")
    trainer.kill()
    trainer.wait()
    assert _soon(lambda: not any(map(_is_running, workers)))
    assert _is_running(child)


@pytest.mark.alone
def test_children_close_the_files_that_their_parent_shares_with_workers(pids: Path) -> None:
    """Only a worker and its parent should have these files."""
    before = _shared_files(os.getpid())
    with contextlib.closing(ParallelEnvList(Walk, 2, 1)) as workers:
        workers.reset(SPACE)
        child = os.fork()
        if child == 0:
            time.sleep(LIFE_S)
            os._exit(0)
        pids.write_text(f"{child}\n")
        ours = _shared_files(os.getpid()) - before
        assert len(ours) > 2
        assert _soon(lambda: not ours & _shared_files(child))
        stepped(workers, workers.reset(SPACE))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


@pytest.mark.alone
@pytest.mark.slow
def test_children_of_a_worker_close_its_shared_memory(pids: Path) -> None:
    def create_env() -> Forks:
        return ForksInStep("fork", str(pids))

    with contextlib.closing(ParallelEnvList(create_env, 2, 1)) as workers:
        obs = workers.reset(SPACE)
        for _ in range(2):
            obs = stepped(workers, obs)
        children = [int(line) for line in pids.read_text().split()]
        assert len(children) == 2
        for child in children:
            assert _is_running(child)
            maps = Path(f"/proc/{child}/maps")
            assert _soon(partial(lambda pid: not _shared_files(pid), child))
            assert _soon(partial(lambda maps: "memfd:entity_env" not in maps.read_text(), maps))


def _soon(holds: Callable[[], bool]) -> bool:
    """Wait until a condition holds; False if it does not within SOON_S."""
    deadline = time.monotonic() + SOON_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _shared_files(pid: int) -> set[str]:
    """Return the shared memory and socket pairs that a process has open."""
    names = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(f"{entry.readlink()} of {entry.stat().st_ino}")
    return {name for name in names if "memfd:entity_env" in name or "socket" in name}


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
