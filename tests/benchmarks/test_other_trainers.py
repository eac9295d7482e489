"""What `benchmarks/other_trainers.py` compares: the same worlds, counted in the same way."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest

from entity_env import EnvList
from entity_env.actions import CategoricalAction
from entity_env.examples import MoveToOrigin
from tests.entity_env.builders import assert_same, play

WORLD = "Foraging-5x5-2p-1f-v3"


def nothing(obs: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    return np.zeros(len(obs), dtype=np.int64)


def test_players_of_a_match_are_adjacent_and_end_together(benchmark: Any) -> None:
    worlds = benchmark("flat_foraging").FlatForaging(WORLD, 6, seed=3)
    assert (worlds.sides, worlds.num_actions, worlds.obs.shape) == (2, 6, (6, 9))
    before = worlds.obs
    steps = 0
    while not (outcome := worlds.step(nothing(worlds.obs))).ends.any():
        np.testing.assert_array_equal(outcome.last, before)  # nobody moves
        steps += 1
    assert steps == 49  # of 50, after which this world says that it terminated
    assert outcome.ends.all()
    assert not outcome.truncated.any()
    assert not outcome.rewards.any()
    np.testing.assert_array_equal(outcome.last, before)
    assert (worlds.obs != before).any()  # other episodes begin
    assert np.abs(worlds.obs).max() <= 1


@pytest.mark.slow
def test_native_match_equals_the_adapter(benchmark: Any) -> None:
    """Frames, masks, rewards and ends of whole episodes that are played in the same way."""
    env_id = "Foraging-6x6-3p-2f-v3"
    through_adapters = benchmark("foraging").foraging(env_id)
    by_itself = benchmark("foraging_match").Foraging.of(env_id)
    shown, expected = (play(EnvList(kind, 12), 120) for kind in (by_itself, through_adapters))
    for one, other in zip(shown, expected, strict=True):
        assert_same(one, other)
    assert sum(int(obs.done.sum()) for obs in expected) > 12
    assert sum(np.count_nonzero(obs.reward) for obs in expected) > 5


def test_env_id_without_number_of_players_is_rejected(benchmark: Any) -> None:
    with pytest.raises(ValueError, match=r"env.id: expected one such as .* got 'Foraging-8x8-v3'"):
        benchmark("foraging_match").Foraging.of("Foraging-8x8-v3")


def test_partially_observed_environment_is_rejected(benchmark: Any) -> None:
    with pytest.raises(ValueError, match=r"expected an environment with full observability"):
        benchmark("foraging_match").Foraging("Foraging-2s-8x8-2p-2f-v3")


def test_mean_return_sums_players_and_is_deterministic(benchmark: Any) -> None:
    flat = benchmark("flat_foraging")

    def at_random(seed: int) -> float:
        rng = np.random.default_rng(0)
        worlds = flat.FlatForaging(WORLD, 16, seed)
        result: float = flat.mean_return(worlds, lambda obs: rng.integers(6, size=len(obs)), 2)
        return result

    assert flat.mean_return(flat.FlatForaging(WORLD, 4, seed=1), nothing, 1) == 0
    assert 0 < at_random(1) == at_random(1) <= 1


@pytest.mark.slow
def test_reference_ppo_learns(benchmark: Any) -> None:
    flat, ppo = benchmark("flat_foraging"), benchmark("mlp_ppo")
    settings = ppo.Settings(64, 32, 512, 4, 0.002, 0.97, ent_coef=0.02)
    learner = ppo.MlpPPO(flat.FlatForaging(WORLD, 64, seed=1), 32, settings, seed=1)

    def result() -> float:
        worlds = flat.FlatForaging(WORLD, 64, seed=10_000)
        mean: float = flat.mean_return(worlds, learner.choose, 2)
        return mean

    before = result()
    assert sum(learner.update() for _ in range(16)) == 16 * 32 * 64
    assert before < 0.6
    assert result() > before + 0.2


def test_vectors_of_gymnasium_restart_ended_episodes(benchmark: Any) -> None:
    """The last frame of an episode, the first one of the next, and what ended it."""
    worlds = benchmark("flat_worlds")
    make = partial(gymnasium.make, "CartPole-v1", max_episode_steps=5, disable_env_checker=True)
    flat = worlds.FlatGymnasium(make, 3, seed=7)
    np.testing.assert_array_equal(flat.obs[1], gymnasium.make("CartPole-v1").reset(seed=8)[0])
    assert (flat.num_actions, flat.obs.dtype) == (2, np.float32)
    for _ in range(4):
        outcome = flat.step(np.array([0, 1, 0]))
        np.testing.assert_array_equal(outcome.last, flat.obs)
        assert not outcome.ends.any()
    outcome = flat.step(np.array([0, 1, 0]))
    assert outcome.ends.all()
    assert outcome.truncated.all()
    assert (np.abs(flat.obs) <= 0.05).all()  # first frames are near zero
    assert (np.abs(outcome.last) > 0.05).any(axis=1).all()
    np.testing.assert_array_equal(outcome.rewards, np.ones(3, np.float32))


def test_spaceship_as_vector_equals_the_environment_with_entities(benchmark: Any) -> None:
    vector, world = benchmark("flat_worlds").SpaceshipVector(), MoveToOrigin()
    world.seed(3)
    row, _ = vector.reset(seed=3)
    expected = world.reset()
    names, labels = [*world.action_space()], world.action_space()["vertical_thruster"].labels
    for step in range(32):
        np.testing.assert_allclose(row * [1, 1, 1, 1, 32], expected.features["Spaceship"][0])
        action = (7 * step) % 25
        pair = zip(names, divmod(action, 5), strict=True)
        expected = world.act(
            {n: CategoricalAction([0], np.array([i]), np.array([[1.0]]), labels) for n, i in pair}
        )
        row, reward, terminated, truncated, _ = vector.step(action)
        assert (reward, terminated, truncated) == (expected.reward, step == 31, False)


SCRIPT = """
import pathlib
import sys
import gymnasium as gym
import numpy as np
import torch


