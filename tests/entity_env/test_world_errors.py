"""Exceptions of environments, of whatever class, are reported with traceback and environment."""

import contextlib
import functools
import traceback

import numpy as np
import pytest

from entity_env import EnvList, ObsSpace, ParallelEnvList, VecEnv
from entity_env.adapters.any_vec_env import AnyVecEnv
from entity_env.errors import WorkerError
from entity_env.testing.random_play import random_choices
from entity_env.vec.worker import RestartQuota, WorkerLostError
from tests.entity_env.worker_worlds import Raises, RaisesEach
from tests.entity_env.worlds import Walk

NO_EXCEPTIONS = ["SystemExit", "GeneratorExit"]
"""Would pass every `except Exception` on their way out of the program."""
KINDS = [
    *["BrokenPipeError", "ConnectionResetError", "EOFError", "OSError", "MemoryError"],
    *["StopIteration", "KeyboardInterrupt", "Unpicklable", *NO_EXCEPTIONS],
]


def play(envs: VecEnv) -> None:
    """Take three steps, and close the environments."""
    with contextlib.closing(envs):
        take_steps(envs)


def take_steps(envs: VecEnv) -> None:
    obs = envs.reset(envs.obs_space())
    for step in range(3):
        chosen = random_choices(obs, envs.action_space(), np.random.default_rng(step))
        obs = envs.act(chosen, envs.obs_space())


@pytest.mark.parametrize("where", ["reset", "act"])
@pytest.mark.parametrize("kind", KINDS)
def test_exceptions_name_the_environment(kind: str, where: str) -> None:
    with pytest.raises((Exception, KeyboardInterrupt)) as raised:
        play(EnvList(functools.partial(Raises, kind, where), 2))
    text = "".join(traceback.format_exception(raised.value))
    assert f"{kind}: a bug of the environment" in text or kind == "Unpicklable"
    assert "in _fail" in text, "the traceback leads to the line"
    assert "in environment 0, episode 0, step" in text
    if kind not in ("KeyboardInterrupt", "StopIteration", *NO_EXCEPTIONS):
        assert type(raised.value).__name__ == kind, "callers may catch it by its class"


@pytest.mark.parametrize("where", ["init", "close"])
@pytest.mark.parametrize("kind", NO_EXCEPTIONS)
def test_system_exit_in_constructor_or_close_is_an_error(kind: str, where: str) -> None:
    with pytest.raises(RuntimeError, match=f"raised {kind}: a bug of the environment"):
        play(EnvList(functools.partial(Raises, kind, where), 2))


class SecondRaises(Raises):
    """Two instances run in each process; the second one fails in the configured method."""

    made = 0

    def __init__(self, kind: str, where: str) -> None:
        SecondRaises.made += 1
        super().__init__(kind, where if SecondRaises.made % 2 == 0 else "nowhere")

    def obs_space(self) -> ObsSpace:
        self._fail("spaces")
        return super().obs_space()


@pytest.mark.parametrize("where", ["init", "spaces", "close"])
@pytest.mark.parametrize("kind", ["ValueError", "BrokenPipeError", "SystemExit"])
def test_exceptions_outside_of_steps_name_the_environment(kind: str, where: str) -> None:
    SecondRaises.made = 0
    with pytest.raises((ValueError, BrokenPipeError, RuntimeError)) as raised:
        play(EnvList(functools.partial(SecondRaises, kind, where), 2, first_env_index=4))
    text = "".join(traceback.format_exception(raised.value))
    assert f"{kind}: a bug of the environment" in text
    assert "in environment 5" in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BrokenPipeError", "SystemExit"])
def test_exception_in_close_of_a_worker_is_raised_in_the_parent(kind: str) -> None:
    envs = ParallelEnvList(functools.partial(Raises, kind, "close"), 4, 2)
    workers = [worker.process for worker in envs._workers]
    with pytest.raises(WorkerError) as raised:
        play(envs)
    assert f"{kind}: a bug of the environment" in str(raised.value)
    assert "in environment 1" in str(raised.value)
    assert all(worker.returncode == 0 for worker in workers), "all of them were closed"
    envs.close()


def test_all_environments_are_closed_if_one_close_raises() -> None:
    closed = []

    class Closes(Walk):
        def close(self) -> None:
            closed.append(self)
            if len(closed) == 2:
                raise ValueError("cannot be closed")

    with pytest.raises(ValueError, match="cannot be closed"):
        play(EnvList(Closes, 3))
    assert len(closed) == 3


@pytest.mark.slow
def test_close_ignores_errors_of_a_pending_step() -> None:
    envs = ParallelEnvList(functools.partial(Raises, "ValueError"), 2, 1)
    obs = envs.reset(envs.obs_space())
    for step in range(2):
        chosen = random_choices(obs, envs.action_space(), np.random.default_rng(step))
        envs.act_async(chosen, envs.obs_space())
        if step == 0:
            obs = envs.wait()
    workers = [worker.process for worker in envs._workers]
    envs.close()
    assert [worker.returncode for worker in workers] == [0]


class VecRaises(EnvList):
    """A vectorised environment that ends the program."""

    def act(self, *_: object) -> None:  # type: ignore[override]
        raise SystemExit(0)


def test_system_exit_in_a_vectorised_environment_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="raised SystemExit: 0"):
        play(AnyVecEnv(VecRaises(Walk, 2)))


def test_worker_exceptions_have_traceback_and_environment() -> None:
    """And none ends the worker: its environments continue with another episode."""
    with contextlib.closing(
        ParallelEnvList(functools.partial(RaisesEach, KINDS), 2, 1, restarts=RestartQuota(0, 0))
    ) as envs:
        for episode, kind in enumerate(KINDS):
            with pytest.raises(WorkerError) as raised:
                take_steps(envs)
            assert not isinstance(raised.value, WorkerLostError)
            text = str(raised.value)
            assert "died" not in text
            assert kind in text
            assert "a bug of the environment" in text
            assert "in _fail" in text
            assert f"in environment 0, episode {episode}, step 2" in text
