"""The parent's side of one worker: start it, ask it, notice when it is gone."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from entity_env.errors import InvalidObservation, WorkerError
from entity_env.messages import pack, unpack

_MAIN = "import sys; sys.path.insert(0, {package!r}); from entity_env.worker import main; main()"


class WorkerLostError(WorkerError):
    """A worker was killed, exited, or did not answer in time; another one can take its place."""


@dataclass
class RestartQuota:
    """How many lost workers are replaced before a run is given up.

    Attributes:
        total: in all.
        per_minute: within any minute.
        clock: seconds, never going back.
    """

    total: int = 10
    per_minute: int = 1
    clock: Callable[[], float] = time.monotonic
    _recent: deque[float] = field(default_factory=deque)

    def take(self) -> str | None:
        """Use up one restart; or say which limit forbids it."""
        now = self.clock()
        while self._recent and now - self._recent[0] >= 60:
            self._recent.popleft()
        if self.total < 1:
            return "no restarts are left"
        if len(self._recent) >= self.per_minute:
            return f"{self.per_minute} restarts a minute are allowed"
        self.total -= 1
        self._recent.append(now)
        return None


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker needs to make its environments.

    Attributes:
        create_env: cloudpickle of the function that makes one.
        num_envs: how many.
        first: the index of the first among all environments of the run.
        validate: whether to check numbers.
        timeout_s: an answer that takes longer means that the worker hangs; None to wait for ever.
    """

    create_env: bytes
    num_envs: int
    first: int
    validate: bool
    timeout_s: float | None

    def __str__(self) -> str:
        return f"worker of environments {self.first} to {self.first + self.num_envs - 1}"


class WorkerProcess:
    """One process and the connection to it.

    It is a fresh interpreter that ends when the connection closes, also if this process crashes.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        ours, theirs = socket.socketpair()
        package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MAIN.format(package=package), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        self.connection = Connection(ours.detach())
        self.send(
            {
                "sys_path": list(map(str, sys.path)),
                "argv": sys.argv,
                "main": getattr(sys.modules["__main__"], "__file__", None),
                "create_env": setup.create_env,
                "num_envs": setup.num_envs,
                "first": setup.first,
                "validate": setup.validate,
            }
        )

    def send(self, message: Any) -> None:
        """Send a message; that the worker is gone shows when its answer is read."""
        data = pack(message)
        with contextlib.suppress(OSError):
            self.connection.send_bytes(data)

    def receive(self) -> Any:
        """The result of the last message; or the error to raise, which is returned."""
        try:
            if not self.connection.poll(self.setup.timeout_s):
                self.kill()
                return WorkerLostError(
                    f"{self.setup} did not answer for {self.setup.timeout_s} seconds"
                )
            answer = unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            return self._lost()
        if answer[0] == "ok":
            return answer[1]
        _, kind, env_index, step, text = answer
        if kind == "InvalidObservation":
            error = InvalidObservation(text)
            error.env_index, error.step = env_index, step
            return error
        return WorkerError(f"{self.setup} failed:\n{text}")

    def close(self) -> None:
        """Ask it to end; after five seconds, kill it."""
        self.send(["close", []])
        self.connection.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once."""
        self.connection.close()
        self.process.kill()
        self.process.wait()

    def _lost(self) -> WorkerLostError:
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return WorkerLostError(f"{self.setup} died with exit code {code}")
