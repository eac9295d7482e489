"""Which saves are kept is a function of manifests, settings and pins; nothing else is deleted."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import CheckpointConfig, CheckpointError
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.format import VerifiedSaves
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.retention import reasons_to_keep, reasons_to_save
from enn_trainer.checkpoints.run_dir import INDEX, PINS, RunDir

FILES = {"config.ron": b"(a: 1)", "empty": b""}


def manifests(*saves: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {str(save["step"]): save for save in saves}


def at(step: int, minutes: float = 0.0, **metrics: float) -> dict[str, Any]:
    return {"step": step, "time_used": 60 * minutes, "metrics": metrics}


def kept(policy: CheckpointConfig, *saves: dict[str, Any], pins: tuple[str, ...] = ()) -> list[int]:
    reasons = reasons_to_keep(manifests(*saves), policy, pins)
    return sorted(int(name) for name, why in reasons.items() if why)


def save(run_dir: Path, step: int, **facts: Any) -> Path:
    return writer.save(run_dir, step, FILES, "test", facts).path


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.iterdir())


def steps(run_dir: Path) -> list[int]:
    return [int(path.name[5:]) for path in reversed(RunDir(run_dir).saved_paths())]


def test_newest_saves_are_kept() -> None:
    assert kept(CheckpointConfig(keep=2), at(5), at(30), at(10)) == [10, 30]


def test_first_save_of_each_window_of_steps_is_kept() -> None:
    """None of the window at the very beginning, in which no multiple was crossed."""
    policy = CheckpointConfig(keep=1, keep_every_steps=100)
    saves = [at(step) for step in (0, 60, 99, 120, 180, 300, 399, 405)]
    assert kept(policy, *saves) == [120, 300, 405]


def test_first_save_of_each_window_of_training_time_is_kept() -> None:
    policy = CheckpointConfig(keep=1, keep_every_minutes=0.5)
    saves = [at(step, minutes) for step, minutes in [(1, 0.1), (2, 0.6), (3, 0.9), (4, 5), (5, 5)]]
    assert kept(policy, *saves) == [2, 4, 5]


@pytest.mark.parametrize(("best", "expected"), [("a max", [3, 2]), ("a min", [4, 1])])
def test_best_saves_are_kept_in_either_direction(best: str, expected: list[int]) -> None:
    saves = [at(1, a=1), at(2, a=7), at(3, a=8), at(4, a=-2), at(5, b=99), at(6)]
    policy = CheckpointConfig(keep=1, best=[best])
    assert kept(policy, *saves) == sorted([expected[0], 6])
    policy = CheckpointConfig(keep=1, best=[best], keep_best=2)
    assert kept(policy, *saves) == sorted([*expected, 6])


def test_earlier_save_is_best_in_a_tie() -> None:
    policy = CheckpointConfig(keep=1, best=["a max"])
    assert kept(policy, at(1, a=3), at(2, a=3), at(3, a=1)) == [1, 3]


def test_metrics_that_are_not_finite_are_never_best() -> None:
    """The manifest of another program may hold anything."""
    nan, text = at(1, a=float("nan")), at(2, a="3")  # type: ignore[arg-type]
    policy = CheckpointConfig(keep=1, best=["a max", "a min"])
    assert kept(policy, nan, text, {"step": 3, "metrics": None}, at(4, a=1), at(5)) == [4, 5]


def test_pinned_saves_are_kept_and_reasons_are_reported() -> None:
    policy = CheckpointConfig(keep=1, keep_every_steps=10, best=["a max"])
    saves = manifests(at(3), at(4), at(10, a=1), at(11))
    assert reasons_to_keep(saves, policy, {"4"}) == {
        "3": [],
        "4": ["pinned"],
        "10": ["every 10 steps", "best a max"],
        "11": ["newest"],
    }


def test_a_save_is_due_if_first_of_a_window_or_best() -> None:
    policy = CheckpointConfig(keep_every_steps=10, keep_every_minutes=1, best=["a max"])
    saves = manifests(at(0), at(12, 1.5, a=5))

    def due(manifest: dict[str, Any]) -> list[str]:
        return reasons_to_save(saves, "new", manifest, policy)

    assert due(at(19, 1.9, a=5)) == []
    assert due(at(25, 1.9)) == ["every 10 steps"]
    assert due(at(19, 2.1, a=float("inf"))) == ["every 1 minutes"]
    assert due(at(19, 1.9, a=5.1)) == ["best a max"]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.floats(0, 9), st.sampled_from([None, 1.0, 2.0, 3.0])),
        max_size=30,
        unique_by=lambda save: save[0],
    ),
    st.integers(1, 4),
    st.integers(1, 20),
    st.integers(1, 3),
)
def test_pruning_after_each_save_equals_pruning_at_the_end(
    made: list[tuple[int, float, float | None]], keep_newest: int, window: int, keep_best: int
) -> None:
    """So that pruning by hand, later, decides as the run did; and the newest is never deleted."""
    policy = CheckpointConfig(
        keep=keep_newest, keep_every_steps=window, best=["a max", "a min"], keep_best=keep_best
    )
    everything = manifests(
        *(at(step, time, **({} if a is None else {"a": a})) for step, time, a in sorted(made))
    )
    left: dict[str, Any] = {}
    for name, manifest in everything.items():
        left[name] = manifest
        reasons = reasons_to_keep(left, policy, ())
        assert reasons[name], "the newest"
        left = {n: m for n, m in left.items() if reasons[n]}
    at_once = reasons_to_keep(everything, policy, ())
    assert left == {name: m for name, m in everything.items() if at_once[name]}
    assert not [name for name, why in reasons_to_keep(left, policy, ()).items() if not why]


def test_only_valid_saves_count_as_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    assert RunDir(tmp_path).prune(CheckpointConfig(keep=2)).deleted.keys() == {"step-000000000001"}
    assert steps(tmp_path) == [2, 3]
    (tmp_path / "step-000000000003" / "empty").write_bytes(b"x")
    (tmp_path / "step-000000999999").mkdir()
    RunDir(tmp_path).prune(CheckpointConfig(keep=1))
    assert steps(tmp_path) == [2, 3, 999999]
    assert find(tmp_path).step == 2
    save(tmp_path, 4)
    RunDir(tmp_path).prune(CheckpointConfig(keep=1))
    assert find(tmp_path).step == 4


def test_other_files_are_not_deleted(tmp_path: Path) -> None:
    """B60: neither counted nor deleted, whatever it is called."""
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / "best-step000000000006").mkdir()
    (tmp_path / "latest-step000000000007").mkdir()
    (tmp_path / "step-000000000009").write_text("a file")
    (tmp_path / "step-mine").mkdir()
    (tmp_path / "step-000000000008").mkdir()
    (tmp_path / "step-000000000008" / "manifest.json").write_text("{}")
    before = names(tmp_path)
    assert RunDir(tmp_path).prune(CheckpointConfig(keep=1)).deleted.keys() == {"step-000000000001"}
    assert names(tmp_path) == sorted(
        [*(name for name in before if name != "step-000000000001"), INDEX]
    )


def test_dry_run_reports_deletions_without_deleting(tmp_path: Path) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    before = names(tmp_path)
    pruned = RunDir(tmp_path).prune(CheckpointConfig(keep=1), dry_run=True)
    assert pruned.deleted.keys() == {"step-000000000001"}
    assert pruned.reasons == {"step-000000000002": ["newest"]}
    assert names(tmp_path) == before


def test_pinned_saves_are_not_deleted(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    (tmp_path / PINS).write_text('{"step-000000000001": "of the paper"}')
    RunDir(tmp_path).prune(CheckpointConfig(keep=1))
    assert steps(tmp_path) == [1, 3]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', "[" * 10000, "\xff"])
def test_nothing_is_deleted_while_pins_cannot_be_read(tmp_path: Path, text: str) -> None:
    for step in (1, 2):
        save(tmp_path, step)
    (tmp_path / PINS).write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=PINS):
        RunDir(tmp_path).prune(CheckpointConfig(keep=1))
    assert steps(tmp_path) == [1, 2]


def test_pins_that_are_a_folder_or_huge_are_refused(tmp_path: Path) -> None:
    (tmp_path / PINS).write_bytes(b" " * (1 << 21))
    with pytest.raises(CheckpointError, match="expected at most 1048576 bytes"):
        RunDir(tmp_path).pins()
    (tmp_path / PINS).unlink()
    (tmp_path / PINS).mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        RunDir(tmp_path).pins()


def test_index_is_rebuilt_from_the_directories(tmp_path: Path) -> None:
    """U54: step, time, metrics, size, hash and why."""
    path = save(tmp_path, 7, time_used=12.5, metrics={"a": 1.5}, seed=3)
    (tmp_path / INDEX).write_text("nonsense")
    RunDir(tmp_path).prune(CheckpointConfig(best=["a max"]))
    (entry,) = json.loads((tmp_path / INDEX).read_text())
    assert entry == {
        "name": "step-000000000007",
        "step": 7,
        "created": checkpoint.verify(path).manifest["created"],
        "time_used": 12.5,
        "why": "test",
        "kept": ["newest", "best a max"],
        "size": 6,
        "sha256": hashlib.sha256((path / "manifest.json").read_bytes()).hexdigest(),
        "metrics": {"a": 1.5},
    }


def test_verified_saves_are_read_again_only_if_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = checkpoint.verify

    def verify(path: Path) -> checkpoint.Checkpoint:
        read.append(path.name[-1])
        return real(path)

    monkeypatch.setattr(checkpoint, "verify", verify)
    known, policy = VerifiedSaves(), CheckpointConfig(keep=9)
    for step in (1, 2, 3):
        save(tmp_path, step)
    RunDir(tmp_path).prune(policy, valid=known)
    assert sorted(read) == ["1", "2", "3"]
    (tmp_path / "step-000000000002" / "empty").write_bytes(b"")  # same size, another time
    assert len(RunDir(tmp_path).prune(policy, valid=known).reasons) == 3
    assert sorted(read) == ["1", "2", "2", "3"]
    (tmp_path / "step-000000000003" / "empty").write_bytes(b"x")
    assert len(RunDir(tmp_path).prune(policy, valid=known).reasons) == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"every_seconds": -1}, "every_seconds"),
        ({"every_seconds": float("nan")}, "every_seconds"),
        ({"keep": 0}, "keep: expected"),
        ({"keep_every_steps": 0}, "keep_every_steps"),
        ({"keep_every_minutes": 0.0}, "keep_every_minutes"),
        ({"keep_best": 0}, "keep_best"),
        ({"best": ["a max", "a up"]}, r"best\[1\]: expected a metric and max or min"),
    ],
)
def test_invalid_retention_settings_are_refused(override: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CheckpointConfig(**override)
