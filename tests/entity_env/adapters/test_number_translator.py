"""Translation of continuous actions to a `Box`."""

import copy
import itertools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    EnvList,
    GlobalContinuousAction,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    InvalidAction,
    InvalidSpace,
    ParallelEnvList,
    check_env,
)
from entity_env.adapters.agent_translator import AgentTranslator
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_gymnasium_vector import FromGymnasiumVector
from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents, FromPettingZoo
from entity_env.adapters.from_pettingzoo_turns import FromPettingZooTurns
from entity_env.adapters.mapping import AnyAction, Choice, FieldMap, Globals, Number, Place, Rows
from entity_env.testing.random_play import random_choices
from tests.entity_env.adapters.agent_spaces import (
    ANY_ROWS,
    FLAT,
    ROWS,
    UNITS,
    Space,
    action_spaces,
    play,
)
from tests.entity_env.adapters.rounds import Rounds
from tests.entity_env.adapters.same import assert_workers_match
from tests.entity_env.adapters.worlds import Hunt, Show, Turns, choose, maker

BOUNDS = st.sampled_from(
    [(-1, 1), (0.1, 0.7), (-3e-3, 1e-3), (1, 2), (-2, -1), (-1e6, 1e6), (-np.inf, np.inf)]
)


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    """Boxes of floats with separate bounds for each number."""
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    dtype: Any = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    size = int(np.prod(shape))
    pairs = draw(st.lists(BOUNDS, min_size=size, max_size=size))
    with np.errstate(over="ignore"):
        low, high = (np.array(each, dtype).reshape(shape) for each in zip(*pairs, strict=True))
    return spaces.Box(low, high, dtype=dtype)


def mixed_spaces() -> st.SearchStrategy[Space]:
    parts = st.dictionaries(st.sampled_from("abc"), boxes() | action_spaces(), min_size=1)
    return boxes() | parts.map(spaces.Dict) | st.lists(boxes(), min_size=1).map(spaces.Tuple)


@given(mixed_spaces(), st.integers(0, 2**31 - 1))
def test_inferred_actions_are_in_the_action_space(space: Space, seed: int) -> None:
    translator = AgentTranslator(FLAT, space)
    rng = np.random.default_rng(seed)
    for _ in range(5):
        action = play(translator, translator.translate_observation(np.zeros(2), {}), rng)
        assert space.contains(action), action
    sizes = [int(np.prod(box.shape)) for box in all_boxes(space)]
    numbers = [s for s in translator.action_space.values() if s.components]
    assert [len(s.components) for s in numbers] == sizes
    assert all(isinstance(s, GlobalContinuousActionSpace) for s in numbers)
    assert space.contains(translator.build_action({}))


def all_boxes(space: Space) -> list[spaces.Box]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return list(itertools.chain(*map(all_boxes, parts)))
    return [space] if isinstance(space, spaces.Box) else []


def test_inferred_continuous_action_has_names_and_bounds() -> None:
    box = spaces.Box(np.float32([-2, 0]), np.float32([2, 1]))
    expected = GlobalContinuousActionSpace({"0": (-2, 2), "1": (0, 1)})
    assert AgentTranslator(FLAT, box).action_space == {"action": expected}
    nested = spaces.Dict(arm=spaces.Box(-1, 1, (2, 2)), go=spaces.Discrete(2), x=spaces.Box(0, 1))
    action_space = AgentTranslator(FLAT, nested).action_space
    assert {name: one.components for name, one in action_space.items()} == {
        "arm": ["0.0", "0.1", "1.0", "1.1"],
        "go": [],
        "x": ["0"],
    }
    named = FieldMap(actions={"drive": Number(names=["steer", "gas"])})
    assert AgentTranslator(FLAT, box, named).action_space["drive"].components == ["steer", "gas"]


def test_box_gets_chosen_numbers_in_any_order_of_names() -> None:
    box = spaces.Box(np.array([[-2, 0]]), np.array([[2.0, 0.1]]), dtype=np.float64)
    fields = FieldMap(actions={"drive": Number(names=["steer", "gas"])})
    translator = AgentTranslator(FLAT, box, fields)
    view = translator.translate_observation(np.zeros(2), {})
    assert view.actions == {"drive": GlobalContinuousActionMask()}
    drive = GlobalContinuousAction(np.float32([0.1, -1.5]), ["gas", "steer"])
    action = translator.translate_actions(view, {"drive": drive})
    assert action.tolist() == [[-1.5, 0.1]]  # not the float32 that is above the bound
    assert box.contains(action)


