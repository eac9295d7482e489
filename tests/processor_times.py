"""CPU seconds of tests, including child processes that they wait for.

    PROCESSOR_TIMES=build/times.tsv make test

writes a line for each test and one for the imports and the collection of all pytest processes, and
prints the sums of folders. `python -m tests.processor_times build/times.tsv` prints them again. A
process counts for the test that waits for its end.
"""

import os
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests import fork_server

OUTSIDE_TESTS = "(imports and collection)"
DEPTH = 3
"""The length of the paths by which sums are printed."""


def processor_seconds() -> float:
    """Return the processor seconds of this process and of all that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(r.ru_utime + r.ru_stime for r in used) + fork_server.programs_seconds()


class Recorder:
    """Plug-in that sends seconds along with the reports of tests and writes them to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: Counter[str] = Counter()
        self.before = 0.0
        self.in_tests = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        """Start counting."""
        self.before = processor_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[Any]
    ) -> Iterator[None]:
        """Add the name and seconds of a test to its last report."""
        report: Any = yield
        if call.when == "teardown":
            seconds = processor_seconds() - self.before
            self.in_tests += seconds
            group = item.get_closest_marker("xdist_group")  # xdist appends it to the name
            name = item.nodeid.removesuffix(f"@{group.args[0]}") if group else item.nodeid
            report.user_properties.append(("processor_seconds", (name, seconds)))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the seconds of a test, which another process may have run."""
        for key, value in report.user_properties:
            if key == "processor_seconds":
                name, seconds = value
                self.seconds[name] += seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Report what a process used outside of its tests."""
        outside = processor_seconds() - self.in_tests
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["processor_seconds"] = outside

    def pytest_testnodedown(self, node: Any) -> None:
        """Keep what another process used outside of its tests."""
        self.seconds[OUTSIDE_TESTS] += getattr(node, "workeroutput", {}).get("processor_seconds", 0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the file, and print the sums of folders."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = (f"{seconds:.3f}\t{name}\n" for name, seconds in self.seconds.most_common())
        self.path.write_text("".join(lines))
        terminalreporter.write_line(table(self.seconds))


def pytest_configure(config: pytest.Config) -> None:
    """Count if `PROCESSOR_TIMES` names a file."""
    if path := os.environ.get("PROCESSOR_TIMES"):
        config.pluginmanager.register(Recorder(config.rootpath / path))


def table(seconds: Mapping[str, float]) -> str:
    """Return the sums of folders and all, one line each."""
    sums: Counter[str] = Counter()
    for name, value in seconds.items():
        parts = Path(name.partition("::")[0]).parts[:DEPTH]
        sums["/".join(p for p in parts if not p.endswith((".py", ".md"))) or parts[0]] += value
    rows = [*sums.most_common(), ("all", sums.total())]
    return "\n".join(f"{value:9.1f} s  {name}" for name, value in rows)


def main(path: str) -> None:
    """Print the sums of a file."""
    rows = (line.split("\t", 1) for line in Path(path).read_text().splitlines())
    print(table({name: float(seconds) for seconds, name in rows}))


if __name__ == "__main__":
    main(*sys.argv[1:])
