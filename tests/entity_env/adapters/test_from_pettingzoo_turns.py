"""Turn-based environments as matches: moving agent, observations, and rewards."""

import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv

from entity_env import EntityEnvError, EnvList, Observation, ParallelEnvList, check_env
from entity_env.adapters.from_pettingzoo_turns import FromPettingZooTurns
from entity_env.adapters.mapping import FieldMap, Rows
from tests.entity_env.adapters.rounds import Rounds
from tests.entity_env.adapters.same import assert_workers_match
from tests.entity_env.adapters.worlds import choose

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

BOARD = FieldMap(entities={"Cell": Rows("observation")})


@pytest.mark.parametrize("module", [tictactoe_v3, connect_four_v3])
@pytest.mark.parametrize("seed", range(4))
def test_classic_games_match_pettingzoo(module: Any, seed: int) -> None:
    match: Any = FromPettingZooTurns.of(module.env, BOARD)()
    game, rng = module.env(), np.random.default_rng(seed)
    match.seed(seed)
    frames = match.reset()
    game.reset(seed=seed)
    assert match.num_sides == len(game.possible_agents) == 2
    while not frames[0].done:
        mover = game.possible_agents.index(game.agent_selection)
        for side, agent in enumerate(game.possible_agents):
            seen = game.observe(agent)
            board = np.asarray(frames[side].features["Cell"])[:, 2:]
            np.testing.assert_array_equal(board, seen["observation"].reshape(-1, 2))
            assert bool(frames[side].actions) == (side == mover)
        mask = frames[mover].actions["action"].mask
        np.testing.assert_array_equal(mask, game.observe(game.agent_selection)["action_mask"])
        actions = [choose(frame, match.obs_space(), match.action_space(), rng) for frame in frames]
        game.step(int(actions[mover]["action"].index))  # type: ignore[attr-defined]
        frames = match.act(actions)
        assert [frame.reward for frame in frames] == [
            game.rewards[agent] for agent in game.possible_agents
        ]
        assert frames[0].done == any(game.terminations.values())
    assert all(frame.terminated and not frame.actions for frame in frames)


@pytest.mark.parametrize("module", [tictactoe_v3, connect_four_v3])
def test_classic_games_pass_check_env(module: Any) -> None:
    world = FromPettingZooTurns.of(module.env, BOARD)
    report = check_env(world, episodes=3)
    assert report.ok, str(report)


def test_worker_processes_match_single_process() -> None:
    world = FromPettingZooTurns.of(tictactoe_v3.env, BOARD)
    workers = ParallelEnvList(world, 4, num_processes=2)
    assert_workers_match(workers, EnvList(world, 4), 12)


def play(match: Any, choice: int = 0) -> list[list[Observation]]:
    match.seed(3)
    trajectory, rng = [match.reset()], np.random.default_rng(choice)
    while not trajectory[-1][0].done:
        match_spaces = match.obs_space(), match.action_space()
        trajectory.append(
            match.act([choose(frame, *match_spaces, rng) for frame in trajectory[-1]])
        )
    return trajectory


def test_rewards_and_deaths_are_reported_in_their_step() -> None:
    match: Any = FromPettingZooTurns.of(Rounds)()
    trajectory = play(match)
    assert [agent for agent, _ in match.env.action_log] == [*Rounds.ORDER]
    assert len(trajectory) == len(Rounds.ORDER) + 1
    movers = [
        "".join(a for a, f in zip("abc", frames, strict=True) if f.actions) for frames in trajectory
    ]
    assert movers == [*Rounds.ORDER, ""]
    rewards = [[frame.reward for frame in frames] for frames in trajectory]
    assert rewards == [
        [0, 0, 0],
        [0, 1, 0],  # a pays b
        [0, 2, 0],
        [0, 0, 3],  # b pays c
        [4, 0, 0],  # c pays a
        [0, 0, 5],  # b, which dies
        [0, 0, 0],  # a pays nobody, as b is gone, and is cut off
        [0, 0, 0],
        [0, 0, 0],
        [0, 0, 0],
    ]
    # Dead agents see nothing before the end, when everybody sees its last frame.
    alive = [[int(np.any(frame.global_features)) for frame in frames] for frames in trajectory]
    assert alive == [[1, 1, 1]] * 5 + [[1, 0, 1]] + [[0, 0, 1]] * 3 + [[1, 1, 1]]
    times = [[np.asarray(f.global_features)[0] for f in frames] for frames in trajectory]
    assert times[4] == [7, 7, 7]
    assert times[-1] == [9, 8, 12]
    assert [f.terminated for f in trajectory[-1]] == [False, True, True]
    assert [f.truncated for f in trajectory[-1]] == [True, False, False]
    assert not any(f.done for frames in trajectory[:-1] for f in frames)


def test_action_mask_in_info_applies_to_the_moving_agent() -> None:
    match: Any = FromPettingZooTurns.of(Rounds)()
    allowed: dict[str, set[int]] = {"a": set(), "b": set(), "c": set()}
    for seed in range(12):
        play(match, seed)
        for agent, choice in match.env.action_log:
            allowed[agent].add(choice)
    assert allowed == {"a": {0, 1, 2}, "b": {0, 1}, "c": {0, 1}}
    assert check_env(FromPettingZooTurns.of(Rounds), episodes=2).ok


def test_seed_is_passed_to_the_environment() -> None:
    match: Any = FromPettingZooTurns.of(Rounds)()
    starts = set()
    for seed in range(7):
        match.seed(seed)
        starts.add(float(np.asarray(match.reset()[0].global_features)[0]))
    assert len(starts) == 7


