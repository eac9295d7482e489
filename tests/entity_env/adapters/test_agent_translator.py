"""Actions and masks of Gymnasium environments."""

from dataclasses import replace
from enum import Enum, IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    InvalidObservation,
    InvalidSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.adapters.action_translators import cut_mask
from entity_env.adapters.agent_translator import AgentTranslator
from entity_env.adapters.gymnasium_api import EnvNames, names_of
from entity_env.adapters.gymnasium_spaces import leaves
from entity_env.adapters.mapping import Choice, FieldMap, Globals, Place, Rows, Select
from tests.entity_env.adapters.agent_spaces import (
    ANY_ROWS,
    FLAT,
    ROWS,
    UNITS,
    Space,
    action_spaces,
    play,
)
from tests.entity_env.adapters.worlds import SEEN_FROM_ME, VIEW


@given(action_spaces(), st.integers(0, 2**31 - 1))
def test_inferred_actions_cover_the_action_space(space: Space, seed: int) -> None:
    translator = AgentTranslator(FLAT, space)
    assert all(
        isinstance(s, GlobalCategoricalActionSpace) for s in translator.action_space.values()
    )
    rng = np.random.default_rng(seed)
    for _ in range(5):
        action = play(translator, translator.translate_observation(np.zeros(2), {}), rng)
        assert space.contains(action), action
    assert np.prod([len(s) for s in translator.action_space.values()]) == number_of_actions(space)  # type: ignore[arg-type]


def number_of_actions(space: Space) -> int:
    if isinstance(space, spaces.Dict):
        return int(np.prod([number_of_actions(part) for part in space.spaces.values()]))
    if isinstance(space, spaces.Tuple):
        return int(np.prod([number_of_actions(part) for part in space.spaces]))
    if isinstance(space, spaces.MultiDiscrete):
        return int(np.prod(space.nvec))
    return 2 ** space.shape[0] if isinstance(space, spaces.MultiBinary) else int(space.n)  # type: ignore[attr-defined]


def test_names_of_inferred_actions() -> None:
    nested = spaces.Dict({"go": spaces.Discrete(2), "arm": spaces.MultiDiscrete([2, 2])})
    assert set(AgentTranslator(FLAT, nested).action_space) == {"go", "arm.0", "arm.1"}
    assert set(AgentTranslator(FLAT, spaces.MultiDiscrete([2, 3])).action_space) == {
        "action.0",
        "action.1",
    }
    started = AgentTranslator(FLAT, spaces.Discrete(2, start=3)).action_space
    assert started == {"action": GlobalCategoricalActionSpace(["3", "4"])}
    shipped = AgentTranslator(FLAT, spaces.Discrete(2), names=EnvNames(labels=["up", "down"]))
    assert shipped.action_space == {"action": GlobalCategoricalActionSpace(["up", "down"])}


@pytest.mark.parametrize(
    ("space", "labels"),
    [
        (spaces.Discrete(3), "abc"),
        (spaces.Discrete(5), "abcde"),
        (spaces.Discrete(2, start=1), "bc"),
        (spaces.Discrete(3, start=3), "345"),  # 5 has no name
        (spaces.Discrete(2, start=-1), ["-1", "0"]),
        (spaces.Discrete(2, start=-5), ["-5", "-4"]),
        (spaces.Discrete(6), "012345"),
    ],
)
def test_first_labels_are_used_if_there_are_more_than_choices(
    space: Space, labels: str | list[str]
) -> None:
    """MiniGrid tasks use the first members of one enumeration."""
    names = EnvNames(labels=list("abcde"))
    translator = AgentTranslator(FLAT, space, names=names)
    assert translator.action_space["action"].labels == list(labels)
    mapping = FieldMap({"me": Place()}, actions={"action": Choice(actors="me")})
    assert AgentTranslator(FLAT, space, mapping, names).action_space["action"].labels == list(
        labels
    )


class Moves(Enum):
    """Actions listed in another order than their numbers."""

    UP = 2
    LEFT = 0
    RIGHT = 1


@pytest.mark.parametrize(
    ("members", "labels"),
    [
        (Moves, ["LEFT", "RIGHT", "UP"]),
        (IntEnum("Moves", "UP DOWN", start=0), ["UP", "DOWN"]),
        (Enum("Moves", "UP DOWN"), []),
        (Enum("Moves", {"UP": "u", "DOWN": "d"}), []),
        (Enum("Moves", {"UP": 0, "DOWN": [1]}), []),
        (Enum("Moves", {"UP": np.zeros(2)}), []),
        (["UP"], []),
    ],
)
def test_enum_members_label_their_values(members: Any, labels: list[str]) -> None:
    assert names_of(SimpleNamespace(actions=members)).labels == labels


