"""Features that are labels: spaces, observations, batches and what checks and play show of them."""

from collections import deque
from enum import Enum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Entity,
    Environment,
    EnvList,
    Flag,
    InvalidObservation,
    InvalidSpace,
    Kind,
    Observation,
    ObsSpace,
    ParallelEnvList,
    Ragged,
    VecObs,
    batch_obs,
    check_env,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.environment import filter_observation
from entity_env.play.game import frame_text
from entity_env.serialization.messages import pack, unpack
from entity_env.testing import conformance
from entity_env.testing.random_play import fields_of, random_choices
from entity_env.vec.validate import check_spaces
from tests.entity_env.kinds_world import COLORS, SEASONS, SPACE, Sorter

BALL = SPACE.entities["Ball"]


def balls(rows: Any) -> Observation:
    return Observation(features={"Ball": rows}, global_features=[0.5, "wet"])


def batch_of(*frames: Observation) -> VecObs:
    return batch_obs(frames, SPACE, {})


def test_space_lists_numeric_and_categorical_features() -> None:
    assert BALL.features == ["x"]
    assert BALL.kinds == [Kind("color", COLORS), Kind("open", ["False", "True"])]
    assert BALL.columns == ["x", "color", "open"]
    assert (SPACE.global_features, SPACE.global_kinds) == (["time"], [Kind("season", SEASONS)])
    assert [*SPACE.kinds] == ["Ball", "Sign", "__global__"]
    assert Entity(["x"], [Kind("color", COLORS), Flag("open")]) == BALL
    assert eval(repr(SPACE)) == SPACE == unpack(pack(SPACE))


