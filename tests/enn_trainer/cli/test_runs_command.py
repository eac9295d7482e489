"""`enn runs`: the table of runs in a folder."""

import json
import shutil
from pathlib import Path

import pytest

from enn_trainer.cli import run
from enn_trainer.cli.runs_command import list_runs


def test_renamed_copies_of_saves_are_not_listed(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its manifest says another step, so that no command takes it."""
    [before] = list_runs(run_dir)
    shutil.copytree(run_dir / "step-000000000024", run_dir / "step-000000999999")
    [after] = list_runs(run_dir)
    assert after == before | {"bytes": after["bytes"]}
    assert after["newest"] == "step-000000000072"
    assert run(["runs", str(run_dir), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["newest"] == "step-000000000072"
