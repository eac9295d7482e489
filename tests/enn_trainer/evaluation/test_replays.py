"""Replays of evaluations: their pages, and what happens if there is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.cli import run
from enn_trainer.viewer.replay_format import read_replay
from entity_env.examples import Duel
from tests.enn_trainer.evaluation.builders import EPISODES, run_duel
from tests.enn_trainer.viewer.replays import differences

REPLAYS = "eval.capture_replays=true"


@pytest.mark.slow
def test_capture_replays_does_not_change_results(tmp_path: Path) -> None:
    _, without = run_duel(tmp_path / "a", *EPISODES, "total_timesteps=64")
    pages = [REPLAYS, "eval.suites.greedy.deterministic=true"]
    manager, result = run_duel(tmp_path / "b", *EPISODES, *pages, "total_timesteps=64")
    assert {n: v for n, v in result.eval.items() if "greedy" not in n} == without.eval
    folder = tmp_path / "b/runs" / manager.state.run_name / "replays"
    names = [f"step-{step:012d}{suite}.html" for step in (0, 64) for suite in ("", "-greedy")]
    assert sorted(page.name for page in folder.iterdir()) == sorted(names)
    for page in folder.iterdir():
        shown = read_replay(page)
        assert shown.sides == 2
        assert 0 < len(shown.episodes) <= 3
        assert all(episode.influence for episode in shown.episodes)


class Invisible(Duel):
    """A match with a view that raises."""

    def view(self) -> Any:
        raise RuntimeError("no\nview")


@pytest.mark.slow
def test_failed_replay_page_does_not_fail_the_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    episodes = [*EPISODES, "total_timesteps=64", "eval.run_on_first_step=false"]
    _, without = run_duel(tmp_path / "a", *episodes)
    capsys.readouterr()
    manager, result = run_duel(tmp_path / "b", *episodes, REPLAYS, env=Invisible)
    assert result.eval == without.eval
    said = " ".join(capsys.readouterr().out.split())
    assert "no replay: eval.capture_replays: cannot write" in said
    assert "RuntimeError: no view" in said
    assert not list(Path(tmp_path / "b/runs", manager.state.run_name, "replays").iterdir())


@pytest.mark.slow
def test_eval_replay_equals_watch_replay(mines_run: Path, tmp_path: Path) -> None:
    reports = []
    for options in [], ["--replay", str(tmp_path / "eval.html")]:
        report = tmp_path / "report.json"
        given = ["eval", str(mines_run), "--episodes", "8", "--out", str(report), *options]
        assert run(given) == 0
        reports.append(json.loads(report.read_text())["suites"][""]["metrics"])
    assert reports[0] == reports[1]
    page = tmp_path / "watch.html"
    assert run(["watch", str(mines_run), "--out", str(page)]) == 0
    assert not [*differences(read_replay(tmp_path / "eval.html"), read_replay(page))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("page.mp4", "--replay: expected a file named .html"),
        ("notes.html", "exists and is no replay"),
        ("missing/page.html", "--replay: expected a file in a folder to write to"),
    ],
)
def test_replay_option_error_is_one_line(
    name: str,
    expected: str,
    mines_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "notes.html").write_text("nobody wants to lose these")
    given = ["--episodes", "1", "--out", str(tmp_path / "report.json")]
    assert run(["eval", str(mines_run), "--replay", str(tmp_path / name), *given]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert error.startswith("error: ")
    assert expected in error
    assert (tmp_path / "notes.html").read_text() == "nobody wants to lose these"
