"""A save is complete or absent; what is damaged is found and named."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from enn_trainer import CheckpointError, load_checkpoint
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints import manifest, writer
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from tests.enn_trainer.checkpoints.builders import NEWEST

FILES = {"config.ron": b"(a: 1)", "state.ron": b"\x80", "empty": b""}


def test_saved_files_round_trip(tmp_path: Path) -> None:
    saved = writer.save(tmp_path, 12800, FILES, "test")
    assert saved.path.name == "step-000000012800"
    found = find(tmp_path)
    assert {name: found.read(name) for name in FILES} == FILES
    assert found.step == 12800
    assert found.manifest["why"] == "test"


def test_a_save_leaves_no_temporary_files(tmp_path: Path) -> None:
    writer.save(tmp_path, 1, FILES, "test")
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000001"]


def test_verifying_a_save_that_is_deleted_meanwhile_raises_save_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged, so that whoever looks for a save looks again."""
    path = writer.save(tmp_path, 1, FILES, "test").path
    real = saves.read_manifest

    def deleted(manifest_path: Path) -> object:
        content = real(manifest_path)
        shutil.rmtree(path)
        return content

    monkeypatch.setattr(saves, "read_manifest", deleted)
    with pytest.raises(saves.SaveGone, match="deleted or replaced while it was read"):
        saves.verify(path)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_every_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    path = writer.save(tmp_path, 1, FILES, "test").path / name
    original = path.read_bytes()
    for i in range(len(original)):
        damaged = bytearray(original)
        damaged[i] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name):
            find(tmp_path)
    path.write_bytes(original)
    find(tmp_path)


@pytest.mark.parametrize("name", ["config.ron", "manifest.json"])
def test_truncation_is_found(tmp_path: Path, name: str) -> None:
    path = writer.save(tmp_path, 1, FILES, "test").path / name
    original = path.read_bytes()
    for size in range(len(original)):
        path.write_bytes(original[:size])
        with pytest.raises(CheckpointError, match=name):
            find(tmp_path)


def test_newest_valid_save_is_used_and_the_damaged_one_named(tmp_path: Path) -> None:
    writer.save(tmp_path, 1, FILES, "test")
    newer = writer.save(tmp_path, 2, FILES, "test")
    (newer.path / "config.ron").unlink()
    said: list[str] = []
    found = RunDir(tmp_path).newest(said.append)
    assert found is not None
    assert found.step == 1
    assert "step-000000000002" in said[0]
    assert "config.ron" in said[0]


def test_foreign_directories_are_ignored(tmp_path: Path) -> None:
    writer.save(tmp_path, 1, FILES, "test")
    (tmp_path / "best-step000000000006").mkdir()
    (tmp_path / "step-9").mkdir()
    (tmp_path / ".writing-step-000000000009-1").mkdir()
    assert find(tmp_path).step == 1


def test_saving_twice_at_one_step_keeps_the_first(tmp_path: Path) -> None:
    first = writer.save(tmp_path, 1, FILES, "first")
    second = writer.save(tmp_path, 1, FILES, "second")
    assert first.path == second.path
    assert find(tmp_path).manifest["why"] == "first"


def test_a_damaged_save_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = writer.save(tmp_path, 1, FILES, "first").path
    (path / "empty").unlink()
    assert writer.save(tmp_path, 1, FILES, "second").manifest["why"] == "second"


def test_a_save_from_the_future_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "FORMAT_VERSION", 2)
    path = writer.save(tmp_path, 1, FILES, "test").path
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="newer version"):
        saves.verify(path)


def test_no_file_outside_the_checkpoint_is_read(tmp_path: Path) -> None:
    path = writer.save(tmp_path, 1, FILES, "test").path
    content = json.loads((path / "manifest.json").read_text())
    content["files"]["../secret"] = {"size": 0, "sha256": ""}
    content["sha256"] = manifest.own_hash(content)
    (path / "manifest.json").write_text(json.dumps(content, indent=1))
    with pytest.raises(CheckpointError, match="outside"):
        saves.verify(path)


@pytest.mark.parametrize("path", ["absent", "empty"])
def test_loading_from_an_empty_folder_is_an_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=path):
        find(tmp_path / path)


def test_a_save_that_must_be_new_does_not_replace_an_existing_save(tmp_path: Path) -> None:
    """Not even a damaged one: it is of another run."""
    writer.save(tmp_path, 1, FILES, "first")
    (tmp_path / saves.save_name(2)).mkdir()
    for step in (1, 2):
        with pytest.raises(CheckpointError, match=f"step-{step:012d}: expected a new checkpoint"):
            writer.save(tmp_path, step, FILES, "second", if_exists="raise")
    assert saves.verify(tmp_path / saves.save_name(1)).manifest["why"] == "first"
    assert writer.save(tmp_path, 3, FILES, "third", if_exists="raise").step == 3


def test_a_requested_save_creates_its_folder_and_reports_an_existing_save(tmp_path: Path) -> None:
    manager, said = load_checkpoint(NEWEST), list[str]()
    manager.say = said.append
    for _ in range(2):
        manager.checkpoint(str(tmp_path / "not" / "there"))
    assert not said
    (saved,) = RunDir(tmp_path / "not" / "there").saved_paths()
    before = saves.verify(saved).manifest
    with torch.no_grad():
        next(iter(manager.state.agent.parameters())).add_(1.0)
    manager.checkpoint(str(saved.parent))
    assert said == [f"{saved}: exists already, with other weights; it is kept"]
    assert saves.verify(saved).manifest == before


@pytest.mark.parametrize("step", [0, 1, 12800, 10**12, 2**63 - 1])
def test_the_name_of_a_save_contains_its_step(step: int) -> None:
    assert saves.step_of(Path("run") / saves.save_name(step)) == step
    assert saves.step_of(Path("." + saves.save_name(step))) is None


def test_flip_that_changes_no_value_of_the_manifest_is_found(tmp_path: Path) -> None:
    path = writer.save(tmp_path, 8, {"a": b""}, "test", {"metrics": {"x": 1e-05}}).path
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace("1e-05", "1E-05"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
        saves.verify(path)
