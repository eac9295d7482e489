"""Code that a save names is neither imported nor called unless the command line names it."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from enn_trainer import (
    StateManager,
    TrainConfig,
    command,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.checkpoints.lookup import find
from enn_trainer.cli import run
from enn_trainer.cli.trust import measure_command
from enn_trainer.config.load import load_config
from entity_env.examples import Xor
from entity_env.named_world import is_environment_factory
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.foreign_saves import name_in_config
from tests.enn_trainer.one_line import refused

MARK = Path("marked")
"""Made by the foreign code: if it is there, that code ran."""
SOURCE = f"""
from pathlib import Path
from entity_env.examples import Xor

Path("{MARK}").touch()

class World(Xor):
    def __init__(self, text=""):
        super().__init__()
"""
CALLS_SYSTEM = 'env.id="os:system"', "env.kwargs=" + '{"command": "touch ' + str(MARK) + '"}'
FOREIGN = "foreign_world:World"


@pytest.fixture(autouse=True)
def _beside_the_foreign_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "foreign_world", raising=False)
    Path("foreign_world.py").write_text(SOURCE)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run in Xor."""
    folder = tmp_path_factory.mktemp("trained")
    run_small(folder, "env.id=Xor", "data_dir=.", env=Xor, checkpoint_dir=folder / "run")
    return folder / "run"


@pytest.fixture
def xor_run(trained: Path) -> Path:
    """Return the folder of a copy of the run, from the folder where the foreign module lies."""
    shutil.copytree(trained, "run")
    return Path("run")


EVAL = ["eval.steps=2", "eval.interval=24"]
NAMED = {
    "env.id": ["env.id=foreign_world:World"],
    "eval.env.id": [*EVAL, "eval.env.id=foreign_world:World"],
    "eval.suites.hard.env.id": [*EVAL, "eval.suites.hard.env.id=foreign_world:World"],
}
DOORS = {
    "resume-from": ["train", "--resume-from", "{save}", "--checkpoint-dir", "new"],
    "resume-from-run": ["train", "--resume-from", "{run}"],
    "resume": ["train", "--checkpoint-dir", "{run}", "--resume", "total_timesteps=96"],
    "resume-or-start": ["train", "--checkpoint-dir", "{run}", "--resume-or-start"],
    "dry-run": ["train", "--resume-from", "{save}", "--dry-run"],
}


def line(door: Sequence[str], run_dir: Path) -> list[str]:
    save = find(run_dir).path
    return [word.format(save=save, run=run_dir) for word in door]


