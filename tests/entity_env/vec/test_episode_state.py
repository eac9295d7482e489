"""Restored environments: the same future to the bit, in any process."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    AddMetricsWrapper,
    EntityEnvError,
    EnvList,
    ParallelEnvList,
    VecEnv,
    VecObs,
    WorkerError,
)
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.examples import ENV_REGISTRY, Duel, Medics, Minefield
from entity_env.plain_state import from_plain, to_plain
from entity_env.recording.record import RecordingVecEnv
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.episode_state import cat_states, split_state
from entity_env.vec.worker import RestartQuota
from tests.entity_env.builders import ROOT, assert_same, random_choices
from tests.entity_env.vec.example_futures import NUM_ENVS, futures
from tests.entity_env.worlds import Named, NamedInArrays, Walk


def future(envs: VecEnv, obs: VecObs, steps: int = 8, seed: int = 1) -> list[VecObs]:
    """Return the frames of random play from some frames on."""
    rng, frames = np.random.default_rng(seed), [obs]
    for _ in range(steps):
        frames.append(envs.act(random_choices(envs, frames[-1], rng), envs.obs_space()))
    return frames[1:]


def begun(envs: VecEnv, steps: int = 7) -> VecObs:
    """Return the last frames of some random steps after a reset."""
    envs.seed(5)
    return [obs := envs.reset(envs.obs_space()), *future(envs, obs, steps, seed=0)][-1]


def restored(envs: VecEnv, state: Any) -> VecObs:
    obs = envs.set_state(state, envs.obs_space())
    assert obs is not None
    return obs


def saved(envs: VecEnv) -> Any:
    """A state as it comes back from a file."""
    state = envs.get_state()
    assert state is not None
    return unpack(pack(state, exact=True))


def assert_same_future(envs: VecEnv, state: Any, expected: list[VecObs]) -> None:
    obs = restored(envs, state)
    for got, want in zip(future(envs, obs, len(expected)), expected, strict=True):
        assert_same(got, want)


IN_WORKERS = [Duel, Medics, Named, NamedInArrays]
"""A match, chains of actions, ids of every kind, and ids in arrays."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("create_env", "has_workers"),
    [
        *[(create_env, False) for create_env in (*ENV_REGISTRY.values(), Named, NamedInArrays)],
        *[(create_env, True) for create_env in IN_WORKERS],
    ],
)
def test_restored_environments_have_the_same_future_six_ways(
    create_env: Callable[[], Any], has_workers: bool
) -> None:
    """Workers send states of all environments by the same messages as `saved`."""
    with contextlib.ExitStack() as stack:

        def make(processes: int) -> VecEnv:
            envs: VecEnv = EnvList(create_env, NUM_ENVS)
            if has_workers:
                envs = ParallelEnvList(create_env, NUM_ENVS, processes)
            stack.callback(envs.close)
            return envs

        envs = make(2)
        obs = begun(envs)
        state, before = saved(envs), pack(envs.get_state(), exact=True)
        expected = future(envs, obs)
        # in the same environments
        assert_same_future(envs, state, expected)
        # in fresh ones
        fresh = make(1)
        assert_same_future(fresh, state, expected)
        # after a while
        future(fresh, expected[-1], 5, seed=3)
        assert_same_future(fresh, state, expected)
        # twice: nothing of the state is used up, and it is the state again
        restored(fresh, state)
        assert pack(fresh.get_state(), exact=True) == before
        assert_same_future(fresh, state, expected)
        # with others around, and without: all of them in this process, and the last two alone
        alone = EnvList(create_env, NUM_ENVS)
        assert_same_future(alone, state, expected)
        last = EnvList(create_env, 2, first_env_index=2)
        got = future(last, restored(last, split_state(state, [2, 2])[1]), 1)[0]
        assert len(got) == 2


@pytest.mark.slow
def test_states_of_all_examples_have_the_same_future_in_another_process(tmp_path: Path) -> None:
    """Strings have other hashes there, and sets of them another order."""
    states = {}
    for name, create_env in ENV_REGISTRY.items():
        envs = EnvList(create_env, NUM_ENVS)
        begun(envs)
        states[name] = envs.get_state()
    (tmp_path / "states").write_bytes(pack(states, exact=True))
    module = "tests.entity_env.vec.example_futures"
    printed = subprocess.check_output([sys.executable, "-m", module, tmp_path / "states"], cwd=ROOT)
    assert json.loads(printed) == futures(states)


