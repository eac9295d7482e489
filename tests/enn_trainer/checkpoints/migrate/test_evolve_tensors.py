"""What an upgrade to another world promises about what a network answers."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from enn_trainer import RelposEncodingConfig, RogueNetConfig, TranslationConfig
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    function_changes,
    upgrade_tensors,
)
from entity_env import CategoricalActionSpace, Entity, ObsSpace
from rogue_net import RogueNet
from rogue_net.config import MemoryConfig
from rogue_net.embedding import TypeEmbedding
from rogue_net.input_norm import InputNorm, Moments
from tests.enn_trainer.checkpoints.migrate.changed_worlds import (
    SIZES,
    Change,
    assert_same_function,
    change_of,
    changes,
    network_of,
    with_removed_at_mean,
)
from tests.rogue_net import memory_case
from tests.rogue_net.nets import ACTIONS, SPACE, batch_of, frame

FRAMES = batch_of([frame(2, 1, 3), frame(0, 2, 1, seed=1), frame(3, 0, 2, seed=2)])
POSITIONED = ObsSpace(
    ["clock", "x"],
    {"Unit": Entity(["x", "y", "angle"]), "Rock": Entity([]), "Goal": Entity(["x", "y"])},
)
EVERYTHING: list[dict[str, Any]] = [
    {"pooling": "meanmax"},
    {
        "relpos_encoding": RelposEncodingConfig(
            [2, 2],
            ["x", "y"],
            per_entity_values=True,
            key_relpos_projection=True,
            value_relpos_projection=True,
            per_entity_projections=True,
            interpolate=True,
            value_gate="sigmoid",
        ),
        "translation": TranslationConfig(
            "Unit", ["x", "y"], rotation_angle_feature="angle", add_dist_feature=True
        ),
    },
    {
        "relpos_encoding": RelposEncodingConfig(
            [4, 3],
            ["x", "y"],
            radial=True,
            distance=True,
            interpolate=True,
            rotation_angle_feature="angle",
            key_relpos_projection=True,
            exclude_entities=["Rock"],
        )
    },
]


@pytest.mark.slow
@settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink takes minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(changes())
def test_upgrade_preserves_outputs_on_old_frames(change: Change) -> None:
    """Several changes at once: names added, removed, renamed, in another order; more blocks."""
    if change.notes:  # an upgrade says where it cannot
        return
    before = with_removed_at_mean(change)(change.frames)
    assert_same_function(change, before, change.new(change.frames_now()))


@pytest.mark.parametrize("with_value_net", [False, True])
@pytest.mark.parametrize("options", EVERYTHING)
def test_another_order_of_all_names_changes_nothing(
    options: dict[str, Any], with_value_net: bool
) -> None:
    """Whatever options the network has: no tensor is overlooked."""
    config = RogueNetConfig(**SIZES, **options)
    old = network_of(config, POSITIONED, ACTIONS, config if with_value_net else None)
    torch.manual_seed(0)
    frames = batch_of([frame(2, 1, 3), frame(1, 2, 1, seed=1)])
    widths = {"Unit": 3, "Rock": 0, "Goal": 2, "__global__": 2}
    features = {
        name: replace(rows, values=torch.randn(len(rows.values), widths[name]).double())
        for name, rows in frames.features.items()
    }
    frames = replace(frames, features=features)
    old.update_input_stats(frames)
    turned = ObsSpace(
        POSITIONED.global_features[::-1],
        {n: Entity(e.features[::-1]) for n, e in reversed(POSITIONED.entities.items())},
    )
    actions = dict(reversed(ACTIONS.items()))
    actions["move"] = CategoricalActionSpace(["stay", "left", "right"])
    change = change_of(old, frames, turned, actions)
    assert change.notes == []
    after = change.new(change.frames_now())
    assert assert_same_function(change, old(frames), after) > 0
    plain = network_of(config, turned, actions, config if with_value_net else None)
    plain.load_state_dict(old.state_dict(), strict=False)
    other = plain(change.frames_now()).values["value"]
    assert not torch.allclose(other, after.values["value"])  # an order that would be seen


def plain_change(obs_space: ObsSpace, actions: Any = ACTIONS, **settings: Any) -> Change:
    old = network_of(RogueNetConfig(**SIZES), SPACE, ACTIONS)
    old.update_input_stats(FRAMES)
    return change_of(old, FRAMES, obs_space, actions, **settings)


def test_new_labels_have_at_most_the_given_probability() -> None:
    more = CategoricalActionSpace(["up", "left", "right", "down", "stay"])
    rules = Rules(new_label_prob=0.1)
    change = plain_change(SPACE, {**ACTIONS, "move": more}, rules=rules)
    probs = change.new(change.frames_now()).log_probs["move"].exp()
    together = probs[:, [0, 3]].sum(dim=1)
    assert together.max() <= 0.1 + 1e-9
    assert together.min() > 0
    with torch.no_grad():
        for parameter in change.old.parameters():
            parameter.zero_()
    equal = change_of(change.old, FRAMES, SPACE, {**ACTIONS, "move": more}, rules)
    probs = equal.new(equal.frames_now()).log_probs["move"].exp()
    torch.testing.assert_close(probs[0, [0, 3]], torch.full((2,), 0.05).double())
    torch.testing.assert_close(probs[0, [1, 2, 4]], torch.full((3,), 0.3).double())


def test_type_can_gain_and_lose_all_features() -> None:
    rocks = {**SPACE.entities, "Rock": Entity(["weight"])}
    change = plain_change(ObsSpace([], rocks))
    assert change.notes == []
    before = with_removed_at_mean(change)(FRAMES)
    assert_same_function(change, before, change.new(change.frames_now()))
    back = change_of(change.new, change.frames_now(), ObsSpace([], SPACE.entities), ACTIONS)
    assert_same_function(back, with_removed_at_mean(back)(back.frames), back.new(back.frames_now()))


def test_new_feature_is_normalised_and_learnt() -> None:
    """Its rows are counted for themselves, whatever was seen of the other features."""
    wider = {**SPACE.entities, "Unit": Entity(["hp", "x", "y"])}
    change = plain_change(ObsSpace(["clock"], wider))
    assert isinstance(change.new, RogueNet)
    embedding = change.new.embedding.by_type["/Unit"]
    assert isinstance(embedding, TypeEmbedding)
    norm: InputNorm = embedding.norm
    assert norm.count.tolist() == [0, 5, 5, 5]
    assert norm.mean[1:].tolist() != [0, 0, 0]
    x = torch.randn(50, 4).double() * 30 + 1000
    norm.merge(Moments.of(x))
    alone = InputNorm(4).double()
    alone.merge(Moments.of(x))
    torch.testing.assert_close(norm(x)[:, 0], alone(x)[:, 0])
    assert not torch.allclose(norm(x)[:, 1], alone(x)[:, 1])


def test_fewer_blocks_and_a_global_entity_are_reported_as_function_changes() -> None:
    fewer = plain_change(SPACE, n_layer=0)
    assert fewer.notes == ["net.n_layer: 1 of 1 blocks are dropped"]
    without = {name: space for name, space in ACTIONS.items() if name != "plan"}
    assert "global features are no longer an entity" in plain_change(SPACE, without).notes[0]


def test_new_positions_of_a_type_are_reported_as_function_changes() -> None:
    config = RogueNetConfig(**SIZES, relpos_encoding=RelposEncodingConfig([2, 2], ["x", "y"]))
    old = network_of(config, SPACE, ACTIONS)
    placed = {**SPACE.entities, "Goal": Entity(["x", "y"])}
    change = change_of(old, FRAMES, ObsSpace(["clock"], placed), ACTIONS)
    assert change.notes == ["net: relative positions of Goal had features [], now ['x', 'y']"]


def test_only_requested_parts_are_loaded() -> None:
    old = network_of(RogueNetConfig(**SIZES), SPACE, ACTIONS)
    old.update_input_stats(FRAMES)
    for part in PARTS:
        fresh = network_of(RogueNetConfig(**SIZES), SPACE, ACTIONS, seed=1)
        tensors = upgrade_tensors(old, fresh, Rules(), [part]).tensors
        same = {
            key for key, tensor in old.state_dict().items() if torch.equal(tensor, tensors[key])
        }
        norms = {key for key in tensors if ".norm." in key}
        heads = {key for key in tensors if key.startswith("regression_heads")}
        expected = {"policy": {*tensors} - norms - heads, "value": heads, "norm": norms}
        assert same == expected[part]


def test_new_label_prob_must_be_a_probability() -> None:
    for bad in (0.0, 1.0, math.nan):
        with pytest.raises(ValueError, match="new_label_prob: expected a number between 0 and 1"):
            Rules(new_label_prob=bad)


def test_adding_memory_preserves_outputs_and_is_reported() -> None:
    torch.manual_seed(0)
    plain = RogueNet(RogueNetConfig(d_model=16, n_layer=1), *memory_case.SPACES, {"value": 1})
    memory = MemoryConfig(inputs=["action", "reward"], n_layer=2)
    fresh = RogueNet(
        RogueNetConfig(d_model=16, n_layer=1, memory=memory), *memory_case.SPACES, {"value": 1}
    )
    for parameter in plain.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    upgrade = upgrade_tensors(plain, fresh, Rules(), PARTS)
    fresh.load_state_dict(upgrade.tensors)
    batch = memory_case.linked(fresh.double().eval(), memory_case.episodes(1))
    with torch.no_grad():
        before, after = plain.double().eval()(batch), fresh(batch)
    for name in memory_case.ACTIONS:
        torch.testing.assert_close(before.log_probs[name], after.log_probs[name])
    torch.testing.assert_close(before.values, after.values)
    why = {moved.key: moved.why for moved in upgrade.moved}
    assert why["memory.to_entities.weight"] == "no effect at first"
    assert function_changes(plain, fresh, Rules()) == []
    assert function_changes(fresh, plain, Rules()) == ["net.memory: removed"]


def test_memory_follows_the_names_of_types_actions_and_labels() -> None:
    old = memory_case.network(of="both", inputs=["action"], keep_absent=3)
    go = CategoricalActionSpace(["u", "l", "new", "r"])
    actions = {"call": memory_case.ACTIONS["call"], "move": go}
    actions["pick"] = memory_case.ACTIONS["pick"]
    space = ObsSpace(["g"], {"Ant": Entity(["x", "y"]), "B": Entity(["z"])})
    fresh = RogueNet(old.config, space, actions, {"value": 1}).double()
    rules = Rules(renamed={("type", "A"): "Ant", ("action", "go"): "move"})
    upgrade = upgrade_tensors(old, fresh, rules, PARTS)
    found, was = upgrade.tensors, old.state_dict()
    assert torch.equal(found["memory.first./Ant"], was["memory.first./A"])
    assert torch.equal(found["memory.choices./pick.weight"], was["memory.choices./pick.weight"])
    rows = found["memory.choices./move.weight"][[1, 3, 0]]
    assert torch.equal(rows, was["memory.choices./go.weight"])
    assert torch.equal(found["memory.cell.weight_hh"], was["memory.cell.weight_hh"])
    kinds = RogueNet(replace(old.config, memory=MemoryConfig(of="entity")), *memory_case.SPACES)
    [change, other] = function_changes(old, kinds, Rules())[:2]
    assert change.startswith("net.memory.of: was both, is now entity")
    assert other.startswith("net.memory.keep_absent: was 3, is now 16")
