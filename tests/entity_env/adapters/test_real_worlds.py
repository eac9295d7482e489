"""Third-party environments with adapters compared with the bare environments."""

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
from tests.entity_env.adapters.same import assert_workers_match
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
def test_intersection_observes_present_vehicles_with_its_own_names() -> None:
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
            vehicles = value[value[:, 0] == 1]
            assert np.array_equal(obs.features["entity"], vehicles[:, 1:].astype(np.float32))
            if obs.done or seed > 0:  # a step takes 0.05 s
                break
            index = int(rng.integers(3))
            value, reward, terminated, truncated, _ = raw.step(index)
            obs = env.act(choice(index))
            assert (obs.terminated, obs.truncated) == (terminated, truncated and not terminated)
            assert obs.reward == reward
    env.close()
    raw.close()


def test_ego_vehicle_of_the_intersection_is_the_first_row() -> None:
    env = FromGymnasium("highway_env:intersection-v0", CARS)
    env.seed(0)
    obs = env.reset()
    raw: Any = gymnasium.make("highway_env:intersection-v0", disable_env_checker=True)
    value, _ = raw.reset(seed=0)
    assert np.array_equal(obs.features["ego"], value[:1, 1:].astype(np.float32))
    other_cars = value[1:][value[1:, 0] == 1]
    assert np.array_equal(obs.features["car"], other_cars[:, 1:].astype(np.float32))
    env.close()
    raw.close()


def test_pendulum_receives_the_chosen_torque() -> None:
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


def test_foragers_observe_present_food_and_players() -> None:
    match = FORAGERS()
    rng, counts = np.random.default_rng(0), set()
    for seed in range(12):
        raw: Any = gymnasium.make(FORAGING_ID, disable_env_checker=True)
        match.seed(seed)
        frames, (values, _) = match.reset(), raw.reset(seed=seed)
        while True:
            for obs, value in zip(frames, values, strict=True):
                triples = value.reshape(5, 3)
                is_present = (triples != [-1, -1, 0]).any(axis=1)
                assert np.array_equal(obs.features["food"], triples[:3][is_present[:3]])
                assert np.array_equal(obs.features["player"], triples[3:][is_present[3:]])
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


def test_foraging_resets_depend_on_the_seed_only() -> None:
    """The wrapped environment keeps the positions of players of the last episode free."""
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


def test_knights_and_archers_observe_their_rows_and_die() -> None:
    match, rng = KNIGHTS(), np.random.default_rng(0)
    agents, sizes = match.env.possible_agents, set()
    deaths = 0
    for seed in range(4):
        raw = make_kaz(line_death=True, max_cycles=80)  # recreated: its reset keeps state
        match.seed(seed)
        frames, (values, _) = match.reset(), raw.reset(seed=seed)
        alive = list(raw.agents)
        over: dict[str, bool] = {}
        while not frames[0].done:
            for agent, obs in zip(agents, frames, strict=True):
                if agent in alive:
                    expect_kaz(obs.features, values[agent], [])
                    sizes.add(len(values[agent]))
                else:
                    assert not obs.actions
                    assert not any(map(len, obs.features.values()))
            indices = rng.choice(6, 4, p=[0.1, 0.5, 0.1, 0.1, 0.1, 0.1]).tolist()
            env_actions = {a: i for a, i in zip(agents, indices, strict=True) if a in alive}
            values, rewards, terminated, truncated, _ = raw.step(env_actions)
            frames = match.act(
                [choice(i) if a in alive else {} for a, i in zip(agents, indices, strict=True)]
            )
            assert [obs.reward for obs in frames] == [rewards[a] for a in agents]
            over |= {a: not terminated[a] for a in alive if terminated[a] or truncated[a]}
            alive = list(raw.agents)
            deaths += 0 < len(alive) < 4
        assert [obs.truncated for obs in frames] == [over[a] for a in agents]
    assert len(sizes) > 2
    assert deaths > 0


def test_teams_of_knights_and_archers_observe_the_rows_of_members() -> None:
    match, raw = KNIGHTS_IN_TEAMS(), make_kaz(line_death=True, max_cycles=80)
    match.seed(1)
    frames, (values, _) = match.reset(), raw.reset(seed=1)
    rng, alone = np.random.default_rng(1), 0
    while not frames[0].done:
        chosen: list[Any] = []
        env_actions = {a: int(rng.choice(6, p=[0.1, 0.5, 0.1, 0.1, 0.1, 0.1])) for a in raw.agents}
        for members, obs in zip(KAZ_TEAMS.values(), frames, strict=True):
            alive = [a for a in members if a in raw.agents]
            assert list(obs.ids.get("agent", [])) == alive
            alone += len(alive) == 1
            parts = [split(obs, i) for i in range(2)]
            for agent in alive:
                i = members.index(agent)
                expect_kaz(parts[i], values[agent], [1.0 - i, float(i)])
            chosen.append(team_action(alive, env_actions))
        values, rewards, *_ = raw.step(env_actions)
        frames = match.act(chosen)
        totals = [sum(rewards[a] for a in members) for members in KAZ_TEAMS.values()]
        assert [obs.reward for obs in frames] == totals
    assert alone > 0


def split(obs: Observation, member: int) -> dict[str, Any]:
    """Return the entities observed by one member of a team."""
    return {
        kind: np.array([row for row in obs.features[kind] if row[-2 + member] == 1]).reshape(-1, 7)
        for kind in KINDS
        if kind in obs.features
    }


def team_action(alive: list[str], env_actions: dict[str, int]) -> dict[str, Any]:
    indices = np.array([env_actions[a] for a in alive], dtype=np.int64)
    labels = [str(i) for i in range(6)]
    return {"action": CategoricalAction(alive, indices, labels)} if alive else {}


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS, ids=NAMES)
def test_third_party_environment_passes_check_env(world: Any) -> None:
    report = check_env(world, episodes=2, max_steps=5 if world is INTERSECTION else 30)
    assert not report.problems, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS[1:], ids=NAMES[1:])
def test_env_list_and_workers_give_equal_steps(world: Any) -> None:
    """Without the intersection, because workers import its package slowly."""
    num_envs = 2 * getattr(world, "num_sides", 1)
    assert_workers_match(
        ParallelEnvList(world, num_envs, 1), EnvList(world, num_envs, validate=True), steps=15
    )


def test_number_of_column_names_of_knights_and_archers() -> None:
    env = make_kaz()
    assert env.observation_space("archer_0").feature_space.shape == (len(KAZ_COLUMNS),)