def test_extra_labels_are_not_assigned_to_several_components() -> None:
    names = EnvNames(labels=list("abcde"))
    several = AgentTranslator(FLAT, spaces.MultiDiscrete([3, 5]), names=names).action_space
    assert [one.labels for one in several.values()] == [["0", "1", "2"], list("abcde")]


@pytest.mark.parametrize(
    ("space", "mask", "allowed"),
    [
        (spaces.Discrete(3), np.array([0, 1, 1], np.int8), [[0, 1, 1]]),
        (
            spaces.MultiDiscrete([2, 3]),
            (np.array([1, 0]), np.array([0, 0, 1])),
            [[1, 0], [0, 0, 1]],
        ),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 0, 0, 0, 1]), [[1, 0], [0, 0, 1]]),
        (spaces.MultiDiscrete([2, 2]), np.array([[1, 0], [0, 1]]), [[1, 0], [0, 1]]),
        (spaces.MultiBinary(2), np.array([[1, 0], [0, 1]]), [[1, 0], [0, 1]]),
        (
            spaces.MultiDiscrete([[2, 3], [3, 2]]),
            (
                (np.array([1, 0]), np.array([0, 0, 1])),
                (np.array([0, 1, 0]), np.array([1, 1])),
            ),
            [[1, 0], [0, 0, 1], [0, 1, 0], [1, 1]],
        ),
        (spaces.MultiDiscrete([2, 3]), (None, np.array([0, 0, 1])), [[1, 1], [0, 0, 1]]),
        (spaces.Tuple([spaces.Discrete(2)] * 2), ([True, False], None), [[1, 0], None]),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}),
            {"b": [0, 1]},
            [None, [0, 1]],
        ),
    ],
)
def test_masks_of_all_shapes_are_read_from_info_and_observation(
    space: Space, mask: Any, allowed: list[Any]
) -> None:
    view = AgentTranslator(FLAT, space).translate_observation(np.zeros(2), {"action_mask": mask})
    masks = [None if m.mask is None else list(m.mask) for m in view.actions.values()]  # type: ignore[arg-type]
    assert masks == allowed
    observation = spaces.Dict({"observation": FLAT, "action_mask": spaces.Discrete(2)})
    view = AgentTranslator(observation, space).translate_observation(
        {"observation": np.zeros(2), "action_mask": mask}, {}
    )
    assert [None if m.mask is None else list(m.mask) for m in view.actions.values()] == allowed  # type: ignore[arg-type]


