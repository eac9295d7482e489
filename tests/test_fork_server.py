"""A forked program is seen as one of a new interpreter is."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import PIPE, ForkedProgram, run_program, start_program

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(3)", 3),
        ("1 / 0", 1),
        ("import os; os._exit(4)", 4),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 2)", -signal.SIGINT),
        ("import os; os.kill(os.getpid(), 15)", -signal.SIGTERM),
    ],
)
def test_exit_status_is_that_of_the_program(code: str, status: int) -> None:
    assert run_program(["-c", code]).returncode == status


def test_arguments_folder_and_environment_variables_are_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "1")
    monkeypatch.delenv("HOME", raising=False)
    code = "import os, sys; print(sys.argv, sys.path[0], os.getcwd(), os.getenv('MINE'))"
    done = run_program(["-c", code + "; assert 'HOME' not in os.environ", "a b"], cwd=tmp_path)
    assert done.stderr == b""
    assert done.stdout.decode() == f"['-c', 'a b']  {tmp_path} 1\n"


def test_startup_environment_variables_must_match_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_program(["-c", "pass"])
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    with pytest.raises(ValueError, match="PYTHONIOENCODING"):
        ForkedProgram(["-c", "pass"])


ALONE = """
import os, threading
print(len(os.listdir("/proc/self/fd")), os.getpid(), os.getsid(0), threading.active_count())
print(flush=True)
input()
"""


def test_program_is_a_process_with_its_own_pipes() -> None:
    """Nothing of another program is open in it, and it ends by its own signals."""
    with start_program(["-c", "input()"], stdin=PIPE, stdout=PIPE, stderr=subprocess.DEVNULL):
        program = start_program(
            ["-c", ALONE],
            stdin=PIPE,
            stdout=PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert program.stdout is not None
        # Three streams, and that of the list itself.
        assert program.stdout.readline() == f"4 {program.pid} {program.pid} 1\n"
        assert program.stdout.readline() == "\n"
        assert program.poll() is None
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate()
    assert out.endswith("KeyboardInterrupt\n")
    assert program.returncode == program.wait() == -signal.SIGINT


def test_program_is_killed_after_the_timeout() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_program(["-c", "import time; time.sleep(60)"], timeout=0.2)


def test_exit_handlers_run_at_the_end_of_a_program() -> None:
    code = "import atexit; atexit.register(print, 'bye'); print('hello')"
    assert run_program(["-c", code], text=True).stdout == "hello\nbye\n"
