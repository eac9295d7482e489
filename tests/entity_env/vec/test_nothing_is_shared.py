"""Environments may overwrite their inputs, and return the same objects in each step.

The twin of each environment copies both; frames, states and recordings must be equal.
"""

import contextlib
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityEnvError,
    Environment,
    EnvList,
    Match,
    Observation,
    ObsSpace,
    ParallelEnvList,
    VecEnv,
    VecObs,
    check_env,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.bot import bot_choices, bot_observations
from entity_env.examples import ENV_REGISTRY, Duel, VecMinefield
from entity_env.recording.record import RecordingVecEnv
from entity_env.serialization.messages import pack, unpack
from entity_env.spaces import Spaces
from entity_env.testing import conformance
from entity_env.vec.vec_env import AddMetricsWrapper
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets
from tests.entity_env.builders import assert_same, random_choices
from tests.entity_env.duel_bots import Greedy, Shoots
from tests.entity_env.hostile import HostileEnv, HostileMatch, HostileVecEnv, hostile, hostile_bot
from tests.entity_env.kinds_world import Sorter
from tests.entity_env.worlds import Named, NamedInArrays

OWN = [Named, NamedInArrays, Sorter, Camp, Targets]
"""Ids of all kinds, cut off episodes, labels, and actions of all kinds."""
NUM_ENVS = 4


def twins(cls: Any) -> list[Callable[..., Any]]:
    made = HostileMatch if issubclass(cls, Match) else HostileEnv
    return [cls, functools.partial(made, cls)]


def played(envs: VecEnv, steps: int, obs: VecObs | None = None) -> list[VecObs]:
    """Return frames of random play; checks that the choices are not modified."""
    rng = np.random.default_rng(3)
    if obs is None:
        with contextlib.suppress(EntityEnvError):  # of those in array operations
            envs.track()
        envs.seed(5)
        obs = envs.reset(envs.obs_space())
    frames = [copy.deepcopy(obs)]
    for _ in range(steps):
        choices = random_choices(envs, obs, rng)
        chosen, space = copy.deepcopy(choices), copy.deepcopy(envs.obs_space())
        obs = envs.act(choices, envs.obs_space())
        assert_same(choices, chosen)
        assert envs.obs_space() == space
        frames.append(copy.deepcopy(obs))
    return frames


@pytest.mark.parametrize("cls", [*ENV_REGISTRY.values(), *OWN])
def test_frames_equal_those_of_the_twin(cls: Any) -> None:
    expected, got = (played(EnvList(make, NUM_ENVS), 25) for make in twins(cls))
    for actual, other in zip(got, expected, strict=True):
        assert_same(actual, other)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Named, Duel])
def test_frames_in_workers_equal_those_of_the_twin(cls: Any) -> None:
    well_behaved, overwriting = twins(cls)
    expected = played(EnvList(well_behaved, NUM_ENVS), 12)
    with contextlib.closing(ParallelEnvList(overwriting, NUM_ENVS, 2)) as envs:
        for actual, other in zip(played(envs, 12), expected, strict=True):
            assert_same(actual, other)


@pytest.mark.parametrize("cls", [Named, Camp, Duel])
def test_restored_episodes_equal_those_of_the_twin(cls: Any) -> None:
    futures = []
    for make in twins(cls):
        envs, again = EnvList(make, NUM_ENVS), EnvList(make, NUM_ENVS)
        played(envs, 3)
        data = pack(envs.get_state(), exact=True)
        envs.get_state()
        obs = again.set_state(unpack(data), again.obs_space())
        assert obs is not None
        futures.append((data, played(again, 8, obs)))
    assert_same(futures[1][1][0], futures[0][1][0])
    for actual, other in zip(futures[1][1], futures[0][1], strict=True):
        assert_same(actual, other)


@pytest.mark.parametrize("cls", [Named, Targets, Duel])
def test_recordings_equal_those_of_the_twin(cls: Any, tmp_path: Path) -> None:
    files = [tmp_path / "twin", tmp_path / "overwriting"]
    for path, make in zip(files, twins(cls), strict=True):
        with contextlib.closing(RecordingVecEnv(EnvList(make, NUM_ENVS), path)) as envs:
            played(envs, 12)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "make", [VecMinefield, lambda n: EnvList(Named, n), lambda n: EnvList(Duel, n)]
)
def test_vectorized_environments_may_reuse_their_batch(make: Callable[[int], VecEnv]) -> None:
    expected = played(AddMetricsWrapper(AnyVecEnv(make(NUM_ENVS))), 25)
    got = played(AddMetricsWrapper(AnyVecEnv(HostileVecEnv(make(NUM_ENVS)))), 25)
    for actual, other in zip(got, expected, strict=True):
        assert_same(actual, other)


