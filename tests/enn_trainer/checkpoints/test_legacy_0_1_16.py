"""Runs of enn_trainer 0.1.16 continue: weights, moments and clocks, whatever their network is.

`test_eval_published.py` has what such a checkpoint says when it plays.
"""

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, ConfigError, StateManager, load_agent, train
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from entity_env.examples import CherryPick
from tests.enn_trainer.checkpoints.published import (
    GOLDEN,
    NAMES,
    Trap,
    moments_of,
    packed,
    published,
)
from tests.rogue_net.published_case import load_case


def file_of(path: Path, name: str) -> Any:
    return msgpack.unpackb((path / name).read_bytes(), strict_map_key=False)


def numbers(tensor: Any) -> torch.Tensor:
    data = np.frombuffer(tensor[b"data"], dtype=tensor[b"dtype"])
    return torch.from_numpy(data.copy()).reshape(tensor[b"shape"])


@pytest.mark.slow
def test_state_equals_the_files() -> None:
    state = StateManager(init_path=GOLDEN).state
    assert (state.step, state.restart, state.next_eval_step) == (4096, 0, None)
    world = CherryPick()
    assert (state.obs_space, state.action_space) == (world.obs_space(), world.action_space())


# The numbers count the parameters by hand: those of a normalisation are none.
BY_HAND = {
    0: "embedding.by_type./Cherry.linear.weight",
    2: "embedding.by_type./Cherry.layer_norm.weight",
    4: "embedding.by_type./Player.vector",
    5: "transformer.blocks.0.norm_1.weight",
    15: "transformer.blocks.0.attention.project.weight",
    20: "transformer.blocks.0.mlp.2.bias",
    33: "transformer.blocks.1.mlp.0.weight",
    37: "action_heads./Pick Cherry.query.weight",
    39: "action_heads./Pick Cherry.key.weight",
    41: "regression_heads./value.weight",
    42: "regression_heads./value.bias",
}


def test_moments_belong_to_the_parameters_in_the_file() -> None:
    entries = file_of(GOLDEN, "state.optimizer.msgpack")["state"]
    restored = moments_of(StateManager(init_path=GOLDEN))
    for number, name in BY_HAND.items():
        for key, tensor in entries[number].items():
            assert torch.equal(restored[f"{name}/{key}"], numbers(tensor)), (name, key)
    for block, query in ((0, 11), (1, 27)):  # query, key and value became one matrix
        for offset, kind in ((0, "weight"), (1, "bias")):
            name = f"transformer.blocks.{block}.attention.query_key_value.{kind}"
            parts = [entries[number + offset] for number in (query, query - 2, query + 2)]
            for key in ("exp_avg", "exp_avg_sq"):
                expected = torch.cat([numbers(part[key]) for part in parts])
                assert torch.equal(restored[f"{name}/{key}"], expected), (name, key)
            assert restored[f"{name}/step"] == numbers(parts[0]["step"])
    assert len(restored) == 3 * (43 - 8)


@pytest.mark.slow
def test_run_continues_in_its_own_folder(tmp_path: Path) -> None:
    settings = ["total_timesteps=5120", "optim.anneal_lr=false", "optim.lr=0.0001"]
    manager = StateManager(
        init_path=GOLDEN,
        checkpoint_dir=tmp_path / "run",
        overrides=[*settings, f"data_dir={tmp_path}"],
    )
    before = {n: p.detach().clone() for n, p in manager.state.agent.named_parameters()}
    steps_before = moments_of(manager)["regression_heads./value.bias/step"].item()
    train(manager, CherryPick)
    metrics = [
        json.loads(line)
        for path in sorted(tmp_path.rglob("metrics.jsonl"))
        for line in path.read_text().splitlines()
    ]
    said = [line for line in metrics if "losses/approx_kl" in line]
    assert len(said) == 2
    for line in said:
        assert abs(line["losses/approx_kl"]) < 0.01
        assert np.isfinite(line["losses/policy_loss"])
    state = manager.state
    assert (state.step, state.restart) == (5120, 1)
    # Two rollouts of 512 frames, three times each, in minibatches of 256.
    assert moments_of(manager)["regression_heads./value.bias/step"].item() == steps_before + 12
    moved = max((p - before[n]).abs().max().item() for n, p in state.agent.named_parameters())
    assert 0 < moved < 12 * 0.0001 * 2
    again = StateManager(checkpoint_dir=tmp_path / "run")
    assert again.resumed_from is not None
    assert again.resumed_from.path.name == "step-000000005120"
    for name, tensor in moments_of(again).items():
        assert torch.equal(moments_of(manager)[name], tensor)


