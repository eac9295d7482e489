"""Time from a checkout to a first agent, and to an agent for a custom environment.

Usage:
    python benchmarks/newcomer.py [--out benchmarks/results/newcomer.md]

Runs the code blocks of README and `docs/start` in order, in a clone of this checkout and a new
virtual environment with torch preinstalled (its download depends on the network alone). Interactive
commands and `make` are skipped.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.measured_on import processor, short_revision  # noqa: E402
from tests.doc_blocks import blocks, commands  # noqa: E402

START = ("README.md", "docs/start/first_agent.md", "docs/start/first_world.md")
TUTORIAL = ("docs/start/rules_to_agent.md",)
LEFT_OUT = ("make", "git", "enn play")
LIMITS_S = {"install": 60.0, "first agent": 90.0, "own world": 600.0}


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


def timed(command: str, folder: Path, environment: Mapping[str, str]) -> float:
    """Run a command line and return its duration in seconds.

    Raises:
        SystemExit: the command failed.
    """
    start = time.monotonic()
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seconds = time.monotonic() - start
    print(f"{seconds:7.1f} s  {command.splitlines()[0][:100]}", flush=True)
    if done.returncode:
        sys.exit(f"{command}\nended with {done.returncode}:\n{done.stdout[-4000:]}")
    return seconds


def measure(folder: Path) -> list[tuple[str, str, float]]:
    """Run all commands in a folder, and return the page, command and seconds of each."""
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    environment = {**os.environ, "PYTHONPATH": "", "VIRTUAL_ENV": str(folder / ".venv")}
    environment["PATH"] = f"{folder / '.venv/bin'}:{environment['PATH']}"
    timed(f"{sys.executable} -m venv .venv", folder, environment)
    timed("python -m pip install --quiet -c constraints.txt torch", folder, environment)
    rows = []
    for page in (*START, *TUTORIAL):
        for command in typed(folder / page, folder):
            rows.append((page, command, timed(command, folder, environment)))
    return rows


def report(rows: list[tuple[str, str, float]]) -> str:
    """Return the document with the times.

    Raises:
        SystemExit: a limit is exceeded.
    """
    install = sum(s for _, command, s in rows if "pip install ." in command)
    first = next(s for _, command, s in rows if command.startswith("enn train TreasureHunt"))
    own_world = sum(s for page, _, s in rows if page in (START[2], *TUTORIAL))
    seconds_by_limit = {"install": install, "first agent": first, "own world": own_world}
    late = [
        f"{name}: {seconds_by_limit[name]:.0f} s"
        for name, limit in LIMITS_S.items()
        if seconds_by_limit[name] > limit
    ]
    lines = [
        "# A newcomer's first hour",
        "",
        f"`python benchmarks/newcomer.py` at {short_revision()}, on {os.cpu_count()} cores",
        f"({processor()}).",
        "Every block of README and `docs/start` is run in a clone of this checkout, in a new",
        "virtual environment with torch.",
        "",
        "| | seconds | limit |",
        "| --- | --- | --- |",
        *(
            f"| {name} | {seconds_by_limit[name]:.0f} | {limit:.0f} |"
            for name, limit in LIMITS_S.items()
        ),
        "",
        "| page | typed | seconds |",
        "| --- | --- | --- |",
    ]
    for page, command, seconds in rows:
        text = command.splitlines()[0][:90].replace("|", "\\|")
        lines.append(f"| {page} | `{text}` | {seconds:.1f} |")
    if late:
        sys.exit(f"beyond the limits: {', '.join(late)}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, print, and optionally write the document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the page to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = report(measure(Path(folder) / "clone"))
    print(text)
    if options.out:
        options.out.write_text(text)


if __name__ == "__main__":
    main()
