"""Networks with categorical features equal networks with one-hot features and the same weights."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    CategoricalActionMask,
    Entity,
    Flag,
    GlobalCategoricalActionMask,
    Kind,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    batch_obs,
)
from entity_env.spaces import GLOBAL
from rogue_net import EntityBatch, RelposEncodingConfig, RogueNet, RogueNetConfig
from rogue_net.embedding import TypeEmbedding, module_key
from rogue_net.native import AVAILABLE, backend
from rogue_net.relpos.config import TranslationConfig
from rogue_net.space_diff import missing_features
from rogue_net.wiring import Wired, adapt_batch
from tests.rogue_net.builders import answers
from tests.rogue_net.kinds_case import (
    COLORS,
    OWN_ONLY,
    SPACE,
    batch_of,
    columns_of,
    frames,
    net_of,
    one_hot_net,
    one_hot_space,
    with_one_hot_columns,
)

GRID = RelposEncodingConfig([2, 2], ["x", "y"], scale=0.5, interpolate=True)
SETTINGS: dict[str, dict[str, Any]] = {
    "narrow": {},
    "one layer": {"n_layer": 1, "d_model": 16},
    "without layers": {"n_layer": 0},
    "wide": {"d_model": 80, "n_head": 2, "n_layer": 1},
    "grid": {"relpos_encoding": GRID},
    "translated": {"translation": TranslationConfig("Unit", ["x", "y"], add_dist_feature=True)},
    "pooled": {"pooling": "mean"},
}
PATHS = [False] + [True] * AVAILABLE


@pytest.mark.slow
@pytest.mark.parametrize("space", [SPACE, OWN_ONLY], ids=["globals", "own"])
@pytest.mark.parametrize("name", SETTINGS)
@settings(max_examples=6)
@given(data=st.data())
def test_labels_equal_one_hot_floats(name: str, space: ObsSpace, data: st.DataObject) -> None:
    """The outputs, and the gradients of all that both have, up to the order of sums."""
    net = net_of(space, **SETTINGS[name])
    twin = one_hot_net(net)
    obs = data.draw(frames(space))
    batch = batch_of(obs, space)
    floats = batch_of([with_one_hot_columns(o, space) for o in obs], one_hot_space(space))
    expected, twin_gradient = answers(twin, floats, compiled=False)
    is_compiled = AVAILABLE and name not in ("pooled", "without layers")
    assert (backend.run(net, batch) is not None) == is_compiled
    for compiled in [False] + [True] * is_compiled:
        out, gradients = answers(net, batch, compiled)
        for part in ("logprobs", "entropies", "values"):
            for key, value in getattr(expected, part).items():
                torch.testing.assert_close(getattr(out, part)[key], value, rtol=1e-4, atol=1e-5)
        # The gradient of a label's vector is that of its column.
        changed = deepcopy(net)
        for key, parameter in changed.named_parameters():
            parameter.data = gradients.get(key, torch.zeros_like(parameter))
        for key, gradient in twin_gradient.items():
            types = net.embedding.types
            one = next((n for n in types if f".{module_key(n)}.linear.weight" in key), "")
            mine = columns_of(changed.embedding, space, one) if one else gradients[key]
            torch.testing.assert_close(mine, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("compiled", PATHS)
def test_labels_of_invisible_entities_affect_only_values(compiled: bool) -> None:
    net, outputs = net_of(n_layer=1), []
    torch.nn.init.normal_(net.regression_heads["/value"].weight)
    for color, text in (("red", "7"), ("blue", "7"), ("red", "3")):
        obs = Observation(
            features={"Unit": [[1.0, 2.0, color, True]], "Word": [[text]], "Rock": [[0.0, 1.0]]},
            global_features=[0.5, "wet"],
            visible={"Unit": [False]},
            actions={
                "move": CategoricalActionMask(actor_types=["Word"]),
                "pick": SelectEntityActionMask(actor_types=["Word"], actee_types=["Rock"]),
                "plan": GlobalCategoricalActionMask(),
            },
        )
        outputs.append(answers(net, batch_of([obs]), compiled)[0])
    hidden, other, seen = outputs
    for name in ("move", "plan"):
        assert torch.equal(other.log_probs[name], hidden.log_probs[name])
        assert not torch.equal(seen.log_probs[name], hidden.log_probs[name])
    assert not torch.equal(other.values["value"], hidden.values["value"])


@given(frames(), st.randoms(use_true_random=False))
@settings(max_examples=10)
def test_embedding_is_invariant_to_the_order_of_entities(
    obs: list[Observation], random: Any
) -> None:
    net = net_of(n_layer=1)
    shuffled = []
    for one in obs:
        order = list(range(len(one.features["Word"])))
        random.shuffle(order)
        features = {**one.features, "Word": np.asarray(one.features["Word"])[order]}
        shuffled.append(
            Observation(
                features=features,
                global_features=one.global_features,
                actions=one.actions,
                visible=one.visible,
            )
        )
    expected, got = (net.values(batch_of(o))["value"] for o in (obs, shuffled))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


@given(frames(), frames())
@settings(max_examples=10)
def test_batches_concatenate_select_and_slice_labels(
    some: list[Observation], others: list[Observation]
) -> None:
    joined = EntityBatch.cat([batch_of(some), batch_of(others)])
    whole = batch_of([*some, *others])
    order = np.arange(len(some) + len(others))[::-1].copy()
    backwards = batch_of([*some, *others][::-1])
    for got, expected in (
        (joined, whole),
        (whole.take(order), backwards),
        (whole.slice(slice(len(some), len(order))), batch_of(others)),
    ):
        assert got.kinds.keys() == expected.kinds.keys() == {"Unit", "Word", GLOBAL}
        for name, rows in expected.kinds.items():
            assert torch.equal(got.kinds[name].values, rows.values)
            assert got.kinds[name].lengths.tolist() == rows.lengths.tolist()
    assert whole.kinds["Unit"].values.dtype == torch.uint8
    assert whole.kinds["Word"].values.dtype == torch.int16


def test_labels_do_not_enter_the_input_statistics() -> None:
    net = net_of()
    obs = [Observation(features={"Unit": [[1.0, 2.0, "red", True]]}, global_features=[0, "wet"])]
    net.update_input_stats(batch_of(obs))
    sizes = {}
    for name in net.embedding.types:
        embedding = net.embedding.by_type[module_key(name)]
        assert isinstance(embedding, TypeEmbedding)
        sizes[name] = len(embedding.norm.mean)
    assert sizes == {"Unit": 3, "Word": 1, "Rock": 3, "Air": 1, GLOBAL: 1}


def test_initial_weights_without_categorical_features_are_unchanged() -> None:
    """From the same generator, in the same order and under the same names."""
    net = net_of(one_hot_space(OWN_ONLY))
    assert not [key for key in net.state_dict() if "labels" in key]
    torch.manual_seed(0)
    embedding = net.embedding.by_type[module_key("Unit")]
    assert isinstance(embedding, TypeEmbedding)
    first = torch.nn.Linear(2 + 3 + 2, 32)
    assert torch.equal(embedding.linear.weight, first.weight)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"relpos_encoding": RelposEncodingConfig([2, 2], ["x", "color"])}, "relpos_encoding.pos"),
        ({"translation": TranslationConfig("Unit", ["color"])}, "translation.position_features"),
        (
            {"translation": TranslationConfig("Unit", ["x", "y"], rotation_angle_feature="open")},
            "translation.rotation_angle_feature",
        ),
        ({"relpos_encoding": RelposEncodingConfig([2, 2], ["x", "season"])}, "relpos_encoding.pos"),
    ],
)
def test_categorical_position_feature_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*: expected numbers, got .* is a kind of"):
        net_of(**settings)


# The same world in another order, with a kind and a type that the network does not know.
OTHER = ObsSpace(
    global_features=[Flag("new"), Kind("season", ["wet", "dry"])],
    entities={
        "Rock": Entity(["y", "x", Flag("wet")]),
        "Word": Entity([Kind("text", ["7", "3"])]),
        "Unit": Entity(["y", "x", Flag("open"), Kind("color", ["blue", "red"])]),
    },
)
KNOWN = ObsSpace([Kind("season", ["dry", "wet"])], SPACE.entities)


def test_labels_are_matched_by_name() -> None:
    assert missing_features(OTHER, KNOWN) == []
    shown = Observation(
        features={
            "Rock": [[2.0, 1.0, True]],
            "Word": [["7"], ["3"]],
            "Unit": [[2.0, 1.0, True, "blue"], [4.0, 3.0, False, "red"]],
        },
        global_features=[True, "dry"],
    )
    network_obs = Observation(
        features={
            "Rock": [[1.0, 2.0]],
            "Word": [["7"], ["3"]],
            "Unit": [[1.0, 2.0, "blue", True], [3.0, 4.0, "red", False]],
        },
        global_features=["dry"],
    )
    batches = [
        EntityBatch.of(batch_obs([o], s, {})) for o, s in ((shown, OTHER), (network_obs, KNOWN))
    ]
    adapted, expected = adapt_batch(batches[0], OTHER, KNOWN), batches[1]
    for name, rows in expected.kinds.items():
        assert adapted.kinds[name].values.tolist() == rows.values.tolist(), name
    torch.manual_seed(0)
    net = RogueNet(RogueNetConfig(), KNOWN, {}, {"value": 1})
    value = Wired(net, OTHER, {}).values(batches[0])["value"]
    torch.testing.assert_close(value, net.values(expected)["value"])


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (Entity(["x", "y", Flag("open")]), r"features of 'Unit' with the kinds \['color'\]"),
        (Entity(["x", "y", "color", Flag("open")]), r"with the kinds \['color'\]"),
        (Entity(["x", Flag("y"), Kind("color", COLORS), Flag("open")]), r"with \['y'\]"),
        (
            Entity(["x", "y", Kind("color", ["red", "black"]), Flag("open")]),
            r"'Unit': labels of 'color' among \['red', 'green', 'blue'\], got \['black'\]",
        ),
    ],
)
def test_unknown_labels_are_refused_by_name(unit: Entity, message: str) -> None:
    shown = ObsSpace(entities={"Unit": unit})
    net = RogueNet(RogueNetConfig(), OWN_ONLY, {}, {"value": 1})
    with pytest.raises(ValueError, match=message):
        Wired(net, shown, {})
