"""Parent's side of one worker: start it, send it messages, notice when it is gone."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from entity_env.errors import InvalidObservation, InvalidSpace, WorkerError
from entity_env.workers.channel import Channel, ChannelClosedError, new_bell
from entity_env.workers.flat_obs import put_together
from entity_env.workers.shared_memory import SharedMemory
from entity_env.workers.worker import SIGNALS_OF_PARENT

_MAIN = (
    "import sys; sys.path.insert(0, {package!r}); "
    "from entity_env.workers.worker import main; main()"
)
_CLOSE_S = 5  # for a worker to close its environments, and then to end


class WorkerLostError(WorkerError):
    """Loss of a worker that was killed, exited, hangs or could not start."""


@dataclass
class RestartQuota:
    """Limit on the number of lost workers that are replaced.

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
        """Use up one restart; return the limit that forbids it, or None."""
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
    """Arguments of a worker.

    Attributes:
        create_env: cloudpickle of the function that makes one.
        num_envs: the number of environments.
        first: the index of the first among all environments of the run.
        validate: whether to check numbers.
        timeout_s: an answer that takes longer means that the worker hangs; None to wait for ever.
        core: the only one that it runs on; None for any.
    """

    create_env: bytes
    num_envs: int
    first: int
    validate: bool
    timeout_s: float | None
    core: int | None = None

    def __str__(self) -> str:
        return f"worker of environments {self.first} to {self.first + self.num_envs - 1}"


class WorkerProcess:
    """One process and the channel to it.

    It is a fresh interpreter that ends when the connection closes, also if this process crashes.
    The memory that both share has no name, so that nothing is left of it then.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        ours, theirs = socket.socketpair()
        asking, answering = SharedMemory(), SharedMemory()
        bell = new_bell()
        # The worker inherits these files: connection, memory of both sides, and bell.
        files = [theirs.fileno(), answering.file, asking.file] + ([] if bell is None else [bell])
        folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
        package = os.path.dirname(os.path.dirname(folder))  # noqa: PTH120
        main = _MAIN.format(package=package)
        # Linux ends the worker with the thread that started it, so that must be the main one.
        is_lasting = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if is_lasting else 0
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_OF_PARENT)
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-c", main, "parent", str(parent), "files", *map(str, files)],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        self.channel = Channel(Connection(ours.detach()), asking, answering, rings=bell)
        self.waited_s = 0.0  # for its answers
        self._sent_at = 0.0

        # The first message describes the environments.
        self.send(
            {
                "sys_path": list(map(str, sys.path)),
                "argv": sys.argv,
                "main": getattr(sys.modules["__main__"], "__file__", None),
                "create_env": setup.create_env,
                "num_envs": setup.num_envs,
                "first": setup.first,
                "validate": setup.validate,
                "core": setup.core,
            }
        )

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message. If the worker is gone, `receive` returns the error.

        Args:
            message: what to send.
            is_last: True if no other worker gets a message before an answer is waited for.
        """
        self._sent_at = time.monotonic()
        if self.process.returncode is not None:  # known to be lost, and its channel may be closed
            return
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(message, is_last)

    def started(self) -> Any:
        """Return its spaces once its environments are made, or the error if there are none.

        Raises:
            InvalidSpace: the environments have wrong spaces, as those of another worker would.
        """
        answer = self.receive()
        if isinstance(answer, InvalidSpace):
            raise answer
        if isinstance(answer, Exception) and not isinstance(answer, WorkerLostError):
            return WorkerLostError(str(answer))
        return answer

    def receive(self) -> Any:
        """Return the result of the last message; or the error for the caller to raise.

        Its arrays are valid until the next message is sent.
        """
        if self.process.returncode is not None:
            return self._lost()
        timeout_s = self.setup.timeout_s
        if timeout_s is not None:  # it has had some time while others were waited for
            timeout_s = max(0.0, self._sent_at + timeout_s - time.monotonic())
        start_s = time.monotonic()
        try:
            has_answered = self.channel.wait(timeout_s)
            self.waited_s += time.monotonic() - start_s
            if not has_answered:
                self.kill()
                return WorkerLostError(
                    f"{self.setup} did not answer for {self.setup.timeout_s} seconds"
                )
            answer = self.channel.receive()
        except ChannelClosedError:
            return self._lost()
        if answer[0] == "ok":
            return answer[1]
        if answer[0] == "obs":
            return put_together(*answer[1:])
        return self._error(*answer[1:])

    def _error(
        self, kind: str, env_index: int, episode: int | None, step: int | None, text: str
    ) -> Exception:
        if kind == "InvalidObservation":
            error = InvalidObservation(text)
            error.env_index, error.episode, error.step = env_index, episode, step
            return error
        if kind == "InvalidSpace":
            return InvalidSpace(text)
        return WorkerError(f"{self.setup} failed:\n{text}")

    def _last_error(self, until_s: float) -> Exception | None:
        """Return the error in the last answer before the end, if it is one and comes in time.

        Answers to earlier messages, which were not waited for, may come before.
        """
        answer: Any = None
        with contextlib.suppress(ChannelClosedError):
            while self.process.returncode is None:
                if not self.channel.wait(max(0.0, until_s - time.monotonic())):
                    break
                answer = self.channel.receive()
        return self._error(*answer[1:]) if answer and answer[0] == "error" else None

    def close(self) -> Exception | None:
        """Close its environments and end it; after five seconds, kill it.

        Returns:
            The error of environments that could not be closed.
        """
        error = None
        with contextlib.suppress(OSError):
            self.send(["close", []])
            error = self._last_error(time.monotonic() + _CLOSE_S)
        try:
            self.process.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.channel.close()
        return error

    def kill(self) -> None:
        """Kill the process at once."""
        self.process.kill()
        self.process.wait()
        self.channel.close()

    def _lost(self) -> WorkerLostError:
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return WorkerLostError(f"{self.setup} died with exit code {code}")
