"""Ranks as forked processes, by themselves or started again by the agents of torchrun.

A rank that torchrun starts imports torch, as torchrun does: two ranks take five seconds of
processor time before they begin.
"""

import importlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from torch.distributed import TCPStore

from tests.fork_server import run_program, start_program

_PACKAGE = "tests.enn_trainer.run"
_START = "import sys; from {module} import main; main(*sys.argv[1:])"
_COMMAND = "from {module} import main; main()"
_AGENTS = f"import sys; from {_PACKAGE}.forked_ranks import serve_host; serve_host(*sys.argv[1:])"
_WAIT_S = 200.0
_KILLED_S = 30.0
"""Time from SIGTERM to SIGKILL, as of torchrun."""


def run_ranks(
    program: str, *arguments: str, ranks: int = 2, number: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Run the function `main` of a module of this folder in ranks, as torchrun does.

    Once a rank fails, the others get SIGTERM.

    Args:
        program: name of the module.
        arguments: of the program.
        ranks: number of processes.
        number: of the signal that the second rank sends itself, if the program does that.

    Returns:
        The output of all ranks, and the first exit status that is not 0.
    """
    code = (_START if program == "torch_ranks" else _COMMAND).format(module=f"{_PACKAGE}.{program}")
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    common |= {"TORCHELASTIC_RUN_ID": "forked", "TORCHELASTIC_RESTART_COUNT": "0"}
    common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK_SIGNAL": str(number)}
    with (
        ExitStack() as stack,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        processes = []
        for rank in range(ranks):
            with _environment(**common, RANK=str(rank), LOCAL_RANK=str(rank)):
                streams = {"stdout": out.fileno(), "stderr": err.fileno()}
                process = start_program(["-c", code, *arguments], **streams)
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        status = _ended(processes)
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess([program, *arguments], status, out.read(), err.read())


def _ended(processes: Sequence["subprocess.Popen[Any]"]) -> int:
    """Wait for the end of ranks; return the first status that is not 0."""
    end_s, first = time.monotonic() + _WAIT_S, 0
    kill_s = end_s
    while any(process.poll() is None for process in processes):
        assert time.monotonic() < end_s, f"ranks go on for {_WAIT_S:g} s"
        failed = [process.returncode for process in processes if process.returncode]
        if failed and not first:
            first, kill_s = failed[0], time.monotonic() + _KILLED_S
            for process in processes:
                process.terminate()
        if time.monotonic() > kill_s:
            for process in processes:
                process.kill()
        time.sleep(0.02)
    return first or next((one.returncode for one in processes if one.returncode), 0)


def run_hosts(
    program: str,
    *arguments: str,
    hosts: int = 1,
    ranks: int = 1,
    restarts: int = 1,
    number: int = 0,
) -> list["subprocess.CompletedProcess[str]"]:
    """Run ranks that an agent of torchrun starts on each host, and starts again if one fails.

    Args:
        program: name of a module of this folder, which has a function `main`.
        arguments: of the program.
        hosts: number of agents, which are all on this machine.
        ranks: of each host.
        restarts: number of times that an agent starts its ranks again.
        number: of the signal that the second rank sends itself, if the program does that.

    Returns:
        What the agents and their ranks printed, and their exit status.
    """
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    agent = map(str, (f"{_PACKAGE}.{program}", port, hosts, ranks, restarts))
    command = ["-c", _AGENTS, *agent, *arguments]
    if hosts == 1:
        with _environment(RANK_SIGNAL=str(number)):
            return [run_program(command, timeout=_WAIT_S, text=True)]
    done = []
    with ExitStack() as stack, _environment(RANK_SIGNAL=str(number)):
        options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes = [start_program(command, text=True, **options) for _ in range(hosts)]
        for process in processes:
            stack.enter_context(process)
            stack.callback(process.kill)
        for process in processes:
            printed, _ = process.communicate(timeout=_WAIT_S)
            done.append(subprocess.CompletedProcess(command, process.returncode, printed, ""))
    return done


def serve_host(
    module: str, port: str, hosts: str, ranks: str, restarts: str, *arguments: str
) -> None:
    """Start the ranks of a host, and start them again, as `torchrun` does."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=int(hosts),
        max_nodes=int(hosts),
        nproc_per_node=int(ranks),
        run_id="forked",
        rdzv_backend="c10d",
        rdzv_endpoint=f"localhost:{port}",
        max_restarts=int(restarts),
        monitor_interval=0.1,
        start_method="fork",
    )
    try:
        elastic_launch(config, _rank)(module, list(arguments))
    except ChildFailedError as error:
        raise SystemExit(1) from error


def _rank(module: str, arguments: list[str]) -> None:
    """Run the program of a rank."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # that of the agent would raise an error here
    sys.argv[1:] = arguments
    importlib.import_module(module).main()


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Return a context with variables of the environment for new processes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield
