"""A run taken step by step, told of by callbacks, stopped, failing, and given up halfway."""

import os
import random
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import (
    Callback,
    ConfigError,
    EvalConfig,
    NotFiniteError,
    StateManager,
    Trainer,
    load_checkpoint,
    stop_conditions,
    train,
)
from enn_trainer.callbacks import RunningTrainer
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.command import command, dry_run
from enn_trainer.runtime import interrupt
from enn_trainer.testing import assert_learns
from tests.enn_trainer.builders import SMALL, Exploding, manager_of, run_small
from tests.enn_trainer.callbacks.lesson_worlds import Uneven
from tests.enn_trainer.resuming import assert_same
from tests.enn_trainer.worlds import Clockwork, Meadow
from tests.fork_server import ENN, start_program

EVALUATED = ["eval.steps=4", "eval.interval=24", "eval.num_envs=2"]


@pytest.mark.slow
def test_single_steps_equal_a_run(tmp_path: Path) -> None:
    whole = run_small(tmp_path)
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        for i in range(3):
            metrics = trainer.step()
            assert metrics["fps"] > 0
            assert trainer.state.step == 24 * (i + 1)
    assert_same(trainer.state, whole.state)


@pytest.mark.slow
def test_a_run_can_be_split_into_parts(tmp_path: Path) -> None:
    whole = run_small(tmp_path)
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        first = trainer.run(stop_conditions.Steps(24))
        assert (first.step, first.stopped_by) == (24, "step >= 24")
        last = trainer.run()
        assert (last.step, last.stopped_by) == (72, "total_timesteps of 72 reached")
    assert_same(trainer.state, whole.state)


@pytest.mark.slow
def test_extra_evaluations_change_nothing(tmp_path: Path) -> None:
    whole = run_small(tmp_path, "optim.lr=0.1")
    settings = [*EVALUATED, "eval.steps=40", "optim.lr=0.1"]
    with Trainer(manager_of(tmp_path, *settings), Meadow) as trainer:
        measured = []
        for _ in range(3):
            trainer.step()
            measured += [trainer.evaluate(), trainer.evaluate()]
    assert measured[0] == measured[1]
    assert measured[0] != measured[2]
    assert_same(trainer.state, whole.state)


def test_evaluation_with_custom_settings_is_not_logged(tmp_path: Path) -> None:
    settings = EvalConfig(episodes=6, num_envs=3, deterministic=True)
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        trainer.step()
        before = dict(trainer.metrics)
        measured = trainer.evaluate(settings)
        assert measured == trainer.evaluate(settings)
        assert measured["eval/episodic_reward.count"] == 6
        assert trainer.metrics == before


@pytest.mark.slow
def test_assertion_of_learning_holds_and_fails(tmp_path: Path) -> None:
    settings = ["total_timesteps=3000", "optim.lr=0.01", "ppo.ent_coef=0.01"]
    learnt = assert_learns(manager_of(tmp_path, *settings), Clockwork, "episodic_reward.mean", 1.5)
    assert learnt.step < 3000
    with pytest.raises(AssertionError, match=r"episodic_reward.mean >= 1.5 within 96 frames, got"):
        assert_learns(
            manager_of(tmp_path, "total_timesteps=96", "optim.lr=0"),
            Clockwork,
            "episodic_reward.mean",
            1.5,
        )


def test_evaluation_without_settings_is_refused(tmp_path: Path) -> None:
    with (
        Trainer(manager_of(tmp_path), Meadow) as trainer,
        pytest.raises(ConfigError, match="eval: expected"),
    ):
        trainer.evaluate()


@pytest.mark.alone
def test_global_state_is_restored_between_calls(tmp_path: Path) -> None:
    """Signals, threads, generators; and time is not counted."""
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    before = (torch.get_num_threads(), random.getstate(), torch.get_rng_state().tolist())
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        trainer.step()
        used = trainer.state.time_used
        assert (torch.get_num_threads(), random.getstate()) == before[:2]
        assert torch.get_rng_state().tolist() == before[2]
        assert handlers == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        time.sleep(0.5)
        start = time.monotonic()
        trainer.step()
        assert trainer.state.time_used - used <= time.monotonic() - start


