"""Published environments through the adapters against the environments themselves."""

from typing import Any

import gymnasium
import numpy as np
import pytest

from entity_env import (
    CategoricalAction,
    EnvList,
    GlobalCategoricalAction,
    GlobalContinuousAction,
    GlobalContinuousActionSpace,
    Observation,
    ParallelEnvList,
    check_env,
)
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents, FromPettingZoo
from entity_env.adapters.mapping import FieldMap, Rows
from tests.entity_env.adapters.foragers import FORAGERS
from tests.entity_env.adapters.same import assert_workers_show_the_same
from tests.entity_env.adapters.worlds import (
    FORAGING,
    FORAGING_ID,
    KAZ,
    KAZ_COLUMNS,
    KAZ_TEAMS,
    KINDS,
    make_kaz,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*intersection-v0 is out of date:DeprecationWarning"
)

CARS = FieldMap({"ego": Rows(span=(0, 1)), "car": Rows(span=(1, 15))})
INTERSECTION = FromGymnasium.of("highway_env:intersection-v0")
FORAGING_TEAM = FromGymnasiumAgents.of(FORAGING_ID, FORAGING, {"all": ["0", "1"]})
KNIGHTS = FromPettingZoo.of(make_kaz, KAZ, line_death=True, max_cycles=80)
KNIGHTS_IN_TEAMS = FromPettingZoo.of(make_kaz, KAZ, KAZ_TEAMS, line_death=True, max_cycles=80)
WORLDS: list[Any] = [INTERSECTION, FORAGERS, FORAGING_TEAM, KNIGHTS, KNIGHTS_IN_TEAMS]
NAMES = ["intersection", "foragers", "foraging_team", "knights", "knights_in_teams"]


@pytest.fixture(autouse=True)
def no_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


def choice(index: int) -> dict[str, Any]:
    return {"action": GlobalCategoricalAction(index, str(index))}


@pytest.mark.slow
def test_intersection_shows_the_present_vehicles_by_the_names_it_ships() -> None:
    env = INTERSECTION()
    raw: Any = gymnasium.make("highway_env:intersection-v0", disable_env_checker=True)
    names = ["x", "y", "vx", "vy", "cos_h", "sin_h"]
    assert env.obs_space().entities["entity"].features == names
    labels = env.action_space()["action"].index_to_label  # type: ignore[union-attr]
    assert labels == ["SLOWER", "IDLE", "FASTER"]
    rng = np.random.default_rng(0)
    for seed in range(2):
        env.seed(seed)
        obs, (value, _) = env.reset(), raw.reset(seed=seed)
        while True:
            here = value[value[:, 0] == 1]
            assert np.array_equal(obs.features["entity"], here[:, 1:].astype(np.float32))
            if obs.done or seed > 0:  # a step takes 0.05 s
                break
            index = int(rng.integers(3))
            value, reward, terminated, truncated, _ = raw.step(index)
            obs = env.act(choice(index))
            assert (obs.terminated, obs.truncated) == (terminated, truncated and not terminated)
            assert obs.reward == reward
    env.close()
    raw.close()


def test_own_car_at_the_intersection_is_the_first_row() -> None:
    env = FromGymnasium("highway_env:intersection-v0", CARS)
    env.seed(0)
    obs = env.reset()
    raw: Any = gymnasium.make("highway_env:intersection-v0", disable_env_checker=True)
    value, _ = raw.reset(seed=0)
    assert np.array_equal(obs.features["ego"], value[:1, 1:].astype(np.float32))
    others = value[1:][value[1:, 0] == 1]
    assert np.array_equal(obs.features["car"], others[:, 1:].astype(np.float32))
    env.close()
    raw.close()


def test_pendulum_gets_the_torque_that_was_chosen() -> None:
    env = FromGymnasium("Pendulum-v1")
    raw: Any = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    assert env.action_space() == {"action": GlobalContinuousActionSpace({"0": (-2, 2)})}
    env.seed(3)
    obs, (value, _) = env.reset(), raw.reset(seed=3)
    rng = np.random.default_rng(0)
    while not obs.done:
        assert np.array_equal(obs.global_features, value)
        torque = rng.uniform(-2, 2, 1).astype(np.float32)
        value, reward, _, truncated, _ = raw.step(torque)
        obs = env.act({"action": GlobalContinuousAction(torque, ["0"])})
        assert (obs.reward, obs.truncated) == (reward, truncated)
    assert obs.truncated
    report = check_env(FromGymnasium.of("Pendulum-v1"), episodes=2)
    assert report.ok, str(report)


def test_foragers_see_food_and_players_that_are_there() -> None:
    match = FORAGERS()
    rng, counts = np.random.default_rng(0), set()
    for seed in range(12):
        raw: Any = gymnasium.make(FORAGING_ID, disable_env_checker=True)
        match.seed(seed)
        frames, (values, _) = match.reset(), raw.reset(seed=seed)
        while True:
            for obs, value in zip(frames, values, strict=True):
                triples = value.reshape(5, 3)
                there = (triples != [-1, -1, 0]).any(axis=1)
                assert np.array_equal(obs.features["food"], triples[:3][there[:3]])
                assert np.array_equal(obs.features["player"], triples[3:][there[3:]])
                counts.add(len(obs.features["food"]))
            if frames[0].done:
                break
            indices = rng.choice(6, 2, p=[0.05, 0.15, 0.15, 0.15, 0.15, 0.35])
            values, rewards, terminated, truncated, _ = raw.step(tuple(indices.tolist()))
            frames = match.act([choice(int(i)) for i in indices])
            assert [obs.reward for obs in frames] == pytest.approx(rewards)
            assert [obs.terminated for obs in frames] == [terminated] * 2
            assert [obs.truncated for obs in frames] == [truncated and not terminated] * 2
    assert len(counts) > 1, "some food was eaten"


