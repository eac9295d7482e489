"""One folder a run: its default, all that lies in it, and runs that earlier releases began."""

import functools
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, train
from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.run_dir import RunDir, new_run_dir
from enn_trainer.cli import run as enn
from enn_trainer.cli.plot_command import read_run
from enn_trainer.config import EnvConfig
from enn_trainer.experience.env_names import record_env_name
from entity_env.examples import Xor
from tests.enn_trainer.builders import SCRIPT, SMALL, run_small
from tests.enn_trainer.worlds import Meadow, Pasture
from tests.fork_server import ENN, run_program, start_program

PROGRAM = """
from entity_env import *
from enn_trainer import StateManager, command, train

class Orchard(PlainState, Environment):
    def __init__(self, trees: int = 5):
        self.trees = trees

    def obs_space(self):
        return ObsSpace(entities={"Tree": Entity(["ripe"])})

    def action_space(self):
        return {"go": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self):
        return self.observe(0.0, False)

    def act(self, actions):
        return self.observe(1.0, True)

    def observe(self, reward, done):
        trees = {"Tree": [[0.5]] * self.trees}
        masks = {"go": GlobalCategoricalActionMask()}
        return Observation(entities=trees, actions=masks, reward=reward, terminated=done)

@command()
def main(state_manager):
    train(state_manager, Orchard)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(folder: Path | str) -> set[str]:
    return {path.name for path in Path(folder).iterdir()}


def metric_steps(folder: Path) -> list[int]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


@pytest.mark.slow
def test_a_run_is_saved_by_default_with_everything_in_one_folder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ["eval.steps=2", "eval.interval=24", "capture_samples=rollouts.rec"]
    assert enn(["train", "env.id=Xor", *SMALL, *more]) == 0
    assert "saved runs/Xor-1/step-000000000072" in capsys.readouterr().out
    assert names(".") == {"runs"}
    assert names("runs") == {"Xor-1"}
    there = names("runs/Xor-1")
    assert {"metrics.jsonl", "run.json", "rollouts.rec", "step-000000000072"} <= there
    assert any(name.startswith("events.out.tfevents.") for name in there)
    kinds = {entry.kind for entry in RunDir(Path("runs/Xor-1")).entries()}
    assert kinds == {"valid"}, "metrics are no foreign files"
    assert enn(["train", "env.id=Xor", *SMALL]) == 0
    assert names("runs") == {"Xor-1", "Xor-2"}


def test_no_save_writes_no_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["train", "env.id=Xor", *SMALL, "--no-save"]) == 0
    out = capsys.readouterr().out
    assert "saved" not in out
    assert out.splitlines()[1].endswith("  no saves")
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("Xor__")
    assert not list(folder.glob("step-*"))
    assert enn(["train", "env.id=Xor", "--no-save", "--checkpoint-dir", "a"]) == 2
    assert "--no-save and --checkpoint-dir" in capsys.readouterr().err


def test_an_unnamed_environment_gets_a_folder_without_spaces() -> None:
    manager = StateManager(overrides=SMALL)
    train(manager, lambda: Xor())
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("handed_in__")


def test_the_default_folder_is_below_data_dir() -> None:
    assert enn(["train", "env.id=Xor", *SMALL, "data_dir=big"]) == 0
    assert names("big/runs") == {"Xor-1"}
    assert names(".") == {"big"}


@pytest.mark.parametrize("more", [["--dry-run"], ["--print-config"], ['env.kwargs={"a":1}']])
def test_a_run_that_fails_to_start_leaves_no_folder(more: list[str]) -> None:
    enn(["train", "env.id=Xor", *SMALL, *more])
    assert not list(Path().glob("runs/*"))


def test_a_manager_in_python_saves_nothing_without_a_folder() -> None:
    manager = StateManager(overrides=SMALL)
    assert train(manager, Xor).checkpoint is None
    assert manager.checkpoint_dir is None


def test_a_name_that_is_taken_gets_the_next_number(tmp_path: Path) -> None:
    made = [new_run_dir(tmp_path / "runs", "a/b c").name for _ in range(3)]
    assert made == ["a_b_c-1", "a_b_c-2", "a_b_c-3"]
    (tmp_path / "runs" / "a_b_c-2").rmdir()
    assert new_run_dir(tmp_path / "runs", "a/b c").name == "a_b_c-2"
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="--no-save"):
        new_run_dir(tmp_path / "file", "a")


@pytest.mark.slow
def test_two_runs_that_start_at_once_get_two_folders() -> None:
    arguments = [*ENN, "train", "env.id=Xor", *SMALL]
    pipe = subprocess.PIPE
    both = [start_program(arguments, stdout=pipe, stderr=pipe, text=True) for _ in range(2)]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert names("runs") == {"Xor-1", "Xor-2"}
    for folder in Path("runs").iterdir():
        assert metric_steps(folder) == [24, 48, 72]


@pytest.mark.slow
def test_a_run_that_was_moved_is_read_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enn(["train", "env.id=Xor", *SMALL]) == 0
    (tmp_path / "elsewhere").mkdir()
    shutil.move("runs/Xor-1", "elsewhere/b")
    shutil.rmtree("runs")
    monkeypatch.chdir(tmp_path / "elsewhere")
    run_dir = str(tmp_path / "elsewhere/b")
    assert enn(["resume", run_dir, "total_timesteps=96"]) == 0
    assert enn(["eval", run_dir, "--episodes", "2"]) == 0
    assert enn(["checkpoints", "list", run_dir]) == 0
    assert enn(["runs", str(tmp_path / "elsewhere")]) == 0
    assert "step-000000000096" in capsys.readouterr().out
    assert sorted(read_run(Path(run_dir)).points["fps"]) == [24, 48, 72, 96]
    assert names(tmp_path) == {"elsewhere"}
    assert names(tmp_path / "elsewhere") == {"b"}


@pytest.mark.slow
def test_force_sets_the_metrics_of_the_old_run_aside(capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["train", "env.id=Xor", *SMALL, "--checkpoint-dir", "a"]) == 0
    before = Path("a/metrics.jsonl").read_bytes()
    again = ["train", "env.id=Xor", *SMALL, "--checkpoint-dir", "a", "--force"]
    assert enn([*again, "total_timesteps=24"]) == 0
    assert metric_steps(Path("a")) == [24]
    assert len(list(Path("a").glob("events.out.*"))) == 1
    (aside,) = Path("a").glob(".replaced-*")
    assert (aside / "metrics.jsonl").read_bytes() == before
    assert {"run.json", "spans.json", "step-000000000072"} <= names(aside)


def test_force_that_fails_puts_everything_back(monkeypatch: pytest.MonkeyPatch) -> None:
    run_small(Path(), checkpoint_dir=Path("a"))
    before = {path.name: path.read_bytes() for path in Path("a").iterdir() if path.is_file()}
    manager = StateManager(overrides=SMALL, checkpoint_dir="a", existing="replace")

    def fails(*_: object) -> None:
        raise CheckpointError("no space")

    monkeypatch.setattr(manager, "save", fails)
    with pytest.raises(CheckpointError, match="no space"):
        train(manager, Meadow)
    after = {path.name: path.read_bytes() for path in Path("a").iterdir() if path.is_file()}
    assert {**after, ".lock": b""} == {**before, ".lock": b""}
    assert not list(Path("a").glob(".replaced-*"))


def test_metrics_without_saves_are_not_overwritten() -> None:
    Path("a").mkdir()
    Path("a/metrics.jsonl").write_text('{"step": 9000}\n')
    run_small(Path(), checkpoint_dir=Path("a"))
    (aside,) = Path("a").glob(".replaced-*")
    assert metric_steps(aside) == [9000]
    assert metric_steps(Path("a")) == [24, 48, 72]


@pytest.fixture
def earlier_run(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run as earlier releases left it: its metrics are below `data_dir`, not beside the saves."""
    run_small(Path(), "capture_samples=r.rec", "total_timesteps=48", checkpoint_dir=Path("runs/a"))
    manager = StateManager(checkpoint_dir="runs/a")
    logs = Path("runs", manager.state.run_name)
    logs.mkdir()
    for path in [*Path("runs/a").glob("*.json*"), *Path("runs/a").glob("events*")]:
        if path.name != "index.json":
            path.rename(logs / path.name)
    Path("runs/a/r.rec").rename("r.rec")
    return logs


