"""What settings of networks do: a small network is made of other parts, or says something else."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from enn_trainer import RelposEncodingConfig, TranslationConfig
from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from rogue_net import RogueNet, RogueNetConfig
from rogue_net.config import MemoryConfig
from tests.rogue_net.memory_case import episodes, linked, network
from tests.rogue_net.nets import batch_of, net_of

SPACE = ObsSpace(
    entities={
        "Unit": Entity(["x", "y", "angle", "cos", "sin"]),
        "Goal": Entity(["x", "y", "size"]),
    }
)
ACTIONS: dict[str, ActionSpace] = {
    "move": CategoricalActionSpace(["left", "right", "stay"]),
    "pick": SelectEntityActionSpace(),
}


def net_says(**options: Any) -> tuple[dict[str, torch.Size], torch.Tensor]:
    """The shapes of a network's parameters, and what it answers while it learns."""
    rng = np.random.default_rng(0)
    frames = []
    for units in (2, 3, 1):
        unit, angle = 2 * rng.normal(size=(units, 5)), rng.uniform(-3, 3, size=units)
        unit[:, 2], unit[:, 3], unit[:, 4] = angle, np.cos(angle), np.sin(angle)
        features = {"Unit": unit, "Goal": 2 * rng.normal(size=(3, 3))}
        masks = {"move": CategoricalActionMask(), "pick": SelectEntityActionMask()}
        frames.append(Observation(features=features, actions=masks))
    batch = dataclasses.replace(batch_of(frames, SPACE, ACTIONS), keys=np.arange(3))
    net = net_of(SPACE, ACTIONS, **options)
    net.update_input_stats(batch)
    with torch.no_grad():
        said = net.train()(batch).log_probs["move"]
    return {name: p.shape for name, p in net.named_parameters()}, said


def answers_otherwise(before: dict[str, Any], after: dict[str, Any]) -> Callable[[], None]:
    """A network is made of other parts, or says something else with the same parameters."""

    def case() -> None:
        shapes, said = net_says(**before)
        other_shapes, other_said = net_says(**after)
        assert shapes != other_shapes or not torch.allclose(said, other_said)

    return case


def net(**change: Any) -> Callable[[], None]:
    return answers_otherwise({}, change)


def relpos(change: dict[str, Any], **before: Any) -> Callable[[], None]:
    plain = {"extent": [2, 2], "position_features": ["x", "y"], **before}
    return answers_otherwise(
        {"relpos_encoding": RelposEncodingConfig(**plain)},
        {"relpos_encoding": RelposEncodingConfig(**{**plain, **change})},
    )


def translation(change: dict[str, Any]) -> Callable[[], None]:
    plain: dict[str, Any] = {"reference_entity": "Unit", "position_features": ["x", "y"]}
    return answers_otherwise(
        {"translation": TranslationConfig(**plain)},
        {"translation": TranslationConfig(**{**plain, **change})},
    )


def makes_no_difference_as_it_says() -> None:
    plain: dict[str, Any] = {"extent": [2], "position_features": ["x", "y"], "distance": True}
    without, with_it = (
        net_says(
            relpos_encoding=RelposEncodingConfig(**plain, enable_negative_distance_weight_bug=on)
        )
        for on in (False, True)
    )
    assert torch.equal(without[1], with_it[1])


def other_weights_are_drawn() -> None:
    first, other = [
        RogueNet(RogueNetConfig(init=init), SPACE, ACTIONS).transformer.state_dict()
        for init in ("published", "scaled")
    ]
    name = "blocks.0.mlp.0.weight"
    assert 2 * first[name].std() < other[name].std()


RADIAL: dict[str, Any] = {"extent": [4], "radial": True}
PROJECTED: dict[str, Any] = {"value_relpos_projection": True}


def memory(change: dict[str, Any]) -> Callable[[], None]:
    return answers_otherwise({"memory": MemoryConfig()}, {"memory": MemoryConfig(**change)})


def absent_entities_are_forgotten() -> None:
    played = episodes(3)
    nets = [network(of="entity", keep_absent=frames) for frames in (0, 4)]
    with torch.no_grad():
        values = [net(linked(net, played)).values["value"] for net in nets]
    assert not torch.allclose(*values)