@pytest.mark.parametrize(
    ("make_env", "words"),
    [
        (Rounds(), "expected a function"),
        (dict, "expected an AEC environment with possible_agents, got dict"),
    ],
)
def test_non_aec_environments_are_refused(make_env: Any, words: str) -> None:
    with pytest.raises(EntityEnvError, match=words):
        FromPettingZooTurns.of(make_env)


class Scored(AECEnv):  # type: ignore[misc]
    """Ends after two moves, when both agents die and the infos name the winner."""

    def __init__(self, always: bool) -> None:
        self.always, self.possible_agents, self.render_mode = always, ["a", "b"], None
        self.metadata = {"name": "scored"}
        self.observation_spaces = {agent: spaces.Box(-1, 1, (2,)) for agent in "ab"}
        self.action_spaces = {agent: spaces.Discrete(2) for agent in "ab"}

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: Any = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self.moves = ["a", "b"], "a", 0
        self.rewards, self._cumulative_rewards = {"a": 0, "b": 0}, {"a": 0, "b": 0}
        self.terminations = self.truncations = {"a": False, "b": False}
        self.infos = {agent: {"win": 0.0} if self.always else {} for agent in "ab"}

    def observe(self, agent: str) -> Any:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        self.moves += 1
        if self.moves == 2:
            self.rewards, self.infos = {"a": 1, "b": -1}, {"a": {"win": 1.0}, "b": {"win": 0.0}}
            self.terminations = {"a": True, "b": True}
            self.truncations = {"a": False, "b": False}
        self.agent_selection = "b" if self.agent_selection == "a" else "a"


@pytest.mark.parametrize("always", [True, False])
def test_final_metrics_are_from_the_step_of_death(always: bool) -> None:
    match: Any = FromPettingZooTurns.of(Scored, FieldMap(metrics=["win"]), always=always)()
    match.seed(0)
    frames, rng = match.reset(), np.random.default_rng(0)
    while not frames[0].done:
        assert frames[0].metrics == ({"win": 0.0} if always else {})
        actions = [choose(frame, match.obs_space(), match.action_space(), rng) for frame in frames]
        frames = match.act(actions)
    assert [frame.metrics for frame in frames] == [{"win": 1.0}, {"win": 0.0}]
    assert [frame.reward for frame in frames] == [1.0, -1.0]


class Leaves(Rounds):
    """Agents leave in the step in which they die, without steps of dead agents."""

    is_silent = False

    def step(self, action: Any) -> None:
        self.agents = [a for a in self.agents if not (self.terminations[a] or self.truncations[a])]
        flags = dict(self.terminations), dict(self.truncations)
        super().step(action)
        dead = [a for a in self.agents if self.terminations[a] or self.truncations[a]]
        self.agents = [a for a in self.agents if a not in dead]
        if self.agents:
            self.agent_selection = self.ORDER[len(self.action_log)]
        if self.is_silent:
            self.terminations, self.truncations = (
                {a: flag for a, flag in before.items() if a in self.agents} for before in flags
            )


class Blank(Rounds):
    """Returns no observation of dead agents."""

    def observe(self, agent: str) -> Any:
        is_dead = self.terminations[agent] or self.truncations[agent]
        return None if is_dead else super().observe(agent)


@pytest.mark.parametrize("world", [Leaves, Blank])
def test_truncated_agent_that_leaves_keeps_its_previous_view(world: type[Rounds]) -> None:
    """Otherwise it would count as terminated."""
    match: Any = FromPettingZooTurns.of(world)()
    trajectory = play(match)
    assert [f.terminated for f in trajectory[-1]] == [False, True, True]
    assert [f.truncated for f in trajectory[-1]] == [True, False, False]
    assert [np.asarray(f.global_features)[0] for f in trajectory[-1]] == [8, 7, 11]
    assert not any(f.actions for f in trajectory[-1])


def test_agent_leaving_without_a_flag_is_refused() -> None:
    match: Any = FromPettingZooTurns.of(Leaves)()
    match.env.is_silent = True
    with pytest.raises(EntityEnvError, match=r"terminations, truncations: .* \['b'\]"):
        play(match)


@pytest.mark.parametrize("field", ["terminations", "truncations"])
def test_invalid_done_flags_are_refused(field: str) -> None:
    class Ends(Rounds):
        def reset(self, *args: Any, **kwargs: Any) -> None:
            super().reset(*args, **kwargs)
            setattr(self, field, dict.fromkeys(self.agents, "False"))

    match: Any = FromPettingZooTurns.of(Ends)()
    with pytest.raises(EntityEnvError, match=rf"{field}\['a'\]: expected True or False"):
        match.reset()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("rewards", None, "rewards: expected a dictionary, got None"),
        ("rewards", {"a": [1, 2]}, r"rewards\['a'\]: expected a number, got"),
        ("terminations", None, "terminations: expected a dictionary, got None"),
        ("truncations", {"a": False}, r"truncations: expected a flag of each agent, got none of"),
    ],
)
def test_values_not_keyed_by_agent_are_refused(field: str, value: Any, words: str) -> None:
    class Answers(Rounds):
        def step(self, action: Any) -> None:
            super().step(action)
            setattr(self, field, value)

    match: Any = FromPettingZooTurns.of(Answers)()
    with pytest.raises(EntityEnvError, match=words):
        play(match)
