"""`enn check`: the report, and the status that a script sees."""

import textwrap
from pathlib import Path

import pytest

from enn_trainer.cli import run
from tests.enn_trainer.one_line import refused

SOURCE = """
    from dataclasses import dataclass
    from entity_env.examples import Count, Xor
    import neighbour

    @dataclass
    class Settings:
        size: int = 3

    class Bad(Xor):
        def act(self, actions):
            obs = super().act(actions)
            obs.reward = float("nan")
            return obs

    class Sized(Xor):
        def __init__(self, size):
            super().__init__()
            self.size = Settings(size).size

    number = 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("")
    path = tmp_path / "my_world.py"
    path.write_text(textwrap.dedent(SOURCE))
    return str(path)


def test_valid_environments_exit_with_status_0(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for env in ("Xor", "entity_env.examples:Xor", "entity_env.examples.xor:Xor", f"{file}:Xor"):
        assert run(["check", env, "--episodes", "2"]) == 0
        assert capsys.readouterr().out == "Xor: nothing found wrong in 2 episodes, 2 steps\n"
    assert run(["check", f"{file}:Sized", "--kwargs", '{"size": 4}', "--seed", "5"]) == 0
    assert run(["check", "MoveToOrigin", "--max-steps", "10"]) == 0


def test_problems_are_printed_with_status_1(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", f"{file}:Bad"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Bad: 1 problem in 3 episodes, 3 steps\nproblems:\n  reward (episode 0")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["ENV"]),
        (["Xorr"], ["Xorr", "did you mean Xor?"]),
        (["nowhere.py:World"], ["nowhere.py", "does not exist"]),
        (["no.such.module:World"], ["no.such.module", "ModuleNotFoundError"]),
        (["FILE:Worse"], ["Worse"]),
        (["FILE:Sised"], ["Sised", "did you mean Sized?"]),
        (["FILE:number"], ["number", "a class or a function"]),
        (["FILE:Sized"], ["KEY=VALUE", "size"]),
        (["FILE:Sized", "--kwargs", '{"sise": 3}'], ["KEY=VALUE", "size"]),
        (["Xor", "--kwargs", "{size: 3}"], ["KEY=VALUE", "JSON", "size"]),
        (["Xor", "--kwargs", "[3]"], ["KEY=VALUE", "JSON", "[3]"]),
        (["Xor", "--episodes", "0"], ["--episodes", "positive"]),
        (["Xor", "--episodes", "many"], ["--episodes", "many"]),
        (["Xor", "--verbos"], ["--verbos"]),
    ],
)
def test_invalid_argument_prints_one_line_and_exits_with_status_2(
    arguments: list[str], expected: list[str], file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(["check", *(a.replace("FILE", file) for a in arguments)], capsys)
    for word in expected:
        assert word in said


def test_file_that_fails_to_import_prints_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def\n")
    assert run(["check", f"{path}:World"]) == 2
    err = capsys.readouterr().err
    assert "SyntaxError" in err
    assert err.count("\n") == 1


def test_misspelt_check_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["chekc"]) == 2
    assert "did you mean check?" in capsys.readouterr().err
