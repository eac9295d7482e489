"""Dependent actions of two units: what to do, to whom, how, and at which pace."""

from typing import Any

import torch

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.ragged import EntityBatch

SPACE = ObsSpace(entities={"Unit": Entity(["x"]), "Aim": Entity(["x"])})
ACTIONS: dict[str, Any] = {
    "how": CategoricalActionSpace(["p", "q", "r"], after="whom"),
    "whom": SelectEntityActionSpace(after="do", when=["heal", "attack"]),
    "do": CategoricalActionSpace(["rest", "heal", "attack", "run"]),
    "pace": CategoricalActionSpace(["slow", "fast"], after="do", when=["run"]),
}
FRAME = Observation(
    features={"Unit": [[0.5], [-1.0]], "Aim": [[0.0], [1.0], [2.0], [3.0]]},
    actions={
        "do": CategoricalActionMask(actor_types=["Unit"], mask=[[True] * 4, [True] * 3 + [False]]),
        "whom": SelectEntityActionMask(
            actor_types=["Unit"],
            actee_types=["Aim"],
            mask=[
                [[True, True, False, False], [False, True, True, True]],
                [[True, False, False, False], [False, False, True, False]],
            ],
        ),
        "how": CategoricalActionMask(actor_types=["Unit"], mask=[[True, True, False], [True] * 3]),
        "pace": CategoricalActionMask(actor_types=["Unit"]),
    },
)


def network(obs_space: Any = SPACE, actions: Any = ACTIONS, **settings: Any) -> RogueNet:
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(d_model=16, **settings), obs_space, actions, {"value": 1})
    with torch.no_grad():  # what was chosen before matters from the start
        for head in net.action_heads.values():
            for parameter in head.parameters():
                parameter.normal_()
    return net


def batch_of(*frames: Observation, actions: Any = ACTIONS) -> EntityBatch:
    return EntityBatch.of(batch_obs(frames, SPACE, actions))
