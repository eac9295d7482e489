"""Fields of observations as entities and global features."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st

from entity_env import InvalidObservation, InvalidSpace
from entity_env.adapters import row_readers, space_fields
from entity_env.adapters.mapping import FieldMap, Globals, Place, Rows
from entity_env.adapters.observation_reader import Frame, ObservationReader
from tests.entity_env.adapters.observation_spaces import Space, any_space, box
from tests.entity_env.adapters.worlds import SEEN_FROM_ME, VIEW


def read(space: Space, value: Any, mapping: FieldMap | None = None) -> Frame:
    return ObservationReader(space, mapping or FieldMap()).read(value)


@given(any_space(), st.integers(0, 2**31 - 1))
def test_inferred_features_match_the_space(space: Space, seed: int) -> None:
    """Each number is read once; one-hot columns of a choice sum to 1."""
    space.seed(seed)
    reader = ObservationReader(space, FieldMap())
    for _ in range(3):
        value = space.sample()
        frame = reader.read(value)
        assert set(frame.features) == set(reader.obs_space.entities)
        for name, entity in reader.obs_space.entities.items():
            block = frame.features[name]
            assert block.shape == (len(frame.rows[name]), len(entity.features))
            assert block.dtype == np.float32
        assert frame.global_features.shape == (len(reader.obs_space.global_features),)
        total_read = (
            sum(float(b.sum()) for b in frame.features.values()) + frame.global_features.sum()
        )
        assert total_read == pytest.approx(total(space, value), rel=1e-4, abs=1e-3)


def total(space: Space, value: Any) -> float:
    """Return the expected sum of all features, without the reader."""
    if isinstance(space, spaces.Dict):
        return sum(total(part, value[key]) for key, part in space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return sum(total(part, v) for part, v in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Sequence):
        if not space.stack:
            return sum(total(space.feature_space, one) for one in value)
        return total_stacked(space.feature_space, value)
    if isinstance(space, spaces.Discrete):
        return 1.0
    if isinstance(space, spaces.MultiDiscrete):
        return float(np.prod(space.shape))
    if isinstance(space, spaces.Graph):
        nodes = [total(space.node_space, one) for one in value.nodes]
        node_sum = sum(nodes)
        if value.edges is not None:
            node_sum += sum(total(space.edge_space, one) for one in value.edges)
            node_sum += sum(nodes[i] + nodes[j] for i, j in value.edge_links)
        return node_sum
    return float(np.sum(value, dtype=np.float64))


def total_stacked(space: Space, value: Any) -> float:
    if isinstance(space, spaces.Dict):
        return sum(total_stacked(part, value[key]) for key, part in space.spaces.items())
    return float(len(value) if isinstance(space, spaces.Discrete) else np.sum(value))


@given(st.integers(0, 2**31 - 1))
def test_presence_absent_rows_and_several_fields(seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = rng.integers(0, 2, (5, 3)).astype(np.float32)
    flat = rng.integers(-1, 2, 8).astype(np.float32)
    space = spaces.Dict({"t": box(5, 3), "f": box(8)})
    mapping = FieldMap(
        entities={
            "unit": [
                Rows("t", columns=["x", "here", "y"], presence="here"),
                Rows("f", columns=["y", "x"], span=(2, 8), absent=(0, 0)),
            ]
        },
        global_features=[Globals("f", columns=["a", "b"], span=(0, 2))],
    )
    reader = ObservationReader(space, mapping)
    frame = reader.read({"t": table, "f": flat})
    expected = [(i, row[0], row[2]) for i, row in enumerate(table) if row[1] != 0]
    pairs = [(5 + i, flat[3 + 2 * i], flat[2 + 2 * i]) for i in range(3)]
    expected += [pair for pair in pairs if pair[1:] != (0, 0)]
    assert reader.obs_space.entities["unit"].features == ["x", "y"]
    assert reader.obs_space.global_features == ["a", "b"]
    assert frame.rows["unit"].tolist() == [row for row, *_ in expected]
    assert frame.features["unit"].tolist() == [[x, y] for _, x, y in expected]
    assert frame.global_features.tolist() == flat[:2].tolist()


def test_inferred_features_and_types_have_names() -> None:
    space = spaces.Dict(
        {
            "pos": box(2),
            "hp": box(1),
            "mode": spaces.Discrete(2, start=3),
            "units": box(4, 2),
            "deep": spaces.Dict({"cards": spaces.Sequence(spaces.Dict({"v": spaces.Discrete(2)}))}),
        }
    )
    obs_space = ObservationReader(space, FieldMap()).obs_space
    assert obs_space.global_features == ["hp", "mode=3", "mode=4", "pos.0", "pos.1"]
    types = {name: entity.features for name, entity in obs_space.entities.items()}
    assert types["units"] == ["feature.0", "feature.1"]
    assert types["deep.cards"] == ["feature.v=0", "feature.v=1"]
    assert ObservationReader(box(2), FieldMap()).obs_space.global_features == [
        "observation.0",
        "observation.1",
    ]
    assert list(ObservationReader(box(2, 2), FieldMap()).obs_space.entities) == ["entity"]


def test_observation_key_and_action_mask_are_not_features() -> None:
    space = spaces.Dict({"observation": box(3, 2), "action_mask": spaces.MultiBinary(2)})
    obs_space = ObservationReader(space, FieldMap()).obs_space
    assert list(obs_space.entities) == ["entity"]
    assert obs_space.global_features == []


def test_large_discrete_values_are_distinguished() -> None:
    """They are equal in float32."""
    space = spaces.Dict({"a": spaces.Discrete(3, start=2**30), "b": spaces.MultiDiscrete([2, 2])})
    frame = read(space, {"a": 2**30 + 1, "b": [0, 1]})
    assert frame.global_features.tolist() == [0, 1, 0, 1, 0, 0, 1]


def test_table_without_columns_gives_rows_without_features() -> None:
    assert read(box(3, 0), np.zeros((3, 0))).features["entity"].shape == (3, 0)


def test_edges_include_the_features_of_both_nodes() -> None:
    """Node numbers are meaningless to an order-invariant network."""
    space = spaces.Graph(box(1), spaces.Discrete(2))
    nodes = np.array([[1], [2], [3]], dtype=np.float32)
    frame = read(space, GraphInstance(nodes, np.array([1]), np.array([[0, 2]])))
    assert frame.features["nodes"].tolist() == [[1], [2], [3]]
    assert frame.features["edges"].tolist() == [[0, 1, 1, 3]]
    names = ObservationReader(space, FieldMap()).obs_space.entities["edges"].features
    assert names == ["feature=0", "feature=1", "from.feature", "to.feature"]


def test_mapped_grid_cells_become_entities() -> None:
    space = spaces.Box(0, 255, (2, 3, 1), np.uint8)
    frame = read(space, np.arange(6, dtype=np.uint8).reshape(2, 3, 1), FieldMap({"cell": Rows()}))
    assert frame.features["cell"].tolist()[4] == [1, 1, 4]


def test_presence_column_filters_rows() -> None:
    columns = ["presence", "x"]
    frame = ObservationReader(box(2, 2), FieldMap(), columns).read([[0, 5], [1, 3]])
    assert frame.features["entity"].tolist() == [[3]]
    assert frame.rows["entity"].tolist() == [1]


def test_flattened_table_with_column_names_becomes_rows() -> None:
    frame = ObservationReader(box(6), FieldMap(), ["presence", "x"]).read([1, 5, 0, 0, 1, 7])
    assert frame.features["entity"].tolist() == [[5], [7]]


def test_span_makes_the_first_row_a_separate_type() -> None:
    """An order-invariant network cannot tell the first row from the others."""
    mapping = FieldMap({"me": Rows(span=(0, 1)), "other": Rows(span=(1, 3))})
    frame = read(box(3, 1), [[1], [2], [3]], mapping)
    assert frame.features["me"].tolist() == [[1]]
    assert frame.features["other"].tolist() == [[2], [3]]
    listed = spaces.Sequence(box(1))
    mapping = FieldMap({"me": Rows(span=(0, 1)), "other": Rows(span=(1, 99))})
    frame = read(listed, ([1], [2]), mapping)
    assert [len(frame.features[name]) for name in ("me", "other")] == [1, 1]


def test_read_features_are_copies() -> None:
    """Environments may return the same array again, modified."""
    value = np.ones((2, 2), dtype=np.float32)
    frame = read(box(2, 2), value)
    value[:] = 7
    assert frame.features["entity"].tolist() == [[1, 1], [1, 1]]


@given(st.integers(0, 2**31 - 1), st.sampled_from([(0, 3), (1, 3), (4, 3), (40, 3)]))
def test_small_and_large_tables_filter_rows_equally(seed: int, shape: tuple[int, int]) -> None:
    """Small tables are compared in Python, large ones by NumPy; includes NaN."""
    rng = np.random.default_rng(seed)
    value = rng.choice(np.array([-1.0, -0.0, 0.0, 1.0, np.nan], dtype=np.float32), shape)
    for absent in [None, (0, -1, 0), (0, np.nan, 0)]:
        for presence in [None, "b"]:
            rows = Rows(columns=["a", "b", "c"], presence=presence, absent=absent)
            reader = ObservationReader(box(*shape), FieldMap({"unit": rows}))
            frames = []
            for few in (0, 10**9):
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(row_readers, "_MAX_PYTHON_ELEMENTS", few)
                    frames.append(reader.read(value))
            for name in ("features", "rows"):
                many, few_rows = (getattr(frame, name)["unit"] for frame in frames)
                np.testing.assert_array_equal(few_rows, many)
                assert few_rows.dtype == many.dtype


@given(st.integers(0, 2**31 - 1), st.sampled_from(["f4", "f8", "i8", "u1", "?"]))
def test_arrays_and_nested_lists_are_read_equally(seed: int, dtype: str) -> None:
    """Lists are read without the fast path of arrays."""
    rng = np.random.default_rng(seed)
    space = spaces.Dict({"table": box(3, 2), "flat": box(4), "one": box(), "deep": box(1, 2)})
    value = {
        name: rng.integers(0, 2, part.shape).astype(dtype)
        for name, part in space.spaces.items()
        if part.shape is not None
    }
    reader = ObservationReader(space, FieldMap())
    fast, plain = reader.read(value), reader.read({k: v.tolist() for k, v in value.items()})
    np.testing.assert_array_equal(fast.global_features, plain.global_features)
    assert fast.global_features.dtype == plain.global_features.dtype
    for name, block in fast.features.items():
        np.testing.assert_array_equal(block, plain.features[name])
        assert block.dtype == np.float32


def test_flat_features_are_copies() -> None:
    value = np.ones(5, dtype=np.float32)
    mapping = FieldMap(
        {"unit": Rows(columns=["x", "y"], span=(0, 4))}, [Globals(columns=["t"], span=(4, 5))]
    )
    frame = read(box(5), value, mapping)
    value[:] = 7
    assert frame.features["unit"].tolist() == [[1, 1], [1, 1]]
    assert frame.global_features.tolist() == [1]


def test_features_can_be_joined_without_copying_each() -> None:
    """Batching joins their bytes, so they must be C-contiguous."""
    rows = Rows(columns=["here", "x", "y"], presence="here", features=["y", "x"])
    value = np.array([[1, 2, 3], [0, 0, 0], [1, 5, 6]])
    block = read(box(3, 3), value, FieldMap({"unit": rows})).features["unit"]
    assert block.tolist() == [[3, 2], [6, 5]]
    assert block.flags.c_contiguous


def test_field_of_several_types_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = [0]
    as_array = space_fields.as_array

    def counting(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return as_array(*args, **kwargs)

    monkeypatch.setattr(space_fields, "as_array", counting)
    kinds = {name: Rows(columns=["a", "b"], presence=name) for name in ("a", "b")}
    frame = read(box(2, 2), [[1, 0], [1, 1]], FieldMap(kinds))
    assert [len(frame.rows[name]) for name in ("a", "b")] == [2, 1]
    assert count == [1]


# Kinds, numbers and constants.


@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 30),
    st.lists(st.integers(-300, 300), min_size=1, max_size=6, unique=True),
    st.booleans(),
)
def test_one_hot_columns_match_numpy(seed: int, n: int, codes: list[int], is_sparse: bool) -> None:
    rng = np.random.default_rng(seed)
    kinds = [f"k{i}" for i in range(len(codes))]
    index = rng.integers(0, len(codes), n)
    values = rng.integers(-9, 9, (n, 3))
    values[:, 1] = np.array(codes)[index] if is_sparse else index
    rows = Rows(
        columns=["a", "kind", "b"],
        one_hot={"kind": dict(zip(kinds, codes, strict=True)) if is_sparse else kinds},
    )
    reader = ObservationReader(box(n, 3), FieldMap({"unit": rows}))
    names = ["a", *(f"kind={kind}" for kind in kinds), "b"]
    assert reader.obs_space.entities["unit"].features == names
    block = reader.read(values).features["unit"]
    expected = np.hstack([values[:, :1], np.eye(len(codes))[index], values[:, 2:]])
    np.testing.assert_array_equal(block, expected)
    assert block.dtype == np.float32
    assert block.flags.c_contiguous


@given(st.integers(0, 2**31 - 1), st.integers(1, 40))
def test_numbered_rows_and_constant_columns(seed: int, n: int) -> None:
    """Also with rows without an entity in between, and with a span."""
    rng = np.random.default_rng(seed)
    flat = rng.integers(0, 2, 1 + 2 * n).astype(np.float32)
    table = rng.integers(0, 3, (4, 2)).astype(np.float32)
    kinds = {"kind": ["a", "b", "c"]}
    mapping = FieldMap(
        entities={
            "unit": [
                Rows(
                    "f",
                    columns=["kind", "x"],
                    span=(1, 1 + 2 * n),
                    absent=(0, 0),
                    one_hot=kinds,
                    numbered=True,
                    constants={"side": 1},
                ),
                Rows(
                    "t",
                    columns=["x", "kind"],
                    span=(1, 4),
                    one_hot=kinds,
                    numbered=True,
                    constants={"side": -0.5},
                ),
            ]
        },
        global_features=[Globals("f", columns=["t"], span=(0, 1))],
    )
    reader = ObservationReader(spaces.Dict({"f": box(1 + 2 * n), "t": box(4, 2)}), mapping)
    frame = reader.read({"f": flat, "t": table})
    names = ["kind=a", "kind=b", "kind=c", "x", "number", "side"]
    assert reader.obs_space.entities["unit"].features == names
    pairs = [(int(flat[1 + 2 * i]), flat[2 + 2 * i], i) for i in range(n)]
    expected = [(i, k, x, i, 1.0) for k, x, i in pairs if (k, x) != (0, 0)]
    expected += [(n + i, int(k), x, i, -0.5) for i, (x, k) in enumerate(table[1:])]
    assert frame.rows["unit"].tolist() == [row for row, *_ in expected]
    assert frame.features["unit"].tolist() == [
        [k == 0, k == 1, k == 2, x, i, side] for _, k, x, i, side in expected
    ]


def test_place_has_the_position_columns_of_cells() -> None:
    reader = ObservationReader(VIEW, SEEN_FROM_ME)
    types = {name: entity.features for name, entity in reader.obs_space.entities.items()}
    cell = ["row", "column", "object=unseen", "object=empty", "object=wall", "open"]
    assert types == {"me": ["row", "column"], "cell": cell}
    assert list(types) == ["me", "cell"]
    assert reader.num_rows == {"me": 1, "cell": 9}
    image = np.zeros((3, 3, 2), dtype=np.uint8)
    image[0, 1], image[2, 0] = (2, 0), (1, 1)
    frame = reader.read({"image": image, "mission": "go"})
    assert frame.features["me"].tolist() == [[1, 2]]
    assert frame.rows["me"].tolist() == [0]
    assert frame.features["cell"].tolist() == [[0, 1, 0, 0, 1, 0], [2, 0, 0, 1, 0, 1]]
    assert frame.rows["cell"].tolist() == [1, 6]
    frame.features["me"][:] = 7
    assert reader.read({"image": image, "mission": ""}).features["me"].tolist() == [[1, 2]]


def test_type_can_have_places_and_rows() -> None:
    mapping = FieldMap({"unit": [Rows(columns=["x", "y"]), Place(y=5, x=0.5), Place(x=1, y=2)]})
    frame = read(box(4), [1, 2, 3, 4], mapping)
    assert frame.features["unit"].tolist() == [[1, 2], [3, 4], [0.5, 5], [1, 2]]
    assert frame.rows["unit"].tolist() == [0, 1, 2, 3]
    assert read(box(0), [], FieldMap({"me": Place()})).features["me"].shape == (1, 0)


def test_features_select_field_columns_and_keep_added_ones() -> None:
    rows = Rows(
        columns=["a", "kind", "b"],
        features=["b", "kind"],
        one_hot={"kind": ["p", "q"]},
        numbered=True,
        constants={"side": 1},
    )
    reader = ObservationReader(box(3), FieldMap({"unit": rows}))
    assert reader.obs_space.entities["unit"].features == ["b", "kind=p", "kind=q", "number", "side"]
    assert reader.read([7, 1, 8]).features["unit"].tolist() == [[8, 0, 1, 0, 1]]


def test_uncovered_numbers_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    space = spaces.Dict({"seen": box(9), "table": box(4, 1)})
    entities = {
        "unit": Rows("seen", columns=["x", "y"], span=(1, 5)),
        "first": Rows("table", span=(0, 1)),
    }
    more = [Globals("seen", columns=["t"], span=(7, 8))]
    ObservationReader(space, FieldMap(entities, more, ignore=["seen"]))
    ObservationReader(space, FieldMap({"all": Rows("seen", columns=["x", "y", "z"])}))
    assert not caplog.messages
    for _ in range(2):
        ObservationReader(space, FieldMap(entities, more))
    (message,) = caplog.messages
    assert message.startswith("FieldMap: no span covers (0, 1), (5, 7), (8, 9) of the 9 numbers of")
    assert "'seen', which are not observed" in message
    assert "'seen' in ignore as well" in message


IMAGE = spaces.Box(0, 255, (8, 8, 3), np.uint8)
ONE = box(4, 2)


def kinds(**arguments: Any) -> dict[str, Any]:
    """Return a mapping of rows with columns "x" and "kind"."""
    return {"entities": {"u": Rows(columns=["x", "kind"], **arguments)}}


@pytest.mark.parametrize(
    ("space", "mapping", "message"),
    [
        (ONE, kinds(one_hot={"kin": ["a"]}), r"one_hot: expected columns among .*got \['kin'\]"),
        (ONE, kinds(one_hot={"kind": []}), "one_hot.'kind'.: expected names of 0, 1 and so on"),
        (ONE, kinds(one_hot={"kind": ["a", "a"]}), r"each once, .*got \['a', 'a'\]"),
        (ONE, kinds(one_hot={"kind": "ab"}), "got 'ab'"),
        (ONE, kinds(one_hot={"kind": {"a", "b"}}), "expected names of 0, 1 and so on"),
        (ONE, kinds(one_hot={"kind": ["a", 1]}), r"got \['a', 1\]"),
        (
            ONE,
            kinds(one_hot={"kind": {"a": 1, "b": 1}}),
            "a whole number of up to 16777216 by name",
        ),
        (ONE, kinds(one_hot={"kind": {"a": 0.5}}), "got {'a': 0.5}"),
        (ONE, kinds(one_hot={"kind": {"a": [1]}}), "a whole number"),
        (ONE, kinds(one_hot={"kind": {"a": 2**24 + 1}}), "a whole number"),
        (
            ONE,
            kinds(features=["x"], one_hot={"kind": ["a"]}),
            r"one_hot: expected columns among \['x'\], got \['kind'\]",
        ),
        (ONE, kinds(constants={"x": 1}), r"columns: expected unique names, got \['x'\]"),
        (
            ONE,
            kinds(features=["kind"], constants={"x": 1}),
            r"'u'\]: columns: expected unique names",
        ),
        (ONE, kinds(constants={"number": 1}, numbered=True), "unique names, got .'number'."),
        (
            box(4, 3),
            {"entities": {"u": Rows(columns=["k=a", "k", "x"], one_hot={"k": ["a"]})}},
            "unique names, got .'k=a'.",
        ),
        (ONE, kinds(constants={"side": "left"}), "constants: expected a finite number by name"),
        (ONE, kinds(constants={"side": np.inf}), "got {'side': inf}"),
        (ONE, kinds(constants={"side": 1e300}), "expected a finite number by name"),
        (ONE, kinds(constants={"side": [1, 2]}), "expected a finite number by name"),
        (ONE, {"entities": {"me": Place(x=None)}}, "'me'.: expected a finite number by name"),
        (
            ONE,
            {"entities": {"u": [Rows(columns=["x", "y"]), Place(x=1)]}},
            "expected the same features from every field",
        ),
        (
            VIEW,
            {"entities": {"cell": Rows("imge")}},
            r"\['cell'\].path: expected a path among .*got 'imge', did you mean image\?",
        ),
        (VIEW, {"global_features": [Globals("misson")]}, "'misson', did you mean mission"),
        (VIEW, {"ignore": ["images"]}, "FieldMap.ignore: .* did you mean image"),
        (
            VIEW,
            {"entities": {"cell": Rows("image", columns=["object", "open"])}},
            r"columns: expected 4 \(of a cell of an image: \['row', 'column'\], then the channels"
            r"\) names, got 2: \['object', 'open'\]",
        ),
        (
            VIEW,
            {"entities": {"cell": Rows("image", columns=["object", "open", "row", "column"])}},
            r"columns: expected 4 \(.*: \['row', 'column'\], then the .*\) names, got 4: \['obj",
        ),
        (VIEW, {"entities": {"c": Rows("image", ["column", "row", "a", "b"])}}, "columns: expec"),
        (VIEW, {"entities": {"c": Rows("image", ["y", "x", "a", "row"])}}, "columns: expected 4"),
    ],
)
def test_invalid_added_columns_are_refused(space: Space, mapping: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        ObservationReader(space, FieldMap(**mapping))


@pytest.mark.parametrize(
    "arguments", [{"one_hot": ["kind"]}, {"constants": [1]}, {"numbered": "place"}]
)
def test_added_columns_of_a_wrong_type_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(InvalidSpace, match=f"Rows.{name}: expected "):
        Rows(**arguments)


@pytest.mark.parametrize("value", [2, -1, 0.5, np.nan])
def test_number_without_a_label_is_refused_in_rows_with_an_entity(value: float) -> None:
    rows = Rows(columns=["here", "kind"], presence="here", one_hot={"kind": ["a", "b"]})
    reader = ObservationReader(
        spaces.Dict({"t": box(2, 2)}), FieldMap({"u": replace(rows, path="t")})
    )
    assert reader.read({"t": [[1, 1], [0, value]]}).features["u"].tolist() == [[0, 1]]
    with pytest.raises(InvalidObservation) as error:
        reader.read({"t": [[1, 1], [1, value]]})
    message = str(error.value)
    assert message.startswith("t: expected")
    assert f"{{'a': 0, 'b': 1}}, got {value:g}; " in message
    assert message.endswith("FieldMap.entities['u'].one_hot")


@pytest.mark.parametrize(
    ("space", "mapping", "message"),
    [
        (
            spaces.Dict({"a": IMAGE, "b": spaces.Text(3)}),
            {},
            r"'a', which looks like an image.*'b'",
        ),
        (spaces.Text(3), {}, "Add each to a FieldMap"),
        (spaces.OneOf([spaces.Discrete(2), box(2)]), {}, "OneOf"),
        (spaces.Discrete(10**6), {}, "expected at most 4096 choices"),
        (
            spaces.Dict({"u": spaces.Sequence(spaces.Dict({"v": spaces.Sequence(box(2))}))}),
            {},
            r"u: feature.v: expected a space of numbers, got Sequence.*name it in ignore",
        ),
        (
            spaces.Dict({"a.b": box(2, 2), "a": spaces.Dict({"b": box(2, 2)})}),
            {},
            "'a.b', which is the path of two fields",
        ),
        (spaces.Sequence(IMAGE), {"ignore": ["a"]}, "FieldMap.ignore: expected a path among"),
        (box(4), {"entities": {"u": Rows("x")}}, r"entities\['u'\].path: expected a path among"),
        (box(4), {"entities": {"u": Rows(columns=["a"] * 3)}}, "a divisor of 4 names, got 3"),
        (box(4, 2), {"entities": {"u": Rows(columns=["a"])}}, "expected 2 names, got 1"),
        (box(4), {"entities": {"u": Rows(span=(2, 9))}}, "expected 0 <= start < end <= 4, got"),
        (box(4, 2), {"entities": {"u": Rows(span=(0, 5))}}, "expected 0 <= start < end <= 4, got"),
        (box(4, 2), {"entities": {"u": Rows(presence="p")}}, "presence: expected columns among"),
        (box(4, 2), {"entities": {"u": Rows(presence=2)}}, "presence: expected 0 to 1, got 2"),
        (box(4, 2), {"entities": {"u": Rows(absent=(0,))}}, "absent: expected 2 numbers"),
        (box(4, 2), {"entities": {"u": Rows(features=["q"])}}, "features: expected columns among"),
        (box(4, 2), {"entities": {"u": []}}, "expected Rows, got none"),
        (
            box(4, 2),
            {"entities": {"u": [Rows(), Rows(columns=["a", "b"])]}},
            "expected the same features from every field",
        ),
        (box(4), {"global_features": [Globals(columns=["a"])]}, "expected 4 names"),
        (box(4, 2), {"global_features": [Globals()]}, "name it in entities"),
        (
            spaces.Dict({"u": box(2, 2), "v": box(2, 2)}),
            {"entities": {"u": Rows("v")}},
            "expected names that differ from inferred types",
        ),
    ],
)
def test_invalid_mappings_are_refused(space: Space, mapping: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        ObservationReader(space, FieldMap(**mapping))


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (box(2, 2), np.zeros((3, 2)), r"observation: expected shape \(2, 2\), got \(3, 2\)"),
        (box(2, 3), np.zeros(3), r"observation: expected shape \(2, 3\), got \(3,\)"),
        (box(2), "no", "observation: expected numbers, got 'no'"),
        (spaces.Dict({"a": box(2)}), {}, "a: expected a value at a"),
        (spaces.Discrete(3), 3, "among .3. choices"),
        (spaces.Discrete(3), 1.5, "among .3. choices"),
        (spaces.Sequence(box(2), stack=True), 3, "expected a sequence, got 3"),
        (
            spaces.Graph(box(1), box(1)),
            GraphInstance(np.zeros((2, 1)), np.zeros((1, 1)), np.array([[0, 2]])),
            "expected links between 2 nodes",
        ),
    ],
)
def test_observation_outside_the_space_is_refused(space: Space, value: Any, message: str) -> None:
    with pytest.raises(InvalidObservation, match=message):
        read(space, value)
