"""Training with environments on a Ray cluster."""

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import env_factory
from entity_env import EnvList, VecEnv
from entity_env.errors import EntityEnvError
from entity_env.examples import Minefield
from entity_env.examples.minefield_vec import VecMinefield
from entity_env.vec.ray_cluster import cluster
from entity_env.vec.ray_worker import RayWorker
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.losing_workers import with_losses_and_without
from tests.enn_trainer.resuming import assert_same
from tests.fork_server import ENN, run_program, start_program
from tests.ray_marks import NEEDS_RAY

pytestmark = NEEDS_RAY
RAY = ("rollout.ray=auto", "rollout.ray_resources={CPU: 0.5}", "rollout.processes=2")


@pytest.fixture(scope="module")
def _in_a_cluster() -> Iterator[None]:
    """Start one cluster, which all runs of this process join."""
    with cluster("auto", "rollout.ray"):
        yield


@pytest.fixture
def _without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the token of the cluster of this process, as programs start others."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)


@pytest.mark.usefixtures("_in_a_cluster")
def test_a_run_on_a_cluster_learns_the_same_bits_as_one_process(tmp_path: Path) -> None:
    elsewhere = run_small(tmp_path / "ray", *RAY, env=Minefield)
    here = run_small(tmp_path / "here", env=Minefield)
    assert_same(elsewhere.state, here.state)


@pytest.mark.usefixtures("_in_a_cluster")
def test_a_run_that_loses_actors_learns_the_same_bits(tmp_path: Path) -> None:
    kinds = {"kind": RayWorker, "kill": lambda worker: worker._ray.kill(worker._actor)}
    disturbed, undisturbed, losses = with_losses_and_without(tmp_path, 5, *RAY, **kinds)
    assert losses >= 5
    assert_same(disturbed, undisturbed)


@pytest.mark.usefixtures("_in_a_cluster")
def test_invalid_ray_settings_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.ray: .*VecMinefield, which steps in"):
        run_small(tmp_path, *RAY, env=VecMinefield)
    with pytest.raises(ConfigError, match=r"rollout\.ray: expected a cluster with arm 2, for 2"):
        run_small(tmp_path, *RAY[::2], "rollout.ray_resources={arm: 1}", env=Minefield)


WORLD = """
import time
from entity_env.examples import Minefield

class Slow(Minefield):
    def act(self, actions):
        time.sleep(0.01)
        return super().act(actions)
"""


def children(pid: int) -> dict[int, str]:
    """Return the names of the programs that a process started, by process id."""
    command = ["pgrep", "-P", str(pid), "-l"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    pairs = (line.split(maxsplit=1) for line in ran.stdout.splitlines())
    return {int(child): name for child, name in pairs}


@pytest.mark.usefixtures("_without_token")
def test_a_lost_cluster_head_ends_the_run_with_one_line_and_a_save(tmp_path: Path) -> None:
    (tmp_path / "slow_world.py").write_text(WORLD)
    saves = tmp_path / "saves"
    settings = [*SMALL, *RAY, "total_timesteps=10000000", "checkpoint.every_seconds=3600"]
    run = start_program(
        [*ENN, "train", "slow_world.py:Slow", *settings, "--checkpoint-dir", str(saves)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until_s = time.monotonic() + 120
        while len(updates(saves)) < 3:
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < until_s
            time.sleep(0.2)
        started = children(run.pid)
        for pid, name in started.items():
            if name in ("gcs_server", "raylet"):
                os.kill(pid, signal.SIGKILL)
        _, errors = run.communicate(timeout=90)
    finally:
        run.kill()
    assert run.returncode == 1, errors
    assert len(re.findall(r"the head of the cluster at 127\.0\.0\.1:\d+ is gone", errors)) == 1
    assert "Traceback" not in errors
    save = max(saves.glob("step-*"))
    manifest = json.loads((save / "manifest.json").read_text())
    assert (manifest["why"], manifest["step"]) == ("failed", updates(saves)[-1]["step"])
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def updates(saves: Path) -> list[dict[str, Any]]:
    """Return the metrics of the updates that a run has taken."""
    path = saves / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if "step" in line]


def own_factory(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
    """Make environments in this process."""
    return EnvList(Minefield, num_envs, first)


def handed_on(config: EnvConfig, num_envs: int, processes: int, first: int) -> VecEnv:
    """Make environments as the trainer does."""
    return env_factory(Minefield)(config, num_envs, processes, first)


@pytest.mark.usefixtures("_in_a_cluster")
def test_a_factory_of_local_environments_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.ray: .*got EnvList, which steps in"):
        run_small(tmp_path, *RAY, env=own_factory)
    assert run_small(tmp_path, *RAY, "total_timesteps=24", env=handed_on).state.step == 24


class Locked(Minefield):
    """World that cannot be sent."""

    def __init__(self, lock: Any = None) -> None:
        super().__init__()


@pytest.mark.usefixtures("_in_a_cluster")
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (RAY, r"^env: expected an environment .* at lock; create it in the constructor"),
        (
            ("eval.ray=auto", "eval.steps=1"),
            r"^eval\.ray: expected an environment .*\.lock; create it in the constructor",
        ),
    ],
)
def test_an_unpicklable_environment_is_reported_with_its_attribute(
    tmp_path: Path, settings: tuple[str, ...], problem: str
) -> None:
    locked = partial(Locked, lock=threading.Lock())
    with pytest.raises((ConfigError, EntityEnvError), match=problem):
        run_small(tmp_path, *settings, env=locked)


READS_A_FILE = """
from pathlib import Path
from entity_env.examples import Minefield

class ReadsFile(Minefield):
    def __init__(self) -> None:
        super().__init__(max_mines=int(Path("levels/mines.txt").read_text()))
"""


@pytest.mark.usefixtures("_without_token")
def test_rollouts_and_evaluations_have_the_files_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "a_world.py").write_text(READS_A_FILE)
    (tmp_path / "levels").mkdir()
    (tmp_path / "levels" / "mines.txt").write_text("3")
    evaluation = ["eval.ray=auto", "eval.steps=4", "eval.num_envs=2", "eval.lag=1"]
    settings = [*SMALL, *RAY, *evaluation, 'rollout.ray_files=["levels"]', "eval.interval=24"]
    run = run_program(
        [*ENN, "train", "a_world.py:ReadsFile", *settings, "--checkpoint-dir", "run"],
        cwd=tmp_path,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stderr
    lines = updates(tmp_path / "run")
    assert lines[-1]["step"] == 72
    assert any(name.startswith("eval/") for line in lines for name in line)
