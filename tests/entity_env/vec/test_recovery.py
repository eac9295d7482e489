"""Recovery of lost workers: frames do not change, or the reason is logged."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import EnvList, ParallelEnvList, VecEnv, VecObs, WorkerError
from entity_env.examples import Minefield
from entity_env.examples.duel import Duel
from entity_env.vec import recovery
from entity_env.vec.recovery import Recovery, first_difference
from entity_env.vec.variation import Variation
from entity_env.vec.worker import RestartQuota, WorkerProcess, WorkerSetup
from tests.entity_env.builders import assert_same, random_choices
from tests.entity_env.vec.frames import assert_same_frames, shown
from tests.entity_env.vec.lost_worlds import CannotRestore, DrawsGlobally, Ends, ShowsItsProcess
from tests.entity_env.worlds import Named, Walk

pytestmark = pytest.mark.slow
NUM_ENVS = 6
STEPS, NUM_KILLS = 40, 5


@contextlib.contextmanager
def in_workers(create_env: Callable[[], Any], **kwargs: Any) -> Iterator[ParallelEnvList]:
    kwargs.setdefault("restarts", RestartQuota(1000, 1000))
    with contextlib.closing(ParallelEnvList(create_env, NUM_ENVS, 3, **kwargs)) as workers:
        yield workers


def kill(workers: ParallelEnvList, i: int) -> None:
    os.kill(workers._workers[i].process.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("create_env", "every_s"),
    [(Minefield, 20.0), (Duel, 0.0), (Named, 20.0), (DrawsGlobally, 20.0), (DrawsGlobally, 0.0)],
)
def test_frames_are_unchanged_if_workers_are_killed_at_random_moments(
    create_env: Callable[[], Any], every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a snapshot before nearly every step, or few of them."""
    monkeypatch.setattr(recovery, "EVERY_S", every_s)
    if create_env is DrawsGlobally:  # environments of a process share its global generators
        with in_workers(create_env) as undisturbed:
            expected = shown(undisturbed, STEPS)
    else:
        expected = shown(EnvList(create_env, NUM_ENVS), STEPS)
    rng = np.random.default_rng(1)
    moments = {*rng.choice(STEPS, NUM_KILLS, replace=False).tolist()}
    timers = []

    def before(step: int) -> None:
        if step in moments:
            i, after_s = int(rng.integers(3)), rng.uniform(0, 0.003)
            timers.append(threading.Timer(after_s, workers._workers[i].process.kill))
            timers[-1].start()

    with in_workers(create_env) as workers:
        pids = {worker.process.pid for worker in workers._workers}
        assert_same_frames(shown(workers, STEPS, before), expected)
        for timer in timers:
            timer.join()
        assert len(timers) == NUM_KILLS
        assert {worker.process.pid for worker in workers._workers} != pids


@pytest.mark.parametrize("every_s", [20.0, 0.0])
def test_recovered_workers_have_the_same_arguments_and_entity_numbers(
    every_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "EVERY_S", every_s)
    first, later = (Variation.of({"max_mines": f"int 0 {n}"}) for n in (9, 3))

    def played(envs: VecEnv, kills: Callable[[int], None]) -> list[VecObs]:
        def before(step: int) -> None:
            if step == 30:
                envs.vary(later)
            kills(step)

        return shown(envs, 50, before, first, track=True)

    with in_workers(Minefield) as workers:

        def kills(step: int) -> None:
            if step in (10, 29, 30, 31):  # 29: lost when the arguments change
                kill(workers, 1)

        got = played(workers, kills)
    expected = played(EnvList(Minefield, NUM_ENVS), lambda step: None)
    assert_same_frames(got, expected)
    assert got[40].identity


def test_episodes_are_unchanged_if_a_worker_is_lost_in_or_before_a_reset() -> None:
    expected = [*shown(EnvList(Named, NUM_ENVS), 3)]
    with in_workers(Named) as workers:
        got = shown(workers, 3, lambda step: kill(workers, 0) if step == -1 else None)
        assert_same_frames(got, expected)
        # in a later reset
        kill(workers, 2)
        envs = EnvList(Named, NUM_ENVS)
        shown(envs, 3)
        assert_same(workers.reset(workers.obs_space()), envs.reset(envs.obs_space()))


def test_the_state_is_unchanged_if_a_worker_is_lost_before_get_state() -> None:
    with in_workers(Named) as workers:
        obs = shown(workers, 5)[-1]
        expected = workers.get_state()
        kill(workers, 1)
        state = workers.get_state()
        assert expected is not None
        assert state is not None
        assert state["matches"].values.tobytes() == expected["matches"].values.tobytes()
        # the state is one to start from, also after a loss
        choices = random_choices(workers, obs, np.random.default_rng(2))
        following = workers.act(choices, workers.obs_space())
        workers.set_state(state, workers.obs_space())
        kill(workers, 0)
        assert_same(workers.act(choices, workers.obs_space()), following)


