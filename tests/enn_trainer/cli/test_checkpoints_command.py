"""`enn checkpoints`: saves are listed, verified, deleted, pinned, shown and compared."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from rich.console import Console

from enn_trainer import CheckpointError, StateManager, load_agent
from enn_trainer.base.tables import show_table
from enn_trainer.checkpoints import disk, writer
from enn_trainer.checkpoints import format as saves
from enn_trainer.checkpoints.lookup import resolve
from enn_trainer.checkpoints.manifest import own_hash
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import run
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.checkpoints.published import GOLDEN
from tests.enn_trainer.one_line import refused


def at(run_dir: Path, step: int) -> Path:
    return run_dir / f"step-{step:012d}"


def with_metrics(run_dir: Path, **returns: float) -> None:
    """Let saves have a measured return, as if they had been written with it."""
    for step, value in returns.items():
        metrics = {"eval/episodic_reward.mean": value}
        with_manifest(run_dir, int(step.removeprefix("at_")), metrics=metrics)


def with_manifest(run_dir: Path, step: int, **facts: object) -> None:
    """Let the manifest of a save say something else."""
    path = at(run_dir, step) / "manifest.json"
    content = json.loads(path.read_text()) | facts
    content["sha256"] = own_hash(content)
    path.write_text(json.dumps(content, indent=1))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def said(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> str:
    capsys.readouterr()
    assert run(["checkpoints", *map(str, arguments)]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "\x1b" not in captured.out
    return captured.out


def steps(run_dir: Path) -> set[int]:
    return {int(path.name.removeprefix("step-")) for path in RunDir(run_dir).saved_paths()}


@contextlib.contextmanager
def going_on(run_dir: Path) -> Iterator[None]:
    """A run holds the lock of its folder."""
    lock = os.open(run_dir / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


# List and verify


def test_list_describes_the_entries_of_a_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_metrics(run_dir, at_48=0.5)
    run(["checkpoints", "pin", str(at(run_dir, 24)), "--note", "for the paper"])
    flip(at(run_dir, 72) / "config.ron")
    shutil.copytree(GOLDEN, run_dir / "latest-step000000004096")
    (run_dir / "best-step000000000096").mkdir()
    (run_dir / ".writing-step-000000000096-7").mkdir()
    (run_dir / "eval-step-000000000048.json").write_text("{}")
    lines = said(capsys, "list", run_dir).splitlines()
    rows = {line.split("  ")[0]: line for line in lines}
    assert " damaged " in rows["step-000000000072"]
    assert " valid " in rows["step-000000000048"]
    assert rows["step-000000000048"].endswith(" 0.5")
    assert "for the paper" in rows["step-000000000024"]
    assert "interval" in rows["step-000000000024"]
    assert "0.1.16" in rows["latest-step000000004096"]
    assert "4096" in rows["latest-step000000004096"].split()
    assert "not a checkpoint" in rows["best-step000000000096"]
    assert "not complete" in rows[".writing-step-000000000096-7"]
    assert not {"index.json", "pins.json", "eval-step-000000000048.json"} & rows.keys()
    assert f"enn checkpoints verify {run_dir}" in lines[-1]


def test_list_prints_json(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_metrics(run_dir, at_24=1.0)
    (at(run_dir, 48) / "manifest.json").unlink()
    newest, damaged, oldest = json.loads(said(capsys, "list", run_dir, "--json"))
    assert (newest["step"], newest["is"], newest["pinned"]) == (72, "valid", None)
    assert (damaged["step"], damaged["is"]) == (48, "damaged")
    assert "manifest.json" in damaged["problems"][0]
    assert oldest["metrics"] == {"eval/episodic_reward.mean": 1.0}
    assert oldest["size"] == sum(path.stat().st_size for path in at(run_dir, 24).iterdir())


def test_list_reports_an_empty_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no saves here" in said(capsys, "list", tmp_path)


def test_control_characters_of_files_are_escaped(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_table(("a",), [("\x1b[31mred\nline",)], Console())
    assert "\\x1b[31mred\\nline" in capsys.readouterr().out


def test_verify_accepts_valid_saves(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "verify", run_dir, f"{run_dir}@24", at(run_dir, 48), GOLDEN)
    assert output.count(": valid, ") == 5
    assert "0.1.16" in output


def test_verify_names_every_damaged_file(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(at(run_dir, 48) / "state.agent.safetensors")
    (at(run_dir, 48) / "config.ron").unlink()
    (at(run_dir, 24) / "note.txt").write_text("mine")
    output = said(capsys, "verify", run_dir, status=1)
    assert "state.agent.safetensors: damaged, its sha256" in output
    assert "config.ron: cannot be read" in output
    assert "note.txt: not in the manifest" in output
    assert output.count(": valid, ") == 2
    assert "1 damaged" in output
    assert "1 damaged" in said(capsys, "verify", at(run_dir, 48), status=1)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"files": {}}', '"\x00"'])
def test_verify_finds_a_damaged_manifest(
    content: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (at(run_dir, 24) / "manifest.json").write_text(content)
    assert "manifest.json" in said(capsys, "verify", run_dir, status=1)
    (at(run_dir, 24) / "manifest.json").unlink()
    assert "manifest.json" in said(capsys, "verify", f"{run_dir}@24", status=1)


def test_verify_finds_a_damaged_save_of_the_published_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = tmp_path / "run/latest-step000000004096"
    shutil.copytree(GOLDEN, save)
    (save / "state.agent.msgpack").write_bytes(b"\x80")
    assert "damaged" in said(capsys, "verify", tmp_path / "run", status=1)


@pytest.mark.parametrize("before", ["manifest.json", "config.ron", "state.rest.msgpack", ""])
def test_list_and_verify_ignore_a_save_deleted_meanwhile(
    before: str,
    run_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever of it was read already."""
    read, refuse, gone = saves.plain_file, saves.check_no_pickles, at(run_dir, 48)
    moved = gone.rename(run_dir.parent / "kept")

    def reading(path: Path) -> contextlib.AbstractContextManager[BinaryIO]:
        if path == gone / before:
            shutil.rmtree(gone)
        return read(path)

    def looking(path: Path) -> None:
        refuse(path)
        if path == gone and not before:
            shutil.rmtree(gone)

    monkeypatch.setattr(saves, "plain_file", reading)
    monkeypatch.setattr(disk, "plain_file", reading)
    monkeypatch.setattr(saves, "check_no_pickles", looking)
    for command in ("list", "verify"):
        shutil.copytree(moved, gone)
        output = said(capsys, command, run_dir)
        assert not gone.exists()
        assert gone.name not in output
        assert at(run_dir, 24).name in output