@pytest.mark.parametrize("field", NAMED)
@pytest.mark.parametrize("door", DOORS)
def test_training_from_a_save_imports_no_code_of_the_save(
    door: str, field: str, xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name_in_config(xor_run, *NAMED[field])
    typed = line(DOORS[door], xor_run)
    error = refused(typed, capsys)
    assert error.startswith(f"error: {field}: ")
    assert f"'{FOREIGN}'" in error
    assert shlex.join(["enn", "train", "--trust", *typed[1:]]) in error
    assert not MARK.exists()
    assert not Path("new").exists()


def test_evaluating_a_save_neither_imports_nor_calls_its_code(
    xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for overrides in (CALLS_SYSTEM, NAMED["env.id"]):
        save = name_in_config(xor_run, *overrides)
        error = refused(["eval", str(save), "--episodes", "2"], capsys)
        assert error.startswith("error: env.id: ")
        assert f"enn eval --trust {save} --episodes 2" in error
        assert "--env" in error
        assert not MARK.exists()


@pytest.mark.parametrize("trusting", [["eval", "--trust"], ["eval", "--env", "os:system"]])
def test_only_environment_factories_are_called(
    trusting: list[str], xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = name_in_config(xor_run, *CALLS_SYSTEM)
    error = refused([*trusting, str(save)], capsys)
    assert "os:system" in error
    assert "return annotation" in error
    assert not MARK.exists()


@pytest.mark.slow
def test_environment_of_the_command_line_is_trusted(
    xor_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typed name, an environment variable, or a configuration file that is given."""
    name_in_config(xor_run, *NAMED["eval.env.id"], "env.id=foreign_world:World")
    resume = ["train", "--checkpoint-dir", str(xor_run), "--resume"]
    Path("mine.toml").write_text(f'version = 5\nenv.id = "{FOREIGN}"\n')
    ways = (["--trust"], [f"env.id={FOREIGN}"], ["--config", "mine.toml"], [])
    for i, typed in enumerate(ways):
        if not typed:
            monkeypatch.setenv("ENN_ENV__ID", FOREIGN)
        assert run([*resume, *typed, f"total_timesteps={96 + 24 * i}"]) == 0, capsys.readouterr()
    assert MARK.exists()
    measure = ["eval", str(xor_run), "--episodes", "2"]
    assert run([*measure, "--trust"]) == 0
    assert run([*measure, "--env", FOREIGN]) == 0


@pytest.mark.parametrize("name", ["big.episodes", "big.env"])
@pytest.mark.parametrize("typed", ["eval.suites.big.episodes=3", "eval.suites.big={}"])
def test_name_with_dots_is_not_a_typed_setting(
    name: str, typed: str, xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suites = f'{{"big": (episodes: 4), "{name}": (env: (id: "{FOREIGN}"))}}'
    save = name_in_config(xor_run, *EVAL, f"eval.suites={suites}")
    assert run(["train", "--resume-from", str(save), typed]) == 2
    assert f"error: eval.suites.{name}.env.id: " in capsys.readouterr().err
    assert not MARK.exists()


def test_suite_without_an_environment_id_is_not_typed(
    xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A default is no more typed than what the save says."""
    suite = [*EVAL, "eval.suites.hard.env.id=None", "eval.suites.hard.env.validate=true"]
    save = name_in_config(xor_run, f"env.id={FOREIGN}", *suite, leave_out="id: None,")
    assert "error: env.id: " in refused(["train", "--resume-from", str(save)], capsys)
    assert not MARK.exists()


@pytest.mark.parametrize(
    "text", ['"evil:Env-v0"', '{"evil:Env-v0": 1}', '[{"a": ["evil:Env-v0"]}]']
)
def test_arguments_in_a_save_that_name_a_module_are_refused(
    text: str, xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An id of Gymnasium such as `module:Env-v0` imports that module."""
    kwargs = f'env.kwargs={{"text": {text}}}'
    save = name_in_config(xor_run, f"env.id={FOREIGN}", kwargs)
    resume = ["train", "--resume-from", str(save), f"env.id={FOREIGN}", "total_timesteps=96"]
    assert "env.kwargs: " in refused(resume, capsys)
    error = refused(["eval", str(save), "--env", FOREIGN], capsys)
    assert "'evil:Env-v0'" in error
    assert "give --env-kwargs text=...; or, if you trust" in error
    assert "name it with --env" not in error
    assert not MARK.exists()
    assert run([*resume, kwargs]) == 0
    measure = ["eval", str(save), "--env", FOREIGN, "--episodes", "2"]
    assert run([*measure, "--env-kwargs", 'text="a:b"']) == 0


def test_argument_with_a_colon_in_its_name_needs_trust(
    xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = name_in_config(xor_run, f"env.id={FOREIGN}", 'env.kwargs={"evil:Env-v0": 1}')
    error = refused(["eval", str(save), "--env", FOREIGN], capsys)
    assert f"type: enn eval --trust {save}" in error
    assert "--env-kwargs" not in error


@pytest.mark.slow
def test_commands_without_an_environment_import_no_code_of_the_save(
    xor_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save = str(name_in_config(xor_run, *NAMED["eval.env.id"], f"env.id={FOREIGN}", *CALLS_SYSTEM))
    load_agent(save)
    assert load_checkpoint(save).state.step > 0
    xor_settings = ["env.id=Xor", *SMALL, "data_dir=."]
    monkeypatch.setattr("builtins.input", lambda *_: "q")
    for typed in (
        ["checkpoints", "list", str(xor_run)],
        ["checkpoints", "verify", str(xor_run)],
        ["checkpoints", "show", save, "--config"],
        ["checkpoints", "diff", save, save],
        ["checkpoints", "diff", save, "--env", "Xor"],
        ["checkpoints", "evolve", save, "--env", "Xor", "--to", "evolved"],
        ["checkpoints", "upgrade", save, "--to", "upgraded"],
        ["checkpoints", "pin", save],
        ["checkpoints", "prune", str(xor_run), "--keep", "1"],
        ["play", "Xor", "--agent", save],
        ["train", "--init-from", save, *xor_settings],
        ["train", *xor_settings, *EVAL, f"eval.opponent={save}", "eval.num_envs=2"],
        ["train", "--resume-from", save, "--print-config"],
    ):
        assert run(typed) == 0, (typed, capsys.readouterr().err)
    assert not MARK.exists()


def test_upgraded_and_evolved_untrusted_saves_stay_untrusted(
    xor_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of one's own proves nothing: its save may be made of a stranger's."""
    save = str(name_in_config(xor_run, *NAMED["eval.env.id"]))
    assert run(["checkpoints", "upgrade", save, "--to", "upgraded"]) == 0
    assert run(["checkpoints", "evolve", save, "--env", "Xor", "--to", "evolved"]) == 0
    for folder in ("upgraded", "evolved"):
        assert "eval.env.id" in refused(["train", "--checkpoint-dir", folder, "--resume"], capsys)
    assert not MARK.exists()


def test_user_program_imports_no_code_of_the_save(
    xor_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = name_in_config(xor_run, *NAMED["eval.env.id"], f"env.id={FOREIGN}")

    @command()
    def main(state_manager: StateManager) -> None:
        train(state_manager, Xor)

    monkeypatch.setattr(
        "sys.argv", ["mine.py", "--resume-from", str(save), "total_timesteps=96", "data_dir=."]
    )
    main()
    assert not MARK.exists()


def test_printed_resume_command_names_the_environment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    typed = [f"env.id={FOREIGN}", *SMALL, "data_dir=.", "--checkpoint-dir", "mine"]
    assert run(["train", *typed]) == 0
    out = capsys.readouterr().out
    assert f"enn resume mine env.id={FOREIGN} total_timesteps=" in out


COLON = 'env.kwargs={"text": "a:b"}'
RUNS = {
    "one world": [],
    "a colon": [COLON],
    "another world": [*EVAL, f"eval.env.id={FOREIGN}", "env.id=Xor"],
    "a bound": ['stop=["reward.mean >= -1"]'],
}


def run_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Type a printed line."""
    assert run(shlex.split(line)[1:]) == 0, line + capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS)
def test_commands_printed_by_train_and_show_are_valid(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    typed = [f"env.id={FOREIGN}", *SMALL, "data_dir=.", *settings]
    assert run(["train", *typed, "--checkpoint-dir", "my run"]) == 0
    _, _, after = capsys.readouterr().out.rpartition("\nnext:\n")
    watch, measure, go_on, *_ = after.splitlines()
    assert run(["checkpoints", "show", "my run"]) == 0
    *_, measure_save, start = capsys.readouterr().out.splitlines()
    before = find(Path("my run")).step
    run_line(watch, capsys)
    run_line(measure, capsys)
    run_line(measure_save.removeprefix("to measure it:"), capsys)
    run_line(start.removeprefix("to train from it:"), capsys)
    run_line(go_on, capsys)
    for folder in (next(Path("runs").glob("*-1")), Path("my run")):
        assert find(folder).step > before, "the line raises the bound that ended the run"


def test_runs_with_self_play_are_measured_against_an_opponent() -> None:
    for settings, end in ([], "run"), (["selfplay={}"], "run --opponent random"):
        config = load_config(TrainConfig, None, ["env.id=Duel", *settings])
        assert measure_command(Path("run"), config).endswith(f"enn eval {end}")


class Wrong:
    """Makes nothing."""


def annotated() -> "Xor":
    return Xor()


def either() -> Xor | None:
    return Xor()


def unresolved() -> "Nowhere":  # type: ignore[name-defined]  # noqa: F821
    return Xor()


@pytest.mark.parametrize(
    ("make", "is_known"),
    [
        (Xor, True),
        (annotated, True),
        (either, False),
        (unresolved, False),
        (Wrong, False),
        (Wrong(), False),
        (lambda: Xor(), False),
        (print, False),
        (3, False),
    ],
)
def test_environment_factories_are_recognized_by_class_or_annotation(
    make: object, is_known: bool
) -> None:
    assert is_environment_factory(make) == is_known