def test_environment_may_modify_the_action() -> None:
    translator = AgentTranslator(FLAT, spaces.Box(1, 2, (2,), np.float32))
    view, numbers = translator.translate_observation(np.zeros(2), {}), np.float32([1, 2])
    action = GlobalContinuousAction(numbers, ["0", "1"])
    translator.translate_actions(view, {"action": action})[:] = 7
    translator.translate_actions(view, {})[:] = 7
    assert numbers.tolist() == [1, 2]
    assert translator.translate_actions(view, {}).tolist() == [1, 1]


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("fixed", [False, True])
@given(seed=st.integers(0, 2**31 - 1), rows=st.integers(1, 5))
def test_numbers_reach_their_rows_and_empty_rows_get_the_default(
    flat: bool, fixed: bool, seed: int, rows: int
) -> None:
    """Row i of the action belongs to row i of the table, and has separate bounds."""
    rows = 4 if fixed else rows
    rng = np.random.default_rng(seed)
    low = rng.uniform(-1, 1, (rows, 2)).astype(np.float32)
    high = low + np.float32(0.5)
    shape = (-1,) if flat else (rows, 2)
    box = spaces.Box(low.reshape(shape), high.reshape(shape))
    number = Number(actors="unit", names=["x", "y"])
    fields = FieldMap(UNITS, actions={"go": number})
    translator = AgentTranslator(ROWS if fixed else ANY_ROWS, box, fields)
    bounds = zip(low.min(axis=0).tolist(), high.max(axis=0).tolist(), strict=True)
    space = ContinuousActionSpace(dict(zip("xy", bounds, strict=True)))
    assert translator.action_space == {"go": space}
    value = rng.integers(0, 2, (4, 2)).astype(np.float32)
    view = translator.translate_observation(value, {})
    present_rows = np.flatnonzero(value[:, 0])
    acting = present_rows[present_rows < rows]
    nearest = np.clip(0, low, high)
    if not len(acting):
        assert not view.actions
        assert translator.translate_actions(view, {}).tolist() == nearest.reshape(shape).tolist()
        return
    obs = view.to_observation()
    chosen = choose(obs, translator.obs_space, translator.action_space, rng)
    numbers = chosen["go"]
    assert isinstance(numbers, ContinuousAction)
    assert list(numbers.actors) == [("unit", i) for i in range(len(acting))]
    action = translator.translate_actions(view, chosen)
    assert box.contains(action)
    expected = nearest.copy()
    expected[acting] = numbers.values
    assert action.tolist() == expected.reshape(shape).tolist()


def test_rows_of_a_table_split_a_flat_box() -> None:
    fields = FieldMap(UNITS, actions={"go": Number(actors="unit")})
    for size, names in ((4, ["0"]), (8, ["0", "1"])):
        box = spaces.Box(-1, 1, (size,))
        assert AgentTranslator(ROWS, box, fields).action_space["go"].components == names
    place = FieldMap({"me": Place()}, actions={"go": Number(actors="me")})
    translator = AgentTranslator(FLAT, spaces.Box(-1, 1, (3,)), place)
    assert translator.action_space["go"].components == ["0", "1", "2"]


def test_actors_with_equal_bounds_are_selected_by_type() -> None:
    fields = FieldMap(UNITS, actions={"go": Number(actors="unit")})
    translator = AgentTranslator(ROWS, spaces.Box(-1, 1, (4, 2)), fields)
    view = translator.translate_observation(np.ones((4, 2)), {})
    assert view.actions == {"go": ContinuousActionMask(actor_types=["unit"])}


def test_continuous_action_with_masked_choices() -> None:
    space = spaces.Dict(push=spaces.Box(-1, 1, (2,)), go=spaces.Discrete(3))
    translator = AgentTranslator(FLAT, space)
    rng = np.random.default_rng(0)
    for mask in ([0, 0, 1], {"go": [0, 0, 1]}):
        view = translator.translate_observation(np.zeros(2), {"action_mask": mask})
        action = play(translator, view, rng)
        assert action["go"] == 2
        assert space.contains(action)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (2.5, r"^actions\['action'\], 1: expected a number from -1 to 1, got 2.5$"),
        (np.nan, "expected a number from -1 to 1, got nan"),
        (np.inf, "expected a number from -1 to 1, got inf"),
    ],
)
def test_nan_or_out_of_bounds_number_is_refused(number: float, message: str) -> None:
    env = FromGymnasium(maker(Show, FLAT, spaces.Box(-1, 1, (2,))))
    env.reset()
    with pytest.raises(InvalidAction, match=message):
        env.act({"action": GlobalContinuousAction(np.float32([0, number]), ["0", "1"])})
    with pytest.raises(InvalidAction, match=r"'action'\]: expected the shape \(2,\), got .*3"):
        env.act({"action": GlobalContinuousAction(np.zeros(3, np.float32), ["0", "1"])})
    with pytest.raises(InvalidAction, match="expected a component among"):
        env.act({"action": GlobalContinuousAction(np.zeros(2, np.float32), ["0", "x"])})
    free = FromGymnasium(maker(Show, FLAT, spaces.Box(-np.inf, np.inf, (2,))))
    free.reset()
    if not np.isfinite(number):
        with pytest.raises(InvalidAction, match="from -inf to inf, got"):
            free.act({"action": GlobalContinuousAction(np.float32([0, number]), ["0", "1"])})


