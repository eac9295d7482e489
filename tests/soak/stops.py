"""Runs that are killed or stopped before due evaluations must keep the best checkpoint.

Every second update is followed by an evaluation, and which of them is best depends on the seed.
`RUN@best` and all pinned checkpoints must equal those of an undisturbed run.
"""

import contextlib
import io
import os
import signal
import time
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

from enn_trainer import Callback, State, StateManager, train
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore
from entity_env.seeding import derive_seed
from tests.enn_trainer.resuming import assert_same, assert_same_clocks
from tests.enn_trainer.worlds import Pasture
from tests.soak.small_saves import LEARNS_MORE, SETTINGS

UPDATES, STEPS_PER_UPDATE = 12, 8
TOTAL = UPDATES * STEPS_PER_UPDATE
LIFE_S = 120.0
JUDGES = 4
"""How often another evaluation is the best one."""
POLICY = [
    "checkpoint.keep=1",
    "checkpoint.keep_best=2",
    f"checkpoint.keep_every_steps={4 * STEPS_PER_UPDATE}",
    'checkpoint.best=["eval/good max"]',
    "eval.steps=2",
    f"eval.interval={2 * STEPS_PER_UPDATE}",
    "eval.num_envs=2",
]


class Summary(NamedTuple):
    """Results of many stops.

    Attributes:
        stops: number of processes that got a signal.
        terminated: number that got SIGTERM; some of them saved as interrupted.
        before_evaluation: number of checkpoints without their due evaluation.
        runs: number of completed runs.
        seconds: total duration.
    """

    stops: int
    terminated: int
    before_evaluation: int
    runs: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.stops} stops ({self.terminated} by SIGTERM, {self.before_evaluation} left a "
            f"save before an evaluation), {self.runs} runs kept what a straight run keeps, "
            f"{self.seconds:.0f} s"
        )


def stop_runs(folder: Path, seed: int, count: int) -> Summary:
    """Stop runs until a number of processes got a signal, and compare the final checkpoints.

    Raises:
        AssertionError: a run kept something else than one that went straight on.
    """
    assert torch.get_num_threads() == 1, "threads do not survive a fork"
    rng, start = Random(seed), time.monotonic()
    stops = terminated = before_evaluation = runs = 0
    pace_s = 0.0
    while stops < count:
        judged = f"{seed} {runs % JUDGES}"
        straight, run_dir = folder / f"straight-{judged}", folder / f"run-{runs}"
        if not straight.exists():
            begin = time.monotonic()
            with contextlib.redirect_stdout(io.StringIO()):
                _train(straight, judged, None)
            pace_s = time.monotonic() - begin
        is_over = False
        while not is_over:
            kind = signal.SIGTERM if rng.random() < 0.7 else signal.SIGKILL
            # In the update that begins at a step, or anywhere.
            at_step = rng.randrange(UPDATES) * STEPS_PER_UPDATE if rng.random() < 0.6 else None
            after_s = rng.uniform(0, pace_s)
            is_last = stops >= count
            is_over = _lived(run_dir, judged, None if is_last else (kind, at_step, after_s))
            stops += not is_over
            terminated += not is_over and kind == signal.SIGTERM
            before_evaluation += _lacks_evaluation(run_dir / "run")
        _check_same(straight / "run", run_dir / "run")
        runs += 1
    return Summary(stops, terminated, before_evaluation, runs, time.monotonic() - start)


class _Judge(Callback):
    """Says how good an agent is, by chance; stops the process in the update of a step."""

    def __init__(self, judged: str, kind: signal.Signals | None, at_step: int | None) -> None:
        self._judged, self._kind, self._at_step = judged, kind, at_step

    def on_update_start(self, trainer: Any) -> None:
        if self._kind is not None and trainer.state.step == self._at_step:
            os.kill(os.getpid(), self._kind)

    def on_eval_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        metrics["eval/good"] = derive_seed(0, self._judged, trainer.state.step) % 1000


def _train(
    folder: Path, judged: str, stop: tuple[signal.Signals, int | None, float] | None
) -> bool:
    """Begin or continue a run; whether it came to its end."""
    folder.mkdir(exist_ok=True)
    settings = [*SETTINGS, *LEARNS_MORE, *POLICY, f"total_timesteps={TOTAL}", f"data_dir={folder}"]
    manager = StateManager(overrides=settings, checkpoint_dir=folder / "run")
    kind, at_step = (None, None) if stop is None else stop[:2]
    result = train(manager, Pasture, callbacks=[_Judge(judged, kind, at_step)])
    return result.step == TOTAL and not result.interrupted  # else the last evaluation is missing


def _lived(
    folder: Path, judged: str, stop: tuple[signal.Signals, int | None, float] | None
) -> bool:
    """Let a process continue a run until it is stopped; whether it came to the end of the run."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            folder.mkdir(exist_ok=True)
            errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            status = 0 if _train(folder, judged, stop) else 2
        except BaseException as error:
            os.write(2, repr(error).encode())
            raise
        finally:
            os._exit(status)
    end = time.monotonic() + LIFE_S
    send_at = end if stop is None or stop[1] is not None else time.monotonic() + stop[2]
    while True:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            break
        if stop is not None and time.monotonic() >= send_at:
            os.kill(process, stop[0])
            send_at = end
        if time.monotonic() >= end:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.002)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 2, -signal.SIGTERM, -signal.SIGKILL), (folder / "errors").read_text()
    return code == 0


def _lacks_evaluation(run_dir: Path) -> bool:
    saved = RunDir(run_dir).newest() if run_dir.is_dir() else None
    if saved is None:
        return False
    due = _state_of(saved).next_eval_step
    return due is not None and saved.step >= due


def _state_of(saved: checkpoint.Checkpoint) -> State:
    return restore(saved, read_config(saved))


def _check_same(straight: Path, run_dir: Path) -> None:
    best, found = find(straight.parent / "run@best"), find(run_dir.parent / "run@best")
    assert found.step == best.step, f"{found.path} is the best one, not that of {best.step}"
    assert found.read(checkpoint.WEIGHTS) == best.read(checkpoint.WEIGHTS)
    names = [path.name for path in RunDir(straight).saved_paths()]
    assert [path.name for path in RunDir(run_dir).saved_paths()] == names
    for name in names:
        expected, got = (
            _state_of(checkpoint.verify(where / name)) for where in (straight, run_dir)
        )
        assert_same(expected, got)
        assert_same_clocks(expected, got)
