"""`enn serve`: a live game that a person can take over, and its recording."""

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from enn_trainer.cli import run
from enn_trainer.viewer.replay_format import read_replay
from entity_env.recording.read_recording import Recording
from tests.enn_trainer.builders import SMALL
from tests.fork_server import ENN, PIPE, start_program

pytest.importorskip("websockets")
from websockets.sync.client import connect
from websockets.sync.server import Server


class Served(NamedTuple):
    """A running command."""

    process: subprocess.Popen[str]
    address: str
    port: int
    token: str


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    command = [*ENN, "serve", *arguments, "--port", "0"]
    with start_program(command, stdout=PIPE, stderr=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            result = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#t=([0-9a-f]{32})", address)
            assert result, (address, process.stderr and process.stderr.read())
            yield Served(process, address, int(result[1]), result[2])
        finally:
            process.kill()


@contextmanager
def tab(game: Served) -> Iterator[Any]:
    custom = f"127.0.0.1:{game.port}"
    with connect(f"ws://{custom}/live", origin=f"http://{custom}") as page:
        page.send(json.dumps({"type": "hello", "token": game.token}))
        yield page


def told(page: Any, kind: str) -> dict[str, Any]:
    while True:
        message: dict[str, Any] = json.loads(page.recv(timeout=30))
        if message["type"] == kind:
            return message


@pytest.mark.slow
@pytest.mark.alone
def test_choices_of_a_person_are_recorded_and_cloned(duel_run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.rec"
    made = 0
    with served(str(duel_run), "--opponent", "random", "--record", str(file)) as game:
        with tab(game) as page, tab(game) as other:
            assert told(page, "steps")["first"] == 0
            page.send('{"type": "take", "side": 0, "key": null}')
            while not (places := told(page, "places"))["yours"]:
                pass
            assert places["places"] == [[0, None]]
            for _ in range(6):
                waiting = told(page, "waiting")
                choices = [[*actor, 0] for actor in waiting["actors"]]
                made += len(choices)
                step = {"episode": waiting["episode"], "step": waiting["step"]}
                page.send(json.dumps({"type": "choose", **step, "choices": choices}))
            page.send('{"type": "give"}')
            assert not told(page, "places")["yours"]
            told(page, "steps")
            assert not told(other, "places")["yours"]
            told(other, "steps")
        game.process.send_signal(signal.SIGINT)
        out, err = game.process.communicate(timeout=60)
    assert game.process.returncode == 0, err
    assert "the server has ended" in err
    assert f"enn clone {file}" in out
    recording = Recording.open(file)
    assert recording.complete
    by_hand = [step.decisions.by_hand["attack"] for step in recording.steps()]
    assert sum(int(rows.values.sum()) for rows in by_hand) == made
    assert not any(rows[1].values.any() for rows in by_hand)
    chosen = [step.decisions.actions["attack"] for step in recording.steps()]
    assert all((c.values[h.values] == 0).all() for c, h in zip(chosen, by_hand, strict=True))
    assert any(not rows.values.any() for rows in by_hand)
    # The page of the recording shows the author of each choice.
    page_file = tmp_path / "mine.html"
    assert run(["watch", str(file), "--out", str(page_file), "--episodes", "99"]) == 0
    output = [one.by_hand for one in read_replay(page_file).episodes]
    assert sum(int(one["attack"].sum()) for one in output if one is not None) == made
    # The choices of the person, and no others, are learnt.
    settings = ["env.id=Duel", "clone.epochs=1", "clone.test_fraction=0", "net.d_model=8"]
    clone = ["clone", str(file), *settings, "--checkpoint-dir", str(tmp_path / "clone")]
    assert run(clone) == 0
    every = [*clone[:-1], str(tmp_path / "all"), "clone.who=all"]
    assert run(every) == 0


@pytest.mark.slow
@pytest.mark.alone
def test_follow_plays_the_newest_save(duel_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    settings = [*SMALL, "total_timesteps=24", "env.id=Duel"]
    assert run(["train", *settings, "--checkpoint-dir", str(folder)]) == 0
    with served(str(folder), "--follow", "--fps", "1000") as game, tab(game) as page:
        assert told(page, "episode")["about"] == "step 24 of the run"
        assert run(["resume", str(folder), "total_timesteps=48"]) == 0
        for _ in range(200):  # some began before the save was there
            report = told(page, "episode")["about"]
            if report != "step 24 of the run":
                break
    assert report == "step 48 of the run"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--host", "0.0.0.0"], "--host: expected 127.0.0.1, .*: ssh -L 8765:127.0.0.1:8765"),
        (["--fps", "0"], "--fps: expected more than 0 and at most 1000, got 0.0"),
        (["--fps", "nan"], "--fps: expected more than 0"),
        (["--port", "70000"], "--port: expected 0 to 65535, got 70000"),
        (["--record", "/no/such/folder/file.rec"], "--record: expected a file in a folder"),
        (["--opponent", "/no/such/run", "--port", "0"], "--opponent: "),
        (["--positions", "a,b", "--port", "0"], "--positions: "),
    ],
)
def test_usage_errors_print_one_line(
    options: list[str], message: str, duel_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(duel_run), *options]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert re.match(f"error: {message}", line)


def test_missing_run_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "/no/such/run"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "/no/such/run" in line


def test_existing_file_of_another_type_is_not_overwritten(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.rec"
    notes.write_text("nobody wants to lose these")
    assert run(["serve", str(mines_run), "--record", str(notes), "--port", "0"]) == 1
    out, err = capsys.readouterr()
    assert "is not a recording" in err
    assert out == "", "there is no address to open"
    assert notes.read_text() == "nobody wants to lose these"


def test_server_that_cannot_listen_prints_one_line(
    mines_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(server: Server) -> None:
        server.socket_closed.set()
        server.shutdown_watcher.close()  # as it does at its end
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Server, "serve_forever", failing)
    assert run(["serve", str(mines_run), "--port", "0"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("error: the server at port ")
    assert "has stopped: can't start new thread" in line


def test_an_opponent_needs_a_match(mines_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", str(mines_run), "--opponent", "random", "--port", "0"]) == 2
    assert "--opponent: expected a match of several sides" in capsys.readouterr().err