def test_out_of_bounds_number_is_reported_with_its_entity() -> None:
    low = np.float32([[-1], [-1], [0], [-1]])
    fields = FieldMap({"unit": Rows()}, actions={"go": Number(actors="unit", names=["x"])})
    translator = AgentTranslator(ROWS, spaces.Box(low, low + 2), fields)
    view = translator.translate_observation(np.ones((4, 2)), {})
    actors = [("unit", i) for i in range(4)]
    action = ContinuousAction(actors, np.full((4, 1), -0.5, np.float32), ["x"])
    with pytest.raises(InvalidAction, match=r"actor \('unit', 2\), x: .* from 0 to 2, got -0.5"):
        translator.translate_actions(view, {"go": action})


WHOLE = spaces.Box(0, 3, (2,), np.int64)
HALF = spaces.Box(np.float32([0, 0]), np.float32([1, np.inf]))
FIXED = spaces.Box(np.float32([0, 1]), np.float32([1, 1]))


@pytest.mark.parametrize(
    ("space", "actions", "message"),
    [
        (WHOLE, {}, r"^action '': expected a Box of floats, .*int64\); name the choices with Cho"),
        (
            spaces.Dict(a=WHOLE),
            {"go": Number("a")},
            r"^action 'a': .*Choice\('a', values=\[...\]\)",
        ),
        (HALF, {}, "^action '', 1: expected a smallest .* both finite or both .* got 0 and inf;"),
        (spaces.Dict(a=HALF), {}, "^action 'a', 1: .*got 0 and inf"),
        (HALF, {"go": Number(names=["x", "y"])}, "^action '', y: .*got 0 and inf"),
        (FIXED, {}, "^action '', 1: expected a smallest and a larger number, .*got 1 and 1"),
        (spaces.Box(0, 1, (0,)), {}, r"'action'\].path: expected a Box with numbers, got .*\(0,\)"),
        (spaces.Discrete(2), {"go": Number()}, r"'go'\]: expected one Box, got parts at \[''\]"),
        (
            spaces.Tuple([spaces.Box(0, 1), spaces.Box(0, 1)]),
            {"go": Number()},
            r"expected one Box, got parts at \['0', '1'\]; set path to one of these",
        ),
        (
            spaces.Box(0, 1, (2,)),
            {"go": Number(names=["a"])},
            r"names: expected 2 names, got \['a'\]",
        ),
        (spaces.Box(0, 1, (2,)), {"go": Number(names="ab")}, "names: expected 2 names, got 'ab'"),
        (spaces.Box(0, 1, (2,)), {"go": Number(names=["a", "a"])}, "'a'"),
        (spaces.Box(0, 1, (4,)), {"go": Number(actors="tree")}, "actors: expected a type among"),
        (
            spaces.Box(0, 1, (6,)),
            {"go": Number(actors="unit")},
            "each of the 4 rows of 'unit', got .*6",
        ),
        (spaces.Box(0, 1, (3, 2)), {"go": Number(actors="unit")}, "each of the 4 rows .* for 3;"),
        (
            spaces.Box(0, 1, (8,)),
            {"go": Number(actors="unit", names=["a", "b", "c"])},
            r"names: expected a divisor of 8 names, got \['a', 'b', 'c'\]",
        ),
        (
            spaces.Box(0, 1, (4, 2)),
            {"go": Number(actors="unit", names=["a"])},
            r"names: expected 2 names, got \['a'\]",
        ),
        (spaces.Box(0, 1, (2,)), {"go": Number("x")}, "path: expected one of"),
        (spaces.Box(0, 1, (2,)), {"go": Number(), "do": Number()}, "each component in one action"),
    ],
)
def test_invalid_continuous_mappings_are_refused(
    space: Space, actions: dict[str, AnyAction], message: str
) -> None:
    with pytest.raises(InvalidSpace, match=message) as raised:
        AgentTranslator(ROWS, space, FieldMap(UNITS, actions=actions))
    assert "\n" not in str(raised.value)


