"""Environments that step in worker processes."""

import contextlib
import functools
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import numpy.typing as npt

from entity_env.environment import Environment
from entity_env.errors import InvalidObservation, WorkerError
from entity_env.match import Match
from entity_env.messages import pack, unpack
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.vec_env import VecEnv, VecObs

_MAIN = "import sys; sys.path.insert(0, {package!r}); from entity_env.worker import main; main()"


class ParallelEnvList(VecEnv):
    """`num_envs` environments, split as equally as possible over `num_processes` processes.

    Args:
        create_env: makes one `Environment` or `Match`; sent to the workers.
        num_envs: how many frames a step has; a multiple of the sides of a match.
        num_processes: at most so many workers are started, never more than there are
            environments.
        start_method: accepted for compatibility; workers are always fresh interpreters.
        first_env_index: the index of the first among all environments of the run.
        validate: refuse numbers that are not finite and ids that do not fit, with the environment,
            step and field.

    Raises:
        WorkerError: a worker died or could not start, or an environment raised; with the worker's
            traceback.
        InvalidObservation: an environment returned something that its spaces do not allow.
    """

    def __init__(
        self,
        create_env: Callable[[], Environment | Match],
        num_envs: int,
        num_processes: int,
        start_method: str | None = None,
        *,
        first_env_index: int = 0,
        validate: bool = False,
    ) -> None:
        self._workers: list[_Worker] = []
        cls = create_env.func if isinstance(create_env, functools.partial) else create_env
        sides = getattr(cls, "num_sides", 1)
        code = cloudpickle.dumps(create_env)
        try:
            first = first_env_index
            for count in split_evenly(num_envs, num_processes, sides):
                self._workers.append(_Worker(code, count, first, validate))
                first += count
            answers = self._answers()
        except BaseException:
            self.close()
            raise
        self._obs_space: ObsSpace = answers[0][0]
        self._action_space: dict[ActionName, ActionSpace] = answers[0][1]

    def obs_space(self) -> ObsSpace:
        """What can be observed."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """What can be done."""
        return self._action_space

    def __len__(self) -> int:
        return sum(worker.num_envs for worker in self._workers)

    def seed(self, seed: int) -> None:
        """Give each episode a seed made of `seed`, its environment and its number."""
        self._ask("seed", [[seed] for _ in self._workers])

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        return VecObs.cat(self._ask("reset", [[obs_config] for _ in self._workers]))

    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        counts = [worker.num_envs for worker in self._workers]
        pieces = {name: chosen.split(counts) for name, chosen in actions.items()}
        return VecObs.cat(
            self._ask(
                "act",
                [
                    [{name: piece[i] for name, piece in pieces.items()}, obs_filter]
                    for i in range(len(self._workers))
                ],
            )
        )

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Pictures of all environments."""
        raise NotImplementedError("ParallelEnvList does not render; use an EnvList")

    def close(self) -> None:
        """Stop all workers. Safe to call twice."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def _ask(self, name: str, arguments: Sequence[list[Any]]) -> list[Any]:
        if not self._workers:
            raise WorkerError(f"{name}: the workers are closed")
        for worker, args in zip(self._workers, arguments, strict=True):
            worker.send([name, args])
        return self._answers()

    def _answers(self) -> list[Any]:
        """What each worker answers; all of it is read before an error is raised."""
        answers = [worker.receive() for worker in self._workers]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def split_evenly(num_envs: int, num_processes: int, sides: int = 1) -> list[int]:
    """Sizes of the pieces that `num_envs` environments are cut into, none of them empty.

    A piece holds whole matches of `sides` environments; sizes differ by at most one match.
    """
    matches = max(1, -(-num_envs // sides))
    pieces = max(1, min(num_processes, matches))
    sizes = [sides * (matches // pieces + (i < matches % pieces)) for i in range(pieces)]
    sizes[-1] -= sum(sizes) - num_envs  # what is no whole match is for EnvList to refuse
    return sizes


class _Worker:
    """One process and the connection to it."""

    def __init__(self, create_env: bytes, num_envs: int, first: int, validate: bool) -> None:
        self.num_envs = num_envs
        self.first = first
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
                "create_env": create_env,
                "num_envs": num_envs,
                "first": first,
                "validate": validate,
            }
        )

    def send(self, message: Any) -> None:
        """Send a message; that the worker is gone shows when its answer is read."""
        data = pack(message)
        with contextlib.suppress(OSError):
            self.connection.send_bytes(data)

    def receive(self) -> Any:
        """The result of the last message, or the error to raise."""
        try:
            answer = unpack(self.connection.recv_bytes())
        except (EOFError, OSError):
            return self._died()
        if answer[0] == "ok":
            return answer[1]
        _, kind, env_index, step, text = answer
        if kind == "InvalidObservation":
            error = InvalidObservation(text)
            error.env_index, error.step = env_index, step
            return error
        return WorkerError(f"worker of {self._envs()} failed:\n{text}")

    def close(self) -> None:
        self.send(["close", []])
        self.connection.close()
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _died(self) -> WorkerError:
        try:
            code: int | None = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None
        return WorkerError(f"worker of {self._envs()} died with exit code {code}")

    def _envs(self) -> str:
        return f"environments {self.first} to {self.first + self.num_envs - 1}"
