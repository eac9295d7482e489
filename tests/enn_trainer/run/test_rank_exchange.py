"""Runs of several ranks: stops, saves and failures of one are those of all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, RankError, StateManager, Trainer, TrainResult
from enn_trainer.base.group import ALONE, Group
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.runtime.torch_group import current_group
from entity_env.examples import Duel, Minefield
from tests.enn_trainer.run.small_runs import SMALL, failure
from tests.enn_trainer.run.thread_group import in_ranks


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class AfterFirstUpdate(Callback):
    """Calls a function in one rank after the first update, and keeps what it is told."""

    def __init__(self, rank: int, act: Callable[[RunningTrainer], object]) -> None:
        self._rank, self._act = rank, act
        self.saves: list[str] = []
        self.metrics: list[dict[str, float]] = []

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        self.metrics.append(dict(metrics))
        if trainer.rank == self._rank and trainer.state.step == 56:
            self._act(trainer)

    def on_checkpoint(self, trainer: RunningTrainer, path: Path) -> None:
        self.saves.append(path.name)


def trained(
    size: int, act: Callable[[RunningTrainer], object], rank: int = 1
) -> list[tuple[TrainResult, AfterFirstUpdate]]:
    """Train in some ranks, in one of which `act` is called; return the results and callbacks."""

    def work(group: Group) -> tuple[TrainResult, AfterFirstUpdate]:
        callback = AfterFirstUpdate(rank, act)
        manager = StateManager(overrides=SMALL, checkpoint_dir="run")
        with Trainer(manager, Minefield, callbacks=[callback]) as trainer:
            return trainer.run(), callback

    return in_ranks(size, work)


@pytest.mark.slow
def test_a_request_to_stop_in_any_rank_ends_all_at_one_update() -> None:
    for result, _ in trained(3, lambda trainer: trainer.request_stop("enough")):
        assert (result.step, result.stopped_by) == (56, "enough")
    assert sorted(path.name for path in Path("run").glob("step-*"))[-1] == "step-000000000056"


@pytest.mark.slow
def test_a_signal_to_any_rank_ends_all_at_one_update_saved_once() -> None:
    def signalled(trainer: Any) -> None:
        trainer.stopping.interrupts.take(15)

    for result, _ in trained(3, signalled):
        assert (result.step, result.interrupted) == (56, True)
    assert sorted(path.name for path in Path("run").glob("step-*"))[-1] == "step-000000000056"


@pytest.mark.slow
def test_an_update_abandoned_by_one_rank_is_discarded_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enn_trainer.runtime.interrupt.GRACE_S", 0.0)

    class Late(Callback):
        """Gets a signal in the second update, before or after the rollout."""

        def __init__(self, hook: str) -> None:
            setattr(self, hook, self.signal)

        def signal(self, trainer: Any, *_: Any) -> None:
            if trainer.rank == 1 and trainer.state.step == 56:
                trainer.stopping.interrupts.take(15)

    for hook in ("on_update_start", "on_rollout_end"):

        def work(group: Group, hook: str = hook) -> TrainResult:
            manager = StateManager(overrides=SMALL, checkpoint_dir=hook)
            with Trainer(manager, Minefield, callbacks=[Late(hook)]) as trainer:
                return trainer.run()

        for result in in_ranks(3, work):
            assert result.step == 56
            assert result.stopped_by == "interrupted mid-update; the update was discarded"


@pytest.mark.slow
def test_a_save_requested_by_one_rank_is_made() -> None:
    for _, callback in trained(2, lambda trainer: trainer.save()):
        assert callback.saves == ["step-000000000056", "step-000000000168"]


@pytest.mark.slow
def test_callbacks_of_all_ranks_get_equal_metrics() -> None:
    (_, first), (_, second) = trained(2, lambda trainer: None)
    assert len(first.metrics) == 3
    assert [list(one) for one in first.metrics] == [list(one) for one in second.metrics]
    assert first.metrics[0]["fps"] == second.metrics[0]["fps"]
    assert str(first.metrics) == str(second.metrics)


@pytest.mark.slow
def test_an_error_of_one_rank_ends_all() -> None:
    ended: list[str] = []

    def fail(trainer: RunningTrainer) -> None:
        raise ZeroDivisionError("of rank 1")

    def work(group: Group) -> None:
        manager = StateManager(overrides=SMALL, checkpoint_dir="run")
        callback = AfterFirstUpdate(1, fail)
        with Trainer(manager, Minefield, callbacks=[callback]) as trainer:
            try:
                trainer.run()
            except Exception as error:
                ended.append(type(error).__name__)
                raise

    with pytest.raises(ZeroDivisionError):
        in_ranks(3, work)
    assert sorted(ended) == ["RankError", "RankError", "ZeroDivisionError"]


def test_an_error_at_the_start_of_one_rank_reaches_the_others() -> None:
    class Broken(Minefield):
        def __init__(self) -> None:
            if current_group().rank == 1:
                raise ZeroDivisionError("of rank 1")
            super().__init__()

    def work(group: Group) -> None:
        manager = StateManager(overrides=SMALL)
        try:
            Trainer(manager, Broken).close()
        finally:
            assert manager.group is ALONE

    with pytest.raises(ZeroDivisionError):
        in_ranks(2, work)


def errors_after(change: Callable[[RunningTrainer], object]) -> list[str]:
    """Let rank 1 of two change something after the first update; return the errors of both."""
    messages: list[str] = []

    def work(group: Group) -> None:
        callback = AfterFirstUpdate(1, change)
        manager = StateManager(overrides=SMALL)
        with Trainer(manager, Minefield, callbacks=[callback]) as trainer:
            try:
                trainer.run()
            except RankError as error:
                messages.append(str(error))

    in_ranks(2, work)
    return messages


@pytest.mark.slow
def test_ranks_with_different_parameters_are_reported() -> None:
    def change(trainer: RunningTrainer) -> None:
        next(trainer.state.agent.parameters()).data.add_(1)

    messages = errors_after(change)
    assert len(messages) == 2
    assert messages[0].startswith("rank 1: expected the parameters of rank 0 after step 112")


def test_a_rank_with_other_samplers_is_reported() -> None:
    messages = errors_after(lambda trainer: trainer.set_parameters({"max_mines": "1"}))
    expected = "rank 1: set_parameters: expected the value of rank 0, {}, got {'max_mines': '1'}"
    assert messages == [expected] * 2


def test_a_rank_with_other_settings_is_reported() -> None:
    message = failure([], of_rank=lambda rank: ["optim.lr=0.1"] if rank == 1 else [])
    assert message == "rank 1: settings: expected the value of rank 0, [], got ['optim.lr=0.1']"


def test_a_rank_without_the_same_init_from_is_reported() -> None:
    """It would learn input statistics from its first frames, with the others."""

    def work(group: Group) -> None:
        manager = StateManager(overrides=SMALL, init_from="a-save" if group.leads else None)
        with pytest.raises(RankError, match="rank 1: parts of --init-from: expected the value of"):
            Trainer(manager, Minefield)

    in_ranks(2, work)


@pytest.mark.parametrize(
    ("settings", "env", "size", "message"),
    [
        (
            ["scale.shards=2"],
            Minefield,
            3,
            "scale.shards: expected at least 3, the number of ranks",
        ),
        (
            ["scale=()", "rollout.num_envs=1", "optim.bs=8"],
            Minefield,
            2,
            "scale.shards: expected at most rollout.num_envs=1, got 2",
        ),
        (
            ["rollout.num_envs=6", "optim.bs=8"],
            Duel,
            2,
            "scale.shards: expected at most the 3 matches of rollout.num_envs=6, got 4",
        ),
    ],
)
def test_invalid_numbers_of_shards_are_refused_in_one_line(
    settings: list[str], env: Any, size: int, message: str
) -> None:
    assert failure(settings, env, size).startswith(message)
