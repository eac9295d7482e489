"""A part of the state in one file and one line: counts of choices, of all ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import Callback, Trainer, init_train_state
from enn_trainer.base.group import ALONE, Group
from enn_trainer.base.state_part import SpaceChange, StateDict, StatePart
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state import STATE_PARTS
from enn_trainer.checkpoints.state_files import restore
from enn_trainer.testing import check_state_part
from tests.enn_trainer.run.thread_group import in_ranks
from tests.toys.world import Lane, assert_failed_updates_change_nothing, manager_of, newest, run

CARTS = 2
"""Actors of each frame."""


class ChoiceCounts(StatePart):
    """Numbers of choices by action and label.

    Attributes:
        joined: per action (labels,) int64, of all ranks as of the newest save.
        own: likewise, of this rank since.
    """

    def __init__(self) -> None:
        self.joined: dict[str, torch.Tensor] = {}
        self.own: dict[str, torch.Tensor] = {}

    def count(self, name: str, choices: torch.Tensor) -> None:
        """Count (n,) int64 choices of an action."""
        self.own[name] = self.own.get(name, 0) + torch.bincount(choices.cpu(), minlength=3)

    def state_dict(self) -> StateDict:
        """Return both counts."""
        joined = {f"joined/{name}": counts for name, counts in self.joined.items()}
        return {**joined, **{f"own/{name}": counts for name, counts in self.own.items()}}

    def load_state_dict(self, state: StateDict) -> None:
        """Take the counts over."""
        for kind in ("joined", "own"):
            start = f"{kind}/"
            counts = {k.removeprefix(start): x for k, x in state.items() if k.startswith(start)}
            setattr(self, kind, counts)

    def join(self, group: Group) -> None:
        """Add the counts of all ranks."""
        for of_rank in group.gather({n: x.tolist() for n, x in self.own.items()}, "saving"):
            for name, counts in of_rank.items():
                self.joined[name] = self.joined.get(name, 0) + torch.tensor(counts)
        self.own = {}

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Rename the actions."""
        return {
            f"{kind}/{change.action(name)}": counts
            for key, counts in state.items()
            for kind, name in [key.split("/", 1)]
        }


class Counting(Callback):
    """Counts the choices of each rollout, before its update can fail."""

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        """Count the choices of this rank."""
        for name, rows in rollout.actions.items():
            trainer.state.part(ChoiceCounts).count(name, rows.values)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STATE_PARTS, "choice_counts", lambda *_: ChoiceCounts())


def test_choice_counts_pass_the_conformance_test() -> None:
    counts = ChoiceCounts()
    counts.count("roll/all", torch.tensor([0, 2, 2]))
    check_state_part(counts, ChoiceCounts())


def test_choice_counts_are_restored_in_resumed_runs(tmp_path: Path) -> None:
    for frames in (32, 48):
        state = run(tmp_path, frames, checkpoint_dir=tmp_path / "run", callbacks=[Counting()]).state
    part = state.part(ChoiceCounts)
    assert part is not None
    assert sum(int(x.sum()) for x in part.joined.values()) == 48 * CARTS


def test_failed_updates_are_undone(tmp_path: Path) -> None:
    assert_failed_updates_change_nothing(tmp_path, init_train_state, callbacks=[Counting()])


def trained(folder: Path, ranks: int) -> dict[str, list[int]]:
    """Return the counts in the save of a run of two updates."""
    run_dir = folder / f"run-{ranks}"

    def work(group: Group = ALONE) -> None:
        settings = "total_timesteps=32", "scale.shards=2"
        manager = manager_of(folder, *settings, checkpoint_dir=run_dir)
        manager.say = lambda line: None
        with Trainer(manager, Lane, callbacks=[Counting()]) as trainer:
            trainer.run()

    work() if ranks == 1 else in_ranks(ranks, work)
    saved = newest(run_dir)
    part = restore(saved, read_config(saved)).part(ChoiceCounts)
    assert part is not None
    assert not part.own
    return {name: counts.tolist() for name, counts in part.joined.items()}


def test_choice_counts_of_all_ranks_are_summed(tmp_path: Path) -> None:
    assert sum(trained(tmp_path, 1)["roll/all"]) == 32 * CARTS
    assert trained(tmp_path, 2) == trained(tmp_path, 1)


def test_upgrade_renames_actions_of_choice_counts(tmp_path: Path) -> None:
    run(tmp_path, 16, checkpoint_dir=tmp_path / "run", callbacks=[Counting()])
    actions = {"steer": Lane().action_space()["roll/all"]}
    rules = Rules({("action", "roll/all"): "steer"})
    evolved = evolve(newest(tmp_path / "run"), Lane().obs_space(), actions, rules=rules)
    part = evolved.state.part(ChoiceCounts)
    assert part is not None
    assert {name: int(counts.sum()) for name, counts in part.joined.items()} == {
        "steer": 16 * CARTS
    }
