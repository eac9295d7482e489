"""A save is complete or absent; what is damaged is found and named."""

import json
from pathlib import Path

import pytest

from enn_trainer import CheckpointError
from enn_trainer.checkpoints import checkpoint as saves

FILES = {"config.ron": b"(a: 1)", "state.ron": b"\x80", "empty": b""}


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    saved = saves.save(tmp_path, 12800, FILES, "test")
    assert saved.path.name == "step-000000012800"
    found = saves.find(tmp_path)
    assert {name: found.read(name) for name in FILES} == FILES
    assert found.step == 12800
    assert found.manifest["why"] == "test"


def test_a_save_leaves_nothing_beside_it(tmp_path: Path) -> None:
    saves.save(tmp_path, 1, FILES, "test")
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000000001"]


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_every_flipped_byte_is_found(tmp_path: Path, name: str) -> None:
    path = saves.save(tmp_path, 1, FILES, "test").path / name
    original = path.read_bytes()
    for i in range(len(original)):
        damaged = bytearray(original)
        damaged[i] ^= 0x01
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name):
            saves.find(tmp_path)
    path.write_bytes(original)
    saves.find(tmp_path)


@pytest.mark.parametrize("name", ["config.ron", "manifest.json"])
def test_truncation_is_found(tmp_path: Path, name: str) -> None:
    path = saves.save(tmp_path, 1, FILES, "test").path / name
    original = path.read_bytes()
    for size in range(len(original)):
        path.write_bytes(original[:size])
        with pytest.raises(CheckpointError, match=name):
            saves.find(tmp_path)


def test_newest_valid_save_is_used_and_the_damaged_one_named(tmp_path: Path) -> None:
    saves.save(tmp_path, 1, FILES, "test")
    newer = saves.save(tmp_path, 2, FILES, "test")
    (newer.path / "config.ron").unlink()
    said: list[str] = []
    found = saves.newest(tmp_path, said.append)
    assert found is not None
    assert found.step == 1
    assert "step-000000000002" in said[0]
    assert "config.ron" in said[0]


def test_foreign_directories_are_ignored(tmp_path: Path) -> None:
    saves.save(tmp_path, 1, FILES, "test")
    (tmp_path / "best-step000000000006").mkdir()
    (tmp_path / "step-9").mkdir()
    (tmp_path / ".writing-step-000000000009-1").mkdir()
    assert saves.find(tmp_path).step == 1


def test_saving_twice_at_one_step_keeps_the_first(tmp_path: Path) -> None:
    first = saves.save(tmp_path, 1, FILES, "first")
    second = saves.save(tmp_path, 1, FILES, "second")
    assert first.path == second.path
    assert saves.find(tmp_path).manifest["why"] == "first"


def test_a_damaged_save_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    path = saves.save(tmp_path, 1, FILES, "first").path
    (path / "empty").unlink()
    assert saves.save(tmp_path, 1, FILES, "second").manifest["why"] == "second"


def test_a_save_from_the_future_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saves, "FORMAT_VERSION", 2)
    path = saves.save(tmp_path, 1, FILES, "test").path
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="newer version"):
        saves.verify(path)


def test_no_file_outside_the_checkpoint_is_read(tmp_path: Path) -> None:
    path = saves.save(tmp_path, 1, FILES, "test").path
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../secret"] = {"size": 0, "sha256": ""}
    del manifest["sha256"]
    manifest["sha256"] = saves._own_hash(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest, indent=1))
    with pytest.raises(CheckpointError, match="outside"):
        saves.verify(path)


@pytest.mark.parametrize("path", ["absent", "empty"])
def test_nothing_to_load_is_an_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=path):
        saves.find(tmp_path / path)


def test_flip_that_changes_no_value_of_the_manifest_is_found(tmp_path: Path) -> None:
    path = saves.save(tmp_path, 8, {"a": b""}, "test", {"metrics": {"x": 1e-05}}).path
    text = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(text.replace("1e-05", "1E-05"))
    with pytest.raises(CheckpointError, match=r"manifest\.json: damaged"):
        saves.verify(path)
