"""Workers of a `ParallelEnvList` that are actors of a Ray cluster."""

import contextlib
import platform
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from entity_env.errors import WorkerError
from entity_env.process import warn_once
from entity_env.vec.transport import packed, unpacked
from entity_env.vec.worker import (
    WorkerLostError,
    WorkerServer,
    WorkerSetup,
    as_started,
    first_message,
)

_CLOSE_S = 5  # for a worker to close its environments
FAST_S = 0.005
"""Seconds of a step below which workers on this machine are faster."""
MEASURED_STEPS = 100
"""Number of steps of a worker after which their time is judged."""


def versions() -> dict[str, str]:
    """Return the versions that frames depend on, of this process."""
    try:
        own = version("enn-trainer")
    except PackageNotFoundError:  # a copy of the source
        own = "unknown"
    return {"python": platform.python_version(), "numpy": np.__version__, "enn-trainer": own}


class RayServer:
    """Actor with the environments of a worker. Messages and answers are packed."""

    def start(self, message: bytes) -> bytes:
        """Make the environments; answer with host, versions, and as `WorkerServer.start`."""
        self._server = WorkerServer(*unpacked(message))
        return packed([platform.node(), versions(), self._server.start()])

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
        resources: what one worker takes of its host, by name, such as {"CPU": 1}.
        setup: the arguments of the worker.
    """

    def __init__(self, ray: Any, resources: Mapping[str, float], setup: WorkerSetup) -> None:
        self.setup, self.waited_s = setup, 0.0
        self._ray, self._is_lost = ray, False
        self._steps, self._step_s = 0, 0.0
        named = {name: n for name, n in resources.items() if name not in ("CPU", "GPU")}
        options = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0)}
        self._actor = ray.remote(**options, resources=named, max_restarts=0)(RayServer).remote()
        self._sent_at = time.monotonic()
        self._answer = self._actor.start.remote(packed(first_message(setup)))

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message. If the worker is gone, `receive` returns the error."""
        self._sent_at = time.monotonic()
        if not self._is_lost:
            self._answer = self._actor.answer.remote(packed(message))

    def started(self) -> Any:
        """Return as `WorkerProcess.started`.

        Raises:
            InvalidSpace: the environments have wrong spaces.
            WorkerError: the host has other packages, or other code of the environments.
        """
        answer = self._receive()
        if isinstance(answer, WorkerLostError):
            return answer
        host, found, started = answer
        check_same_code(host, found, versions())
        if not isinstance(started, Exception):
            check_same_code(host, started[2], self.setup.code)
        return as_started(started)

    def receive(self) -> Any:
        """Return the result of the last message; or the error for the caller to raise."""
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
        """Return what the actor returned for the last message; or the loss of it."""
        if self._is_lost:
            return WorkerLostError(f"{self.setup} was lost")
        timeout_s = self.setup.timeout_s
        if timeout_s is not None:  # it has had some time while others were waited for
            timeout_s = max(0.0, self._sent_at + timeout_s - time.monotonic())
        start_s = time.monotonic()
        try:
            return unpacked(self._ray.get(self._answer, timeout=timeout_s))
        except self._ray.exceptions.GetTimeoutError:
            why = f"did not answer for {self.setup.timeout_s} seconds"
        except self._ray.exceptions.RayError as error:
            why = f"was lost: {' '.join(str(error).split())[:300]}"
        finally:
            self.waited_s += time.monotonic() - start_s
        self.kill()
        return WorkerLostError(f"{self.setup} {why}")

    def close(self) -> Exception | None:
        """Close its environments and end it; return the error of those that cannot be closed."""
        answer = None
        if not self._is_lost:
            with contextlib.suppress(self._ray.exceptions.RayError):
                message = self._actor.answer.remote(packed(["close", []]))
                *_, answer = unpacked(self._ray.get(message, timeout=_CLOSE_S))
        self.kill()
        return answer if isinstance(answer, Exception) else None

    def kill(self) -> None:
        """End the actor at once."""
        self._is_lost = True
        self._ray.kill(self._actor)


def check_same_code(host: str, found: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Raise WorkerError if a version or digest on a host differs from the one here.

    Args:
        host: name of the host, for messages.
        found: what it has, by name.
        here: what this process has; only names that both know are compared.
    """
    for name in sorted(found.keys() & here.keys()):
        if found[name] != here[name]:
            expected = f"expected {here[name]}, as here, got {found[name]}"
            raise WorkerError(f"{name} on the host {host}: {expected}; install the same there")
