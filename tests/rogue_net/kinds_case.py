"""A network with categorical features, and an equal network with one-hot features."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Flag,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Kind,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from entity_env.spaces import GLOBAL
from rogue_net import EntityBatch, RogueNet, RogueNetConfig
from rogue_net.embedding import EntityEmbedding, TypeEmbedding, module_key

COLORS = ["red", "green", "blue"]
MANY = list(map(str, range(300)))
SPACE = ObsSpace(
    global_features=["clock", Kind("season", ["dry", "wet"])],
    entities={
        "Unit": Entity(["x", "y", Kind("color", COLORS), Flag("open")]),
        "Word": Entity([Kind("text", MANY)]),
        "Rock": Entity(["x", "y"]),
        "Air": Entity([]),
    },
)
OWN_ONLY = ObsSpace(  # without global ones, so that there are types without features
    entities={
        "Unit": Entity(["x", "y", Kind("color", COLORS), Flag("open")]),
        "Word": Entity([Kind("text", MANY)]),
        "Rock": Entity(["x", "y"]),
        "Air": Entity([]),
    },
)
ACTIONS: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["left", "right"]),
    "pick": SelectEntityActionSpace(),
    "plan": GlobalCategoricalActionSpace(["wait", "go", "stop"]),
}


def one_hot_space(space: ObsSpace) -> ObsSpace:
    """The space with a number for each label, behind the other numbers."""

    def names(numbers: list[str], kinds: list[Kind]) -> list[str]:
        return [*numbers, *(f"{kind.name}={label}" for kind in kinds for label in kind.labels)]

    entities = {n: Entity(names(e.features, e.kinds)) for n, e in space.entities.items()}
    return ObsSpace([*names(space.global_features, space.global_kinds)], entities)


def one_hot(numbers: np.ndarray, indices: np.ndarray, kinds: list[Kind]) -> np.ndarray:
    columns = [np.eye(len(k.labels))[indices[:, i]] for i, k in enumerate(kinds)]
    return np.concatenate([numbers, *columns], axis=1).astype(np.float32)


@st.composite
def frames(draw: st.DrawFn, space: ObsSpace = SPACE) -> list[Observation]:
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return [frame(rng, space) for _ in range(draw(st.integers(1, 5)))]


def frame(rng: np.random.Generator, space: ObsSpace = SPACE, most: int = 4) -> Observation:
    def rows(n: int, entity: Entity) -> np.ndarray:
        numbers = rng.normal(size=(n, len(entity.features)))
        indices = [rng.integers(len(kind.labels), size=(n, 1)) for kind in entity.kinds]
        return np.concatenate([numbers, *indices], axis=1).astype(np.float32)

    counts = {name: int(rng.integers(0, most + 1)) for name in space.entities}
    visible = rng.random(counts["Rock"]) < 0.5
    return Observation(
        features={name: rows(counts[name], space.entities[name]) for name in space.entities},
        global_features=rows(1, space.global_entity)[0],
        visible={"Rock": visible} if rng.random() < 0.5 else {},
        actions={
            "move": CategoricalActionMask(actor_types=["Unit", "Word"]),
            "pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Word", "Air"]),
            "plan": GlobalCategoricalActionMask(),
        },
    )


def with_one_hot_columns(obs: Observation, space: ObsSpace) -> Observation:
    """Convert an observation to the space with one-hot features."""

    def converted(rows: Any, entity: Entity) -> np.ndarray:
        array, n = np.asarray(rows), len(entity.features)
        return one_hot(array[:, :n], array[:, n:].astype(int), entity.kinds)

    features = {n: converted(rows, space.entities[n]) for n, rows in obs.features.items()}
    shared = converted([obs.global_features], space.global_entity)[0]
    return Observation(
        features=features, global_features=shared, actions=obs.actions, visible=obs.visible
    )


def batch_of(obs: list[Observation], space: ObsSpace = SPACE) -> EntityBatch:
    return EntityBatch.of(batch_obs(obs, space, ACTIONS))


def net_of(space: ObsSpace = SPACE, seed: int = 0, **settings: Any) -> RogueNet:
    torch.manual_seed(seed)
    return RogueNet(RogueNetConfig(**settings), space, ACTIONS, {"value": 1})


def large_labels_case(space: ObsSpace, d_model: int) -> tuple[RogueNet, EntityBatch]:
    """Frames of no entities up to many more of each type than are embedded together."""
    net, rng = net_of(space, d_model=d_model), np.random.default_rng(0)
    batch = batch_of([frame(rng, space, most) for most in (0, 1, 2, 5, 9, 0, 20, 150, 5)], space)
    net.update_input_stats(batch)
    return net, batch


def columns_of(embedding: EntityEmbedding, space: ObsSpace, name: str) -> torch.Tensor:
    """Return the weights of a type for one-hot features, (d_model, columns)."""
    type_embedding = embedding.by_type[module_key(name)]
    assert isinstance(type_embedding, TypeEmbedding)
    own = Entity([]) if name == GLOBAL else space.entities[name]
    weights, shared = type_embedding.linear.weight, space.global_entity
    labels = type_embedding.labels.T if name in embedding.kinds else weights[:, :0]
    own_labels = sum(len(kind.labels) for kind in own.kinds)
    return torch.cat(
        [
            weights[:, : len(own.features)],
            labels[:, :own_labels],
            weights[:, len(own.features) : len(own.features) + len(shared.features)],
            labels[:, own_labels:],
            weights[:, len(own.features) + len(shared.features) :],  # a distance
        ],
        dim=1,
    )


@torch.no_grad()
def one_hot_net(net: RogueNet) -> RogueNet:
    """The network with the same weights that takes one-hot floats."""
    space = net.obs_space
    twin = RogueNet(net.config, one_hot_space(space), ACTIONS, {"value": 1})
    state = net.state_dict()
    for key, tensor in twin.state_dict().items():
        if key in state and state[key].shape == tensor.shape:
            tensor.copy_(state[key])
    for name in net.embedding.types:
        embedding, twin_embedding = (n.embedding.by_type[module_key(name)] for n in (net, twin))
        if isinstance(embedding, TypeEmbedding):
            assert isinstance(twin_embedding, TypeEmbedding)
            twin_embedding.linear.weight.copy_(columns_of(net.embedding, space, name))
    return twin
