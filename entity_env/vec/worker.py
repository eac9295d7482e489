"""Worker process of a `ParallelEnvList`: an `EnvList` that answers messages, and its parent's side.

It is a fresh interpreter that imports this module and nothing of the main program, so
a script needs no `if __name__ == "__main__"` and a worker never loads torch unless the
environment does.
"""

import contextlib
import copy
import ctypes
import gc
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import cloudpickle
import numpy as np

from entity_env.errors import (
    EntityEnvError,
    InvalidObservation,
    InvalidSampler,
    InvalidSpace,
    WorkerError,
)
from entity_env.match import world_of
from entity_env.process import ignore_broken_pipe, logger, warned
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ObsSpace
from entity_env.vec.episode_state import offers_state
from entity_env.vec.serial import EnvList
from entity_env.vec.transport import (
    Channel,
    ChannelClosedError,
    SharedMemory,
    new_wake_event,
    packed,
    unpacked,
)
from entity_env.vec.variation import Variation
from entity_env.vec.vec_obs import VecObs

SIGNALS_OF_PARENT = signal.SIGINT, signal.SIGTERM
"""The parent handles them, and starts workers with these blocked, so none ends on import."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the parent until it closes the connection.

    Arguments of the command: "parent" and its process id, or 0 if the worker may outlive it; and
    "files" with the descriptors of connection, memory of both sides, and wake event.
    """
    # The parent handles signals to its process group, and ends this process.
    for number in SIGNALS_OF_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_OF_PARENT)
    files = sys.argv[sys.argv.index("files") + 1 :]
    parent = int(sys.argv[sys.argv.index("parent") + 1])
    # The system kills this process when its parent dies, even in code that never returns.
    if parent and sys.platform.startswith("linux"):
        with contextlib.suppress(AttributeError, OSError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:  # it died before the call, so that no signal will come
            os._exit(1)
    # Processes that an environment starts do not inherit the files.
    for file in map(int, files):
        os.set_inheritable(file, False)
    connection, outgoing, incoming, *wake_event = map(int, files)
    # Leave the core to the process that wakes this one: it has other workers to wake.
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    threading.Thread(target=_exit_when_closed, args=[connection], daemon=True).start()
    channel = Channel(
        Connection(connection),
        SharedMemory(outgoing),
        SharedMemory(incoming),
        wake_event=wake_event[0] if wake_event else None,
    )
    with ignore_broken_pipe(), contextlib.suppress(ChannelClosedError):  # the parent is gone
        serve(channel)


def _exit_when_closed(connection: int) -> None:
    """End this process when the other end of the connection closes, even while other code runs.

    Unlike the signal, which not every system has, this needs the interpreter's lock.
    """
    hung_up = select.poll()
    hung_up.register(connection, 0)  # no event except POLLHUP
    hung_up.poll()
    os._exit(1)


@dataclass(frozen=True)
class WorkerSetup:
    """Arguments of a worker.

    Attributes:
        create_env: cloudpickle of the factory of the environments.
        num_envs: the number of environments.
        first: index of the first environment among all of the run.
        validate: whether to check that numbers are finite.
        timeout_s: seconds after which a worker that does not answer is lost; None for no limit.
        core: index of the only core that it runs on; None for any.
        code: digests of the source of the environments' class, by name.
    """

    create_env: bytes
    num_envs: int
    first: int
    validate: bool
    timeout_s: float | None
    core: int | None = None
    code: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"worker of environments {self.first} to {self.first + self.num_envs - 1}"


class WorkerServer:
    """Environments of a worker, made by `start`, and answers to messages about them.

    An answer is the result of a method, or the exception for the caller to raise.

    Args:
        setup: the arguments of the worker.
        path: module search path of the main program.
        argv: command line of the main program.
        main_file: file of the main program, if there is one.
    """

    def __init__(
        self, setup: WorkerSetup, path: list[str], argv: list[str], main_file: str | None
    ) -> None:
        self.setup, self._main_file = setup, main_file
        self._envs: _WorkerEnvs | None = None
        if setup.core is not None:
            with contextlib.suppress(OSError):  # the core is no longer available
                os.sched_setaffinity(0, {setup.core})
        sys.path[:], sys.argv[:] = path, argv
        logger.disabled = True  # the parent logs `warned`

    @property
    def has_envs(self) -> bool:
        """Return True if the environments could be made."""
        return self._envs is not None

    def start(self) -> Any:
        """Make the environments; return spaces, code, warnings and any class without state."""
        answer = self._answer(self._make)
        gc.collect()
        gc.freeze()  # excludes long-lived objects from collections: saves 8% of a step
        gc.set_threshold(100_000)  # a step makes thousands of short-lived objects: saves up to 15%
        return answer

    def answer(self, name: str, arguments: list[Any]) -> Any:
        """Call the method of the environments named by a message, and return its answer."""
        return self._answer(lambda: getattr(self._envs, name)(*arguments))

    def _make(self) -> list[Any]:
        setup = self.setup
        create_env = _load(setup.create_env, self._main_file)
        self._envs = envs = _WorkerEnvs(create_env, setup.num_envs, setup.first, setup.validate)
        spaces = envs.obs_space(), envs.action_space()
        return [*spaces, envs.world_code(), warned, envs.without_state()]

    def _answer(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call, or an exception of a class that the parent can import."""
        try:
            return call()
        except InvalidObservation as raised:
            error: Exception = InvalidObservation(Exception.__str__(raised))
            vars(error).update(env_index=raised.env_index, episode=raised.episode, step=raised.step)
        except InvalidSpace as raised:
            error = InvalidSpace(str(raised))
        except InvalidSampler as raised:
            error = InvalidSampler(str(raised))
        except BaseException:  # SIGINT is ignored here, so KeyboardInterrupt is the environment's
            error = WorkerError(f"{self.setup} failed:\n{traceback.format_exc()}")
        return error


def serve(channel: Channel) -> None:
    """Make the environments that the first message describes, then answer one message at a time."""
    server = WorkerServer(*channel.receive())
    channel.send(server.start())
    while server.has_envs:
        name, arguments = channel.receive()
        channel.send(server.answer(name, arguments))
        if name == "close":
            return


class _WorkerEnvs(EnvList):
    """`EnvList` that receives the filter only when it changes, and copies the choices."""

    def reset(self, obs_config: ObsSpace) -> VecObs:
        self._sent = obs_config
        return super().reset(obs_config)

    def vary_by(self, groups: list[Any]) -> None:
        """Draw the arguments of all following episodes by a variation as plain data."""
        self.vary(Variation.from_plain(groups))

    def act_on(self, sent: dict[ActionName, Ragged], obs_filter: ObsSpace | None) -> VecObs:
        """Step all environments.

        Args:
            sent: the choices, in memory that the next step overwrites.
            obs_filter: the types and features to show, if they change.
        """
        if obs_filter is not None:
            self._sent = obs_filter
        # Environments may store the copies. Child processes that they fork close the shared memory.
        chosen = {name: Ragged(c.values.copy(), c.lengths.copy()) for name, c in sent.items()}
        sent.clear()
        return self.act(chosen, self._sent)

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        self._sent = obs_config
        return super().set_state(copy.deepcopy(state), obs_config)

    def without_state(self) -> str | None:
        """Return the name of a class of environments without `get_state`; None if all have it."""
        classes = (type(world_of(m)).__name__ for m in self.matches if not offers_state(m))
        return next(classes, None)

    def snapshot(self) -> bytes | str:
        """Return everything that the next steps depend on, for `restore` in another process.

        Returns:
            The snapshot as bytes, or the reason as text if an environment cannot return its state.
        """
        try:
            state = self.get_state()
        except Exception as error:
            return str(error)
        if state is None:
            return self.why_no_state() or f"{self.without_state()} has no get_state and set_state"
        generators = random.getstate(), np.random.get_state()  # noqa: NPY002 (of environments)
        return packed((state, self._sent, self._variation.to_plain(), generators))

    def restore(self, snapshot: bytes) -> VecObs | None:
        """Continue from a `snapshot`, and return the last frames."""
        state, self._sent, groups, (python, numpy) = unpacked(snapshot)
        self._variation = Variation.from_plain(groups)
        frames = super().set_state(state, self._sent)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        return frames


def _load(create_env: bytes, main: str | None) -> Callable[[], Any]:
    """Return the environment factory of the parent.

    Only if it needs a module that cannot be imported, the main program is run as well (under the
    name `__mp_main__`, as multiprocessing does), as it may define the module.
    """
    try:
        factory: Callable[[], Any] = cloudpickle.loads(create_env)
    except ImportError:
        if main is None or not Path(main).is_file():  # on another host
            raise
        sys.modules["__mp_main__"] = module = types.ModuleType("__mp_main__")
        vars(module).update(runpy.run_path(main, run_name="__mp_main__"))
        factory = cloudpickle.loads(create_env)
    return factory


def first_message(setup: WorkerSetup) -> list[Any]:
    """Return the arguments of `WorkerServer` for a worker of this program."""
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    return [setup, list(map(str, sys.path)), sys.argv, main_file]


class Worker(Protocol):
    """Interface between a `ParallelEnvList` and one worker; `WorkerProcess` documents it.

    Attributes:
        host: id of a remote host; "" for this one, or before the first answer.
    """

    setup: WorkerSetup
    waited_s: float
    host: str

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message."""

    def started(self) -> Any:
        """Return the spaces of its environments, or the error if they could not be made."""

    def receive(self) -> Any:
        """Return the answer to the last message."""

    def close(self) -> Exception | None:
        """Close its environments and end the worker."""

    def kill(self) -> None:
        """End the worker at once."""


def pickled(value: Any, field: str) -> bytes:
    """Return the cloudpickle of a function that makes environments, or of a value that holds one.

    Args:
        value: the value to send.
        field: the setting with the value, for messages.

    Raises:
        EntityEnvError: it cannot be pickled; names the part that cannot.
    """
    try:
        code: bytes = cloudpickle.dumps(value)
    except Exception as error:
        part = _find_unpicklable(value, "the factory")
        expected = "expected an environment that can be sent to another process"
        fix = "create it in the constructor of the environment"
        raise EntityEnvError(f"{field}: {expected}, got {error} at {part}; {fix}") from None
    return code


def _find_unpicklable(value: Any, name: str) -> str:
    """Return the path of the innermost argument, closed-over name or attribute that fails."""
    parts = dict(getattr(value, "keywords", {})) | dict(getattr(value, "__dict__", {}))
    free = getattr(getattr(value, "__code__", None), "co_freevars", ())
    cells = getattr(value, "__closure__", None) or ()
    parts |= {n: cell.cell_contents for n, cell in zip(free, cells, strict=True)}
    for key, part in parts.items():
        try:
            cloudpickle.dumps(part)
        except Exception:
            return _find_unpicklable(part, f"{name}.{key}" if name != "the factory" else key)
    return name


_MAIN = "import sys; sys.path.insert(0, {!r}); from entity_env.vec.worker import main; main()"
_CLOSE_S = 5  # timeout for a worker to close its environments, and again to end


class WorkerLostError(WorkerError):
    """A worker was killed, exited, does not answer or could not start."""


def as_started(answer: Any) -> Any:
    """Return the first answer of a worker; as a loss if its environments could not be made.

    Raises:
        InvalidSpace: the spaces are invalid, in which case another worker would fail as well.
    """
    if isinstance(answer, InvalidSpace):
        raise answer
    if isinstance(answer, Exception) and not isinstance(answer, WorkerLostError):
        return WorkerLostError(str(answer))
    return answer


@dataclass
class RestartQuota:
    """Limit on the number of lost workers that are replaced.

    Attributes:
        total: number of restarts in all.
        per_minute: number of restarts within any minute.
        clock: seconds, never going back.
    """

    total: int = 10
    per_minute: int = 1
    clock: Callable[[], float] = time.monotonic
    _recent: list[float] = field(default_factory=list)

    def take(self) -> str | None:
        """Use up one restart; return None, or the limit that forbids it."""
        now_s = self.clock()
        self._recent = [start_s for start_s in self._recent if now_s - start_s < 60]
        if self.total < 1:
            return "no restarts are left"
        if len(self._recent) >= self.per_minute:
            return f"{self.per_minute} restarts a minute are allowed"
        self.total -= 1
        self._recent.append(now_s)
        return None


class WorkerProcess:
    """A worker in a process of its own, and the channel to it.

    It is a fresh interpreter that ends when the connection closes, also if this process crashes.
    The shared memory has no name, so that the system frees it then.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup
        local, remote = socket.socketpair()
        requests, answers = SharedMemory(), SharedMemory()
        event = new_wake_event()
        # The worker inherits these files: connection, memory of both sides, and wake event.
        files = [remote.fileno(), answers.file, requests.file] + ([] if event is None else [event])
        main = _MAIN.format(str(Path(__file__).absolute().parents[2]))
        # Linux ends the worker with the thread that started it, so it must be the main thread.
        is_lasting = threading.current_thread() is threading.main_thread()
        parent = os.getpid() if is_lasting else 0
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS_OF_PARENT)
        try:
            command = [sys.executable, "-c", main, "parent", str(parent), "files", *map(str, files)]
            self.process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        remote.close()
        self.channel = Channel(Connection(local.detach()), requests, answers, peer_event=event)
        self.waited_s = 0.0  # time waited for its answers
        self.host = ""
        self._sent_at = 0.0

        # The first message describes the environments.
        self.send(first_message(setup))

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message. If the worker is lost, `receive` returns the error.

        Args:
            message: the name of a method and its arguments.
            is_last: False if other workers get a message before this process waits for answers.
        """
        self._sent_at = time.monotonic()
        if self.process.returncode is not None:  # it is lost, and its channel may be closed
            return
        with contextlib.suppress(ChannelClosedError):
            self.channel.send(message, is_last)

    def started(self) -> Any:
        """Return the spaces of its environments, once made, or the error if they could not be made.

        With the spaces come digests of its code, and warnings to log.

        Raises:
            InvalidSpace: the spaces are invalid, in which case another worker would fail as well.
        """
        return as_started(self.receive())

    def receive(self) -> Any:
        """Return the result of the last message, or the error for the caller to raise.

        Arrays of the result are valid until the next message is sent.
        """
        if self.process.returncode is not None:
            return self._lost()
        timeout_s = self.setup.timeout_s
        if timeout_s is not None:  # the time since the message counts, also that of other workers
            timeout_s = max(0.0, self._sent_at + timeout_s - time.monotonic())
        start_s = time.monotonic()
        try:
            has_answered = self.channel.wait(timeout_s)
            self.waited_s += time.monotonic() - start_s
            if not has_answered:
                self.kill()
                silence = f"did not answer for {self.setup.timeout_s} seconds"
                return WorkerLostError(f"{self.setup} {silence}")
            return self.channel.receive()
        except ChannelClosedError:
            return self._lost()

    def close(self) -> Exception | None:
        """Close its environments and end the process; after five seconds, kill it.

        Returns:
            The error of environments that could not be closed.
        """
        answer = None
        until_s = time.monotonic() + _CLOSE_S
        with contextlib.suppress(OSError, ChannelClosedError):
            self.send(["close", []])
            # Unread answers to earlier messages come first.
            while self.process.returncode is None:
                if not self.channel.wait(max(0.0, until_s - time.monotonic())):
                    break
                answer = self.channel.receive()
        try:
            self.process.wait(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.channel.close()
        return answer if isinstance(answer, Exception) else None

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
