"""Recorded frames beside PPO: drawn by the step, added to the gradient, and off by default."""

import math
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from enn_trainer import (
    BCConfig,
    ConfigError,
    OptimizerConfig,
    StateManager,
    TrainConfig,
    train,
)
from enn_trainer.algorithms.algorithm import Clock
from enn_trainer.algorithms.cloning.cloning import imitation_losses
from enn_trainer.algorithms.cloning.cloning_loss import CloningLoss, draw_sequences
from enn_trainer.config.load import load_config
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.read_demonstrations import RecordingReader
from enn_trainer.runtime.execution import DEFAULT_CONTEXT, ExecutionContext
from enn_trainer.runtime.interrupt import UpdateAbandoned
from entity_env.recording.recording_format import RecordingError
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.actions.distributions import CategoricalDistribution
from tests.enn_trainer.demonstrated import SMALL, Sorting, record
from tests.enn_trainer.resuming import assert_same
from tests.enn_trainer.worlds import Clockwork, Meadow

RUN = [setting for setting in SMALL if not setting.startswith("clone.")]


def trained(tmp_path: Path, *overrides: str, env: Any = Sorting, **places: Any) -> StateManager:
    manager = StateManager(overrides=[*RUN, f"data_dir={tmp_path}", *overrides], **places)
    manager.save_interval_s = 0.0
    train(manager, env)
    return manager


def weights(manager: StateManager) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in manager.state.agent.parameters()])


def scalars(tmp_path: Path, manager: StateManager, tag: str) -> list[float]:
    run = tmp_path / "runs" / manager.state.run_name
    events = EventAccumulator(str(run)).Reload()
    return [event.value for event in events.Scalars(tag)] if tag in events.Tags()["scalars"] else []


@pytest.fixture(scope="module")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("expert") / "expert.rec", steps=12, logits=True)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["cross_entropy", "kl"])
def test_cloning_loss_increases_agreement_with_the_recording(
    expert: Path, tmp_path: Path, loss: str
) -> None:
    bc = [f"bc.path={expert}", f"bc.loss={loss}", "bc.coef=10", "total_timesteps=96"]
    manager = trained(tmp_path, *bc, "optim.lr=0.05", "optim.anneal_lr=false")
    losses = scalars(tmp_path, manager, "losses/bc_loss")
    assert len(losses) == 4
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.slow
def test_coefficient_of_0_changes_nothing(expert: Path, tmp_path: Path) -> None:
    without = trained(tmp_path, "name=without")
    assert not scalars(tmp_path, without, "losses/bc_loss")
    faded = trained(tmp_path, f"bc.path={expert}", "bc.coef=0.0")
    assert torch.equal(weights(without), weights(faded))
    assert not torch.equal(weights(without), weights(trained(tmp_path, f"bc.path={expert}")))


def test_coefficient_follows_a_schedule(expert: Path, tmp_path: Path) -> None:
    bc = [f"bc.path={expert}", "bc.coef=step: 1@0 lin 0@24", "total_timesteps=72"]
    manager = trained(tmp_path, *bc)
    assert len(scalars(tmp_path, manager, "losses/bc_loss")) == 1  # of the first update alone


@pytest.mark.slow
def test_resumed_run_draws_the_same_frames(expert: Path, tmp_path: Path) -> None:
    path = record_clockwork(tmp_path)
    bc = [f"bc.path={path}", "bc.bs=3", "total_timesteps=96"]
    straight = trained(tmp_path, *bc, env=Clockwork, checkpoint_dir=tmp_path / "straight")
    save = tmp_path / "straight" / "step-000000000048"
    resumed = trained(tmp_path, *bc, env=Clockwork, init_path=save)
    assert straight.state.step == resumed.state.step == 96
    assert_same(straight.state, resumed.state)


