"""A run that went straight on, and one that was stopped halfway and resumed."""

from pathlib import Path

import torch

from enn_trainer import State, StateManager, train
from tests.enn_trainer.test_train import SMALL, run
from tests.enn_trainer.worlds import Clockwork


def straight_and_resumed(tmp_path: Path, *overrides: str) -> tuple[State, State]:
    """Both after four updates, the second one with the first two from a save of the first."""
    settings = [*SMALL, "total_timesteps=96", f"data_dir={tmp_path}", *overrides]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "straight")
    manager.save_interval_s = 0.0
    train(manager, Clockwork)
    save = tmp_path / "straight" / "step-000000000048"
    resumed = run(tmp_path, "total_timesteps=96", env=Clockwork, init_path=save)
    assert manager.state.step == resumed.state.step == 96
    return manager.state, resumed.state


def assert_same(one: State, other: State) -> None:
    """Weights, statistics and moments, to the last bit."""
    for name, tensor in one.agent.state_dict().items():
        assert torch.equal(other.agent.state_dict()[name], tensor), name
    for first, second in zip(one.optimizers(), other.optimizers(), strict=True):
        expected, got = first.state_dict()["state"], second.state_dict()["state"]
        assert got.keys() == expected.keys()
        for i, moments in expected.items():
            assert got[i].keys() == moments.keys()
            assert all(torch.equal(got[i][key], moments[key]) for key in moments), i