def test_list_and_verify_report_a_pickle_in_a_valid_save(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such a save is never read, so that it is not valid."""
    (at(run_dir, 48) / "state.agent.pickle").write_bytes(b"")
    assert "a pickle, which can run any code" in said(capsys, "verify", run_dir, status=1)
    assert [entry["is"] for entry in json.loads(said(capsys, "list", run_dir, "--json"))] == [
        *("valid", "damaged", "valid")
    ]


def test_latest_falls_back_to_a_published_checkpoint(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096")
    latest = tmp_path / "run@latest"
    assert resolve(latest) == tmp_path / "run/latest-step000000004096"
    assert StateManager(init_path=latest).state.step == 4096


def test_damaged_newer_saves_are_reported_once(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(at(run_dir, 72) / "config.ron")
    output: list[str] = []
    assert resolve(Path(f"{run_dir}@latest"), output.append) == at(run_dir, 48)
    assert len(output) == 1
    assert capsys.readouterr().out == ""
    assert run(["train", "--resume-from", f"{run_dir}@latest", "--print-config"]) == 0
    assert capsys.readouterr().out.count("skipped a damaged checkpoint") == 1


# Prune and pin


def test_prune_keeps_the_newest(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "0 of 3 deleted" in said(capsys, "prune", run_dir), "as the run itself does"
    output = said(capsys, "prune", run_dir, "--keep", 1, "--dry-run")
    assert "2 of 3 would be deleted" in output
    assert steps(run_dir) == {24, 48, 72}
    output = said(capsys, "prune", run_dir, "--keep", 1)
    assert "2 of 3 deleted" in output
    assert "newest" in output
    assert steps(run_dir) == {72}
    (listed,) = json.loads((run_dir / "index.json").read_text())
    assert listed["step"] == 72
    assert not list(run_dir.glob(".deleting-*"))


def test_prune_keeps_pinned_saves_and_ignores_invalid_entries(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "pin", f"{run_dir}@24")
    flip(at(run_dir, 72) / "config.ron")
    (run_dir / "best-step000000000007").mkdir()
    output = said(capsys, "prune", run_dir, "--keep", 1)
    assert "pinned" in output
    assert steps(run_dir) == {24, 48, 72}, "the newest valid one and the pinned one"
    assert (run_dir / "best-step000000000007").is_dir()


def test_prune_dry_run_changes_nothing(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not even what a process that died left half done, nor the lock."""
    for name in (".writing-step-000000000096-7", ".deleting-step-000000000024-7"):
        (run_dir / name).mkdir()
    (run_dir / ".lock").unlink(missing_ok=True)
    (run_dir / ".pins.json-7").write_text("")
    before = {path: path.stat().st_mtime_ns for path in [run_dir, *run_dir.rglob("*")]}
    assert ".pins.json-7" not in said(capsys, "list", run_dir)
    said(capsys, "prune", run_dir, "--keep", 1, "--dry-run")
    assert {path: path.stat().st_mtime_ns for path in [run_dir, *run_dir.rglob("*")]} == before


def test_prune_keeps_one_of_each_window_of_time(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, time_used in ((24, 70.0), (48, 130.0), (72, 140.0)):
        with_manifest(run_dir, step, time_used=time_used)
    assert "every 1 minutes" in said(capsys, "prune", run_dir, "--keep-every-minutes", 1)
    assert steps(run_dir) == {24, 48, 72}, "the first of each minute, and the newest"
    said(capsys, "prune", run_dir, "--keep-every-minutes", 2)
    assert steps(run_dir) == {48, 72}
    for wrong in ("0", "nan"):
        prune = ["checkpoints", "prune", str(run_dir), "--keep-every-minutes", wrong]
        assert "keep_every_minutes" in refused(prune, capsys)


def test_prune_keeps_the_requested_number_of_best_saves(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_metrics(run_dir, at_24=2.0, at_48=1.0, at_72=0.0)
    best = ["--best", "eval/episodic_reward.mean max"]
    said(capsys, "prune", run_dir, *best, "--keep-best", 2)
    assert steps(run_dir) == {24, 48, 72}
    said(capsys, "prune", run_dir, *best, "--keep-best", 1)
    assert steps(run_dir) == {24, 72}
    line = refused(["checkpoints", "prune", str(run_dir), "--keep-best", "2"], capsys)
    assert "--keep-best: expected --best METRIC" in line


def test_prune_keeps_one_of_each_window(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "prune", run_dir, "--keep-every-steps", 30)
    assert "every 30 steps" in output
    assert steps(run_dir) == {48, 72}


@pytest.mark.parametrize(("which", "retained"), [("max", {48, 72}), ("min", {24, 72})])
def test_prune_keeps_the_best(
    which: str, retained: set[int], run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_metrics(run_dir, at_24=-1.0, at_48=2.0)
    output = said(capsys, "prune", run_dir, "--best", f"eval/episodic_reward.mean {which}")
    assert "best eval/episodic_reward.mean" in output
    assert steps(run_dir) == retained


def test_prune_fails_while_a_run_is_training(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with going_on(run_dir):
        line = refused(["checkpoints", "prune", str(run_dir), "--keep", "1"], capsys)
        assert "2 of 3 would be deleted" in said(capsys, "prune", run_dir, "--keep", 1, "--dry-run")
    assert "expected a run that is not locked" in line
    assert steps(run_dir) == {24, 48, 72}
    said(capsys, "prune", run_dir, "--keep", "1")


def test_prune_deletes_nothing_if_pins_cannot_be_read(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for content in ("{", "[1]", '{"step-000000000024": 3}', "[" * 100_000):
        (run_dir / "pins.json").write_text(content)
        line = refused(["checkpoints", "prune", str(run_dir), "--keep", "1"], capsys)
        assert "pins.json" in line
    assert steps(run_dir) == {24, 48, 72}


def test_pins_can_be_changed_during_a_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with going_on(run_dir):
        said(capsys, "pin", f"{run_dir}@24", "--note", "first")
        said(capsys, "pin", run_dir)
        assert RunDir(run_dir).pins() == {at(run_dir, 24).name: "first", at(run_dir, 72).name: ""}
        said(capsys, "unpin", f"{run_dir}@24")
    assert RunDir(run_dir).pins() == {at(run_dir, 72).name: ""}
    shutil.rmtree(at(run_dir, 72))
    said(capsys, "unpin", at(run_dir, 72))
    assert RunDir(run_dir).pins() == {}
    line = refused(["checkpoints", "unpin", str(at(run_dir, 48))], capsys)
    assert "expected a pinned checkpoint" in line


def test_pins_are_unchanged_if_they_cannot_be_written(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunDir(run_dir).pin(at(run_dir, 24).name, "first")
    before = (run_dir / "pins.json").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"pins.json.*: cannot be written: No space"):
        RunDir(run_dir).pin(at(run_dir, 48).name)
    assert (run_dir / "pins.json").read_bytes() == before
    assert not list(run_dir.glob(".pins*"))


def test_save_deleted_meanwhile_is_not_pinned(run_dir: Path) -> None:
    shutil.rmtree(at(run_dir, 24))
    with pytest.raises(CheckpointError, match="was deleted"):
        RunDir(run_dir).pin(at(run_dir, 24).name)
    assert RunDir(run_dir).pins() == {}


def test_a_damaged_save_is_not_pinned(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(at(run_dir, 24) / "config.ron")
    assert "config.ron" in refused(["checkpoints", "pin", str(at(run_dir, 24))], capsys)


# Show and diff


def test_show_describes_a_save(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "pin", run_dir, "--note", "for the paper")
    output = said(capsys, "show", run_dir)
    for words in ("reason: end", "torch 2.", "for the paper", "entity sheep", "action walk"):
        assert words in output, output
    assert "d_model: 8" not in output
    assert f"--resume-from {at(run_dir, 72)}" in output
    assert "d_model: 8," in said(capsys, "show", f"{run_dir}@24", "--config")
    output = said(capsys, "show", run_dir, "--tensors")
    for name, tensor in StateManager(init_path=run_dir).state.agent.state_dict().items():
        (row,) = (line.split() for line in output.splitlines() if f"  {name} " in line)
        assert row[-1] == f"{tensor.double().norm().item():.4g}"


def with_file(run_dir: Path, name: str, text: str) -> Path:
    """Return the newest save after a change of one of its files, with the right sums."""
    saved = saves.verify(at(run_dir, 72))
    files = {name: saved.read(name) for name in saved.manifest["files"]}
    files["state.ron"] = files["state.ron"].replace(b"step: 72", b"step: 96")
    return writer.save(run_dir, 96, {**files, name: text.encode()}, "test").path


@pytest.mark.parametrize(
    "text",
    ["((((", "5", "[1]", f"(a: {{{', '.join(f'{i * (2**61 - 1)}: 1' for i in range(99))}}})"],
)
@pytest.mark.parametrize("name", ["config.ron", "state.ron"])
def test_unreadable_file_of_a_save_is_named_in_one_line(
    name: str, text: str, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(with_file(run_dir, name, text))
    for typed in (["show", path], ["show", path, "--config"], ["diff", path, f"{run_dir}@72"]):
        error = refused(["checkpoints", *typed], capsys)
        assert error.startswith(f"error: {path}: {name} cannot be read: ")


def test_configuration_of_another_class_is_shown_and_compared_as_text(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_file(run_dir, "config.ron", "Mine(version: 5, hats: 3)")
    output = said(capsys, "show", run_dir, "--config")
    assert "hats: 3" in output
    assert "enn " not in output, "no line that does not work"
    output = said(capsys, "diff", f"{run_dir}@72", run_dir, status=1)
    assert ["hats", "-", "3"] in [line.split() for line in output.splitlines()]


def test_show_supports_published_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    output = said(capsys, "show", GOLDEN, "--config", "--tensors")
    for words in ("0.1.16", "entity Cherry", "quality", "action Pick Cherry", "d_model"):
        assert words in output


def test_diff_of_a_save_with_itself_is_empty(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = said(capsys, "diff", run_dir, f"{run_dir}@72")
    assert output.startswith("the same settings, environment, state and ")
    assert output.count("\n") == 1


def test_diff_describes_differences_within_a_run(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = said(capsys, "diff", f"{run_dir}@24", f"{run_dir}@72", status=1)
    rows = [line.split() for line in output.splitlines()]
    assert ["step", "24", "72"] in rows
    assert "configuration" not in output
    assert "environment" not in output
    a, b = (StateManager(init_path=at(run_dir, s)).state.agent.state_dict() for s in (24, 72))
    for name in a:
        (row,) = [row for row in rows if name in row] or [[]]
        if torch.equal(a[name], b[name]):
            assert row == []
            continue
        old, new = a[name].double(), b[name].double()
        apart = (old - new).norm() / max(old.norm(), new.norm())
        assert float(row[2]) == pytest.approx(apart.item(), rel=1e-2), name


def test_diff_describes_differences_of_environments_and_networks(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "xor")]
    small = [*SMALL, "net.d_model=12", "net.n_layer=2", "optim.name=SGD", "optim.kwargs={}"]
    assert run(["train", "env.id=Xor", *small, *where]) == 0
    output = said(capsys, "diff", run_dir, tmp_path / "xor", status=1)
    rows = [line.split() for line in output.splitlines()]
    assert ["net.d_model", "8", "12"] in rows
    assert ["optim.name", '"AdamW"', '"SGD"'] in rows
    assert "entity types" in output
    assert "only in A" in output
    assert "only in B" in output
    assert " became float32 " in output


def test_diff_supports_published_checkpoints(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = said(capsys, "diff", GOLDEN, run_dir, status=1)
    assert "Cherry" in output


# What a path means


def test_saves_are_named_by_step_latest_or_best(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve(Path(f"{run_dir}@48")) == at(run_dir, 48)
    assert resolve(Path(f"{run_dir}@latest")) == at(run_dir, 72)
    flip(at(run_dir, 72) / "config.ron")
    assert resolve(Path(f"{run_dir}@latest")) == at(run_dir, 48)
    assert StateManager(init_path=f"{run_dir}@24").state.step == 24
    load_agent(f"{run_dir}@24")
    line = refused(["checkpoints", "show", f"{run_dir}@30"], capsys)
    assert "the run has 24, 48, 72" in line
    assert "@latest or @best" in refused(["checkpoints", "show", f"{run_dir}@old"], capsys)
    assert "checkpoint.best" in refused(["checkpoints", "show", f"{run_dir}@best"], capsys)


def test_existing_path_has_precedence_over_run_at_step(run_dir: Path) -> None:
    folder = run_dir.with_name("run@24")
    run_dir.rename(folder)
    folder.with_name("run").mkdir()
    assert resolve(folder) == folder
    assert load_agent(folder)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["list", "nowhere"], "RUN: expected the folder of a run, got nowhere"),
        (["list", str(GOLDEN)], "RUN: expected the folder of a run"),
        (["verify", "nowhere"], "nowhere: expected a save or a run"),
        (["prune", "nowhere"], "RUN: expected"),
        (["pin", "nowhere"], "nowhere"),
        (["unpin", "nowhere/step-1"], "nowhere"),
        (["show", "nowhere"], "nowhere"),
        (["diff", "nowhere", "elsewhere"], "nowhere"),
        (["prune", "x", "--keep", "0"], "--keep"),
        (["forget"], "forget"),
        ([], "COMMAND"),
    ],
)
def test_usage_errors_print_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in refused(["checkpoints", *arguments], capsys)
    assert list(tmp_path.iterdir()) == []


def test_verify_rejects_a_folder_without_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "got neither" in refused(["checkpoints", "verify", str(tmp_path)], capsys)
