"""Weights alone: read where exactly that file is named, and nothing in it runs."""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from enn_trainer import CheckpointError, StateManager, load_agent
from entity_env.examples import CherryPick
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.checkpoints.published import Trap


def network(d_model: int = 8) -> RogueNet:
    world = CherryPick()
    config = RogueNetConfig(d_model=d_model, n_layer=1)
    return RogueNet(config, world.obs_space(), world.action_space(), {"value": 1})


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pth"])
def test_weights_are_loaded_into_the_given_network(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    saved = network()
    if suffix == ".safetensors":
        save_file(saved.state_dict(), path)
    else:
        torch.save(saved.state_dict(), path)
    other = network()
    agent = load_agent(path, agent=other)
    assert agent.agent is other
    for name, tensor in saved.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert agent.act(CherryPick().reset()).actions


def test_weights_require_a_network(tmp_path: Path) -> None:
    torch.save(network().state_dict(), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"expected agent=, .* got none"):
        load_agent(tmp_path / "w.pt")
    bare: Any = torch.nn.Linear(1, 1)
    with pytest.raises(CheckpointError, match="got one without obs_space and action_space"):
        load_agent(tmp_path / "w.pt", agent=bare)


def in_a_zip(data: bytes) -> bytes:
    """As torch writes since 1.6: the pickle is a file of an archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", b"3\n")
        archive.writestr("archive/byteorder", b"little")
    return buffer.getvalue()


@pytest.mark.parametrize("wrapped", [bytes, in_a_zip])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".pickle", ""])
def test_a_malicious_pickle_is_refused_and_not_executed(
    suffix: str, wrapped: Any, tmp_path: Path
) -> None:
    path, ran = tmp_path / f"trap{suffix}", tmp_path / "ran"
    path.write_bytes(wrapped(pickle.dumps({"weight": Trap(ran)})))
    with pytest.raises(CheckpointError, match=r"could execute code|cannot be read") as caught:
        load_agent(path, agent=network())
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_a_file_of_weights_is_not_a_configuration(tmp_path: Path) -> None:
    """--config and --resume-from take a file for a configuration, and do not unpickle it."""
    path, ran = tmp_path / "trap.pt", tmp_path / "ran"
    path.write_bytes(pickle.dumps(Trap(ran)))
    with pytest.raises(ValueError, match=r"trap\.pt"):
        StateManager(init_path=path).config  # noqa: B018 (it is read where it is asked for)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "expected a dict of tensors by name, got list"),
        ({"a": 3}, "expected a dict of tensors"),
        ({"a": torch.zeros(1)}, "do not fit the network"),
    ],
)
def test_other_content_is_refused(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=message):
        load_agent(tmp_path / "w.pt", agent=network())


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(number: float, tmp_path: Path) -> None:
    weights = network().state_dict()
    name = next(iter(dict(network().named_parameters())))
    torch.save({**weights, name: torch.full_like(weights[name], number)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=f"finite numbers, got others in {name}"):
        load_agent(tmp_path / "w.pt", agent=network())


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    torch.save(network(16).state_dict(), tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="do not fit the network"):
        load_agent(tmp_path / "w.pt", agent=network())


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_every_cut_is_found(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"w{suffix}"
    if suffix == ".pt":
        torch.save(network().state_dict(), path)
    else:
        save_file(network().state_dict(), path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 997):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            load_agent(path, agent=network())
