"""Worlds named by `env.id`: in a file, in a module, or shipped."""

import sys
import textwrap
from pathlib import Path

import pytest

from enn_trainer import load_agent, load_checkpoint
from enn_trainer.cli import run
from tests.enn_trainer.builders import SMALL
from tests.fork_server import ENN, run_program

SOURCE = """
    import functools
    from pathlib import Path
    from entity_env.examples import Duel, Xor
    import neighbour

    Path(__file__).with_name("imported").touch()

    class Mine(Xor):
        def __init__(self, size=0):
            super().__init__()
            self.size = size

        def reset(self):
            import late_neighbour
            obs = super().reset()
            obs.metrics["size"] = float(self.size + neighbour.ONE + late_neighbour.ONE)
            return obs

    class Faulty(Xor):
        def __init__(self):
            raise RuntimeError("out of order")

    def make_match() -> Duel:
        return Duel()

    def make_faulty() -> "Xor | Duel":
        raise RuntimeError("out of order")

    sized = functools.partial(Mine, size=3)

    class Ours(Duel):
        pass

    def nothing():
        Path(__file__).with_name("called").touch()
        return Xor()

    number = 3
"""
RUN = [*SMALL, "data_dir=."]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    folder = tmp_path / "worlds"
    folder.mkdir()
    (folder / "my_world.py").write_text(textwrap.dedent(SOURCE))
    for name in ("neighbour", "late_neighbour"):
        (folder / f"{name}.py").write_text("ONE = 1\n")
        monkeypatch.delitem(sys.modules, name, raising=False)


FILE = "worlds/my_world.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "processes"), [("Mine", 1), ("sized", 2), ("Ours", 1), ("make_match", 2)]
)
def test_an_environment_of_a_file_trains(
    name: str, processes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With two processes the workers, which are fresh interpreters, import it themselves.

    `test_results_do_not_depend_on_the_number_of_processes` trains in a class with two processes.
    """
    arguments = [f"env.id={FILE}:{name}", *RUN, f"rollout.processes={processes}"]
    assert run(["train", *arguments]) == 0, capsys.readouterr().err
    assert "step 72/72 (100%)" in capsys.readouterr().out
    (folder,) = Path("runs").iterdir()
    assert folder.name == f"{name}-1"


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_processes() -> None:
    steps = []
    for processes in (1, 2):
        folder = f"run{processes}"
        arguments = [f"env.id={FILE}:Ours", *RUN, f"rollout.processes={processes}"]
        assert run(["train", *arguments, "--checkpoint-dir", folder]) == 0
        *_, save = sorted(Path(folder).glob("step-*"))
        steps.append((save / "state.agent.safetensors").read_bytes())
    assert steps[0] == steps[1]


@pytest.mark.slow
def test_an_environment_of_a_module_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the current folder can be imported, by workers too."""
    package = tmp_path / "worlds_of_a_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from entity_env.examples import Xor\nclass One(Xor): ...\n")
    arguments = ["env.id=worlds_of_a_package.one:One", *RUN, "rollout.processes=2"]
    assert run(["train", *arguments]) == 0
    assert run(["train", "env.id=entity_env.examples:Xor", *RUN]) == 0


@pytest.mark.slow
def test_evaluation_may_be_in_another_file(capsys: pytest.CaptureFixture[str]) -> None:
    other = Path("elsewhere")
    other.mkdir()
    (other / "my_world.py").write_text("from entity_env.examples import Xor\nclass Mine(Xor): ...")
    evaluation = ["eval.steps=2", "eval.interval=72", f"eval.env.id={other}/my_world.py:Mine"]
    arguments = [f"env.id={FILE}:Mine", *RUN, *evaluation, "rollout.processes=2"]
    assert run(["train", *arguments]) == 0, capsys.readouterr().err
    assert "[eval]" in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_records_the_file_of_its_environment(capsys: pytest.CaptureFixture[str]) -> None:
    config = Path("config.toml")
    config.write_text(f'version = 5\n[env]\nid = "{FILE}:Mine"\nkwargs = {{size = 4}}\n')
    where = ["--checkpoint-dir", "run"]
    assert run(["train", "--config", str(config), *RUN, *where]) == 0
    resume = ["train", *where, "--resume", "total_timesteps=96"]
    assert run(resume) == 2  # a save is a stranger's until the command line names its code
    assert "--trust" in capsys.readouterr().err
    assert run([*resume, f"env.id={FILE}:Mine"]) == 0
    assert "step 96/96 (100%)" in capsys.readouterr().out
    saved = load_checkpoint("run").config.env
    assert (saved.id, saved.kwargs) == (f"{FILE}:Mine", '{"size": 4}')


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("worlds/none.py:Mine", ["worlds/none.py", "does not exist"]),
        (f"{FILE}:Mime", ["'Mime'", "did you mean Mine?"]),
        (f"{FILE}:number", ["a class or a function", "got worlds/my_world.py:number: 3"]),
        ("entity_env.examples:__builtins__", ["__builtins__: a dict of"]),
        ("entity_env.examples:ENV_REGISTRY", ["ENV_REGISTRY: {'MoveToOrigin'"]),
        (f"{FILE}:nothing", ["return annotation", "def nothing() -> Environment"]),
        (f"{FILE}:Path", ["an Environment or a Match"]),
        (f"{FILE}:make_faulty", ["calling", "RuntimeError: out of order"]),
        ("no.such:World", ["importing no.such", "ModuleNotFoundError"]),
        ("Xorr", ["did you mean Xor?"]),
        (":", ["env.id"]),
    ],
)
@pytest.mark.parametrize("field", ["env.id", "eval.env.id"])
def test_an_unknown_environment_name_is_refused_by_its_field(
    field: str, env_id: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = ["eval.steps=2", "eval.interval=24"]
    assert run(["train", *RUN, *evaluation, f"{field}={env_id}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {field}: ")
    assert err.count("\n") == 1
    assert len(err) < 500
    for word in words:
        assert word in err
    assert not Path("runs").exists()
    assert not Path("worlds/called").exists()


def test_unknown_environment_arguments_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [f"env.id={FILE}:Mine", 'env.kwargs={"sise": 4}', *RUN]
    assert run(["train", *arguments]) == 2
    assert "env.kwargs" in capsys.readouterr().err


def test_a_file_that_cannot_be_imported_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def (")
    assert run(["train", "env.id=broken.py:Mine", *RUN]) == 2
    err = capsys.readouterr().err
    assert "env.id: importing broken.py: SyntaxError" in err
    assert err.count("\n") == 1


def test_a_file_that_exits_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("leaves.py").write_text("import sys\nsys.exit(3)\n")
    assert run(["train", "env.id=leaves.py:Mine", *RUN]) == 2
    err = capsys.readouterr().err
    assert "env.id: importing leaves.py: SystemExit: 3" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_loading_an_agent_imports_no_environment() -> None:
    """A checkpoint names code, and only who asks to train with it runs that."""
    assert run(["train", f"env.id={FILE}:Mine", *RUN, "--checkpoint-dir", "run"]) == 0
    mark = Path("worlds/imported")
    mark.unlink()
    code = "import enn_trainer; enn_trainer.load_agent('run'); enn_trainer.load_checkpoint('run')"
    run_program(["-c", code], check=True)
    print_config = [*ENN, "train", "--print-config", "--checkpoint-dir", "run", "--resume"]
    run_program(print_config, check=True)
    assert not mark.exists()
    Path("worlds/my_world.py").unlink()
    assert load_agent("run").obs_space.entities.keys() == {"Input"}
