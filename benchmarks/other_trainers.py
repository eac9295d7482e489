"""Speed and learning of our trainer and of PPO with an MLP, in a third-party environment.

    python benchmarks/other_trainers.py [--seeds 3] [--cap 300] [--results FILE.md]
        [--sb3 PYTHON]     a Python with stable-baselines3, torch and lbforaging

The environment is level-based foraging 8x8 with two players and two pieces of food, in one process;
ours is also measured with one process per core. A frame is the observation of one player, so a step
of an environment is two frames, for all trainers; one policy plays both sides. Other trainers get
the environment's vector, padded where food was eaten and scaled to about 1, without action masks.
Ours gets entities, natively from foraging_match.py, which makes no vector, or by the adapter of
foraging.py from the vector; both mask actions without effect. All use `configs/foraging_8x8.ron`
with `SETTINGS`; the width of MLPs gives them about the same number of parameters, and they use one
thread, which is faster for them. Evaluations are the same for all: the mean return of both players
in the first complete episodes of 64 environments, with sampled actions, at fixed numbers of
updates; their time is not counted. Every seed of a trainer has a separate process.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from flat_foraging import FlatForaging, mean_return
from measured_on import short_revision
from mlp_ppo import MlpPPO, Settings

from enn_trainer import StateManager, TrainConfig, Trainer

CONFIG = Path(__file__).parent.parent / "configs/foraging_8x8.ron"
SETTINGS = [
    "rollout.num_envs=512",
    "rollout.steps=8",
    "optim.bs=1024",
    "optim.lr=0.0015",
    "optim.anneal_lr=false",
    "ppo.anneal_entropy=false",
]
"""Settings of all trainers in addition to the configuration: more environments, for speed."""
BAR = 0.9
CORES = os.cpu_count() or 1
TRAINERS = {
    "ours": "enn-trainer",
    "workers": f"enn-trainer, {CORES} processes",
    "adapter": f"enn-trainer, {CORES} processes, through the adapter",
    "mlp": "benchmarks/mlp_ppo.py",
    "sb3": "stable-baselines3",
}
WARM_UP, BETWEEN_EVALS = 2, 5
"""Numbers of updates before speed is measured, and between evaluations."""
EVAL_WORLDS, EVAL_EPISODES, EVAL_SEED = 64, 4, 10_000_000


class Learner(NamedTuple):
    """A trainer before its first update.

    Attributes:
        parameters: number of trained parameters.
        update: collects a rollout and learns from it; returns its number of frames.
        measured: evaluates the mean return of new episodes.
    """

    parameters: int
    update: Callable[[], int]
    measured: Callable[[], float]


def manager_of(seed: int, folder: str, processes: int = 1) -> StateManager:
    """Create the state manager with the configuration of all trainers."""
    run_settings = [f"seed={seed}", f"data_dir={folder}", f"rollout.processes={processes}"]
    overrides = [*SETTINGS, "total_timesteps=1000000000", *run_settings]
    return StateManager(init_path=CONFIG, overrides=overrides)


def ours(seed: int, folder: str, processes: int = 1, adapter: bool = False) -> Learner:
    from foraging import foraging
    from foraging_match import Foraging
    from learning_measure import measure

    from enn_trainer.experience.envs import env_factory

    manager = manager_of(seed, folder, processes)
    match = (foraging if adapter else Foraging.of)(manager.config.env.id)
    trainer = Trainer(manager, match)
    frames = manager.config.rollout.num_envs * manager.config.rollout.steps

    def update() -> int:
        trainer.step()
        return frames

    def measured() -> float:
        players = match.num_sides * EVAL_WORLDS
        envs = env_factory(match)(manager.config.env, players, 1, 0)
        episodes = EVAL_EPISODES * players
        returns = measure(envs, trainer.state.agent, None, EVAL_SEED, episodes)
        return match.num_sides * float(np.mean(returns))

    return Learner(_count(trainer.state.agent), update, measured)


def mlp(seed: int, folder: str) -> Learner:
    torch.set_num_threads(1)
    config = manager_of(seed, folder).config
    worlds, settings = _flat(config)
    learner = MlpPPO(worlds, width(worlds, seed, folder), settings, seed)
    counted = sum(p.numel() for p in learner.parameters)

    def measured() -> float:
        where = FlatForaging(config.env.id, worlds.sides * EVAL_WORLDS, EVAL_SEED)
        return mean_return(where, learner.choose, EVAL_EPISODES)

    return Learner(counted, learner.update, measured)


def sb3(seed: int, folder: str) -> Learner:
    from sb3_foraging import make_ppo

    torch.set_num_threads(1)
    config = manager_of(seed, folder).config
    worlds, settings = _flat(config)
    ppo = make_ppo(worlds, width(worlds, seed, folder), settings, seed)
    frames = settings.steps * len(worlds.obs)

    def update() -> int:
        ppo.learn(frames, reset_num_timesteps=False)
        return frames

    def measured() -> float:
        where = FlatForaging(config.env.id, worlds.sides * EVAL_WORLDS, EVAL_SEED)
        return mean_return(where, lambda obs: ppo.predict(obs)[0], EVAL_EPISODES)

    return Learner(_count(ppo.policy), update, measured)


def _flat(config: TrainConfig) -> tuple[FlatForaging, Settings]:
    settings = Settings(
        steps=config.rollout.steps,
        bs=config.optim.bs,
        epochs=config.optim.update_epochs,
        lr=config.optim.lr,
        gamma=config.ppo.gamma,
        gae_lambda=config.ppo.gae_lambda,
        clip=config.ppo.clip_coef,
        ent_coef=config.ppo.ent_coef,
        vf_coef=config.ppo.vf_coef,
        max_grad_norm=config.optim.max_grad_norm,
    )
    worlds = FlatForaging(config.env.id, config.rollout.num_envs, seed=1000 * config.seed)
    return worlds, settings


def _count(module: torch.nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def width(worlds: FlatForaging, seed: int, folder: str) -> int:
    """Return the MLP width with the number of parameters nearest to ours."""
    from foraging_match import Foraging

    manager = manager_of(seed, folder)
    with Trainer(manager, Foraging.of(manager.config.env.id)) as trainer:
        num_parameters = _count(trainer.state.agent)
    features, actions = worlds.obs.shape[1], worlds.num_actions

    def parameters(h: int) -> int:
        return 2 * ((features + 1) * h + (h + 1) * h) + (h + 1) * (actions + 1)

    return min(range(4, 512), key=lambda h: abs(parameters(h) - num_parameters))


def run(name: str, seed: int, cap_s: float) -> dict[str, Any]:
    """Train in this process until the target is reached or the time is over."""
    with TemporaryDirectory() as folder:
        makers = {
            "ours": ours,
            "workers": partial(ours, processes=CORES),
            "adapter": partial(ours, processes=CORES, adapter=True),
            "mlp": mlp,
            "sb3": sb3,
        }
        return _run(makers[name](seed, folder), cap_s)


def _run(learner: Learner, cap_s: float) -> dict[str, Any]:
    seconds, frames, updates = 0.0, 0, 0
    timed_s, timed_frames, reached, result = 0.0, 0, None, 0.0
    while seconds < cap_s and reached is None:
        start = time.perf_counter()
        done = learner.update()
        took = time.perf_counter() - start
        seconds, frames, updates = seconds + took, frames + done, updates + 1
        if updates > WARM_UP:
            timed_s, timed_frames = timed_s + took, timed_frames + done
        if updates % BETWEEN_EVALS == 0:
            result = learner.measured()
            if result >= BAR:
                reached = {"seconds": seconds, "frames": frames}
    return {
        "parameters": learner.parameters,
        "frames_per_s": timed_frames / max(timed_s, 1e-9),
        "reached": reached,
        "result": result,
    }


def run_in_process(name: str, seed: int, cap_s: float, python: str) -> dict[str, Any]:
    """Call `run` in a separate process."""
    command = [python, __file__, "--one", name, str(seed), "--cap", str(cap_s)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def line(name: str, runs: list[dict[str, Any]]) -> str:
    """Format a row of the table."""
    speeds = [r["frames_per_s"] for r in runs]
    speed = f"{statistics.median(speeds):,.0f} ({min(speeds):,.0f}-{max(speeds):,.0f})"

    def shown(r: dict[str, Any], what: str) -> str:
        return f"{r['reached'][what]:,.0f}" if r["reached"] else f"not ({r['result']:.2f})"

    seconds, frames = (", ".join(shown(r, what) for r in runs) for what in ("seconds", "frames"))
    return f"| {TRAINERS[name]} | {runs[0]['parameters']:,} | {speed} | {seconds} | {frames} |"


def has_sb3(python: str) -> bool:
    """Return True if a Python has the packages of the comparison."""
    needs = [python, "-c", "import stable_baselines3, torch, lbforaging"]
    return subprocess.run(needs, capture_output=True, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sb3", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cap", type=float, default=300.0, help="seconds of training of each")
    parser.add_argument("--only", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--results", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one[0], int(options.one[1]), options.cap)))
        return
    names = list(options.only)
    if "sb3" in names and not has_sb3(options.sb3):
        names.remove("sb3")
        print(f"stable-baselines3 is skipped: {options.sb3} cannot import it; pass --sb3 PYTHON")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in range(
        1, options.seeds + 1
    ):  # alternate trainers, because the load of the machine may vary
        for name in names:
            python = options.sb3 if name == "sb3" else sys.executable
            runs[name].append(run_in_process(name, seed, options.cap, python))
            print(line(name, runs[name]), flush=True)
    text = "\n".join(
        [
            "# Comparison with other trainers",
            "",
            f"`{' '.join(['python', *sys.argv]).replace(options.sb3, 'PYTHON')}`, "
            f"{os.cpu_count()} cores, Python "
            f"{platform.python_version()}, torch {torch.__version__}; at most {options.cap:g} s of "
            f"training each, commit {short_revision()}. Foraging-8x8-2p-2f-coop-v3; "
            "definitions are in the script.",
            "",
            f"| trainer | parameters | frames/s (range) | seconds to {BAR}, by seed | frames |",
            "| --- | --- | --- | --- | --- |",
            *(line(name, runs[name]) for name in names),
            "",
        ]
    )
    if options.results:
        options.results.write_text(text)


if __name__ == "__main__":
    main()