def test_varying_rows_need_names_to_split_a_flat_box() -> None:
    fields = FieldMap(UNITS, actions={"go": Number(actors="unit")})
    with pytest.raises(InvalidSpace, match="names: expected a divisor of 8 names, got None"):
        AgentTranslator(ANY_ROWS, spaces.Box(0, 1, (8,)), fields)


def test_complete_mapping_contains_inferred_names() -> None:
    space = spaces.Dict(push=spaces.Box(-1, 1, (2,)), go=spaces.Discrete(2))
    inferred = AgentTranslator(FLAT, space)
    assert inferred.complete.actions["push"] == Number("push", names=["0", "1"])
    written = AgentTranslator(FLAT, space, inferred.complete)
    assert written.action_space == inferred.action_space
    assert written.complete.global_features == [
        Globals("", columns=["observation.0", "observation.1"])
    ]
    assert eval(repr(written.complete)) == inferred.complete


# -- Worlds ----------------------------------------------------------------------------------------


class Thrown(Hunt):
    """Agents that throw: two numbers and the choice of a move."""

    def action_space(self, agent: str) -> Space:
        throw = spaces.Box(np.float32([-1, 2]), np.float32([1, 3]))
        return spaces.Dict({**super().action_space(agent).spaces, "throw": throw})  # type: ignore[attr-defined]

    def check(self, agent: str, action: Any) -> None:
        super().check(agent, action)
        assert isinstance(action["throw"], np.ndarray)


LIVES = {"wolf_0": 3, "wolf_1": 2, "deer_0": -4}
PACKS = {"wolves": ["wolf_0", "wolf_1"], "deer": ["deer_0"]}
MIXED = spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3), spaces.Box(0, 5, ())])


def show(observation_space: Space, action_space: Space) -> Show:
    """Create an environment with its own spaces, which have separate random states."""
    return Show(copy.deepcopy(observation_space), action_space)


WORLDS: dict[str, Any] = {
    "one agent": FromGymnasium.of(maker(show, ANY_ROWS, MIXED)),
    "rows": FromGymnasium.of(
        maker(show, ROWS, spaces.Box(-1, 1, (4, 2))),
        FieldMap(UNITS, actions={"go": Number(actors="unit")}),
    ),
    "sides": FromPettingZoo.of(maker(Thrown, LIVES)),
    "groups": FromPettingZoo.of(maker(Thrown, LIVES, kinds=True)),
    "teams": FromPettingZoo.of(maker(Thrown, LIVES), None, PACKS),
    "teams of groups": FromPettingZoo.of(maker(Thrown, LIVES, kinds=True), None, PACKS),
}


@pytest.mark.parametrize("world", WORLDS)
def test_continuous_environment_passes_check_env(world: str) -> None:
    report = check_env(WORLDS[world], episodes=3)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("world", ["one agent", "rows", "teams of groups"])
def test_worker_processes_match_single_process(world: str) -> None:
    num_envs = 2 * getattr(WORLDS[world], "num_sides", 1)
    apart = ParallelEnvList(WORLDS[world], num_envs, 1)
    assert_workers_match(apart, EnvList(WORLDS[world], num_envs, validate=True), 9)


def test_continuous_team_actions_reach_their_member() -> None:
    match = FromPettingZoo(maker(Thrown, LIVES), None, PACKS)
    space = match.action_space()["throw"]
    assert space == ContinuousActionSpace({"0": (-1, 1), "1": (2, 3)})
    match.seed(0)
    rng, frames, counts = np.random.default_rng(0), match.reset(), set()
    while not frames[0].done:
        chosen = [choose(obs, match.obs_space(), match.action_space(), rng) for obs in frames]
        frames = match.act(chosen)
        numbers = {
            actor: row.tolist()
            for action in chosen
            if "throw" in action
            for actor, row in zip(action["throw"].actors, action["throw"].values, strict=True)  # type: ignore[attr-defined]
        }
        env_numbers = {
            agent: one["throw"].tolist() for agent, one in match.env.action_log[-1].items()
        }
        assert numbers == env_numbers
        counts.add(len(numbers))
    assert counts == {1, 2, 3}