class Diary(Callback):
    """Writes down which hooks are called."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.saves: list[Path] = []
        self.error: BaseException | None = None

    def on_restore(self, trainer: Trainer) -> None:
        self.entries.append("restore")

    def on_train_start(self, trainer: Trainer) -> None:
        self.entries.append("train_start")

    def on_update_start(self, trainer: Trainer) -> None:
        self.entries.append("update_start")

    def on_rollout_end(self, trainer: Trainer, rollout: Any) -> None:
        assert rollout.num_frames == 24
        self.entries.append("rollout_end")

    def on_minibatch(self, trainer: Trainer, losses: Mapping[str, float]) -> None:
        assert losses["losses/gradnorm"] > 0
        self.entries.append("minibatch")

    def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        metrics["mine"] = trainer.state.step / 2
        self.entries.append("update_end")

    def on_eval_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        self.entries.append("eval_end")

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        checkpoint.verify(path)
        self.saves.append(path)
        self.entries.append("checkpoint")

    def on_train_end(self, trainer: Trainer, error: BaseException | None) -> None:
        self.error = error
        self.entries.append("train_end")


@pytest.mark.slow
def test_callbacks_are_called_in_the_documented_order(tmp_path: Path) -> None:
    """A save is told of when it is complete: those of the first two updates one update later."""
    settings = [*EVALUATED, "total_timesteps=72", "optim.update_epochs=1", "optim.bs=12"]
    manager = manager_of(tmp_path, *settings, checkpoint_dir=tmp_path / "run")
    manager.save_interval_s = 0.0
    diary = Diary()
    update = ["update_start", "rollout_end", "minibatch", "minibatch", "update_end", "eval_end"]
    train(manager, Meadow, callbacks=[diary])
    assert diary.entries == [
        *["train_start", "eval_end", *update, *update, "checkpoint", *update],
        *["checkpoint", "checkpoint", "train_end"],
    ]
    assert [p.name for p in diary.saves] == [f"step-{step:012d}" for step in (24, 48, 72)]
    again = Diary()
    with Trainer(
        manager_of(tmp_path, "total_timesteps=96", checkpoint_dir=tmp_path / "run"),
        Meadow,
        callbacks=[again],
    ) as trainer:
        trainer.run()
        assert trainer.metrics["mine"] == 48
    assert again.entries[:3] == ["restore", "train_start", "update_start"]


def test_an_error_reaches_the_end_hook_of_every_callback(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            raise ZeroDivisionError("mine")

        def on_train_end(self, trainer: Trainer, error: BaseException | None) -> None:
            raise KeyError("at the end, too")

    diaries = [Diary(), Diary()]
    callbacks = [diaries[0], Broken(), diaries[1]]
    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(KeyError, match="at the end") as raised:
        train(manager, Meadow, callbacks=callbacks)
    assert isinstance(raised.value.__context__, ZeroDivisionError)
    for diary in diaries:
        assert diary.entries[-1] == "train_end"
        assert isinstance(diary.error, ZeroDivisionError)
    saved = load_checkpoint(tmp_path / "run")
    assert saved.state.step == 24, "what was learnt is not lost"
    assert saved.resumed_from is not None
    assert saved.resumed_from.manifest["why"] == "failed"


def test_an_error_while_saving_hides_neither_the_end_nor_the_first_error(tmp_path: Path) -> None:
    class Broken(Callback):
        def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            raise ZeroDivisionError("mine")

        def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
            raise KeyError("while saving")

    diary = Diary()
    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(ZeroDivisionError, match="mine"):
        train(manager, Meadow, callbacks=[Broken(), diary])
    assert isinstance(diary.error, ZeroDivisionError)


def test_invalid_callbacks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="callbacks: expected instances of Callback, got <built-in"):
        train(manager_of(tmp_path), Meadow, callbacks=[print])  # type: ignore[list-item]


@pytest.mark.slow
def test_saving_during_an_update_is_refused(tmp_path: Path) -> None:
    class Saves(Callback):
        def on_minibatch(self, trainer: Trainer, losses: Mapping[str, float]) -> None:
            trainer.save()

    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(ValueError, match="save: expected to be called between updates"):
        train(manager, Meadow, callbacks=[Saves()])
    with Trainer(manager_of(tmp_path), Meadow) as begun:
        assert_same(load_checkpoint(tmp_path / "run").state, begun.state)


def test_an_existing_save_with_other_weights_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Trainer(manager_of(tmp_path, checkpoint_dir=tmp_path / "run"), Meadow) as trainer:
        trainer.step()
        trainer.save()
        trainer.save()
        assert "with other weights" not in capsys.readouterr().out
        with torch.no_grad():
            next(trainer.state.agent.parameters()).zero_()
        trainer.save()
        assert "exists already, with other weights" in capsys.readouterr().out


def test_failing_statistics_restore_the_state(tmp_path: Path) -> None:
    with (
        Trainer(manager_of(tmp_path), Meadow) as trainer,
        Trainer(manager_of(tmp_path), Meadow) as begun,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(trainer.state.agent, "update_input_stats", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.step()
        assert trainer.state.step == 0
        assert_same(trainer.state, begun.state)


@pytest.mark.slow
def test_evaluations_of_a_split_run_equal_those_of_the_run(tmp_path: Path) -> None:
    class Steps(Callback):
        def __init__(self) -> None:
            self.seen: list[int] = []

        def on_eval_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            self.seen.append(trainer.state.step)

    whole, parts = Steps(), Steps()
    train(manager_of(tmp_path, *EVALUATED), Meadow, callbacks=[whole])
    with Trainer(manager_of(tmp_path, *EVALUATED), Meadow, callbacks=[parts]) as trainer:
        trainer.run(stop_conditions.Steps(24))
        trainer.run()
    assert whole.seen == parts.seen == [0, 24, 48, 72]


def test_a_callback_can_request_the_end(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            trainer.request_stop("enough")

    result = train(manager_of(tmp_path), Meadow, callbacks=[Enough()])
    assert (result.step, result.stopped_by, result.interrupted) == (24, "enough", False)


def test_run_stops_at_a_bound_of_the_configuration(tmp_path: Path) -> None:
    result = train(manager_of(tmp_path, 'stop=["restart >= 0"]'), Meadow)
    assert (result.step, result.stopped_by) == (24, "restart >= 0")
    diary = Diary()
    manager = manager_of(tmp_path, *EVALUATED, 'stop=["eval/step.mean >= 0"]')
    result = train(manager, Meadow, callbacks=[diary])
    assert (result.step, result.stopped_by) == (0, "eval/step.mean >= 0")
    assert diary.entries == ["train_start", "eval_end", "train_end"], "measured once"


@pytest.mark.parametrize(
    ("bound", "condition"),
    [
        ("win.mean >= 0.9", None),
        ("win.min >= 1", None),
        ("restart >= 1", stop_conditions.AtLeast("win.mean", 0.9)),
        ("restart >= 1", stop_conditions.Plateaus("win.mean", patience=2)),
    ],
)
def test_a_run_does_not_stop_because_short_episodes_end_first(
    tmp_path: Path, bound: str, condition: stop_conditions.Condition | None
) -> None:
    """Those that win do so at once, and the others lose 40 steps later."""
    settings = ["rollout.steps=8", "total_timesteps=192", f'stop=["{bound}"]']
    diary = Metrics()
    manager = manager_of(tmp_path, *settings)
    result = train(manager, Uneven, callbacks=[diary], stop=condition)
    assert result.stopped_by == "total_timesteps of 192 reached"
    assert all(metrics["win.mean"] == 1.0 for metrics in diary.updates if "win.mean" in metrics)


class Metrics(Callback):
    """Keeps the metrics of updates."""

    def __init__(self) -> None:
        self.updates: list[dict[str, float]] = []

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        self.updates.append(dict(metrics))


def test_bounds_read_logged_metrics_of_single_steps_and_callbacks(
    tmp_path: Path,
) -> None:
    class Adds(Callback):
        def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
            metrics["mine.mean"] = 1.0

    for bound in ("mine.mean >= 1", "reward.min >= -9", "episode_length.count >= 0"):
        manager = manager_of(tmp_path, f'stop=["{bound}"]')
        assert train(manager, Uneven, callbacks=[Adds()]).step == 24


def test_bound_of_evaluations_without_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="stop: eval/return: expected evaluations"):
        train(manager_of(tmp_path, 'stop=["eval/return >= 1"]'), Meadow)


def test_unknown_metric_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(manager_of(tmp_path, 'stop=["losses/entrpy <= 0"]'), Meadow)
    said = capsys.readouterr().out
    assert said.count("no metric 'losses/entrpy' so far, did you mean 'losses/entropy'?") == 1


@pytest.mark.slow
def test_resumed_run_stops_at_the_same_step(tmp_path: Path) -> None:
    """A plateau that began before the run was interrupted is remembered."""
    stop = stop_conditions.Plateaus("restart", patience=3, rtol=10.0)
    straight = train(manager_of(tmp_path, "total_timesteps=1000"), Clockwork, stop=stop)
    assert straight.step == 24 * 4
    folder = tmp_path / "run"
    train(manager_of(tmp_path, "total_timesteps=48", checkpoint_dir=folder), Clockwork, stop=stop)
    resumed = manager_of(tmp_path, "total_timesteps=1000", checkpoint_dir=folder)
    # The tag rises from 0 to 1 with the restart, which is not within 10 times 0 of it.
    resumed.state.restart -= 1
    assert train(resumed, Clockwork, stop=stop).step == straight.step


def test_gradient_that_is_not_finite_stops_the_run_and_is_located(tmp_path: Path) -> None:
    Exploding.frames = 0
    settings = ["ppo.value_norm=false", "ppo.value_loss=mse"]
    manager = manager_of(tmp_path, *settings, checkpoint_dir=tmp_path / "run")
    with pytest.raises(NotFiniteError, match="minibatch 1: the value loss is inf") as error:
        train(manager, Exploding)
    assert "parameters: " in str(error.value)
    assert "\n" not in str(error.value)
    saved = load_checkpoint(tmp_path / "run").state
    assert saved.step > 0
    assert_same(saved, manager.state)
    with Trainer(manager_of(tmp_path, *settings), Meadow) as healthy:
        healthy.run(stop_conditions.Steps(saved.step))
    assert_same(saved, healthy.state)


def test_weights_that_are_not_finite_stop_the_run(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, "optim.lr=1e30", checkpoint_dir=tmp_path / "run")
    with pytest.raises(NotFiniteError):
        train(manager, Meadow)
    assert all(torch.isfinite(p).all() for p in manager.state.agent.parameters())
    assert load_checkpoint(tmp_path / "run").state.step == manager.state.step


def test_parameters_that_are_not_finite_are_named(tmp_path: Path) -> None:
    class Poison(Callback):
        def on_minibatch(self, trainer: Trainer, losses: Mapping[str, float]) -> None:
            with torch.no_grad():
                trainer.state.agent.get_parameter("action_heads./walk.project.weight")[0, 0] = (
                    torch.nan
                )

    with pytest.raises(NotFiniteError, match=r"30 of 38 parameters: embedding.* and 26 more"):
        train(manager_of(tmp_path), Meadow, callbacks=[Poison()])


class Signals(Callback):
    """Asks the run to stop at the beginning of an update."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_update_start(self, trainer: Trainer) -> None:
        if trainer.state.step == self.at:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("where", ["rollout", "minibatches"])
