"""Recordings of a network that has learnt nothing, and what was played in them."""

from pathlib import Path

import numpy as np
import torch

from enn_trainer.experience.collector import Collector, play
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.recording import Recorder
from entity_env.recording.read_recording import Recording
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_obs import VecObs, take_obs
from rogue_net.config import RogueNetConfig
from rogue_net.ragged import EntityBatch
from rogue_net.rogue_net import RogueNet


class Kept:
    """Watcher that keeps frames, decisions and rewards as they are."""

    def __init__(self) -> None:
        self.frames: list[VecObs] = []
        self.decisions: list[Decisions] = []
        self.outcomes: list[VecObs] = []

    def begin(self, *_: object) -> None:
        return

    def before_step(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, _: int) -> None:
        self.frames.append(take_obs(obs, np.arange(len(obs))))
        self.decisions.append(decisions)

    def after_step(self, obs: VecObs) -> None:
        self.outcomes.append(obs)

    def get_state(self) -> dict[str, object]:
        return {}


def recorded(world: type, path: Path, steps: int, subsample: int = 1) -> tuple[Recording, Kept]:
    """Record four environments, played by a network that has learnt nothing."""
    envs = EnvList(world, 4)
    torch.manual_seed(0)
    spaces = envs.obs_space(), envs.action_space()
    network = RogueNet(RogueNetConfig(d_model=16), *spaces, {"value": 1})
    recorder, kept = Recorder(path, spaces[1], subsample), Kept()
    envs.track()
    collector = Collector(envs, AgentPlayer(network, 1), watchers=[recorder, kept])  # type: ignore[list-item]
    play(collector, spaces[0], steps, seed=3)
    recorder.close()
    return Recording.open(path), kept
