"""Runs of several ranks with environments or evaluations on a Ray cluster: one process's bits."""

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, Trainer, load_checkpoint
from enn_trainer.base.group import Group
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.lookup import resolve
from enn_trainer.runtime.exchange import digest_of
from entity_env.examples import Duel, Minefield, Xor
from entity_env.vec.ray_cluster import cluster
from tests.enn_trainer.evaluation.late_evaluations import SETTINGS, Heard
from tests.enn_trainer.losing_workers import StopsAt
from tests.enn_trainer.run.forked_ranks import run_hosts, run_ranks
from tests.enn_trainer.run.small_runs import OPTIONS, failure, run
from tests.enn_trainer.run.small_runs import SMALL as FEW
from tests.enn_trainer.run.thread_group import in_ranks
from tests.ray_marks import NEEDS_RAY

pytestmark = NEEDS_RAY
ON_RAY = ["rollout.ray=auto", "rollout.processes=2", "rollout.ray_resources={CPU: 0.1}"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the token of the cluster of this process, as programs start others."""
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Start one cluster for ranks that are threads."""
    with cluster("auto", "rollout.ray") as ray:
        yield ray


@pytest.mark.parametrize(
    ("env", "settings"), [(Minefield, OPTIONS["memory"]), (Duel, ["rollout.num_envs=10"])]
)
def test_a_run_on_a_cluster_resumes_in_one_process_bit_for_bit(
    ray: Any, tmp_path: Path, env: Any, settings: list[str]
) -> None:
    (expected,) = run(1, env, settings)
    run(2, env, [*settings, *ON_RAY], tmp_path / "run", one=True)
    (resumed,) = run(1, env, [*settings, *ON_RAY], tmp_path / "run")
    assert resumed._replace(metrics={}) == expected._replace(metrics={})


def test_workers_of_each_rank_give_the_bits_of_one_process() -> None:
    (expected,) = run(1, Minefield, [])
    assert run(2, Minefield, ["rollout.processes=2"]) == [expected] * 2


def test_a_cluster_that_is_too_small_for_the_workers_of_all_ranks_is_refused(ray: Any) -> None:
    size = ray.cluster_resources()["CPU"]
    settings = [*ON_RAY, f"rollout.ray_resources={{CPU: {size / 4}}}", "rollout.processes=3"]
    message = f"expected a cluster with CPU {1.5 * size:g}, for 6 workers of {size / 4:g}, got"
    assert failure(settings).startswith(f"rollout.ray: {message} {size:g}; add hosts")


def test_remote_evaluations_have_the_metrics_and_best_saves_of_one_process(
    ray: Any, tmp_path: Path
) -> None:
    def evaluated(size: int) -> list[tuple[Any, ...]]:
        def work(group: Group | None = None) -> tuple[Any, ...]:
            heard, late = Heard(), ["scale.shards=2", "eval.ray=auto", "eval.lag=1"]
            folder = tmp_path / str(size)
            manager = StateManager(checkpoint_dir=folder, overrides=[*SETTINGS, *late])
            with Trainer(manager, Xor, callbacks=[heard]) as trainer:
                result = trainer.run()
                return heard.evals, result.eval, digest_of(trainer.state.agent)

        return [work()] if size == 1 else in_ranks(size, work)

    (expected,) = evaluated(1)
    assert evaluated(2) == [expected] * 2
    best = [saves.verify(resolve(tmp_path / f"{size}@best", print)) for size in (1, 2)]
    assert best[0].step == best[1].step
    assert best[0].read("state.agent.safetensors") == best[1].read("state.agent.safetensors")


def on_ray(what: str, *settings: str) -> tuple[str, list[int]]:
    """Run two ranks until they fail; return their lines, and processes."""
    done = run_ranks("torch_on_ray", what, *FEW, *ON_RAY, *settings)
    assert done.returncode == 1, done.stderr
    lines = done.stdout + done.stderr
    started = " ".join(re.findall(r"^rank 0 at \S+ has \[(.+)\]$", lines, re.MULTILINE))
    return lines, [int(pid) for pid in re.findall(r"\d+", started)]


def assert_gone(processes: list[int]) -> None:
    """Raise if some are there after seconds."""
    until_s = time.monotonic() + 10
    assert processes
    while left := [pid for pid in processes if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < until_s, left
        time.sleep(0.1)


def test_ranks_join_a_given_cluster_or_start_a_shared_one(
    ray: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ray.get_runtime_context().gcs_address
    monkeypatch.setenv("GIVEN_CLUSTER", given)
    lines, processes = on_ray("rank 1 raises")
    too_small = "rollout.ray: expected a cluster with arm 2, for 4 workers of 0.5, got 0; add hosts"
    assert lines.count(too_small) == 2
    (expected,) = run(1, Minefield, [])
    assert f"rank 0: {expected.digest} with 3 workers" in lines  # one to ask, and two
    assert f"rank 1: {expected.digest} with 4 workers" in lines  # of which one was lost
    addresses = re.findall(r"^rank \d at (\S+) has", lines, re.MULTILINE)
    assert addresses[:2] == [given, given]
    assert len({*addresses[2:]} - {given}) == 1
    named = re.search(r"error: rank 0 .* rank 1 .* failed with ValueError: no such thing", lines)
    assert named, lines
    assert_gone(processes)


@pytest.mark.usefixtures("_without_token")
def test_a_killed_rank_ends_all_and_they_resume_on_another_cluster_with_the_same_bits() -> None:
    saved = ["checkpoint.every_seconds=0", "--checkpoint-dir", "run", "--resume-or-start"]
    settings = [*FEW, *ON_RAY, *saved]
    (done,) = run_hosts("torch_run", *settings, ranks=2, number=signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert "its episodes go on" in done.stdout
    (expected,) = run(1, Minefield, [])
    agent = load_checkpoint("run").state.agent
    assert digest_of(agent) == expected.digest


@pytest.mark.usefixtures("_without_token")
def test_a_failure_of_the_rank_that_started_the_cluster_is_reported_by_the_other() -> None:
    lines, processes = on_ray("rank 0 raises", "--checkpoint-dir", "run")
    assert "failed, saved run/step-000000000056" in lines
    assert re.search("error: rank 1 .* rank 0 .* failed with ValueError: no such thing", lines)
    assert_gone(processes)


@pytest.mark.usefixtures("_without_token")
def test_a_lost_cluster_head_ends_all_ranks_with_a_save_of_the_last_update() -> None:
    long = "total_timesteps=10000000"
    lines, _ = on_ray("the head goes away", "--checkpoint-dir", "run", long)
    assert re.search(r"rollout\.ray: the head of the cluster at 127\.0\.0\.1:\d+ is gone", lines)
    save = max(Path("run").glob("step-*"))
    manifest = json.loads((save / "manifest.json").read_text())
    updates = map(json.loads, Path("run/metrics.jsonl").read_text().splitlines())
    steps = [line["step"] for line in updates if "step" in line]
    assert (manifest["why"], manifest["step"]) == ("failed", steps[-1])
    manager = StateManager(overrides=[*FEW, long])
    with Trainer(manager, Minefield, callbacks=[StopsAt(steps[-1])]) as trainer:
        trainer.run()
        assert digest_of(load_checkpoint(save).state.agent) == digest_of(trainer.state.agent)
