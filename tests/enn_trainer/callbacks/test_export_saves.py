"""`checkpoint.export`: the saves of a run are exported beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager
from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.saved_run import read_saved_run
from entity_env.examples import Xor
from entity_env.imports import extras
from tests.enn_trainer.builders import run_small

BEST = 'checkpoint.best=["episodic_reward.mean max"]'


def test_best_without_a_metric_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.export: expected every without best"):
        _ = StateManager(overrides=["checkpoint.export=best"]).config
    assert StateManager(overrides=["checkpoint.export=best", BEST]).config.checkpoint.best


def test_a_missing_package_is_an_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnx" else found(name))
    with pytest.raises(ConfigError, match=r"checkpoint\.export: expected the package onnx"):
        run_small(tmp_path, "checkpoint.export=every", env=Xor, checkpoint_dir=tmp_path / "run")


def test_a_run_without_a_folder_says_that_nothing_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(tmp_path, "checkpoint.export=every", env=Xor)
    assert "nothing is exported, as the run has no folder" in capsys.readouterr().out


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore")  # of MLflow
def test_mlflow_stores_the_newest_export_as_an_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri, folder = (tmp_path / "store").as_uri(), tmp_path / "run"
    settings = ["checkpoint.export=every", f"mlflow_tracking_uri={uri}"]
    manager = run_small(tmp_path, *settings, env=Xor, checkpoint_dir=folder)
    client: Any = MlflowClient(uri)
    artifacts = client.list_artifacts(manager.state.tracker_ids["mlflow"], "export")
    sizes = {f"export/{path.name}": path.stat().st_size for path in (folder / "export").iterdir()}
    assert {file.path: file.file_size for file in artifacts} == sizes
    assert len(sizes) == 5


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("which", ["every", "best"])
def test_an_export_follows_the_saves_and_changes_no_bit_of_the_run(
    tmp_path: Path, which: str
) -> None:
    settings = ["checkpoint.every_seconds=0", BEST]
    for name, more in ("plain", []), ("exported", [f"checkpoint.export={which}"]):
        run_small(tmp_path, *settings, *more, env=Xor, checkpoint_dir=tmp_path / name)
    weights = "step-000000000072/state.agent.safetensors"
    plain, exported = (tmp_path / name / weights for name in ("plain", "exported"))
    assert plain.read_bytes() == exported.read_bytes()
    about = json.loads((tmp_path / "exported" / "export" / "interface.json").read_text())
    newest = "exported" if which == "every" else "exported@best"
    assert about["step"] == read_saved_run(tmp_path / newest).step
