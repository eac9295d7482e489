"""Networks in environments with more, or reordered, features and entity types."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
)
from rogue_net import EntityBatch, NetOutput, RelposEncodingConfig
from rogue_net.space_diff import missing_features
from rogue_net.wiring import Wired, adapt_batch
from tests.rogue_net.nets import ACTIONS, SPACE, batch_of, frame, net_of

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


@pytest.mark.slow
@given(larger_spaces(), st.booleans())
def test_network_is_wired_by_name(env_space: ObsSpace, with_positions: bool) -> None:
    """Outputs equal those in the original environment."""
    net = net_of(relpos_encoding=POSITIONS if with_positions else None)
    net.update_input_stats(batch_in(SPACE))
    uniforms = {name: torch.rand(6) for name in ("move", "pick")} | {"plan": torch.rand(4)}
    expected = net(batch_in(SPACE), uniforms=uniforms)
    other, batch = Wired(net, env_space), batch_in(env_space)
    assert_same(other(batch, uniforms=uniforms), expected)
    torch.testing.assert_close(other.values(batch), expected.values)
    assert_same(other(batch, actions=expected.actions), net(batch_in(SPACE), expected.actions))


def test_types_missing_in_the_environment_have_no_entities() -> None:
    larger = ObsSpace(["clock"], {"Ghost": Entity(["fear"]), **SPACE.entities})
    net = net_of(larger)
    adapted = adapt_batch(batch_in(SPACE), SPACE, larger)
    assert_same(Wired(net, SPACE)(batch_in(SPACE)), net(adapted))
    assert adapted.features["Ghost"].values.shape == (0, 1)


def test_statistics_ignore_features_unknown_to_the_network() -> None:
    one, other = net_of(), net_of()
    env_space = ObsSpace(["weather", "clock"], {"Stranger": Entity(["s"]), **SPACE.entities})
    one.update_input_stats(batch_in(SPACE))
    Wired(other, env_space).update_input_stats(batch_in(env_space))
    for (name, a), (_, b) in zip(one.named_buffers(), other.named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_missing_features_are_named() -> None:
    env_space = ObsSpace([], {"Unit": Entity(["y", "z"]), "Goal": Entity(["x"])})
    assert missing_features(env_space, SPACE) == [
        "features of 'Unit' with ['x'], got ['y', 'z']",
        "global features with ['clock'], got []",
    ]
    with pytest.raises(ValueError, match=r"obs_space: expected features of 'Unit' with \['x'\]"):
        Wired(net_of(), env_space)


STRANGE = ObsSpace(["clock"], {"Stranger": Entity(["s"]), **SPACE.entities})


def test_adapt_batch_refuses_actors_of_unknown_types() -> None:
    batch = batch_of(
        [with_strangers({"move": CategoricalActionMask(actor_types=["Stranger"])})], STRANGE
    )
    with pytest.raises(ValueError, match=r"action 'move': expected .* got \['Stranger'\]"):
        adapt_batch(batch, STRANGE, SPACE)


def with_strangers(actions: dict[str, Any], strangers: int = 2) -> Observation:
    """Two units, a goal, and strangers before them."""
    obs = frame(2, 0, 1)
    return Observation(
        features={"Stranger": np.ones((strangers, 1)), **obs.features},
        global_features=obs.global_features,
        actions=actions,
    )


def test_entities_of_unknown_types_are_not_selected_and_choose_uniformly() -> None:
    """Positions: strangers 0 and 1, units 2 and 3, a goal 4."""
    net = net_of()
    actors = ["Stranger", "Unit"]
    masks = {
        "move": CategoricalActionMask(actor_types=actors, mask=[[True, False, True]] * 4),
        "pick": SelectEntityActionMask(
            actor_types=actors, actee_types=["Stranger", "Goal", "Unit"]
        ),
    }
    alone = {"pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Stranger"])}
    batch = batch_of([with_strangers(masks), with_strangers(alone, 3)], STRANGE)
    known_choices = {
        "move": CategoricalActionMask(actor_types=["Unit"], mask=[[True, False, True]] * 2),
        "pick": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Goal", "Unit"]),
    }
    expected = net(batch_of([frame(2, 0, 1, actions=known_choices)], SPACE))
    other = Wired(net, STRANGE)
    got = other(batch)
    moves, picks = (got.log_probs[name].exp() for name in ("move", "pick"))
    assert moves[:2].tolist() == [[0.5, 0, 0.5]] * 2
    torch.testing.assert_close(moves[2:], expected.log_probs["move"].exp())
    assert batch.actions["pick"].actees.lengths.tolist() == [5, 3]
    torch.testing.assert_close(picks[:2], torch.full((2, 5), 0.2).double())
    columns = batch.actions["pick"].actees.values[:5]
    assert not picks[2:4, columns < 2].any()
    torch.testing.assert_close(picks[2:4, columns >= 2], expected.log_probs["pick"].exp())
    torch.testing.assert_close(
        picks[4:], torch.tensor([[1 / 3] * 3 + [0, 0]] * 2, dtype=torch.float64)
    )
    torch.testing.assert_close(other.values(batch)["value"][0], expected.values["value"][0])
    judged = other(batch, got.actions)
    torch.testing.assert_close(judged.logprobs["pick"], got.logprobs["pick"])


@pytest.mark.slow
@given(st.lists(st.tuples(*[st.integers(0, 3)] * 4), min_size=1, max_size=5), st.data())
def test_choices_of_a_wired_network_are_legal(
    counts: list[tuple[int, int, int, int]], data: st.DataObject
) -> None:
    """In any frames, with any masks, strangers before, between or behind the others."""
    order = data.draw(st.permutations([*STRANGE.entities]))
    env_space = ObsSpace(["clock"], {name: STRANGE.entities[name] for name in order})
    frames = []
    for strangers, *others in counts:
        obs = frame(*others)
        types = data.draw(st.permutations(["Unit", "Goal", "Stranger"]))
        n = strangers + others[0] + others[2]
        mask = data.draw(st.lists(st.booleans(), min_size=n * n, max_size=n * n))
        pick = SelectEntityActionMask(actor_types=types, actee_types=types)
        pick.mask = np.array(mask, dtype=np.bool_).reshape(n, n)
        features = {**obs.features, "Stranger": np.ones((strangers, 1))}
        frames.append(
            Observation(
                features={name: features[name] for name in order},
                global_features=[0.0],
                actions={"pick": pick},
            )
        )
    batch = batch_of(frames, env_space)
    pick_of = batch.actions["pick"]
    actors = len(pick_of.actors.values)
    uniforms = {"move": torch.rand(0), "plan": torch.rand(0), "pick": torch.rand(actors)}
    for out in (
        Wired(net_of(), env_space)(batch),
        Wired(net_of(), env_space)(batch, uniforms=uniforms),
        Wired(net_of(), env_space)(batch, generator=torch.Generator().manual_seed(0)),
    ):
        probs = out.log_probs["pick"].exp()
        torch.testing.assert_close(probs.sum(dim=1), torch.ones(actors, dtype=probs.dtype))
        assert out.actions["pick"].shape == (actors,)
        if pick_of.mask is None:
            continue
        rows = np.repeat(pick_of.actees.lengths, pick_of.actors.lengths)
        for i, allowed in enumerate(pick_of.mask.values.split(rows.tolist())):
            assert allowed[out.actions["pick"][i]]
            assert not probs[i, : len(allowed)][~allowed].any()
            assert not probs[i, len(allowed) :].any()


def test_labels_are_matched_by_name_across_orders() -> None:
    """Also where masks forbid some, and where entities take part that the network does not know."""
    net = net_of()
    net.update_input_stats(batch_in(SPACE))
    order = ["stay", "left", "right"]
    turned = {**ACTIONS, "move": CategoricalActionSpace(order)}
    back = [order.index(label) for label in ("left", "right", "stay")]
    mask = np.array([[True, False, True], [True, True, False]])
    for types, strangers in ((["Unit"], 0), (["Unit", "Stranger"], 2)):
        allowed = np.concatenate([mask, np.ones((strangers, 3), dtype=np.bool_)])
        turned_mask = allowed[:, [2, 0, 1]]
        said = []
        for actions, one in ((ACTIONS, allowed), (turned, turned_mask)):
            masks = {"move": CategoricalActionMask(actor_types=types, mask=one)}
            batch = batch_of([with_strangers(masks)], STRANGE, actions)
            said.append((Wired(net, STRANGE, actions)(batch), batch, actions))
        (plain, _, _), (other, batch, _) = said
        torch.testing.assert_close(other.log_probs["move"][:, back], plain.log_probs["move"])
        wired_net = Wired(net, STRANGE, turned)
        judged = wired_net(batch, other.actions)
        torch.testing.assert_close(judged.logprobs["move"], other.logprobs["move"])
        probs = other.log_probs["move"].exp()
        torch.testing.assert_close(
            judged.logprobs["move"].exp(), probs[range(len(probs)), other.actions["move"]]
        )


def test_different_labels_are_refused() -> None:
    more = {**ACTIONS, "move": CategoricalActionSpace(["left", "right"])}
    with pytest.raises(ValueError, match=r"labels of 'move': expected .* in any order, got"):
        Wired(net_of(), SPACE, more)
