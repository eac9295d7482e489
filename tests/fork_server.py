"""Programs that tests start, forked from a process that has imported torch and the trainer.

A new interpreter takes 1.6 s of processor time for these imports, a fork takes 0.01 s. A test of
imports, start-up, `-m`, flags of the interpreter, memory, or an order that may follow hashes needs
a new one: `subprocess` with `sys.executable`. `FORK_SERVER=0` starts new ones everywhere.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType
from typing import IO, Any

ENN = ("-c", "from enn_trainer.cli import main; main()")
"""The arguments of Python that run the program `enn`, before its own."""
START = """
import sys
import enn_trainer.cli, tests.fork_server
import torch.utils.tensorboard.summary, tensorboard.summary.writer.record_writer  # by each run
for command in enn_trainer.cli.COMMANDS.values():
    command.load()
code = tests.fork_server.serve(int(sys.argv[1]))
run = tests.fork_server.run_code
del sys, enn_trainer, tests, torch, tensorboard, command
run(code)
"""
READ_AT_START = ("PYTHON", "LD_", "MALLOC_", "OMP_", "MKL_", "KMP_", "OPENBLAS_")
"""Variables that the interpreter and its libraries read before the fork."""
NUMBER = struct.Struct("i")
STATUS = struct.Struct("id")
"""The status of a program and the processor seconds of it and its children."""
PIPE, STDOUT = subprocess.PIPE, subprocess.STDOUT
_seconds: list[float] = []


def programs_seconds() -> float:
    """Return the processor seconds of all programs that were forked and have ended."""
    return sum(_seconds)


def start_program(arguments: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
    """Start `python ARGUMENTS`, which begin with `-c`, as `subprocess.Popen` does."""
    if os.environ.get("FORK_SERVER") == "0" or not hasattr(os, "pidfd_open"):
        return subprocess.Popen([sys.executable, *arguments], **options)
    return ForkedProgram(arguments, **options)  # type: ignore[return-value]


def run_program(
    arguments: Sequence[str], *, timeout: float = 120, check: bool = False, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """Run `python ARGUMENTS`, which begin with `-c`, to its end, and return what it printed."""
    process = start_program(arguments, stdout=PIPE, stderr=PIPE, **options)
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        assert done.returncode == 0, err
    return done


class ForkedProgram:
    """A child of the fork server, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        text: bool = False,
        cwd: Path | None = None,
        start_new_session: bool = False,
    ) -> None:
        option, code, *rest = self.args = list(arguments)
        assert option == "-c", arguments
        self.returncode: int | None = None
        server, environment = _server()
        new = dict(os.environ)
        for name in new.keys() | environment.keys():
            if name.startswith(READ_AT_START) and new.get(name) != environment.get(name):
                raise ValueError(f"{name}: a forked program cannot have another value")
        with contextlib.ExitStack() as ends:  # those of the program, which are closed here
            own: list[IO[Any] | None] = [None, None, None]
            streams = [0, 1, 2]
            for stream, how in enumerate((stdin, stdout, stderr)):
                if how == STDOUT:
                    streams[stream] = streams[1]
                elif how == subprocess.DEVNULL:
                    streams[stream] = os.open(os.devnull, os.O_RDWR)
                    ends.callback(os.close, streams[stream])
                elif how == PIPE:
                    reader, writer = os.pipe()
                    streams[stream] = writer if stream else reader
                    ends.callback(os.close, streams[stream])
                    mode = ("r" if stream else "w") + ("" if text else "b")
                    own[stream] = os.fdopen(reader if stream else writer, mode)
                elif how is not None:
                    streams[stream] = how
            self.stdin, self.stdout, self.stderr = own
            reader, writer = os.pipe()
            ends.callback(os.close, writer)
            self._status = os.fdopen(reader, "rb", buffering=0)
            request = [code, rest, new, str(Path(cwd or "").absolute()), start_new_session]
            socket.send_fds(server, [json.dumps(request).encode()], [*streams, writer])
            (self.pid,) = NUMBER.unpack(server.recv(NUMBER.size))

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            with self._status:
                status, seconds = STATUS.unpack(self._status.read(STATUS.size))
            _seconds.append(seconds)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Close the input, read the output and wait for the end; at the timeout, kill it."""
        if self.stdin is not None:
            self.stdin.close()
        with self, ThreadPoolExecutor(2) as pool:
            printed = [
                None if pipe is None or pipe.closed else pool.submit(pipe.read)
                for pipe in (self.stdout, self.stderr)
            ]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, err = (None if text is None else text.result() for text in printed)
            return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "ForkedProgram":
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


@functools.cache
def _server() -> tuple[socket.socket, dict[str, str]]:
    """Return a socket to a server, which ends when it is closed, and its environment."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            cwd=Path(__file__).parents[1],
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours, dict(os.environ)


def serve(descriptor: int) -> CodeType:
    """Fork programs until the tests close their socket; return in each of them its code."""
    assert len(os.listdir("/proc/self/task")) == 1, "threads do not survive a fork"  # noqa: PTH208
    tests = socket.socket(fileno=descriptor)
    gc.freeze()  # at its end a program would copy all of this memory to look for garbage in it
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal: it is for the tests
    running: dict[int, tuple[int, int]] = {}  # by descriptor of a process: its id, a pipe
    poll = select.poll()
    poll.register(tests, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            # A program has ended: tell its status.
            if ready in running:
                poll.unregister(ready)
                process, pipe = running.pop(ready)
                with contextlib.suppress(BrokenPipeError):
                    _, status, used = os.wait4(process, 0)
                    os.write(pipe, STATUS.pack(status, used.ru_utime + used.ru_stime))
                os.close(pipe)
                os.close(ready)
                continue
            # Another one is to be started, or the tests are over.
            request, given, _, _ = socket.recv_fds(tests, 1 << 20, 4)
            if not request:
                sys.exit()
            process = os.fork()
            if process == 0:
                with tests:
                    for descriptor, (_, pipe) in running.items():
                        os.close(descriptor)
                        os.close(pipe)
                    try:
                        return _set_up(*json.loads(request), given)
                    finally:  # from now on signals find it as they find a new interpreter
                        tests.send(NUMBER.pack(os.getpid()))
            *streams, pipe = given
            for stream in streams:
                os.close(stream)
            running[os.pidfd_open(process)] = process, pipe
            poll.register(next(reversed(running)), select.POLLIN)


def run_code(code: CodeType) -> None:
    """Run a program as the interpreter does, and end without clearing all modules.

    Clearing them copies the memory that is shared with the server, in 0.18 s of processor time.
    """
    status = 0
    try:
        exec(code, vars(sys.modules["__main__"]))
    except KeyboardInterrupt:
        raise
    except SystemExit as exit:
        if isinstance(exit.code, int):
            status = exit.code & 0xFF
        elif exit.code is not None:
            print(exit.code, file=sys.stderr)
            status = 1
    except BaseException as error:
        traceback = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, traceback)  # without the line of `exec`
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:  # closed, or the other end of the pipe is
        sys.exit(status)  # the interpreter says it
    os._exit(status)


def _set_up(
    code: str,
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    has_session: bool,
    given: list[int],
) -> CodeType:
    """Set up streams, folder, variables and arguments of a program, and compile its code."""
    for number, stream in enumerate(given[:3]):
        os.dup2(stream, number)
    for descriptor in given:
        os.close(descriptor)
    if has_session:
        os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = ["-c", *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return compile(code, "<string>", "exec")
