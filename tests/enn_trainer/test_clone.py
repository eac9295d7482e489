"""Cloning: what is learnt from recordings, and that it is a run which PPO continues."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import (
    CloneResult,
    ConfigError,
    NotFiniteError,
    StateManager,
    clone,
    load_agent,
    train,
)
from enn_trainer.cli import run as enn
from enn_trainer.clone_score import CloneScore, score_of
from enn_trainer.demonstrations import Demonstrations, Reading, open_recordings
from entity_env.examples import Xor
from entity_env.play_by_hand import play_by_hand
from rogue_net import RogueNet
from tests.enn_trainer.demonstrated import SMALL, CutOff, Sorting, config, record

SAMPLES = Path(__file__).parent.parent / "golden" / "entity_gym_samples"
SETTINGS = ("clone.lr=0.01", "clone.bs=64")


def quiet(message: str) -> None:
    """Say nothing."""


def weights(result: CloneResult) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in result.state.agent.parameters()])


def score_kept(result: CloneResult) -> CloneScore:
    assert result.test is not None
    return result.test


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of somebody who knows what to do, with logits."""
    return record(tmp_path_factory.mktemp("expert") / "expert.rec", logits=True)


@pytest.mark.parametrize("loss", ["cross_entropy", "kl"])
def test_a_clone_does_what_was_done(expert: Path, loss: str) -> None:
    result = clone(expert, config(f"clone.loss={loss}"), say=quiet)
    accuracy = score_kept(result).accuracy
    assert accuracy.keys() == {"side", "pick"}
    assert min(accuracy.values()) > 0.95


def test_what_was_done_at_random_cannot_be_cloned(tmp_path: Path) -> None:
    """A control: the same frames, with choices that do not follow from them."""
    result = clone(record(tmp_path / "rec", at_random=True), config(), say=quiet)
    assert max(score_kept(result).accuracy.values()) < 0.8


def test_the_value_function_learns_the_returns(expert: Path) -> None:
    """So that PPO does not begin by unlearning what a value head that knows nothing tells it."""
    result = clone(expert, config("clone.epochs=20"), say=quiet)
    assert score_kept(result).explained_variance > 0.9
    without = clone(expert, config("clone.value_coef=0"), say=quiet)
    assert score_kept(without).explained_variance < 0.1


@pytest.mark.parametrize(
    "settings",
    [
        ("ppo.value_loss=huber",),
        (
            "ppo.value_loss=hl_gauss",
            "ppo.clip_vloss=false",
            "ppo.value_bins.low=-1",
            "ppo.value_bins.high=8",
        ),
        ("vf_net.d_model=16",),
    ],
)
def test_every_kind_of_value_function_learns_the_returns(
    expert: Path, settings: tuple[str, ...]
) -> None:
    result = clone(expert, config("clone.epochs=20", *settings), say=quiet)
    assert score_kept(result).explained_variance > 0.8


def test_masks_lead_to_no_nan_in_kl(tmp_path: Path) -> None:
    """The published loss is NaN as soon as anything is masked."""
    path = record(tmp_path / "rec", logits=True)
    result = clone(path, config("clone.loss=kl", "clone.epochs=2"), say=quiet)
    assert torch.isfinite(weights(result)).all()
    assert np.isfinite(score_kept(result).mean_loss(0.5))


def test_kl_without_logits_is_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=4)
    with pytest.raises(ConfigError, match=r"clone.loss='kl': expected a recording with the logits"):
        clone(path, config("clone.loss=kl"), say=quiet)


def test_what_a_person_played_is_cloned(tmp_path: Path) -> None:
    """It holds no probabilities."""
    path = tmp_path / "played.rec"
    typed = iter(["0"] * 1000)
    play_by_hand(Xor, lambda _: next(typed), quiet, seed=1, episodes=30, record=path)
    result = clone(path, config("clone.epochs=20"), say=quiet)
    assert score_kept(result).accuracy == {"output": 1.0}


@pytest.mark.parametrize("name", ["full", "subsampled"])
def test_recordings_of_entity_gym_are_cloned(tmp_path: Path, name: str) -> None:
    said: list[str] = []
    result = clone(
        SAMPLES / f"{name}.bin", config("clone.test_fraction=0"), tmp_path, say=said.append
    )
    assert result.train is not None
    assert np.isfinite(result.train.mean_loss(0.5))
    assert load_agent(tmp_path).obs_space.entities
    if name == "subsampled":  # such files tell no returns
        assert result.train.num_returns == 0
        assert any("of unknown episodes" in line for line in said)


