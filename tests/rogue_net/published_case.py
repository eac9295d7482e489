"""Load a golden case: a published network, its inputs and its outputs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from entity_env import (
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from rogue_net.published import from_published, renamed
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor
from rogue_net.relpos import RelposEncodingConfig
from rogue_net.relpos.translate import TranslationConfig
from rogue_net.rogue_net import RogueNet, RogueNetConfig

GOLDEN = Path(__file__).parent.parent / "golden"
NAMES = sorted(p.stem.removeprefix("roguenet_") for p in GOLDEN.glob("roguenet_*.npz"))
"""Names of the golden cases."""
_SPACES = {
    "CategoricalActionSpace": lambda labels: CategoricalActionSpace(labels),
    "GlobalCategoricalActionSpace": lambda labels: GlobalCategoricalActionSpace(labels),
    "SelectEntityActionSpace": lambda labels: SelectEntityActionSpace(),
}


@dataclass
class PublishedCase:
    net: RogueNet
    batch: EntityBatch
    chosen: dict[str, Tensor]
    gradients: dict[str, Tensor]
    expected: dict[str, np.ndarray[Any, Any]]


def load_case(name: str) -> PublishedCase:
    with np.load(GOLDEN / f"roguenet_{name}.npz", allow_pickle=False) as file:
        data = {key: file[key] for key in file.files}
    meta = json.loads(str(data.pop("meta")))
    entities = {name: Entity(features) for name, features in meta["entities"].items()}
    space = ObsSpace(meta["global_features"], entities)
    actions = {name: _SPACES[a[0]](a[1:]) for name, a in meta["action_space"].items()}
    net = RogueNet(_config(meta["config"]), space, actions, {"value": 1}).eval()
    net.load_state_dict(from_published(_tensors(data, "param/")))
    features = {
        key.split("/")[1]: _ragged(data, f"features/{key.split('/')[1]}")
        for key in data
        if key.startswith("features/") and key.endswith("/values")
    }
    visible = {
        key.split("/")[1]: RaggedTensor(
            torch.from_numpy(data[key]).reshape(-1), features[key.split("/")[1]].lengths
        )
        for key in data
        if key.startswith("visible/") and key.endswith("/values")
    }
    batch = EntityBatch(
        features,
        visible,
        {name: _action(data, f"actions/{name}") for name in actions},
        len(features["hero"].lengths),
    )
    return PublishedCase(
        net,
        batch,
        {name: torch.from_numpy(data[f"chosen/{name}"]).reshape(-1) for name in actions},
        renamed(_tensors(data, "grad/")),
        {key.removeprefix("out/"): v for key, v in data.items() if key.startswith("out/")},
    )


def _config(fields: dict[str, Any]) -> RogueNetConfig:
    relpos, translation = fields.pop("relpos_encoding"), fields.pop("translation")
    return RogueNetConfig(
        relpos_encoding=None if relpos is None else RelposEncodingConfig(**relpos),
        translation=None if translation is None else TranslationConfig(**translation),
        **fields,
    )


def _tensors(data: dict[str, np.ndarray[Any, Any]], prefix: str) -> dict[str, Tensor]:
    return {
        key.removeprefix(prefix): torch.from_numpy(value)
        for key, value in data.items()
        if key.startswith(prefix)
    }


def _ragged(data: dict[str, np.ndarray[Any, Any]], key: str) -> RaggedTensor:
    return RaggedTensor(torch.from_numpy(data[f"{key}/values"]), data[f"{key}/lengths"])


def _action(data: dict[str, np.ndarray[Any, Any]], key: str) -> ActionBatch:
    def indices(what: str) -> RaggedTensor:
        rows = _ragged(data, f"{key}/{what}")
        return RaggedTensor(rows.values.reshape(-1), rows.lengths)

    actors = indices("actors")
    mask = data.get(f"{key}/mask")
    return ActionBatch(
        actors,
        None if mask is None else RaggedTensor(torch.from_numpy(mask), actors.lengths),
        indices("actees") if f"{key}/actees/values" in data else None,
    )