def test_foragers_begin_where_their_seed_says_whatever_was_before() -> None:
    """The world itself lets nobody begin where somebody stood at the end of the last episode."""
    match = FORAGERS()
    for seed in range(60):
        fresh = FORAGERS()
        match.seed(seed)
        fresh.seed(seed)
        for obs, other in zip(match.reset(), fresh.reset(), strict=True):
            assert np.array_equal(obs.features["player"], other.features["player"])


def expect_kaz(features: Any, table: Any, member: list[float]) -> None:
    """Assert that the features are the rows of one agent, by the type in its columns."""
    for i, kind in enumerate(KINDS):
        rows = table[table[:, i] == 1][:, 6:].astype(np.float32)
        if member:
            rows = np.hstack([rows, np.tile(np.float32(member), (len(rows), 1))])
        assert np.array_equal(features[kind], rows)


def test_knights_and_archers_see_their_lists_and_die() -> None:
    match, rng = KNIGHTS(), np.random.default_rng(0)
    agents, sizes = match.env.possible_agents, set()
    deaths = 0
    for seed in range(4):
        raw = make_kaz(line_death=True, max_cycles=80)  # anew: its reset leaves something behind
        match.seed(seed)
        frames, (values, _) = match.reset(), raw.reset(seed=seed)
        here = list(raw.agents)
        over: dict[str, bool] = {}
        while not frames[0].done:
            for agent, obs in zip(agents, frames, strict=True):
                if agent in here:
                    expect_kaz(obs.features, values[agent], [])
                    sizes.add(len(values[agent]))
                else:
                    assert not obs.actions
                    assert not any(map(len, obs.features.values()))
            indices = rng.choice(6, 4, p=[0.1, 0.5, 0.1, 0.1, 0.1, 0.1]).tolist()
            taken = {a: i for a, i in zip(agents, indices, strict=True) if a in here}
            values, rewards, terminated, truncated, _ = raw.step(taken)
            frames = match.act(
                [choice(i) if a in here else {} for a, i in zip(agents, indices, strict=True)]
            )
            assert [obs.reward for obs in frames] == [rewards[a] for a in agents]
            over |= {a: not terminated[a] for a in here if terminated[a] or truncated[a]}
            here = list(raw.agents)
            deaths += 0 < len(here) < 4
        assert [obs.truncated for obs in frames] == [over[a] for a in agents]
    assert len(sizes) > 2
    assert deaths > 0


def test_teams_of_knights_and_archers_see_what_their_members_see() -> None:
    match, raw = KNIGHTS_IN_TEAMS(), make_kaz(line_death=True, max_cycles=80)
    match.seed(1)
    frames, (values, _) = match.reset(), raw.reset(seed=1)
    rng, alone = np.random.default_rng(1), 0
    while not frames[0].done:
        chosen: list[Any] = []
        taken = {a: int(rng.choice(6, p=[0.1, 0.5, 0.1, 0.1, 0.1, 0.1])) for a in raw.agents}
        for members, obs in zip(KAZ_TEAMS.values(), frames, strict=True):
            here = [a for a in members if a in raw.agents]
            assert list(obs.ids.get("agent", [])) == here
            alone += len(here) == 1
            parts = [split(obs, i) for i in range(2)]
            for agent in here:
                i = members.index(agent)
                expect_kaz(parts[i], values[agent], [1.0 - i, float(i)])
            chosen.append(team_action(here, taken))
        values, rewards, *_ = raw.step(taken)
        frames = match.act(chosen)
        totals = [sum(rewards[a] for a in members) for members in KAZ_TEAMS.values()]
        assert [obs.reward for obs in frames] == totals
    assert alone > 0


def split(obs: Observation, member: int) -> dict[str, Any]:
    """Return the entities that one member of a team saw."""
    return {
        kind: np.array([row for row in obs.features[kind] if row[-2 + member] == 1]).reshape(-1, 7)
        for kind in KINDS
        if kind in obs.features
    }


def team_action(here: list[str], taken: dict[str, int]) -> dict[str, Any]:
    indices = np.array([taken[a] for a in here], dtype=np.int64)
    labels = [str(i) for i in range(6)]
    return {"action": CategoricalAction(here, indices, labels)} if here else {}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=NAMES)
def test_world_is_without_problems(world: Any) -> None:
    report = check_env(world, episodes=2, max_steps=5 if world is INTERSECTION else 30)
    assert not report.problems, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS[1:], ids=NAMES[1:])
def test_world_steps_alike_in_a_list_and_in_workers(world: Any) -> None:
    """Without the intersection, whose package takes a worker long to import."""
    num_envs = 2 * getattr(world, "num_sides", 1)
    assert_workers_show_the_same(
        ParallelEnvList(world, num_envs, 1), EnvList(world, num_envs, validate=True), steps=15
    )


def test_column_names_of_knights_and_archers_are_as_many_as_their_columns() -> None:
    env = make_kaz()
    assert env.observation_space("archer_0").feature_space.shape == (len(KAZ_COLUMNS),)
