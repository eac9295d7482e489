"""Remote evaluations: tasks of a Ray cluster, one per suite."""

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import cloudpickle
import torch

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.evaluation import SuiteResult, Watch
from enn_trainer.runtime.start_folder import paths_from, start_folder
from entity_env.errors import ClusterError, ClusterLostError, EntityEnvError, WorkerError
from entity_env.vec.ray_cluster import RuntimeEnv, check_head
from entity_env.vec.ray_cluster import cluster as joined
from entity_env.vec.worker import pickled
from entity_env.world_code import FILE_MODULE_PREFIX

TRIES = 4
"""Maximal number of attempts for a suite if its process or host is lost."""
POLL_S = 0.1


class RunningEvaluation(Protocol):
    """Evaluation that is running in the background."""

    def results(self, stop: Callable[[], bool], watch: Watch) -> Mapping[str, SuiteResult] | None:
        """Wait for the results by suite; None if `stop` returned True first.

        Args:
            stop: polled while waiting.
            watch: called with the name of a suite and 1.0 when it is finished.

        Raises:
            Exception: the first error of a suite, as if it had run in this process.
        """

    def cancel(self) -> None:
        """Cancel the evaluation."""


RemoteEvaluator: TypeAlias = Callable[[bytes, Sequence[str]], RunningEvaluation]
"""Function that starts to evaluate suites by name; the bytes are a result of `pack_evaluator`."""


class PackedEvaluation(NamedTuple):
    """Message to the process that evaluates a suite.

    Attributes:
        path: entries of this process's `sys.path`.
        folder: base folder of relative paths.
        evaluator: cloudpickle of the evaluator.
    """

    path: list[str]
    folder: str
    evaluator: bytes


def pack_evaluator(evaluator: Any) -> bytes:
    """Serialize an evaluator, with the source of environments and bots loaded from files."""
    modules = [
        m
        for name, m in sys.modules.items()
        if name.startswith(FILE_MODULE_PREFIX) and m is not None
    ]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    try:
        content = pickled(evaluator, "eval.ray")
    except EntityEnvError as error:
        raise ConfigError(str(error)) from None
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)
    path = [entry for entry in sys.path if entry]
    return pickled(PackedEvaluation(path, str(start_folder()), content), "eval.ray")


def play_suite(message: bytes, name: str) -> SuiteResult | Exception:
    """Evaluate one suite of a packed evaluation; return its result, or the error."""
    evaluation: PackedEvaluation = cloudpickle.loads(message)
    sys.path += [entry for entry in evaluation.path if entry not in sys.path]
    try:
        folder = Path(evaluation.folder)
        with paths_from(folder if folder.is_dir() else Path.cwd()):
            evaluator = cloudpickle.loads(evaluation.evaluator)
            result: SuiteResult = evaluator.measure_suite(name)
            return result
    except Exception as error:
        try:
            cloudpickle.loads(cloudpickle.dumps(error))
        except Exception:
            return WorkerError(f"evaluation failed:\n{traceback.format_exc()}")
        return error


@contextmanager
def cluster(
    address: str, config: TrainConfig, field: str = "eval.ray", token: str = ""
) -> Iterator[Any]:
    """Join a cluster for a run, see `entity_env.vec.ray_cluster.cluster`.

    Args:
        address: "auto" or HOST:PORT.
        config: configuration of the run, with the files and variables to send to hosts.
        field: setting with the address, for messages.
        token: invitation token of another process.

    Raises:
        ConfigError: Ray is not installed, or there is no such cluster.
    """
    rollout = config.rollout
    runtime = RuntimeEnv(tuple(rollout.ray_files), rollout.ray_env, start_folder())
    try:
        with joined(address, field, runtime, token) as ray:
            yield ray
    except ClusterError as error:
        raise ConfigError(str(error)) from None


def use_remote_evaluator(
    evaluator: Any, config: TrainConfig, device: torch.device, stack: ExitStack
) -> None:
    """Configure a run's evaluator to evaluate on a cluster, with `eval.ray`."""
    if config.eval is not None and config.eval.ray is not None and evaluator.group.leads:
        ray = stack.enter_context(cluster(config.eval.ray, config))
        evaluator.remote = RayEvaluator(ray, device)
        stack.callback(evaluator.close)


class RayEvaluator:
    """Evaluate suites as tasks of a cluster; a `RemoteEvaluator`.

    Args:
        ray: the module `ray`, connected to a cluster.
        device: device of the agents.
    """

    def __init__(self, ray: Any, device: torch.device) -> None:
        self._ray = ray
        gpus = 1 if device.type == "cuda" else 0
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": TRIES - 1}
        self._task = ray.remote(**options)(play_suite)

    def __call__(self, message: bytes, names: Sequence[str]) -> "RayEvaluation":
        """Submit one task per suite."""
        check_head()
        sent = self._ray.put(message)
        return RayEvaluation(self._ray, {name: self._task.remote(sent, name) for name in names})


class RayEvaluation:
    """Evaluation by tasks of a cluster; a `RunningEvaluation`."""

    def __init__(self, ray: Any, tasks: Mapping[str, Any]) -> None:
        self._ray, self._tasks = ray, tasks

    def results(self, stop: Callable[[], bool], watch: Watch) -> dict[str, SuiteResult] | None:
        """Wait for the results by suite; None if `stop` returned True first."""
        results: dict[str, SuiteResult] = {}
        for name, task in self._tasks.items():
            watch(name, 0.0)
            while not self._ray.wait([task], timeout=POLL_S)[0]:
                check_head()
                if stop():
                    return None
            try:
                result = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                check_head(is_sure=True)
                why = " ".join(str(error).split())[:300]
                raise WorkerError(
                    f"eval.ray: expected the result of an evaluation, got a task that failed "
                    f"{TRIES} times or could not run: {why}"
                ) from None
            if isinstance(result, Exception):
                raise result
            results[name] = result
            watch(name, 1.0)
        return results

    def cancel(self) -> None:
        """Cancel the tasks."""
        with suppress(ClusterLostError):
            check_head()
            for task in self._tasks.values():
                self._ray.cancel(task, force=True)