def test_states_of_half_of_the_environments_have_the_same_future() -> None:
    """States of environments are independent of each other."""
    whole, half = EnvList(Minefield, 4), EnvList(Minefield, 2, first_env_index=2)
    begun(whole)
    state = saved(whole)
    obs, half_obs = restored(whole, state), restored(half, split_state(state, [2, 2])[1])
    rng = np.random.default_rng(2)
    for _ in range(300):  # beyond ends of episodes; the next ones are seeded by their index
        choices = random_choices(whole, obs, rng)
        obs = whole.act(choices, whole.obs_space())
        half_obs = half.act({n: c[2:] for n, c in choices.items()}, half.obs_space())
        np.testing.assert_array_equal(half_obs.reward, obs.reward[2:])
        np.testing.assert_array_equal(half_obs.done, obs.done[2:])
        assert_same(half_obs.features["Mine"], obs.features["Mine"][2:])


@pytest.mark.slow
@settings(max_examples=15)
@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=4), steps=st.integers(0, 9))
def test_split_states_concatenate_to_the_same_state(counts: list[int], steps: int) -> None:
    envs = EnvList(Named, sum(counts))
    begun(envs, steps)
    state = saved(envs)
    together = cat_states(split_state(state, counts))
    assert_same_future(EnvList(Named, sum(counts)), together, future(envs, restored(envs, state)))


def test_statistics_and_episode_numbers_continue_after_a_restore(tmp_path: Path) -> None:
    def wrapped(name: str) -> VecEnv:
        envs = AddMetricsWrapper(AnyVecEnv(EnvList(Named, NUM_ENVS)))
        return RecordingVecEnv(envs, tmp_path / name, subsample=2)

    straight = wrapped("straight")
    expected = future(straight, begun(straight))
    straight.close()
    first, second = wrapped("resumed"), wrapped("resumed")
    begun(first)
    state = saved(first)
    first.close()
    assert_same_future(second, state, expected)
    second.close()
    assert (tmp_path / "resumed").read_bytes() == (tmp_path / "straight").read_bytes()


def test_recording_can_start_when_a_run_is_resumed(tmp_path: Path) -> None:
    envs = EnvList(Named, NUM_ENVS)
    expected = future(envs, begun(envs), 0)
    state = saved(envs)
    recorded = RecordingVecEnv(EnvList(Named, NUM_ENVS), tmp_path / "new")
    assert_same_future(recorded, state, expected)
    state = recorded.get_state()
    assert state is not None
    assert state["recording"]["step"].max() == len(expected)
    recorded.close()