def test_the_test_is_without_dropout_and_gradients(
    expert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, bool]] = set()
    forward = RogueNet.forward

    def noting(net: RogueNet, *args: Any, **kwargs: Any) -> Any:
        seen.add((net.training, torch.is_grad_enabled()))
        return forward(net, *args, **kwargs)

    monkeypatch.setattr(RogueNet, "forward", noting)
    clone(expert, config("clone.epochs=1", "net.resid_pdrop=0.1"), say=quiet)
    assert seen == {(True, True), (False, False)}


def test_fewer_frames_than_a_batch_and_none_to_test_on_are_enough(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=1, num_envs=3)
    said: list[str] = []
    result = clone(path, config("clone.test_fraction=0"), say=said.append)
    assert result.epochs == 12
    assert result.test is None
    assert "no episode to test on: no early stopping, the last weights are kept" in said
    with pytest.raises(
        ConfigError, match=r"expected episodes to train on .* lower clone\.test_frac"
    ):
        clone(path, config("clone.test_fraction=0.999999"), say=quiet)


def test_the_best_weights_are_kept_and_patience_ends(tmp_path: Path) -> None:
    """What was done at random can be learnt by heart, which makes it worse elsewhere."""
    path = record(tmp_path / "rec", steps=20, at_random=True)
    said: list[str] = []
    settings = config("clone.epochs=40", "clone.patience=4", "clone.lr=0.02", "clone.value_coef=0")
    result = clone(path, settings, say=said.append)
    losses = [float(m[1]) for line in said if (m := re.search(r"test loss (\S+)", line))]
    best = int(np.argmin(losses))
    assert result.epochs == len(losses) == best + 5 < 40
    assert losses[-1] > losses[best] + 0.01
    test = read_part(path, settings, of_test=True)
    kept = score_of(result.state.agent, test, "cross_entropy", settings.ppo).detached()
    assert kept.mean_loss(0.0) == pytest.approx(losses[best], abs=1e-4)
    assert score_kept(result).mean_loss(0.0) == pytest.approx(losses[best], abs=1e-4)


def read_part(path: Path, settings: Any, of_test: bool) -> Demonstrations:
    from entity_env.seeding import derive_seed

    recordings = open_recordings([path])
    seed = derive_seed(settings.seed, "clone split")
    parts = {p: r.split(settings.clone.test_fraction, seed)[of_test] for p, r in recordings.items()}
    reading = Reading(recordings[path].obs_space, 1.0, torch.device("cpu"))
    read = reading.read(parts)
    assert read is not None
    return read


def test_a_clone_is_a_function_of_recording_and_configuration(expert: Path) -> None:
    short = ("clone.epochs=2", "net.resid_pdrop=0.1")
    first, again = (clone(expert, config(*short), say=quiet) for _ in range(2))
    other = clone(expert, config(*short, "seed=2"), say=quiet)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.parametrize("limit", ["optim.micro_bs=7", "optim.max_entities=20"])
def test_the_size_of_a_pass_changes_nothing(expert: Path, limit: str) -> None:
    short = ("clone.epochs=1", "net.resid_pdrop=0.1", "optim.name=SGD", "clone.lr=0.1")
    whole, pieces = (
        clone(expert, config(*short), say=quiet),
        clone(expert, config(*short, limit), say=quiet),
    )
    torch.testing.assert_close(weights(whole), weights(pieces), rtol=1e-4, atol=1e-5)


def test_statistics_of_the_input_are_of_what_is_trained_on(expert: Path) -> None:
    settings = config("clone.epochs=1")
    result = clone(expert, settings, say=quiet)
    things = read_part(expert, settings, of_test=False).batch.features["thing"].values.double()
    norm = result.state.agent.get_submodule("embedding.by_type./thing.norm")
    assert int(norm.count) == len(things)
    assert torch.isclose(norm.mean, things.mean(dim=0)).any()  # beside what is global


def test_ppo_continues_from_a_clone(expert: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = clone(expert, config(f"data_dir={tmp_path}"), run_dir, say=quiet)
    assert result.checkpoint == run_dir / "step-000000000000"
    begun = StateManager(checkpoint_dir=run_dir)
    for name, tensor in result.state.agent.state_dict().items():
        assert torch.equal(begun.state.agent.state_dict()[name], tensor), name
    assert not any(optimizer.state for optimizer in begun.state.optimizers())  # fresh moments
    actions, value = load_agent(run_dir, deterministic=True).act(with_workers())
    assert {"side", "pick"} >= actions.keys()
    assert np.isfinite(value)
    manager = StateManager(checkpoint_dir=run_dir, overrides=["total_timesteps=48"])
    assert train(manager, Sorting).step == 48
    assert not torch.equal(
        torch.cat([p.detach().flatten() for p in manager.state.agent.parameters()]),
        weights(result),
    )
    count = "embedding.by_type./thing.norm.count"  # statistics go on, and do not begin again
    assert manager.state.agent.state_dict()[count] > result.state.agent.state_dict()[count]
    elsewhere = StateManager(init_path=run_dir / "step-000000000000")
    assert train(elsewhere, Sorting).step == 48


def with_workers() -> Any:
    env = Sorting()
    env.seed(0)
    return next(
        obs for _ in range(99) if (obs := env.reset()).actions and len(obs.features["worker"])
    )


def test_a_folder_with_a_run_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=4)
    clone(path, config("clone.epochs=1"), tmp_path / "run", say=quiet)
    with pytest.raises(ConfigError, match="--checkpoint-dir: expected a folder without a run"):
        clone(path, config(), tmp_path / "run", say=pytest.fail)


