"""A program goes on when nobody reads what it prints, and other broken pipes stay errors."""

import subprocess
import sys

import pytest

BEFORE = """
import os, sys
from entity_env.process import ignore_broken_pipe
print("before")
with ignore_broken_pipe():
    print("begun", flush=True)
    sys.stdin.readline()  # until the reader has left
"""


def run_without_reader(code: str, which: str, *flags: str) -> tuple[int, str]:
    """Run a program and close its standard output or error after the start.

    Returns:
        Its exit status, and what it printed to the other stream.
    """
    command = [sys.executable, *flags, "-c", BEFORE + code]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    assert [process.stdout.readline() for _ in range(2)] == ["before\n", "begun\n"]
    closed, other = process.stdout, process.stderr
    if which == "stderr":
        closed, other = other, closed
    closed.close()
    process.stdin.write("go on\n")
    process.stdin.close()
    with other:
        printed = other.read()
    return process.wait(60), printed


@pytest.mark.parametrize("flags", [[], ["-u"]])
@pytest.mark.parametrize(
    "write",
    [
        "print(text, file=out)",
        "out.buffer.write(text.encode())",
        "print(text, file=original, flush=True)",
    ],
)
@pytest.mark.parametrize("which", ["stdout", "stderr"])
def test_output_to_a_closed_pipe_is_discarded(which: str, write: str, flags: list[str]) -> None:
    code = f"""
    text, out, original = "x" * 99, sys.{which}, sys.__{which}__
    other = {{sys.stdout, sys.stderr}} - {{sys.{which}}}
    for _ in range(2000):
        {write}
    print("went on", file=other.pop())
print("after", file=sys.{which})
"""
    assert run_without_reader(code, which, *flags) == (0, "went on\n")


def test_broken_pipe_of_other_files_is_raised() -> None:
    code = """
    print("nobody reads this", flush=True)
    reader, writer = os.pipe()
    os.close(reader)
    os.write(writer, b"x")
"""
    status, printed = run_without_reader(code, "stdout")
    assert status == 1
    assert "BrokenPipeError" in printed


def test_streams_are_restored_and_output_order_is_kept() -> None:
    code = """
import os, sys
from entity_env.process import ignore_broken_pipe
before = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
print("1")
with ignore_broken_pipe():
    print("2 ä")
    with ignore_broken_pipe():
        print("3")
    assert sys.stdout is not before[0]
    assert sys.stdout.fileno() == 1
print("4")
assert before == (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.decode() == "1\n2 ä\n3\n4\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_unchanged(closed: str) -> None:
    code = f"{BEFORE.replace('sys.stdin.readline()', 'pass')}"
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code], check=False
    )
    assert done.returncode == 0


def test_streams_without_a_file_are_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    from entity_env.process import ignore_broken_pipe

    before = sys.stdout
    with ignore_broken_pipe():
        assert sys.stdout is before
        print("captured")
    assert capsys.readouterr().out == "captured\n"