class SomeStateful(Walk):
    """Every other instance offers its state."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        if self.made % 2:
            self.get_state = self.set_state = lambda *state: {}


class NamedByObjects(Named):
    names = (object(), object())


@pytest.mark.parametrize("create_env", [Walk, SomeStateful])
def test_get_state_is_none_if_an_environment_has_no_state(create_env: Callable[[], Any]) -> None:
    envs = EnvList(create_env, NUM_ENVS)
    begun(envs, 0)
    assert envs.get_state() is None
    assert AddMetricsWrapper(envs).get_state() is None


@pytest.mark.slow
def test_environments_without_state_return_none() -> None:
    named, workers = EnvList(Named, 2), ParallelEnvList(Walk, 2, 1)
    with contextlib.closing(workers):
        begun(named)
        begun(workers)
        assert workers.get_state() is None
        assert EnvList(Walk, 2).set_state(saved(named), named.obs_space()) is None
        assert workers.set_state(saved(named), named.obs_space()) is None
        begun(workers)


class Raises(Named):
    def get_state(self) -> dict[str, Any]:
        raise KeyError("lost")


class NotPlain(Named):
    def get_state(self) -> dict[str, Any]:
        return {"a": [1, {"b": (2,)}]}


class Keeps(Named):
    where: Any = object

    def get_state(self) -> dict[str, Any]:
        self.where = self.where()
        return super().get_state()


class Forgets(Named):
    def set_state(self, state: dict[str, Any]) -> None:
        raise KeyError("t")


@pytest.mark.parametrize(
    ("create_env", "message"),
    [
        (Raises, r"environment 2 \(Raises\): get_state: KeyError: 'lost'; correct the method, or"),
        (NotPlain, r"environment 2 \(NotPlain\): .* got tuple at state\['a'\]\[1\]\['b'\]"),
        (NamedByObjects, r"environment 2 \(NamedByObjects\): get_state: ids of Who: .* got object"),
        (Keeps, r"environment 2 \(Keeps\): get_state: TypeError: where: expected plain data"),
    ],
)
def test_errors_of_get_state_name_the_environment(
    create_env: Callable[[], Any], message: str
) -> None:
    envs = EnvList(create_env, 2, first_env_index=2)
    begun(envs)
    with pytest.raises(EntityEnvError, match=message):
        envs.get_state()


@pytest.mark.slow
def test_errors_of_set_state_name_the_environment() -> None:
    envs = EnvList(Named, 2)
    begun(envs)
    state = saved(envs)
    message = r"environment 0 \(Forgets\): set_state: KeyError: 't'"
    with pytest.raises(EntityEnvError, match=message):
        EnvList(Forgets, 2).set_state(state, envs.obs_space())
    with (
        contextlib.closing(ParallelEnvList(Forgets, 2, 1)) as workers,
        pytest.raises(WorkerError, match=message),
    ):
        workers.set_state(state, envs.obs_space())


def test_states_with_another_number_of_environments_are_rejected() -> None:
    envs = EnvList(Named, 2)
    begun(envs)
    with pytest.raises(EntityEnvError, match="the state of 3 environments, got that of 2"):
        EnvList(Named, 3).set_state(saved(envs), envs.obs_space())
    with pytest.raises(EntityEnvError, match="get_state: call reset first"):
        EnvList(Named, 2).get_state()


@pytest.mark.alone
@pytest.mark.slow
def test_a_worker_lost_before_a_save_is_replaced_in_the_next_step() -> None:
    quota = RestartQuota(total=9, per_minute=9)
    with contextlib.closing(
        ParallelEnvList(Named, 4, 2, restarts=quota, recover="truncate")
    ) as workers:
        obs = begun(workers)
        os.kill(workers._workers[1].process.pid, signal.SIGKILL)
        assert workers.get_state() is None
        obs = future(workers, obs, 1)[0]
        assert obs.truncated[2:].all()
        assert not obs.truncated[:2].any()
        state = saved(workers)
        expected = future(workers, obs)
        os.kill(workers._workers[0].process.pid, signal.SIGKILL)
        assert_same_future(workers, state, expected)
        assert_same_future(EnvList(Named, 4), state, expected)


@pytest.mark.slow
def test_environments_may_store_arrays_of_their_restored_state() -> None:
    """Workers write over the memory that states came through."""
    with contextlib.closing(ParallelEnvList(Minefield, 4, 2)) as workers:
        obs = begun(workers)
        state = saved(workers)
        expected = future(workers, obs, 30)
        assert_same_future(workers, state, expected)


def test_get_state_during_a_step_raises() -> None:
    envs = EnvList(Named, 2)
    envs.act_async(random_choices(envs, begun(envs), np.random.default_rng(0)), envs.obs_space())
    with pytest.raises(EntityEnvError, match="get_state: call wait first"):
        envs.get_state()


@pytest.mark.slow
def test_code_digests_are_the_same_in_workers() -> None:
    code = EnvList(Named, 2).world_code()
    assert [*code] == [f"{Named.__module__}.Named"]
    derived = EnvList(NamedInArrays, 2).world_code()
    assert derived.items() > code.items()
    with contextlib.closing(ParallelEnvList(Named, 2, 2)) as workers:
        assert workers.world_code() == code
        assert AddMetricsWrapper(AnyVecEnv(workers)).world_code() == code
    unknown = type("Made", (Named,), {})
    assert EnvList(unknown, 1).world_code() == code


HASH_MODULUS = 2**61 - 1  # integers that are equal modulo it share a hash


@pytest.mark.parametrize(
    "value",
    [
        {"set": [HASH_MODULUS * i for i in range(1000)]},
        {"dict": [[HASH_MODULUS * i, 0] for i in range(1000)]},
        {"dict": [[{"tuple": [HASH_MODULUS * i]}, 0] for i in range(1000)]},
        {"set": [{"tuple": ["x", HASH_MODULUS * i]} for i in range(1000)]},
    ],
)
def test_states_with_colliding_hashes_are_rejected(value: Any) -> None:
    with pytest.raises(ValueError, match="different hashes"):
        from_plain(value)


def test_decoding_text_takes_memory_in_proportion_to_its_size() -> None:
    for value in ({"text": ["<U100000000", "x"]}, {"texts": ["<U1000000", [100], ["x"] * 100]}):
        with pytest.raises(ValueError, match="expected a dtype as wide as its texts"):
            from_plain(value)
    empty = np.zeros(1000, "<U200")
    assert from_plain(to_plain(empty, "names")).dtype == empty.dtype
