"""Recordings of runs of several ranks: the bytes of one process, written by rank 0."""

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import Callback, ConfigError, StateManager, Trainer
from enn_trainer.base.group import Group
from enn_trainer.tracking import track
from entity_env.examples import Duel, Minefield
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordedStep
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.experience.fog import MEMORY
from tests.enn_trainer.numbers_world import Targets
from tests.enn_trainer.run.forked_ranks import run_hosts
from tests.enn_trainer.run.small_runs import LEAGUE, OPTIONS, SMALL
from tests.enn_trainer.run.thread_group import in_ranks
from tests.enn_trainer.selfplay.joust import Joust
from tests.enn_trainer.worlds import Meadow, Pasture
from tests.entity_env.builders import assert_same
from tests.entity_env.clocks import Clocks

CAPTURE = ["capture_samples=a.rec"]
SHORT = "env.vary.max_steps=5"
"""Episodes that are cut off."""


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _named_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a run is in its recordings."""

    def name(runs: Path | None, config: Any) -> str:
        return "it"

    monkeypatch.setattr(track, "_new_run_name", name)


def run(
    size: int,
    folder: str,
    env: Any,
    settings: Sequence[str],
    one: bool = False,
    callback: type[Callback] = Callback,
) -> bytes:
    """Train in some ranks, or take `one` update and save; return what was recorded."""

    def work(group: Group | None = None) -> None:
        manager = StateManager(overrides=[*CAPTURE, *settings], checkpoint_dir=folder)
        manager.say = lambda line: None
        with Trainer(manager, env, callbacks=[callback()]) as trainer:
            trainer.step() if one else trainer.run()
            if one:
                trainer.save()

    in_ranks(size, work) if size > 1 else work()
    return Path(folder, "a.rec").read_bytes()


def steps_of(file: str) -> list[RecordedStep]:
    recording = Recording.open(Path(file))
    assert recording.complete
    return [*recording.steps()]


RUNS = {
    "frames": (Minefield, [*SMALL]),
    "logits": (Minefield, [*SMALL, "capture_logits=true"]),
    "subsample": (Pasture, [*SMALL, "capture_samples_subsample=3"]),
    "few frames": (Pasture, [*SMALL, "capture_samples_subsample=40"]),
    "lessons": (Minefield, [*SMALL, *OPTIONS["lessons"]]),
    "frames between episodes": (Clocks, [*SMALL, "capture_samples_subsample=2"]),
    "memory": (Minefield, [*SMALL, MEMORY, "ppo.seq_len=4", "optim.bs=16"]),
    "matches": (Duel, [*SMALL, "rollout.num_envs=10", "capture_logits=true"]),
    "numbers": (Targets, [*SMALL, "capture_logits=true"]),
    "dependent actions": (Camp, [*SMALL, "capture_logits=true"]),
    "league": (Joust, [*LEAGUE, "capture_logits=true"]),
    "league with memory": (Joust, [*LEAGUE, "net.memory=(of: frame)", "ppo.seq_len=2"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_ranks_records_the_same_bytes(name: str) -> None:
    env, settings = RUNS[name]
    expected = run(1, "1", env, settings)
    for size in (2, 3, 4) if name in ("frames", "league") else (3,):
        assert run(size, str(size), env, settings) == expected, size
    steps, num_updates = steps_of("3/a.rec"), 3
    assert len(steps) == num_updates * (4 if env is Joust else 8)
    kept = [len(step.kept) for step in steps]
    ended = sum(int((step.terminated | step.truncated).sum()) for step in steps)
    assert ended > 0
    if name in ("subsample", "few frames"):
        assert 0 < sum(kept) < len(steps) * 7 / 2
        assert 0 in kept or name == "subsample"
        assert any(step.final is not None for step in steps)
    if name == "lessons":
        assert sum(len(step.parameters) for step in steps) == 7 + ended
    if name.startswith("league"):
        players = {one for step in steps for one in step.decisions.player}
        assert {"", "random"} < players
    if name == "memory":
        assert steps[0].decisions.obs.identity


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lessons", "subsample", "league"])
def test_a_run_resumed_with_another_number_of_ranks_records_the_same_file(name: str) -> None:
    env, settings = RUNS[name]
    expected = run(1, "straight", env, settings)
    recorded = b""
    for size in (3, 1, 2):
        before, recorded = recorded, run(size, "run", env, settings, one=True)
        assert recorded.startswith(before)
        assert len(recorded) > len(before)
    assert recorded == expected


@pytest.mark.slow
def test_episodes_restarted_by_a_resume_are_numbered_as_in_one_process() -> None:
    """Those of a world that has no state to save."""
    for size in (1, 1, 1):
        expected = run(size, "straight", Meadow, SMALL, one=True)
    for size in (3, 1, 2):
        recorded = run(size, "run", Meadow, SMALL, one=True)
    assert recorded == expected
    assert len({n for step in steps_of("run/a.rec") for n in step.episode}) > 14


class Abandons(Callback):
    """Gets a signal in the second update, which is given up; during the rollout, in rank 1."""

    def on_update_start(self, trainer: Any) -> None:
        self.signal(trainer)

    def signal(self, trainer: Any) -> None:
        if trainer.rank == 1 and trainer.state.step == 56:
            trainer.stopping.interrupts.take(15)


class AbandonsLater(Abandons):
    """The signal comes after the rollout, which was recorded."""

    def on_update_start(self, trainer: Any) -> None:
        return

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        self.signal(trainer)


@pytest.mark.slow
@pytest.mark.parametrize(("callback", "num_rollouts"), [(Abandons, 1), (AbandonsLater, 2)])
@pytest.mark.parametrize("size", [1, 2])
def test_an_abandoned_update_is_recorded_again_after_a_resume(
    callback: type[Callback], num_rollouts: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [*SMALL, SHORT, "checkpoint.every_seconds=0"]
    expected = run(1, "straight", Minefield, settings)
    with monkeypatch.context() as patch:
        patch.setattr("enn_trainer.runtime.interrupt.GRACE_S", 0.0)
        begun = run(3, "run", Minefield, settings, callback=callback)
    assert len(steps_of("run/a.rec")) == 8 * num_rollouts
    assert expected.startswith(begun)
    assert run(size, "run", Minefield, settings) == expected


class Fails(Callback):
    """Takes another update after one that failed in all ranks, in which episodes ended."""

    def __init__(self) -> None:
        self._has_failed = False

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        if trainer.state.step == 56 and not self._has_failed:
            self._has_failed = True
            raise ZeroDivisionError


@pytest.mark.slow
def test_new_episodes_after_an_error_have_new_numbers() -> None:
    def work(group: Group | None = None) -> None:
        folder = "1" if group is None else "3"
        manager = StateManager(overrides=[*CAPTURE, *SMALL, SHORT], checkpoint_dir=folder)
        manager.say = lambda line: None
        with Trainer(manager, Minefield, callbacks=[Fails()]) as trainer:
            trainer.step()
            with pytest.raises(ZeroDivisionError):
                trainer.step()
            trainer.step()

    work()
    in_ranks(3, work)
    assert Path("1/a.rec").read_bytes() == Path("3/a.rec").read_bytes()
    assert np.diff([step.episode.max() for step in steps_of("3/a.rec")]).max() >= 7


def test_a_file_refused_by_rank_0_is_an_error_in_all_ranks() -> None:
    Path("run").mkdir()
    Path("run/a.rec").write_text("mine")

    def work(group: Group) -> None:
        manager = StateManager(overrides=[*CAPTURE, *SMALL], checkpoint_dir="run")
        Trainer(manager, Minefield).close()

    with pytest.raises(ConfigError, match="capture_samples: expected a new file"):
        in_ranks(3, work)
    assert Path("run/a.rec").read_text() == "mine"


@pytest.mark.slow
def test_only_rank_0_creates_files() -> None:
    evals = ["eval.interval=60", "eval.steps=5", "eval.num_envs=3", "eval.processes=1"]
    settings = [*SMALL, *evals, "eval.capture_samples=evals.rec"]
    run(1, "1", Minefield, settings)
    run(3, "3", Minefield, settings)
    assert {str(path) for path in Path().rglob("*.rec")} == {
        f"{folder}/{name}.rec" for folder in "13" for name in ("a", "evals")
    }
    for name in ("a", "evals"):
        one, other = (Path(folder, f"{name}.rec").read_bytes() for folder in "13")
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_ranks_of_torchrun_record_the_same_bytes_as_one_process(number: int) -> None:
    """Also if one is killed, and all of them begin again."""
    settings = [*SMALL, *CAPTURE, "capture_samples_subsample=2", "checkpoint.every_seconds=0"]
    folder = ["--checkpoint-dir", "ranks", "--resume-or-start"]
    (done,) = run_hosts("torch_run", *settings, *folder, ranks=2, number=number)
    assert done.returncode == 0, done.stderr
    run(1, "one", Minefield, settings)
    got, expected = steps_of("ranks/a.rec"), steps_of("one/a.rec")
    assert len(got) == len(expected) == 24
    for one, other in zip(got, expected, strict=True):
        assert_same(one, other)
