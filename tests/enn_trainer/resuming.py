"""A run that went straight on, and one that was stopped halfway and resumed."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import torch

from enn_trainer import State, StateManager, train
from enn_trainer.callbacks import Callback
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.worlds import Clockwork

_OF_TIME = ("time", "fps", "eps", "throughput", "charts/SPS", "restart")


def straight_and_resumed(tmp_path: Path, *overrides: str) -> tuple[State, State]:
    """Both after four updates, the second one with the first two from a save of the first."""
    settings = [*SMALL, "total_timesteps=96", f"data_dir={tmp_path}", *overrides]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "straight")
    manager.save_interval_s = 0.0
    train(manager, Clockwork)
    save = tmp_path / "straight" / "step-000000000048"
    resumed = run_small(tmp_path, "total_timesteps=96", env=Clockwork, init_path=save)
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


def assert_same_clocks(one: State, other: State) -> None:
    """What a state has besides: where the run is, what it remembers, its environments."""
    assert other.step == one.step
    assert (other.memory, other.next_eval_step) == (one.memory, one.next_eval_step)
    assert repr(_lasting(other.metrics)) == repr(_lasting(one.metrics))  # also what is no number
    assert other.envs == one.envs


def tracked(file: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl, without what takes time."""
    return [_lasting(json.loads(line)) for line in file.read_text().splitlines()]


def of_time(tag: str) -> bool:
    """Whether a metric is another one each time."""
    return tag in _OF_TIME or tag.startswith(("trace/", "system/", "checkpoint/"))


def _lasting(metrics: dict[str, Any]) -> dict[str, Any]:
    return {tag: value for tag, value in metrics.items() if not of_time(tag)}


class StopsAt(Callback):
    """Asks the run to stop, as SIGTERM does, in the update that begins at a step."""

    def __init__(self, step: int) -> None:
        self.step, self.numbers = step, []

    def on_update_start(self, trainer: Any) -> None:
        if trainer.state.step == self.step:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.numbers.append({tag: metrics[tag] for tag in metrics if not of_time(tag)})


def go(folder: Path, env: Any, *settings: str, stops: int = -1, **options: Any) -> StateManager:
    """A run, or the rest of it, in a folder of its own."""
    manager = StateManager(
        overrides=[*settings, f"data_dir={folder}"], checkpoint_dir=folder / "run"
    )
    callback = StopsAt(stops)
    train(manager, env, callbacks=[callback], **options)
    manager.numbers = callback.numbers  # type: ignore[attr-defined]
    return manager
