"""Processor seconds of tests count the processes that a test waits for."""

import sys
from pathlib import Path

import pytest

from tests.fork_server import run_program
from tests.processor_times import Recorder, processor_seconds, table

BURN = "import time\nwhile time.process_time() < {}: pass"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs the fork server")
def test_forked_programs_count() -> None:
    run_program(["-c", "pass"])  # starts the server
    before = processor_seconds()
    run_program(["-c", BURN.format(0.2)])
    assert processor_seconds() - before > 0.19


def test_table_sums_folders() -> None:
    seconds = {
        "tests/a/test_x.py::test_1": 1.0,
        "tests/a/b/c/test_y.py::test_2[docs/z.md]": 2.5,
        "tests/a/b/test_z.py::test_3": 0.5,
        "docs/page.md::line:3,column:1": 4.0,
    }
    rows = [line.split() for line in table(seconds).splitlines()]
    assert rows == [
        ["4.0", "s", "docs"],
        ["3.0", "s", "tests/a/b"],
        ["1.0", "s", "tests/a"],
        ["8.0", "s", "all"],
    ]


@pytest.mark.parametrize("address", ["user@host"])
def test_tests_are_counted_without_their_group(
    address: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "times.tsv")
    call = pytest.CallInfo.from_call(lambda: None, "teardown")
    report = pytest.TestReport.from_item_and_call(request.node, call)
    hook = recorder.pytest_runtest_makereport(request.node, call)
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(report)
    recorder.pytest_runtest_logreport(report)
    name = "test_tests_are_counted_without_their_group[user@host]"
    assert [*recorder.seconds] == [f"tests/test_processor_times.py::{name}"]
