"""Ranks on two hosts, which are network namespaces here, whose link goes down."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.enn_trainer.run.small_runs import SMALL, run_digest

PROGRAM = Path(__file__).with_name("network_run.py")
LINK, FIRST, SECOND = "veth", "10.9.0.1", "10.9.0.2"
NAMES = ("first-host", "second-host")


class Hosts:
    """Two hosts with a link between them.

    Args:
        processes: one that lives in each.
    """

    def __init__(self, processes: Sequence[int]) -> None:
        self._processes = processes

    def command(self, host: int, *command: str) -> list[str]:
        """Return a command that runs on a host."""
        there = ["nsenter", "-t", str(self._processes[host]), "-U", "--preserve-credentials"]
        return [*there, "-n", "-u", *command]

    def run(self, host: int, *command: str) -> None:
        """Run a command on a host."""
        subprocess.run(self.command(host, *command), check=True, capture_output=True)

    def set_link(self, state: str) -> None:
        """Let the link be `up` or `down`."""
        self.run(0, "ip", "link", "set", LINK, state)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    """Return two hosts, or skip where the kernel, or its administrator, permits none."""
    if not all(map(shutil.which, ("ip", "unshare", "nsenter", "hostname"))):
        pytest.skip("needs ip, unshare, nsenter and hostname, of Linux")
    with ExitStack() as stack:
        try:
            first = stack.enter_context(_process(["unshare", "-rn", "--uts"]))
            second_in = Hosts([first]).command(0, "unshare", "-n", "--uts")
            made = Hosts([first, stack.enter_context(_process(second_in))])
            peer = ["peer", "name", LINK, "netns", str(made._processes[1])]
            made.run(0, "ip", "link", "add", LINK, "type", "veth", *peer)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode().strip()}")
        for host, address in enumerate((FIRST, SECOND)):
            made.run(host, "hostname", NAMES[host])
            made.run(host, "ip", "addr", "add", f"{address}/24", "dev", LINK)
            made.run(host, "ip", "link", "set", "lo", "up")
            made.run(host, "ip", "link", "set", LINK, "up")
        yield made


@contextmanager
def _process(namespaces: list[str]) -> Iterator[int]:
    """Return a context of a process in new namespaces, which echoes lines until its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen([*namespaces, "cat"], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(b"it runs\n")
            process.stdin.flush()
        if not process.stdout.readline():
            out, err = process.communicate()
            raise subprocess.CalledProcessError(1, namespaces, out, err)
        try:
            yield process.pid
        finally:
            process.kill()


@contextmanager
def ranks(hosts: Hosts, folder: Path, *settings: str) -> Iterator[list["subprocess.Popen[str]"]]:
    """Return a context of a run with a rank on each host, which ends with it.

    Without torchrun, whose store the first rank has here: both import torch.
    """
    command = [sys.executable, str(PROGRAM), *SMALL, *settings]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": FIRST, "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    environment |= {"TORCHELASTIC_RUN_ID": "two hosts", "LOCAL_RANK": "0"}
    with ExitStack() as stack:
        started = []
        for host in range(2):
            process = subprocess.Popen(
                hosts.command(host, *command),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={**environment, "RANK": str(host)},
                start_new_session=True,
            )
            stack.callback(_end, process)
            started.append(process)
        yield started


def _end(process: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_until_there(folder: Path, processes: Sequence["subprocess.Popen[str]"]) -> None:
    """Wait until rank 0 waits in its second update."""
    end_s = time.monotonic() + 120
    while not (folder / "there").exists():
        assert all(process.poll() is None for process in processes), processes[0].communicate()
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.slow
def test_a_short_network_outage_changes_no_result(
    hosts: Hosts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with ranks(hosts, tmp_path, "scale.timeout_s=60") as processes:
        wait_until_there(tmp_path, processes)
        hosts.set_link("down")
        (tmp_path / "go").touch()
        time.sleep(5.0)
        assert all(process.poll() is None for process in processes)
        hosts.set_link("up")
        printed = [process.communicate(timeout=100) for process in processes]
    expected = run_digest(None)
    for rank, (out, err) in enumerate(printed):
        assert f"rank {rank} ends at 168 with {expected}" in out, err


@pytest.mark.slow
def test_a_permanent_network_outage_ends_both_ranks(hosts: Hosts, tmp_path: Path) -> None:
    with ranks(hosts, tmp_path, "scale.timeout_s=6") as processes:
        wait_until_there(tmp_path, processes)
        hosts.set_link("down")
        (tmp_path / "go").touch()
        try:
            printed = [process.communicate(timeout=100)[1] for process in processes]
        finally:
            hosts.set_link("up")
    for rank, err in enumerate(printed):
        assert f"rank {rank} ({NAMES[rank]}) ends while " in err
        (line,) = (line for line in err.splitlines() if line.startswith(f"error: rank {rank} ("))
        assert f"rank {1 - rank} ({NAMES[1 - rank]}) does not answer, last seen while " in line
        assert "scale.timeout_s=6" in line
