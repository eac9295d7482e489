"""`enn export`: its files, the program that plays, and mistakes in one line."""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch

from enn_trainer import load_agent
from enn_trainer.checkpoints.model_file import ModelFile, read_model_file
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.cli import run
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config
from enn_trainer.evaluation.opponents import create_opponent
from entity_env import Entity, GlobalCategoricalActionSpace, ObsSpace
from entity_env.examples import Duel, Medics, Pairs
from entity_env.imports import extras
from entity_env.spaces import Spaces
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.one_line import refused

ROOT = Path(__file__).parents[3]
SPACES = Spaces(
    ObsSpace(entities={"A": Entity(["x"])}), {"go": GlobalCategoricalActionSpace(["a", "b"])}
)

DEPENDENCIES = ["torch", "safetensors", "msgpack", "cloudpickle", "hyperstate", "rich"]
"""Packages that a program without PyTorch need not have."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    scaled = ["ppo.reward_scaling=true", "ppo.value_norm=false"]
    run_small(folder, *scaled, env=Medics, checkpoint_dir=folder / "medics")
    return folder / "medics"


@pytest.fixture(scope="module")
def out(run_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports") / "out"
    assert run(["export", str(run_dir), "--to", str(folder)]) == 0
    return folder


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """The weights of a custom network."""
    weights = {"layer.weight": torch.ones(2, 2)}
    model = ModelFile(TrainConfig(), SPACES, 7, "mine", weights, {})
    (tmp_path / "mine.safetensors").write_bytes(model.content())
    return tmp_path / "mine.safetensors"


def played(out: Path, *arguments: str, without: list[str]) -> str:
    """Run play.py in a process that lacks some packages."""
    code = f"import sys, runpy; sys.modules |= dict.fromkeys({without})\n"
    code += "runpy.run_path(sys.argv.pop(1))"
    command = [sys.executable, "-c", code, str(out / "play.py")]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_files_of_an_export(run_dir: Path, out: Path) -> None:
    names = ["example.npz", "interface.json", "model.onnx", "model.safetensors", "play.py"]
    assert sorted(path.name for path in out.iterdir()) == names
    about = json.loads((out / "interface.json").read_text())
    saved = read_saved_run(run_dir)
    assert (about["run"], about["step"]) == ("medics", saved.step)
    digest = hashlib.sha256(dump_config(saved.config).encode()).hexdigest()
    assert about["config_sha256"] == digest
    assert about["environment"] == {"id": saved.config.env.id, "kwargs": {}}
    assert [*about["entities"]["Unit"]["kinds"]] == ["ailment"]
    assert about["inputs"]["mask/whom"]["shape"] == [
        "frames",
        "actors of whom",
        8,
        "actees of whom",
    ]
    assert about["outputs"]["value"] == {"dtype": "float32", "shape": ["frames"]}
    with np.load(out / "example.npz") as example:
        assert {*example} == {*about["inputs"], *(f"output/{name}" for name in about["outputs"])}
    assert (out / "play.py").read_text().count("\n") <= 60


@pytest.mark.slow
def test_values_are_in_units_of_the_return(run_dir: Path, out: Path) -> None:
    scaling = read_model_file(out / "model.safetensors").reward_scaling
    rows, squares = scaling["num_rows"], scaling["squares_sum"]
    assert rows is not None
    assert squares is not None
    deviation = float((squares / rows).sqrt())
    assert abs(deviation - 1) > 0.1
    agent, env = load_agent(run_dir), Medics()
    env.seed(0)
    with np.load(out / "example.npz") as example:
        value = example["output/value"]
    assert np.isfinite(value).all()
    assert np.abs(value).max() < 100 * deviation * abs(agent.act(env.reset()).value) + 100


@pytest.mark.slow
def test_the_program_plays_with_numpy_alone_and_answers_without_the_environment(out: Path) -> None:
    assert played(out, "3", without=DEPENDENCIES).startswith("3 episodes, mean return ")
    with np.load(out / "example.npz") as example:
        expected = {name: example[f"output/{name}"] for name in ("log_probs/command", "value")}
    answer = json.loads(played(out, without=["entity_env"]))
    for name, values in expected.items():
        np.testing.assert_allclose(answer[name], values, rtol=1e-6)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_equal_files_in_any_folder_and_both_sides_of_a_match_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_small(tmp_path, env=Duel, checkpoint_dir=tmp_path / "duel")
    first, second = tmp_path / "first", tmp_path / "elsewhere" / "deep" / "second"
    second.parent.mkdir(parents=True)
    for folder, out, seed in (tmp_path, Path("first"), "1"), (second.parent, second, "2"):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        command = [sys.executable, "-m", "enn_trainer.cli", "export", str(tmp_path / "duel")]
        subprocess.run([*command, "--to", str(out)], check=True, timeout=200)
    assert len([*first.iterdir()]) == 5
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name
    said = played(first, "4", without=DEPENDENCIES)
    assert said.startswith("4 episodes of all 2 sides, played by this agent, mean return ")


SCRIPT = """
import { createRequire } from "node:module";
import { readFileSync } from "node:fs";
const [page, folder, modules] = process.argv.slice(-3);
const ort = createRequire(modules + "/")("onnxruntime-web");
ort.env.wasm.numThreads = 1;
const { load } = await import(page);
const about = JSON.parse(readFileSync(folder + "/interface.json", "utf8"));
const agent = await load(ort, about, readFileSync(folder + "/model.onnx"));
const outputs = await agent(JSON.parse(readFileSync(0, "utf8")));
const number = (x) => (isFinite(Number(x)) ? Number(x) : null);
const numbers = (tensor) => Array.from(tensor.data, number);
console.log(JSON.stringify(Object.fromEntries(
  Object.entries(outputs).map(([name, tensor]) => [name, numbers(tensor)]))));
