"""Positions in the coordinates of a reference entity."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from entity_env import CategoricalActionMask, Entity, Observation, ObsSpace
from rogue_net import RogueNet, RogueNetConfig, TranslationConfig
from tests.rogue_net.nets import ACTIONS, batch_of, net_of

SPACE = ObsSpace(
    ["clock"],
    {
        "Ship": Entity(["x", "y", "angle", "ux", "uy"]),
        "Rock": Entity(["size", "y", "x"]),
        "Star": Entity(["x"]),
    },
)
MOVE = {"move": ACTIONS["move"]}
HALF = math.sqrt(0.5)


def seen(
    ships: list[list[float]], rocks: list[list[float]], visible: Any = None, **fields: Any
) -> list[Tensor]:
    """What a network is shown of the rocks of two frames, the second without ships."""
    net = net_of(SPACE, MOVE, translation=TranslationConfig("Ship", ["x", "y"], **fields))
    star = {"Star": [[9.0]]}
    frames = [
        Observation(
            features={"Ship": features, "Rock": rocks, **star},
            global_features=[7.0],
            visible={} if visible is None or not features else {"Ship": visible},
            actions={"move": CategoricalActionMask(actor_types=["Rock"])},
        )
        for features in (ships, [])
    ]
    batch = batch_of(frames, SPACE, MOVE)
    before = batch.features["Rock"].values.clone()
    inputs = net.embedding.inputs(batch)
    assert torch.equal(inputs["Star"], torch.tensor([[9.0, 7.0]] * 2).double())
    assert inputs["Ship"][:, :5].tolist() == batch.features["Ship"].values.tolist()
    assert torch.equal(batch.features["Rock"].values, before)
    return list(inputs["Rock"].split(len(rocks)))


SHIP = [1.0, 2.0, math.pi / 2, 0.0, 1.0]


def test_positions_become_relative_to_the_reference() -> None:
    first, second = seen([SHIP], [[5.0, 4.0, 2.0]])
    torch.testing.assert_close(first, torch.tensor([[5.0, 2.0, 1.0, 7.0]]).double())
    torch.testing.assert_close(second, torch.tensor([[5.0, 4.0, 2.0, 7.0]]).double())


@pytest.mark.parametrize(
    "fields", [{"rotation_angle_feature": "angle"}, {"rotation_vec_features": ["ux", "uy"]}]
)
def test_heading_becomes_the_first_axis(fields: dict[str, Any]) -> None:
    """The ship looks up; a rock two above and one to the right is two ahead, one to the right."""
    first, second = seen([SHIP], [[5.0, 4.0, 2.0]], **fields, add_dist_feature=True)
    torch.testing.assert_close(first, torch.tensor([[5.0, -1.0, 2.0, 7.0, math.sqrt(5)]]).double())
    torch.testing.assert_close(second, torch.tensor([[5.0, 4.0, 2.0, 7.0, math.sqrt(20)]]).double())


def test_several_references_use_their_center() -> None:
    """In any order; their direction is the mean of their directions."""
    other = [3.0, 0.0, 0.0, 1.0, 0.0]
    for ships in ([SHIP, other], [other, SHIP]):
        (first, _) = seen(ships, [[5.0, 4.0, 2.0]], rotation_vec_features=["ux", "uy"])
        # Center (2, 1), halfway between right and up: (0, 3) lies as much ahead as to the left.
        torch.testing.assert_close(first, torch.tensor([[5.0, 3 * HALF, 3 * HALF, 7.0]]).double())


def test_opposite_headings_do_not_rotate() -> None:
    opposite = [1.0, 2.0, 0.0, 0.0, -1.0]
    (first, _) = seen([SHIP, opposite], [[5.0, 4.0, 2.0]], rotation_vec_features=["ux", "uy"])
    torch.testing.assert_close(first, torch.tensor([[5.0, 2.0, 1.0, 7.0]]).double())


def test_invisible_references_are_ignored() -> None:
    """Otherwise the policy could infer their positions."""
    far = [100.0, 100.0, 0.0, 1.0, 0.0]
    (first, _) = seen([SHIP, far], [[5.0, 4.0, 2.0]], visible=[True, False])
    torch.testing.assert_close(first, torch.tensor([[5.0, 2.0, 1.0, 7.0]]).double())
    (first, second) = seen([SHIP, far], [[5.0, 4.0, 2.0]], visible=[False, False])
    torch.testing.assert_close(first, second)


def test_third_axis_is_translated_but_not_rotated() -> None:
    space = ObsSpace(entities={"A": Entity(["x", "y", "z", "angle"]), "B": Entity(["x", "y", "z"])})
    config = TranslationConfig("A", ["x", "y", "z"], rotation_angle_feature="angle")
    net = net_of(space, MOVE, translation=config)
    obs = Observation(
        features={"A": [[0.0, 0.0, 1.0, math.pi / 2]], "B": [[1.0, 0.0, 5.0]]},
        actions={"move": CategoricalActionMask()},
    )
    inputs = net.embedding.inputs(batch_of([obs], space, MOVE))
    torch.testing.assert_close(inputs["B"], torch.tensor([[0.0, -1.0, 4.0]]).double())


def test_output_is_invariant_to_translating_all_positions() -> None:
    """Only the reference's own features tell."""
    net = net_of(SPACE, MOVE, translation=TranslationConfig("Ship", ["x", "y"]))
    rng = np.random.default_rng(0)
    rocks = rng.normal(size=(4, 3))
    positions = []
    for shift in (0.0, 10.0):
        moved = np.array([0, shift, shift])
        obs = Observation(
            features={"Ship": [[shift, shift, 0, 1, 0]], "Rock": rocks + moved},
            global_features=[0.0],
            actions={"move": CategoricalActionMask(actor_types=["Rock"])},
        )
        positions.append(net.embedding.inputs(batch_of([obs], SPACE, MOVE))["Rock"])
    torch.testing.assert_close(positions[0], positions[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"position_features": []}, "position_features: expected names, each once, got \\[\\]"),
        ({"position_features": ["x", "x"]}, "position_features: expected names, each once"),
        ({"rotation_vec_features": ["u"]}, "rotation_vec_features: expected the names of two"),
        (
            {"rotation_vec_features": ["u", "v"], "rotation_angle_feature": "a"},
            "expected one of them, got both",
        ),
        (
            {"position_features": ["x"], "rotation_angle_feature": "a"},
            "position_features: expected two or more to rotate, got \\['x'\\]",
        ),
    ],
)
def test_invalid_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TranslationConfig(**{"reference_entity": "A", "position_features": ["x", "y"], **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reference_entity": "Sun"}, "translation.reference_entity: .*'Ship'.*, got 'Sun'"),
        ({"reference_entity": "Star"}, "translation.position_features: .*Star.*, got \\['y'\\]"),
        ({"rotation_angle_feature": "a"}, "translation.rotation_angle_feature: .*got \\['a'\\]"),
        (
            {"rotation_vec_features": ["ux", "v"]},
            "translation.rotation_vec_features: .*got \\['v'\\]",
        ),
    ],
)
def test_unknown_types_and_features_are_refused(fields: dict[str, Any], message: str) -> None:
    config = TranslationConfig(
        **{"reference_entity": "Ship", "position_features": ["x", "y"], **fields}
    )
    with pytest.raises(ValueError, match=message):
        RogueNet(RogueNetConfig(translation=config), SPACE, MOVE)
