"""The soak, as much of it as fits into a run of all tests; `make soak` does all of it.

Each part has a process of its own: it bounds its memory, and forks.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import run_program

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


def options(**asked: int) -> list[str]:
    counts = NOTHING | {name.replace("_", "-"): n for name, n in asked.items()}
    return ["--seed=1", *(f"--{name}={n}" for name, n in counts.items())]


def soak(**asked: int) -> str:
    result = run_program(["-c", SOAK, *options(**asked)], text=True, timeout=280)
    assert result.returncode == 0, result.stdout + result.stderr
    return str(result.stdout)


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_flipped_bits_and_cut_files_are_found_and_named() -> None:
    said = soak(flip_every=5, truncations=300)
    assert len(re.findall(r"(\d\d\d+) tried, \1 refused .* 0 still good", said)) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_files_that_a_damaged_writer_wrote_are_refused_or_good() -> None:
    said = soak(mutations=800)
    refused, good = map(int, re.findall(r"800 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 400, "most damage reaches what must be refused"
    assert good > 20, "some damage changes nothing that matters"


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_damaged_episodes_are_refused_or_gone_on_with() -> None:
    said = soak(episodes=100)
    refused, good = map(int, re.findall(r"100 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 30
    assert good > 5


@pytest.mark.slow
@pytest.mark.usefixtures("_files_in_memory")
def test_false_manifests_are_refused_in_one_line_or_read() -> None:
    said = soak(manifests=300)
    refused, good = map(int, re.findall(r"300 tried, (\d+) refused .* (\d+) still good", said)[0])
    assert refused > 50
    assert good > 50, "a list is given whatever lies in a run, and a run has an earlier save"


@pytest.mark.slow
def test_damaged_recordings_are_refused_or_read_in_little_memory() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.soak"]
    said = subprocess.run(
        [*command, *options(recordings=600)], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    found = re.findall(r"600 tried, (\d+) refused .* (\d+) still good, .* (\d+) MB more", said)
    refused, good, more_mb = map(int, found[0])
    assert refused > 200
    assert good > 20
    assert more_mb < 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kills"), [("kills", 20), ("pool_kills", 20), ("lesson_kills", 10)]
)
def test_killed_runs_go_on_and_end_as_if_never_killed(kind: str, kills: int) -> None:
    said = soak(**{kind: kills})
    assert f"{kills} kills" in said
    in_saves = sum(map(int, re.findall(r"(\d+) (?:before or after )?(?:writing|deleting)", said)))
    assert in_saves >= kills / 4, said


@pytest.mark.slow
def test_runs_that_lose_workers_learn_what_one_learns_that_loses_none() -> None:
    said = soak(losses=3)
    lost = re.search(r"losses: (\d+) workers lost within", said)
    assert lost is not None
    assert int(lost[1]) >= 3


@pytest.mark.slow
def test_a_run_whose_ranks_are_killed_and_stopped_learns_what_one_process_learns() -> None:
    said = soak(rank_kills=2, rank_stops=1)
    assert re.search(r"ranks: 2 killed .* and 1 stopped within \d+ frames", said), said


@pytest.mark.slow
def test_processes_that_environments_start_hold_nothing_of_a_killed_run() -> None:
    said = soak(forks=5)
    assert "5 kills of runs" in said
    started = re.search(r"started (\d+) processes, (\d+) workers ended", said)
    assert started is not None
    assert min(map(int, started.groups())) > 0, said


@pytest.mark.slow
def test_stopped_runs_keep_the_saves_of_a_run_that_went_straight_on() -> None:
    said = soak(stops=6)
    assert "6 stops" in said
    (before,) = re.findall(r"(\d+) left a save before an evaluation", said)
    assert int(before) > 0, said
