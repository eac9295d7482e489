"""Parallel environments as matches, with a side for each agent or with teams."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from entity_env import (
    CategoricalActionSpace,
    Entity,
    EntityEnvError,
    EnvList,
    GlobalCategoricalActionSpace,
    InvalidObservation,
    InvalidSpace,
    Kind,
    Observation,
    ParallelEnvList,
    SelectEntityActionSpace,
    batch_obs,
    check_env,
)
from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents, FromPettingZoo, TupleToParallel
from entity_env.adapters.mapping import Choice, FieldMap, Globals, Place, Rows, Select
from entity_env.spaces import GLOBAL
from tests.entity_env.adapters.same import assert_workers_match
from tests.entity_env.adapters.worlds import Countdown, Hunt, Show, Turns, choose, maker

PICK = FieldMap(actions={"pick": Select("prey", "seen")}, metrics=["age"])
LIVES = {"wolf_0": 2, "wolf_1": 5, "deer_0": -3, "deer_1": -5}
TEAMS = {"wolves": ["wolf_0", "wolf_1"], "deer": ["deer_0", "deer_1"]}


def play(match: FromPettingZoo, seed: int) -> list[list[Observation]]:
    """Return the observations of one match with random legal actions."""
    rng = np.random.default_rng(seed)
    match.seed(seed)
    trajectory = [match.reset()]
    while not trajectory[-1][0].done:
        spaces_ = match.obs_space(), match.action_space()
        trajectory.append(match.act([choose(obs, *spaces_, rng) for obs in trajectory[-1]]))
    return trajectory


def test_each_agent_is_a_side_until_the_match_ends() -> None:
    match = FromPettingZoo(maker(Hunt, LIVES), PICK)
    assert match.num_sides == 4
    trajectory = play(match, 0)
    assert len(trajectory) == 6
    rewards = [[obs.reward for obs in frames] for frames in trajectory[1:]]
    assert rewards == [[1, 2, 3, 4], [1, 2, 3, 4], [0, 2, 3, 4], [0, 2, 0, 4], [0, 2, 0, 4]]
    counts = [[obs.num_entities("agent") for obs in frames] for frames in trajectory]
    assert counts[:5] == [[1, 1, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1]]
    assert [bool(obs.actions) for obs in trajectory[3]] == [False, True, False, True]
    last = trajectory[-1]
    assert [obs.terminated for obs in last] == [True, True, False, False]
    assert [obs.truncated for obs in last] == [False, False, True, True]
    # agents truncated before the end return their last observation, to bootstrap from
    assert last[2].global_features.tolist() == [2, 2]  # type: ignore[union-attr]
    assert last[0].global_features.tolist() == [0, 0]  # type: ignore[union-attr]
    assert [obs.metrics for obs in trajectory[3]] == [{}, {"age": 3.0}, {"age": 3.0}, {"age": 3.0}]


class Silent(Hunt):
    """Returns no observation of agents that die in a step; with `mute` no other results either."""

    mute = False

    def step(self, actions: dict[str, Any]) -> Any:
        values, *rest = super().step(actions)
        parts = [{a: part[a] for a in self.agents} for part in (values, *rest)]
        return tuple(parts) if self.mute else (parts[0], *rest)


class Mute(Silent):
    mute = True


class Blank(Hunt):
    """Returns None as the observation of agents that die in a step."""

    def step(self, actions: dict[str, Any]) -> Any:
        values, *rest = super().step(actions)
        return {a: values[a] if a in self.agents else None for a in values}, *rest


@pytest.mark.parametrize("world", [Silent, Blank])
@pytest.mark.parametrize("teams", [None, {"all": [*LIVES]}])
@pytest.mark.parametrize("kinds", [False, True])
def test_truncated_agent_without_an_observation_keeps_its_previous_view(
    kinds: bool, teams: Any, world: type[Hunt]
) -> None:
    """Otherwise its end would count as terminated, with a value of 0."""
    mapping = {"wolf": PICK, "deer": FieldMap()} if kinds else PICK
    match = FromPettingZoo(maker(world, LIVES, kinds), mapping, teams)
    trajectory = play(match, 0)
    assert len(trajectory) == 6
    last = trajectory[-1]
    if teams is not None:
        deer = "deer.agent" if kinds else "agent"
        assert last[0].truncated
        assert last[0].ids[deer] == ["deer_0", "deer_1"]
        return
    assert [obs.terminated for obs in last] == [True, True, False, False]
    assert [obs.truncated for obs in last] == [False, False, True, True]
    for side, step in ((2, 2), (3, 4)):  # the last frames in which they acted
        before = trajectory[step][side]
        assert before.actions
        assert not last[side].actions
        assert before.features.keys() == last[side].features.keys()
        for name, rows in before.features.items():
            assert np.asarray(last[side].features[name]).tolist() == np.asarray(rows).tolist()
    report = check_env(FromPettingZoo.of(maker(world, LIVES, kinds), mapping), episodes=2)
    assert report.ok, report


@pytest.mark.parametrize("lives", [{"a_0": -2, "a_1": -2}, {"a_0": 1, "a_1": 3}])
def test_agents_leaving_without_a_flag_are_refused(lives: dict[str, int]) -> None:
    match = FromPettingZoo(maker(Mute, lives), PICK)
    words = r"terminations, truncations: expected a flag of each agent that leaves .* \['a_0'"
    with pytest.raises(InvalidObservation, match=words):
        play(match, 0)


@pytest.mark.parametrize("teams", [None, TEAMS])
@pytest.mark.parametrize("kinds", [False, True])
def test_adapted_match_passes_check_env(teams: Any, kinds: bool) -> None:
    """The environment checks that actions are legal and that all living agents act."""
    mapping = {"wolf": PICK, "deer": FieldMap()} if kinds else PICK
    cls = FromPettingZoo.of(maker(Hunt, LIVES, kinds), mapping, teams)
    report = check_env(cls, episodes=5)
    assert not report.problems, str(report)
    assert cls.num_sides == (4 if teams is None else 2)


@pytest.mark.slow
def test_matches_step_in_env_lists_and_workers() -> None:
    cls = FromPettingZoo.of(maker(Hunt, LIVES), PICK, TEAMS)
    assert_workers_match(ParallelEnvList(cls, 8, 1), EnvList(cls, 8), steps=12)


def test_team_observes_living_members_and_their_entities() -> None:
    match = FromPettingZoo(maker(Hunt, LIVES), PICK, TEAMS)
    who = ["member.0", "member.1"]
    assert match.obs_space().global_features == []
    types = {name: entity.features for name, entity in match.obs_space().entities.items()}
    assert types == {
        "agent": ["me.0", "me.1", *who],
        "seen": ["feature.0", "feature.1", *who],
    }
    assert match.action_space() == {
        "pick": SelectEntityActionSpace(),
        "move": CategoricalActionSpace(["0", "1", "2"]),
    }
    trajectory = play(match, 1)
    world: Any = match.env
    alive = [[2, 2], [2, 2], [1, 2], [1, 1], [1, 1]]
    for frames, counts in zip(trajectory, alive, strict=False):
        assert [obs.num_entities("agent") for obs in frames] == counts
    wolves, deer = trajectory[2]
    assert wolves.ids["agent"] == ["wolf_1"]
    assert wolves.features["agent"].tolist() == [[1, 1, 0, 1]]  # type: ignore[union-attr]
    assert {tuple(row[2:]) for row in deer.features["seen"].tolist()} <= {(1, 0), (0, 1)}  # type: ignore[union-attr]
    for row in deer.features["seen"]:  # the world shows each agent its own number
        assert row[0] == 2 + row[3]
    assert [[obs.reward for obs in frames] for frames in trajectory[1:]] == [
        [3, 7],
        [3, 7],
        [2, 7],
        [2, 4],
        [2, 4],
    ]
    assert [(obs.terminated, obs.truncated) for obs in trajectory[-1]] == [
        (True, False),
        (False, True),
    ]
    assert trajectory[-1][1].ids["agent"] == ["deer_0", "deer_1"]
    assert world.action_log[3].keys() == {"wolf_1", "deer_1"}


def test_team_actions_reach_their_member_and_row() -> None:
    """Members select among the entities that they observe, by their own row numbers."""
    match = FromPettingZoo(
        maker(Hunt, {"a_0": 4, "a_1": 4, "a_2": 4}), PICK, {"all": ["a_1", "a_0", "a_2"]}
    )
    world: Any = match.env
    rng = np.random.default_rng(0)
    for seed in range(10):
        match.seed(seed)
        obs = match.reset()[0]
        while not obs.done:
            actions = choose(obs, match.obs_space(), match.action_space(), rng)
            pick, move = actions.get("pick"), actions["move"]
            before = world.observations
            obs = match.act([actions])[0]
            step_actions = world.action_log[-1]
            assert list(move.actors) == ["a_1", "a_0", "a_2"]  # type: ignore[union-attr]
            for agent, index in zip(move.actors, move.indices, strict=True):  # type: ignore[union-attr]
                assert step_actions[agent]["move"] == index
            chosen = dict(zip(pick.actors, pick.actees, strict=True)) if pick else {}  # type: ignore[union-attr]
            start = 0
            for agent in ["a_1", "a_0", "a_2"]:
                n = len(before[agent]["seen"])
                row = chosen[agent][1] - start if agent in chosen else 0
                assert step_actions[agent]["prey"] == row
                assert (agent in chosen) == (n > 0)
                start += n


def test_names_of_agent_groups_are_prefixed() -> None:
    sides = FromPettingZoo(maker(Hunt, LIVES, kinds=True), {"wolf": PICK})
    assert sides.obs_space().global_features == [
        "wolf.me.0",
        "wolf.me.1",
        "wolf.me.2",
        "deer.me.0",
        "deer.me.1",
    ]
    assert list(sides.obs_space().entities) == ["wolf.seen", "wolf.agent", "deer.seen"]
    assert sides.action_space() == {
        "wolf.pick": SelectEntityActionSpace(),
        "wolf.move": GlobalCategoricalActionSpace(["0", "1", "2", "3"]),
        "deer.move": GlobalCategoricalActionSpace(["0", "1", "2"]),
        "deer.prey": GlobalCategoricalActionSpace(["0", "1", "2"]),
    }
    wolf, _, deer, _ = play(sides, 0)[0]
    assert wolf.global_features.tolist() == [0, 0, 0, 0, 0]  # type: ignore[union-attr]
    assert deer.global_features.tolist() == [0, 0, 0, 2, 2]  # type: ignore[union-attr]
    teams = FromPettingZoo(maker(Hunt, LIVES, kinds=True), {"wolf": PICK}, TEAMS)
    assert set(teams.obs_space().entities) == {"wolf.agent", "wolf.seen", "deer.agent", "deer.seen"}
    with pytest.raises(InvalidSpace, match=r"among \['wolf', 'deer'\], got \['cat'\]"):
        FromPettingZoo(maker(Hunt, LIVES, kinds=True), {"cat": PICK})


def test_rows_of_members_act_in_a_team() -> None:
    """Units that each member commands are actors of the team."""

    class Units(Hunt):
        def observation_space(self, agent: str) -> Any:
            return spaces.Dict({"units": spaces.Box(0, 1, (3, 2), np.float32)})

        def action_space(self, agent: str) -> Any:
            return spaces.Dict(
                {"go": spaces.MultiDiscrete([4] * 3), "at": spaces.MultiDiscrete([3] * 3)}
            )

        def show(self, agent: str) -> Any:
            return {"units": self.rng.integers(0, 2, (3, 2)).astype(np.float32)}

        def mask(self, agent: str) -> Any:
            return np.ones(12, dtype=np.int8)

        def check(self, agent: str, action: Any) -> None:
            is_present = self.observations[agent]["units"][:, 0] == 1
            assert (action["go"][~is_present] == 3).all()
            assert is_present[action["at"]][is_present].all()

    mapping = FieldMap(
        {"unit": Rows("units", columns=["here", "x"], presence="here")},
        actions={
            "go": Choice("go", actors="unit", labels=["n", "e", "s", "stay"], default=3),
            "at": Select("at", "unit", actors="unit"),
        },
        action_mask=None,
    )
    for teams in (None, {"all": ["u_0", "u_1"]}):
        report = check_env(FromPettingZoo.of(maker(Units, {"u_0": 4, "u_1": 2}), mapping, teams))
        assert not report.problems, str(report)


def test_team_members_have_separate_places_and_kinds() -> None:
    seen = Rows("seen", columns=["who", "x"], one_hot={"who": ["a", "b", "c", "d"]}, numbered=True)
    entities = {"here": Place(x=1, number=5), "seen": seen}
    mapping = FieldMap(entities, actions={"move": Choice("move", actors="here")})
    cls = FromPettingZoo.of(maker(Hunt, LIVES), mapping, TEAMS)
    report = check_env(cls)
    assert report.ok, report
    match = cls()
    match.seed(0)
    for team, obs in zip(TEAMS.values(), match.reset(), strict=True):
        members = [list(LIVES).index(agent) for agent in team]
        assert obs.features["here"].tolist() == [[1, 5, *row] for row in np.eye(len(team)).tolist()]
        for row in obs.features["seen"]:
            who, number, member = np.flatnonzero(row[:4]), row[5], np.flatnonzero(row[6:])
            assert members[member[0]] == who[0]
            assert row[4] == number  # the second number of each row in this world


LABELS = FieldMap(
    {"seen": Rows("seen", columns=["who", "x"], kinds={"who": ["a", "b", "c", "d"]})},
    [Globals("me", columns=["me", "same"], kinds={"me": ["p", "q", "r", "s"]})],
)


def test_team_kinds_come_after_member_columns() -> None:
    cls = FromPettingZoo.of(maker(Hunt, LIVES), LABELS, TEAMS)
    report = check_env(cls)
    assert report.ok, report
    match = cls()
    size = max(map(len, TEAMS.values()))
    members = [f"member.{i}" for i in range(size)]
    types = match.obs_space().entities
    assert types["agent"] == Entity(["same", *members, Kind("me", ["p", "q", "r", "s"])])
    assert types["seen"] == Entity(["x", *members, Kind("who", ["a", "b", "c", "d"])])
    match.seed(0)
    for team, obs in zip(TEAMS.values(), match.reset(), strict=True):
        numbers = [list(LIVES).index(agent) for agent in team]
        columns = np.eye(len(team), size).tolist()
        assert np.asarray(obs.features["agent"]).tolist() == [
            [number, *columns_of_member, number]
            for number, columns_of_member in zip(numbers, columns, strict=True)
        ]
        for row in np.asarray(obs.features["seen"]).tolist():
            assert row[1:-1] == columns[numbers.index(int(row[-1]))]


def test_kinds_of_single_agent_sides_match_the_agent() -> None:
    """The labels of a dead agent are the first ones."""
    match = FromPettingZoo(maker(Hunt, {"u_0": 1, "u_1": 3}), LABELS)
    match.seed(0)
    trajectory = [np.asarray(obs.global_features).tolist() for obs in match.reset()]
    assert trajectory == [[0, 0], [1, 1]]
    rng = np.random.default_rng(0)
    frames = match.reset()
    space = match.obs_space()
    frames = match.act([choose(obs, space, match.action_space(), rng) for obs in frames])
    assert np.asarray(frames[0].global_features).tolist() == [0, 0]
    assert batch_obs(frames, space, match.action_space()).kinds[GLOBAL].values.tolist() == [
        [0],
        [1],
    ]


def test_global_kinds_are_refused_with_several_agent_groups() -> None:
    """An agent of one group has no labels of another group."""
    make = maker(Hunt, {"wolf_0": 2, "deer_0": 2}, kinds=True)
    mapping = {"deer": LABELS}
    with pytest.raises(InvalidSpace, match=r"other groups .*'me'.*one_hot instead"):
        FromPettingZoo(make, mapping)
    seen = FieldMap(LABELS.entities)
    assert check_env(FromPettingZoo.of(make, {"deer": seen})).ok
    teams = {"a": ["wolf_0"], "b": ["deer_0"]}
    assert check_env(FromPettingZoo.of(make, mapping, teams)).ok


def test_metric_missing_from_all_infos_of_a_match_is_refused() -> None:
    match = FromPettingZoo(maker(Hunt, {"u_0": 1, "u_1": 2}), FieldMap(metrics=["agee"]))
    match.seed(0)
    rng, frames = np.random.default_rng(0), match.reset()
    spaces_of = match.obs_space(), match.action_space()
    frames = match.act([choose(obs, *spaces_of, rng) for obs in frames])
    with pytest.raises(InvalidObservation, match=r"got 'agee', did you mean age\?"):
        match.act([choose(obs, *spaces_of, rng) for obs in frames])


def test_metric_of_one_agent_group_is_accepted() -> None:
    class OfWolves(Hunt):
        def infos(self, agents: list[str]) -> Any:
            infos = super().infos(agents)
            for agent in agents:
                if agent.startswith("deer"):
                    del infos[agent]["age"]
            return infos

    make = maker(OfWolves, {"wolf_0": 1, "deer_0": 1}, kinds=True)
    for metrics, is_known in (
        (FieldMap(metrics=["age"]), True),
        ({"wolf": FieldMap(metrics=["age"])}, True),
        ({"deer": FieldMap(metrics=["age"])}, False),
    ):
        match = FromPettingZoo(make, metrics)
        match.seed(0)
        rng, spaces_of = np.random.default_rng(0), (match.obs_space(), match.action_space())
        actions = [choose(obs, *spaces_of, rng) for obs in match.reset()]
        if is_known:
            assert match.act(actions)[0].done
        else:
            with pytest.raises(InvalidObservation, match="got 'age'"):
                match.act(actions)


def test_invalid_environments_and_teams_are_refused() -> None:
    make = maker(Hunt, LIVES)
    with pytest.raises(InvalidSpace, match="teams: expected every agent of"):
        FromPettingZoo(make, PICK, {"wolves": ["wolf_0", "wolf_1"]})
    with pytest.raises(InvalidSpace, match="teams: expected every agent of"):
        FromPettingZoo(make, PICK, TEAMS | {"more": ["wolf_0"]})
    with pytest.raises(InvalidSpace, match="'agent' is reserved for team members"):
        FromPettingZoo(make, FieldMap({"agent": Rows("seen")}), TEAMS)
    with pytest.raises(
        EntityEnvError, match="expected a parallel environment with possible_agents"
    ):
        FromPettingZoo(Countdown)
    with pytest.raises(
        EntityEnvError, match="expected a parallel environment with possible_agents"
    ):
        FromPettingZoo(maker(Hunt, {}))
    with pytest.raises(InvalidSpace, match="teams: expected lists of agents by the name of a team"):
        FromPettingZoo(make, PICK, [["wolf_0", "wolf_1"]])  # type: ignore[arg-type]
    with pytest.raises(
        EntityEnvError, match="expected a function that makes the environment, got 'id'"
    ):
        FromPettingZoo("id")  # type: ignore[arg-type]

    class Silent(Hunt):
        def show(self, agent: str) -> Any:
            return super().show(agent) if agent != "wolf_1" or self.step_number == 0 else None

        def step(self, actions: Any) -> Any:
            values, *rest = super().step(actions)
            return {a: v for a, v in values.items() if v is not None}, *rest

    with pytest.raises(
        InvalidObservation, match=r"expected one of each agent, got no \['wolf_1'\]"
    ):
        play(FromPettingZoo(maker(Silent, LIVES), PICK), 0)


def test_act_requires_a_running_episode() -> None:
    match = FromPettingZoo(maker(Hunt, {"a_0": 1}))
    with pytest.raises(EntityEnvError, match="act: call reset first"):
        match.act([{}])
    assert len(play(match, 0)) == 2
    with pytest.raises(EntityEnvError, match="act: call reset first"):
        match.act([{}])
    assert len(play(match, 0)) == 2


def test_agents_missing_from_possible_agents_are_refused() -> None:
    class Births(Hunt):
        def step(self, actions: Any) -> Any:
            answer = super().step(actions)
            self.agents = [*self.agents, "deer_9"]
            answer[0]["deer_9"] = answer[0]["deer_0"]
            return answer

    with pytest.raises(InvalidObservation, match=r"agents: expected .* got \['deer_9'\]"):
        play(FromPettingZoo(maker(Births, LIVES), PICK), 0)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (2, {"wolf_0": "False"}, r"terminations\['wolf_0'\]: expected True or False, got 'False'"),
        (3, {"wolf_0": float("nan")}, r"truncations\['wolf_0'\]: expected True or False, got nan"),
        (2, [False] * 4, r"terminations: expected a dictionary, got \[False"),
        (1, [0.0] * 4, r"rewards: expected a dictionary, got \[0.0"),
        (0, [0.0] * 4, "observations: expected a dictionary"),
        (0, None, "observations: expected a dictionary, got None"),
        (1, None, "rewards: expected a dictionary, got None"),
        (1, {"wolf_0": "much"}, r"rewards\['wolf_0'\]: expected a number, got 'much'$"),
        (2, None, "terminations: expected a dictionary, got None"),
        (4, ["info"] * 4, "infos: expected a dictionary"),
        (4, {"wolf_0": "info"}, r"infos\['wolf_0'\]: expected a dictionary, got 'info'"),
    ],
)
def test_step_results_not_keyed_by_agent_are_refused(place: int, value: Any, words: str) -> None:
    class Answers(Hunt):
        def step(self, actions: Any) -> Any:
            answer = list(super().step(actions))
            answer[place] = {**answer[place], **value} if isinstance(value, dict) else value
            return tuple(answer)

    with pytest.raises(InvalidObservation, match=words):
        play(FromPettingZoo(maker(Answers, LIVES), PICK), 0)


def test_none_infos_are_empty() -> None:
    class Silent(Hunt):
        def infos(self, agents: list[str]) -> Any:
            return dict.fromkeys(agents) if self.step_number % 2 else None

        def check(self, agent: str, action: Any) -> None:
            return

    assert check_env(FromPettingZoo.of(maker(Silent, LIVES))).ok


@pytest.mark.parametrize("flag", ["False", [float("nan")] * 2])
def test_invalid_done_flags_of_a_tuple_environment_are_refused(flag: Any) -> None:
    class Ends(Turns):
        def step(self, action: Any) -> Any:
            values, reward, _, truncated, info = super().step(action)
            return values, reward, flag, truncated, info

    with pytest.raises(InvalidObservation, match=r"terminations\['0'\]: expected True or False"):
        play(FromGymnasiumAgents(Ends), 0)


def test_tuple_environment_may_return_dictionaries() -> None:
    class Named(Turns):
        def step(self, action: Any) -> Any:
            values, reward, ends, truncated, info = super().step(action)
            return (
                values,
                {1: reward[1], 0: reward[0]},
                {"0": ends[0], "1": ends[1]},
                truncated,
                info,
            )

    rewards = [[obs.reward for obs in frames] for frames in play(FromGymnasiumAgents(Named), 0)[1:]]
    assert rewards == [[1, 2]] * 2 + [[0, 2]] * 2

    class Missing(Turns):
        def step(self, action: Any) -> Any:
            values, reward, *rest = super().step(action)
            return values, {0: reward[0]}, *rest

    with pytest.raises(
        InvalidObservation, match=r"reward: expected one for each of agents \['0', '1'"
    ):
        play(FromGymnasiumAgents(Missing), 0)


def test_num_sides_must_match_the_class() -> None:
    """Trainers read `num_sides` of the class before they create an environment."""

    def make(num: int = 2) -> Hunt:
        return Hunt({f"a_{i}": 3 for i in range(num)})

    cls = FromPettingZoo.of(make)
    assert cls().num_sides == FromPettingZoo.of(make, num=2).num_sides == 2  # type: ignore[call-arg]
    with pytest.raises(EntityEnvError, match=r"num_sides: expected 2 sides.* got 3"):
        cls(num=3)  # type: ignore[call-arg]
    assert FromPettingZoo(make, num=3).num_sides == 3


@pytest.mark.parametrize("shared", [False, True])
def test_tuple_environment_of_gymnasium_is_a_match(shared: bool) -> None:
    """Rewards and flags are by agent or shared; masks have a row for each agent."""
    match = FromGymnasiumAgents(maker(Turns, shared))
    trajectory = play(match, 0)
    assert [len(trajectory), match.num_sides] == [5, 2]
    expected = [[2, 2]] * 4 if shared else [[1, 2]] * 2 + [[0, 2]] * 2
    assert [[obs.reward for obs in frames] for frames in trajectory[1:]] == expected
    masks = [list(obs.actions["action"].mask) for obs in trajectory[0]]  # type: ignore[arg-type]
    assert masks == [[True, False, False], [False, True, False]]
    assert [obs.features["entity"][0][0] for obs in trajectory[0]] == [0, 1]
    assert [obs.terminated for obs in trajectory[-1]] == [True, True]
    assert trajectory[3][0].num_entities("entity") == (2 if shared else 0)


def test_single_agent_environment_is_refused() -> None:
    with pytest.raises(InvalidSpace, match="use FromGymnasium for a single agent"):
        FromGymnasiumAgents(maker(Show, spaces.Discrete(2)))


def test_environment_that_keeps_state_in_reset_is_recreated() -> None:
    class Sticky(Hunt):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self.age = getattr(self, "age", 0) + 1
            return super().reset(seed, options)

        def show(self, agent: str) -> Any:
            return super().show(agent) | {"me": np.full(2, self.age, np.float32)}

    mapping = FieldMap(global_features=[Globals("me", columns=["a", "b"])])
    assert check_env(FromPettingZoo.of(maker(Sticky, LIVES), mapping)).problems
    report = check_env(FromPettingZoo.of(maker(Sticky, LIVES), mapping, remake=True))
    assert not report.problems, str(report)


class Overwrites(gymnasium.Env[Any, Any]):
    """The first of two agents is done after a step; all actions are overwritten."""

    observation_space = spaces.Tuple([spaces.Box(-9, 9, (1,), np.float32)] * 2)
    action_space = spaces.Tuple([spaces.Box(-1, 1, (1,), np.float32)] * 2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.action_log: list[list[float]] = []
        return (np.zeros(1, np.float32), np.zeros(1, np.float32)), {}

    def step(self, action: Any) -> Any:
        self.action_log.append([reward.item() for reward in action])
        for reward in action:
            reward[:] = 7
        done = [True, len(self.action_log) == 3]
        return (np.zeros(1, np.float32), np.zeros(1, np.float32)), 0.0, done, False, {}


def test_done_agent_repeats_its_unmodified_last_action() -> None:
    env = TupleToParallel(Overwrites())
    env.reset()
    for x in (0.25, 0.5, 0.75):
        env.step({agent: np.array([x], np.float32) for agent in env.agents})
    assert env.env.action_log == [[0.25, 0.25], [0.25, 0.5], [0.25, 0.75]]  # type: ignore[attr-defined]
