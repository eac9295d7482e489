"""The soak: a few kills and a little damage of each kind; `make soak` does much more, and ranks.

Each part has a process of its own: it bounds its memory, and forks.
"""

import re
from pathlib import Path

import pytest

from tests.fork_server import run_program
from tests.soak.kills import MINIBATCH, OPERATIONS

NOTHING = dict.fromkeys(
    [
        "episodes",
        "flip-every",
        "forks",
        "kills",
        "losses",
        "manifests",
        "mutations",
        "pool-kills",
        "lesson-kills",
        "rank-kills",
        "rank-stops",
        "recordings",
        "stops",
        "truncations",
    ],
    0,
)


MEMORY = Path("/dev/shm")
SOAK = """
import runpy, warnings
warnings.simplefilter("error")
runpy.run_module("tests.soak", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def _files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that write thousands of damaged files only to read them: a disk takes 20 s more."""
    if MEMORY.is_dir():
        monkeypatch.setenv("TMPDIR", str(MEMORY))


def soak(*options: str, seed: int = 1, **asked: int) -> str:
    counts = NOTHING | {name.replace("_", "-"): n for name, n in asked.items()}
    typed = [f"--seed={seed}", *(f"--{name}={n}" for name, n in counts.items()), *options]
    result = run_program(["-c", SOAK, *typed], text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_flipped_bits_and_truncated_files_are_detected_and_named() -> None:
    said = soak(flip_every=40, truncations=100)
    assert len(re.findall(r"(\d\d+) tried, \1 refused .* 0 still good", said)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_files_of_a_faulty_writer_are_rejected_or_valid() -> None:
    said = soak(mutations=160)
    refused, good = map(int, re.findall(r"160 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 80, "most damage reaches what must be refused"
    assert good > 4, "some damage changes nothing that matters"


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_damaged_episodes_are_rejected_or_continued() -> None:
    said = soak(episodes=24)
    refused, good = map(int, re.findall(r"24 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 6
    assert good > 1


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_false_manifests_are_rejected_in_one_line_or_read() -> None:
    said = soak(manifests=90)
    refused, good = map(int, re.findall(r"90 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 15
    assert good > 15, "a list is given whatever lies in a run, and a run has an earlier save"


@pytest.mark.slow
def test_damaged_recordings_are_rejected_or_read_in_bounded_memory() -> None:
    said = soak(recordings=150)
    found = re.findall(r"150 tried, (\d+) refused .* (\d+) still good, .* (\d+) MB more", said)
    refused, good, more_mb = map(int, found[0])
    assert refused > 50
    assert good > 5
    assert more_mb < 200


@pytest.mark.slow
def test_runs_killed_during_saves_resume_to_equal_results() -> None:
    """With opponents at operations on shared files; with a curriculum in the first checkpoint."""
    said = soak("--at-operations", kills=8, pool_kills=3, lesson_kills=2)
    alone, with_pool, with_lessons = (line for line in said.splitlines() if "kills (" in line)
    for operation in (*OPERATIONS, MINIBATCH):
        assert f"1 at {operation}," in (with_pool if operation == "link_file" else alone), said
    assert "2 kills" in with_lessons


@pytest.mark.slow
def test_runs_that_lose_workers_have_equal_results() -> None:
    said = soak(losses=2)
    lost = re.search(r"losses: (\d+) workers lost within", said)
    assert lost is not None
    assert int(lost[1]) >= 2


@pytest.mark.slow
def test_child_processes_of_environments_hold_no_resources_of_a_killed_run() -> None:
    said = soak(forks=2)
    assert "2 kills of runs" in said
    started = re.search(r"started (\d+) processes, (\d+) workers ended", said)
    assert started is not None
    assert min(map(int, started.groups())) > 0, said


@pytest.mark.slow
def test_stopped_and_resumed_runs_have_equal_checkpoints() -> None:
    """By SIGTERM in the update before an evaluation, and by SIGKILL in a later one."""
    said = soak(seed=224, stops=2)
    assert "2 stops (1 by SIGTERM" in said
    (before,) = re.findall(r"(\d+) left a save before an evaluation", said)
    assert int(before) > 0, said
