"""`enn eval`: what it measures, shows and writes."""

import json
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from enn_trainer import ConfigError
from enn_trainer.cli import run
from enn_trainer.cli.eval_command import parser
from enn_trainer.cli.playing_options import with_option_names
from enn_trainer.cli.typed_settings import split_pairs
from enn_trainer.cli.work.evaluate import _num_envs, eval_progress, table
from enn_trainer.cli.work.evaluate import config_of as eval_config_of
from enn_trainer.evaluation.evaluation import SuiteResult
from enn_trainer.experience.envs import env_factory
from enn_trainer.experience.episodes import Measured
from entity_env.examples import MineSweeper
from tests.enn_trainer.builders import MINES, make_read_only, run_small
from tests.enn_trainer.checkpoints.published import GOLDEN
from tests.enn_trainer.evaluation.builders import config_of
from tests.enn_trainer.one_line import refused
from tests.enn_trainer.worlds import make_ring
from tests.fork_server import ENN, start_program

QUICK = ["--episodes", "12", "--num-envs", "6"]


def evaluated(tmp_path: Path, *arguments: str, status: int = 0) -> Any:
    file = tmp_path / "out.json"
    assert run(["eval", *arguments, "--out", str(file)]) == status
    return json.loads(file.read_text())


@pytest.mark.slow
def test_suites_override_the_arguments_of_training(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(
        tmp_path, str(mines_run), *QUICK, "--suite", "nmines=4", "--suite", "nrobots=2,nmines=3"
    )
    assert list(result["suites"]) == ["", "nmines=4", "nrobots=2,nmines=3"]
    trained, four, both = result["suites"].values()
    for suite in (trained, four, both):
        assert (suite["episodes"], suite["missing"]) == (12, 0)
        assert suite["metrics"]["episodic_reward"]["count"] == 12
        assert suite["metrics"]["episodic_reward"]["ci95"] >= 0
    assert trained["metrics"]["entity_count/Mine"]["max"] == 2
    assert four["metrics"]["entity_count/Mine"]["max"] == 4
    assert json.loads(both["config"]["env.kwargs"]) == MINES | {"nmines": 3, "nrobots": 2}
    assert result["step"] > 0
    assert Path(result["checkpoint"]).is_dir()
    captured = capsys.readouterr()
    assert re.search(r"nmines=4 +episodic_reward +[\d.e+-]+ ± [\d.e+-]+ ", captured.out)
    assert "\x1b" not in captured.out
    assert f"written to {tmp_path / 'out.json'}" in captured.out


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_processes(mines_run: Path, tmp_path: Path) -> None:
    single = evaluated(tmp_path, str(mines_run), *QUICK)
    again = evaluated(tmp_path, str(mines_run), *QUICK)
    two = evaluated(tmp_path, str(mines_run), *QUICK, "--processes", "2")
    assert single == again
    assert two["suites"][""].pop("config") != single["suites"][""].pop("config")
    assert two == single
    other = evaluated(tmp_path, str(mines_run), *QUICK, "--seed", "5")
    assert other["suites"][""]["metrics"] != single["suites"][""]["metrics"]


@pytest.mark.slow
def test_report_is_written_to_the_run_folder_by_default(mines_run: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(mines_run, run_dir)
    assert run(["eval", str(run_dir), *QUICK]) == 0
    [path] = run_dir.glob("eval-step-*.json")
    assert json.loads(path.read_text())["suites"][""]["episodes"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_results_of_a_run_in_a_read_only_folder_are_printed(
    options: list[str],
    mines_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(mines_run, tmp_path / "run")
    make_read_only(folder, monkeypatch)
    before = sorted(folder.rglob("*"))
    assert run(["eval", str(folder), *QUICK, *options]) == 0
    out, err = capsys.readouterr()
    assert "episodic_reward" in out
    assert "the folder of the run is read-only; use --out FILE" in err
    assert sorted(folder.rglob("*")) == before
    assert run(["eval", str(folder), *QUICK, "--out", str(folder / "report.json")]) == 2


@pytest.mark.slow
def test_opponents_play_the_other_side(duel_run: Path, tmp_path: Path) -> None:
    for opponent in ("random", str(duel_run)):
        result = evaluated(
            tmp_path, str(duel_run), *QUICK, "--opponent", opponent, "--deterministic"
        )
        assert result["suites"][""]["metrics"]["win"]["count"] == 12


def test_notes_tell_when_an_opponent_is_missing_or_has_no_effect(
    duel_run: Path, mines_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def notes(folder: Path, *options: str) -> list[str]:
        assert run(["eval", str(folder), *QUICK, *options]) == 0
        return [x for x in capsys.readouterr().err.splitlines() if x.startswith("note: ")]

    assert notes(mines_run) == notes(duel_run, "--opponent", "random") == []
    [missing] = notes(duel_run)
    assert "the agent plays all 2 sides of a match; to measure it" in missing
    [useless] = notes(mines_run, "--opponent", "random")
    assert "--opponent: no effect" in useless


def test_published_checkpoint_is_evaluated(tmp_path: Path) -> None:
    """It learnt to take the best cherries first, which is a return of 1."""
    result = evaluated(tmp_path, str(GOLDEN), *QUICK, "--deterministic")
    reward = result["suites"][""]["metrics"]["episodic_reward"]
    assert reward["min"] == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
def test_environment_of_a_file_is_selected_with_env(mines_run: Path, tmp_path: Path) -> None:
    world = tmp_path / "mine_world.py"
    world.write_text("from entity_env.examples import MineSweeper\nclass Mine(MineSweeper): pass\n")
    exists = ["--env", f"{world}:Mine", "--env-kwargs", "nmines=2,nrobots=1"]
    result = evaluated(tmp_path, str(mines_run), *QUICK, *exists, "--processes", "2")
    assert result["suites"][""]["config"]["env.id"] == f"{world}:Mine"
    assert result["suites"][""]["metrics"]["entity_count/Mine"]["max"] == 2


def test_unfinished_episodes_are_an_error_with_partial_results(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = evaluated(tmp_path, str(mines_run), *QUICK, "--max-steps", "1", status=1)
    assert result["suites"][""]["missing"] > 0
    assert "raise --max-steps" in capsys.readouterr().err


@pytest.mark.slow
def test_each_suite_has_a_video(mines_run: Path, tmp_path: Path) -> None:
    film = tmp_path / "film.gif"
    few = ["--episodes", "2", "--num-envs", "2"]
    evaluated(tmp_path, str(mines_run), *few, "--video", str(film), "--suite", "nmines=1")
    assert film.stat().st_size > 1000
    assert (tmp_path / "film-nmines=1.gif").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["CHECKPOINT"]),
        (["nowhere"], ["nowhere", "checkpoint"]),
        (["DUEL", "--env", "Xor"], ["--env: Xor", "other spaces"]),
        (["MINES", "--env", "Xor"], ["--env: Xor has other spaces"]),
        (["MINES", "--env", "Xor", "--env-kwargs", "n=1"], ["--env-kwargs", "Xor takes"]),
        (["MINES", "--suite", "nmines=3,nmines=4"], ["--suite", "nmines twice"]),
        (["MINES", "--out", "/dev/full"], ["--out", "/dev/full"]),
        (["MINES", "--video", ".gif"], ["--video", ".mp4 or .gif"]),
        (["MINES", "--opponent", "random", "--num-envs", "1"], ["--num-envs", "at least 2"]),
        (["MINES", "--env", "Xorr"], ["--env", "did you mean Xor?"]),
        (["MINES", "--suite", "nmine=3"], ["--suite nmine=3", "nmine"]),
        (["MINES", "--suite", "3"], ["--suite", "size=3"]),
        (["MINES", "--suite", "nmines=3", "--suite", "nmines=3"], ["twice"]),
        (["MINES", "--baseline", "best"], ["--baseline", "'random', 'greedy'"]),
        (["MINES", "--baseline", "random", "--opponent", "random"], ["--baseline random"]),
        (["MINES", "--baseline", "greedy", "--deterministic"], ["--baseline greedy"]),
        (["MINES", "--opponent", "nowhere"], ["--opponent: nowhere"]),
        (["MINES", "--episodes", "0"], ["--episodes"]),
        (["MINES", "--seed", "-1"], ["--seed"]),
        (["MINES", "--out", "/no/such/folder/a.json"], ["--out"]),
        (["MINES", "--video", "a.avi"], ["--video", ".mp4"]),
        (["DUEL", "--num-envs", "3"], ["--num-envs", "multiples of 2"]),
    ],
)
def test_invalid_argument_prints_one_line_and_exits_with_status_2(
    arguments: list[str],
    expected: list[str],
    mines_run: Path,
    duel_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = [{"MINES": str(mines_run), "DUEL": str(duel_run)}.get(a, a) for a in arguments]
    said = refused(["eval", *values], capsys)
    for word in expected:
        assert word in said


@pytest.mark.slow
def test_number_of_environments_of_a_suite_fits_its_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody typed a number, so none is refused."""
    name = "tests.enn_trainer.worlds:make_ring"
    run_small(tmp_path, f"env.id={name}", env=make_ring, checkpoint_dir=tmp_path / "run")
    ring = [str(tmp_path / "run"), "--env", name, "--episodes", "12"]
    suites = ["--suite", "n=2", "--suite", "n=5", "--suite", "n=4"]
    for more in (["--processes", "1", *suites], ["--processes", "2", *suites[2:4]]):
        result = evaluated(tmp_path, *ring, *more)["suites"]
        assert [suite["episodes"] for suite in result.values()] == [12] * (len(more) // 2)
    capsys.readouterr()
    line = refused(["eval", *ring, *suites, "--num-envs", "4"], capsys)
    assert "--num-envs: expected multiples of 5, the sides of a match in --suite n=5, got 4" in line
    assert evaluated(tmp_path, *ring, *suites, "--num-envs", "20")


def test_run_of_an_unknown_environment_asks_for_env(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A factory of vectorised environments, which may read `env.id`, keeps its default."""
    factory = env_factory(MineSweeper)
    run_small(
        tmp_path,
        env=lambda config, num_envs, processes, first: factory(config, num_envs, processes, first),
        checkpoint_dir=tmp_path / "run",
    )
    capsys.readouterr()
    assert run(["eval", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "env.id: MoveToOrigin, named by the checkpoint, has other spaces" in err
    assert err.rstrip().endswith("name it with --env")


def test_commas_in_brackets_and_quotes_do_not_separate() -> None:
    assert split_pairs('a=[1,2],b="x,y",c=3') == ["a=[1,2]", 'b="x,y"', "c=3"]


def test_terminal_gets_a_table_and_a_bar() -> None:
    console = Console(force_terminal=True, width=120)
    results = {
        name: SuiteResult({"r": Measured(0.5, 0.1, 0, 1, 9)}, 9, 0, 5) for name in ("", "[b]")
    }
    with console.capture() as output:
        table(results, console)
        with eval_progress(console) as watch:
            watch("", 0.5)
            watch("", 1.0)
    assert "0.5 ± 0.1" in output.get()
    assert "[b]" in output.get()
    assert "━" in output.get()


@pytest.mark.slow
@pytest.mark.parametrize("output", ["closed", "full", "ascii"])
def test_report_is_written_even_if_the_table_cannot_be_printed(
    mines_run: Path, tmp_path: Path, output: str
) -> None:
    file = tmp_path / "out.json"
    option, code = ENN
    if output == "ascii":  # as PYTHONIOENCODING=ascii sets it up
        stream = "open(1, 'w', encoding='ascii', closefd=False)"
        code = f"import sys; sys.stdout = sys.__stdout__ = {stream}; {code}"
    command = [option, code, "eval", str(mines_run), *QUICK, "--out", str(file)]
    with open("/dev/full", "w") as full:  # noqa: PTH123
        stdout = full.fileno() if output == "full" else subprocess.PIPE
        process = start_program(command, stdout=stdout, stderr=subprocess.PIPE, text=True)
        if output == "closed":
            assert process.stdout is not None
            process.stdout.close()
        out, err = process.communicate()
    assert json.loads(file.read_text())["suites"][""]["episodes"] == 12
    assert "Traceback" not in err
    assert "Exception" not in err
    assert "as trained: 0%" in err
    assert ("+-" in (out or "")) == (output == "ascii")
    if output == "full":
        assert process.returncode == 1
        assert f"error: standard output: No space left on device; the numbers are in {file}" in err


@pytest.mark.alone
@pytest.mark.slow
def test_terminated_evaluation_leaves_no_partial_video(duel_run: Path, tmp_path: Path) -> None:
    film, half = tmp_path / "film.mp4", tmp_path / ".writing-film.mp4"
    command = [*ENN, "eval", str(duel_run), "--episodes", "100000", "--num-envs", "4"]
    with start_program(
        [*command, "--video", str(film), "--json", str(tmp_path / "a.json")],
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        # Before it has a frame, ffmpeg says that nothing was encoded.
        while not (half.exists() and half.stat().st_size) and process.poll() is None:
            time.sleep(0.05)
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert err.endswith("interrupted; nothing was measured\n")
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_report_is_not_written_into_a_save(
    mines_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(mines_run, tmp_path / "run")
    *_, save = sorted((tmp_path / "run").glob("step-*"))
    before = sorted(save.iterdir())
    monkeypatch.chdir(save)
    assert run(["eval", ".", *QUICK]) == 0
    assert sorted(save.iterdir()) == before


@pytest.mark.slow
def test_report_is_written_through_a_link(mines_run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.json").symlink_to("there.json")
    evaluated(tmp_path, str(mines_run), *QUICK)
    assert (tmp_path / "out.json").is_symlink()
    assert json.loads((tmp_path / "there.json").read_text())["suites"]


@pytest.mark.parametrize(
    ("arguments", "trained", "sides", "expected"),
    [
        ([], 256, 3, 255),
        ([], 2, 3, 3),
        ([], 1000, 2, 256),
        (["--episodes", "5"], 64, 1, 5),
        (["--episodes", "5", "--opponent", "random"], 64, 1, 10),
        (["--opponent", "random"], 1, 1, 2),
        (["--opponent", "random"], 1, 2, 2),
    ],
)
def test_default_number_of_environments_fits_sides_and_episodes(
    arguments: list[str], trained: int, sides: int, expected: int
) -> None:
    config = config_of(f"rollout.num_envs={trained}", "optim.bs=2")
    assert _num_envs(config, parser().parse_args(["run", *arguments]), sides) == expected


def test_argument_with_a_slash_is_a_suite() -> None:
    options = parser().parse_args(["run", "--suite", "label=maps/a.json"])
    config = eval_config_of(config_of(), options)
    assert config.eval is not None
    [(name, suite)] = config.eval.suites.items()
    assert name == "label=maps_a.json"
    assert suite.env is not None
    assert json.loads(suite.env.kwargs) == {"label": "maps/a.json"}


@pytest.mark.slow
def test_another_environment_does_not_get_the_arguments_of_the_run(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = tmp_path / "other_mines.py"
    world.write_text("from entity_env.examples import MineSweeper\nclass Mine(MineSweeper): pass\n")
    result = evaluated(tmp_path, str(mines_run), *QUICK, "--env", f"{world}:Mine")
    assert result["suites"][""]["config"]["env.kwargs"] == "{}"
    assert f"the arguments of the run, {json.dumps(MINES)}" in capsys.readouterr().err
    result = evaluated(tmp_path, str(mines_run), "nmines=4", *QUICK)
    assert result == evaluated(tmp_path, str(mines_run), *QUICK, "--env-kwargs", "nmines=4")
    assert result["suites"][""]["metrics"]["entity_count/Mine"]["max"] == 4
    assert result["suites"][""]["metrics"]["entity_count/Robot"]["max"] == 1


def test_any_exception_of_an_environment_prints_one_line_with_its_location(
    mines_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = tmp_path / "broken_mines.py"
    world.write_text(
        "from entity_env.examples import MineSweeper\n"
        "class Mine(MineSweeper):\n"
        "    def act(self, actions): return 1 / 0\n"
    )
    assert (
        run(
            [
                "eval",
                str(mines_run),
                *QUICK,
                "--env",
                f"{world}:Mine",
                "--out",
                str(tmp_path / "a"),
            ]
        )
        == 1
    )
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "error: ZeroDivisionError: division by zero: in environment 0, episode 0"
    )


def test_baselines_play_the_same_episodes_as_the_agent(
    xor_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = ["--baseline", "random", "--baseline", "greedy"]
    result = evaluated(tmp_path, str(xor_run), *QUICK, *both)["suites"]
    lines = capsys.readouterr().out.splitlines()
    output = [tuple(re.split("  +", line)[:2]) for line in lines]
    titles = ["as trained", "random", "greedy"]
    assert output[1:4] == [(title, "episodic_reward") for title in titles]
    assert all(metric != "episodic_reward" for _, metric in output[4:-1])
    plain = evaluated(tmp_path, str(xor_run), *QUICK)["suites"]
    greedy = evaluated(tmp_path, str(xor_run), *QUICK, "--deterministic")["suites"]
    assert result[""] == plain[""]
    assert result["greedy"]["metrics"] == greedy[""]["metrics"]
    assert result["random"]["episodes"] == 12
    assert result["random"]["config"]["opponent_only"]


def test_each_suite_has_its_baselines() -> None:
    options = parser().parse_args(["run", "--suite", "n=3", "--baseline", "random"])
    evaluation = eval_config_of(config_of(), options).eval
    assert evaluation is not None
    assert list(evaluation.suites) == ["n=3", "random", "n=3 random"]
    suite_rows = evaluation.suites["n=3 random"]
    assert suite_rows.env == evaluation.suites["n=3"].env
    assert (suite_rows.opponent, suite_rows.opponent_only) == ("random", True)


def test_names_are_readable_on_a_narrow_terminal() -> None:
    console = Console(force_terminal=True, width=50)
    name = "episodic_reward_of_a_long_name"
    with console.capture() as output:
        table({"": SuiteResult({name: Measured(0.5, 0.1, 0, 1, 9)}, 9, 0, 5)}, console)
    plain = re.sub(r"\x1b\[[\d;]*m", "", output.get())
    assert "…" not in plain
    cells = "".join(line.split("│")[2].strip() for line in plain.splitlines() if "│" in line)
    assert name in cells


def test_missing_results_are_reported() -> None:
    console = Console(width=100)
    with console.capture() as output:
        table({"": SuiteResult({}, 0, 12, 5)}, console)
    assert output.get() == "as trained: no results, because no episode counts, 12 did not end\n"


def test_new_suite_is_displayed_immediately() -> None:
    console = Console(width=100)
    with console.capture() as output, eval_progress(console) as watch:
        watch("", 0.0)
        watch("", 0.5)
        watch("n=3", 0.0)
    assert output.get() == "as trained: 0%\nn=3: 0%\n"


def test_settings_in_messages_become_options_except_in_paths() -> None:
    error = ConfigError("eval.opponent: eval.opponent/a is no checkpoint", "eval.suites['a'].b: c")
    assert with_option_names(error) == (
        "--opponent: eval.opponent/a is no checkpoint; --suite['a'].b: c"
    )
