"""Time from a checkout to a first agent, and to an agent for a custom environment.

Usage:
    python benchmarks/newcomer.py [--out benchmarks/results/newcomer.md]

Runs the code blocks of README and `docs/start` in order, in a clone of this checkout and a new
virtual environment with torch preinstalled (its download depends on the network alone). Interactive
commands and `make` are skipped. Processor seconds, with child processes, are also given as ratios
to `import torch`. Further rows: commands that answer at once, the size of the environment, and the
outcomes of command lines in words of other libraries, which `tests/enn_trainer/cli/guesses` tests.
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measured_on import processor, short_revision  # noqa: E402
from tests.doc_blocks import blocks, commands  # noqa: E402

START = ("README.md", "docs/start/first_agent.md", "docs/start/first_world.md")
TUTORIAL = ("docs/start/rules_to_agent.md",)
LEFT_OUT = ("make", "git", "enn play")
LINES = ROOT / "tests/enn_trainer/cli/guesses/command_lines.txt"
TORCH = "python -c 'import torch'"
AT_ONCE = (
    "enn train --help",
    "enn inspect runs/TreasureHunt-1",
    "enn checkpoints list runs/TreasureHunt-1",
)
"""Commands that take at most `AT_ONCE_S` seconds of processor each."""
AT_ONCE_S = 0.5
INSTALL_S = 60.0
LIMITS = {"first agent": 15.0, "own environment": 30.0}
"""Limits of processor seconds, as ratios to `import torch`."""
LARGEST_GB = 1.2


class Row(NamedTuple):
    """Measured command.

    Attributes:
        page: page with the command.
        command: command line.
        seconds: duration.
        processor: processor seconds, with child processes.
    """

    page: str
    command: str
    seconds: float
    processor: float


def typed(page: Path, folder: Path) -> Iterator[str]:
    """Yield the commands of a page, after writing the files that it shows."""
    for block in blocks(page.read_text()):
        if name := block.options.get("file"):
            (folder / name).write_text(block.source)
        elif block.language == "python":
            yield f"python -c {shlex.quote(block.source)}"
        elif "not run" not in block.options:
            lines = (line for line, _ in commands(block.source))
            yield from (line for line in lines if not line.startswith(LEFT_OUT))


def processor_seconds() -> float:
    """Return the processor seconds of all child processes so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timed(page: str, command: str, folder: Path, environment: Mapping[str, str]) -> Row:
    """Run a command line and measure it.

    Raises:
        SystemExit: the command failed.
    """
    start, before = time.monotonic(), processor_seconds()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    row = Row(page, command, time.monotonic() - start, processor_seconds() - before)
    print(f"{row.seconds:7.1f} s {row.processor:7.1f} s  {short(command, 90)}", flush=True)
    if done.returncode:
        sys.exit(f"{command}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return row


def short(command: str, width: int) -> str:
    """Return the beginning of the first line."""
    return command.splitlines()[0][:width]


def measure(folder: Path) -> tuple[list[Row], float]:
    """Run all commands in a folder; return their times, and the size of `.venv` in GB."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    environment = {**os.environ, "PYTHONPATH": "", "VIRTUAL_ENV": str(folder / ".venv")}
    environment["PATH"] = f"{folder / '.venv/bin'}:{environment['PATH']}"
    for command in (
        f"{sys.executable} -m venv .venv",
        "python -m pip install --quiet -c constraints.txt torch",
        TORCH,  # reads the files once
    ):
        timed("", command, folder, environment)
    rows = [timed("", TORCH, folder, environment)]
    for page in (*START, *TUTORIAL):
        for command in typed(folder / page, folder):
            rows.append(timed(page, command, folder, environment))
    rows += [timed("", command, folder, environment) for command in AT_ONCE]
    used = subprocess.run(["du", "-sb", folder / ".venv"], capture_output=True, check=True)
    return rows, int(used.stdout.split()[0]) / 1e9


def report(rows: list[Row], gigabytes: float) -> str:
    """Return the document with the measurements.

    Raises:
        SystemExit: a limit is exceeded.
    """
    torch = next(row.processor for row in rows if row.command == TORCH)
    install = sum(row.seconds for row in rows if "pip install ." in row.command)
    first = next(row.processor for row in rows if row.command.startswith("enn train TreasureHunt"))
    own = next(row.processor for row in rows if row.command.startswith("python orchard.py"))
    at_once = [row.processor for row in rows if row.command in AT_ONCE]
    measures = [
        ("install", f"{install:.0f} s", f"{INSTALL_S:.0f} s", install <= INSTALL_S),
        ("`.venv`", f"{gigabytes:.2f} GB", f"{LARGEST_GB} GB", gigabytes <= LARGEST_GB),
        ("`import torch`, processor", f"{torch:.1f} s", "", True),
        *(
            (
                f"{name}, processor / `import torch`",
                f"{seconds / torch:.1f}",
                f"{LIMITS[name]:.0f}",
                seconds <= LIMITS[name] * torch,
            )
            for name, seconds in (("first agent", first), ("own environment", own))
        ),
        *(
            (f"`{command}`, processor", f"{seconds:.2f} s", f"{AT_ONCE_S} s", seconds <= AT_ONCE_S)
            for command, seconds in zip(AT_ONCE, at_once, strict=True)
        ),
    ]
    outcomes = Counter(line.split(" | ")[1] for line in LINES.read_text().splitlines() if line)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common())
    lines = [
        "# A newcomer's first hour",
        "",
        f"`python benchmarks/newcomer.py` at {short_revision()}, on {os.cpu_count()} cores "
        f"({processor()}). Every block of README and `docs/start` is run in a clone of this "
        "checkout, in a new virtual environment with torch. Processor seconds include child "
        "processes; ratios are to `import torch` in the same run.",
        "",
        "| | measured | limit |",
        "| --- | --- | --- |",
        *(f"| {name} | {measured} | {limit} |" for name, measured, limit, _ in measures),
        "",
        f"Of {outcomes.total()} command lines that users of other libraries type first: {counts}.",
        "",
        "| page | typed | seconds | processor seconds | / `import torch` |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        text = short(row.command, 90).replace("|", "\\|")
        ratio = row.processor / torch
        cells = f"{row.seconds:.1f} | {row.processor:.1f} | {ratio:.1f}"
        lines.append(f"| {row.page} | `{text}` | {cells} |")
    late = [f"{name}: {measured}" for name, measured, _, is_within in measures if not is_within]
    if late:
        sys.exit("\n".join([*lines, "", f"beyond the limits: {', '.join(late)}"]))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and optionally write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the page to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(*measure(Path(folder) / "clone"))
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
