"""Labels of columns, and filters of rows by label."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from hypothesis import given
from hypothesis import strategies as st

from entity_env import Entity, Flag, InvalidObservation, InvalidSpace, Kind, ObsSpace
from entity_env.adapters.mapping import FieldMap, Globals, Place, Rows
from entity_env.adapters.observation_reader import Frame, ObservationReader
from tests.entity_env.adapters.observation_spaces import any_space, box

OBJECTS = ["unseen", "empty", "wall", "ball", "key"]
COLORS = {"red": 7, "green": 3}
CELL = ["row", "column", "object", "color"]
IMAGE = spaces.Box(0, 9, (2, 3, 2), np.uint8)
PICTURE = [[[2, 7], [1, 7], [3, 3]], [[4, 7], [0, 0], [3, 7]]]
"""A wall, nothing, a green ball; a red key, a cell that is not seen, a red ball."""


def read(space: spaces.Space[Any], value: Any, mapping: FieldMap) -> tuple[ObsSpace, Frame]:
    reader = ObservationReader(space, mapping)
    return reader.obs_space, reader.read(value)


def read_image(**arguments: Any) -> tuple[Entity, list[Any], list[int]]:
    """Return features and rows of the cells of an image."""
    entities = {"cell": Rows("", CELL, **arguments)}
    obs_space, frame = read(IMAGE, PICTURE, FieldMap(entities))
    return (
        obs_space.entities["cell"],
        frame.features["cell"].tolist(),
        frame.rows["cell"].tolist(),
    )


def test_labelled_columns_become_kinds_after_the_numbers() -> None:
    entity, features, rows = read_image(
        kinds={"object": OBJECTS, "color": COLORS}, presence="object", numbered=True
    )
    kinds = [Kind("object", OBJECTS), Kind("color", ["red", "green"])]
    assert entity == Entity(["row", "column", "number"], kinds)
    assert features == [
        [0, 0, 0, 2, 0],
        [0, 1, 1, 1, 0],
        [0, 2, 2, 3, 1],
        [1, 0, 3, 4, 0],
        [1, 2, 5, 3, 0],
    ]
    assert rows == [0, 1, 2, 3, 5]


def test_type_can_have_kinds_and_one_hot_columns() -> None:
    entity, features, _ = read_image(
        kinds={"object": OBJECTS},
        one_hot={"color": COLORS},
        presence="object",
        features=["color", "object", "row"],
        constants={"side": 2},
    )
    assert entity == Entity(["color=red", "color=green", "row", "side"], [Kind("object", OBJECTS)])
    assert features[2:4] == [[0, 1, 0, 2, 3], [1, 0, 1, 2, 4]]


@given(
    st.integers(0, 2**31 - 1),
    st.integers(0, 30),
    st.lists(st.integers(-300, 300), min_size=1, max_size=6, unique=True),
)
def test_kinds_match_the_indices_of_one_hot_columns(seed: int, n: int, codes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    labels = {f"k{i}": code for i, code in enumerate(codes)}
    values = rng.integers(-9, 9, (n, 3))
    values[:, 1] = rng.choice(codes, n)
    blocks = []
    for option in ("one_hot", "kinds"):
        rows = Rows(columns=["a", "kind", "b"], **{option: {"kind": labels}})
        frame = ObservationReader(box(n, 3), FieldMap({"unit": rows})).read(values)
        blocks.append(frame.features["unit"])
        assert frame.features["unit"].dtype == np.float32
        assert frame.features["unit"].flags.c_contiguous
    hot, kinds = blocks
    np.testing.assert_array_equal(kinds[:, :2], hot[:, [0, -1]])
    np.testing.assert_array_equal(np.eye(len(codes))[kinds[:, 2].astype(int)], hot[:, 1:-1])


@pytest.mark.parametrize("option", ["one_hot", "kinds"])
@pytest.mark.parametrize("value", [5, -1, 1.5, np.nan])
def test_number_without_a_label_is_refused_in_used_rows(option: str, value: float) -> None:
    rows = Rows("t", ["here", "color"], **{option: {"color": COLORS}})
    space = spaces.Dict(t=box(2, 2))
    for leaving in ({"presence": "here"}, {"leave_out": {"here": [0]}}, {"only": {"here": [1]}}):
        reader = ObservationReader(space, FieldMap({"u": replace(rows, **leaving)}))  # type: ignore[arg-type]
        assert len(reader.read({"t": [[0, value], [1, 7]]}).features["u"]) == 1
        with pytest.raises(InvalidObservation) as error:
            reader.read({"t": [[1, value], [1, 7]]})
        message = str(error.value)
        assert message.startswith("t: expected")
        assert f"{{'red': 7, 'green': 3}}, got {value:g}; " in message
        assert message.endswith(f"FieldMap.entities['u'].{option}")


# Rows that are chosen by their labels.


def test_leave_out_filters_cells_by_label_or_number() -> None:
    by_label: dict[str, Any] = {"leave_out": {"object": ["unseen", "empty", "wall"]}}
    entity, features, rows = read_image(kinds={"object": OBJECTS}, **by_label)
    # Labels that are left out are none of the kind.
    assert entity == Entity(["row", "column", "color"], [Kind("object", ["ball", "key"])])
    assert features == [[0, 2, 3, 0], [1, 0, 7, 1], [1, 2, 7, 0]]
    assert rows == [2, 3, 5]
    entity, hot, rows = read_image(one_hot={"object": OBJECTS}, **by_label)
    assert entity == Entity(["row", "column", "object=ball", "object=key", "color"])
    assert hot == [[0, 2, 1, 0, 3], [1, 0, 0, 1, 7], [1, 2, 1, 0, 7]]
    assert rows == [2, 3, 5]
    entity, numbers, rows = read_image(leave_out={"object": [0, 1, 2]}, numbered=True)
    assert entity == Entity([*CELL, "number"])
    assert numbers == [[0, 2, 3, 3, 2], [1, 0, 4, 7, 3], [1, 2, 3, 7, 5]]


def test_one_field_becomes_several_types_by_label() -> None:
    """The column that distinguishes the types need not be a feature."""
    cells = Rows("", CELL, kinds={"object": OBJECTS}, features=["row", "column"])
    more = replace(cells, features=[*CELL[:2], "color"], one_hot={"color": COLORS})
    mapping = FieldMap(
        {
            "wall": replace(cells, only={"object": ["wall"]}),
            "ball": replace(more, only={"object": ["ball"]}),
            "red": replace(more, only={"color": ["red"], "object": ["ball", 4]}),
        }
    )
    obs_space, frame = read(IMAGE, PICTURE, mapping)
    hot = ["color=red", "color=green"]
    assert obs_space.entities == {
        "wall": Entity(["row", "column"]),
        "ball": Entity(["row", "column", *hot]),
        "red": Entity(["row", "column", "color=red"]),
    }
    features = {name: block.tolist() for name, block in frame.features.items()}
    assert features == {
        "wall": [[0, 0]],
        "ball": [[0, 2, 0, 1], [1, 2, 1, 0]],
        "red": [[1, 0, 1], [1, 2, 1]],
    }
    assert {name: rows.tolist() for name, rows in frame.rows.items()} == {
        "wall": [0],
        "ball": [2, 5],
        "red": [3, 5],
    }


@given(
    st.integers(0, 2**31 - 1),
    st.sets(st.sampled_from(OBJECTS), min_size=1),
    st.sets(st.sampled_from(OBJECTS), max_size=4),
    st.sampled_from(["one_hot", "kinds"]),
)
def test_row_filters_match_python(seed: int, only: set[str], out: set[str], option: str) -> None:
    """Rows are filtered by a label, a number, and presence."""
    rng = np.random.default_rng(seed)
    table = rng.integers(0, [2, 5, 3], (12, 3))
    rows = Rows(
        columns=["here", "object", "x"],
        presence="here",
        only={"object": sorted(only)},
        leave_out={"object": sorted(out), "x": [1]} if out else {"x": [1]},
        numbered=True,
        **{option: {"object": OBJECTS}},  # type: ignore[arg-type]
    )
    mapping = FieldMap({"u": rows})
    left = [label for label in OBJECTS if label in only - out]
    if not left:
        with pytest.raises(InvalidSpace, match="labels of 'object' that are not left out"):
            ObservationReader(box(12, 3), mapping)
        return
    obs_space, frame = read(box(12, 3), table, mapping)
    expected = [
        (i, left.index(OBJECTS[row[1]]), row[2])
        for i, row in enumerate(table.tolist())
        if row[0] and OBJECTS[row[1]] in left and row[2] != 1
    ]
    assert frame.rows["u"].tolist() == [i for i, *_ in expected]
    if option == "kinds":
        assert obs_space.entities["u"] == Entity(["x", "number"], [Kind("object", left)])
        assert frame.features["u"].tolist() == [[x, i, label] for i, label, x in expected]
    else:
        hot = np.eye(len(left)).tolist()
        assert obs_space.entities["u"].features[: len(left)] == [f"object={one}" for one in left]
        assert frame.features["u"].tolist() == [[*hot[label], x, i] for i, label, x in expected]


# Several fields of one type.


def test_constant_label_distinguishes_fields_of_one_type() -> None:
    """Fields may list labels in another order, and places have labels."""
    sides = {"side": ["ours", "theirs"]}
    mapping = FieldMap(
        {
            "unit": [
                Place(x=5, color="green", side="theirs"),
                Rows("a", ["x", "color"], kinds={**sides, "color": ["red", "green"]}, span=(0, 2)),
                Rows(
                    "b",
                    ["color", "x"],
                    kinds={"color": {"green": 7, "red": 3}, "side": ["theirs", "ours"]},
                    constants={"side": "theirs"},
                ),
            ]
        }
    )
    ours, a = mapping.rows()["unit"][1], mapping.rows()["unit"][0]
    assert isinstance(ours, Rows)
    several = [a, replace(ours, constants={"side": 0}), mapping.rows()["unit"][2]]
    space = spaces.Dict(a=box(2, 2), b=box(1, 2))
    value = {"a": [[1, 0], [2, 1]], "b": [[3, 9]]}
    obs_space, frame = read(space, value, FieldMap({"unit": several}))
    kinds = [Kind("color", ["red", "green"]), Kind("side", ["ours", "theirs"])]
    assert obs_space.entities["unit"] == Entity(["x"], kinds)
    assert frame.features["unit"].tolist() == [[5, 1, 1], [1, 0, 0], [2, 1, 0], [9, 0, 1]]
    assert frame.rows["unit"].tolist() == [0, 1, 2, 3]


# Discrete numbers.


@given(any_space(), st.integers(0, 2**31 - 1))
def test_columns_without_labels_are_encoded_as_inferred(
    space: spaces.Space[Any], seed: int
) -> None:
    """A row filter does not change the encoding of columns without labels."""
    space.seed(seed)
    plain = ObservationReader(space, FieldMap())
    entities: dict[str, Any] = {}
    for name, (rows,) in plain.entities.items():
        assert isinstance(rows, Rows)
        assert rows.columns is not None
        if rows.columns:
            column = rows.columns[0].partition("=")[0]
            rows = replace(rows, columns=None, leave_out={column: [-(2**20)]})
        entities[name] = rows
    parts = [replace(part, columns=None) for part in plain.global_features]
    named = ObservationReader(space, FieldMap(entities, parts))
    assert named.obs_space.entities == plain.obs_space.entities
    for _ in range(3):
        value = space.sample()
        frame, expected = named.read(value), plain.read(value)
        for name, block in expected.features.items():
            np.testing.assert_array_equal(frame.features[name], block)


def test_discrete_numbers_of_rows_become_kinds() -> None:
    space = spaces.Dict(
        cards=spaces.Sequence(
            spaces.Dict(rank=spaces.Discrete(3, start=2), suit=spaces.Discrete(2))
        ),
        grid=spaces.MultiDiscrete(np.full((1, 2, 2), [2, 3])),
        net=spaces.Graph(spaces.Discrete(2), spaces.Discrete(2)),
        flat=spaces.MultiDiscrete([2, 3, 2, 4]),
    )
    suits = ["hearts", "spades"]
    mapping = FieldMap(
        {
            "card": Rows("cards", ["rank", "suit"], kinds={"suit": suits}),
            "cell": Rows("grid", ["row", "column", "a", "b"], kinds={"a": ["p", "q"]}),
            "edge": Rows("net.edges", ["e", "from", "to"], kinds={"from": ["p", "q"]}),
            "pair": Rows("flat", ["a", "b"], kinds={"a": ["p", "q"]}, leave_out={"b": [2]}),
        },
        ignore=["net.nodes"],
    )
    value = {
        "cards": ({"rank": 4, "suit": 1}, {"rank": 2, "suit": 0}),
        "grid": [[[0, 2], [1, 1]]],
        "net": GraphInstance(np.array([0, 1]), np.array([1]), np.array([[1, 0]])),
        "flat": [1, 2, 0, 3],
    }
    obs_space, frame = read(space, value, mapping)
    assert obs_space.entities == {
        "card": Entity(["rank=2", "rank=3", "rank=4"], [Kind("suit", suits)]),
        "cell": Entity(["row", "column", "b=0", "b=1", "b=2"], [Kind("a", ["p", "q"])]),
        "edge": Entity(["e=0", "e=1", "to=0", "to=1"], [Kind("from", ["p", "q"])]),
        "pair": Entity(["b=0", "b=1", "b=3"], [Kind("a", ["p", "q"])]),
    }
    features = {name: block.tolist() for name, block in frame.features.items()}
    assert features == {
        "card": [[0, 0, 1, 1], [1, 0, 0, 0]],
        "cell": [[0, 0, 0, 0, 1, 0], [0, 1, 0, 1, 0, 1]],
        "edge": [[0, 1, 1, 0, 1]],
        "pair": [[0, 0, 1, 0]],
    }


def test_field_can_be_read_with_and_without_labels() -> None:
    """Several types read the same field, each with its own columns."""
    card = spaces.Dict(suit=spaces.Discrete(2), x=box())
    space = spaces.Dict(
        hand=spaces.Sequence(card, stack=True), mode=spaces.Discrete(2), t=box(2, 1)
    )
    suits = ["hearts", "spades"]
    mapping = FieldMap(
        {
            "card": Rows("hand", ["suit", "x"], kinds={"suit": suits}),
            "other": Rows("hand"),
            "kind": Rows("t", ["a"], kinds={"a": {"p": 7, "q": 3}}),
            "number": Rows("t", ["a"]),
        },
        [Globals("mode", kinds={"mode": ["off", "on"]}), Globals("mode")],
    )
    value = {"hand": {"suit": np.array([1, 0]), "x": np.array([5, 6])}, "mode": 1, "t": [[3], [7]]}
    obs_space, frame = read(space, value, mapping)
    mode = Kind("mode", ["off", "on"])
    assert obs_space == ObsSpace(
        ["mode=0", "mode=1"],
        {
            "card": Entity(["x"], [Kind("suit", suits)]),
            "other": Entity(["feature.suit=0", "feature.suit=1", "feature.x"]),
            "kind": Entity([], [Kind("a", ["p", "q"])]),
            "number": Entity(["a"]),
        },
        [mode],
    )
    assert {name: block.tolist() for name, block in frame.features.items()} == {
        "card": [[5, 1], [6, 0]],
        "other": [[0, 1, 5], [1, 0, 6]],
        "kind": [[1], [0]],
        "number": [[3], [7]],
    }
    assert frame.global_features.tolist() == [0, 1, 1]


def test_discrete_columns_with_many_choices_need_labels() -> None:
    space = spaces.MultiDiscrete([2, 10**6, 2**40])
    part = Globals("", ["a", "b", "c"], ["a"], kinds={"a": ["p", "q"]})
    with pytest.raises(
        InvalidSpace, match=r"\['']: b: expected at most 4096 choices, .*got 1000000"
    ):
        ObservationReader(space, FieldMap(global_features=[replace(part, features=None)]))
    large = spaces.MultiDiscrete([2, 2, 2], start=[0, 0, 2**30])  # equal in float32
    with pytest.raises(InvalidSpace, match=r"c: expected .* to 16777216, got 2 from 1073741824"):
        ObservationReader(large, FieldMap(global_features=[replace(part, features=None)]))
    _, frame = read(space, [1, 7, 8], FieldMap(global_features=[part]))
    assert frame.global_features.tolist() == [1]


def test_rows_of_discrete_and_continuous_numbers_are_numbered() -> None:
    space = spaces.Dict(a=spaces.Discrete(3), x=box())
    mapping = FieldMap({"u": Rows("", ["v"], leave_out={"v": [2]})})
    for value, expected in (({"a": 1, "x": 4}, [[1], [4]]), ({"a": 2, "x": 4}, [[4]])):
        obs_space, frame = read(space, value, mapping)
        assert obs_space.entities["u"] == Entity(["v"])
        assert frame.features["u"].tolist() == expected


def test_global_fields_have_labels() -> None:
    space = spaces.Dict(
        direction=spaces.Discrete(4),
        mode=spaces.MultiDiscrete([2, 3]),
        state=box(4),
    )
    names = ["right", "down", "left", "up"]
    mapping = FieldMap(
        global_features=[
            Globals("direction", kinds={"direction": names}),
            Globals("mode", ["lamp", "gear"], one_hot={"gear": ["r", "n", "d"]}),
            Globals(
                "state",
                ["x", "door", "weather"],
                ["weather", "door", "x"],
                span=(1, 4),
                one_hot={"weather": {"dry": 3, "wet": 4}},
                kinds={"door": ["False", "True"]},
            ),
        ],
        ignore=["state"],
    )
    value = {"direction": 2, "mode": [1, 2], "state": [9, 0.5, 1, 4]}
    obs_space, frame = read(space, value, mapping)
    numbers = ["lamp=0", "lamp=1", "gear=r", "gear=n", "gear=d", "weather=dry", "weather=wet", "x"]
    kinds = [Kind("direction", names), Flag("door")]
    assert obs_space == ObsSpace(numbers, global_kinds=kinds)
    assert frame.global_features.tolist() == [0, 1, 0, 0, 1, 0, 1, 0.5, 2, 1]
    # As inferred, without labels.
    plain = ObservationReader(space, FieldMap()).obs_space
    assert plain.global_features[:4] == [f"direction={i}" for i in range(4)]
    assert not plain.global_kinds


@pytest.mark.parametrize("value", [4, 1.5])
def test_global_number_without_a_label_is_refused(value: float) -> None:
    part = Globals("a.b", kinds={"a.b": ["x", "y", "z", "w"]})
    reader = ObservationReader(
        spaces.Dict(a=spaces.Dict(b=spaces.Discrete(9))), FieldMap(global_features=[part])
    )
    assert reader.read({"a": {"b": 3}}).global_features.tolist() == [3]
    with pytest.raises(InvalidObservation) as error:
        reader.read({"a": {"b": value}})
    message = str(error.value)
    assert message.startswith("a.b: expected")
    assert f"{{'x': 0, 'y': 1, 'z': 2, 'w': 3}}, got {value:g}; " in message
    assert message.endswith("FieldMap.global_features['a.b'].kinds")


# Mistakes.

ONE = box(4, 2)
AB = {"kind": ["ab", "cd"]}


def rows(**arguments: Any) -> dict[str, Any]:
    """Return a mapping of rows with columns "x" and "kind"."""
    return {"entities": {"u": Rows(columns=["x", "kind"], **arguments)}}


def two(first: Any, second: Any) -> dict[str, Any]:
    return {"entities": {"u": [first, second]}}


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            rows(kinds={"kin": ["a"]}),
            r"'u'\].kinds: expected columns among .*got \['kin'\], did you mean kind\?$",
        ),
        (rows(kinds={3: ["a"]}), r"'u'\].kinds: expected columns among .*got \[3\]$"),
        (rows(kinds={"kind": []}), r"kinds\['kind'\]: expected names of 0, 1 and so on"),
        (rows(kinds=AB, one_hot=AB), r"expected one_hot or kinds, got both for \['kind'\]"),
        (rows(kinds=AB, features=["x"]), r"kinds: expected columns among \['x'\], got \['kind'\]"),
        (rows(only={"kin": [1]}), r"only: expected columns among .*got \['kin'\]"),
        (rows(numbered=True, only={"number": [1]}), "only: expected columns among"),
        (
            rows(numbered=True, features=["x", "number"]),
            r"features: expected columns of the field, got \['number'\], which numbered or",
        ),
        (rows(leave_out={"kind": []}), r"\['kind'\]: expected a list of labels or whole numbers"),
        (rows(leave_out={"kind": "ab"}), "expected a list of labels or whole numbers, got 'ab'"),
        (
            rows(leave_out={"kind": ["ab"]}),
            r"whole numbers or labels, which one_hot or kinds names, got 'ab'",
        ),
        (
            rows(kinds=AB, leave_out={"kind": ["abc"]}),
            r"labels, \['ab', 'cd'\], got 'abc', did you mean ab\?",
        ),
        (rows(kinds=AB, only={"kind": [0.5]}), r"whole numbers or labels, .*got 0.5"),
        (
            rows(kinds=AB, leave_out={"kind": ["ab", 1]}),
            "'u'.: expected labels of 'kind' that are not left out, got none",
        ),
        (
            rows(kinds={"side": ["ours"]}, constants={"side": "our"}),
            r"constants\['side'\]: expected a label, {'ours': 0}, got 'our', did you mean ours\?",
        ),
        (rows(kinds={"side": ["ours"]}, constants={"side": 1}), "expected a label, .* got 1$"),
        (
            two(Rows(columns=["x", "kind"], kinds=AB), Place(x=1, kind="ac")),
            r"Place.kind: expected a label, \['ab', 'cd'\], got 'ac'",
        ),
        (
            two(Rows(columns=["x", "kind"], kinds=AB), Place(x=1, kind=0)),
            "Place.kind: expected a label, .*got 0",
        ),
        (two(Rows(columns=["x", "kind"]), Place(x=1, kind="ab")), "expected a finite number by"),
        (
            two(
                Rows(columns=["x", "kind"], kinds=AB),
                Rows(columns=["x", "kind"], kinds={"kind": ["ab"]}),
            ),
            r"expected the same features from every field, got .*'cd'.* and .*\['ab'\]",
        ),
        (
            {"global_features": [Globals("", kinds={"observation": ["a"]})]},
            "expected a field with a fixed number of numbers",
        ),
    ],
)
def test_invalid_labels_are_refused(mapping: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        ObservationReader(ONE, FieldMap(**mapping))


@pytest.mark.parametrize("option", ["kinds", "only", "leave_out"])
def test_labels_of_a_wrong_type_are_refused(option: str) -> None:
    with pytest.raises(InvalidSpace, match=f"Rows.{option}: expected a dictionary by column"):
        Rows(**{option: ["kind"]})  # type: ignore[arg-type]
    with pytest.raises(InvalidSpace, match=r"Globals.one_hot: expected a dictionary"):
        Globals(one_hot=["kind"])  # type: ignore[arg-type]