@given(st.integers(0, 2**31 - 1), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_flat_boolean_masks_are_split_like_other_masks(seed: int, counts: list[int]) -> None:
    """Boolean masks are not validated; masks of numbers are."""
    mask = np.random.default_rng(seed).random(sum(counts)) < 0.5
    fast, plain = cut_mask(mask, counts, "mask"), cut_mask(mask.astype(np.int8), counts, "mask")
    for fast_part, plain_part in zip(fast, plain, strict=True):
        assert fast_part is not None
        np.testing.assert_array_equal(fast_part, plain_part)
        assert fast_part.dtype == np.bool_


def test_mask_is_copied() -> None:
    mask = np.array([True, True, False])
    units = FieldMap(UNITS, actions={"do": Choice(actors="unit")})
    one_row = spaces.Box(-9, 9, (1, 2), np.float32)
    for translator in (
        AgentTranslator(FLAT, spaces.Discrete(3)),
        AgentTranslator(one_row, spaces.Discrete(3), units),
    ):
        value = np.ones(2) if translator.mapping is not units else np.ones((1, 2))
        view = translator.translate_observation(value, {"action_mask": mask})
        mask[:] = [False, False, True]
        (offered,) = view.actions.values()
        assert offered.mask is not None
        assert np.reshape(np.asarray(offered.mask)[:3], -1)[:3].tolist() == [True, True, False]
        mask[:] = [True, True, False]


def test_fully_masked_action_with_a_default_is_omitted() -> None:
    choice = Choice("0", default=0)
    translator = AgentTranslator(
        FLAT, spaces.MultiDiscrete([2, 2]), FieldMap(actions={"action.0": choice})
    )
    view = translator.translate_observation(np.zeros(2), {"action_mask": np.array([0, 0, 0, 1])})
    assert list(view.actions) == ["action.1"]
    assert play(translator, view, np.random.default_rng(0)).tolist() == [0, 1]


@pytest.mark.parametrize("action", [None, Choice("a"), Select("a", "unit")])
def test_fully_masked_action_without_a_default_is_refused(action: Any) -> None:
    mapping = FieldMap(UNITS, actions={} if action is None else {"a": action})
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    translator = AgentTranslator(ROWS, space, mapping)
    info = {"action_mask": {"a": np.zeros(2, np.int8), "b": np.ones(2, np.int8)}}
    with pytest.raises(InvalidObservation, match=r"actions\['a'\]: expected a mask that allows a"):
        translator.translate_observation(np.ones((4, 2)), info)
    # There are no actions after the end.
    assert translator.translate_observation(np.ones((4, 2)), info, is_over=True).actions == {}


def test_missing_mask_allows_everything() -> None:
    translator = AgentTranslator(FLAT, spaces.Discrete(2))
    assert translator.translate_observation(np.zeros(2), {}).actions["action"].mask is None


@given(st.integers(0, 2**31 - 1), st.integers(1, 5), st.booleans())
def test_rows_act_and_absent_rows_get_the_default(seed: int, parts: int, fixed: bool) -> None:
    """Components belong to rows of the table, including rows without an entity."""
    rows, parts = (ROWS, 4) if fixed else (ANY_ROWS, parts)
    rng = np.random.default_rng(seed)
    value = rng.integers(0, 2, (4, 2)).astype(np.float32)
    mask = rng.integers(0, 2, (parts, 3))
    choice = Choice(actors="unit", labels=["a", "b", "c"], default=1)
    translator = AgentTranslator(
        rows, spaces.MultiDiscrete([3] * parts), FieldMap(UNITS, actions={"do": choice})
    )
    assert translator.action_space == {"do": CategoricalActionSpace(["a", "b", "c"])}
    action = play(translator, translator.translate_observation(value, {"action_mask": mask}), rng)
    for row, (chosen, legal) in enumerate(zip(action.tolist(), mask, strict=True)):
        if legal.any():
            is_present = row < 4 and value[row, 0] != 0
            assert legal[chosen]
            assert is_present or chosen == (1 if legal[1] else legal.argmax())
        else:
            assert chosen == 1


@pytest.mark.parametrize("action", [Choice(actors="unit"), Select("", "unit", actors="unit")])
@pytest.mark.parametrize("components", [1, 3, 5])
@pytest.mark.parametrize(
    ("space", "rows"),
    [
        (ROWS, Rows(columns=["here", "x"])),
        (spaces.Box(-9, 9, (6, 2), np.float32), Rows(span=(2, 6))),
        (spaces.Box(-9, 9, (10,), np.float32), Rows(columns=["here", "x"], span=(2, 10))),
    ],
)
def test_number_of_rows_must_match_the_components(
    space: Space, rows: Rows, components: int, action: Choice | Select
) -> None:
    message = (
        f"'go'.*actors: expected a component for each of the 4 rows of 'unit', got {components};"
    )
    fields = FieldMap({"unit": rows}, actions={"go": action})
    with pytest.raises(InvalidSpace, match=message):
        AgentTranslator(space, spaces.MultiDiscrete([4] * components), fields)
    AgentTranslator(space, spaces.MultiDiscrete([4] * 4), fields)


def test_type_named_agent_can_act() -> None:
    fields = FieldMap({"agent": Rows()}, actions={"go": Choice(actors="agent")})
    translator = AgentTranslator(ROWS, spaces.MultiDiscrete([2] * 4), fields)
    view = translator.translate_observation(np.zeros((4, 2)), {"action_mask": [0, 1] * 4})
    assert play(translator, view, np.random.default_rng(0)).tolist() == [1] * 4


def test_place_can_act_and_select() -> None:
    fields = FieldMap(
        {"me": Place(x=3), "unit": Rows("")},
        actions={"go": Choice("go", actors="me"), "pick": Select("pick", "unit", actors="me")},
    )
    action_space = spaces.Dict(go=spaces.Discrete(3), pick=spaces.Discrete(4))
    translator = AgentTranslator(ROWS, action_space, fields)
    assert list(translator.obs_space.entities) == ["me", "unit"]
    masks = {"go": [0, 0, 1], "pick": [0, 1, 0, 0]}
    view = translator.translate_observation(np.zeros((4, 2)), {"action_mask": masks})
    assert play(translator, view, np.random.default_rng(0)) == {"go": 2, "pick": 1}
    with pytest.raises(InvalidSpace, match="each of the 1 rows of 'me', got 2"):
        AgentTranslator(
            ROWS,
            spaces.MultiDiscrete([3, 3]),
            FieldMap({"me": Place()}, actions={"go": Choice(actors="me")}),
        )
    mapping = FieldMap({"agent": Place(), "unit": Rows("")}, actions={"pick": Select("", "unit")})
    with pytest.raises(InvalidSpace, match="'agent' is reserved for the selecting agent"):
        AgentTranslator(ROWS, spaces.Discrete(4), mapping)


def test_rows_of_several_fields_have_one_component_each() -> None:
    space = spaces.Dict({"a": ROWS, "b": ROWS})
    fields = FieldMap({"unit": [Rows("a"), Rows("b")]}, actions={"go": Choice(actors="unit")})
    AgentTranslator(space, spaces.MultiDiscrete([2] * 8), fields)
    with pytest.raises(InvalidSpace, match="each of the 8 rows of 'unit', got 4"):
        AgentTranslator(space, spaces.MultiDiscrete([2] * 4), fields)


def test_several_components_of_a_row_are_separate_actions() -> None:
    actions = {n: Choice(actors="unit", column=i, of=2) for i, n in enumerate(["go", "aim"])}
    translator = AgentTranslator(
        ROWS, spaces.MultiDiscrete([[2, 3]] * 4), FieldMap(UNITS, actions=actions)
    )
    assert {name: len(s) for name, s in translator.action_space.items()} == {"go": 2, "aim": 3}  # type: ignore[arg-type]
    value = np.ones((4, 2))
    mask = np.tile([0, 1, 0, 0, 1], 4)
    action = play(
        translator,
        translator.translate_observation(value, {"action_mask": mask}),
        np.random.default_rng(0),
    )
    assert action.tolist() == [[1, 2]] * 4


@given(st.integers(0, 2**31 - 1), st.booleans(), st.booleans())
def test_select_uses_row_numbers_of_the_field(seed: int, by_units: bool, masked: bool) -> None:
    rng = np.random.default_rng(seed)
    value = rng.integers(0, 2, (4, 2)).astype(np.float32)
    space = spaces.MultiDiscrete([5] * 4) if by_units else spaces.Discrete(5)
    mask = rng.integers(0, 2, (4 if by_units else 1, 5))
    actors = "unit" if by_units else None
    select = Select("", "unit", actors=actors, first=1, default=0)
    translator = AgentTranslator(ROWS, space, FieldMap(UNITS, actions={"pick": select}))
    assert translator.action_space == {"pick": SelectEntityActionSpace()}
    view = translator.translate_observation(value, {"action_mask": mask} if masked else {})
    action = np.atleast_1d(play(translator, view, rng))
    is_present = value[:, 0] != 0
    for row, (chosen, legal) in enumerate(zip(action.tolist(), mask, strict=True)):
        allowed = np.concatenate([[False], is_present & (legal[1:] == 1 if masked else True)])
        acts = is_present[row] if by_units else True
        if acts and allowed.any():
            assert allowed[chosen]
        else:
            assert chosen == (legal.argmax() if masked and legal.any() and not legal[0] else 0)


def test_rows_beyond_the_choices_cannot_be_selected() -> None:
    translator = AgentTranslator(
        ROWS, spaces.Discrete(2), FieldMap(UNITS, actions={"pick": Select("", "unit")})
    )
    mask = translator.translate_observation(np.ones((4, 2)), {}).actions["pick"]
    assert isinstance(mask, SelectEntityActionMask)
    assert np.asarray(mask.mask).tolist() == [[True, True, False, False]]
    assert translator.obs_space.entities["agent"].features == []


def test_choice_values_set_a_box() -> None:
    space = spaces.Dict({"push": spaces.Box(-1, 1, (2,), np.float32), "jump": spaces.Discrete(2)})
    choice = Choice("push", labels=["left", "right"], values=[[-1, 0], [1, 0]])
    translator = AgentTranslator(FLAT, space, FieldMap(actions={"push": choice}))
    seen = [
        play(
            translator, translator.translate_observation(np.zeros(2), {}), np.random.default_rng(i)
        )
        for i in range(9)
    ]
    assert {tuple(action["push"].tolist()) for action in seen} == {(-1, 0), (1, 0)}
    assert all(space.contains(action) for action in seen)


def test_mask_of_an_action_is_read_from_its_path() -> None:
    space = spaces.Dict({"x": FLAT, "legal": spaces.MultiBinary(2)})
    mapping = FieldMap(actions={"go": Choice(mask="legal")})
    translator = AgentTranslator(space, spaces.Discrete(2), mapping)
    assert translator.obs_space.global_features == ["x.0", "x.1"]
    view = translator.translate_observation({"x": [0, 0], "legal": [0, 1]}, {})
    assert list(view.actions["go"].mask) == [False, True]  # type: ignore[arg-type]
    in_info = AgentTranslator(
        FLAT, spaces.Discrete(2), FieldMap(actions={"go": Choice(mask="my.legal")})
    )
    view = in_info.translate_observation([0, 0], {"my": {"legal": [1, 0]}})
    assert list(view.actions["go"].mask) == [True, False]  # type: ignore[arg-type]
    with pytest.raises(
        InvalidObservation, match=r"expected 'my.legal' in the info, got \['your'\]"
    ):
        in_info.translate_observation([0, 0], {"your": 1})
    mistyped = AgentTranslator(
        space, spaces.Discrete(2), FieldMap(actions={"go": Choice(mask="leggal")})
    )
    with pytest.raises(InvalidObservation, match=r"got \['your'\], did you mean legal\?"):
        mistyped.translate_observation({"x": [0, 0], "legal": [0, 1]}, {"your": 1})
    whole_action = AgentTranslator(FLAT, spaces.Discrete(2), FieldMap(action_mask="legal"))
    with pytest.raises(InvalidObservation, match=r"action_mask: expected 'legal' in the info"):
        whole_action.translate_observation([0, 0], {})
    nowhere = AgentTranslator(FLAT, spaces.Discrete(2), FieldMap(action_mask=None))
    assert (
        nowhere.translate_observation([0, 0], {"action_mask": "unused"}).actions["action"].mask
        is None
    )


BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (spaces.Text(3), {}, "expected Discrete, MultiDiscrete"),
        (BOX, {"go": Choice()}, "values: expected a list of values in Box"),
        (BOX, {"go": Choice(values=[0, 1])}, r"values: expected values in Box.*got 0$"),
        (BOX, {"go": Choice(values=[[0, 5]])}, r"values: expected values in Box.*got \[0, 5\]"),
        (BOX, {"go": Choice(values=["left"])}, "values: expected values in Box.*got 'left'"),
        (spaces.Discrete(2), {"go": Choice(values=[1])}, "values: expected a Box, got 2 choices"),
        (
            spaces.Dict({"0": spaces.Discrete(2), "action.0": spaces.Discrete(2)}),
            {},
            r"names that differ from inferred actions, got \['action.0'\]",
        ),
        (spaces.Discrete(2), {"go": Choice("x")}, "path: expected one of"),
        (spaces.Dict(move=spaces.Discrete(2)), {"go": Choice("mov")}, r"did you mean move\?"),
        (spaces.Discrete(2), {"go": Choice(labels=["a"])}, "labels: expected 2 labels"),
        (spaces.Discrete(2), {"go": Choice(default=2)}, "default: expected 0 to 1, got 2"),
        (spaces.MultiDiscrete([2, 2]), {"go": Choice()}, "expected one choice, got 2"),
        (spaces.MultiDiscrete([2, 3]), {"go": Choice(actors="unit")}, "same number of choices"),
        (
            spaces.MultiDiscrete([2, 2]),
            {"go": Choice(actors="unit", of=3)},
            "of to divide 2 components",
        ),
        (spaces.Discrete(2), {"go": Choice(actors="tree")}, r"actors: expected a type .*'tree'$"),
        (spaces.Discrete(2), {"go": Choice(actors="unt")}, r"got 'unt', did you mean unit\?$"),
        (spaces.Discrete(2), {"go": Choice(actors=3)}, "got 3$"),  # type: ignore[arg-type]
        (spaces.Discrete(2), {"go": Select("", "tree")}, "actees: expected a type among"),
        (spaces.Discrete(2), {"go": Select("", "unit", "unti")}, r"actors: .*did you mean unit\?"),
        (spaces.Discrete(2), {"go": Select("", "unit", first=2)}, "first: expected 0 to 1"),
        (
            spaces.MultiDiscrete([2, 2]),
            {"go": Select("", "unit")},
            "set actors to the type",
        ),
        (spaces.MultiDiscrete([2, 3]), {"go": Select("", "unit")}, "same number of choices"),
        (
            spaces.Discrete(2),
            {"a": Choice(), "b": Choice()},
            "each component in one action",
        ),
        (
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)}),
            {"a": Choice("b")},
            "names that differ from inferred actions",
        ),
    ],
)
def test_invalid_actions_are_refused(space: Space, actions: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        AgentTranslator(ROWS, space, FieldMap(UNITS, actions=actions))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"entities": {"unit": "units"}}, "FieldMap.entities: expected Rows or Place for each"),
        ({"global_features": Globals("x")}, "FieldMap.global_features: expected Globals for each"),
        (
            {"actions": {"go": "x"}},
            "FieldMap.actions: expected Choice or Select or Number for each",
        ),
        ({"ignore": "picture"}, "FieldMap.ignore: expected a list of paths, got 'picture'"),
        ({"metrics": "speed"}, "FieldMap.metrics: expected a list of paths, got 'speed'"),
    ],
)
def test_mapping_of_a_wrong_type_is_refused(fields: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        FieldMap(**fields)
    with pytest.raises(InvalidSpace, match="mapping: expected a FieldMap, got "):
        AgentTranslator(ROWS, spaces.Discrete(4), fields)


def test_type_name_of_the_selecting_agent_is_reserved() -> None:
    mapping = FieldMap({"agent": Rows()}, actions={"pick": Select("", "agent")})
    with pytest.raises(InvalidSpace, match="'agent' is reserved for the selecting agent"):
        AgentTranslator(ROWS, spaces.Discrete(4), mapping)


@pytest.mark.parametrize(
    ("space", "mask", "message"),
    [
        (spaces.Discrete(3), [1, 0], "expected 3 times 0 or 1"),
        (spaces.Discrete(2), [1, 7], "expected 2 times 0 or 1"),
        (spaces.Discrete(2), "no", "expected 2 times 0 or 1"),
        (spaces.MultiDiscrete([2, 3]), ([1, 0, 0], [1, 0]), "expected 5 times 0 or 1"),
        (spaces.Tuple([spaces.Discrete(2)]), ([1, 1], [1, 1]), "expected 1 masks, got 2"),
        (spaces.Dict({"a": spaces.Discrete(2)}), {"b": [1, 1]}, "expected masks by the keys"),
    ],
)
def test_invalid_masks_are_refused(space: Space, mask: Any, message: str) -> None:
    with pytest.raises(InvalidObservation, match=f"action_mask.*: {message}"):
        AgentTranslator(FLAT, space).translate_observation(np.zeros(2), {"action_mask": mask})


EVERY_FIELD = spaces.Dict(
    flag=spaces.Discrete(3, start=1),
    me=FLAT,
    road=spaces.Graph(FLAT, FLAT),
    seen=spaces.Tuple([ANY_ROWS, ROWS]),
)
COMPLETED = {
    "inferred": (EVERY_FIELD, None, EnvNames()),
    "columns of the environment": (ROWS, None, EnvNames(["presence", "x"], ["go", "stay", "turn"])),
    "table in one row": (spaces.Box(-9, 9, (4,)), None, EnvNames(["x", "y"])),
    "partly given": (
        spaces.Dict(me=FLAT, unit=ROWS),
        FieldMap(
            {"unit": Rows("unit", columns=["here", "x"], presence=0)},
            [Globals("me", columns=["x", "y"], features=["y"])],
            {"pick": Select("1", actees="unit"), "go": Choice("0", labels=["n", "s", "w"])},
        ),
        EnvNames(),
    ),
    "seen from a place": (
        VIEW,
        replace(SEEN_FROM_ME, actions={"go": Choice("0", actors="me", labels=["n", "s", "w"])}),
        EnvNames(),
    ),
}


@pytest.mark.parametrize("case", COMPLETED)
def test_complete_mapping_needs_no_inference(case: str) -> None:
    observation, mapping, names = COMPLETED[case]
    action = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4)])
    inferred = AgentTranslator(observation, action, mapping, names)
    complete = inferred.complete
    assert complete.paths() >= {node.path for node in leaves(observation)}
    written = AgentTranslator(observation, action, complete)
    assert (written.obs_space, written.action_space) == (
        inferred.obs_space,
        inferred.action_space,
    )
    assert written.complete == complete
    assert eval(repr(complete)) == complete
