"""A network in a world that shows more than it knows, or the same in another order."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import CategoricalActionMask, Entity, Observation, ObsSpace
from rogue_net import EntityBatch, NetOutput, RelposEncodingConfig
from rogue_net.wiring import Wired, missing_features, wired
from tests.rogue_net.nets import SPACE, batch_of, frame, net_of

COUNTS = [(2, 1, 3), (0, 2, 1), (3, 0, 0), (1, 4, 2)]
POSITIONS = RelposEncodingConfig([2, 2], ["x", "y"], interpolate=True)


def batch_in(space: ObsSpace, strangers: Sequence[int] = (2, 0, 1, 3)) -> EntityBatch:
    """The same frames of `SPACE`, as another space shows them."""
    frames = []
    for (units, rocks, goals), num_strangers in zip(COUNTS, strangers, strict=True):
        obs = frame(units, rocks, goals, seed=units, visible={"Rock": [False] * rocks})
        values = {"clock": float(obs.global_features[0])}
        frames.append(
            Observation(
                features={
                    name: np.full((num_strangers, 1), 5.0)
                    if name == "Stranger"
                    else in_order(obs.features[name], SPACE.entities[name].features, entity)
                    for name, entity in space.entities.items()
                },
                global_features=[values.get(name, -3.0) for name in space.global_features],
                actions=obs.actions,
                visible={name: v for name, v in obs.visible.items() if name in space.entities},
            )
        )
    return batch_of(frames, space)


def in_order(rows: object, have: list[str], entity: Entity) -> list[list[float]]:
    """Rows with the features of an entity type, which may have some of its own."""
    return [
        [row[have.index(name)] if name in have else 9.0 for name in entity.features]
        for row in np.asarray(rows)
    ]


@st.composite
def larger_spaces(draw: st.DrawFn) -> ObsSpace:
    """What `SPACE` has and more, in any order."""
    entities = {
        name: Entity(draw(st.permutations([*entity.features, "more"])))
        for name, entity in SPACE.entities.items()
    }
    entities["Stranger"] = Entity(["s"])
    order = draw(st.permutations([*entities]))
    return ObsSpace(
        draw(st.permutations(["clock", "weather"])), {name: entities[name] for name in order}
    )


def assert_same(got: NetOutput, expected: NetOutput) -> None:
    for name in expected.actions:
        torch.testing.assert_close(got.actions[name], expected.actions[name])
        torch.testing.assert_close(got.log_probs[name], expected.log_probs[name])
    torch.testing.assert_close(got.values, expected.values)


@settings(max_examples=25)
@given(larger_spaces(), st.booleans())
def test_network_is_wired_by_name(shown: ObsSpace, with_positions: bool) -> None:
    """It answers as if it were in the world that it was made for."""
    net = net_of(relpos_encoding=POSITIONS if with_positions else None)
    net.update_input_stats(batch_in(SPACE))
    uniforms = {name: torch.rand(6) for name in ("move", "pick")} | {"plan": torch.rand(4)}
    expected = net(batch_in(SPACE), uniforms=uniforms)
    other, batch = Wired(net, shown), batch_in(shown)
    assert_same(other(batch, uniforms=uniforms), expected)
    torch.testing.assert_close(other.values(batch), expected.values)
    assert_same(other(batch, actions=expected.actions), net(batch_in(SPACE), expected.actions))


def test_types_that_the_world_does_not_have_are_absent() -> None:
    known = ObsSpace(["clock"], {"Ghost": Entity(["fear"]), **SPACE.entities})
    net = net_of(known)
    assert_same(Wired(net, SPACE)(batch_in(SPACE)), net(wired(batch_in(SPACE), SPACE, known)))
    assert wired(batch_in(SPACE), SPACE, known).features["Ghost"].values.shape == (0, 1)


def test_statistics_are_of_what_the_network_sees() -> None:
    one, other = net_of(), net_of()
    shown = ObsSpace(["weather", "clock"], {"Stranger": Entity(["s"]), **SPACE.entities})
    one.update_input_stats(batch_in(SPACE))
    Wired(other, shown).update_input_stats(batch_in(shown))
    for (name, a), (_, b) in zip(one.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_features_that_are_not_shown_are_named() -> None:
    shown = ObsSpace([], {"Unit": Entity(["y", "z"]), "Goal": Entity(["x"])})
    assert missing_features(shown, SPACE) == [
        "features of 'Unit' with ['x'], got ['y', 'z']",
        "global features with ['clock'], got []",
    ]
    with pytest.raises(ValueError, match=r"obs_space: expected features of 'Unit' with \['x'\]"):
        Wired(net_of(), shown)


def test_actor_of_a_type_that_the_network_does_not_know_is_an_error() -> None:
    shown = ObsSpace(["clock"], {"Stranger": Entity(["s"]), **SPACE.entities})
    everyone = Observation(
        features={"Stranger": [[1.0]]},
        global_features=[0.0],
        actions={"move": CategoricalActionMask(actor_types=["Stranger"])},
    )
    batch = batch_of([everyone], shown)
    with pytest.raises(ValueError, match=r"action 'move': expected .* got some of \['Stranger'\]"):
        Wired(net_of(), shown)(batch)
