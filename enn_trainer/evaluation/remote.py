"""Evaluations as tasks of a Ray cluster, one for each suite."""

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
from entity_env.world_code import OF_FILES

TRIES = 4
"""Number of times that a suite is played whose process or host is lost."""
POLL_S = 0.1


class UnderWay(Protocol):
    """Evaluation that is played elsewhere."""

    def results(self, stop: Callable[[], bool], watch: Watch) -> Mapping[str, SuiteResult] | None:
        """Wait for the results by suite, and return them; None if `stop` returned True before.

        Args:
            stop: called from time to time while waiting.
            watch: called with the name of a suite and 1.0 when that is played.

        Raises:
            Exception: the first error of a suite, as if it had been played here.
        """

    def cancel(self) -> None:
        """End the evaluation; its results are not needed."""


PlayElsewhere: TypeAlias = Callable[[bytes, Sequence[str]], UnderWay]
"""Begins to play suites by name; the bytes are an evaluation of `packed`."""


class PackedEvaluation(NamedTuple):
    """Message to the process that plays a suite.

    Attributes:
        path: folders of the modules of this process.
        folder: folder in which relative paths begin.
        evaluator: cloudpickle of the evaluator.
    """

    path: list[str]
    folder: str
    evaluator: bytes


def packed(evaluator: Any) -> bytes:
    """Return an evaluator as bytes, with the code of worlds and bots that come from files."""
    modules = [m for name, m in sys.modules.items() if name.startswith(OF_FILES) and m is not None]
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
    """Play one suite of a packed evaluation; return its result, or the error."""
    packed: PackedEvaluation = cloudpickle.loads(message)
    sys.path += [entry for entry in packed.path if entry not in sys.path]
    try:
        folder = Path(packed.folder)
        with paths_from(folder if folder.is_dir() else Path.cwd()):
            evaluator = cloudpickle.loads(packed.evaluator)
            result: SuiteResult = evaluator.measure_alone(name)
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
    """Return the context of `entity_env.vec.ray_cluster.cluster` for a run.

    Args:
        address: "auto" or HOST:PORT.
        config: configuration of the run, for what hosts get.
        field: the setting with the address, for messages.
        token: that of an invitation of another process.

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


def play_elsewhere(
    evaluator: Any, config: TrainConfig, device: torch.device, stack: ExitStack
) -> None:
    """Let a run's evaluations be played on a cluster, if `eval.ray` says so."""
    if config.eval is not None and config.eval.ray is not None and evaluator.group.leads:
        ray = stack.enter_context(cluster(config.eval.ray, config))
        evaluator.elsewhere = RayPlayer(ray, device)
        stack.callback(evaluator.close)


class RayPlayer:
    """Plays evaluations as tasks of a cluster; a `PlayElsewhere`.

    Args:
        ray: the module, joined to a cluster.
        device: device of the agents.
    """

    def __init__(self, ray: Any, device: torch.device) -> None:
        self._ray = ray
        gpus = 1 if device.type == "cuda" else 0
        options = {"num_cpus": 1, "num_gpus": gpus, "max_retries": TRIES - 1}
        self._task = ray.remote(**options)(play_suite)

    def __call__(self, message: bytes, names: Sequence[str]) -> "RayEvaluation":
        """Begin to play the suites."""
        check_head()
        sent = self._ray.put(message)
        return RayEvaluation(self._ray, {name: self._task.remote(sent, name) for name in names})


class RayEvaluation:
    """Evaluation whose suites are tasks of a cluster; an `UnderWay`."""

    def __init__(self, ray: Any, tasks: Mapping[str, Any]) -> None:
        self._ray, self._tasks = ray, tasks

    def results(self, stop: Callable[[], bool], watch: Watch) -> dict[str, SuiteResult] | None:
        """Wait for the results by suite; None if `stop` returned True before."""
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
                    f"eval.ray: expected the result of an evaluation, which was lost {TRIES} "
                    f"times or could not run: {why}"
                ) from None
            if isinstance(result, Exception):
                raise result
            results[name] = result
            watch(name, 1.0)
        return results

    def cancel(self) -> None:
        """End the tasks."""
        with suppress(ClusterLostError):
            check_head()
            for task in self._tasks.values():
                self._ray.cancel(task, force=True)