@pytest.mark.slow
def test_changed_recording_raises_on_resume(expert: Path, tmp_path: Path) -> None:
    """Other frames would be drawn from it without a word."""
    path, run_dir = tmp_path / "expert.rec", tmp_path / "run"
    shutil.copy(expert, path)
    manager = trained(tmp_path, f"bc.path={path}", checkpoint_dir=run_dir)
    assert manager.state.memory["bc"]["frames"] > 100
    further = {"checkpoint_dir": run_dir}
    assert trained(tmp_path, "total_timesteps=72", **further).state.step == 72
    record(path, steps=9, logits=True)  # which continues it
    grown = shutil.copy(path, tmp_path / "grown.rec")
    with pytest.raises(
        ConfigError, match=r"bc\.path: .* changed .* restore it or use another path"
    ):
        trained(tmp_path, "total_timesteps=96", **further)
    shutil.copy(expert, path)
    with path.open("r+b") as file:  # as many frames, the same size
        file.seek(-4, 2)
        last = file.read(1)[0]
        file.seek(-4, 2)
        file.write(bytes([last ^ 1]))
    with pytest.raises((ConfigError, RecordingError), match=r"expert\.rec"):
        trained(tmp_path, "total_timesteps=96", **further)
    changed = trained(tmp_path, "total_timesteps=96", f"bc.path={grown}", **further)
    assert changed.state.step == 96
    assert changed.state.memory["bc"]["path"] == str(grown)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(0, 2**63), st.integers(0, 9))
def test_no_frame_is_drawn_twice_in_a_step(frames: int, size: int, seed: int, step: int) -> None:
    drawn = draw_sequences(np.ones(frames, np.int64), size, seed, step)
    assert len(drawn) == len(set(drawn.tolist())) == min(size, frames)
    assert set(drawn.tolist()) <= set(range(frames))
    assert drawn.tolist() == draw_sequences(np.ones(frames, np.int64), size, seed, step).tolist()


def test_drawn_frames_are_stable_across_versions() -> None:
    """Made by this code: runs of earlier versions that are resumed draw the same."""
    assert draw_sequences(np.ones(10, np.int64), 4, 7, 2).tolist() == [5, 3, 4, 7]


def test_interrupt_between_forward_passes(expert: Path, tmp_path: Path) -> None:
    shown, net = opened(expert)
    calls = list[int]()
    bc = BCConfig(str(expert), 1.0, 20)
    limits = replace(OptimizerConfig(), micro_bs=3)
    run = replace(load_config(TrainConfig, None), bc=bc, optim=limits)
    loss = CloningLoss(run, net)
    loss.demonstrations = shown
    assert loss.begin_update(Clock(0, 0.0))
    loss.add_gradient(0, ExecutionContext(check=lambda: calls.append(1)))
    assert len(calls) == 7  # 20 frames in pieces of 3

    def give_up() -> None:
        raise UpdateAbandoned

    with pytest.raises(UpdateAbandoned):
        loss.add_gradient(0, ExecutionContext(check=give_up))


def record_clockwork(tmp_path: Path) -> Path:
    trained(tmp_path, "capture_samples=clockwork.rec", env=Clockwork)
    return tmp_path / "clockwork.rec"


def opened(path: Path) -> tuple[Demonstrations, RogueNet]:
    recordings = open_recordings([path])
    recording = recordings[path]
    read = RecordingReader(recording.obs_space, 1.0, torch.device("cpu")).read(recordings)
    assert read is not None
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=8)
    net = RogueNet(config, recording.obs_space, recording.action_space, {"value": 1})
    return read.with_actors(), net


def test_kl_loss_is_the_divergence_from_the_teacher() -> None:
    network = CategoricalDistribution(torch.tensor([[0.25, 0.75]]).log())
    shown: Any = SimpleNamespace(
        teacher={"walk": SimpleNamespace(values=torch.tensor([[0.5, 0.5]]).log())},
        batch=SimpleNamespace(actions={"walk": SimpleNamespace(actees=None)}),
        per_decision=lambda losses: losses,
    )
    out: Any = SimpleNamespace(distribution=lambda name: network)
    # KL(teacher, network) = log(.5 / .25) / 2 + log(.5 / .75) / 2
    expected = torch.tensor([math.log(0.5 / 0.25) / 2 + math.log(0.5 / 0.75) / 2])
    torch.testing.assert_close(imitation_losses(out, shown, "kl")["walk"], expected)


