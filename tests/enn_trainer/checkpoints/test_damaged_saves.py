"""What a save says is checked before it is believed, also where all its hashes are right."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
import torch
from safetensors.torch import load, save

from enn_trainer import CheckpointError, ConfigError, StateManager, load_agent, load_checkpoint
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.weights import load_weights_file
from tests.soak.small_saves import copy_of_published, new_save, write_whole


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_save(tmp_path_factory.mktemp("run"))


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / good.name)
    return tmp_path / good.name


def rewrite(copy: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    files = {file.name: file.read_bytes() for file in copy.iterdir()}
    damaged = change(files[name])
    assert damaged != files[name]
    write_whole(copy, files, name, damaged)


def replace(copy: Path, name: str, old: str, new: str) -> None:
    rewrite(copy, name, lambda data: data.decode().replace(old, new, 1).encode())


def refused(copy: Path, message: str, load: Callable[[Path], object] = load_agent) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(copy)
    assert copy.name in str(caught.value)
    assert "\n" not in str(caught.value)


def restored(copy: Path) -> object:
    return load_checkpoint(copy).state


def with_tensors(
    change: Callable[[dict[str, torch.Tensor]], object],
) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        tensors = load(data)
        change(tensors)
        return save(tensors)

    return changed


def test_links_in_a_save_are_not_followed(copy: Path, good: Path) -> None:
    (copy / "state.ron").unlink()
    (copy / "state.ron").symlink_to(good / "state.ron")
    refused(copy, r"state\.ron: .*got a link")
    (copy / "manifest.json").unlink()
    (copy / "manifest.json").symlink_to(good / "manifest.json")
    refused(copy, r"manifest\.json: .*got a link")


def test_a_pipe_in_a_save_is_not_waited_for(copy: Path) -> None:
    (copy / "config.ron").unlink()
    os.mkfifo(copy / "config.ron")
    refused(copy, r"config\.ron: .*expected a regular file")


def test_a_folder_in_place_of_a_file_is_reported(copy: Path) -> None:
    (copy / "config.ron").unlink()
    (copy / "config.ron").mkdir()
    refused(copy, r"config\.ron: cannot be read: Is a directory")


@pytest.mark.parametrize("name", ["state.agent.pt", "state.pickle", "more/x.PKL", ".hidden.pth"])
def test_a_save_with_a_pickle_is_refused_without_opening_the_pickle(copy: Path, name: str) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(copy / "it-ran"),)

    (copy / "more").mkdir()
    (copy / name).write_bytes(pickle.dumps(Runs()))
    refused(copy, f"{Path(name).name}: a pickle, which can run any code .* delete it")
    refused(copy, "a pickle", restored)
    assert not (copy / "it-ran").exists()


def test_a_published_save_with_a_pickle_is_refused(tmp_path: Path) -> None:
    published = copy_of_published(tmp_path)
    (published / "state.optimizer.pt").write_bytes(b"")
    refused(published, "a pickle")


def test_a_save_without_manifest_is_reported(copy: Path) -> None:
    (copy / "manifest.json").unlink()
    refused(copy, r"manifest\.json: cannot be read")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format": 1', '"format": "1"', "format: expected a number, got '1'"),
        ('"format": 1', '"format": 2', r"newer version \(format 2"),
        ('"step": 16', '"step": -16', "step: expected a number of at least 0, got -16"),
        ('"step": 16', '"step": 16.0', r"step: expected a number of at least 0, got 16\.0"),
        ('"size": ', '"size": -', r"files\['.*: expected a size and a sha256"),
        ('"files": {', '"files": [], "more": {', "files: expected files by name"),
        ('"config.ron"', '"../config.ron"', "outside the checkpoint"),
        ('"config.ron"', '"/etc/hosts"', "outside the checkpoint"),
        ('"config.ron"', '"a\\u0000b"', "outside the checkpoint"),
        ('"config.ron"', f'"{"a" * 300}"', "outside the checkpoint"),
        ('"config.ron"', '"other.ron"', r"other\.ron: cannot be read"),
    ],
)
def test_an_invalid_manifest_is_refused(copy: Path, old: str, new: str, message: str) -> None:
    replace(copy, "manifest.json", old, new)
    refused(copy, message)


def test_a_manifest_with_duplicate_keys_is_refused(copy: Path) -> None:
    text = (copy / "manifest.json").read_text()
    (copy / "manifest.json").write_text(text.replace('"step": 16', '"step": 8, "step": 16'))
    refused(copy, "expected 'step' once")


def test_an_invalid_configuration_is_an_error_of_its_save(copy: Path) -> None:
    replace(copy, "config.ron", "d_model: 2", "d_modell: 2")
    for use in (load_agent, restored):
        refused(copy, "d_modell=2: no such field", use)


def test_invalid_overrides_of_a_valid_save_are_errors_of_the_settings(good: Path) -> None:
    manager = StateManager(init_path=good, overrides=["net.d_modell=3"])
    with pytest.raises(ConfigError, match="d_modell"):
        _ = manager.config


def test_groups_that_match_no_parameter_are_an_error_of_their_save(copy: Path) -> None:
    replace(copy, "config.ron", "groups: []", 'groups: [(pattern: "none")]')
    refused(copy, r"optim\.groups\[0\]", restored)
    manager = StateManager(init_path=copy.parent, overrides=["name=another"])
    with pytest.raises(ConfigError, match=r"optim\.groups\[0\]"):
        _ = manager.state


def test_invalid_text_is_refused(copy: Path) -> None:
    rewrite(copy, "config.ron", lambda data: b"\xff" + data)
    refused(copy, r"config\.ron: damaged, no text")


def test_unterminated_text_is_not_read(copy: Path) -> None:
    rewrite(copy, "state.ron", lambda data: data + b" " * (1 << 23))
    refused(copy, r"state\.ron: expected at most 4194304 bytes")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("d_model: 2", "d_model: 1000000"),
        ("d_model: 2", f"d_model: {10**400}"),
        ("d_model: 2", f"d_model: {2**62}"),
        ("n_layer: 1", "n_layer: 1000000"),
        ("d_qk: 1", "d_qk: 100000000000"),
        ("vf_net: None", "vf_net: (n_layer: 1000000)"),
        (
            "relpos_encoding: None",
            'relpos_encoding: (extent: [1000000, 1000000], position_features: ["x", "hour"])',
        ),
    ],
)
def test_a_network_larger_than_its_weights_is_not_created(copy: Path, old: str, new: str) -> None:
    replace(copy, "config.ron", old, new)
    for use in (load_agent, restored):
        refused(copy, r"config\.ron asks for more than the \d+ numbers", use)


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_an_environment_with_too_many_types_is_refused_before_creation(copy: Path) -> None:
    types = "".join(f'"{i}":(features:[]),' for i in range(30_000))
    replace(copy, "state.ron", '"stone":', f'{types}"stone":')
    refused(copy, "asks for more than")


@pytest.mark.slow
@pytest.mark.timeout(20)
def test_a_type_with_too_many_features_is_refused_before_creation(copy: Path) -> None:
    names = "".join(f'"{i}",' for i in range(100_000))
    replace(copy, "state.ron", '"x",', f'"x",{names}')
    refused(copy, "asks for more than")


@pytest.mark.slow
@pytest.mark.timeout(30)
def test_very_many_unknown_settings_are_refused_in_time(copy: Path) -> None:
    unknown = "".join(f"k{i}: 1, " for i in range(30_000))
    replace(copy, "config.ron", "env: ", f"{'k' * 100_000}: 1, {unknown} env: ")
    refused(copy, "; and 29981 more")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", 'version: "1"', "version: expected"),
        ("version: 1", "version: 2", "newer version, 2"),
        ("step: 16", "step: 17", "step: expected 16 as in the manifest"),
        ("restart: 0", "restart: -1", "restart: expected a number of at least 0, got -1"),
        ("restart: 0", "restarts: 0", "restarts: no such field; restart: expected"),
        ("time_used: ", "time_used: -", "time_used: expected a number of seconds"),
        ("run_name: ", 'run_name: "..", x: ', "x: no such field; run_name: expected the name of a"),
        ("run_name: ", 'run_name: "../../x", x: ', "run_name: expected the name of a folder"),
        ("memory: {", "memory: {3: 4, ", "memory: expected the state of stop conditions"),
        ("memory: {", 'memory: {"asked": -1, ', "memory: expected the state of stop conditions"),
        ("tracker_ids: {}", 'tracker_ids: {"wandb": 3}', "tracker_ids: expected texts by name"),
        ('"x"', "1", r"obs_space.entities\['sheep'\].features: expected a list of names"),
        ("obs_space: ObsSpace(", "obs_space: ObsSpace(more: 1, ", "expected the fields entities"),
        ('kind: "CategoricalActionSpace"', 'kind: "Any"', "expected one of the kinds Categorical"),
        ('"left",', "", "weights do not fit"),
        ('"left"', '"right"', "expected unique names"),
        ("State(", "", r"state\.ron cannot be read"),
    ],
)
def test_an_invalid_state_is_refused(copy: Path, old: str, new: str, message: str) -> None:
    replace(copy, "state.ron", old, new)
    refused(copy, message, restored)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e20])
def test_unusable_weights_are_refused(copy: Path, number: float) -> None:
    name = "transformer.blocks.0.mlp.0.weight"
    change = with_tensors(lambda t: t[name].view(-1)[:1].fill_(number))
    rewrite(copy, "state.agent.safetensors", change)
    for use in (load_agent, restored):
        refused(copy, f"got others in {name}; take an earlier", use)


def test_weights_with_another_dtype_are_refused(copy: Path) -> None:
    def whole(tensors: dict[str, torch.Tensor]) -> None:
        name = "transformer.blocks.0.mlp.0.weight"
        tensors[name] = tensors[name].int()

    rewrite(copy, "state.agent.safetensors", with_tensors(whole))
    refused(copy, "expected floating-point numbers, got torch.int32")


MOMENT = "transformer.blocks.0.mlp.0.weight/exp_avg"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(MOMENT), "expected exp_avg, exp_avg_sq, step as for other parameters"),
        (lambda t: t.update({"none/step": t.pop(MOMENT)}), "has none/step, but the network has no"),
        (lambda t: t.update({MOMENT: torch.zeros(5, 2)}), "of the shape of the parameter"),
        (lambda t: t[MOMENT].fill_(torch.nan), "exp_avg: expected finite numbers"),
        (lambda t: t[f"{MOMENT[:-7]}step"].fill_(-1), "finite numbers of the shape"),
    ],
)
def test_impossible_optimizer_moments_are_refused(
    copy: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    rewrite(copy, "state.optimizer.safetensors", with_tensors(change))
    refused(copy, message, restored)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("reward_scaling/mean"), "reward_scaling: expected num_rows, mean"),
        (lambda t: t.update({"reward_scaling/mean": torch.zeros(3)}), "reward_scaling: mean: "),
        (lambda t: t.update({"ent_tunings/walk": torch.zeros(3)}), "ent_tunings/walk: expected"),
    ],
)
def test_impossible_loss_state_is_refused(
    copy: Path, change: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    rewrite(copy, "state.loss.safetensors", with_tensors(change))
    refused(copy, rf"state\.loss\.safetensors: .*{message}", restored)


def test_mismatched_projections_are_refused(tmp_path: Path) -> None:
    published = copy_of_published(tmp_path)
    file = published / "state.agent.msgpack"
    content = msgpack.unpackb(file.read_bytes())
    name = next(name for name in content if name.endswith("attn.query.weight"))
    content[name] |= {b"shape": [256], b"data": bytes(1024)}
    file.write_bytes(msgpack.packb(content))
    refused(published, "cannot be read")


def test_a_damaged_save_does_not_end_a_run_that_has_an_earlier_one(copy: Path) -> None:
    later = copy.parent / "step-000000000024"
    shutil.copytree(copy, later)
    replace(later, "manifest.json", '"step": 16', '"step": 24')
    (later / "state.agent.pt").write_bytes(b"")
    said: list[str] = []
    found = RunDir(copy.parent).newest(said.append)
    assert found is not None
    assert found.path == copy
    assert "state.agent.pt: a pickle" in said[0]


def test_the_manifest_written_by_tests_equals_that_of_the_writer(copy: Path) -> None:
    """Else the tests above refuse saves for what no writer writes."""
    before = json.loads((copy / "manifest.json").read_text())
    rewrite(copy, "state.ron", lambda data: data + b" ")
    after = json.loads((copy / "manifest.json").read_text())
    assert before.keys() == after.keys()
    load_agent(copy)


def test_a_header_of_very_many_tensors_is_refused(copy: Path, tmp_path: Path) -> None:
    """A tensor without numbers takes some ten bytes in a header, and hundreds in memory."""
    header = ",".join(
        f'"t{i}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}' for i in range(90_000)
    ).encode()
    data = (len(header) + 2).to_bytes(8, "little") + b"{" + header + b"}"
    rewrite(copy, checkpoint.WEIGHTS, lambda _: data)
    refused(copy, "expected a header of at most 4194304 bytes")
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="expected a header of at most 4194304 bytes"):
        load_weights_file(path, torch.nn.Linear(1, 1))


def test_a_state_whose_keys_share_a_hash_is_refused(copy: Path) -> None:
    hostile = ", ".join(f"{(2**61 - 1) * i}: 0" for i in range(1000))
    rewrite(copy, "state.ron", lambda _: f"State(memory: {{{hostile}}})".encode())
    refused(copy, "state.ron cannot be read: .*expected keys with different hashes")
    rewrite(copy, "config.ron", lambda _: f"TrainConfig(version: {{{hostile}}})".encode())
    refused(copy, "expected keys with different hashes")
