"""`make bench` tells what became slower, on the same kind of machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.enn_trainer.builders import SMALL


@pytest.fixture
def bench(benchmark: Any) -> Any:
    return benchmark("bench")


def run(bench: Any, monkeypatch: pytest.MonkeyPatch, path: Path, *more: str) -> int:
    monkeypatch.setattr("sys.argv", ["bench.py", "--results", str(path), *more])
    status: int = bench.main()
    return status


@pytest.fixture
def results(bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where two cases are written that have 10 frames a product each."""
    speeds = {name: bench.Speed(10.0, 9.0, 11.0, 1000.0) for name in ("Xor", "Minefield")}
    monkeypatch.setattr(bench, "measure", lambda *_: speeds)
    return tmp_path / "bench.json"


def test_committed_speeds_are_keyed_by_machine(
    bench: Any, results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results.write_text(json.dumps({"another machine": {"Xor": 99.0}}))
    assert run(bench, monkeypatch, results) == 0
    assert "no committed values for this kind of machine" in capsys.readouterr().out
    assert run(bench, monkeypatch, results, "--update") == 0
    written = json.loads(results.read_text())
    assert written[bench.machine()] == {"Xor": 10.0, "Minefield": 10.0}
    assert written["another machine"] == {"Xor": 99.0}


def test_machine_kind_includes_the_instruction_set(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = bench.machine()
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "none of these")
    assert bench.machine() != here


@pytest.mark.parametrize(
    ("before", "status", "change"), [(13.2, 0, "-24.2%"), (13.5, 1, "-25.9%"), (8.0, 0, "+25.0%")]
)
def test_more_than_a_quarter_slower_is_a_failure(
    bench: Any,
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    before: float,
    status: int,
    change: str,
) -> None:
    results.write_text(json.dumps({bench.machine(): {"Xor": before, "Minefield": 10.0}}))
    assert run(bench, monkeypatch, results) == status
    captured = capsys.readouterr()
    assert change in captured.out
    assert (captured.err == "Xor is more than 25% slower\n") == bool(status)


@pytest.mark.slow
def test_every_case_is_measured_in_slices_of_whole_updates(bench: Any) -> None:
    cases = {"Xor": SMALL[:-1], "Count": [*SMALL[:-1], "optim.bs=24"]}
    speeds = bench.measure(cases, seconds=2.5, rounds=3)
    assert list(speeds) == list(cases)
    for speed in speeds.values():
        assert 0 < speed.smallest <= speed.frames_per_product <= speed.largest
        assert speed.frames_per_s > 0


def test_committed_speeds_cover_existing_cases(bench: Any) -> None:
    for speeds in json.loads(bench.RESULTS.read_text()).values():
        assert speeds.keys() == bench.CASES.keys()
