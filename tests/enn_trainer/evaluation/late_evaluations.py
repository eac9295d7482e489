"""Remote evaluations with delayed results, and runs that use them."""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.evaluation.evaluation import SuiteResult
from enn_trainer.evaluation.remote import play_suite
from enn_trainer.run.session import TrainResult
from enn_trainer.run.trainer import Trainer
from entity_env.examples import Xor

SETTINGS = [
    "rollout.num_envs=4",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=16",
    "optim.lr=0.05",
    "net.d_model=16",
    "net.n_layer=1",
    "eval.episodes=32",
    "eval.interval=64",
    'eval.suites={"greedy": {"deterministic": true}}',
    'checkpoint.best=["eval/episodic_reward.mean max"]',
    "total_timesteps=320",
    "cuda=false",
]


class LatePlayer:
    """Plays evaluations in this process, when their results are waited for."""

    def __init__(self) -> None:
        self.waited: list[int] = []

    def __call__(self, message: bytes, names: Sequence[str]) -> "LateEvaluation":
        return LateEvaluation(self, message, names)


class LateEvaluation:
    """Evaluation that is played when it is waited for."""

    def __init__(self, player: LatePlayer, message: bytes, names: Sequence[str]) -> None:
        self._player, self._message, self._names = player, message, names

    def results(
        self, stop: Callable[[], bool], watch: Callable[[str, float], None]
    ) -> Mapping[str, SuiteResult] | None:
        results = {}
        self._player.waited.append(1)
        for name in self._names:
            result = play_suite(self._message, name)
            if isinstance(result, Exception):
                raise result
            results[name] = result
        return results

    def cancel(self) -> None:
        pass


class Heard(Callback):
    """Keeps the scalars of evaluations by the step at which they count."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.evals: list[tuple[int, dict[str, float]]] = []
        self._stop_at = stop_at

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        self.evals.append((trainer.state.step, dict(metrics)))

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        if trainer.state.step == self._stop_at:
            os.kill(os.getpid(), signal.SIGINT)


def trained(folder: Path, *overrides: str, **kwargs: Any) -> tuple[TrainResult, Heard]:
    """Train, or go on, in a folder."""
    heard = Heard(**kwargs)
    manager = StateManager(checkpoint_dir=folder, overrides=[*SETTINGS, *overrides])
    with Trainer(manager, Xor, callbacks=[heard]) as trainer:
        return trainer.run(), heard
