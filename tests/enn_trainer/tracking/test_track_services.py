"""W&B without a network, MLflow in a folder, and what happens when they fail."""

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import ConfigError, StateManager, train
from enn_trainer.cli import run
from enn_trainer.tracking import track_services
from enn_trainer.tracking.track import Guarded, Track
from enn_trainer.tracking.track_services import has_key, metric_name
from entity_env.examples import MoveToOrigin
from entity_env.imports.extras import install_line
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.worlds import Meadow
from tests.fork_server import run_program


@pytest.fixture(autouse=True)
def _nobody_is_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


class Broken:
    """A service that fails whenever it is used, but for the first times."""

    def __init__(self, works_for: int = 0) -> None:
        self.works_for, self.calls, self.videos = works_for, 0, 0

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self.calls += 1
        if self.calls > self.works_for:
            raise ConnectionError("no route\nto host")

    def file(self, step: int, name: str, path: Path) -> None:
        self.videos += 1

    def close(self) -> None:
        raise ConnectionError("still none")


def test_failing_service_is_reported_once_and_retried_later() -> None:
    now, said, broken = [0.0], [], Broken(works_for=1)
    guarded = Guarded("W&B", lambda: broken, said.append, lambda: now[0])
    for _ in range(5):
        guarded.write(1, {})
    assert broken.calls == 2
    now[0] = 61.0
    guarded.write(1, {})
    guarded.close()
    assert broken.calls == 3
    assert said == [
        "W&B failed, training continues without it and retries later: ConnectionError: no route"
    ]


def test_service_that_was_down_at_the_start_is_opened_later() -> None:
    now, said, opened = [0.0], [], []
    up = Broken(works_for=9)

    def connect() -> Broken:
        opened.append(now[0])
        if now[0] < 100:
            raise ConnectionError("nobody there")
        return up

    guarded = Guarded("MLflow", connect, said.append, lambda: now[0])
    for now[0] in (1.0, 59.0, 61.0, 62.0, 120.0, 122.0, 123.0):
        guarded.write(int(now[0]), {})
    assert opened == [0.0, 61.0, 122.0]
    assert up.calls == 2
    assert len(said) == 1


def test_slow_failures_take_a_small_share_of_the_time() -> None:
    now, calls = [0.0], []

    class Slow(Broken):
        def write(self, step: int, scalars: Mapping[str, float]) -> None:
            calls.append(now[0])
            now[0] += 20.0
            raise TimeoutError

    guarded = Guarded("MLflow", Slow, print, lambda: now[0])
    while now[0] < 4000:
        guarded.write(1, {})
        now[0] += 1.0
    assert 20 * len(calls) < 0.06 * now[0]
    assert len(calls) > 5


def test_all_sinks_are_closed_even_if_a_close_fails() -> None:
    closed = []

    class Closes(Broken):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(ConnectionError):
        Track([Closes(), Broken(), Closes()]).close()
    assert len(closed) == 2


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # mlflow's own
def test_dead_server_does_not_delay_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    for name in track_services.PATIENCE:
        monkeypatch.delenv(name, raising=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    start = time.monotonic()
    manager = run_small(tmp_path, f"mlflow_tracking_uri=http://127.0.0.1:{port}")
    assert time.monotonic() - start < 15
    assert manager.state.step == 72
    assert capsys.readouterr().out.count("MLflow failed, training continues without it") == 1
    for name, value in track_services.PATIENCE.items():
        assert os.environ.pop(name) == value


def test_service_that_cannot_be_opened_is_reported_and_skipped(tmp_path: Path) -> None:
    said: list[str] = []

    def refuse() -> Broken:
        raise TimeoutError("30 seconds")

    track = Track([Guarded("W&B", refuse, said.append)])
    track.write(1, {"x": 1.0})
    track.file(1, "eval", tmp_path / "v.mp4")
    track.close()
    assert said == [
        "W&B failed, training continues without it and retries later: TimeoutError: 30 seconds"
    ]


def test_videos_are_sent_only_to_sinks_that_support_files(tmp_path: Path) -> None:
    class Numbers:
        def write(self, step: int, scalars: Mapping[str, float]) -> None: ...
        def close(self) -> None: ...

    shows = Broken()
    Track([Numbers(), Guarded("x", lambda: shows, print)]).file(1, "eval", tmp_path / "v.mp4")
    assert shows.videos == 1


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["init", "log", "finish"])
def test_failed_wandb_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    import wandb

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the service is down")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb if broken == "init" else wandb.Run, broken, fail)
    manager = run_small(tmp_path, "track=true")
    assert manager.state.step == 72
    said = [line for line in capsys.readouterr().out.splitlines() if "W&B failed" in line]
    assert len(said) == 1
    assert "the service is down" in said[0]
    monkeypatch.undo()
    wandb.teardown()


def wandb_configs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the file of each W&B run, once W&B's own process has written all of it."""
    import wandb

    wandb.teardown()
    for path in sorted(folder.rglob("wandb/offline-run-*")):
        (file,) = path.glob("run-*.wandb")  # a second folder of one second has a number behind it
        yield file.stem.removeprefix("run-"), file.read_bytes().decode("latin1")


@pytest.mark.slow
def test_wandb_gets_unchanged_pages(tmp_path: Path) -> None:
    import wandb

    pages = ["eval.episodes=2", "eval.interval=24", "eval.num_envs=2", "eval.capture_replays=true"]
    folder = tmp_path / "c"
    run_small(tmp_path, "track=true", "total_timesteps=24", *pages, checkpoint_dir=folder)
    wandb.teardown()
    retained = {page.read_bytes() for page in (folder / "replays").iterdir()}
    sent = {page.read_bytes() for page in folder.rglob("wandb/offline-run-*/**/*.html")}
    assert retained
    assert sent == retained