def test_update_that_takes_too_long_is_abandoned_and_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The run is saved as it was before; resumed, it is the one that went straight on."""
    monkeypatch.setattr(interrupt, "GRACE_S", 0.0)
    settings = {"env": Clockwork}
    straight = run_small(tmp_path, "ppo.reward_scaling=true", **settings)

    class InMinibatches(Callback):
        def on_minibatch(self, trainer: Trainer, losses: Mapping[str, float]) -> None:
            if trainer.state.step == 48:
                os.kill(os.getpid(), signal.SIGTERM)

    callback = Signals(48) if where == "rollout" else _once(InMinibatches())
    manager = manager_of(tmp_path, "ppo.reward_scaling=true", checkpoint_dir=tmp_path / "run")
    result = train(manager, Clockwork, callbacks=[callback])
    assert (result.step, result.interrupted) == (48, True)
    assert "the update was discarded" in result.stopped_by
    resumed = run_small(
        tmp_path, "ppo.reward_scaling=true", checkpoint_dir=tmp_path / "run", **settings
    )
    assert_same(resumed.state, straight.state)


def _once(callback: Any) -> Callback:
    """Its hook for minibatches is called a single time: a second signal ends everything."""
    called, hook = [], callback.on_minibatch

    def first(trainer: Trainer, losses: Mapping[str, float]) -> None:
        if not called:
            before = trainer.state.step
            hook(trainer, losses)
            if before == 48:
                called.append(True)

    callback.on_minibatch = first
    return callback  # type: ignore[no-any-return]


@pytest.mark.slow
def test_abandoned_run_continues_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "GRACE_S", 0.0)
    straight = run_small(tmp_path, env=Clockwork)
    signals = Signals(24)
    with Trainer(manager_of(tmp_path), Clockwork, callbacks=[signals]) as trainer:
        assert trainer.run().step == 24
        signals.at = -1
        assert trainer.step()  # nothing asks it to stop any more
        assert trainer.run().step == 72
    assert_same(trainer.state, straight.state)


SLOW = """
import sys, time
from enn_trainer import StateManager, Trainer, command, train
from tests.enn_trainer.worlds import Meadow

