"""Labels are matched by name: reordered, added, removed and renamed ones keep what was learnt."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import ConfigError, RogueNetConfig
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS, Rules, read_renames
from enn_trainer.checkpoints.migrate.evolve_tensors import (
    axes_of,
    upgrade_moment,
    upgrade_tensors,
)
from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Flag,
    Kind,
    Observation,
    ObsSpace,
    batch_obs,
)
from entity_env.spaces import Spaces
from rogue_net import EntityBatch, RogueNet
from rogue_net.embedding import FeaturelessEmbedding, TypeEmbedding, module_key
from rogue_net.space_diff import diff_spaces
from tests.enn_trainer.checkpoints.migrate.changed_worlds import SIZES, network_of
from tests.strategies import some_of

ACTIONS: Any = {"do": CategoricalActionSpace(["a", "b"])}
CONFIG = RogueNetConfig(**SIZES)
RENAMED = {
    ("type", "Key"): "Token",
    ("feature", "Key", "color"): "colour",
    ("label", "Key", "color", "red"): "crimson",
    ("global", "season"): "time of year",
    ("label", "__global__", "season", "dry"): "summer",
}
OLD = ObsSpace(
    ["t", Kind("season", ["dry", "wet"])],
    {
        "Key": Entity(["x", Kind("color", ["red", "green", "blue"]), Flag("open")]),
        "Word": Entity([Kind("text", ["a", "b"])]),
        "Wall": Entity(["x"]),
        "Air": Entity([]),
    },
)


def network(space: ObsSpace, seed: int = 0) -> RogueNet:
    net = network_of(CONFIG, space, ACTIONS, seed=seed)
    assert isinstance(net, RogueNet)
    return net


def upgraded(old: RogueNet, space: ObsSpace, rules: Rules | None = None) -> RogueNet:
    new = network(space, seed=1)
    new.load_state_dict(upgrade_tensors(old, new, rules or Rules(), PARTS).tensors)
    return new


def batch_of(space: ObsSpace, features: Any, shared: Any) -> EntityBatch:
    mask = CategoricalActionMask(actor_types=[*features])
    obs = Observation(features=features, global_features=shared, actions={"do": mask})
    return EntityBatch.of(batch_obs([obs], space, ACTIONS))


def assert_same(old: RogueNet, before: EntityBatch, new: RogueNet, now: EntityBatch) -> None:
    one, other = old(before), new(now)
    torch.testing.assert_close(other.values["value"], one.values["value"])
    torch.testing.assert_close(other.log_probs["do"], one.log_probs["do"])


def rows_of_labels(net: RogueNet, name: str) -> torch.Tensor:
    embedding = net.embedding.by_type[module_key(name)]
    assert isinstance(embedding, TypeEmbedding)
    return embedding.labels.detach()


@pytest.mark.slow
@given(st.data())
def test_outputs_are_preserved_for_common_categories(data: st.DataObject) -> None:
    """Kinds and labels reordered, added, removed and renamed at once.

    Where a kind is removed, entities are what they were with the mean of its labels.
    """
    draw = data.draw
    rules = Rules({name: new for name, new in RENAMED.items() if draw(st.booleans())})
    renamed, _ = rules.spaces(Spaces(OLD, {}))

    def changed(kinds: list[Kind]) -> list[Kind]:
        kept = draw(some_of(kinds)) if draw(st.booleans()) else kinds
        own = [
            Kind(k.name, draw(st.permutations([*_some(draw, k.labels), *draw(some_of(["new"]))])))
            for k in kept
        ]
        return draw(st.permutations([*own, *draw(some_of([Flag("fresh")]))]))

    types = {
        name: Entity(entity.features, changed(entity.kinds))
        for name, entity in renamed.entities.items()
    }
    order = draw(st.permutations([*types]))
    space = ObsSpace(["t"], {n: types[n] for n in order}, changed(renamed.global_kinds))
    old = network(OLD)
    new = upgraded(old, space, rules)

    # One frame of both worlds: its labels are those that both have.
    def kinds_of(own: str, entity: Entity, now: Entity) -> tuple[list[Any], list[Any]]:
        before, after = [], {}
        for kind in entity.kinds:
            new_kind = rules._renamed(own, kind)
            known = next((k for k in now.kinds if k.name == new_kind.name), None)
            left = new_kind.labels if known is None else [*{*new_kind.labels} & {*known.labels}]
            label = draw(st.sampled_from(sorted(left)))
            before.append(kind.labels[new_kind.labels.index(label)])
            after[new_kind.name] = label
        return before, [after.get(k.name, draw(st.sampled_from(k.labels))) for k in now.kinds]

    features, features_now = {}, {}
    for name, entity in OLD.entities.items():
        now = space.entities[rules.new("type", name)]
        pairs = [kinds_of(name, entity, now) for _ in range(2)]
        features[name] = [[0.5] * len(entity.features) + before for before, _ in pairs]
        features_now[rules.new("type", name)] = [[0.5] * len(now.features) + x for _, x in pairs]
    before, after = kinds_of("__global__", OLD.global_entity, space.global_entity)
    frames = batch_of(OLD, features, [0.25, *before])
    order_of_actors = {name: features_now[name] for name in features_now}
    frames_now = batch_of(space, order_of_actors, [0.25, *after])
    expected = deepcopy(old)
    _set_removed_to_means(expected, new, rules)
    one, other = expected(frames), new(frames_now)
    torch.testing.assert_close(other.values["value"], one.values["value"])
    if [*features_now] == [n for n in space.entities if n in features_now]:
        torch.testing.assert_close(other.log_probs["do"], one.log_probs["do"])


def _some(draw: Any, labels: list[str]) -> list[str]:
    return draw(some_of(labels).filter(len)) if draw(st.booleans()) else labels  # type: ignore[no-any-return]


@torch.no_grad()
def _set_removed_to_means(old: RogueNet, new: RogueNet, rules: Rules) -> None:
    """Give all labels of a removed kind their mean."""
    for name, kinds in old.embedding.kinds.items():
        first, known = 0, {k.name for k in new.embedding.kinds.get(rules.new("type", name), [])}
        num_own = len(kinds) - len(old.obs_space.global_kinds)
        for i, kind in enumerate(kinds):
            rows = rows_of_labels(old, name)[first : first + len(kind.labels)]
            first += len(kind.labels)
            if rules._renamed(name if i < num_own else "__global__", kind).name not in known:
                rows[:] = rows.mean(dim=0)


def test_a_new_label_starts_as_the_mean_of_the_others() -> None:
    """Of its own kind: as an entity of a label that is not known would best be taken for."""
    old = network(OLD)
    space = ObsSpace(
        ["t", Kind("season", ["dry", "wet"])],
        {"Key": Entity(["x", Kind("color", ["blue", "new", "red"]), Flag("open")])},
    )
    got, had = rows_of_labels(upgraded(old, space), "Key"), rows_of_labels(old, "Key")
    mean = had[[2, 0]].mean(dim=0)
    torch.testing.assert_close(got, torch.stack([had[2], mean, had[0], *had[3:]]))


def test_a_new_categorical_feature_has_no_effect() -> None:
    old = network(OLD)
    space = deepcopy(OLD)
    space.entities["Wall"] = Entity(["x", Kind("stuff", ["stone", "wood"])])
    space.global_kinds.append(Kind("weather", ["rain", "sun", "wind"]))
    new = upgraded(old, space)
    assert not rows_of_labels(new, "Wall")[:2].any()
    for stuff, weather in (("stone", "rain"), ("wood", "wind")):
        before = batch_of(OLD, {"Wall": [[1.0]], "Word": [["b"]]}, [0.5, "wet"])
        now = batch_of(space, {"Wall": [[1.0, stuff]], "Word": [["b"]]}, [0.5, "wet", weather])
        assert_same(old, before, new, now)


SIMPLE = {"Wall": Entity(["x"]), "Air": Entity([]), "Word": Entity([Kind("text", ["a", "b"])])}


def test_types_gain_and_lose_their_only_feature() -> None:
    old = network(ObsSpace(entities=SIMPLE))
    space = ObsSpace(
        entities={
            "Wall": Entity(["x", Flag("new")]),
            "Air": Entity([Flag("new")]),
            "Word": Entity(["size", Kind("text", ["b", "a"])]),
        }
    )
    new = upgraded(old, space)
    before = batch_of(old.obs_space, {"Wall": [[2.0]], "Air": [[]], "Word": [["a"]]}, [])
    for flag in (True, False):
        rows = {"Wall": [[2.0, flag]], "Air": [[flag]], "Word": [[7.0, "a"]]}
        assert_same(old, before, new, batch_of(space, rows, []))
    # And back: the number was at its mean, and the kind of Word becomes the mean of its labels.
    bare = ObsSpace(entities={"Wall": Entity(["x"]), "Air": Entity([]), "Word": Entity([])})
    last = upgraded(new, bare)
    words = last.embedding.by_type[module_key("Word")]
    assert isinstance(words, FeaturelessEmbedding)
    with torch.no_grad():
        of_words = new.embedding.by_type[module_key("Word")]
        assert isinstance(of_words, TypeEmbedding)
        hidden = of_words.linear.bias + of_words.labels.mean(dim=0)
        torch.testing.assert_close(words.vector[0], of_words.layer_norm(hidden.relu()))
    empty = batch_of(bare, {"Wall": [[2.0]]}, [])
    assert_same(old, batch_of(old.obs_space, {"Wall": [[2.0]]}, []), last, empty)


def test_moments_move_with_labels() -> None:
    old = network(OLD)
    space = ObsSpace(entities={"Word": Entity([Kind("text", ["c", "b", "a"])])})
    upgrade = upgrade_tensors(old, network(space), Rules(), PARTS)
    key = f"embedding.by_type.{module_key('Word')}.labels"
    source = upgrade.sources[key]
    moment = torch.arange(4.0)[:, None].expand(4, 8)  # a, b, dry, wet
    parameter = old.get_parameter(key)
    moved = upgrade_moment("exp_avg", moment, parameter, source)
    assert moved is not None
    assert moved[:, 0].tolist() == [0.0, 1.0, 0.0]


def test_every_row_of_labels_has_a_name() -> None:
    axes = axes_of(network(OLD))[f"embedding.by_type.{module_key('Key')}.labels"]
    assert axes.slices[0] == [
        *(("label", "Key", "color", label) for label in ("red", "green", "blue")),
        *(("label", "Key", "open", label) for label in ("False", "True")),
        *(("label", "__global__", "season", label) for label in ("dry", "wet")),
    ]


def test_renames_are_read() -> None:
    texts = [
        *("Key=Token", "Key.color=colour", "label:Key.color.red=crimson"),
        *("global:season=time of year", "label:global.season.dry=summer"),
    ]
    assert read_renames(texts, Spaces(OLD, ACTIONS)) == RENAMED
    renamed, _ = Rules(RENAMED).spaces(Spaces(OLD, {}))
    assert renamed.entities["Token"].kinds[0] == Kind("colour", ["crimson", "green", "blue"])
    assert renamed.global_kinds == [Kind("time of year", ["summer", "wet"])]
    Rules(RENAMED).check_new_names(Spaces(renamed, ACTIONS))
    with pytest.raises(ConfigError, match=r"did you mean label:Key.color.red"):
        read_renames(["label:Key.color.rde=crimson"], Spaces(OLD, ACTIONS))
    with pytest.raises(ConfigError, match=r"label:Key.color.red=crimson.* blue, green, red"):
        Rules({("label", "Key", "color", "red"): "crimson"}).check_new_names(Spaces(OLD, ACTIONS))
    with pytest.raises(ConfigError, match="two names become one"):
        Rules({("label", "Key", "color", "red"): "blue"}).spaces(Spaces(OLD, {}))


def test_space_differences_name_labels() -> None:
    space = ObsSpace(
        ["t", "season"],
        {
            "Key": Entity(["x", Flag("open"), Kind("color", ["green", "red", "black"])]),
            "Word": Entity([Kind("text", ["b", "a"])]),
            "Wall": Entity(["x"]),
            "Air": Entity([]),
        },
    )
    diff = diff_spaces(Spaces(OLD, {}), Spaces(space, {}))
    assert diff.changed == [
        "global features: season became a number",
        "labels of Key.color: added ['black'], removed ['blue'] (perhaps blue renamed to black)",
    ]
    assert diff.reordered == [
        "features of Key: reordered ['x', 'color', 'open'] to ['x', 'open', 'color']",
        "labels of Key.color: reordered ['red', 'green'] to ['green', 'red']",
        "labels of Word.text: reordered ['a', 'b'] to ['b', 'a']",
    ]
    assert diff.reordered_labels == []