def test_rows_of_team_members_choose_numbers() -> None:
    """Members observe different rows; some rows have no numbers in the action."""

    class Crews(Hunt):
        def action_space(self, agent: str) -> Space:
            return spaces.Box(np.float32([[0], [1]]), np.float32([[5], [6]]))

        def check(self, agent: str, action: Any) -> None:
            assert self.action_space(agent).contains(action)

        def infos(self, agents: list[str]) -> Any:
            return {agent: {} for agent in agents}

        def step(self, actions: dict[str, Any]) -> Any:
            self.before = {agent: len(self.observations[agent]["seen"]) for agent in self.agents}
            return super().step(actions)

    fields = FieldMap(
        {"unit": Rows("seen", columns=["who", "row"])},
        actions={"pull": Number(actors="unit", names=["force"])},
    )
    match = FromPettingZoo(maker(Crews, LIVES), fields, PACKS)
    match.seed(4)
    rng, frames, num_numbers, num_idle = np.random.default_rng(0), match.reset(), 0, 0
    while not frames[0].done:
        chosen = [choose(obs, match.obs_space(), match.action_space(), rng) for obs in frames]
        numbers = [
            iter(side_actions["pull"].values.ravel().tolist())
            for side_actions in chosen
            if "pull" in side_actions
        ]  # type: ignore[attr-defined]
        every = itertools.chain(*numbers)
        frames = match.act(chosen)
        for agent, action in match.env.action_log[-1].items():
            n = min(match.env.before[agent], 2)
            expected = [[next(every)] for _ in range(n)] + [[0], [1]][n:]
            assert action.tolist() == expected
            num_numbers += n
            num_idle += match.env.before[agent] > 2
        assert not [*every]
    assert num_numbers
    assert num_idle


class Bids(Rounds):
    """Turn-based agents with a continuous action."""

    def __init__(self) -> None:
        super().__init__()
        box = spaces.Box(0, 2, (1,), np.float32)
        self.action_spaces = dict.fromkeys(self.possible_agents, box)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        super().reset(seed, options)
        self.infos = {agent: {} for agent in self.agents}
        self.bids: list[float] = []

    def step(self, action: Any) -> None:
        if action is not None:
            assert self.action_space(self.agent_selection).contains(action)
            self.bids.append(action.item())
        super().step(None if action is None else 1)


def test_continuous_actions_of_turn_based_agents() -> None:
    match = FromPettingZooTurns(Bids)
    assert match.action_space() == {"action": GlobalContinuousActionSpace({"0": (0, 2)})}
    frames, rng, numbers = match.reset(), np.random.default_rng(0), list[float]()
    while not frames[0].done:
        chosen = [choose(obs, match.obs_space(), match.action_space(), rng) for obs in frames]
        numbers += [action["action"].of("0") for action in chosen if action.get("action")]  # type: ignore[attr-defined]
        frames = match.act(chosen)
    assert numbers == match.env.bids
    assert len(numbers) == len(Rounds.ORDER)
    report = check_env(FromPettingZooTurns.of(Bids), episodes=2)
    assert report.ok, str(report)


def test_numbers_of_done_agents_are_repeated() -> None:
    class Throwers(Turns):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Tuple([spaces.Box(-1, 1, (2,))] * 2)

        def info(self) -> Any:
            return {}

    report = check_env(FromGymnasiumAgents.of(Throwers), episodes=2)
    assert report.ok, str(report)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_vectorised_environments_receive_chosen_numbers(mode: AutoresetMode) -> None:
    space = spaces.Dict(push=spaces.Box(1, 2, (2,)), go=spaces.Discrete(2))
    worlds = [Show(FLAT, space, None, n) for n in (2, 3)]
    vec_env = SyncVectorEnv([lambda one=one: one for one in worlds], autoreset_mode=mode)  # type: ignore[misc]
    envs = FromGymnasiumVector(vec_env)
    batch, rng = envs.reset(envs.obs_space()), np.random.default_rng(0)
    for _ in range(8):
        choices = random_choices(batch, envs.action_space(), rng)
        counts = [len(world.action_log) for world in worlds]
        batch = envs.act(choices, envs.obs_space())
        for world, count, chosen in zip(worlds, counts, choices["push"].of_frames(), strict=True):
            if len(world.action_log) > count and len(chosen):
                assert world.action_log[-1]["push"].tolist() == chosen[0].tolist()


def test_choice_values_replace_a_box() -> None:
    """Includes a `Box` of integers, which is no continuous action."""
    for space in (spaces.Box(-2, 2, (1,)), spaces.Box(-2, 2, (1,), np.int64)):
        fields = FieldMap(actions={"push": Choice(values=[[-2], [0], [2]])})
        translator = AgentTranslator(FLAT, space, fields)
        view = translator.translate_observation(np.zeros(2), {})
        seen = {play(translator, view, np.random.default_rng(i)).item() for i in range(20)}
        assert seen == {-2, 0, 2}
