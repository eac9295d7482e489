"""Files of environments that are moved, copied or taken to another machine."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.checkpoints.lookup import find
from enn_trainer.cli import run
from enn_trainer.config import EnvConfig
from enn_trainer.experience.env_names import record_env_name
from entity_env.named_world import find_world
from entity_env.serialization.messages import pack, unpack
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.foreign_saves import name_in_state

pytestmark = pytest.mark.slow
SOURCE = """
from tests.enn_trainer.worlds import Pasture

class Field(Pasture):
    bonus = 0.0

    def _observe(self, reward):
        return super()._observe(reward + self.bonus)
"""
GO_ON, RESTART = "its episodes go on", "episodes restart, because the environment's code changed"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a file of an environment, and a run of three updates in it."""
    monkeypatch.setattr("sys.path", [*sys.path])
    made = tmp_path / "here"
    made.mkdir()
    (made / "field.py").write_text(SOURCE)
    monkeypatch.chdir(made)
    settings = ["env.id=field.py:Field", *SMALL, "data_dir=.", "optim.anneal_lr=false"]
    assert run(["train", *settings, "ppo.anneal_entropy=false", "--checkpoint-dir", "run"]) == 0
    return made


def resumed(capsys: pytest.CaptureFixture[str], name: str = "field.py:Field") -> str:
    """Resume the run in this folder for an update; return what it prints."""
    capsys.readouterr()
    assert run(["resume", "run", f"env.id={name}", "total_timesteps=96"]) == 0
    return capsys.readouterr().out


def newest_files() -> dict[str, bytes]:
    """Return the content of the tensors and of the state of the newest save, by file."""
    save = find(Path("run")).path
    assert save.name == "step-000000000096"
    return {one.name: one.read_bytes() for one in save.glob("*.safetensors")}


def test_episodes_resume_bitwise_in_a_copied_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on another machine, where the folder has another path."""
    there = shutil.copytree(folder, folder.parent / "there")
    files = []
    for where in (folder, there):
        monkeypatch.chdir(where)
        assert GO_ON in resumed(capsys)
        files.append(newest_files())
    assert files[0] == files[1]


def test_episodes_resume_if_the_file_is_named_from_another_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("worlds").mkdir()
    Path("field.py").rename("worlds/field.py")
    assert GO_ON in resumed(capsys, "worlds/field.py:Field")


@pytest.mark.parametrize(
    ("old", "new"), [("bonus = 0.0", "bonus = 1.0"), ("reward + self", "reward - self")]
)
def test_episodes_restart_if_the_code_differs(
    old: str, new: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("worlds").mkdir()
    assert old in SOURCE
    Path("worlds/field.py").write_text(SOURCE.replace(old, new))
    assert f"{RESTART} (field.Field)" in resumed(capsys, "worlds/field.py:Field")


def test_episodes_restart_in_another_class_or_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.py").write_text(SOURCE)
    assert "env.id was 'field.py:Field'" in resumed(capsys, "other.py:Field")


def test_saves_that_name_modules_by_path_resume(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As earlier releases wrote them, on this machine or another one."""

    def with_paths(rest: dict[str, Any]) -> None:
        episodes = unpack(rest["envs"])
        code = episodes["code"]
        assert "field.Field" in code
        episodes["code"] = {n.replace("field.", "loaded_field_01234567."): code[n] for n in code}
        rest["envs"] = pack(episodes, exact=True)

    name_in_state(Path("run"), with_paths)
    assert GO_ON in resumed(capsys)


def test_environment_passed_from_a_file_is_named_by_its_path(folder: Path) -> None:
    """Its module has a name that other programs and machines do not know."""
    config = EnvConfig()
    record_env_name(config, find_world("field.py:Field"), folder)
    assert config.id == "field.py:Field"
    record_env_name(config, find_world("field.py:Field"), folder / "elsewhere")
    assert config.id == f"{folder.resolve()}/field.py:Field"
