"""Trainers of `other_trainers.py`; each run has a separate process."""

import os
import time
from collections.abc import Callable
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from flat_foraging import Choose, mean_return
from kept_runs import Result
from learning_measure import measure
from other_cases import Case, count
from trained import CountedEnvs

from enn_trainer import Trainer
from enn_trainer.cli.work.profile import profile
from enn_trainer.experience.envs import env_factory

CORES = os.cpu_count() or 1
WARM_UP = 2
"""Number of updates before speed is measured."""
EVAL_WORLDS, EVAL_EPISODES, EVAL_SEED = 64, 2, 10_000_000
"""Environments of an evaluation, episodes of each of them, and the seed of the first."""
PROFILE_S = 8.0


class Progress:
    """Frames and seconds of training until an evaluation reaches the goal of a case.

    Evaluations are not counted.

    Args:
        case: environment and goal.
        cap_s: processor seconds after which training ends.
        evaluate: returns the mean return of new episodes.
        cpu_s: returns the processor seconds of all processes so far.

    Attributes:
        reached: "frames", "seconds" and "processor_seconds" to the goal; None before.
        result: the last mean return.
    """

    def __init__(
        self,
        case: Case,
        cap_s: float,
        evaluate: Callable[[], float],
        cpu_s: Callable[[], float] = time.process_time,
    ) -> None:
        self._case, self._cap_s, self._evaluate, self._cpu_s = case, cap_s, evaluate, cpu_s
        self._updates = self._frames = self._evaluated = 0
        self._wall_s = self._used_s = self._warm_s = 0.0
        self._warm_frames = 0
        self.reached: dict[str, float] | None = None
        self.result = float("nan")
        self._start()

    @property
    def frames_per_s(self) -> float:
        """Frames per second of wall-clock time after the warm-up."""
        frames = self._frames - self._warm_frames
        return frames / max(self._wall_s - self._warm_s, 1e-9)

    def add(self, frames: int) -> bool:
        """Count the frames and the time of an update, and evaluate if it is time.

        Returns:
            True if training ends.
        """
        self._wall_s += time.perf_counter() - self._started_s
        self._used_s += self._cpu_s() - self._started_cpu_s
        self._updates, self._frames = self._updates + 1, self._frames + frames
        if self._updates == WARM_UP:
            self._warm_s, self._warm_frames = self._wall_s, self._frames
        if self._frames - self._evaluated >= self._case.interval:
            self._evaluated = self._frames
            self.result = self._evaluate()
            if self.result >= self._case.goal:
                seconds = {"seconds": self._wall_s, "processor_seconds": self._used_s}
                self.reached = {"frames": self._frames, **seconds}
        self._start()
        return self.reached is not None or self._used_s >= self._cap_s

    def _start(self) -> None:
        self._started_s, self._started_cpu_s = time.perf_counter(), self._cpu_s()


def ours(case: Case, seed: int, cap_s: float, folder: str, processes: int = 1) -> Result:
    manager, world = case.manager(seed, folder, processes), case.row.world()
    counted = CountedEnvs(world)
    frames = manager.config.rollout.num_envs * manager.config.rollout.steps
    with Trainer(manager, counted.create) as trainer:
        agent = trainer.state.agent

        def evaluate() -> float:
            players = case.row.sides * EVAL_WORLDS
            envs = env_factory(world)(manager.config.env, players, 1, 0)
            returns = measure(envs, agent, None, EVAL_SEED + seed, EVAL_EPISODES * players)
            return case.row.scale * float(np.mean(returns))

        progress = Progress(case, cap_s, evaluate, counted.cpu_s)
        is_over = False
        while not is_over:
            trainer.step()
            is_over = progress.add(frames)
    return _result(count(agent), progress)


def mlp(case: Case, seed: int, cap_s: float, folder: str) -> Result:
    from mlp_ppo import MlpPPO

    worlds = case.worlds(case.others.n_envs, 1000 * seed)
    learner = MlpPPO(worlds, case.width(folder), case.others, seed)
    progress = Progress(case, cap_s, partial(_mean_return, case, seed, learner.choose))
    while not progress.add(learner.update()):
        pass
    return _result(sum(p.numel() for p in learner.parameters), progress)


def sb3(case: Case, seed: int, cap_s: float, folder: str) -> Result:
    from sb3_foraging import make_ppo
    from stable_baselines3.common.callbacks import BaseCallback

    worlds = case.worlds(case.others.n_envs, 1000 * seed)
    ppo = make_ppo(worlds, case.width(folder), case.others, seed)
    evaluate = partial(_mean_return, case, seed, lambda obs: ppo.predict(obs)[0])

    class UntilOver(BaseCallback):
        is_over = False

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                self.is_over = progress.add(case.others.n_envs * case.others.n_steps)

        def _on_step(self) -> bool:
            return not self.is_over

    progress = Progress(case, cap_s, evaluate)
    ppo.learn(10**9, callback=UntilOver())
    return _result(count(ppo.policy), progress)


def cleanrl(case: Case, seed: int, cap_s: float, folder: str, script: str) -> Result:
    from cleanrl_script import Slots, train

    results = {}

    def begin(agent: Any) -> Callable[[int], bool]:
        def choose(obs: Any) -> Any:
            return agent.get_action_and_value(torch.from_numpy(obs))[0].numpy()

        progress = Progress(case, cap_s, partial(_mean_return, case, seed, choose))
        results[count(agent)] = progress
        return progress.add

    worlds = case.worlds(case.others.n_envs, 1000 * seed)
    slots = Slots(worlds, case.others.n_steps, begin)
    train(script, slots, case.width(folder), case.others, seed, folder)
    ((parameters, progress),) = results.items()
    return _result(parameters, progress)


def _mean_return(case: Case, seed: int, choose: Choose) -> float:
    """Return the mean return of vector environments, in the unit of the bar."""
    with torch.no_grad():
        worlds = case.worlds(case.row.sides * EVAL_WORLDS, EVAL_SEED + seed)
        return case.row.scale / worlds.sides * mean_return(worlds, choose, EVAL_EPISODES)


def _result(parameters: int, progress: Progress) -> Result:
    return {
        "parameters": parameters,
        "frames_per_s": progress.frames_per_s,
        "reached": progress.reached,
        "result": progress.result,
    }


def shares(case: Case, seed: int, cap_s: float, folder: str) -> Result:
    """Return the shares of our time by kind of work, and microseconds per frame."""
    manager, envs = case.manager(seed, folder), env_factory(case.row.world())
    measured = profile(manager, envs, PROFILE_S)
    kinds = dict.fromkeys(part.kind for part in measured.parts)
    by_kind = {kind: measured.share(kind) for kind in kinds}
    return {"shares": by_kind, "us_per_frame": 1e6 / measured.frames_per_s}


def run(case: Case, name: str, seed: int, cap_s: float, script: str = "") -> Result:
    """Train in this process until the goal is reached or the time is over.

    Args:
        case: environment and settings.
        name: of the trainer, or "profile" for the shares of our time.
        seed: of the run.
        cap_s: maximum of processor seconds.
        script: file of CleanRL.
    """
    torch.set_num_threads(1)
    trainers: dict[str, Callable[[Case, int, float, str], Result]] = {
        "ours": ours,
        "workers": partial(ours, processes=CORES),
        "mlp": mlp,
        "sb3": sb3,
        "cleanrl": partial(cleanrl, script=script),
        "profile": shares,
    }
    with TemporaryDirectory() as folder:
        return trainers[name](case, seed, cap_s, folder)
