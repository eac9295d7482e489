"""Searches that are killed, stopped, or shared by two processes."""

import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.checkpoints.run_lock import LOCK, is_locked
from tests.enn_trainer.tuning.builders import content, reopened, toy_plan, toy_search
from tests.fork_server import start_program

pytest.importorskip("optuna", reason="the extra tune is not installed")

ROOT = Path(__file__).parents[3]
DRIVER = """
import socket, sys
from pathlib import Path
from enn_trainer.tuning import trials
from enn_trainer.tuning.driver import Driver
from enn_trainer.tuning.search import open_search
from tests.enn_trainer.tuning.builders import STUB, toy_plan

trials.ENN_TRAIN, trials.POLL_S = STUB, 0.01
if sys.argv[3]:
    socket.gethostname = lambda: sys.argv[3]
plan, limits = toy_plan(seeds=2, prune="median"), {"trials": int(sys.argv[2]), "confirm": 0}
study, limits = open_search(Path(sys.argv[1]), plan, limits)
sys.exit(Driver(study, limits).run())
"""
TRIALS = 12  # TPE draws from the tenth result on
EVENTS = ("driver", "trial", "both", "stop")


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a search that is never killed."""
    folder = tmp_path_factory.mktemp("straight") / "s"
    toy_search(folder, toy_plan(seeds=2, prune="median"), trials=TRIALS)
    return folder


@pytest.fixture(autouse=True)
def _evaluations_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB", json.dumps({"seconds": 0.02}))


def start_driver(folder: Path, trials: int = TRIALS, host: str = "") -> Any:
    return start_program(["-c", DRIVER, str(folder), str(trials), host], cwd=ROOT)


def num_lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def kill_trials(folder: Path) -> None:
    for run_dir in folder.glob("trial-*/seed-*/"):
        if is_locked(run_dir):
            pid = json.loads((run_dir / LOCK).read_text() or "{}").get("pid")
            if pid:
                os.kill(pid, signal.SIGKILL)


def finish(folder: Path, event: str, moment: int) -> None:
    """Run a search to its end, with an event when its journal has a number of lines."""
    with start_driver(folder) as driver:
        while num_lines(folder / "journal.log") < moment and driver.poll() is None:
            time.sleep(0.002)
        if event in ("driver", "both"):
            driver.kill()
        if event in ("trial", "both"):
            kill_trials(folder)
        if event == "stop":
            driver.terminate()
        status = driver.wait(120)
    expected = {"driver": -signal.SIGKILL, "trial": 0, "both": -signal.SIGKILL, "stop": 143}
    assert status in (0, expected[event])
    with start_driver(folder) as driver:
        assert driver.wait(120) == 0


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("event", EVENTS)
def test_a_killed_search_continues_as_if_it_had_not_been(
    event: str, straight: Path, tmp_path: Path
) -> None:
    lines = num_lines(straight / "journal.log")
    finish(tmp_path / "s", event, lines * (2 + EVENTS.index(event)) // 7)
    assert content(reopened(tmp_path / "s")) == content(reopened(straight))


@pytest.mark.alone
@pytest.mark.soak
@pytest.mark.parametrize("share", [i / 20 for i in range(20)])
def test_a_search_can_be_killed_at_any_time(share: float, straight: Path, tmp_path: Path) -> None:
    event = EVENTS[int(share * 20) % 4]
    finish(tmp_path / "s", event, int(num_lines(straight / "journal.log") * share))
    assert content(reopened(tmp_path / "s")) == content(reopened(straight))


@pytest.mark.alone
@pytest.mark.slow
def test_two_drivers_train_each_trial_once(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    with start_driver(folder, 10) as first:
        while not (folder / "journal.log").exists():
            time.sleep(0.01)
        with start_driver(folder, 10) as second:
            assert [first.wait(120), second.wait(120)] == [0, 0]
    assert [trial.state.name for trial in reopened(folder).trials()].count("RUNNING") == 0
    assert len(reopened(folder).trials()) == 10
    starts = [path.read_text().split() for path in folder.rglob("starts.txt")]
    assert all(len(pids) == 1 for pids in starts)


@pytest.mark.alone
@pytest.mark.slow
def test_a_trial_of_a_killed_driver_on_another_host_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "s"
    with monkeypatch.context() as patch:
        patch.setenv("STUB", json.dumps({"seconds": 3600}))
        with start_driver(folder, 3, "elsewhere") as other:
            while not is_locked(folder / "trial-0000" / "seed-1"):
                time.sleep(0.01)
            other.kill()
        kill_trials(folder)
    with start_driver(folder, 3) as driver:
        assert driver.wait(120) == 0
    states = [(t.state.name, t.user_attrs["host"]) for t in reopened(folder).trials()]
    assert states == [("RUNNING", "elsewhere"), *[("COMPLETE", socket.gethostname())] * 2]


def test_a_torn_line_of_the_journal_is_removed(tmp_path: Path) -> None:
    journal = tmp_path / "s" / "journal.log"
    study = toy_search(tmp_path / "s", trials=2)
    whole = journal.read_bytes()
    torn = whole + b'{"op_code": 4, "wor'
    journal.write_bytes(torn)
    assert len(reopened(tmp_path / "s").trials()) == 2
    assert journal.read_bytes().startswith(whole + b"{")
    # Also while a driver runs, of another one that was killed.
    journal.write_bytes(torn)
    study.record_confirmed(0, 9, study.runs(0)[1])
    assert reopened(tmp_path / "s").confirmed().keys() == {0}