def test_folder_of_a_published_run_continues(tmp_path: Path) -> None:
    """Starting over beside what is there would be a silent loss."""
    shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096")
    manager = StateManager(
        checkpoint_dir=tmp_path / "run", overrides=["total_timesteps=4608", f"data_dir={tmp_path}"]
    )
    train(manager, CherryPick)
    assert manager.state.restart == 1
    assert find(tmp_path / "run").path.name == "step-000000004608"
    assert load_agent(tmp_path / "run").act(CherryPick().reset()).actions


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_published_network_keeps_its_weights_and_moments(name: str, tmp_path: Path) -> None:
    """Relative positions, translation, several actions and types, global ones.

    Our network's own gradient says which moment is of which parameter.
    """
    path = published(tmp_path / "latest-step000000000512", name)
    case = load_case(name)
    manager = StateManager(init_path=tmp_path)
    state = manager.state
    assert (state.step, state.restart, state.next_eval_step) == (512, 2, 1000)
    for network in (state.agent.eval(), load_agent(path).agent):
        out = network(case.batch, actions=case.chosen)
        for action in case.chosen:
            expected = case.expected[f"{action}/logprob"].reshape(-1)
            # Both are sums of float32 in some order: parts in a million of what is far from 0.
            np.testing.assert_allclose(
                out.logprobs[action].detach(), expected, rtol=1e-6, atol=1e-5
            )
    loss = 0.7 * out.values["value"].sum()
    for action in case.chosen:
        loss = loss + out.logprobs[action].sum() + 0.3 * out.entropies[action].sum()
    loss.backward()
    gradients = {n: p.grad for n, p in network.named_parameters() if p.grad is not None}
    moments = moments_of(manager)
    assert {key.rpartition("/")[0] for key in moments} == set(gradients)
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    for parameter, gradient in gradients.items():
        scale = max(1e-4 * gradient.abs().max().item(), 2.5e-7 * largest)
        moment = moments[f"{parameter}/exp_avg"]
        assert (moment - gradient).abs().max() <= scale, parameter
        assert torch.equal(moments[f"{parameter}/exp_avg_sq"], moment**2)
        assert moments[f"{parameter}/step"] == 3


# What cannot be continued


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096"))


def refused(path: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        StateManager(init_path=path).state  # noqa: B018 (it is read where it is asked for)
    assert "\n" not in str(caught.value)


def changed_optimizer(copy: Path, change: Any) -> None:
    content = file_of(GOLDEN, "state.optimizer.msgpack")
    change(content)
    (copy / "state.optimizer.msgpack").write_bytes(msgpack.packb(content))


def numbered_otherwise(content: Any) -> None:
    content["param_groups"][0]["params"].reverse()


def of_another_network(content: Any) -> None:
    content["param_groups"][0]["params"].append(43)


def of_another_shape(content: Any) -> None:
    content["state"][0], content["state"][1] = content["state"][1], content["state"][0]


def without_a_projection(content: Any) -> None:
    del content["state"][9]


def at_another_step(content: Any) -> None:
    content["state"][9]["step"] = packed(np.float32(1))


def below_zero(content: Any) -> None:
    content["state"][42]["exp_avg_sq"] = packed(np.float32([-1]))


def no_number(content: Any) -> None:
    content["state"][42]["exp_avg"] = packed(np.float32([np.nan]))


def half_a_step(content: Any) -> None:
    content["state"][42]["step"] = packed(np.float32(0.5))


def of_another_optimizer(content: Any) -> None:
    content["state"][42]["momentum_buffer"] = content["state"][42].pop("exp_avg")


def unknown_number(content: Any) -> None:
    content["state"]["x"] = content["state"][42]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (numbered_otherwise, "expected moments of the 43 parameters, got 43"),
        (of_another_network, "cannot be read: .*44 exceeds max_array_len|got 44"),
        (of_another_shape, "Cherry.1.weight: exp_avg is not of the shape"),
        (without_a_projection, "attn.key.weight: missing"),
        (at_another_step, "query_key_value.weight: expected one number of steps"),
        (below_zero, "value.bias: exp_avg_sq: expected squares"),
        (no_number, "value.bias: expected finite numbers"),
        (half_a_step, "step: expected a whole number of at least 0, got 0.5"),
        (of_another_optimizer, "42: expected a number and .*momentum_buffer"),
        (unknown_number, "'x': expected a number"),
        (dict.clear, "param_groups"),
    ],
)
def test_moments_of_other_parameters_are_refused(change: Any, message: str, copy: Path) -> None:
    changed_optimizer(copy, change)
    refused(copy, message)
    assert load_agent(copy).act(CherryPick().reset()).actions  # playing needs none


@pytest.mark.parametrize("data", [None, b"", b"\xc1", b"\xdd\x7f\xff\xff\xff" * 20, b"\x93" * 99])
def test_damaged_moments_are_refused(data: bytes | None, copy: Path) -> None:
    file = copy / "state.optimizer.msgpack"
    file.unlink() if data is None else file.write_bytes(data)
    refused(copy, r"state\.optimizer\.msgpack: cannot be read")


