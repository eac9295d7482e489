"""Frames with changing and invisible entities, and networks with memory run step by step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from entity_env import (
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    Ragged,
    SelectEntityActionSpace,
)
from entity_env.spaces import GLOBAL, ActionSpace
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.answer import NetOutput
from rogue_net.config import MemoryConfig
from rogue_net.memory import memory_rows
from rogue_net.past import NO_KEYS, Past, link_rows
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.relpos.config import RelposEncodingConfig

SPACE = ObsSpace(["g"], {"A": Entity(["x", "y"]), "B": Entity(["z"])})
ACTIONS: dict[str, ActionSpace] = {
    "go": CategoricalActionSpace(["l", "r", "u"]),
    "pick": SelectEntityActionSpace(),
    "call": GlobalCategoricalActionSpace(["p", "q"]),
}


SPACES = SPACE, ACTIONS


class Episodes(NamedTuple):
    """T steps of B environments.

    Attributes:
        frames: of each step.
        begun: (T, B) bool, an episode begins in that frame.
        reward: (T, B) float32, of the step before.
    """

    frames: list[EntityBatch]
    begun: Any
    reward: Any

    @property
    def together(self) -> EntityBatch:
        return EntityBatch.cat(self.frames)


def network(seed: int = 1, d_model: int = 16, has_relpos: bool = False, **memory: Any) -> RogueNet:
    """A network in which nothing is zero, in float64."""
    torch.manual_seed(seed)
    relpos = RelposEncodingConfig([3, 3], ["x", "y"], scale=0.5, per_entity_values=True)
    config = RogueNetConfig(
        d_model=d_model,
        n_layer=1,
        relpos_encoding=relpos if has_relpos else None,
        memory=MemoryConfig(**memory),
    )
    net = RogueNet(config, SPACE, ACTIONS, {"value": 1}).double()
    for parameter in net.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    return net.eval()


def episodes(seed: int, steps: int = 6, envs: int = 3, hides: bool = True) -> Episodes:
    """Random frames; B may be invisible, A acts on A."""
    rng = np.random.default_rng(seed)
    frames = [_frames(rng, envs, hides) for _ in range(steps)]
    begun = rng.random((steps, envs)) < 0.2
    begun[0] = True
    return Episodes(frames, begun, rng.normal(size=(steps, envs)).astype(np.float32))


def _frames(rng: np.random.Generator, envs: int, hides: bool) -> EntityBatch:
    counts = {"A": rng.integers(0, 4, envs), "B": rng.integers(0, 4, envs)}
    numbers = {n: [rng.permutation(5)[:k] for k in counts[n].tolist()] for n in counts}
    one, total = np.ones(envs, np.int64), counts["A"] + counts["B"]

    def rows(name: str, width: int) -> RaggedTensor:
        lengths = one if name == GLOBAL else counts[name]
        return RaggedTensor(torch.from_numpy(rng.normal(size=(lengths.sum(), width))), lengths)

    positions = np.concatenate([np.arange(k) for k in counts["A"].tolist()])
    actors = RaggedTensor(torch.from_numpy(positions.astype(np.int64)), counts["A"])
    seen = torch.from_numpy(rng.random(int(counts["B"].sum())) < 0.6)
    return EntityBatch(
        {"A": rows("A", 2), "B": rows("B", 1), GLOBAL: rows(GLOBAL, 1)},
        {"B": RaggedTensor(seen, counts["B"])} if hides else {},
        {
            "go": ActionBatch(actors),
            "pick": ActionBatch(actors, None, actors),
            "call": ActionBatch(RaggedTensor(torch.from_numpy(total), one)),
        },
        envs,
        identity={
            n: Ragged(np.concatenate(of_type).astype(np.int64), counts[n])
            for n, of_type in numbers.items()
        },
    )


def step_by_step(net: RogueNet, played: Episodes) -> list[NetOutput]:
    """Act in one frame after the other, with random numbers of a function of the step."""
    remembering = net.remembering
    assert remembering is not None
    assert net.memory is not None
    keys, states = NO_KEYS, torch.zeros(0, net.memory.width, dtype=torch.float64)
    outs = []
    for t, (frames, begun) in enumerate(zip(played.frames, played.begun, strict=True)):
        rows, n = memory_rows(frames, remembering), frames.num_frames
        now = np.zeros(n, np.int64)
        links = link_rows(rows, np.arange(n), now, begun, keys, remembering.keep_absent)
        past = Past.of(rows, links, now, _rewards(played)[t], states)
        generator = torch.Generator().manual_seed(t)
        uniforms = {
            name: torch.rand(len(action.actors.values), generator=generator)
            for name, action in frames.actions.items()
        }
        with torch.no_grad():
            outs.append(net(replace(frames, past=past), uniforms=uniforms))
        memory = outs[-1].memory
        assert memory is not None
        states = torch.cat([memory, states])[torch.from_numpy(links.final)]
        keys = links.final_keys
    return outs


def linked(net: RogueNet, played: Episodes) -> EntityBatch:
    """All frames with their past, one sequence an environment."""
    steps, envs = played.begun.shape
    batch, remembering = played.together, net.remembering
    assert remembering is not None
    time, column = np.repeat(np.arange(steps), envs), np.tile(np.arange(envs), steps)
    rows = memory_rows(batch, remembering)
    begun = played.begun.reshape(-1)
    links = link_rows(rows, column, time, begun, NO_KEYS, remembering.keep_absent)
    rewards = _rewards(played).reshape(-1)
    return replace(batch, past=Past.of(rows, links, time, rewards, torch.zeros(0, 0)))


def _rewards(played: Episodes) -> Any:
    return np.where(played.begun, 0, played.reward).astype(np.float32)


def chosen_in(outs: Sequence[NetOutput]) -> dict[str, Tensor]:
    """The choices of all steps."""
    return {name: torch.cat([out.actions[name] for out in outs]) for name in outs[0].actions}
