"""Environments of Gymnasium as an `Environment`."""

import copy
import dataclasses
import functools
from fractions import Fraction
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from entity_env import (
    EntityEnvError,
    EnvList,
    InvalidObservation,
    InvalidSpace,
    ParallelEnvList,
    batch_obs,
    check_env,
)
from entity_env.adapters.agent_translator import AgentTranslator
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.gymnasium_api import as_reward
from entity_env.adapters.gymnasium_spaces import as_array
from entity_env.adapters.mapping import Choice, FieldMap, Globals, Rows
from entity_env.process import warned
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL
from entity_env.testing import conformance
from entity_env.testing.random_play import random_choices
from tests.entity_env.adapters.same import assert_workers_match
from tests.entity_env.adapters.worlds import (
    LABELLED,
    SEEN_FROM_ME,
    VIEW,
    Countdown,
    Show,
    Turns,
    choose,
    maker,
)


@pytest.mark.parametrize("mask_in", ["info", "observation"])
def test_steps_match_the_wrapped_environment(mask_in: str) -> None:
    """Forbidden moves raise, so the test fails if a mask is ignored."""
    env, raw = FromGymnasium(Countdown, mask_in=mask_in), Countdown(mask_in=mask_in)
    rng, ends = np.random.default_rng(0), []
    for seed in range(20):
        env.seed(seed)
        obs, (value, _) = env.reset(), raw.reset(seed=seed)
        while not obs.done:
            observations = value if mask_in == "info" else value["observation"]
            assert np.array_equal(obs.features["entity"], observations)
            assert list(obs.actions["action"].mask) == raw.mask().tolist()  # type: ignore[arg-type]
            actions = choose(obs, env.obs_space(), env.action_space(), rng)
            action = 5 + actions["action"].index  # type: ignore[union-attr]
            obs, (value, reward, terminated, truncated, _) = env.act(actions), raw.step(action)
            assert (obs.reward, obs.terminated, obs.truncated) == (reward, terminated, truncated)
        assert obs.actions == {}
        ends.append(obs.truncated)
    assert 0 < sum(ends) < 20


def test_reset_without_a_seed_continues_the_random_state() -> None:
    env, raw = FromGymnasium(Countdown), Countdown()
    env.seed(3)
    observations = [env.reset().features["entity"] for _ in range(3)]
    expected = [raw.reset(seed=3)[0], raw.reset()[0], raw.reset()[0]]
    assert np.array_equal(observations, expected)


def test_large_seeds_are_reduced_to_31_bits() -> None:
    env, other = FromGymnasium(Countdown), FromGymnasium(Countdown)
    env.seed(2**40 + 5)
    other.seed(5)
    assert np.array_equal(env.reset().features["entity"], other.reset().features["entity"])


def test_adapted_environment_passes_check_env() -> None:
    conformance(FromGymnasium.of(Countdown, longest=6))


@pytest.mark.slow
def test_workers_match_a_single_process() -> None:
    create_env = functools.partial(FromGymnasium, maker(Countdown), None, longest=3)
    assert_workers_match(ParallelEnvList(create_env, 4, 1), EnvList(create_env, 4), steps=12)


@pytest.mark.parametrize("mapping", [SEEN_FROM_ME, LABELLED])
def test_view_from_a_place_passes_check_env_in_workers(mapping: FieldMap) -> None:
    view = FromGymnasium.of(lambda: Show(copy.deepcopy(VIEW)), mapping)
    conformance(view)
    assert_workers_match(ParallelEnvList(view, 4, 1), EnvList(view, 4), 12)


