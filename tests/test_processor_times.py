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


def test_seconds_of_all_reports_of_a_test_are_summed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "times.tsv")
    for when, properties in (("call", []), ("teardown", [("processor_seconds", 0.25)])):
        report = pytest.TestReport(
            nodeid="tests/x.py::test_y@tests/x.py",
            location=("tests/x.py", 1, "test_y"),
            keywords={},
            outcome="passed",
            longrepr=None,
            when=when,
            user_properties=properties,
        )
        recorder.pytest_runtest_logreport(report)
    assert recorder.seconds == {"tests/x.py::test_y": 0.25}