def test_a_loss_that_is_no_number_names_epoch_and_batch(expert: Path) -> None:
    with pytest.raises(
        NotFiniteError, match=r"expected a finite loss, got \S+ in epoch 1, batch 2 of"
    ):
        clone(expert, config("clone.lr=1e30"), say=quiet)


def test_frames_without_a_known_return_are_left_out_and_counted(tmp_path: Path) -> None:
    said: list[str] = []
    result = clone(record(tmp_path / "rec", world=CutOff), config(), say=said.append)
    assert score_kept(result).num_returns == 0
    assert min(score_kept(result).accuracy.values()) > 0.9
    (line,) = [line for line in said if line.startswith("the value function")]
    assert re.search(r"does not learn from (\d+) of \1 frames", line)
    assert "of truncated episodes" in line
    assert "of unfinished episodes" in line


def test_interrupting_saves_the_best_so_far(expert: Path, tmp_path: Path) -> None:
    code = "from enn_trainer.cli import main; main()"
    settings = [*SMALL, "clone.epochs=100000", "clone.patience=None"]
    command = ["clone", str(expert), *settings, "--checkpoint-dir", str(tmp_path / "run")]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("epoch 3/"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=60) == 0
    assert "interrupted, saved" in rest
    assert load_agent(tmp_path / "run").obs_space.entities


def test_the_command_clones_and_says_what_is_next(
    expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = str(tmp_path / "run")
    assert enn(["clone", str(expert), *SMALL, "clone.epochs=2", "--checkpoint-dir", run_dir]) == 0
    out = capsys.readouterr().out
    assert "epoch 2/2  left 0s  loss" in out
    assert f"enn train --checkpoint-dir {run_dir}" in out


MISTAKES: Mapping[str, Callable[[str], list[str]]] = {
    "--checkpoint-dir: expected a folder": lambda rec: [rec],
    "RECORDING: expected one or more files": lambda _: ["--checkpoint-dir", "run"],
    "RECORDING: expected a file, got none.rec": lambda _: ["none.rec", "--checkpoint-dir", "run"],
    "RECORDING: expected each file once": lambda rec: [rec, rec, "--checkpoint-dir", "run"],
    "clone.epochs: expected a finite number of at least 1, got 0": lambda rec: [
        *[rec, "clone.epochs=0", "--checkpoint-dir", "run"]
    ],
    "did you mean clone.epochs": lambda rec: [rec, "clone.epoch=1", "--checkpoint-dir", "run"],
    "ppo.reward_scaling: expected false": lambda rec: [
        *[rec, "ppo.reward_scaling=true", "--checkpoint-dir", "run"]
    ],
    "bc: expected none while cloning": lambda rec: [
        *[rec, f"bc.path={rec}", "--checkpoint-dir", "run"]
    ],
    "--config: expected a configuration file": lambda rec: [
        *[rec, "--config", "none.ron", "--checkpoint-dir", "run"]
    ],
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_one_line(
    message: str,
    expert: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert enn(["clone", *MISTAKES[message](str(expert))]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_help_lists_the_settings_of_cloning(capsys: pytest.CaptureFixture[str]) -> None:
    assert enn(["clone", "--hps-info", "clone.patience"]) == 0
    assert "Stop after so many epochs" in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        "clone.loss=kl",
        "clone.epochs=1",
        "clone.bs=32",
        "clone.lr=0.005",
        "clone.value_coef=0.1",
        "clone.test_fraction=0.5",
        "clone.max_frames=100",
        "optim.weight_decay=0.5",
        "optim.anneal_lr=false",
    ],
)
def test_every_setting_has_an_effect(expert: Path, change: str) -> None:
    short = "clone.epochs=2"
    with_it = clone(expert, config(short, change), say=quiet)
    assert not torch.equal(weights(with_it), weights(clone(expert, config(short), say=quiet)))