def test_gradient_does_not_depend_on_microbatches(expert: Path) -> None:
    shown, net = opened(expert)

    def gradient(coef: float, step: int, bs: int = 20, **limits: int) -> torch.Tensor:
        net.zero_grad()
        bc, optim = BCConfig(str(expert), coef, bs), replace(OptimizerConfig(), **limits)  # type: ignore[arg-type]
        loss = CloningLoss(replace(load_config(TrainConfig, None), bc=bc, optim=optim), net)
        loss.demonstrations = shown
        assert loss.begin_update(Clock(0, 0.0))
        loss.add_gradient(step, DEFAULT_CONTEXT)
        return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])

    whole = gradient(1.0, 0)
    torch.testing.assert_close(gradient(1.0, 0), whole, rtol=0, atol=0)
    torch.testing.assert_close(gradient(2.0, 0), 2 * whole)
    torch.testing.assert_close(gradient(1.0, 0, micro_bs=3), whole, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(gradient(1.0, 0, max_entities=5), whole, rtol=1e-4, atol=1e-6)
    assert not torch.equal(gradient(1.0, 1), whole)
    everything = gradient(1.0, 0, bs=10**6)  # no frame twice: all of them once
    net.zero_grad()
    out = net(shown.batch, actions={name: rows.values for name, rows in shown.actions.items()})
    torch.cat([*imitation_losses(out, shown, "cross_entropy").values()]).mean().backward()
    grads = [p.grad.flatten() for p in net.parameters() if p.grad is not None]
    torch.testing.assert_close(everything, torch.cat(grads), rtol=1e-4, atol=1e-6)


def test_cloning_gradient_is_added_before_clipping(expert: Path, tmp_path: Path) -> None:
    bc = [f"bc.path={expert}", "bc.coef=1e6", "total_timesteps=24", "optim.bs=24"]
    bc += ["optim.update_epochs=1", "optim.name=SGD", "optim.anneal_lr=false", "optim.lr=0.5"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CloningLoss, "begin_update", lambda *_: False)
        without = trained(tmp_path, *bc, "optim.lr=0.0")
    manager = trained(tmp_path, *bc, "optim.max_grad_norm=0.1")
    moved = (weights(manager) - weights(without)).norm()
    assert float(moved) == pytest.approx(0.5 * 0.1, rel=1e-3)


def test_recording_of_another_environment_raises_before_training(
    expert: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match=r"bc\.path: .*expected a recording of the environment; .*worker"
    ):
        trained(tmp_path, f"bc.path={expert}", env=Meadow)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["bc.path=none.rec"], r"bc\.path: expected a file, got none\.rec"),
        (["bc.path="], r"bc\.path: expected a recording, got ''"),
        (["bc.coef=1"], r"bc\.path"),
        (["bc.path=x", "bc.coef=-1"], r"bc\.coef: expected a finite number of at least 0"),
        (["bc.path=x", "bc.bs=0"], r"bc\.bs: expected a finite number of at least 1"),
        (["bc.path=x", "bc.loss=mse"], r"bc\.loss"),
    ],
)
def test_invalid_settings_raise(overrides: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, *overrides)


def test_recordings_without_logits_or_actors_raise(tmp_path: Path) -> None:
    path = record(tmp_path / "rec", steps=2)
    with pytest.raises(ConfigError, match=r"bc\.loss='kl': expected a recording with the logits"):
        trained(tmp_path, f"bc.path={path}", "bc.loss=kl")
    path = record(tmp_path / "empty", steps=0)
    with pytest.raises(ConfigError, match=r"bc\.path: expected frames with "):
        trained(tmp_path, f"bc.path={path}")


def test_unknown_player_raises_before_training(expert: Path, tmp_path: Path) -> None:
    message = r"bc\.player: expected a player of the recording, .* among \[''\], got 'step-0'"
    with pytest.raises(ConfigError, match=message):
        trained(tmp_path, f"bc.path={expert}", "bc.player=step-0")
