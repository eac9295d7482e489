"""Runs that are trained once a session, for tests that only read them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.checkpoints.format import save_name
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.runtime import interrupt
from entity_env.examples import MineSweeper, Xor
from tests.enn_trainer.builders import MINES, STEPS, run_small
from tests.enn_trainer.evaluation.builders import run_duel


@pytest.fixture(scope="session", autouse=True)
def _unhurried_stops() -> Iterator[None]:
    """Let a run that is asked to stop finish its update, however slow the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interrupt, "GRACE_S", 600.0)
        yield


@pytest.fixture
def hyperstate() -> Any:
    """The library, of which python-ron has no wheel for later Pythons and other machines."""
    return pytest.importorskip("hyperstate", reason="hyperstate cannot be installed here")


@pytest.fixture(scope="session")
def meadow_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with saves at all of `STEPS`, and no others."""
    folder = tmp_path_factory.mktemp("meadow")
    run_small(
        folder,
        "checkpoint.every_seconds=0",
        "checkpoint.keep=9",
        checkpoint_dir=folder / "run",
    )
    names = {save_name(step) for step in STEPS}
    for path in RunDir(folder / "run").saved_paths():
        if path.name not in names:
            shutil.rmtree(path)
    return folder / "run"


@pytest.fixture
def run_dir(meadow_run: Path, tmp_path: Path) -> Path:
    """A copy of `meadow_run` to be changed."""
    shutil.copytree(meadow_run, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture(scope="session")
def xor_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in `Xor`."""
    folder = tmp_path_factory.mktemp("xor")
    run_small(folder, "env.id=Xor", env=Xor, checkpoint_dir=folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def mines_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in `MineSweeper`, with arguments of its own."""
    folder = tmp_path_factory.mktemp("mines")
    overrides = ["env.id=MineSweeper", f"env.kwargs={json.dumps(MINES)}"]
    run_small(folder, *overrides, env=MineSweeper, checkpoint_dir=folder / "run")
    return folder / "run"


@pytest.fixture(scope="session")
def duel_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in `Duel`, a match of two sides."""
    folder = tmp_path_factory.mktemp("duel")
    run_duel(folder, "env.id=Duel", checkpoint_dir=folder / "run")
    return folder / "run"