def test_space_without_categorical_features_keeps_its_repr() -> None:
    """Recordings of earlier versions are continued, and their bytes are compared."""
    space = ObsSpace(["t"], {"A": Entity(["x"])})
    assert repr(space) == "ObsSpace(global_features=['t'], entities={'A': Entity(features=['x'])})"
    assert b"kinds" not in pack(space)
    assert b"kinds" not in pack(batch_obs([Observation(global_features=[1])], space, {}))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Entity([Flag("open"), "x"]), "got 'x' after 'open'; move it to the front"),
        (
            lambda: ObsSpace([Flag("a"), "x"]),
            "ObsSpace.global_features: expected numeric features before",
        ),
        (lambda: Entity(["x", Flag("x")]), r"unique names, got \['x'\]"),
        (lambda: Kind("color", []), "expected a list of 1 to 32768 names, got"),
        (lambda: Kind("color", "red"), "expected a list of 1 to 32768 names, got 'red'"),
        (lambda: Kind("color", [1, 2]), "expected a list of 1 to 32768 names"),  # type: ignore[list-item]
        (
            lambda: Kind("color", None),
            "got None; give a list or tuple of texts, in an order that is",
        ),  # type: ignore[arg-type]
        (lambda: Kind("color", (c for c in "ab")), "names, got <generator .*; give a list"),  # type: ignore[arg-type]
        (lambda: Kind("color", {"a"}), "names, got {'a'}; give a list or tuple of texts"),  # type: ignore[arg-type]
        (lambda: Kind("color", ["a", "a"]), "unique names"),
        (lambda: Kind("n", list(map(str, range(2**15 + 1)))), "1 to 32768 names"),
        (lambda: Kind(["red"], "color"), r"Kind.name: expected text, got .*'red'"),  # type: ignore[arg-type]
        (lambda: Entity(["x"], ["color"]), r"expected objects of Kind or Flag, got .*'color'"),  # type: ignore[list-item]
        (lambda: ObsSpace(global_kinds=[3]), "expected objects of Kind or Flag, got .*3"),  # type: ignore[list-item]
    ],
)
def test_invalid_spaces_raise(make: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        make()


class Suit(str, Enum):  # noqa: UP042 (older programs have these)
    """Labels of a program that workers do not import."""

    HEART = "heart"
    CLUB = "club"


@pytest.mark.parametrize("labels", [list(Suit), tuple(Suit), deque(["heart", "club"])])
def test_labels_become_a_list_of_str(labels: Any) -> None:
    """Members of an enumeration are pickled with their class, and their `repr` is no literal."""
    kind = Kind(np.str_("suit"), labels)
    assert eval(repr(kind)) == kind == Kind("suit", ["heart", "club"])
    assert {type(text) for text in (kind.name, *kind.labels)} == {str}


def test_spaces_modified_to_be_invalid_are_reported() -> None:
    twice = ObsSpace(["time"])
    twice.global_kinds.append(Flag("time"))
    other: Any = ObsSpace(entities={"Ball": Entity(["x"])})
    other.entities["Ball"].kinds.append("color")
    for space, message in (
        (twice, r"ObsSpace.global_features: expected every name once, got \['time', 'time'\]"),
        (
            other,
            r"entities\['Ball'\].features: expected objects of Kind or Flag, got \['color'\]; "
            "use Kind or Flag",
        ),
    ):
        with pytest.raises(InvalidSpace, match=message):
            check_spaces(space, {})


# One ball in all the ways in which it may be given: a number, and labels or their indices.
COLOR = st.integers(0, 2).flatmap(
    lambda i: st.sampled_from([COLORS[i], np.str_(COLORS[i]), i, np.int64(i), float(i)])
)
OPEN = st.sampled_from([True, False, 1, 0, np.True_, 1.0, "True", "False"])
ROWS = st.lists(st.tuples(st.floats(-9, 9, width=32), COLOR, OPEN), max_size=4)


def index_of(labels: list[str], value: Any) -> int:
    return labels.index(value) if isinstance(value, str) else int(value)


@given(st.lists(ROWS, min_size=1, max_size=4), st.sampled_from([list, tuple, np.ndarray]))
def test_labels_and_indices_batch_equally(frames: list[Any], form: Any) -> None:
    """Compared with a scalar loop; index arrays and rows of labels may be mixed."""
    numbers, indices, observations = [], [], []
    for i, rows in enumerate(frames):
        plain = [[x, index_of(COLORS, c), index_of(["False", "True"], o)] for x, c, o in rows]
        numbers += [[x] for x, _, _ in plain]
        indices += [own for _, *own in plain]
        features: Any = [form(row) for row in rows] if form is not np.ndarray else plain
        if form is np.ndarray or i % 3 == 2:
            features = np.array(plain, dtype=np.float32).reshape(-1, 3)
        observations.append(balls(features))
    batch = batch_of(*observations)
    assert batch.kinds["Ball"].values.dtype == np.uint8
    assert batch.features["Ball"].values.dtype == np.float32
    assert batch.kinds["Ball"].values.tolist() == indices
    np.testing.assert_array_equal(
        batch.features["Ball"].values, np.array(numbers, np.float32).reshape(-1, 1)
    )
    assert batch.kinds["Ball"].lengths.tolist() == [len(rows) for rows in frames]
    assert batch.kinds["__global__"].values.tolist() == [[1]] * len(frames)
    assert batch.kinds["Sign"].values.shape == (0, 1)


@pytest.mark.parametrize("with_array", [False, True])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            [1.0, "gren", True],
            "expected color to be one of 3 labels, got 'gren' in row 1; did you mean 'green'. "
            "Labels: 'red', 'green', 'blue'$",
        ),
        ([1.0, None, True], "color .* got None in row 1; give a label, or its index from 0 to 2"),
        ([1.0, 3, True], "got 3 in row 1"),
        ([1.0, -1, True], "got -1 in row 1"),
        ([1.0, 0.5, True], "got 0.5 in row 1"),
        ([1.0, float("nan"), True], "got nan in row 1"),
        ([1.0, ["red"], True], r"got \['red'\] in row 1"),
        ([1.0, "red", 2], "expected open to be False or True, got 2 in row 1$"),
        ([1.0, "red", None], "expected open to be False or True, got None in row 1$"),
        ([1.0, "red", "0"], "expected open to be False or True, got '0' in row 1$"),
        ([1.0, "red", ""], "expected open to be False or True, got '' in row 1$"),
        ([1.0, "red"], "expected rows of 3 values that end in color, open, got 2 in ro"),
        (["one", "red", True], "numbers"),
        ([None, "red", True], "numbers"),
    ],
)
def test_unknown_label_error_names_the_label(row: Any, message: str, with_array: bool) -> None:
    good = [1.0, "red", True]
    other: Any = np.array([[1.0, 2.0, 0.0]], np.float32) if with_array else [good]
    with pytest.raises(InvalidObservation, match=f"features of 'Ball': .*{message}") as raised:
        batch_of(balls(other), balls([good, row]))
    assert raised.value.env_index == 1