class Agent(torch.nn.Module):
    def __init__(self, envs):
        super().__init__()
        inputs = envs.single_observation_space.shape[0]
        self.critic = torch.nn.Linear(inputs, 64)
        self.actor = torch.nn.Linear(inputs, envs.single_action_space.n)

    def get_action_and_value(self, x):
        return torch.distributions.Categorical(logits=self.actor(x)).sample(), None, None, None


if __name__ == "__main__":
    pathlib.Path("flags").write_text(" ".join(sys.argv))
    envs = gym.vector.SyncVectorEnv([lambda: None])
    agent = Agent(envs)
    obs, _ = envs.reset(seed=1)
    while True:
        actions = agent.get_action_and_value(torch.Tensor(obs))[0]
        obs, rewards, terminated, truncated, infos = envs.step(actions.numpy())
"""
"""A script in the form of CleanRL's, without learning."""


def test_script_of_cleanrl_runs_with_wider_layers_until_it_is_stopped(
    benchmark: Any, tmp_path: Path
) -> None:
    """It trains the players of all environments, and each update is counted after its rollout."""
    cleanrl, flat = benchmark("cleanrl_script"), benchmark("flat_foraging")
    settings = benchmark("mlp_ppo").Settings(4, 3, 6, gamma=0.5)
    (script := tmp_path / "script.py").write_text(SCRIPT)
    agents, counts = [], list[int]()

    def begin(agent: Any) -> Any:
        agents.append(agent)
        return lambda frames: counts.append(frames) or len(counts) == 5

    worlds = flat.FlatForaging(WORLD, 4, seed=3)
    slots = cleanrl.Slots(worlds, 3, begin)
    cleanrl.train(str(script), slots, 10, settings, 2, str(tmp_path))
    assert agents[0].critic.weight.shape == (10, 9)
    assert agents[0].actor.weight.shape == (6, 9)
    assert counts == [12] * 5
    flags = (tmp_path / "flags").read_text()
    assert "--seed 2" in flags
    assert "--num-minibatches 2" in flags
    assert "--gamma 0.5" in flags
    assert gymnasium.vector.SyncVectorEnv.__name__ == "SyncVectorEnv"


