"""Checkpoints of enn_trainer 0.1.16 reproduce the outputs of that version."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, load_agent
from enn_trainer.checkpoints import writer
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.evaluation.opponents import create_opponent
from entity_env import Observation, SelectEntityActionMask
from entity_env.examples import CherryPick
from entity_env.vec.batching import batch_obs
from rogue_net import EntityBatch
from tests.enn_trainer.checkpoints.published import GOLDEN
from tests.enn_trainer.evaluation.builders import run_duel

CASES = json.loads((GOLDEN / "expected.json").read_text())["cases"]


def observation(case: Any) -> Observation:
    masks = {name: SelectEntityActionMask(**mask) for name, mask in case["actions"].items()}
    return Observation(features=case["entities"], ids=case["ids"], actions=masks)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_published_agent_reproduces_its_outputs(case: Any) -> None:
    agent = load_agent(GOLDEN)
    batch = EntityBatch.of(batch_obs([observation(case)], agent.obs_space, agent.action_space))
    with torch.no_grad():
        out = agent.agent(batch)
    assert out.values["value"].item() == pytest.approx(case["value"], abs=1e-5)
    for name, probs in case["probs"].items():
        np.testing.assert_allclose(out.log_probs[name].exp().numpy(), probs, atol=1e-6)
        np.testing.assert_allclose(out.entropies[name].numpy(), case["entropy"][name], atol=1e-5)


def test_published_agent_is_loaded_from_the_run_folder(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096")
    world = CherryPick()
    spaces = world.obs_space(), world.action_space()
    opponent = create_opponent(str(tmp_path / "run"), *spaces, torch.device("cpu"))
    assert opponent is not None
    acting = load_agent(tmp_path / "run").act(world.reset())
    assert acting.actions["Pick Cherry"]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "copy")
    return tmp_path / "copy"


def tensors(copy: Path) -> dict[str, Any]:
    return dict(msgpack.unpackb((copy / "state.agent.msgpack").read_bytes()))


def refused(copy: Path, content: Any, message: str) -> None:
    data = content if isinstance(content, bytes) else msgpack.packb(content)
    (copy / "state.agent.msgpack").write_bytes(data)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_agent(copy)
    assert "\n" not in str(caught.value)


def test_damaged_weights_are_rejected(copy: Path) -> None:
    good = tensors(copy)
    name = next(iter(good))
    refused(copy, (GOLDEN / "state.agent.msgpack").read_bytes()[:-100], "cannot be read")
    refused(copy, [good], "cannot be read")
    refused(copy, {name: 3}, "expected a tensor, got int")
    refused(copy, {**good, name: {**good[name], b"shape": [7]}}, "got 4 bytes")
    refused(copy, {**good, name: {**good[name], b"dtype": "|O"}}, "expected numbers of a type")
    fewer = {key: value for key, value in good.items() if key != name}
    refused(copy, fewer, "the weights do not fit the network")
    refused(copy, {**good, name: {**good[name], b"shape": [1.5]}}, "shape of whole numbers")
    weight = next(key for key in good if key.endswith("proj.weight"))
    numbers = np.frombuffer(good[weight][b"data"], dtype=np.float32)
    whole = {**good[weight], b"dtype": "<i4", b"data": numbers.astype("<i4").tobytes()}
    refused(copy, {**good, weight: whole}, "expected floating-point numbers, got torch.int32")
    bad = {**good[weight], b"data": np.full_like(numbers, np.nan).tobytes()}
    refused(copy, {**good, weight: bad}, f"{weight}: expected finite numbers")
    refused(copy, {"odd": good[name]}, "odd: not a parameter")


def test_false_lengths_do_not_allocate_memory(copy: Path) -> None:
    """A list of 2**31 entries would be made before its first entry is read."""
    refused(copy, b"\x81\xa1a" + b"\xdd\x7f\xff\xff\xff" * 20, "cannot be read")
    refused(copy, b"\x91" * 5000, "cannot be read")
    refused(copy, msgpack.packb({"a": msgpack.ExtType(1, b"x")}), "cannot be read")


@pytest.mark.parametrize(
    "change", [("d_model: 16", "d_model: 160000"), ("n_layer: 2", "n_layer: 2000000000")]
)
def test_network_larger_than_its_weights_is_not_created(
    change: tuple[str, str], copy: Path
) -> None:
    config = (copy / "config.ron").read_text()
    (copy / "config.ron").write_text(config.replace(*change))
    with pytest.raises(CheckpointError, match=r"config\.ron asks for more than the \d+ numbers"):
        load_agent(copy)


def test_unreadable_state_is_named(copy: Path) -> None:
    (copy / "state.ron").write_text("State(step: 3)")
    with pytest.raises(CheckpointError, match=r"state\.ron cannot be read"):
        load_agent(copy)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("state.ron", ("step: 4096", "step: -5"), "step: expected a number of at least 0, got -5"),
        (
            "config.ron",
            (
                "relpos_encoding: None",
                'relpos_encoding: RelposEncodingConfig(extent: [2], position_features: ["no"])',
            ),
            r"config\.ron does not fit state\.ron: .*'no'",
        ),
    ],
)
def test_incompatible_published_checkpoint_is_rejected(
    file: str, change: tuple[str, str], message: str, copy: Path
) -> None:
    text = (copy / file).read_text()
    assert change[0] in text
    (copy / file).write_text(text.replace(*change))
    with pytest.raises(CheckpointError, match=message):
        load_agent(copy)


def test_own_checkpoint_takes_precedence_over_a_published_one(tmp_path: Path) -> None:
    """A run that was continued with this program is newer than what it began with."""
    run_dir = tmp_path / "run"
    run_duel(tmp_path, "total_timesteps=64", checkpoint_dir=run_dir)
    shutil.copytree(GOLDEN, run_dir / "latest-step000000004096")
    saved = read_saved_run(run_dir)
    assert saved.path == run_dir / "step-000000000064"
    assert saved.step == 64


def test_non_numeric_weights_are_rejected(tmp_path: Path) -> None:
    manager, _ = run_duel(tmp_path, "total_timesteps=64")
    with torch.no_grad():
        next(manager.state.agent.parameters()).view(-1)[0] = torch.nan
    name = next(iter(dict(manager.state.agent.named_parameters())))
    (tmp_path / "run").mkdir()
    writer.save(tmp_path / "run", 64, to_files(manager.config, manager.state), "test")
    with pytest.raises(CheckpointError, match=f"finite numbers, got others in {name}; take"):
        load_agent(tmp_path / "run")
