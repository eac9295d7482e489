"""Ids of entities from row numbers or from a column."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from entity_env import EnvList, InvalidObservation, InvalidSpace, check_env
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_gymnasium_vector import FromGymnasiumVector
from entity_env.adapters.from_pettingzoo import FromPettingZoo
from entity_env.adapters.mapping import Choice, FieldMap, Place, Rows, Select

COLUMNS = ["who", "x", "presence"]


class Table(gymnasium.Env):  # type: ignore[type-arg]
    """Environment with a sequence of tables; the action is a row number."""

    observation_space = spaces.Box(-1e9, 1e9, (4, 3), np.float64)
    action_space = spaces.Discrete(4)

    def __init__(self, frames: Any) -> None:
        self.frames = frames

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.chosen = 0, [-1]
        return self.table(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.chosen.append(int(action))
        over = self.t == len(self.frames) - 1
        return self.table(), float(action), over, False, {}

    def table(self) -> Any:
        rows = self.frames[min(self.t, len(self.frames) - 1)]
        return np.array([[who, 0.5, presence] for who, presence in rows], np.float64)


def envs_of(frames: Any, **rows: Any) -> EnvList:
    mapping = FieldMap(
        {"unit": Rows("", COLUMNS, **rows)}, actions={"pick": Select("", actees="unit")}
    )
    cls = FromGymnasium.of(lambda: Table(frames), mapping)
    envs = EnvList(cls, 1)
    envs.track()
    return envs


def numbers(envs: EnvList, frames: Any) -> list[list[int]]:
    observations, obs = [], envs.reset(envs.obs_space())
    for _ in frames[1:]:
        observations.append(obs.identity["unit"].values.tolist())
        obs = envs.act({"pick": envs_first(obs)}, envs.obs_space())
    return observations


def envs_first(obs: Any) -> Any:
    actors = obs.action_masks["pick"].actors
    return type(actors)(np.zeros(len(actors.values), np.int64), actors.lengths)


frames_of = st.lists(
    st.tuples(
        st.permutations([0.0, 3.0, -1.5, 2.0**24]),
        st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
    ).map(lambda one: [*zip(*one, strict=True)]),
    min_size=2,
    max_size=6,
)


@given(frames_of, st.sampled_from(["row", "who"]), st.booleans())
def test_identity_is_the_row_or_a_column(frames: Any, identity: str, shows_all: bool) -> None:
    features = None if shows_all else ["x"]
    identities = numbers(envs_of(frames, identity=identity, features=features), frames)
    seen: list[float] = []
    for frame, got in zip(frames[:-1], identities, strict=True):
        keys = [
            (i if identity == "row" else who) for i, (who, presence) in enumerate(frame) if presence
        ]
        seen += [key for key in keys if key not in seen]
        assert got == [seen.index(key) for key in keys]


def test_entities_without_identity_have_no_ids() -> None:
    frames = [[(0.0, True)] * 4] * 3
    assert numbers(envs_of(frames), frames) == [[], []]


def test_actions_reach_the_rows_of_entities_with_ids() -> None:
    frames = [[(7.0, False), (5.0, True), (6.0, True), (8.0, False)]] * 4
    made: list[Table] = []

    def make() -> Table:
        made.append(Table(frames))
        return made[-1]

    rows = Rows("", COLUMNS, identity="who")
    mapping = FieldMap({"unit": rows}, actions={"pick": Select("", actees="unit")})
    envs = EnvList(FromGymnasium.of(make, mapping), 1)
    obs = envs.reset(envs.obs_space())
    for choice in (1, 0):
        chosen = envs_first(obs)
        chosen.values[:] = choice
        obs = envs.act({"pick": chosen}, envs.obs_space())
    assert made[-1].chosen == [-1, 2, 1]
    check_env(FromGymnasium.of(make, mapping))


def test_duplicate_ids_are_refused() -> None:
    frames = [[(1.0, True), (2.0, True), (2.0, False), (3.0, True)]] * 2
    frames.append([(1.0, True), (2.0, True), (2.0, True), (3.0, True)])
    envs = envs_of([*frames, frames[0]], identity="who")
    obs = envs.reset(envs.obs_space())
    obs = envs.act({"pick": envs_first(obs)}, envs.obs_space())
    expected = r"environment 0, episode 0, step 2: ids\['unit'\]: expected unique ids, got 'unit 2"
    with pytest.raises(InvalidObservation, match=expected):
        envs.act({"pick": envs_first(obs)}, envs.obs_space())


def test_fields_of_a_type_share_an_identity_and_places_have_ids() -> None:
    frames = [[(1.0, True), (2.0, True), (3.0, True), (4.0, True)]] * 3
    for identity in ("row", "who"):
        parts = [Rows("", COLUMNS, span=(i, i + 2), identity=identity) for i in (0, 2)]
        places = [parts[0], Place(who=9, x=1), parts[1]]
        mapping = FieldMap({"unit": places}, actions={"choose": Choice("")})
        envs = EnvList(FromGymnasium.of(lambda: Table(frames), mapping), 1)
        envs.track()
        assert envs.reset(envs.obs_space()).identity["unit"].values.tolist() == [*range(5)]
    parts[0] = Rows("", COLUMNS, span=(0, 2), identity="row")
    mapping = FieldMap({"unit": parts}, actions={"choose": Choice("")})
    with pytest.raises(InvalidSpace, match="expected the same identity for every field"):
        FromGymnasium.of(lambda: Table(frames), mapping)().obs_space()


def test_unknown_identity_column_is_refused_with_the_closest_name() -> None:
    with pytest.raises(InvalidSpace, match=r"'unit'\]\.identity: expected .*'whom'"):
        envs_of([[(0.0, True)] * 4] * 2, identity="whom")


@pytest.mark.parametrize("mode", gymnasium.vector.AutoresetMode)
def test_vectorised_environments_track_identity_like_single_ones(mode: Any) -> None:
    frames = [[(k % 3.0, True), (9.0, k % 2), (5.0, True), (7.0 + k, True)] for k in range(5)]
    made = gymnasium.vector.SyncVectorEnv([lambda: Table(frames)] * 2, autoreset_mode=mode)
    mapping = FieldMap(
        {"unit": Rows("", COLUMNS, identity="who")}, actions={"pick": Select("", actees="unit")}
    )
    envs = FromGymnasiumVector(made, mapping)
    envs.track()
    expected = numbers(envs_of([*frames, frames[0]], identity="who"), frames)
    obs, identities = envs.reset(envs.obs_space()), []
    while not obs.done.any():
        identities.append(obs.identity["unit"][1].values.tolist())
        obs = envs.act({"pick": envs_first(obs)}, envs.obs_space())
    assert identities[:4] == expected
    assert obs.identity["unit"][1].values.tolist() == [0, 1, 2]


class Pair:
    """Two agents that observe the same rows."""

    possible_agents = ("a_0", "a_1")
    metadata: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(-9, 9, (2, 2), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents, self.t, self.action_log = list(self.possible_agents), 0, []
        return dict.fromkeys(self.agents, np.array([[5, 0], [6, 1]], np.float32)), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        self.action_log.append(actions)
        observations = dict.fromkeys(self.agents, np.array([[6, 0], [5, 1]], np.float32))
        ends = dict.fromkeys(self.agents, self.t == 3)
        rewards = dict.fromkeys(self.agents, 0.0)
        if self.t == 3:
            self.agents = []
        return observations, rewards, ends, dict.fromkeys(ends, False), {}


def test_team_members_have_separate_ids_of_observed_entities() -> None:
    mapping = FieldMap({"thing": Rows("", ["who", "x"], identity="who")})
    world = FromPettingZoo.of(Pair, mapping, teams={"all": ["a_0", "a_1"]})
    envs = EnvList(world, 1)
    envs.track()
    obs = envs.reset(envs.obs_space())
    assert obs.identity["agent"].values.tolist() == [0, 1]
    assert obs.identity["thing"].values.tolist() == [0, 1, 2, 3]
    actors = obs.action_masks["action"].actors
    obs = envs.act({"action": type(actors)(np.array([0, 1]), actors.lengths)}, envs.obs_space())
    assert obs.identity["thing"].values.tolist() == [1, 0, 3, 2]
