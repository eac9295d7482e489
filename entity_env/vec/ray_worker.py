"""Workers of a `ParallelEnvList` that are actors of a Ray cluster."""

import contextlib
import os
import platform
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from entity_env.errors import ClusterLostError, WorkerError
from entity_env.imports.extras import PROJECT, distributions
from entity_env.process import warn_once
from entity_env.vec.ray_cluster import check_head
from entity_env.vec.transport import packed, unpacked
from entity_env.vec.worker import (
    WorkerLostError,
    WorkerServer,
    WorkerSetup,
    as_started,
    first_message,
)

_CLOSE_S = 5  # timeout for a worker to close its environments
_ASK_S = 1.0  # interval of checks of the head of the cluster
FAST_S = 0.005
"""Seconds per step below which workers on this machine are faster."""
MEASURED_STEPS = 100
"""Number of steps of a worker after which their mean time is checked."""


def versions() -> dict[str, str]:
    """Return the versions of Python, NumPy and this package, on which frames depend."""
    package = next((distribution.version for distribution in distributions()), "unknown")
    return {"python": platform.python_version(), "numpy": np.__version__, PROJECT: package}


def program_path() -> list[str]:
    """Return the module folders of this program, without Python's own and installed packages."""
    python, packages = sysconfig.get_path("stdlib"), ("site-packages", "dist-packages")
    folders = [entry or str(Path.cwd()) for entry in sys.path]
    return [f for f in folders if not f.startswith(python) and Path(f).name not in packages]


def joined_path(program: list[str]) -> list[str]:
    """Return the module search path of an actor.

    Files of the working folder come first, then the program's folders that exist on the host,
    then the host's Python and packages.

    Args:
        program: module folders of the main program.
    """
    import ray

    has_files = "working_dir" in ray.get_runtime_context().runtime_env
    files = [str(Path.cwd())] if has_files else []
    return [*dict.fromkeys([*files, *filter(os.path.exists, program), *sys.path])]


class RayServer:
    """Actor with the environments of a worker. Messages and answers are packed."""

    def start(self, message: bytes) -> bytes:
        """Make the environments; return host, versions, and the result of `WorkerServer.start`.

        The host is its name and the id of its node in the cluster.
        """
        import ray

        setup, program, argv, main_file = unpacked(message)
        self._server = WorkerServer(setup, joined_path(program), argv, main_file)
        host = [platform.node(), ray.get_runtime_context().get_node_id()]
        return packed([host, versions(), self._server.start()])

    def answer(self, message: bytes) -> bytes:
        """Answer a message."""
        name, arguments = unpacked(message)
        start_s = time.perf_counter()
        answer = self._server.answer(name, arguments)
        return packed([name, time.perf_counter() - start_s, answer])