@pytest.mark.parametrize("value", [3.0, -1.0, 0.5, np.nan, np.inf])
def test_invalid_index_error_names_the_index(value: float) -> None:
    rows = np.array([[1.0, 2.0, 0.0], [1.0, value, 0.0]], np.float32)
    with pytest.raises(InvalidObservation, match=r"color to be one of .* in row 1"):
        batch_of(balls(rows[:1]), balls(rows))


def test_unknown_global_label_error_names_the_label() -> None:
    with pytest.raises(InvalidObservation, match=r"global_features: .*season.* did you mean 'wet'"):
        batch_of(Observation(global_features=[0.5, "west"]))


def test_more_than_256_labels_use_int16() -> None:
    space = ObsSpace(entities={"A": Entity([Kind("word", list(map(str, range(1000))))])})
    batch = batch_obs([Observation(features={"A": [["999"], [256]]})], space, {})
    assert batch.kinds["A"].values.dtype == np.int16
    assert batch.kinds["A"].values.tolist() == [[999], [256]]


def test_label_error_names_environment_episode_and_step() -> None:
    class Faulty(Sorter):
        def _observe(self, reward: float) -> Observation:
            obs = super()._observe(reward)
            if self.time == 2:
                obs.features["Sign"] = [["grün"]]
            return obs

    envs = EnvList(Faulty, 2)
    batch, rng = envs.reset(SPACE), np.random.default_rng(0)
    batch = envs.act(random_choices(batch, envs.action_space(), rng), SPACE)
    with pytest.raises(InvalidObservation) as raised:
        envs.act(random_choices(batch, envs.action_space(), rng), SPACE)
    message = str(raised.value)
    assert message.startswith(
        "environment 0, episode 0, step 2: features of 'Sign': expected color"
    )
    report = str(check_env(Faulty))
    assert "got 'grün'" in report
    assert "give one of the labels of the space" in report


def test_unknown_label_is_named_before_the_list_of_labels() -> None:
    """Reports of `check_env` are truncated."""
    words = [f"word {i} of several hundred" for i in range(300)]

    class Speaker(Environment):
        def obs_space(self) -> ObsSpace:
            return ObsSpace(entities={"Sign": Entity([Kind("text", words)])})

        def action_space(self) -> dict[str, Any]:
            return {}

        def reset(self) -> Observation:
            return Observation(features={"Sign": [["word 299 of several hundert"]]})

        def act(self, actions: Any) -> Observation:
            return self.reset()

    report = str(check_env(Speaker, episodes=1, max_steps=1))
    assert "got 'word 299 of several hundert' in row 0" in report
    assert "did you mean 'word 299 of several hundred'? Labels: 'word 0 of" in report
    assert "give one of the labels of the space" in report


def test_environment_with_labels_passes_check_env() -> None:
    assert str(check_env(Sorter)).count("problem") == 0
    conformance(Sorter)


def test_large_numbers_with_labels_get_a_remark() -> None:
    class Large(Sorter):
        def _observe(self, reward: float) -> Observation:
            obs = super()._observe(reward)
            obs.features["Ball"] = [[1e6, *row[1:]] for row in obs.features["Ball"]]
            return obs

    assert "expected x to be of moderate size" in str(check_env(Large))


def rollout(envs: Any, obs_space: ObsSpace = SPACE, steps: int = 12) -> list[dict[str, bytes]]:
    """Play a few steps, and return the content of all frames."""
    envs.seed(3)
    batch, rng = envs.reset(obs_space), np.random.default_rng(0)
    fields = []
    for _ in range(steps):
        fields.append(fields_of(batch))
        batch = envs.act(random_choices(batch, envs.action_space(), rng), obs_space)
    envs.close()
    return fields


def test_index_arrays_and_workers_equal_labels() -> None:
    expected = rollout(EnvList(Sorter, 4))
    assert any("at the end" in field for field in expected[5])
    assert rollout(EnvList(lambda: Sorter(as_arrays=True), 4)) == expected
    assert rollout(ParallelEnvList(Sorter, 4, 2)) == expected


REORDERED = ObsSpace(
    global_features=["time", Kind("season", SEASONS[::-1])],
    entities={
        "Ball": Entity([Flag("open"), Kind("color", ["blue", "red", "green", "black"])]),
        "Sign": Entity([Kind("color", COLORS)]),
    },
)