"""
NODE_MODULES = [Path(folder) for folder in os.environ.get("NODE_PATH", "").split(":") if folder]
HAS_NODE = shutil.which("node") and any((f / "onnxruntime-web").is_dir() for f in NODE_MODULES)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_NODE, reason="no Node with onnxruntime-web on NODE_PATH")
def test_the_program_for_pages_fills_the_same_arrays(out: Path) -> None:
    with np.load(out / "example.npz") as example:
        arrays = dict(example)
    # The first frame, without padding.
    kinds, numbers = (arrays[f"{field}/Unit"][0] for field in ("kinds", "entities"))
    count = int(arrays["count/Unit"][0])
    actors = {name: arrays[f"actors/{name}"][0] for name in ("command", "whom")}
    actees = arrays["actees/whom"][0]
    actees = actees[actees >= 0]
    mask = arrays["mask/whom"][0][:, :, : len(actees)]
    frame = {
        "entities": {"Unit": numbers[:count].tolist(), "Medic": [[]]},
        "kinds": {"Unit": kinds[:count].tolist()},
        "actions": {
            "command": {
                "actors": actors["command"].tolist(),
                "mask": arrays["mask/command"][0].astype(int).tolist(),
            },
            "whom": {
                "actors": actors["whom"].tolist(),
                "actees": actees.tolist(),
                "mask": mask.astype(int).tolist(),
            },
        },
    }
    [modules] = [folder for folder in NODE_MODULES if (folder / "onnxruntime-web").is_dir()][:1]
    page = (ROOT / "docs" / "export" / "agent.mjs").as_uri()
    done = subprocess.run(
        ["node", "--input-type=module", "-e", SCRIPT, page, str(out), str(modules)],
        input=json.dumps(frame),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["value"], arrays["output/value"][:1], rtol=1e-5, atol=1e-6)
    expected = arrays["output/log_probs/command"][0].ravel()
    got = [-np.inf if x is None else x for x in answer["log_probs/command"]]
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert answer["best/command"] == arrays["output/best/command"][0].tolist()


Post: TypeAlias = Callable[[Any], Any]


@contextlib.contextmanager
def service(out: Path) -> Iterator[Post]:
    """Run the service of the documentation; yields a function that posts a request."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def post(content: Any) -> Any:
        url = f"http://127.0.0.1:{port}"
        with urllib.request.urlopen(url, json.dumps(content).encode(), timeout=60) as got:
            return json.load(got)

    program = str(ROOT / "docs" / "export" / "service.py")
    with subprocess.Popen([sys.executable, program, str(out), str(port)]) as process:
        try:
            for _ in range(600):  # until it listens
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            yield post
        finally:
            process.kill()


def example_arrays(out: Path) -> dict[str, Any]:
    with np.load(out / "example.npz") as example:
        return {name: x.tolist() for name, x in example.items()}