def test_script_without_layers_of_64_units_is_rejected(benchmark: Any, tmp_path: Path) -> None:
    (script := tmp_path / "script.py").write_text("print(1)")
    settings = benchmark("mlp_ppo").Settings(4, 3, 6)
    with pytest.raises(ValueError, match="cleanrl: expected a script with layers of 64 units"):
        benchmark("cleanrl_script").train(str(script), None, 10, settings, 1, str(tmp_path))


def test_seconds_of_training_end_at_the_goal_and_leave_evaluations_out(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Evaluations come after each interval of frames; their time is not counted."""
    learners, cases = benchmark("other_learners"), benchmark("other_cases")
    case = cases.CASES["CartPole"]
    assert case.goal == pytest.approx(21.9 + 0.9 * (475 - 21.9))
    clock = Clock()
    monkeypatch.setattr(learners.time, "perf_counter", lambda: 2 * clock.now)
    results: Iterator[float] = iter([100.0, 440.0])

    def evaluate() -> float:
        clock.now += 1000
        return next(results)

    progress = learners.Progress(case, 50.0, evaluate, lambda: clock.now)
    overs = []
    while not overs or not overs[-1]:
        clock.now += 3
        overs.append(progress.add(case.interval // 2 + 1))
    frames = 4 * (case.interval // 2 + 1)
    assert progress.reached == {"frames": frames, "seconds": 24, "processor_seconds": 12}
    assert progress.frames_per_s == frames / 24
    assert progress.result == 440


def test_training_ends_after_the_processor_seconds_without_a_result(benchmark: Any) -> None:
    learners, clock = benchmark("other_learners"), Clock()
    case = benchmark("other_cases").CASES["CartPole"]
    progress = learners.Progress(case, 5.0, lambda: 0.0, lambda: clock.now)
    clock.now += 4
    assert not progress.add(1)
    clock.now += 1
    assert progress.add(1)
    assert progress.reached is None


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0


@pytest.mark.parametrize("trainer", ["ours", "mlp"])
@pytest.mark.parametrize("name", ["CartPole", "MoveToOrigin"])
def test_trainers_of_a_case_have_equal_parameters(benchmark: Any, name: str, trainer: str) -> None:
    """And are stopped after the first update where they may take no time."""
    learners, case = benchmark("other_learners"), benchmark("other_cases").CASES[name]
    result = learners.run(case, trainer, 1, cap_s=1e-9)
    assert result["parameters"] == pytest.approx(13_200, rel=0.02)
    assert result["reached"] is None


def test_evaluations_of_vectors_are_in_the_unit_of_the_bar(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The return of one agent, or of all agents where the bar is theirs."""
    learners, cases = benchmark("other_learners"), benchmark("other_cases").CASES
    monkeypatch.setattr(learners, "EVAL_WORLDS", 16)
    always_left = learners._mean_return(cases["CartPole"], 1, nothing)
    assert 8 < always_left < 11

    flat = benchmark("flat_foraging")
    case = cases["foraging 8x8"]._replace(worlds=partial(flat.FlatForaging, WORLD))

    def at_random() -> Any:
        rng = np.random.default_rng(0)
        return lambda obs: rng.integers(6, size=len(obs))

    worlds = flat.FlatForaging(WORLD, 32, learners.EVAL_SEED + 1)
    of_both = flat.mean_return(worlds, at_random(), learners.EVAL_EPISODES)
    assert learners._mean_return(case, 1, at_random()) == of_both > 0
    half = case._replace(row=case.row._replace(scale=1.0))
    assert learners._mean_return(half, 1, at_random()) == of_both / 2


def test_shares_of_our_time_add_up(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learners, case = benchmark("other_learners"), benchmark("other_cases").CASES["CartPole"]
    monkeypatch.setattr(learners, "PROFILE_S", 0.01)
    result = learners.run(case, "profile", 1, 1.0)
    assert sum(result["shares"].values()) == pytest.approx(1)
    assert {"environment", "acting", "learning"} <= result["shares"].keys()


def test_workers_are_one_process_per_core(benchmark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learners = benchmark("other_learners")
    monkeypatch.setattr(learners, "ours", lambda *_, processes: {"processes": processes})
    monkeypatch.setattr(learners, "CORES", 3)
    case = benchmark("other_cases").CASES["CartPole"]
    assert learners.run(case, "workers", 1, 1.0) == {"processes": 3}


def runs_of(case: str, trainer: str, seconds: list[float | None]) -> list[dict[str, Any]]:
    """Return runs of a trainer that take some seconds to the goal, or do not reach it."""
    return [
        {
            "case": case,
            "trainer": trainer,
            "seed": 11 + i,
            "cap_s": 8.0,
            "parameters": 5_000,
            "frames_per_s": 9.0 + i,
            "reached": s and {"frames": 1000 * s, "seconds": 2 * s, "processor_seconds": s},
            "result": 0.25,
            "commit": "abc",
        }
        for i, s in enumerate(seconds)
    ]


def test_page_compares_ours_with_the_fastest_other_trainer(benchmark: Any) -> None:
    other = benchmark("other_trainers")
    shares = {"case": "CartPole", "trainer": "profile", "seed": 11, "cap_s": 8.0, "commit": "abc"}
    page = other.document(
        [
            *runs_of("CartPole", "ours", [3, 2, 4]),
            *runs_of("CartPole", "sb3", [5, 6, None]),
            *runs_of("CartPole", "cleanrl", [None, 7, None]),
            {**shares, "shares": {"acting": 0.25, "learning": 0.75}},
        ],
        "python x",
    )
    assert "where it was not reached in 8 processor seconds" in page
    assert "## CartPole, return 430" in page
    ours = "| enn-trainer | 5,000 | 10 (9 to 11) | 3 (2 to 4) | 6 (4 to 8) | 3,000 (2,000 to 4,000)"
    assert ours in page
    assert "| 6 (5 to 6); not reached: 0.25 |" in page
    assert "| CleanRL | 5,000 | 10 (9 to 11) | (7 to 7); not reached: 0.25, 0.25 |" in page
    expected = "| CartPole | Stable-Baselines3 | 0.50 | 0.50 | 1.00 | acting 25%, learning 75% |"
    assert expected in page


def test_page_says_that_no_other_trainer_reaches_the_goal(benchmark: Any) -> None:
    results = [*runs_of("spread", "ours", [3.0]), *runs_of("spread", "sb3", [None])]
    page = benchmark("other_trainers").document(results, "python x")
    assert "| Stable-Baselines3 | 5,000 | 9 (9 to 9) | not reached: 0.25 |" in page
    assert "| spread | none in most seeds |" in page


def test_trainers_that_are_not_installed_are_skipped(
    benchmark: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Runs that are done are not repeated, and MLP stands in without a script of CleanRL."""
    other = benchmark("other_trainers")
    options = other.command_line().parse_args(
        ["CartPole", "--sb3", "/bin/false", "--seeds", "11", "12"]
    )
    todo = other.left_to_run(options, runs_of("CartPole", "ours", [1.0]))
    assert [args[1:3] for args, _ in todo] == [
        ["workers", "11"],
        ["mlp", "11"],
        ["profile", "11"],
        ["ours", "12"],
        ["workers", "12"],
        ["mlp", "12"],
    ]
    assert "Stable-Baselines3 is skipped: /bin/false cannot import" in capsys.readouterr().out


def test_cases_without_their_modules_are_skipped(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = benchmark("other_trainers")
    case = other.CASES["spread"]
    row = case.row._replace(modules=("a_module_that_is_missing",))
    monkeypatch.setitem(other.CASES, "spread", case._replace(row=row))
    options = other.command_line().parse_args(["CartPole", "spread"])
    assert other.cases_of(options) == ["CartPole"]
    assert "spread is skipped: a_module_that_is_missing cannot be" in capsys.readouterr().out