@pytest.mark.parametrize("times", [1, 2])
def test_replacements_that_are_lost_while_they_catch_up_are_replaced(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shown(EnvList(Named, NUM_ENVS), 20)
    quota, catch_up, left = RestartQuota(10, 10), Recovery.catch_up, [times]

    def killed(self: Recovery, ask: Any, i: int, *args: Any) -> str | None:
        if left[0] > 0:
            left[0] -= 1
            kill(workers, i)
        return catch_up(self, ask, i, *args)

    monkeypatch.setattr(Recovery, "catch_up", killed)
    with in_workers(Named, restarts=quota) as workers:
        got = shown(workers, 20, lambda step: kill(workers, 1) if step == 11 else None)
    assert_same_frames(got, expected)
    assert quota.total == 10 - 1 - times


def test_losses_in_a_replay_use_up_the_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    catch_up = Recovery.catch_up

    def killed(self: Recovery, ask: Any, i: int, *args: Any) -> str | None:
        kill(workers, i)
        return catch_up(self, ask, i, *args)

    monkeypatch.setattr(Recovery, "catch_up", killed)
    with (
        in_workers(Named, restarts=RestartQuota(3, 3)) as workers,
        pytest.raises(WorkerError, match="no restarts are left"),
    ):
        shown(workers, 9, lambda step: kill(workers, 1) if step == 5 else None)


class OfTwoHosts(WorkerProcess):
    """Worker that says that it is on one of two hosts."""

    def __init__(self, setup: WorkerSetup) -> None:
        super().__init__(setup)
        self.host = "first" if setup.first < 4 else "second"


def test_a_lost_host_with_several_workers_uses_up_one_restart() -> None:
    expected, quota = shown(EnvList(Named, NUM_ENVS), 9), RestartQuota(2, 2)

    def before(step: int) -> None:
        if step in (3, 4):  # the second one is noticed in another step
            kill(workers, step - 3)

    with in_workers(Named, restarts=quota, new_worker=OfTwoHosts) as workers:
        assert_same_frames(shown(workers, 9, before), expected)
        assert quota.total == 1
        kill(workers, 2)  # of the other host
        workers.get_state()
        assert quota.total == 0
        kill(workers, 0)
        with pytest.raises(WorkerError, match="no restarts are left"):
            workers.get_state()


@pytest.mark.parametrize(
    ("create_env", "recover", "reason"),
    [
        (Walk, "exact", "count as truncated: Walk has no get_state and set_state"),
        (Named, "truncate", None),
        (
            ShowsItsProcess,
            "exact",
            "count as truncated: the replay differs in reward of environment 2: was ",
        ),
    ],
)
def test_without_recovery_episodes_are_truncated_and_the_reason_is_logged(
    create_env: Callable[[], Any],
    recover: str,
    reason: str | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    # One restart: a replay that differs does not use up another one.
    with in_workers(create_env, recover=recover, restarts=RestartQuota(2, 2)) as workers:
        got = shown(workers, 12, lambda step: kill(workers, 1) if step in (5, 8) else None)
    for step in (6, 9):
        assert got[step].lost.tolist() == [False] * 2 + [True] * 2 + [False] * 2
        assert got[step].truncated[2:4].all()
    assert not len(got[7].lost)
    messages = [message for message in caplog.messages if "count as truncated" in message]
    assert len(messages) == (reason is not None), "once"
    assert reason is None or reason in messages[0]


def test_errors_of_a_replay_are_logged_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recovery, "EVERY_S", 0.0)
    with in_workers(CannotRestore, restarts=RestartQuota(1, 1)) as workers:
        got = shown(workers, 4, lambda step: kill(workers, 1) if step == 3 else None)
    assert got[-1].lost.tolist() == [False] * 2 + [True] * 2 + [False] * 2
    (logged,) = [message for message in caplog.messages if "count as truncated" in message]
    assert "truncated: the replay differs in an error: " in logged
    assert "KeyError" in logged
    assert "\n" not in logged


def test_episodes_are_truncated_if_a_step_ends_every_worker(tmp_path: Path) -> None:
    file = tmp_path / "fixed"

    def create_env() -> Ends:
        world = Ends()
        world.file = file
        return world

    def fixed(step: int) -> None:
        if step == 4:
            file.touch()

    # One loss in all, though two more workers end in the same step.
    with contextlib.closing(
        ParallelEnvList(create_env, 1, 1, restarts=RestartQuota(1, 1))
    ) as workers:
        got = shown(workers, 6, fixed)
    assert [len(obs.lost) for obs in got].count(1) == 1


def test_snapshots_are_due_by_time_cost_and_size() -> None:
    now = [0.0]
    recovery_log = Recovery(1, "exact", lambda: now[0])
    step = recovery.RecoveryStep(
        (("move", np.zeros(recovery.MAX_BYTES), np.zeros(1, np.int64)),), None
    )

    def states() -> list[bytes]:
        now[0] += 0.1
        return [b""]

    assert not recovery_log.is_due
    now[0] = 20.0
    assert recovery_log.is_due
    recovery_log.save(states)
    now[0] += 29
    assert not recovery_log.is_due, "0.1 s are 1% of 10 s"
    now[0] += 1.5
    assert recovery_log.is_due
    recovery_log.save(states)
    recovery_log.append("act_on", step)
    now[0] += 9
    assert not recovery_log.is_due
    now[0] += 1.5
    assert recovery_log.is_due
    recovery_log.save(states)
    recovery_log.forget(0)
    assert recovery_log.is_due, "a worker was reset"
    off = Recovery(1, "truncate", lambda: now[0])
    now[0] += 1000
    assert not off.is_due


def test_first_difference_names_field_and_environment() -> None:
    envs = EnvList(Walk, 3)
    frames = shown(envs, 2)
    obs, everything = frames[1], np.arange(3)
    assert first_difference(obs, obs, everything, 7, True) is None
    other = frames[2]
    other.reward = obs.reward
    difference = first_difference(other, obs, everything, 7, True)
    assert difference == "features['Thing'] of environment 7: was 3 rows, replayed 2"
    with pytest.raises(ValueError, match="recover: expected one of exact, truncate, got 'never'"):
        ParallelEnvList(Walk, 1, 1, recover="never")