@pytest.mark.slow
def test_the_service_answers_sessions(out: Path) -> None:
    arrays = example_arrays(out)
    with service(out) as post:
        answer = post({"session": "a", "arrays": arrays})
        np.testing.assert_allclose(answer["value"], arrays["output/value"], rtol=1e-5)
        assert answer["sampled/whom"] == arrays["output/sampled/whom"]
        assert post({"session": "a", "end": True}) == {"ended": True}
        assert post({"session": "a", "end": True}) == {"ended": False}


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_service_has_states_of_the_entities_of_the_last_frame(tmp_path: Path) -> None:
    memory = ["net.memory.of=entity", "net.memory.types=[Card]", "net.memory.keep_absent=0"]
    run_small(tmp_path, *memory, "ppo.seq_len=4", env=Pairs, checkpoint_dir=tmp_path / "pairs")
    out = tmp_path / "out"
    assert run(["export", str(tmp_path / "pairs"), "--to", str(out)]) == 0
    with service(out) as post:
        inputs = json.loads((out / "interface.json").read_text())["inputs"]
        arrays = {name: rows[:1] for name, rows in example_arrays(out).items() if name in inputs}
        ids = range(len(arrays["visible/Card"][0]))
        arrays["kinds/Card"][0][0] = [1 + label for label in arrays["kinds/Card"][0][0]]

        def probabilities(first: int, session: str = "a") -> Any:
            numbers = {"Card": [first + i for i in ids]}
            request = {"session": session, "arrays": arrays, "ids": numbers}
            return post(request)["log_probs/turn"]

        new = probabilities(0)
        assert probabilities(0) != new  # with states
        assert probabilities(100) == new  # of other entities
        assert probabilities(0) == new  # which were not in the last frame
        assert probabilities(0) != new
        assert probabilities(0, "b") == new


@pytest.mark.slow
def test_an_agent_of_the_weights_acts_as_that_of_the_run(run_dir: Path, out: Path) -> None:
    env = Medics()
    env.seed(3)
    observation = env.reset()
    expected = load_agent(run_dir, seed=5).act(observation)
    for options in ({}, {"env": env}):
        act = load_agent(out / "model.safetensors", seed=5, **options).act(observation)
        assert act.value == expected.value
        for name, action in expected.actions.items():
            np.testing.assert_array_equal(act.actions[name].probs, action.probs)  # type: ignore[attr-defined]
    spaces = env.obs_space(), env.action_space()
    opponent: Any = create_opponent(str(out / "model.safetensors"), *spaces, torch.device("cpu"))
    assert opponent.network.obs_space == env.obs_space()


@pytest.mark.slow
def test_a_run_starts_from_exported_weights(run_dir: Path, out: Path, tmp_path: Path) -> None:
    source = out / "model.safetensors"
    words = ["total_timesteps=24", "rollout.num_envs=6", "rollout.steps=4", "optim.bs=16"]
    words += ["net.d_model=8", "net.n_layer=1", "ppo.reward_scaling=true", "rollout.processes=1"]
    folder = ["--checkpoint-dir", str(tmp_path / "next"), "--init-from", str(source)]
    assert run(["train", "Medics", "ppo.value_norm=false", "optim.lr=0", *words, *folder]) == 0
    before, after = read_saved_run(run_dir).agent, read_saved_run(tmp_path / "next").agent
    for (name, weight), new in zip(before.named_parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(new, weight, msg=name)


def test_of_a_custom_network_only_the_weights_are_exported(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", str(model_file), "--to", str(out)]) == 0
    assert "only its weights are exported" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["interface.json", "model.safetensors"]
    content = read_model_file(out / "model.safetensors")
    assert (content.step, content.run, content.spaces) == (7, "mine", SPACES)
    assert content.weights["layer.weight"].equal(torch.ones(2, 2))
    # An export is replaced; another folder is not.
    assert run(["export", str(out / "model.safetensors"), "--to", str(out)]) == 0
    assert (out / "model.safetensors").read_bytes() == model_file.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_folder_that_is_no_export_is_an_error(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in (tmp_path, tmp_path / "missing" / "out"):
        error = refused(["export", str(model_file), "--to", str(folder)], capsys)
        assert f"--to: expected a new folder or an export to replace, got {folder}" in error
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


def test_a_missing_package_is_an_error_with_the_line_to_type(
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnx" else found(name))
    error = refused(["export", str(run_dir), "--to", str(tmp_path / "out")], capsys)
    assert "expected the package onnx, which is not installed; pip install" in error
    assert "[export]" in error
    assert not (tmp_path / "out").exists()


def test_a_damaged_save_is_an_error(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [save] = [path for path in run_dir.iterdir() if path.name == "step-000000000072"]
    copy = tmp_path / save.name
    shutil.copytree(save, copy)
    data = bytearray((copy / "state.agent.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "state.agent.safetensors").write_bytes(data)
    error = refused(["export", str(copy), "--to", str(tmp_path / "out")], capsys)
    assert "damaged" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", [b"", b"\x08\0\0\0\0\0\0\0{}      ", b"no file of tensors"])
def test_a_file_without_configuration_is_an_error(
    text: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.safetensors").write_bytes(text)
    path = str(tmp_path / "model.safetensors")
    assert path in refused(["export", path, "--to", str(tmp_path / "out")], capsys)