class Slow(Meadow):
    def act(self, actions):
        print("acts", flush=True)
        time.sleep(0.2)
        return super().act(actions)

@command()
def main(state_manager):
    train(state_manager, Slow)

main()
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_a_slow_run_within_seconds(tmp_path: Path, signals: int) -> None:
    """An update of 240 steps of 0.2 s, each of 6 environments, takes five minutes."""
    arguments = [*SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "run")]
    process = start_program(
        ["-c", SLOW, *arguments, "rollout.steps=240"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    timer = threading.Timer(150, process.kill)
    timer.start()
    assert "acts\n" in process.stdout  # read so far
    start = time.monotonic()
    for number in range(signals):
        process.send_signal(signal.SIGTERM)
        if number == 0:
            assert any("stopping after this update" in line for line in process.stderr)
    _, said = process.communicate()
    timer.cancel()
    assert time.monotonic() - start < 100
    if signals == 1:
        assert process.returncode == 143, said
        assert load_checkpoint(tmp_path / "run").state.step == 0
    else:
        assert process.returncode == 143
        assert "stopped at once" in said
        assert "Traceback" not in said


@pytest.mark.slow
def test_dry_run_tries_every_phase_and_keeps_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from enn_trainer.cli import run as enn

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "env.id=Xor", "rollout.processes=1", "capture_samples=xor.rec"]
    folder = ["--checkpoint-dir", "run"]
    assert enn([*arguments, *folder, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.count("[eval]") >= 3
    assert "resumed" in said
    assert "all is well" in said
    assert list(tmp_path.iterdir()) == []
    small = [*SMALL, "total_timesteps=24"]
    assert enn(["train", "env.id=Xor", *small, *folder]) == 0
    before = sorted(p.name for p in tmp_path.rglob("*"))
    capsys.readouterr()
    assert enn(["train", *folder, "--resume", "--dry-run"]) == 0
    assert "at step 24" in capsys.readouterr().out, "it begins with what was saved"
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


@pytest.mark.slow
def test_dry_run_accepts_settings_that_it_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from enn_trainer.cli import run as enn

    monkeypatch.chdir(tmp_path)
    arguments = ["train", "env.id=Xor", "rollout.processes=1", "rollout.steps=20"]
    assert enn([*arguments, "eval.episodes=10", "eval.interval=1000", "--dry-run"]) == 0
    assert "all is well" in capsys.readouterr().out


def test_signal_ends_a_dry_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    manager = manager_of(tmp_path)
    runs: list[StateManager] = []

    def main(trial: StateManager) -> None:
        runs.append(trial)
        train(trial, Meadow, callbacks=[Signals(0)])

    dry_run(manager, main)
    said = capsys.readouterr().out
    assert "dry run: interrupted" in said
    assert "all is well" not in said
    assert len(runs) == 1


@pytest.mark.slow
def test_run_continues_with_a_closed_standard_output(tmp_path: Path) -> None:
    arguments = [*SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "run")]
    process = start_program(
        [*ENN, "train", "env.id=Xor", *arguments, "total_timesteps=480"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert any(line.startswith("step ") for line in process.stdout)
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(100) == 0, said
    assert said == ""
    assert load_checkpoint(tmp_path / "run").state.step == 480


class SavesAt(Callback):
    """Asks for a save in the hooks that tell metrics."""

    def __init__(self, *at: int) -> None:
        self.at = at
        self.saves: list[Path] = []
        self.got: list[Path | None] = []

    def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        metrics["mine"] = float(trainer.state.step)
        if trainer.state.step in self.at:
            self.got.append(trainer.save())

    def on_eval_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
        metrics["eval/mine"] = -float(trainer.state.step)

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        self.saves.append(path)


@pytest.mark.slow
def test_a_save_requested_by_a_callback_is_consistent(tmp_path: Path) -> None:
    """The metrics of its step, in the state as well, and an evaluation that is due with it."""
    saves = SavesAt(24, 48)
    settings = ["eval.steps=4", "eval.interval=48", "total_timesteps=96"]
    train(
        manager_of(tmp_path, *settings, checkpoint_dir=tmp_path / "run"), Meadow, callbacks=[saves]
    )
    assert saves.got == [None, None]
    assert [path.name for path in saves.saves] == [f"step-{s:012d}" for s in (24, 48, 96)]
    for step in (24, 48):
        saved = load_checkpoint(tmp_path / "run" / f"step-{step:012d}")
        assert saved.resumed_from is not None
        told = saved.resumed_from.manifest
        assert told["why"] == "asked for"
        assert told["metrics"]["mine"] == step
        assert told["metrics"].get("eval/mine") == (-48 if step == 48 else None)
        assert saved.state.metrics["mine"] == step


def test_a_save_requested_by_a_callback_is_made_by_single_steps(tmp_path: Path) -> None:
    saves = SavesAt(24)
    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with Trainer(manager, Meadow, callbacks=[saves]) as trainer:
        trainer.step()
        assert [path.name for path in saves.saves] == ["step-000000000024"]
        trainer.step()
    assert len(saves.saves) == 1


@pytest.mark.slow
def test_a_run_saved_by_a_callback_stops_at_the_same_step(tmp_path: Path) -> None:
    """From the first update on, what conditions remember is of its step, and can be read."""
    stop = stop_conditions.Plateaus("losses/entropy", patience=2, rtol=10.0)
    straight = train(manager_of(tmp_path, "total_timesteps=960"), Clockwork, stop=stop)
    assert straight.step == 24 * 3
    for at in (24, 48):
        folder = tmp_path / f"run-{at}"
        manager = manager_of(tmp_path, "total_timesteps=960", checkpoint_dir=folder)
        train(manager, Clockwork, callbacks=[SavesAt(at)], stop=stop)
        resumed = StateManager(
            overrides=[f"data_dir={tmp_path}"], init_path=folder / f"step-{at:012d}"
        )
        assert resumed.state.memory["asked"] == at // 24
        assert train(resumed, Clockwork, stop=stop).step == straight.step


def test_conditions_evaluated_without_new_metrics_can_be_saved(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with Trainer(manager, Meadow) as trainer:
        trainer.run(stop_conditions.Steps(0))
        assert trainer.state.step == 0
        trainer.step()
        trainer.save()
    assert load_checkpoint(tmp_path / "run").state.memory["asked"] == 0


def manifest_of(run_dir: Path) -> Mapping[str, Any]:
    return find(run_dir).manifest


def test_environments_that_fail_at_the_end_lose_only_their_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("mine")

    class Breaks(Callback):
        def on_train_start(self, trainer: Trainer) -> None:
            monkeypatch.setattr("enn_trainer.run.running_episodes.take_episodes", fail)

    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(manager, Meadow, callbacks=[Breaks()])
    assert manifest_of(tmp_path / "run")["step"] == 72
    assert manifest_of(tmp_path / "run")["why"] == "failed"


@pytest.mark.slow
def test_a_callback_with_a_failing_state_loses_only_that(tmp_path: Path) -> None:
    """It is saved as it was the last time that it could."""

    class Breaks(Callback):
        name = "breaks"
        updates = 0

        def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            self.updates += 1

        def state_dict(self) -> dict[str, Any]:
            if self.updates > 2:
                raise ZeroDivisionError("mine")
            return {"updates": self.updates}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.updates = state["updates"]

    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(ZeroDivisionError):
        train(manager, Meadow, callbacks=[Breaks()])
    saved = load_checkpoint(tmp_path / "run").state
    assert manifest_of(tmp_path / "run")["why"] == "failed"
    assert (saved.step, saved.memory["callbacks"]) == (72, {"breaks": {"updates": 0}})


def test_a_failed_run_is_saved_even_if_an_earlier_save_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Fails(Callback):
        def on_update_start(self, trainer: Trainer) -> None:
            if trainer.state.step == 24:
                monkeypatch.setattr(RunDir, "prune", lambda *_, **__: 1 / 0)
                trainer.manager.save_interval_s = 1e-9
                assert trainer.manager.step() is None

        def on_update_end(self, trainer: Trainer, metrics: dict[str, float]) -> None:
            if trainer.state.step == 48:
                raise KeyError("mine")

    manager = manager_of(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(KeyError, match="mine"):
        train(manager, Meadow, callbacks=[Fails()])
    manifest = manifest_of(tmp_path / "run")
    assert (manifest["step"], manifest["why"]) == (48, "failed")


def test_a_rollout_is_freed_before_the_next_one_is_collected(tmp_path: Path) -> None:
    """It takes most of the memory of a run."""

    class Watches(Callback):
        def __init__(self) -> None:
            self.last: weakref.ref[Any] | None = None
            self.freed = list[bool]()

        def on_update_start(self, trainer: RunningTrainer) -> None:
            if self.last is not None:
                self.freed.append(self.last() is None)

        def on_rollout_end(self, trainer: RunningTrainer, rollout: Any) -> None:
            self.last = weakref.ref(rollout)

    watches = Watches()
    run_small(tmp_path, callbacks=[watches])
    assert watches.freed == [True, True]


def test_a_gpu_out_of_memory_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "CUDA out of memory. Tried to allocate 2.00 GiB."

    @command()
    def main(state_manager: StateManager) -> None:
        raise torch.OutOfMemoryError(message)

    monkeypatch.setattr("sys.argv", ["program.py"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == f"error: {message}\n"