@given(ROWS, st.booleans())
def test_filter_selects_categorical_features_and_maps_labels(
    rows: list[Any], as_array: bool
) -> None:
    features: Any = rows
    if as_array:
        plain = [[x, index_of(COLORS, c), index_of(["False", "True"], o)] for x, c, o in rows]
        features = np.array(plain, dtype=np.float32).reshape(-1, 3)
    filtered = filter_observation(balls(features), SPACE, REORDERED)
    batch = batch_obs([filtered], REORDERED, {})
    before = batch_of(balls(rows)).kinds["Ball"].values
    colors = [["blue", "red", "green", "black"][i] for i in batch.kinds["Ball"].values[:, 1]]
    assert colors == [COLORS[i] for i in before[:, 0]]
    np.testing.assert_array_equal(batch.kinds["Ball"].values[:, 0], before[:, 1])
    assert batch.features["Ball"].values.shape == (len(rows), 0)
    assert batch.kinds["__global__"].values.tolist() == [[0]]


def test_filter_with_unknown_labels_or_features_raises() -> None:
    fewer = ObsSpace(entities={"Ball": Entity([Kind("color", ["red"])])})
    filtered = filter_observation(balls([[1.0, "red", True]]), SPACE, fewer)
    assert batch_obs([filtered], fewer, {}).kinds["Ball"].values.tolist() == [[0]]
    with pytest.raises(
        InvalidObservation, match=r"color to be one of 1 labels, got 'green' in row 0; .*'red'$"
    ):
        filter_observation(balls([[1.0, "green", True]]), SPACE, fewer)
    for entity in (Entity([Flag("x")]), Entity(["color"]), Entity([Flag("big")])):
        with pytest.raises(InvalidObservation, match="expected features among"):
            filter_observation(
                balls([[1.0, "red", True]]), SPACE, ObsSpace(entities={"Ball": entity})
            )


def test_take_and_cat_keep_labels() -> None:
    batch = batch_of(balls([[0.0, "red", 0], [1.0, "green", 1]]), balls([[2.0, "blue", 0]]))
    back = VecObs.cat([batch.take(np.array([1])), batch.take(np.array([0]))])
    assert back.kinds["Ball"].values.tolist() == [[2, 0], [0, 0], [1, 1]]
    assert back.kinds["Ball"].lengths.tolist() == [1, 2]


class ArraySorter:
    """A vectorised environment of a user, which gives the integers directly."""

    kinds: Any = np.array([[2, 1], [0, 0]])

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Ball": BALL})

    def action_space(self) -> dict[str, Any]:
        return {}

    def __len__(self) -> int:
        return 2

    def reset(self, obs_config: ObsSpace) -> VecObs:
        each = np.array([1, 1])
        features = {"Ball": Ragged(np.zeros((2, 1), np.float32), each)}
        nothing = np.zeros(2, np.float32), np.zeros(2, np.bool_)
        kinds = {} if self.kinds is None else {"Ball": Ragged(self.kinds, each)}
        return VecObs(features, {}, {}, *nothing, {}, kinds=kinds)


def test_vectorised_environments_return_label_indices() -> None:
    envs = ArraySorter()
    batch = AnyVecEnv(envs).reset(envs.obs_space())
    assert batch.kinds["Ball"].values.dtype == np.uint8
    assert batch.kinds["Ball"].values.tolist() == [[2, 1], [0, 0]]


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (None, "kinds: expected labels of"),
        (np.array([[2, 1], [256, 0]]), "environment 1, step 0: kinds.*color from 0 to 2, got 256"),
        (np.array([[2, 1], [-1, 0]]), "environment 1, step 0: .*got -1 in row 0"),
        (np.array([[2], [1]]), r"expected int64 \(2, 2\)"),
        (np.array([[0.5, 0], [0, 0]]), "expected uint8"),
    ],
)
def test_invalid_label_indices_of_vectorised_environments_raise(kinds: Any, message: str) -> None:
    envs = ArraySorter()
    envs.kinds = kinds
    with pytest.raises(InvalidObservation, match=message):
        AnyVecEnv(envs).reset(envs.obs_space())


def test_play_and_print_display_labels() -> None:
    obs = balls([[0.25, "red", True], [1, 1, 0]])
    assert "'Ball': 2, features [0.25, red, 1] [1, 1, 0]" in str(obs)
    assert "global features: [0.5, wet]" in str(obs)
    text = frame_text(obs, SPACE)
    assert "globals: time 0.5, season wet" in text
    assert "Ball 0  x 0.25, color red, open True" in text
    assert "Ball 1  x 1, color green, open False" in text
