"""The manifest of a save: every field is checked where it is read, once."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from enn_trainer import CheckpointError, load_agent, load_checkpoint
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.manifest import own_hash
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import run
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused
from tests.soak.small_saves import write_whole


def at(run_dir: Path, step: int) -> Path:
    return run_dir / checkpoint.save_name(step)


def rewrite(save_dir: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as its writer would have: its own hash is right again."""
    file = save_dir / "manifest.json"
    content = json.loads(file.read_text())
    change(content)
    content["sha256"] = own_hash(content)
    file.write_text(json.dumps(content, indent=1))


BAD: list[tuple[str, Any]] = [
    ("packages", None),
    ("packages", []),
    ("packages", {"torch": 2}),
    ("packages", {"torch": {"a": []}}),
    ("python", None),
    ("python", 3.11),
    ("command", ["enn"]),
    ("host", {}),
    ("git", 7),
    ("run_name", None),
    ("created", "yesterday"),
    ("created", "2026-01-01T00:00:00Z\n"),
    ("why", "w" * 20_000),
    ("time_used", "long"),
    ("time_used", -1.0),
    ("time_used", float("inf")),
    ("time_used", True),
    ("metrics", None),
    ("metrics", []),
    ("metrics", {"a": "b"}),
    ("metrics", {"a": None}),
    ("metrics", {"a": float("nan")}),
    ("metrics", {"a": 10**400}),
    ("metrics", {"episodic_reward.mean": [1]}),
    ("seed", "one"),
    ("seed", float("inf")),
    ("seed", 10**600),
    ("seed", 10**4000),
    ("config_version", -1),
    ("config_version", "5"),
    ("extra", {"a": 1}),
    ("extra", [[[]]]),
    ("extra", float("nan")),
    ("extra", "e" * 20_000),
    ("step", 2**63),
    ("files", {"state.ron": {"size": 1, "sha256": "short"}}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("field", "value"), BAD)
def test_manifest_with_a_wrong_field_is_damaged_for_every_command(
    field: str, value: object, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = at(run_dir, 72)
    rewrite(newest, lambda content: content.update({field: value}))
    for typed in (["show", str(newest)], ["diff", str(newest), str(at(run_dir, 48))]):
        error = refused(["checkpoints", *typed], capsys)
        assert f"{newest}/manifest.json: damaged: " in error
        assert field in error
    assert run(["checkpoints", "list", str(run_dir)]) == 0
    assert f"{newest.name}  damaged" in capsys.readouterr().out
    assert run(["checkpoints", "prune", str(run_dir), "--keep", "1"]) == 0
    assert newest.is_dir()
    assert at(run_dir, 48).is_dir(), "the newest valid one"
    assert not at(run_dir, 24).exists()
    with pytest.raises(CheckpointError, match=newest.name):
        load_agent(newest)
    assert load_checkpoint(run_dir).state.step == 48


@pytest.mark.parametrize("value", [None, True, 3, 0.5, "text"])
def test_unknown_fields_of_later_versions_are_shown(
    value: object, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another field in a manifest of this format is no reason to lose a save."""
    rewrite(at(run_dir, 72), lambda content: content.update(weather=value))
    assert run(["checkpoints", "show", str(run_dir)]) == 0
    assert ("weather" in capsys.readouterr().out) == (value is not None)


OPTIONAL = ("packages", "python", "git", "command", "host", "run_name", "seed", "config_version")


@pytest.mark.parametrize(
    "fields", [*((name,) for name in (*OPTIONAL, "metrics", "time_used")), OPTIONAL]
)
def test_optional_fields_may_be_missing(
    fields: tuple[str, ...], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = at(run_dir, 72)
    for name in fields:
        rewrite(newest, lambda content, name=name: content.pop(name))
    for typed in (
        ["show", str(newest)],
        ["diff", str(newest), str(at(run_dir, 48))],
        ["list", str(run_dir)],
        ["list", str(run_dir), "--json"],
        ["verify", str(run_dir)],
        ["prune", str(run_dir), "--keep", "1"],
    ):
        assert run(["checkpoints", *typed]) == (typed[0] == "diff"), "1 where saves differ"
        shown = capsys.readouterr().out
        assert "0.1.16" not in shown, "as if it were of the published trainer"
    assert load_checkpoint(run_dir).state.step == 72


@pytest.mark.parametrize("name", ["step-000000000099", "step-0000000000072"])
def test_save_with_a_name_of_another_step_is_damaged(
    name: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither newest, nor old enough to be deleted: nobody knows which of the two is wrong."""
    odd = run_dir / name
    at(run_dir, 72).rename(odd)
    said: list[str] = []
    found = RunDir(run_dir).newest(said.append)
    assert found is not None
    assert found.step == 48
    assert "its manifest is of step 72" in said[0]
    listed = {entry.path.name: entry.kind for entry in RunDir(run_dir).entries()}
    assert listed[name] == "damaged"
    assert run(["checkpoints", "verify", str(odd)]) == 1
    assert "its manifest is of step 72" in capsys.readouterr().out
    assert "its manifest is of step 72" in refused(["checkpoints", "show", str(odd)], capsys)
    assert run(["checkpoints", "prune", str(run_dir), "--keep", "1"]) == 0
    assert odd.is_dir()
    assert at(run_dir, 48).is_dir()
    odd.rename(at(run_dir, 72))
    assert load_checkpoint(run_dir).state.step == 72


def test_save_with_a_custom_name_is_loaded(run_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(at(run_dir, 72), tmp_path / "champion")
    assert load_checkpoint(tmp_path / "champion").state.step == 72


@pytest.mark.slow
def test_run_folder_named_like_a_save_is_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    run_dir = runs / "step-000000000064"
    typed = ["train", "env.id=Xor", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir"]
    assert run([*typed, str(run_dir)]) == 0
    assert run([*typed, str(run_dir), "--resume", "total_timesteps=96"]) == 0
    load_agent(run_dir)
    load_agent(f"{run_dir}@latest")
    assert load_checkpoint(run_dir).state.step == 96
    for command in ("list", "verify", "show", "prune"):
        assert run(["checkpoints", command, str(run_dir)]) == 0, capsys.readouterr().err
    assert run(["eval", str(run_dir), "--episodes", "2"]) == 0
    assert RunDir(runs).saved_paths() == [], "a run among others is no save of them"
    assert prune_of(runs) == []


def prune_of(run_dir: Path) -> list[str]:
    from enn_trainer.config import CheckpointConfig

    return [*RunDir(run_dir).prune(CheckpointConfig()).deleted]


def test_save_without_manifest_counts_as_damaged(run_dir: Path) -> None:
    (at(run_dir, 72) / "manifest.json").unlink()
    assert [e.kind for e in RunDir(run_dir).entries() if e.path == at(run_dir, 72)] == ["damaged"]
    with pytest.raises(CheckpointError, match=r"manifest\.json: cannot be read"):
        load_agent(at(run_dir, 72))


@pytest.mark.parametrize(
    ("name", "value"),
    [("count", -5), ("mean", float("inf")), ("squares_sum", float("inf")), ("squares_sum", -1.0)],
)
def test_impossible_input_statistics_are_refused(name: str, value: float, run_dir: Path) -> None:
    newest, file = at(run_dir, 72), "state.agent.safetensors"
    files = {path.name: path.read_bytes() for path in newest.iterdir()}
    tensors = load(files[file])
    key = next(key for key in tensors if key.endswith(f".norm.{name}"))
    tensors[key] = torch.full_like(tensors[key], value)
    write_whole(newest, files, file, save(tensors))
    for read in (load_agent, lambda path: load_checkpoint(path).state):
        with pytest.raises(CheckpointError, match=rf"{key}: expected .* got {value:g}"):
            read(newest)