def test_uncovered_numbers_are_logged_by_the_main_process_only(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A run creates environments several times, in workers and in the main process."""
    rows = Rows(columns=["x", "y"], span=(1, 5))
    flat = spaces.Box(-1, 1, (7,), np.float32)
    world = FromGymnasium.of(functools.partial(Show, flat), FieldMap({"unit": rows}))
    warned.clear()
    for workers in (2, 1):
        ParallelEnvList(world, 4, workers).close()
        EnvList(world, 2).close()
        assert caplog.text.count("FieldMap: no span covers (0, 1), (5, 7)") == 1
    assert "no span" not in capfd.readouterr().err


def test_batched_labels_are_integers() -> None:
    """Labels of entities and global features are compared with the environment."""
    direction = spaces.Discrete(3, start=1)
    space = spaces.Dict({**VIEW.spaces, "direction": direction})
    part = Globals("direction", kinds={"direction": {"up": 3, "down": 1, "on": 2}})
    mapping = dataclasses.replace(LABELLED, global_features=[part])
    envs = [FromGymnasium(maker(Show, space), mapping) for _ in range(3)]
    batch = batch_obs([e.reset() for e in envs], envs[0].obs_space(), envs[0].action_space())
    assert set(batch.kinds) == {"thing", GLOBAL}
    for i, env in enumerate(envs):
        value = env.env.unwrapped.value
        seen = [
            (row, column, *value["image"][row, column].tolist())
            for row in range(3)
            for column in range(3)
            if value["image"][row, column, 0] != 0
        ]
        assert batch.features["thing"][i].values.tolist() == [[*cell[:2]] for cell in seen]
        labels = batch.kinds["thing"][i].values
        # "unseen" is left out, so that "empty" is the first label.
        assert labels.tolist() == [[cell[2] - 1, cell[3]] for cell in seen]
        assert labels.dtype == np.uint8
        assert batch.kinds[GLOBAL][i].values.tolist() == [[{3: 0, 1: 1, 2: 2}[value["direction"]]]]


def test_number_without_a_label_is_reported_with_environment_and_step() -> None:
    class Odd(Show):
        def step(self, action: Any) -> Any:
            value, *rest = super().step(action)
            value["image"][:] = 1 if self.step_number < 2 else 9
            return value, *rest

    envs = EnvList(FromGymnasium.of(lambda: Odd(copy.deepcopy(VIEW)), LABELLED), 2)
    rng, space = np.random.default_rng(0), envs.obs_space()
    batch = envs.reset(space)
    batch = envs.act(random_choices(batch, envs.action_space(), rng), space)
    with pytest.raises(InvalidObservation) as error:
        envs.act(random_choices(batch, envs.action_space(), rng), space)
    message = str(error.value)
    assert message.startswith("environment 0, episode 0, step 2: image: expected")
    assert "'object'" in message
    assert "{'empty': 1, 'wall': 2}, got 9; " in message
    assert message.endswith("FieldMap.entities['thing'].kinds")


def test_metric_missing_from_all_infos_is_refused() -> None:
    """The check is at the end, because a metric may be in the last info only."""
    env = FromGymnasium(maker(Countdown, 3), FieldMap(metrics=["score.now", "scor.now"]))
    obs, rng = env.reset(), np.random.default_rng(0)
    while env.env.unwrapped.step_number + 1 < env.env.unwrapped.length:
        assert obs.metrics.keys() == {"score.now"}
        obs = env.act(choose(obs, env.obs_space(), env.action_space(), rng))
    with pytest.raises(InvalidObservation) as error:
        env.act(choose(obs, env.obs_space(), env.action_space(), rng))
    message = str(error.value)
    assert message.startswith("FieldMap.metrics: expected")
    assert "['action_mask', 'score.now'], got 'scor.now', did you mean score.now?" in message


def test_metric_in_a_single_info_is_accepted() -> None:
    class Ends(Show):
        def step(self, action: Any) -> Any:
            *rest, truncated, _ = super().step(action)
            last = {"won": None, "final": {"score": 3}} if self.episode == 0 and truncated else {}
            self.episode += truncated
            return *rest, truncated, last

        episode = 0

    env = FromGymnasium(maker(Ends, spaces.Discrete(2)), FieldMap(metrics=["final.score", "won"]))
    rng = np.random.default_rng(0)
    for episode in range(2):
        obs = env.reset()
        while not obs.done:
            assert obs.metrics == {}
            obs = env.act(choose(obs, env.obs_space(), env.action_space(), rng))
        assert obs.metrics == ({"final.score": 3.0} if episode == 0 else {})


def test_numbers_in_the_info_are_metrics() -> None:
    env = FromGymnasium(Countdown, FieldMap(metrics=["score.now", "missing"]))
    assert env.reset().metrics == {"score.now": 0.0}
    bad = FromGymnasium(maker(Show, spaces.Discrete(2), None, {"a": "x"}), FieldMap(metrics=["a"]))
    with pytest.raises(InvalidObservation, match="metrics: expected numbers in the info"):
        bad.reset()


def test_render_returns_the_frame_of_the_environment() -> None:
    picture = FromGymnasium(Countdown, render_mode="rgb_array")
    picture.reset()
    assert picture.render(mode="rgb_array").shape == (2, 3, 3)  # type: ignore[union-attr]
    text = FromGymnasium(Countdown, render_mode="ansi")
    text.reset()
    assert text.render(mode="text") == "0"
    with pytest.raises(EntityEnvError, match="created with render_mode='rgb_array', got 'ansi'"):
        text.render(mode="rgb_array")
    with pytest.raises(EntityEnvError, match="render_mode='rgb_array', got None"):
        FromGymnasium(Countdown).render()
    with pytest.raises(EntityEnvError, match="render_mode='rgb_array', got 'human'"):
        FromGymnasium(Countdown, render_mode="human").render()


def test_multi_agent_environment_is_refused_with_a_hint() -> None:
    env = FromGymnasium(Turns)
    obs = env.reset()
    actions = choose(obs, env.obs_space(), env.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match="use FromGymnasiumAgents"):
        env.act(actions)


def test_invalid_make_env_is_refused() -> None:
    with pytest.raises(EntityEnvError, match=r"expected a gymnasium.Env, got dict"):
        FromGymnasium(dict)
    with pytest.raises(EntityEnvError, match=r"or a function that makes one, got <.*Countdown"):
        FromGymnasium(Countdown())  # type: ignore[arg-type]
    with pytest.raises(EntityEnvError, match=r"make_env: .*Did you mean: `CartPole`"):
        FromGymnasium("CartPol-v1")
    with pytest.raises(EntityEnvError, match="make_env: No module named 'no_such_module'"):
        FromGymnasium("no_such_module:CartPole-v1")
    with pytest.raises(InvalidSpace, match="looks like an image"):
        FromGymnasium(maker(Show, spaces.Box(0, 255, (4, 4, 3), np.uint8)))


NO_FLAGS = ["False", float("nan"), 0.5, [True, False], np.zeros(2, np.bool_)]


class Ends(Show):
    """Returns any value as a done flag."""

    def __init__(self, field: str, flag: Any) -> None:
        super().__init__(spaces.Box(-1, 1, (2,)))
        self.flags = {"terminated": False, "truncated": False, field: flag}

    def step(self, action: Any) -> Any:
        value, reward, _, _, info = super().step(action)
        return value, reward, *self.flags.values(), info


@pytest.mark.parametrize("flag", NO_FLAGS, ids=repr)
@pytest.mark.parametrize("field", ["terminated", "truncated"])
def test_invalid_done_flags_are_refused(field: str, flag: Any) -> None:
    report = check_env(FromGymnasium.of(maker(Ends, field, flag)), episodes=1)
    assert [problem.field for problem in report.problems] == [field], str(report)


@pytest.mark.parametrize("flag", [True, np.True_, 1, np.array([True])], ids=repr)
def test_numpy_and_integer_done_flags_are_accepted(flag: Any) -> None:
    env = FromGymnasium(maker(Ends, "terminated", flag))
    actions = choose(env.reset(), env.obs_space(), env.action_space(), np.random.default_rng(0))
    assert env.act(actions).terminated is True


def test_none_info_is_empty_and_other_types_are_refused() -> None:
    class Informs(Show):
        step_info: Any = None

        def reset(self, **kwargs: Any) -> Any:
            return super().reset(**kwargs)[0], self.step_info

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], self.step_info

    make = maker(Informs, spaces.Box(-1, 1, (2,)))
    assert check_env(FromGymnasium.of(make), episodes=1).ok
    Informs.step_info = ["score"]
    with pytest.raises(InvalidObservation, match=r"info: expected a dictionary, got \['score'\]"):
        FromGymnasium(make).reset()


def test_metrics_with_computed_names_are_prefixed() -> None:
    info = {"reward": 7.0, "score": 1.0, "episode": {"length": 3.0}}
    mapping = FieldMap(metrics=["reward", "score", "episode.length"])
    env = FromGymnasium(maker(Show, spaces.Box(-1, 1, (2,)), None, info), mapping)
    assert env.reset().metrics == {"info/reward": 7.0, "score": 1.0, "episode.length": 3.0}
    assert check_env(FromGymnasium.of(maker(Show, spaces.Box(-1, 1, (2,)), None, info), mapping)).ok


def test_act_requires_a_running_episode() -> None:
    env = FromGymnasium(maker(Show, spaces.Discrete(2), None, None, 1))
    with pytest.raises(EntityEnvError, match="act: call reset first"):
        env.act({})
    obs = env.reset()
    actions = choose(obs, env.obs_space(), env.action_space(), np.random.default_rng(0))
    assert env.act(actions).done
    with pytest.raises(EntityEnvError, match="act: call reset first"):
        env.act(actions)
    assert not env.reset().done


def test_old_gym_api_results_are_refused() -> None:
    class NoInfo(Show):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0]

    class Done(Show):
        def step(self, action: Any) -> Any:
            value, reward, _, done, info = super().step(action)
            return value, reward, done, info

    box = spaces.Box(0, 1, (2, 2), np.float32)
    with pytest.raises(
        InvalidObservation, match=r"reset: expected a tuple \(observation, info\), got ndarray"
    ):
        FromGymnasium(maker(NoInfo, box)).reset()
    env = FromGymnasium(maker(Done, box))
    actions = choose(env.reset(), env.obs_space(), env.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match=r"step: .*terminated, truncated.*got 4 parts"):
        env.act(actions)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Taxi-v4", "Blackjack-v1", "FrozenLake-v1"])
def test_environments_of_gymnasium_need_no_mapping(name: str) -> None:
    if name not in gymnasium.registry:
        name = name.replace("v4", "v3")
    report = check_env(FromGymnasium.of(name), episodes=2, max_steps=40)
    assert not report.problems, str(report)


def test_names_defined_by_environments_are_used() -> None:
    class Named(Show):
        config: Any = {"observation": {"features": ["presence", "x"]}}  # noqa: RUF012

        def get_action_meanings(self) -> list[str]:
            return ["left", "right"]

    env = FromGymnasium(maker(Named, spaces.Box(0, 1, (3, 2), np.float32)))
    assert env.obs_space().entities["entity"].features == ["x"]
    assert env.action_space()["action"].index_to_label == ["left", "right"]  # type: ignore[union-attr]


def test_bound_class_accepts_further_keyword_arguments() -> None:
    """`train` passes the arguments of the configuration."""
    cls = FromGymnasium.of(Countdown, longest=2)
    assert issubclass(cls, FromGymnasium)
    assert cls(longest=7).env.longest == 7  # type: ignore[call-arg, attr-defined]


SPEED = AgentTranslator(spaces.Discrete(2), spaces.Discrete(2), FieldMap(metrics=["speed"]))


@pytest.mark.parametrize(
    "value", ["1.5", 1j, np.complex64(1), np.ma.masked, np.timedelta64(1, "s"), None, 10**400]
)
def test_non_real_rewards_and_metrics_are_refused(value: Any) -> None:
    with pytest.raises(InvalidObservation, match="reward: expected a number, got"):
        as_reward(value)
    with pytest.raises(InvalidObservation, match="metrics: expected numbers in the info, got"):
        SPEED.metrics({"speed": value} if value is not None else {"speed": [value]})


@pytest.mark.parametrize("value", [1, True, 1.0, np.float32(1), np.array([[1]]), Fraction(1)])
def test_real_rewards_and_metrics_are_accepted(value: Any) -> None:
    assert as_reward(value) == SPEED.metrics({"speed": value})["speed"] == 1.0


@pytest.mark.parametrize(
    "value", [np.ones((1, 2), complex), [["1", "2"]], np.ma.ones((1, 2)), [[10**400, 0]]]
)
def test_non_real_observations_are_refused(value: Any) -> None:
    with pytest.raises(InvalidObservation, match="hand: expected numbers, got"):
        as_array(value, (1, 2), "hand")


class Overwrites(gymnasium.Env[Any, Any]):
    """Overwrites its actions and its argument, and returns the same array in each step."""

    observation_space = spaces.Box(-9, 9, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, levels: list[int]) -> None:
        self.levels, self.array = levels, np.zeros(1, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.array[0] = self.levels.pop()
        return self.array, {}

    def step(self, action: Any) -> Any:
        self.array[0], action[:] = action[0], 9
        return self.array, 1.0, False, True, {}


def test_environment_may_modify_its_inputs_and_reuse_arrays() -> None:
    values = [np.array([x], np.float32) for x in (-1, 0, 1)]
    mapping = FieldMap(actions={"push": Choice(values=values)})
    envs = EnvList(FromGymnasium.of(Overwrites, mapping, levels=[2, 3, 4]), 2)
    observations = [envs.reset(envs.obs_space())]
    for choice in (0, 2):
        chosen = {"push": Ragged(np.full(2, choice), np.ones(2, np.int64))}
        observations.append(envs.act(chosen, envs.obs_space()))
    assert [x.item() for x in values] == [-1, 0, 1]
    assert [obs.features[GLOBAL].values.tolist() for obs in observations] == [
        [[4], [4]],
        [[3], [3]],
        [[2], [2]],
    ]
    finals = [obs.final.features[GLOBAL].values.tolist() for obs in observations[1:] if obs.final]
    assert finals == [[[-1], [-1]], [[1], [1]]]
    assert observations[2].reward.tolist() == [1, 1]