def test_mismatched_projections_are_refused(copy: Path) -> None:
    content = file_of(copy, "state.agent.msgpack")
    content["backbone.blocks.0.attn.key.weight"] = packed(np.zeros((16, 3), np.float32))
    (copy / "state.agent.msgpack").write_bytes(msgpack.packb(content))
    refused(copy, r"state\.agent\.msgpack: cannot be read: Sizes of tensors must match")


@pytest.mark.slow
def test_every_cut_of_the_moments_is_found(copy: Path) -> None:
    file = copy / "state.optimizer.msgpack"
    whole = file.read_bytes()
    for size in range(0, len(whole), 6007):
        file.write_bytes(whole[:size])
        refused(copy, r"state\.optimizer\.msgpack: cannot be read")


@pytest.mark.parametrize("name", ["state.optimizer.msgpack", "state.agent.msgpack", "config.ron"])
def test_newest_valid_checkpoint_is_used(
    name: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The published program took any directory that ends in twelve digits, and only that."""
    newer = shutil.copytree(copy, copy.parent / "latest-step000000009000")
    (copy.parent / "best-step000000099999").mkdir()
    assert find(copy.parent).path == newer
    (newer / name).write_bytes(b"")
    assert StateManager(init_path=copy.parent).state.step == 4096
    said = capsys.readouterr().out
    assert "skipped a damaged checkpoint, using latest-step000000004096 instead: " in said
    assert f"latest-step000000009000/{name}" in said or "config.ron" in name


def test_run_without_a_valid_checkpoint_is_refused(copy: Path) -> None:
    (copy / "state.agent.msgpack").unlink()
    refused(copy.parent, r"no valid checkpoint: .*state\.agent\.msgpack: cannot be read")


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("config.ron", "version: 4", "version: 10", "version: expected 0 to 9, .* got 10"),
        ("config.ron", "    version: 4,\n", "", "version: expected the version number .* got None"),
        ("config.ron", "vf_net: None", "vf_net: RogueNetConfig()", "vf_net: expected none"),
        ("state.ron", "restart: 0", "restart: -1", "restart: expected a number of at least 0"),
        ("state.ron", "next_eval_step: None", "next_eval_step: x", "next_eval_step: expected"),
    ],
)
def test_content_that_0_1_16_never_wrote_is_refused(
    file: str, old: str, new: str, message: str, copy: Path
) -> None:
    text = (copy / file).read_text()
    assert old in text
    (copy / file).write_text(text.replace(old, new))
    refused(copy, message)
    with pytest.raises(CheckpointError, match=message):
        load_agent(copy)


def test_config_of_an_older_version_has_its_own_defaults(copy: Path) -> None:
    """Also where a whole section is absent: the published program took its newer ones."""
    text = "TrainConfig(version: 0, net: (n_layer: 2, d_model: 16), optim: (lr: 0.01))"
    (copy / "config.ron").write_text(text)
    config = StateManager(init_path=copy).config
    assert (config.optim.bs, config.rollout.num_envs, config.ppo.ent_coef) == (128, 4, 0.01)
    assert (config.total_timesteps, config.optim.lr) == (25000, 0.01)


def test_other_settings_of_the_network_are_refused() -> None:
    manager = StateManager(init_path=GOLDEN, overrides=["net.d_model=32"])
    with pytest.raises((CheckpointError, ConfigError), match=r"net\.d_model: expected 16"):
        manager.state  # noqa: B018


# Pickles


@pytest.mark.parametrize("mark", ["<blob:pickle>", "<BLOB>"])
@pytest.mark.parametrize("name", ["state.agent.pickle", "agent"])
def test_pickles_of_hyperstate_are_refused_and_not_run(
    mark: str, name: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSAFE_DESERIALIZE_PICKLE", "1")
    (copy / "state.agent.msgpack").unlink()
    run = copy.parent / "run.txt"
    (copy / name).write_bytes(pickle.dumps(Trap(run)))
    state = (copy / "state.ron").read_text()
    (copy / "state.ron").write_text(state.replace("<blob:msgpack>", mark))
    for path in (copy, copy.parent):
        refused(path, "got pickles, which can execute code")
        with pytest.raises(CheckpointError, match="got pickles"):
            load_agent(path)
    with pytest.raises(CheckpointError, match="got pickles"):
        StateManager(checkpoint_dir=copy.parent).state  # noqa: B018
    assert not run.exists()


def test_checkpoint_with_a_pickle_and_tensors_is_refused(copy: Path) -> None:
    (copy / "state.agent.pickle").write_bytes(b"")
    refused(copy, "got pickles")


def test_published_checkpoint_is_never_modified(copy: Path) -> None:
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    assert StateManager(init_path=copy).state.step == 4096
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert RunDir(copy.parent).newest() is None, "nothing of ours is added"