def deviations_begin_with_it() -> None:
    space = {"aim": ContinuousActionSpace({"x": (0, 1)})}
    biases = [
        RogueNet(RogueNetConfig(init_std=std), SPACE, space).state_dict()[
            "action_heads./aim.deviation.bias"
        ]
        for std in (0.5, 1.0)
    ]
    assert not torch.equal(*biases)


NETWORK_CASES: dict[str, Callable[[], None]] = {
    # RogueNetConfig
    "RogueNetConfig.embd_pdrop": net(embd_pdrop=0.5),
    "RogueNetConfig.resid_pdrop": net(resid_pdrop=0.5),
    "RogueNetConfig.attn_pdrop": net(attn_pdrop=0.5),
    "RogueNetConfig.n_layer": net(n_layer=1),
    "RogueNetConfig.init": other_weights_are_drawn,
    "RogueNetConfig.n_head": net(n_head=4),
    "RogueNetConfig.d_model": net(d_model=12),
    "RogueNetConfig.pooling": net(pooling="mean"),
    "RogueNetConfig.relpos_encoding": net(
        relpos_encoding=RelposEncodingConfig(extent=[2], position_features=["x"])
    ),
    "RogueNetConfig.d_qk": net(d_qk=6),
    "RogueNetConfig.translation": net(
        translation=TranslationConfig(reference_entity="Unit", position_features=["x"])
    ),
    "RogueNetConfig.precision": answers_otherwise({"d_model": 128}, {"precision": "bfloat16"}),
    "RogueNetConfig.memory": net(memory=MemoryConfig()),
    "RogueNetConfig.init_std": deviations_begin_with_it,
    # MemoryConfig
    "MemoryConfig.of": memory({"of": "frame"}),
    "MemoryConfig.types": memory({"types": ["Unit"]}),
    "MemoryConfig.d_memory": memory({"d_memory": 6}),
    "MemoryConfig.n_layer": memory({"n_layer": 2}),
    "MemoryConfig.keep_absent": absent_entities_are_forgotten,
    "MemoryConfig.inputs": memory({"inputs": ["reward"]}),
    # RelposEncodingConfig
    "RelposEncodingConfig.extent": relpos({"extent": [1, 3]}),
    "RelposEncodingConfig.position_features": relpos({"position_features": ["y", "x"]}),
    "RelposEncodingConfig.scale": relpos({"scale": 3.0}),
    "RelposEncodingConfig.per_entity_values": relpos({"per_entity_values": True}),
    "RelposEncodingConfig.exclude_entities": relpos({"exclude_entities": ["Goal"]}),
    "RelposEncodingConfig.value_relpos_projection": relpos({"value_relpos_projection": True}),
    "RelposEncodingConfig.key_relpos_projection": relpos({"key_relpos_projection": True}),
    "RelposEncodingConfig.per_entity_projections": relpos(
        {"per_entity_projections": True}, **PROJECTED
    ),
    "RelposEncodingConfig.radial": relpos(
        {"radial": True, "distance": False}, extent=[4], distance=True
    ),
    "RelposEncodingConfig.distance": relpos({"distance": True, "radial": False}, **RADIAL),
    "RelposEncodingConfig.rotation_vec_features": relpos(
        {"rotation_vec_features": ["cos", "sin"]}, **RADIAL
    ),
    "RelposEncodingConfig.rotation_angle_feature": relpos(
        {"rotation_angle_feature": "angle"}, **RADIAL
    ),
    "RelposEncodingConfig.interpolate": relpos({"interpolate": True}),
    "RelposEncodingConfig.value_gate": relpos({"value_gate": "sigmoid"}),
    "RelposEncodingConfig.enable_negative_distance_weight_bug": makes_no_difference_as_it_says,
    # TranslationConfig
    "TranslationConfig.reference_entity": translation({"reference_entity": "Goal"}),
    "TranslationConfig.position_features": translation({"position_features": ["x"]}),
    "TranslationConfig.rotation_vec_features": translation(
        {"rotation_vec_features": ["cos", "sin"]}
    ),
    "TranslationConfig.rotation_angle_feature": translation({"rotation_angle_feature": "angle"}),
    "TranslationConfig.add_dist_feature": translation({"add_dist_feature": True}),
}
