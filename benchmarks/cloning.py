"""Returns of clones compared with the cloned agent, also during PPO.

    python benchmarks/cloning.py [--checkpoint DIR] [--seeds 3] [--results FILE.md]

The agent is that of a checkpoint, or trained with `configs/cherry_pick.ron`. 20,000 frames of it
are recorded with sampled actions, and cloned with several seeds. Agent and clones are evaluated in
the same way: mean return of the first complete episodes of 256 environments with sampled actions.
Then PPO continues from the first clone, with evaluations. With `--check` the command fails if a
clone is more than 2% worse than the agent, or if an evaluation during PPO falls below 95% of the
clone's return.
"""

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning_measure import measure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from enn_trainer import CloneRunConfig, StateManager, clone, load_agent, train
from enn_trainer.base.policy import PPOAgent
from enn_trainer.config.load import load_config
from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.experience.recording import Recorder
from entity_env import EnvList
from entity_env.examples import CherryPick

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs/cherry_pick.ron"
FRAMES, NUM_ENVS, EPISODE = 20_000, 128, 16
CLONE = ("clone.bs=256", "clone.epochs=6")
PPO = (
    "optim.lr=0.0003",  # a trained network needs smaller steps than a new one
    "optim.lr_warmup_steps=4096",  # until the optimizer's statistics are accurate
    "ppo.ent_coef=0.0",  # 0.1 would reward forgetting
    "total_timesteps=20480",
    "eval.steps=16",  # one complete episode of each environment
    "eval.num_envs=256",
    "eval.interval=2048",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="agent to clone (default: train one)")
    parser.add_argument("--seeds", type=int, default=3, help="number of clones")
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/cloning.md")
    parser.add_argument(
        "--check", action="store_true", help="fail if a clone or PPO misses its target"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report, problems = run(Path(folder), options.checkpoint, options.seeds)
    print(report)
    options.results.write_text(report)
    if options.check and problems:
        sys.exit("; ".join(problems))


def run(folder: Path, checkpoint: Path | None, seeds: int) -> tuple[str, list[str]]:
    """Return the document, and a message for each missed target."""
    teacher = checkpoint or trained(folder / "teacher")
    network = load_agent(teacher).agent
    recording = folder / "agent.rec"
    record(network, recording)
    bar = returns(network)
    rows, clones, problems = [("agent", "", *mean_and_error(bar), "", "")], [], []
    for seed in range(1, seeds + 1):
        config = load_config(CloneRunConfig, CONFIG, [f"seed={seed}", *CLONE, *settings(folder)])
        start = time.monotonic()
        result = clone(recording, config, folder / f"clone{seed}")
        seconds, own_returns = time.monotonic() - start, returns(result.state.agent)
        clones.append(own_returns)
        share = own_returns.mean() / bar.mean()
        assert result.test is not None
        accuracy = result.test.accuracy["Pick Cherry"]
        scores = f"{accuracy:.3f}, {result.test.explained_variance:.2f}"
        took = f"{result.epochs} in {seconds:.0f} s"
        rows.append((f"clone {seed}", f"{share:.4f}", *mean_and_error(own_returns), scores, took))
        if share < 0.98:
            problems.append(f"clone {seed}: expected 98% of the agent, got {100 * share:.1f}%")
    evals = continued(folder)
    shares = {step: value / clones[0].mean() for step, value in evals.items()}
    lowest = min(shares.values())
    if lowest < 0.95:
        problems.append(f"PPO: expected never below 95% of the clone, got {100 * lowest:.1f}%")
    return as_markdown(rows, evals, shares, lowest), problems


def trained(folder: Path) -> Path:
    manager = StateManager(init_path=CONFIG, checkpoint_dir=folder, overrides=settings(folder))
    train(manager, CherryPick)
    return folder


def settings(folder: Path) -> list[str]:
    return [f"data_dir={folder}", "name=cloning"]


def record(agent: PPOAgent, path: Path) -> None:
    envs = EnvList(CherryPick, NUM_ENVS)
    with closing(Recorder(path, envs.action_space())) as recorder:
        collector = Collector(envs, AgentPlayer(agent, seed=1), watchers=[recorder])
        steps = math.ceil(FRAMES / NUM_ENVS / EPISODE) * EPISODE
        play(collector, envs.obs_space(), steps, seed=1)


def returns(agent: PPOAgent) -> np.ndarray[Any, np.dtype[np.float64]]:
    return measure(EnvList(CherryPick, 256), agent, None, seed=2, episodes=256)


def continued(folder: Path) -> dict[int, float]:
    """Continue the first clone with PPO; return mean returns of evaluations by step."""
    manager = StateManager(checkpoint_dir=folder / "clone1", overrides=[*PPO, *settings(folder)])
    train(manager, CherryPick)
    events = EventAccumulator(str(folder / "clone1")).Reload()
    return {event.step: event.value for event in events.Scalars("eval/episodic_reward.mean")}


def mean_and_error(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[str, str]:
    return f"{values.mean():.4f}", f"{values.std() / math.sqrt(len(values)):.4f}"


def as_markdown(
    rows: list[tuple[str, ...]], evals: dict[int, float], shares: dict[int, float], lowest: float
) -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    lines = [
        "# Cloning an agent, and PPO from the clone",
        "",
        f"`python benchmarks/{' '.join([Path(__file__).name, *sys.argv[1:]])}` at commit {commit}; "
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), torch "
        f"{torch.__version__}, numpy {np.__version__}.",
        "",
        "World: CherryPick with 32 cherries (the most is 1.0 on average). Returns: mean of the "
        "first whole episodes of 256 environments, sampled actions, the same episodes for all.",
        f"Recorded: {math.ceil(FRAMES / NUM_ENVS / EPISODE) * EPISODE * NUM_ENVS:,} frames of the "
        f"agent, sampled. Cloned with `configs/cherry_pick.ron` and `{' '.join(CLONE)}`.",
        "",
        "| policy | of the agent's return | return | standard error | accuracy and explained "
        "variance, on test episodes | epochs |",
        "| --- | --- | --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        f"PPO from clone 1 with `{' '.join(PPO)}`: lowest {100 * lowest:.1f}% of its return.",
        "",
        "| frames | return | of the clone's |",
        "| --- | --- | --- |",
        *(f"| {step:,} | {value:.4f} | {shares[step]:.4f} |" for step, value in evals.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
