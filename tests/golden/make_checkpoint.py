"""Makes the saves of this version that have to be readable forever: run it before each release.

    python tests/golden/make_checkpoint.py              # those that are missing
    python tests/golden/make_checkpoint.py --replace    # of a version that is not released yet

One is of a world of numbers, in `checkpoints/<version>`, one of a world with kinds, in
`checkpoints_with_kinds/<version>`. With each goes `expected.json`: observations, and what the agent
of the save says to them. It detects change, not error: the numbers are our own.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from enn_trainer import StateManager, load_agent, train
from entity_env import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Flag,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Kind,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.vec.batching import batch_obs
from rogue_net import EntityBatch

CHECKPOINTS = Path(__file__).parent / "checkpoints"
WITH_KINDS = Path(__file__).parent / "checkpoints_with_kinds"

# As much of what a run can have as is small.
SETTINGS = [
    "name=golden",
    "seed=3",
    "total_timesteps=64",
    'stop=["episodic_reward.mean >= 1000"]',
    "cuda=false",
    "rollout.num_envs=4",
    "rollout.steps=8",
    "rollout.processes=1",
    "net.d_model=8",
    "net.n_layer=1",
    "net.d_qk=4",
    "net.relpos_encoding.extent=[2, 2]",
    'net.relpos_encoding.position_features=["x", "y"]',
    'net.relpos_encoding.exclude_entities=["Stone"]',
    "net.relpos_encoding.key_relpos_projection=true",
    "optim.bs=16",
    "optim.lr=step: 0.01@0 lin 0.001@1000",
    "optim.weight_decay=0.01",
    'optim.groups=[(pattern: "*heads.*", lr_factor: 2.0)]',
    'ppo.ent_targets={"move": 0.5}',
    "ppo.reward_scaling=true",
    "ppo.value_loss=hl_gauss",
    "ppo.clip_vloss=false",
    "ppo.value_bins.low=-5",
    "ppo.value_bins.high=5",
    "ppo.value_bins.num_bins=5",
    "eval.episodes=4",
    "eval.interval=32",
]


class Farm(Environment):
    """The world of all these saves. It never changes: older saves are of it as well."""

    def obs_space(self) -> ObsSpace:
        entities = {
            "Sheep": Entity(["x", "y", "wool"]),
            "Wolf": Entity(["x", "y"]),
            "Stone": Entity([]),
        }
        return ObsSpace(global_features=["hour"], entities=entities)

    def action_space(self) -> dict[str, Any]:
        return {
            "move": CategoricalActionSpace(["left", "stay", "right"]),
            "watch": SelectEntityActionSpace(),
            "call": GlobalCategoricalActionSpace(["quiet", "bleat"]),
        }

    def reset(self) -> Observation:
        self.hour = 0
        return observation(plain_frame(self.rng, self.hour), reward=0.0, terminated=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.hour += 1
        move = actions["move"]
        assert isinstance(move, CategoricalAction)
        reward = float(sum(label == "right" for label in move.labels))
        return observation(plain_frame(self.rng, self.hour), reward, terminated=self.hour == 3)


def plain_frame(rng: random.Random, hour: int) -> dict[str, Any]:
    """What a frame shows, as data that JSON holds."""
    sheep, wolves = rng.randint(1, 3), rng.randint(1, 2)
    allowed = [[rng.random() < 0.7, True, rng.random() < 0.7] for _ in range(sheep)]
    return {
        "hour": hour,
        "Sheep": [[round(rng.uniform(-2, 2), 2) for _ in range(3)] for _ in range(sheep)],
        "Wolf": [[round(rng.uniform(-2, 2), 2) for _ in range(2)] for _ in range(wolves)],
        "Stone": rng.randint(0, 2),
        "allowed": allowed if rng.random() < 0.5 else None,
    }


def observation(frame: Mapping[str, Any], reward: float, terminated: bool) -> Observation:
    """A frame as the world shows it."""
    return Observation(
        global_features=[frame["hour"]],
        entities={
            "Sheep": (frame["Sheep"], [f"sheep {i}" for i in range(len(frame["Sheep"]))]),
            "Wolf": frame["Wolf"],
            "Stone": [[]] * frame["Stone"],
        },
        actions={
            "move": CategoricalActionMask(actor_types=["Sheep"], mask=frame["allowed"]),
            "watch": SelectEntityActionMask(actor_types=["Sheep"], actee_types=["Wolf", "Stone"]),
            "call": GlobalCategoricalActionMask(),
        },
        reward=reward,
        terminated=terminated,
    )


COLORS, SHAPES, SEASONS = ["black", "grey", "white"], ["flat", "round"], ["dry", "wet"]


class LabelledFarm(Farm):
    """The same world with labels, which follow from the numbers."""

    def obs_space(self) -> ObsSpace:
        entities = {
            "Sheep": Entity(["x", "y", "wool", Kind("color", COLORS), Flag("shorn")]),
            "Wolf": Entity(["x", "y"]),
            "Stone": Entity([Kind("shape", SHAPES)]),
        }
        return ObsSpace(["hour", Kind("season", SEASONS)], entities)

    def reset(self) -> Observation:
        return labelled(super().reset())

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return labelled(super().act(actions))


def labelled(obs: Observation) -> Observation:
    """An observation of `Farm` with the labels of `LabelledFarm`."""
    sheep: Any = obs.features["Sheep"]
    stones: Any = [[SHAPES[i % 2]] for i in range(len(obs.features["Stone"]))]
    colors = [COLORS[int(100 * abs(x)) % 3] for x, _, _ in sheep]
    obs.features["Sheep"] = [[*row, c, row[2] < 0] for row, c in zip(sheep, colors, strict=True)]
    obs.features["Stone"] = stones
    [hour] = obs.global_features
    obs.global_features = [hour, SEASONS[int(hour) % 2]]
    return obs


def said(
    path: Path,
    frames: list[dict[str, Any]],
    show: Callable[[Observation], Observation] = lambda obs: obs,
) -> list[dict[str, Any]]:
    """What the agent of a save says to frames: its probabilities by action, and its values."""
    agent = load_agent(path)
    answers = []
    for frame in frames:
        shown = show(observation(frame, reward=0.0, terminated=False))
        batch = EntityBatch.of(batch_obs([shown], agent.obs_space, agent.action_space))
        with torch.no_grad():
            out = agent.agent(batch)
        probs = {name: log_probs.exp().tolist() for name, log_probs in out.log_probs.items()}
        answers.append({"probs": probs, "value": out.values["value"].item()})
    return answers


def make(target: Path, world: type[Farm]) -> None:
    """Train for two updates and keep the save, and what its agent says."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        manager = StateManager(overrides=SETTINGS, checkpoint_dir="run")
        train(manager, world)
        rng = random.Random(7)
        frames = [plain_frame(rng, hour) for hour in range(4)]
        show = {"show": labelled} if world is LabelledFarm else {}
        answers = said(Path("run"), frames, **show)
        cases = [{"frame": f, **answer} for f, answer in zip(frames, answers, strict=True)]
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        (save,) = Path("run").glob("step-*64")
        shutil.copytree(save, target / save.name)
        (target / "expected.json").write_text(json.dumps(cases, indent=1) + "\n")


def main() -> None:
    """Make the saves of this version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replace", action="store_true", help="those that are there already")
    options = parser.parse_args()
    folders: dict[Path, type[Farm]] = {CHECKPOINTS: Farm, WITH_KINDS: LabelledFarm}
    targets = {(path / version("enn-trainer")).resolve(): world for path, world in folders.items()}
    missing = {path for path in targets if options.replace or not path.exists()}
    if not missing:
        parser.error("they are there already; a save of a released version never changes")
    for target in sorted(missing):
        make(target, targets[target])
        size = sum(file.stat().st_size for file in target.rglob("*") if file.is_file())
        print(f"wrote {os.path.relpath(target)}: {size} bytes")


if __name__ == "__main__":
    main()
