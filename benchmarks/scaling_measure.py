"""Measurements of scaling.py: training, and the memory of one rollout.

    python benchmarks/scaling_measure.py JSON

Prints its result as a line of JSON, in a separate process.
"""

import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer import StateManager, Trainer
from enn_trainer.experience.collector import Collector, collect
from enn_trainer.experience.players import AgentPlayer
from entity_env import (
    CategoricalActionSpace,
    Entity,
    ObsSpace,
    Ragged,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
)
from entity_env.examples import Minefield, VecMinefield
from rogue_net import RogueNet, RogueNetConfig

FEATURES = ["a", "b", "c", "d"]
SPACE = ObsSpace(entities={"Unit": Entity(FEATURES)})


class Crowd(VecEnv):
    """Environments with a constant number of units, one acting unit, and no cost per step.

    Args:
        num_envs: number of environments.
        first_env_index: seed of the features.
        num_units: number of units per environment.
    """

    def __init__(self, num_envs: int, first_env_index: int = 0, num_units: int = 16) -> None:
        rng = np.random.default_rng(first_env_index)
        units = rng.standard_normal((num_envs * num_units, len(FEATURES))).astype(np.float32)
        one = np.ones(num_envs, dtype=np.int64)
        self.units = Ragged(units, np.full(num_envs, num_units))
        self.mask = VecCategoricalActionMask(Ragged(np.zeros(num_envs, np.int64), one), None)

    def obs_space(self) -> ObsSpace:
        """Return the space with one type."""
        return SPACE

    def action_space(self) -> Any:
        """Return an action without effect."""
        return {"choose": CategoricalActionSpace(["a", "b"])}

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Return the same frames in every step."""
        n = len(self)
        nothing = np.zeros(n, np.float32), np.zeros(n, np.bool_)
        return VecObs({"Unit": self.units}, {}, {"choose": self.mask}, *nothing, {})

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Return the same frames in every step."""
        return self.reset(obs_filter)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Raise, because there is nothing to render."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.units)


WORLDS: dict[str, Any] = {"Minefield": Minefield, "VecMinefield": VecMinefield, "Crowd": Crowd}


def train(world: str, settings: list[str], seconds: float) -> dict[str, float]:
    """Measure training for `seconds`, after one warm-up update."""
    with tempfile.TemporaryDirectory() as folder:
        manager = StateManager(overrides=[*settings, f"data_dir={folder}"])
        with Trainer(manager, WORLDS[world]) as trainer:
            trainer.step()
            began, first = time.perf_counter(), trainer.state.step
            processor = time.process_time()
            entities = 0.0
            while time.perf_counter() - began < seconds:
                before = trainer.state.step
                metrics = trainer.step()
                entities += metrics["entity_count.mean"] * (trainer.state.step - before)
            took = time.perf_counter() - began
            frames = trainer.state.step - first
            processor = time.process_time() - processor
            share = gpu_share(trainer) if torch.cuda.is_available() else 0.0
    return {
        "frames_s": frames / took,
        "entities_s": entities / took,
        "core_us": 1e6 * processor / frames,
        "gpu_share": share,
    }


def gpu_share(trainer: Trainer, updates: int = 3) -> float:
    """Measure the GPU utilisation over some updates."""
    torch.cuda.synchronize()
    began = time.perf_counter()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(updates):
            trainer.step()
        torch.cuda.synchronize()
        took = time.perf_counter() - began
    busy_us = sum(event.self_device_time_total for event in profile.key_averages())
    return busy_us / 1e6 / took


def memory(num_envs: int, num_units: int, num_entities: int) -> dict[str, float]:
    """Measure the memory of a rollout in megabytes: its data, the increase, and the peak."""
    envs = Crowd(num_envs, num_units=num_units)
    torch.manual_seed(0)
    config = RogueNetConfig(d_model=16, n_layer=1)
    net = RogueNet(config, SPACE, envs.action_space(), {"value": 1}).eval()
    collector = Collector(envs, AgentPlayer(net, seed=0))
    collector.reset(SPACE)
    collect(collector, steps=4, first_frame=0)
    before = resident("VmRSS")
    steps = -(-num_entities // (num_envs * num_units))
    rollout = collect(collector, steps=steps, first_frame=4 * num_envs)
    return {
        "entities": rollout.batch.num_entities(),
        "data_mb": size_of(dataclasses.replace(rollout, next_obs=None)) / 1e6,  # type: ignore[arg-type]
        "after_mb": (resident("VmRSS") - before) / 1e3,
        "peak_mb": (resident("VmHWM") - before) / 1e3,
    }


def size_of(value: Any) -> int:
    """Return the size in bytes of all tensors and arrays in a value."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if dataclasses.is_dataclass(value):
        return sum(size_of(getattr(value, field.name)) for field in dataclasses.fields(value))
    return 0


def resident(what: str) -> float:
    """Return the resident memory of this process in kB of 1,000 bytes, now or at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1.024 * int(next(line.split()[1] for line in lines if line.startswith(what)))


if __name__ == "__main__":
    name, arguments = json.loads(sys.argv[1])
    print(json.dumps({"train": train, "memory": memory}[name](**arguments)))
