"""Remote evaluations with results that take effect at a fixed later update."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

import enn_trainer.run.trainer
from enn_trainer import load_checkpoint
from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.curriculum.lessons import LessonProgress, Lessons
from enn_trainer.evaluation.remote import PackedEvaluation, play_suite
from enn_trainer.evaluation.run_evaluator import RunEvaluator
from enn_trainer.run.trainer import Trainer
from entity_env.errors import WorkerError
from entity_env.examples import Locks, Xor
from tests.enn_trainer.evaluation.late_evaluations import SETTINGS, LatePlayer, trained
from tests.enn_trainer.resuming import assert_same, assert_same_clocks


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> LatePlayer:
    """Return what plays evaluations of `eval.ray` in this process."""
    player = LatePlayer()

    def play(
        evaluator: RunEvaluator, config: TrainConfig, device: torch.device, stack: ExitStack
    ) -> None:
        if config.eval is not None and config.eval.ray is not None:
            evaluator.remote = player

    monkeypatch.setattr(enn_trainer.run.trainer, "use_remote_evaluator", play)
    return player


@pytest.mark.slow
def test_remote_evaluation_matches_in_process_results(tmp_path: Path, player: LatePlayer) -> None:
    here, heard_here = trained(tmp_path / "here")
    assert not player.waited
    there, heard_there = trained(tmp_path / "there", "eval.ray=auto")
    assert player.waited
    assert heard_here.evals == heard_there.evals
    assert here.eval == there.eval
    assert here == there
    saves = [sorted(p.name for p in (tmp_path / run).glob("step-*")) for run in ("here", "there")]
    assert saves[0] == saves[1]


@pytest.mark.slow
def test_pending_results_take_effect_at_a_fixed_update_and_at_the_end(
    tmp_path: Path, player: LatePlayer
) -> None:
    _, here = trained(tmp_path / "here")
    result, late = trained(tmp_path / "late", "eval.ray=auto", "eval.lag=3")
    steps = [step for step, _ in here.evals]
    assert steps == [0, 64, 128, 192, 256, 320]
    assert [step for step, _ in late.evals] == [96, 160, 224, 288, 320, 320]
    assert [scalars for _, scalars in late.evals] == [scalars for _, scalars in here.evals]
    assert result.eval == late.evals[-1][1]
    means = {scalars["eval/episodic_reward.mean"] for _, scalars in late.evals}
    assert len(means) > 1  # else it shows nothing


@pytest.mark.slow
def test_pending_result_stops_the_run_at_its_update(tmp_path: Path, player: LatePlayer) -> None:
    stop = 'stop=["eval/episodic_reward.count >= 1"]'
    here, _ = trained(tmp_path / "here", stop)
    late, _ = trained(tmp_path / "late", stop, "eval.ray=auto", "eval.lag=3")
    assert (here.step, late.step) == (0, 96)


@pytest.mark.slow
def test_resumed_run_counts_pending_evaluations(tmp_path: Path, player: LatePlayer) -> None:
    late = ("eval.ray=auto", "eval.lag=3")
    straight, heard = trained(tmp_path / "straight", *late)
    cut, before = trained(tmp_path / "cut", *late, stop_at=160)
    assert cut.interrupted
    again, resumed = trained(tmp_path / "cut", *late)
    assert before.evals + resumed.evals == heard.evals
    assert len(before.evals) == 1
    assert (again, again.eval, again.step) == (straight, straight.eval, straight.step)
    one, other = (load_checkpoint(tmp_path / run).state for run in ("straight", "cut"))
    assert_same(one, other)
    assert_same_clocks(one, other)


def test_remote_evaluation_error_is_raised(tmp_path: Path, player: LatePlayer) -> None:
    class Broken(Xor):
        def reset(self) -> Any:
            raise ZeroDivisionError("of the world")

    def make(fails: bool = False) -> Xor:
        return Broken() if fails else Xor()

    overrides = [*SETTINGS, "eval.ray=auto", "eval.lag=2", 'eval.env.kwargs={"fails": true}']
    manager = StateManager(checkpoint_dir=tmp_path / "run", overrides=overrides)
    with Trainer(manager, make) as trainer, pytest.raises(ZeroDivisionError, match="of the world"):
        trainer.run()
    assert manager.newest_save() is not None


def test_unpicklable_errors_are_sent_as_text() -> None:
    class LockedError(Exception):
        def __reduce__(self) -> Any:
            raise TypeError("locked")

    class Fails:
        def measure_suite(self, name: str) -> None:
            raise LockedError("door")

    message = cloudpickle.dumps(PackedEvaluation([], "/", cloudpickle.dumps(Fails())))
    result = play_suite(message, "")
    assert isinstance(result, WorkerError)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["eval.lag=2"], "eval.lag: expected eval.ray, got none"),
        (["eval.ray=somewhere"], "eval.ray: expected auto or HOST:PORT, got 'somewhere'"),
        (["eval.ray=host:0"], "eval.ray: expected auto or HOST:PORT"),
        (["eval.ray=auto", "eval.lag=-1"], "eval.lag: expected"),
        (
            ["eval.ray=auto", "eval.capture_videos=true"],
            "eval.capture_videos: cannot be combined with eval.ray",
        ),
        (
            ["eval.ray=auto", "eval.capture_samples=a"],
            "eval.capture_samples: cannot be combined with eval.ray",
        ),
        (
            ["eval.ray=auto", "eval.capture_replays=true"],
            "eval.capture_replays: cannot be combined with eval.ray",
        ),
    ],
)
def test_bad_settings_are_refused(overrides: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        _ = StateManager(overrides=[*SETTINGS, *overrides]).config


LESSONS = """curricula={"c": (lessons: [
    (name: "a", vary: {"length": "1"}, until: ["eval/opened.mean >= 0"]),
    (name: "b", vary: {"length": "2"}, until: ["eval/opened.mean >= 0", "lesson_step >= 64"]),
    (name: "c", vary: {"length": "3"}),
])}"""


def taught(folder: Path, *totals: int) -> LessonProgress:
    """Return the lessons of a run with late evaluations that is extended from total to total."""
    for total in totals:
        # No setting depends on the total.
        same = ["optim.anneal_lr=false", "ppo.anneal_entropy=false", "checkpoint.best=[]"]
        late = ["eval.ray=auto", "eval.lag=3", "eval.run_on_first_step=false"]
        settings = [*SETTINGS, *same, *late, LESSONS]
        overrides = [*settings, f"total_timesteps={total}"]
        manager = StateManager(checkpoint_dir=folder, overrides=overrides)
        with Trainer(manager, Locks) as trainer:
            trainer.run()
    part = manager.state.parts["curriculum"]
    assert isinstance(part, Lessons)
    return part.curricula["c"]


@pytest.mark.slow
@pytest.mark.usefixtures("player")
def test_pending_evaluations_at_the_end_decide_stages_of_an_extended_run(
    tmp_path: Path,
) -> None:
    straight = taught(tmp_path / "straight", 416)
    steps = [step for step, _ in straight.begun.values()]
    # The evaluation of step 64 counts at 160; that of 192, the first in lesson b, at 288.
    assert steps == [0, 160, 288]
    for first in (64, 128, 160, 256):
        assert taught(tmp_path / f"{first}", first).begun["a"] == straight.begun["a"]
        assert taught(tmp_path / f"{first}", first + 32, 416) == straight
