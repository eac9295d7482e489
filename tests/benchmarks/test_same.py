"""`benchmarks/same.py` finds a bit that differs in whatever a run leaves, and nothing in a twin."""

import json
import re
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import msgpack
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from enn_trainer.checkpoints.lookup import find
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.worlds import Pasture


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of the same configuration, which record what they do."""
    folders = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("other")
    options = ["capture_samples=all.rec", "ppo.reward_scaling=true"]
    for folder in folders:
        with chdir(folder):
            run_small(Path("data"), *options, env=Pasture, checkpoint_dir=Path("run"))
    return folders


@pytest.fixture
def pair(tmp_path: Path, twins: tuple[Path, Path]) -> tuple[Path, Path]:
    """Copies to be changed."""
    for i, folder in enumerate(twins):
        shutil.copytree(folder, tmp_path / str(i), symlinks=True)
    return tmp_path / "0", tmp_path / "1"


def lines(benchmark: Any, pair: tuple[Path, Path]) -> list[str]:
    return [*benchmark("same").differences(*pair)]


def newest(folder: Path) -> Path:
    return find(folder / "run").path


@pytest.mark.slow
def test_equal_runs_have_no_differences(benchmark: Any, pair: tuple[Path, Path]) -> None:
    assert lines(benchmark, pair) == []


@pytest.mark.slow
def test_changed_tensor_element_is_detected(benchmark: Any, pair: tuple[Path, Path]) -> None:
    path = newest(pair[1]) / "state.agent.safetensors"
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    name, tensor = next((n, t) for n, t in tensors.items() if t.dtype == torch.float32)
    tensor.view(-1)[:1] = tensor.view(-1)[:1].nextafter(torch.tensor(9e9))
    save_file(tensors, path)
    assert any(name in line for line in lines(benchmark, pair))


def test_changed_metric_is_detected_unless_it_is_a_time(
    benchmark: Any, pair: tuple[Path, Path]
) -> None:
    (path,) = pair[1].rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[-1] |= {"fps": 1e9, "time_used": 1e9}
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert lines(benchmark, pair) == []
    tag = next(tag for tag in rows[-1] if "entropy" in tag)
    rows[-1][tag] += 1e-12
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert any(tag in line for line in lines(benchmark, pair))


def test_changed_recording_byte_is_detected(benchmark: Any, pair: tuple[Path, Path]) -> None:
    (path,) = pair[1].rglob("all.rec")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (found,) = lines(benchmark, pair)
    assert "all.rec: steps" in found


def test_changed_state_entry_is_detected(benchmark: Any, pair: tuple[Path, Path]) -> None:
    path = newest(pair[1]) / "state.rest.msgpack"
    state = msgpack.unpackb(path.read_bytes(), strict_map_key=False)
    state["added"] = 1
    path.write_bytes(msgpack.packb(state))
    (found,) = lines(benchmark, pair)
    assert "added" in found
    assert [*benchmark("same").differences(*pair, re.compile("added"))] == []


def test_missing_file_is_detected(benchmark: Any, pair: tuple[Path, Path]) -> None:
    (newest(pair[0]) / "state.agent.safetensors").unlink()
    assert any(line.endswith("only after") for line in lines(benchmark, pair))


@pytest.mark.slow
def test_failed_command_is_reported(benchmark: Any, tmp_path: Path) -> None:
    same = benchmark("same")
    found = same.run_both([same.ROOT], same.Case("none", (("train", "env.id=No"),)), tmp_path)
    assert found[0] == "enn train env.id=No: status 2"
    failing = same.Case("none", (("train", "env.id=No"),), fails=(0,))
    assert same.run_both([same.ROOT] * 2, failing, tmp_path / "again") == []


def test_each_configuration_is_run_in_one_process_with_workers_and_uncompiled(
    benchmark: Any,
) -> None:
    names = [case.name for case in benchmark("same").cases()]
    assert len(set(names)) == len(names)
    configs = {name.split(", ")[0] for name in names if "processes" in name}
    assert {"move_to_origin", "xor", "minefield"} <= configs
    for config in configs:
        assert {f"{config}, {how}" for how in ("1 processes", "2 processes")} <= {*names}
        assert f"{config}, 1 processes, uncompiled" in names
    assert {"value bins", "cloning term", "recording", "clone", "value network"} <= {*names}