@pytest.mark.slow
def test_a_run_of_an_earlier_release_continues_where_its_metrics_are(
    earlier_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(Path(), "total_timesteps=72", checkpoint_dir=Path("runs/a"))
    assert metric_steps(earlier_run) == [24, 48, 72]
    assert "metrics.jsonl" not in names("runs/a")
    assert "r.rec" not in names("runs/a")
    monkeypatch.chdir("/")  # from any folder
    assert sorted(read_run(tmp_path / "runs/a").points["fps"]) == [24, 48, 72]


@pytest.mark.slow
def test_runs_are_listed_with_metrics_in_either_place(
    earlier_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(Path(), env=Pasture, checkpoint_dir=Path("runs/Pasture-10"))
    run_small(Path(), env=Xor, checkpoint_dir=Path("runs/Pasture-9"))
    capsys.readouterr()
    assert enn(["runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["run"] for run in listed] == ["Pasture-9", "Pasture-10", "a"]
    nine, ten, a = listed
    assert nine["world"] == "Xor"
    assert ten["world"] == "tests.enn_trainer.worlds:Pasture"
    assert [run["step"] for run in listed] == [72, 72, 48]
    assert a["newest"] == "step-000000000048"
    assert all(isinstance(run["return"], float) and run["bytes"] > 1000 for run in listed)
    assert ten["best"].startswith("step-")
    assert not any(run["training"] for run in listed)
    with RunDir(Path("runs/a")).lock():
        assert enn(["runs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["run", "world", "training", "step"]
    assert [" yes " in line for line in lines[1:]] == [False, False, True]
    assert lines[1].split()[4:6] == ["72", "72"], "steps of the saves, which are short"
    assert all(line.endswith(("kB", "MB")) for line in lines[1:]), "sizes that one can read"


def test_listing_a_folder_without_runs_reports_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["runs"]) == 0
    assert capsys.readouterr().out == "runs: no runs here\n"
    assert enn(["runs", ".", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert enn(["runs", "missing"]) == 2
    assert capsys.readouterr().err.startswith("error: DIR: expected a folder of runs")


@pytest.mark.slow
def test_a_damaged_save_is_no_obstacle_to_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    run_small(Path(), checkpoint_dir=Path("runs/a"))
    Path("runs/a/step-000000000072/manifest.json").write_text("{")
    Path("runs/a/step-000000000000/config.ron").write_text("(")
    Path("runs/a/metrics.jsonl").write_text('[]\n{"step": "x"}\n{"step": 5, "episodic')
    assert enn(["runs"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[0] == "a"
    assert "0" in row[2:]  # the save of step 0 is left


# Environments that are passed from Python.


def recorded(env: Any, before: str = "MoveToOrigin", folder: Path | None = None) -> str:
    config = EnvConfig(id=before)
    record_env_name(config, env, folder or Path.cwd())
    return config.id


def one_meadow() -> Meadow:
    return Meadow()


def unannotated():  # type: ignore[no-untyped-def]
    return Meadow()


def many(config: Any, num_envs: int, processes: int, first: int) -> Any:
    raise NotImplementedError


def test_an_environment_passed_from_python_is_recorded_for_commands() -> None:
    class Local(Meadow):
        pass

    assert recorded(Xor) == "Xor"
    assert recorded(Meadow) == "tests.enn_trainer.worlds:Meadow"
    assert recorded(Meadow, before="Xor") == "tests.enn_trainer.worlds:Meadow"
    assert recorded(one_meadow) == f"{__name__}:one_meadow"
    for env in (Local, unannotated, functools.partial(Meadow)):
        name = getattr(env, "__name__", "Meadow")
        assert recorded(env) == f"__main__:{name}"  # which no command imports
    assert recorded(lambda: Meadow()) == "handed in"
    assert recorded(many, before="mine") == "mine", "which a factory may read"


@pytest.mark.slow
def test_a_run_records_the_environment_argument(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.ron").write_text("TrainConfig(version: 5, total_timesteps: 72)")
    settings = [setting for setting in SMALL if "total" not in setting]
    for existing in ("refuse", "resume"):
        where = {"init_path": "mine.ron", "checkpoint_dir": "a", "existing": existing}
        manager = StateManager(overrides=settings, **where)  # type: ignore[arg-type]
        train(manager, Meadow)
        assert manager.config.env.id == "tests.enn_trainer.worlds:Meadow"
    out = capsys.readouterr().out
    assert "differs" not in out
    assert "changed" not in out
    assert json.loads(Path("a/run.json").read_text())["config"]["env.id"].endswith(":Meadow")
    train(StateManager(overrides=SMALL, checkpoint_dir="b"), lambda: Meadow())
    capsys.readouterr()
    assert enn(["checkpoints", "show", "b"]) == 0
    assert "passed from Python" in capsys.readouterr().out
    assert enn(["resume", "b"]) == 2
    err = capsys.readouterr().err
    assert "passed from Python; continue the run by that program" in err
    assert "--checkpoint-dir and --resume" in err


@pytest.mark.slow
def test_typed_environment_is_reported_as_unused_if_the_program_passes_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    unused = "env.id=Xor: not used, the program passes another environment"
    train(StateManager(overrides=[*SMALL, "env.id=Xor"]), Meadow)
    assert unused in capsys.readouterr().out
    train(StateManager(overrides=[*SMALL, "env.id=tests.enn_trainer.worlds:Meadow"]), Meadow)
    train(StateManager(overrides=[*SMALL, "env.id=Xor"]), Xor)
    assert "not used" not in capsys.readouterr().out


@pytest.mark.slow
def test_episodes_of_a_save_with_the_default_env_id_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs of earlier releases saved `MoveToOrigin`, whatever the environment argument."""
    with monkeypatch.context() as earlier:
        earlier.setattr("enn_trainer.run.open_run.record_env_name", lambda *_: None)
        run_small(Path(), "total_timesteps=24", env=Pasture, checkpoint_dir=Path("a"))
    for total in (48, 72):
        more = f"total_timesteps={total}"
        manager = run_small(Path(), more, env=Pasture, checkpoint_dir=Path("a"))
        out = capsys.readouterr().out
        assert "its episodes go on" in out
        assert "changed from the save: env" not in out
    assert manager.config.env.id == "tests.enn_trainer.worlds:Pasture"


@pytest.mark.slow
def test_commands_printed_for_a_program_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/orchard.py").write_text(PROGRAM)
    settings = [*SMALL, 'env.kwargs={"trees":3}']
    done = run_program([*SCRIPT, "sub/orchard.py", *settings], text=True)
    assert done.returncode == 0, done.stderr
    assert names("runs") == {"Orchard-1"}
    assert enn(["checkpoints", "show", "runs/Orchard-1"]) == 0
    measure, go_on = (
        line.partition(":")[2].split()[1:]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("to ")
    )
    assert "sub/orchard.py:Orchard" in measure
    assert enn([*measure, "--episodes", "2", "--all"]) == 0
    assert "entity_count/Tree  3 " in " ".join(capsys.readouterr().out.split("\n"))
    assert enn(go_on) == 0
    assert names("runs") == {"Orchard-1", "Orchard-2"}
    lines = capsys.readouterr().out.splitlines()
    resume = next(line.split()[1:] for line in lines if "enn resume" in line)
    assert enn(resume) == 0


@pytest.mark.slow
def test_resume_is_train_in_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    run_small(Path(), env=Pasture, checkpoint_dir=Path("a"))
    assert enn(["resume", "a", "total_timesteps=96"]) == 2
    err = capsys.readouterr().err
    assert "type: enn resume --trust a total_timesteps=96" in err
    assert enn(["resume", "a", "--trust", "total_timesteps=96"]) == 0
    assert metric_steps(Path("a")) == [24, 48, 72, 96]
    assert enn(["resume", "a", "--trust", "--total-timesteps", "120"]) == 0
    assert metric_steps(Path("a")) == [24, 48, 72, 96, 120]
    assert enn(["resume", "none"]) == 2
    assert "expected a run to continue in none" in capsys.readouterr().err
    assert enn(["resume", "a", "--trust", "--print-config"]) == 0


# Signals.


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_ended_by_a_signal_is_saved_and_exits_with_its_status(
    number: int, status: int
) -> None:
    arguments = [*ENN, "train", "env.id=Xor", *SMALL, "total_timesteps=10000000"]
    pipe = subprocess.PIPE
    process = start_program(arguments, stdout=pipe, stderr=pipe, text=True)
    assert any("step" in line for line in process.stdout)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert "interrupted, saved runs/Xor-1" in out
    assert "enn resume runs/Xor-1" in out


@pytest.mark.slow
def test_a_program_ended_by_a_signal_exits_with_its_status() -> None:
    raising = PROGRAM.replace(
        "    train(state_manager, Orchard)",
        "    import signal\n"
        "    from enn_trainer import Callback\n"
        "    class Stop(Callback):\n"
        "        def on_update_end(self, trainer, metrics): signal.raise_signal(signal.SIGTERM)\n"
        "    train(state_manager, Orchard, callbacks=[Stop()])\n"
        "    print('after training')",
    )
    done = run_program(["-c", raising, *SMALL], text=True)
    assert done.returncode == 143, done.stderr
    assert "after training" in done.stdout


AS_ENN = "from enn_trainer.cli import main; main()"
AS_MODULE = "import runpy; runpy.run_module('enn_trainer.train', run_name='__main__')"
INTERRUPTS = {
    "imports torch": """
import os, signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(Finder)
            os.killpg(0, signal.SIGINT)
sys.meta_path.insert(0, Finder)
""",
    "makes a manager": """
import os, signal, enn_trainer.checkpoints.state_manager
def interrupt(*args, **kwargs):
    os.killpg(0, signal.SIGINT)
    make(*args, **kwargs)
make = enn_trainer.checkpoints.state_manager.StateManager.__init__
enn_trainer.checkpoints.state_manager.StateManager.__init__ = interrupt
""",
    "starts workers": """
import subprocess
class Popen(subprocess.Popen):
    has_interrupted = False
    def __init__(self, command, **options):
        if "entity_env.vec.worker" in str(command) and not Popen.has_interrupted:
            Popen.has_interrupted = True
            command[2] = "import os, signal; os.killpg(0, signal.SIGINT); " + command[2]
        super().__init__(command, **options)
subprocess.Popen = Popen
""",
}
"""Code that sends SIGINT to all processes of a program, as a terminal does, when it does that."""


@pytest.mark.slow
@pytest.mark.parametrize("doing", INTERRUPTS)
@pytest.mark.parametrize("program", [[AS_ENN, "train"], [AS_MODULE]])
def test_ctrl_c_in_the_first_seconds_is_one_line(program: list[str], doing: str) -> None:
    settings = [*SMALL, "rollout.processes=2", "total_timesteps=10000000"]
    code, *words = program
    arguments = ["-c", INTERRUPTS[doing] + code, *words, "env.id=Xor", *settings]
    pipe = subprocess.PIPE
    streams: dict[str, Any] = {"stdout": pipe, "stderr": pipe, "text": True}
    process = (
        subprocess.Popen([sys.executable, *arguments], **streams, start_new_session=True)
        if doing == "imports torch"  # which a fork has imported
        else start_program(arguments, **streams, start_new_session=True)
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert len([line for line in err.splitlines() if line]) == 1, err
