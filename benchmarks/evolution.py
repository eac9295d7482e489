"""Returns of a run after a change of its environment, compared with a new run.

    python benchmarks/evolution.py [--frames 40000] [--more 20000] [--seeds 3]

An agent learns TreasureHunt. Then the environment gets a feature (the worth of a treasure), an
entity type (gems) and an action (walk or run). The checkpoint is upgraded by name, evaluated in the
old and in the new game, and trained further in the new one. A second agent learns the new game from
scratch. Returns are over 256 complete episodes with sampled actions, truncated after 100 steps.
"""

import argparse
import math
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from learning_curves import Line, draw, read_curve
from learning_measure import measure

from enn_trainer import StateManager, load_agent, train
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.evolve import evolve
from entity_env import (
    Action,
    ActionSpace,
    Entity,
    EnvList,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.environment import Environment
from entity_env.examples import TreasureHunt

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results"
CONFIG = ROOT / "configs/treasure_hunt.ron"
EPISODES, LIMIT = 256, 100
RELPOS = (
    "net.relpos_encoding.extent=[10, 10]",
    'net.relpos_encoding.position_features=["x_pos", "y_pos"]',
)


class Hunt(TreasureHunt):
    """TreasureHunt, truncated after some steps."""

    def reset(self) -> Observation:
        """Begin an episode."""
        self.steps = 0
        return super().reset()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Take a step."""
        self.steps += 1
        obs = super().act(actions)
        obs.truncated = self.steps >= LIMIT and not obs.done
        return obs


class RicherHunt(Hunt):
    """TreasureHunt with treasures of different worth, gems, and two speeds.

    Args:
        with_news: False for the game of TreasureHunt in the spaces of this environment.
    """

    def __init__(self, with_news: bool = True) -> None:
        super().__init__()
        self.with_news = with_news

    def obs_space(self) -> ObsSpace:
        """Return the entities with gems and worth, in a different order."""
        place = ["x_pos", "y_pos"]
        entities = {"Gem": place, "Treasure": ["worth", *place], "Trap": place}
        return ObsSpace(place, {name: Entity(features) for name, features in entities.items()})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions with a choice of speed."""
        speeds = GlobalCategoricalActionSpace(["walk", "run"])
        return {"speed": speeds, **super().action_space()}

    def reset(self) -> Observation:
        """Begin an episode."""
        obs = super().reset()
        taken = {*self.traps, *self.treasures, (0, 0)}
        cells = [(x, y) for x in range(-5, 6) for y in range(-5, 6) if (x, y) not in taken]
        self.gems = self.rng.sample(cells, 2) if self.with_news else []
        self.worth = {
            place: self.rng.choice([0.5, 1.5]) if self.with_news else 1.0
            for place in self.treasures
        }
        return self._shown(obs, 0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Walk one cell, or run two."""
        reward, steps = 0.0, 1
        if self.with_news:
            speed = actions["speed"]
            assert isinstance(speed, GlobalCategoricalAction)
            steps = 1 + (speed.label == "run")
        for _ in range(steps):
            obs = super().act(actions)
            here = (self.x_pos, self.y_pos)
            if obs.reward:
                reward += self.worth.pop(here)
            if here in self.gems:
                self.gems.remove(here)
                reward += 1.0
            if obs.done:
                break
        return self._shown(obs, reward)

    def _shown(self, obs: Observation, reward: float) -> Observation:
        treasures = [[self.worth[place], *place] for place in self.treasures]
        obs.features = {"Trap": self.traps, "Treasure": treasures, "Gem": list(self.gems)}
        obs.reward = reward
        if self.with_news:
            obs.actions = {**obs.actions, "speed": GlobalCategoricalActionMask()}
        return obs


class NothingNew(RicherHunt):
    """TreasureHunt in the spaces of `RicherHunt`."""

    def __init__(self) -> None:
        super().__init__(with_news=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=40_000, help="in the old environment")
    parser.add_argument("--more", type=int, default=20_000, help="in the new environment")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows, evolved_curves, scratch_curves = [], [], []
    for seed in range(1, options.seeds + 1):
        with tempfile.TemporaryDirectory() as folder:
            row_of_seed, evolved, scratch = run(Path(folder), seed, options.frames, options.more)
        rows.append(row_of_seed)
        evolved_curves.append(evolved)
        scratch_curves.append(scratch)
        print(" | ".join(row_of_seed), flush=True)
        lines = [Line("upgraded", evolved_curves, 0.0), Line("from nothing", scratch_curves, 0.0)]
        (RESULTS / "evolution.svg").write_text(draw({"mean return in the new world": lines}))
        (RESULTS / "evolution.md").write_text(as_markdown(rows, options.frames, options.more))


def run(
    folder: Path, seed: int, frames: int, more: int
) -> tuple[tuple[str, ...], list[list[float]], list[list[float]]]:
    """Train with one seed; return a row of the table, and the curves in the new environment."""
    trained(folder, "old", Hunt, seed, frames)
    old = load_agent(folder / "old").agent
    world = RicherHunt()
    saved = find(folder / "old")
    evolved = evolve(saved, world.obs_space(), world.action_space())
    evolved.save(folder / "evolved")
    before = returns(old, Hunt)
    same = returns(evolved.state.agent, NothingNew)
    at_once = returns(evolved.state.agent, RicherHunt)
    trained(folder, "evolved", RicherHunt, seed, frames + more, resume=True)
    trained(folder, "scratch", RicherHunt, seed, more)
    after = returns(load_agent(folder / "evolved").agent, RicherHunt)
    scratch = returns(load_agent(folder / "scratch").agent, RicherHunt)
    row = (str(seed), *(with_interval(r) for r in (before, same, at_once, after, scratch)))
    curves = [read_curve(folder / name, 1.0) for name in ("evolved", "scratch")]
    return row, [[x - frames, y] for x, y in curves[0]], curves[1]


def trained(
    folder: Path, name: str, env: type[Environment], seed: int, frames: int, resume: bool = False
) -> None:
    overrides = [f"data_dir={folder / f'data-{name}'}", f"total_timesteps={frames}"]
    overrides += ["name=evolution", f"seed={seed}", "optim.anneal_lr=false"]
    if not resume:
        overrides += RELPOS
    train(
        StateManager(
            init_path=None if resume else CONFIG,
            checkpoint_dir=folder / name,
            overrides=overrides,
        ),
        env,
    )


def returns(agent: PPOAgent, env: type[Environment]) -> np.ndarray[Any, np.dtype[np.float64]]:
    return measure(EnvList(env, EPISODES), agent, None, seed=7, episodes=EPISODES)


def with_interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    return f"{values.mean():.3f} ± {1.96 * values.std() / math.sqrt(len(values)):.3f}"


def as_markdown(rows: list[tuple[str, ...]], frames: int, more: int) -> str:
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    heads = [
        "seed",
        f"{frames:,} frames in the old world",
        "upgraded, nothing new shown",
        "upgraded, in the new world",
        f"and {more:,} more frames",
        f"from nothing, {more:,} frames",
    ]
    lines = [
        "# A run with a changed environment",
        "",
        f"`python benchmarks/{' '.join([Path(__file__).name, *sys.argv[1:]])}` at commit {commit}; "
        f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} thread(s), torch "
        f"{torch.__version__}, numpy {np.__version__}.",
        "",
        "World: TreasureHunt (the most is 5), which gets what a treasure is worth, gems, and a "
        "choice between two speeds (the most is 7 on average). `configs/treasure_hunt.ron` with "
        f"`{' '.join(RELPOS)} optim.anneal_lr=false`. Mean return of {EPISODES} whole episodes "
        f"with sampled actions, cut off after {LIMIT} steps, ± 1.96 standard errors.",
        "",
        "| " + " | ".join(heads) + " |",
        "| " + " | ".join("---" for _ in heads) + " |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
        "![learning curves](evolution.svg)",
        "",
        "Blue: upgraded; red: from nothing.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
