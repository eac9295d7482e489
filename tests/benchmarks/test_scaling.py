"""What `benchmarks/scaling.py` writes down, and measures."""

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import torch


def test_sections_are_written_individually_in_order(benchmark: Any, tmp_path: Path) -> None:
    write, path = benchmark("scaling").write_section, tmp_path / "scaling.md"
    write(path, "Memory of a rollout", "## Memory of a rollout\n\nold")
    write(path, "Environments", "## Environments\n\nfast")
    write(path, "Memory of a rollout", "## Memory of a rollout\n\nnew\n")
    assert path.read_text() == (
        "# Scaling\n\n## Environments\n\nfast\n\n## Memory of a rollout\n\nnew\n"
    )


@pytest.mark.slow
def test_curves_are_drawn(benchmark: Any, tmp_path: Path) -> None:
    path = tmp_path / "it.svg"
    curves = {"one": [(1, 10.0), (4096, 20.0)], "two": [(1, 30.0), (4096, 90.0)]}
    benchmark("scaling").plot(curves, "environments", path)
    assert "line2d" in path.read_text()
    assert ET.parse(path).getroot().tag.endswith("svg")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_training_and_rollouts_are_measured(benchmark: Any) -> None:
    measure = benchmark("scaling_measure")
    settings = ['env.kwargs={"num_units": 3}', "rollout.num_envs=4", "rollout.steps=2"]
    settings += ["optim.bs=4", "net.d_model=8", "net.n_layer=1"]
    found = measure.train("Crowd", settings, 0.05)
    assert found["entities_s"] == pytest.approx(3 * found["frames_s"])
    found = measure.memory(num_envs=64, num_units=8, num_entities=100_000)
    assert found["entities"] == 100_352
    features = 100_352 * 4 * 4 / 1e6  # 4 float32 each
    assert features < found["data_mb"] < 2 * features
    assert found["peak_mb"] >= found["after_mb"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="measures, where there is a GPU")
def test_gpu_section_is_skipped_without_a_gpu(benchmark: Any) -> None:
    lines: list[str] = []
    assert benchmark("scaling").gpu(lines.append, None) == {}
    assert lines == ["Skipped: torch finds no GPU."]