@pytest.mark.slow
def test_offline_run_is_resumed_with_full_names_and_the_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new W&B run at every restart, and `netd_model` for `net.d_model`, were known defects."""
    folder = tmp_path / "c"
    first = run_small(tmp_path, "track=true", "total_timesteps=24", checkpoint_dir=folder)
    again = run_small(tmp_path, checkpoint_dir=folder)
    assert again.state.restart == 1
    assert again.state.tracker_ids == first.state.tracker_ids
    written = list(wandb_configs(tmp_path))
    assert [run_id for run_id, _ in written] == 2 * [first.state.tracker_ids["wandb"]]
    for _, text in written:
        for name in ("net.d_model", "optim.lr", "code.commit", "code.dirty", "command"):
            assert name in text
        assert "losses/entropy" in text
    out = capsys.readouterr().out
    assert out.count("no API key, metrics stay on this machine") == 2
    assert "wandb:" not in out


@pytest.mark.slow
def test_wandb_is_imported_only_if_requested(tmp_path: Path) -> None:
    """No command imports it; the fork server has imported all commands."""
    program = (
        "import sys\nfrom enn_trainer import StateManager, train\n"
        "from tests.enn_trainer.worlds import Meadow\n"
        f"train(StateManager(overrides={[*SMALL, f'data_dir={tmp_path}']!r}), Meadow)\n"
        "assert not {'wandb', 'mlflow', 'matplotlib'} & set(sys.modules)\n"
    )
    run_program(["-c", program], check=True)


def test_api_key_is_found_in_environment_and_netrc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not has_key()
    netrc = tmp_path / "no-netrc"
    netrc.write_text("machine api.wandb.ai\n  login user\n  password abc\n")
    netrc.chmod(0o600)
    assert has_key()
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org:8080")
    assert not has_key()
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    assert has_key()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # mlflow's own
def test_mlflow_gets_parameters_and_metrics_of_one_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    folder = tmp_path / "c"
    options = [f"mlflow_tracking_uri={uri}", "name=trial"]
    run_small(tmp_path, *options, "total_timesteps=24", checkpoint_dir=folder)
    manager = run_small(tmp_path, checkpoint_dir=folder)
    client: Any = MlflowClient(uri)
    experiment = client.get_experiment_by_name("trial")
    (result,) = client.search_runs([experiment.experiment_id])
    assert result.info.run_id == manager.state.tracker_ids["mlflow"]
    assert result.info.status == "FINISHED"
    assert result.data.params["net.d_model"] == "8"
    assert "code.commit" in result.data.tags
    history = client.get_metric_history(result.info.run_id, "losses/entropy")
    assert [metric.step for metric in history] == [24, 48, 72]
    assert {"trace/rollout/own", "trace/rollout/act"} <= result.data.metrics.keys()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # mlflow's own
@pytest.mark.parametrize(("what", "suffix"), [("video", "mp4"), ("replay", "html")])
def test_videos_and_pages_of_evaluations_reach_a_service(
    what: str, suffix: str, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("imageio_ffmpeg", reason="the extra video")
    from mlflow import MlflowClient

    uri = (tmp_path / "store").as_uri()
    films = ["eval.steps=4", "eval.interval=48", "eval.num_envs=2", f"eval.capture_{what}s=true"]
    options = [f"mlflow_tracking_uri={uri}", "total_timesteps=24", *films]
    manager = run_small(tmp_path, *options, env=MoveToOrigin)
    client, run_id = MlflowClient(uri), manager.state.tracker_ids["mlflow"]
    (folder,) = client.list_artifacts(run_id, f"eval/{what}/0")
    assert folder.path == f"eval/{what}/0/step-000000000000.{suffix}"
    assert folder.file_size > 1000


@pytest.mark.parametrize(
    ("setting", "package"), [("track=true", "wandb"), ("mlflow_tracking_uri=x", "mlflow")]
)
def test_missing_package_of_a_service_is_reported_before_the_run_starts(
    setting: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    manager = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}", setting])
    with pytest.raises(ConfigError) as error:
        train(manager, Meadow)
    field, message = setting.partition("=")[0], f"expected the package {package}"
    assert (
        str(error.value) == f"{field}: {message}, which is not installed; {install_line(package)}"
    )
    assert not (tmp_path / "runs").exists()


def test_run_without_tensorboard_says_once_that_its_files_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.chdir(tmp_path)
    assert run(["train", "Xor", *SMALL, "total_timesteps=48", "--checkpoint-dir", "run"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if "tensorboard" in line]
    missing = "expected the package tensorboard, which is not installed"
    line = f"TensorBoard files are not written: {missing}; {install_line('tensorboard')}"
    assert said == [line]
    assert Path("run/metrics.jsonl").stat().st_size
    assert not list(Path("run").glob("events.out.*"))


def test_tags_become_valid_mlflow_names() -> None:
    assert metric_name("actions/a b/100% up") == "actions/a b/100. up"


def test_run_file_describes_the_run(tmp_path: Path) -> None:
    manager = run_small(tmp_path)
    report = json.loads((tmp_path / "runs" / manager.state.run_name / "run.json").read_text())
    assert report["config"]["net.d_model"] == 8
    assert report["config"]["optim.bs"] == 16
    assert {"command", "code.commit", "code.dirty", "restart"} <= report.keys()
