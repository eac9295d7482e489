"""What the README says works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from enn_trainer import TrainConfig
from enn_trainer.config.load import load_config
from tests.enn_trainer.builders import SMALL

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_readme_world_trains_and_its_agent_acts(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    world, acting = blocks
    (tmp_path / "orchard.py").write_text(world)
    command = [sys.executable, "orchard.py", *SMALL, "--checkpoint-dir", "runs/orchard"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    (tmp_path / "act.py").write_text("from orchard import Orchard\n" + acting + "print(actions)\n")
    done = subprocess.run(
        [sys.executable, "act.py"],
        cwd=tmp_path,
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert "SelectEntityAction" in done.stdout


@pytest.mark.slow
def test_demonstration_of_a_trained_agent_runs(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "enn_trainer.train", "env.id=MoveToOrigin", *SMALL]
    where = [f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "run")]
    subprocess.run([*program, *where], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/act.py"), str(tmp_path / "run"), "2"],
        check=True,
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert "episode 1: 32 steps, return" in done.stdout


def test_every_shipped_configuration_can_be_read() -> None:
    paths = sorted((ROOT / "configs").glob("*.ron"))
    assert len(paths) >= 7
    for path in paths:
        assert isinstance(load_config(TrainConfig, path), TrainConfig), path


def test_places_in_the_architecture_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    places = re.findall(r"`([\w/]+\.py)(?::(\w+)(?:\.(\w+))?)?`", text)
    assert len(places) > 50
    for path, name, method in places:
        code = (ROOT / path).read_text()
        if name:
            assert re.search(rf"^(def|class) {name}\b|^{name}\b.* =", code, re.M), (path, name)
        if method:
            assert re.search(rf"^    def {method}\b", code, re.M), (path, name, method)


def test_every_folder_of_code_is_in_the_architecture() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    for package in ("entity_env", "rogue_net", "enn_trainer"):
        for path in (ROOT / package).rglob("__init__.py"):
            assert f"| `{path.parent.relative_to(ROOT)}/` |" in text, path.parent