def test_bots_may_overwrite_their_observations() -> None:
    envs = EnvList(Duel, NUM_ENVS)
    envs.seed(0)
    obs = envs.reset(envs.obs_space())
    spaces = Spaces.of(envs)
    before, choices = copy.deepcopy(obs), []
    for classes in ([Greedy, Shoots], [hostile_bot(Greedy), hostile_bot(Shoots)]):
        bots = [cls() for cls in classes * 2]
        for seed, bot in enumerate(bots):
            bot.seed(seed)
        frames = bot_observations(obs, envs.obs_space(), spaces)
        choices.append(bot_choices(bots, frames, obs, spaces, where=str))
    assert_same(choices[1], choices[0])
    assert_same(obs, before)


@pytest.mark.parametrize("cls", [Named, Camp, Duel])
def test_environments_that_overwrite_observations_pass_check_env(cls: Any) -> None:
    reports = [check_env(make, max_steps=30) for make in (cls, hostile(cls))]
    expected, got = ([f.text for f in r.problems + r.remarks] for r in reports)
    assert got == expected
    conformance(hostile(cls), steps=10)


class Reuses(Environment):
    """Five steps of reward 1, shown in one observation again and again."""

    def __init__(self) -> None:
        self.seen = Observation(features={"P": [[0.0]]}, metrics={"t": 0.0})

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"P": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {"go": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.t, self.seen.reward, self.seen.done = 0, 0.0, False
        self.seen.metrics["t"] = self.seen.features["P"][0][0] = 0.0  # type: ignore[index]
        return self.seen

    def act(self, actions: Any) -> Observation:
        self.t += 1
        self.seen.reward, self.seen.truncated = 1.0, self.t == 5
        self.seen.metrics["t"] = self.seen.features["P"][0][0] = float(self.t)  # type: ignore[index]
        return self.seen


def test_outcomes_of_the_last_step_survive_a_reset_that_overwrites_them() -> None:
    envs = EnvList(Reuses, 1)
    frames = played(envs, 5)
    assert [float(obs.reward[0]) for obs in frames] == [0, 1, 1, 1, 1, 1]
    assert frames[-1].truncated.tolist() == [True]
    assert frames[-1].metrics["t"].sum == 5
    assert frames[-1].final is not None
    assert frames[-1].final.features["P"].values.tolist() == [[5]]
    assert frames[-1].features["P"].values.tolist() == [[0]]


class Removes(Environment):
    """Every second unit that acts dies as its order is read."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Unit": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {"order": CategoricalActionSpace(["stay", "go"])}

    def reset(self) -> Observation:
        self.units = [*range(6)]
        self.read: list[int] = []
        return self.observe()

    def act(self, actions: Any) -> Observation:
        for unit in actions["order"].actors:
            self.read.append(unit)
            if unit % 2:
                self.units.remove(unit)
        actions["order"].index_to_label.clear()
        return self.observe()

    def observe(self) -> Observation:
        rows = [[float(unit)] for unit in self.units]
        orders = {"order": CategoricalActionMask(actor_ids=self.units)}
        return Observation(entities={"Unit": (rows, self.units)}, actions=orders)


def test_all_actors_can_be_iterated_while_entities_are_removed() -> None:
    envs = EnvList(Removes, 2)
    played(envs, 2)
    for match in envs.matches:
        assert match.env.read == [0, 1, 2, 3, 4, 5, 0, 2, 4]  # type: ignore[attr-defined]
    assert envs.action_space()["order"].labels == ["stay", "go"]


class SharedByClass(Reuses):
    """Shows an array of the class, which all instances change."""

    rows = np.zeros((1, 1), np.float32)

    def act(self, actions: Any) -> Observation:
        obs = super().act(actions)
        self.rows += 1
        obs.features = {"P": self.rows}
        return obs

    def reset(self) -> Observation:
        self.rows[:] = 0
        obs = super().reset()
        obs.features = {"P": self.rows}
        return obs


def test_arrays_shared_by_instances_are_a_remark_of_check_env() -> None:
    report = check_env(SharedByClass)
    assert report.ok
    assert [remark.field for remark in report.remarks] == ["features of 'P'"]
    assert "when another instance played" in report.remarks[0].text
    assert check_env(Reuses).remarks == []
