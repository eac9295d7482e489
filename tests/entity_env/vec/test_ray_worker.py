"""Workers as actors of a Ray cluster: the frames of one process, even after losses."""

import contextlib
import functools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, ParallelEnvList, WorkerError
from entity_env.examples import Locks, Minefield, MineSweeper, MultiSnake
from entity_env.examples.duel import Duel
from entity_env.named_world import NamedWorld, find_world
from entity_env.process import warned
from entity_env.vec import ray_worker
from entity_env.vec.ray_cluster import cluster
from entity_env.vec.ray_worker import RayWorker
from entity_env.vec.transport import packed, unpacked
from entity_env.vec.worker import RestartQuota
from tests.entity_env.vec.frames import assert_same_frames, shown
from tests.entity_env.worlds import Named, Sleeps
from tests.ray_marks import NEEDS_RAY

pytestmark = NEEDS_RAY


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start one cluster for all tests."""
    with cluster("auto", "rollout.ray") as ray:
        yield ray


def test_a_new_cluster_listens_on_this_machine_only(ray: Any) -> None:
    assert ray.get_runtime_context().gcs_address.startswith("127.0.0.1:")
    another = "from entity_env.vec.ray_cluster import cluster\n"
    another += "with cluster('auto', 'rollout.ray') as ray:\n"
    another += "    print(ray.get_runtime_context().gcs_address)"
    command = [sys.executable, "-c", another]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.strip() not in ("", ray.get_runtime_context().gcs_address)


def test_signal_handlers_are_restored_after_a_cluster() -> None:
    program = """
import os, signal
from entity_env.vec.ray_cluster import cluster
with cluster("auto", "rollout.ray"):
    signal.signal(signal.SIGTERM, lambda number, frame: print("told", flush=True))
os.kill(os.getpid(), signal.SIGTERM)
"""
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "told\n"


@contextlib.contextmanager
def elsewhere(
    ray: Any, create_env: Callable[[], Any], num_envs: int = 6, **kwargs: Any
) -> Iterator[ParallelEnvList]:
    new = functools.partial(RayWorker, ray, {"CPU": 0.1})
    quota = RestartQuota(100, 100)
    with contextlib.closing(
        ParallelEnvList(create_env, num_envs, 2, restarts=quota, new_worker=new, **kwargs)
    ) as envs:
        yield envs


@pytest.mark.parametrize("create_env", [Minefield, Duel, MineSweeper, MultiSnake, Locks])
def test_actors_return_the_frames_of_one_process_even_after_losses(
    ray: Any, create_env: Callable[[], Any]
) -> None:
    expected = shown(EnvList(create_env, 6), 30)
    with elsewhere(ray, create_env) as envs:
        assert_same_frames(shown(envs, 30), expected)
        assert all(times.pid > 0 for times in envs.process_times())

    def before(step: int) -> None:
        worker: Any = envs._workers[step % 2]
        if step in (5, 12, 19):
            ray.kill(worker._actor)

    with elsewhere(ray, create_env) as envs:
        assert_same_frames(shown(envs, 30, before), expected)


@pytest.mark.parametrize("name", ["gymnasium:CartPole-v1", "pettingzoo:classic.rps_v2"])
def test_third_party_environments_return_the_frames_of_one_process(ray: Any, name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    world = find_world(name)
    expected = shown(EnvList(world, 6), 30)
    with elsewhere(ray, NamedWorld(name, ".", getattr(world, "num_sides", 1))) as envs:
        assert_same_frames(shown(envs, 30), expected)


def test_fast_steps_are_warned_about_once(
    ray: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ray_worker, "MEASURED_STEPS", 5)
    warned.clear()
    with elsewhere(ray, Named) as envs:
        shown(envs, 12)
    assert caplog.text.count("steps take less than 5 ms, for which workers on this machine") == 1


def test_an_actor_that_hangs_is_lost(ray: Any) -> None:
    with elsewhere(ray, Sleeps, 2, timeout_s=3.0) as envs:
        assert shown(envs, 1)[1].lost.all()


def test_errors_for_other_versions_name_the_host_and_both_versions(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = ray_worker.versions()
    monkeypatch.setattr(ray_worker, "versions", lambda: {**versions, "numpy": "1.0"})
    with (
        pytest.raises(
            WorkerError, match=f"numpy on the host .*: expected 1.0.*got {np.__version__}"
        ),
        elsewhere(ray, Named),
    ):
        pass
    with pytest.raises(WorkerError, match=r"world\.Mine on the host far: expected b, .*got a"):
        ray_worker.check_same_code("far", {"world.Mine": "a", "x": "1"}, {"world.Mine": "b"})


def test_unpacked_arrays_are_writable() -> None:
    message = ["a", {"rows": np.arange(5), "flags": np.ones((2, 1), np.bool_)}]
    got = unpacked(packed(message))
    assert got[0] == "a"
    for name, array in message[1].items():  # type: ignore[attr-defined]
        assert np.array_equal(got[1][name], array)
        got[1][name][:] = 0


def test_frames_are_unchanged_if_hosts_are_killed_and_join() -> None:
    """Both workers move to the host that joined last, each time; in a separate process."""
    program = """
import functools, time
from pathlib import Path
from ray.cluster_utils import Cluster
import ray
from entity_env import EnvList, ParallelEnvList
from entity_env.examples import Minefield
from entity_env.vec.ray_worker import RayWorker
from entity_env.vec.worker import RestartQuota
from tests.entity_env.vec.frames import assert_same_frames, shown
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
hosts = [cluster.add_node(num_cpus=1, resources={"sim": 2}) for _ in range(2)]
ray.init(address=cluster.address, logging_level="ERROR", log_to_driver=False)
new = functools.partial(RayWorker, ray, {"sim": 1})
envs = ParallelEnvList(Minefield, 4, 4, restarts=RestartQuota(3, 3), new_worker=new)

def workers():
    return [(actor["Address"]["NodeID"], actor["Pid"])
            for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]

def before(step):
    if step in (5, 12, 20):
        hosts.append(cluster.add_node(num_cpus=1, resources={"sim": 2}))
        killed = hosts.pop(0)
        pids = [pid for node, pid in workers() if node == killed.node_id]
        assert len(pids) == 2
        cluster.remove_node(killed, allow_graceful=False)
        while any(Path(f"/proc/{pid}").exists() for pid in pids):  # it may outlive its host a bit
            time.sleep(0.1)

assert_same_frames(shown(envs, 30, before), shown(EnvList(Minefield, 4), 30))
nodes = {host.node_id for host in hosts}
in_use = {node for node, _ in workers()}
assert in_use == nodes, (in_use, nodes)
envs.close()
print("the same frames")
ray.shutdown()
cluster.shutdown()
"""
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "the same frames" in ran.stdout, ran.stderr[-3000:]