class RayWorker:
    """Worker that is an actor, with the methods of `WorkerProcess`.

    Args:
        ray: the module, joined to a cluster.
        resources: resources of each worker by name, such as {"CPU": 1}.
        setup: the arguments of the worker.
    """

    def __init__(self, ray: Any, resources: Mapping[str, float], setup: WorkerSetup) -> None:
        self.setup, self.waited_s, self.host = setup, 0.0, ""
        self._ray, self._is_lost = ray, False
        self._steps, self._step_s = 0, 0.0
        custom = {name: n for name, n in resources.items() if name not in ("CPU", "GPU")}
        options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        self._actor = ray.remote(**options, resources=custom, max_restarts=0)(RayServer).remote()
        self._sent_at = time.monotonic()
        _, _, *program = first_message(setup)
        self._answer = self._actor.start.remote(packed([setup, program_path(), *program]))

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message. If the worker is lost, `receive` returns the error."""
        self._sent_at = time.monotonic()
        if not self._is_lost:
            self._answer = self._actor.answer.remote(packed(message))

    def started(self) -> Any:
        """Return the first answer, as `WorkerProcess.started`.

        Raises:
            InvalidSpace: the spaces are invalid.
            WorkerError: the host has other versions, or other code of the environments.
        """
        answer = self._receive()
        if isinstance(answer, WorkerLostError):
            return answer
        (host, self.host), host_versions, started = answer
        check_same_code(host, host_versions, versions())
        if not isinstance(started, Exception):
            check_same_code(host, started[2], self.setup.code)
        elif (reason := str(started).strip().splitlines()[-1]).startswith("ModuleNotFoundError"):
            raise WorkerError(
                f"rollout.ray: expected the environment's modules on the host {host}, got "
                f"{reason}; name its files in rollout.ray_files, or install it there"
            )
        return as_started(started)

    def receive(self) -> Any:
        """Return the result of the last message, or the error for the caller to raise."""
        received = self._receive()
        if isinstance(received, WorkerLostError):
            return received
        name, seconds, answer = received
        if name == "act_on":
            self._steps, self._step_s = self._steps + 1, self._step_s + seconds
            if self._steps == MEASURED_STEPS and self._step_s < FAST_S * MEASURED_STEPS:
                warn_once(
                    f"rollout.ray: steps take less than {1000 * FAST_S:g} ms, for which workers on "
                    "this machine are faster; leave rollout.ray out"
                )
        return answer

    def _receive(self) -> Any:
        """Return the actor's packed answer to the last message, or the error of its loss."""
        if self._is_lost:
            return WorkerLostError(f"{self.setup} was lost")
        start_s = time.monotonic()
        try:
            return unpacked(self._wait())
        except self._ray.exceptions.GetTimeoutError:
            reason = f"did not answer for {self.setup.timeout_s} seconds"
        except self._ray.exceptions.RuntimeEnvSetupError as error:
            expected = "expected files and a Python environment that the hosts can create"
            raise WorkerError(
                f"rollout.ray_env: {expected}, got {' '.join(str(error).split())[:500]}"
            ) from None
        except self._ray.exceptions.RayError as error:
            reason = f"was lost: {' '.join(str(error).split())[:300]}"
        finally:
            self.waited_s += time.monotonic() - start_s
        check_head(is_sure=True)  # without a head the wait for a replacement would never end
        self.kill()
        return WorkerLostError(f"{self.setup} {reason}")

    def _wait(self) -> bytes:
        """Wait for the answer of the actor, and return it."""
        timeout_s = self.setup.timeout_s
        # The time since the message counts, also that of other workers.
        until_s = float("inf") if timeout_s is None else self._sent_at + timeout_s
        while True:
            check_head()
            remaining_s = max(0.0, until_s - time.monotonic())
            try:
                answer: bytes = self._ray.get(self._answer, timeout=min(remaining_s, _ASK_S))
                return answer
            except self._ray.exceptions.GetTimeoutError:
                if remaining_s <= _ASK_S:
                    raise

    def close(self) -> Exception | None:
        """Close its environments and end the actor; return their error if they fail to close."""
        answer = None
        if not self._is_lost:
            with contextlib.suppress(self._ray.exceptions.RayError, ClusterLostError):
                check_head()
                message = self._actor.answer.remote(packed(["close", []]))
                *_, answer = unpacked(self._ray.get(message, timeout=_CLOSE_S))
        self.kill()
        return answer if isinstance(answer, Exception) else None

    def kill(self) -> None:
        """End the actor at once."""
        self._is_lost = True
        with contextlib.suppress(ClusterLostError):
            check_head()
            self._ray.kill(self._actor)


def check_same_code(host: str, remote: Mapping[str, str], local: Mapping[str, str]) -> None:
    """Raise WorkerError if a version or digest on a host differs from this process.

    Args:
        host: name of the host, for messages.
        remote: versions or digests on the host, by name.
        local: versions or digests of this process; only names in both are compared.
    """
    for name in sorted(remote.keys() & local.keys()):
        if remote[name] != local[name]:
            expected = f"expected {local[name]}, as on this machine, got {remote[name]}"
            raise WorkerError(f"{name} on the host {host}: {expected}; install that version there")
