"""Evaluations as tasks of a Ray cluster."""

import builtins
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli import run as enn
from enn_trainer.evaluation.remote import RayEvaluator
from enn_trainer.run.session import TrainResult
from enn_trainer.run.trainer import Trainer
from entity_env.environment import Environment
from entity_env.errors import ClusterLostError, WorkerError
from entity_env.examples import Xor
from entity_env.vec import ray_cluster
from entity_env.vec.ray_cluster import cluster
from tests.enn_trainer.evaluation.late_evaluations import SETTINGS, trained
from tests.ray_marks import NEEDS_RAY

pytestmark = NEEDS_RAY


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """Start one cluster for all tests."""
    before = builtins.print, os.environ.get("PYTHONBREAKPOINT")
    with cluster("auto", "eval.ray") as ray:
        yield ray
        assert (builtins.print, os.environ.get("PYTHONBREAKPOINT")) == before


def test_cluster_evaluation_matches_in_process_results(tmp_path: Path) -> None:
    here, heard_here = trained(tmp_path / "here")
    _, waited = trained(tmp_path / "waited", "eval.ray=auto")
    late, heard_late = trained(tmp_path / "late", "eval.ray=auto", "eval.lag=3")
    assert waited.evals == heard_here.evals
    assert [m for _, m in heard_late.evals] == [m for _, m in heard_here.evals]
    assert (late.eval, late) == (here.eval, here)


def dies(folder: str, times: int) -> type[Environment]:
    """Return an environment that kills its evaluation process a number of times in total."""

    class Dies(Xor):
        def __init__(self, here: bool = False) -> None:
            super().__init__()
            deaths = len(list(Path(folder).iterdir()))
            if not here and deaths < times:
                Path(folder, str(deaths)).touch()
                os._exit(1)

    return Dies


def evaluated(folder: Path, times: int) -> TrainResult:
    """Train in an environment that kills evaluations a number of times."""
    folder.mkdir()
    few = ["eval.env.kwargs={}", 'env.kwargs={"here": true}', "total_timesteps=32"]
    one = [text for text in SETTINGS if "suites" not in text]
    overrides = [*one, *few, "eval.ray=auto", "eval.lag=2"]
    manager = StateManager(checkpoint_dir=folder.parent / f"run-{folder.name}", overrides=overrides)
    with Trainer(manager, dies(str(folder), times)) as trainer:
        return trainer.run()


def test_lost_evaluation_is_retried(tmp_path: Path) -> None:
    lost, undisturbed = evaluated(tmp_path / "lost", 2), evaluated(tmp_path / "none", 0)
    assert len(list((tmp_path / "lost").iterdir())) == 2
    assert lost.eval == undisturbed.eval


def test_evaluation_lost_on_every_attempt_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"^eval\.ray: expected .* failed 4 times"):
        evaluated(tmp_path / "lost", 1000)


WORLD = """
from entity_env.examples import Xor

class Mine(Xor):
    def __init__(self, unused: int = 0) -> None:
        super().__init__()
"""


class _Gone:
    """Watch of a head that is gone."""

    def check(self, is_sure: bool) -> None:
        raise ClusterLostError("eval.ray: the head of the cluster is gone")


def test_lost_cluster_head_is_an_error(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    player = RayEvaluator(ray, torch.device("cpu"))
    under_way = player(cloudpickle.dumps(None), ["a"])
    monkeypatch.setattr(ray_cluster, "_watches", [_Gone()])
    with pytest.raises(ClusterLostError):
        under_way.results(lambda: False, lambda suite, share: None)
    under_way.cancel()
    with pytest.raises(ClusterLostError):
        player(b"", ["a"])


def test_ray_option_gives_the_same_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = tmp_path / "a_world.py"
    world.write_text(WORLD)
    run, reports = tmp_path / "run", []
    settings = [text for text in SETTINGS if not text.startswith(("eval", "checkpoint"))]
    flags = ["--checkpoint-dir", str(run)]
    assert enn(["train", f"{world}:Mine", *settings, *flags]) in (None, 0)
    ask = ["eval", str(run), "--env", f"{world}:Mine", "--episodes", "32", "--suite", "unused=1"]
    ask += ["--vary", "unused=int 0 3", "--by", "unused"]
    for name, more in ("here", []), ("there", ["--ray", "auto"]):
        out = tmp_path / f"{name}.json"
        capsys.readouterr()
        assert enn([*ask, "--baseline", "random", "--out", str(out), *more]) in (None, 0)
        shown = capsys.readouterr().out.replace(str(out), "out")
        reports.append((json.loads(out.read_text()), shown))
    assert reports[0] == reports[1]
    assert len(reports[0][0]["suites"]) == 4


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is only read."""
    folder = tmp_path_factory.mktemp("remote") / "run"
    trained(folder)
    return folder


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--ray", "nowhere"], "--ray: expected auto or HOST:PORT, got nowhere"),
        (["--ray", "auto", "--video", "a.gif"], "--video: cannot be combined with --ray"),
        (["--ray", "auto", "--replay", "a.html"], "--replay: cannot be combined with --ray"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], problem: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(["eval", str(run_dir), *options]) == 2
    assert problem in capsys.readouterr().err
