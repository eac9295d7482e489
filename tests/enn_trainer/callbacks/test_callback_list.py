"""What users keep in their callbacks is saved and restored with the run (M12)."""

from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, StateManager, Trainer, load_checkpoint, train
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.worlds import Meadow


class Curriculum(Callback):
    """Counts updates and remembers what it saw."""

    def __init__(self, name: str = "curriculum") -> None:
        self.name = name
        self.state: dict[str, Any] = {"level": 0, "seen": []}

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.state["level"] += 1
        self.state["seen"].append(trainer.state.step)

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def manager_of(tmp_path: Path, *overrides: str) -> StateManager:
    settings = [*SMALL, f"data_dir={tmp_path}", "checkpoint.every_seconds=0", *overrides]
    return StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")


@pytest.mark.slow
def test_callback_state_is_restored(tmp_path: Path) -> None:
    train(manager_of(tmp_path), Meadow, callbacks=[Curriculum(), Callback()])
    again = Curriculum()
    train(manager_of(tmp_path, "total_timesteps=96"), Meadow, callbacks=[again])
    assert again.state == {"level": 4, "seen": [24, 48, 72, 96]}
    third = Curriculum()
    middle = StateManager(init_path=tmp_path / "run" / "step-000000000048")
    with Trainer(middle, Meadow, callbacks=[third]):
        assert third.state["seen"] == [24, 48], "as it was at that step"


@pytest.mark.slow
def test_state_without_a_callback_is_reported_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(manager_of(tmp_path), Meadow, callbacks=[Curriculum()])
    train(manager_of(tmp_path, "total_timesteps=96"), Meadow, callbacks=[Curriculum("other")])
    assert "no callback is named 'curriculum'" in capsys.readouterr().out
    states = load_checkpoint(tmp_path / "run").state.memory["callbacks"]
    assert (states["curriculum"]["level"], states["other"]["level"]) == (3, 1)


def test_run_without_stateful_callbacks_saves_no_callback_states(tmp_path: Path) -> None:
    train(manager_of(tmp_path), Meadow, callbacks=[Callback()])
    assert "callbacks" not in load_checkpoint(tmp_path / "run").state.memory


def test_stateful_callbacks_need_unique_names(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected unique names, got 'a' twice"):
        Trainer(manager_of(tmp_path), Meadow, callbacks=[Curriculum("a"), Curriculum("a")])
    with pytest.raises(ValueError, match="expected a name for"):
        Trainer(manager_of(tmp_path), Meadow, callbacks=[Curriculum("")])


def test_state_that_is_not_plain_data_names_the_callback(tmp_path: Path) -> None:
    bad = Curriculum()
    bad.state["made"] = object()
    with pytest.raises(ValueError, match="callbacks: state_dict of 'curriculum': expected plain"):
        Trainer(manager_of(tmp_path), Meadow, callbacks=[bad])


def test_callbacks_are_not_shared_between_trainers(tmp_path: Path) -> None:
    manager, first = manager_of(tmp_path), Curriculum("first")
    with Trainer(manager, Meadow, callbacks=[first]) as trainer:
        trainer.step()
        trainer.save()
    first.state["level"] = 99
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        trainer.save()
    states = load_checkpoint(tmp_path / "run").state.memory["callbacks"]
    assert states["first"]["level"] == 1
