"""Vectorized environments: the same frames in any process, errors with place, no hangs."""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entity_env import (
    Entity,
    EntityEnvError,
    EnvList,
    InvalidObservation,
    Observation,
    ObsSpace,
    ParallelEnvList,
    VecEnv,
    VecObs,
    WorkerError,
)
from entity_env.examples import ENV_REGISTRY
from entity_env.seeding import derive_seed, key_of, mix, mix_ints
from entity_env.vec.parallel import cores_of_workers, split_evenly
from entity_env.vec.worker import RestartQuota, WorkerProcess, WorkerSetup
from tests.entity_env.builders import assert_same, play, random_choices, stepped
from tests.entity_env.worlds import SPACE, Bidding, Breaks, Dies, FailsLater, Nan, Sleeps, Walk


class WalkHere(Walk):
    """Defined in the test's own module, which a worker cannot import by name."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("create_env", "num_envs", "processes"),
    [(WalkHere, 7, 2), (Walk, 7, 1), (Bidding, 10, 3)],
    ids=["environments", "one process", "matches"],
)
def test_frames_do_not_depend_on_the_number_of_processes(
    create_env: Callable[[], Any], num_envs: int, processes: int
) -> None:
    """7 environments on 2 processes split as 4, 3; 5 matches of two sides on 3 as 4, 4, 2."""
    envs = EnvList(create_env, num_envs)
    workers = ParallelEnvList(create_env, num_envs, processes)
    try:
        assert len(workers) == len(envs) == num_envs
        assert_same(workers.obs_space(), envs.obs_space())
        assert_same(workers.action_space(), envs.action_space())
        for got, expected in zip(play(workers, 12), play(envs, 12), strict=True):
            assert_same(got, expected)
    finally:
        workers.close()


def test_a_filter_only_changes_the_observed_features() -> None:
    obs_filter = ObsSpace(entities={"Thing": Entity(["x"]), "Goal": Entity(["y"])})
    for whole, part in zip(
        play(EnvList(Walk, 4), 8), play(EnvList(Walk, 4), 8, obs_filter), strict=True
    ):
        assert list(part.features) == ["Thing", "Goal"]
        np.testing.assert_array_equal(part.features["Goal"].values, [[1.0]] * 4)
        assert_same(part.features["Thing"], whole.features["Thing"])
        assert_same(part.reward, whole.reward)


@pytest.mark.slow
def test_frames_follow_the_order_of_types_in_the_filter() -> None:
    """Also from the middle of a run on: indices of actees count in the order of the filter."""
    entities = Walk().obs_space().entities
    space = ObsSpace(Walk().obs_space().global_features, dict(reversed(entities.items())))
    assert space == Walk().obs_space()
    envs, workers = EnvList(Walk, 4), ParallelEnvList(Walk, 4, 2)
    try:
        for vec_env in (envs, workers):
            vec_env.seed(5)
        frames = [vec_env.reset(vec_env.obs_space()) for vec_env in (envs, workers)]
        for k in range(6):
            chosen = random_choices(envs, frames[0], np.random.default_rng(k))
            obs_filter = space if k >= 2 else envs.obs_space()
            frames = [vec_env.act(chosen, obs_filter) for vec_env in (envs, workers)]
            assert_same(frames[1], frames[0])
            order = [name for name in frames[1].features if name in entities]
            assert order == list(obs_filter.entities)
    finally:
        workers.close()


def test_runs_are_a_function_of_their_seed_beyond_the_first_episode() -> None:
    first, second = play(EnvList(Walk, 3), 20), play(EnvList(Walk, 3), 20)
    for actual, expected in zip(first, second, strict=True):
        assert_same(actual, expected)
    lengths = {int(n) for obs in first for n in obs.features["Thing"].lengths}
    assert lengths == {0, 1, 2, 3}, "episodes differ from each other"


def test_truncated_episodes_have_their_last_observation() -> None:
    """The value at a truncation is that of the episode's last frame, not of the next episode."""
    seen_both = False
    for previous, obs in zip(frames := play(EnvList(Walk, 9), 20), frames[1:], strict=False):
        np.testing.assert_array_equal(obs.done, obs.terminated | obs.truncated)
        assert not (obs.terminated & obs.truncated).any()
        if not obs.truncated.any():
            assert obs.final is None
            continue
        seen_both = seen_both or obs.terminated.any()
        assert obs.final is not None
        assert len(obs.final) == obs.truncated.sum()
        for k, i in enumerate(np.flatnonzero(obs.truncated)):
            clock = previous.features["__global__"][int(i)].values[0, 0]
            assert obs.final.features["__global__"][k].values[0, 0] == clock + 1
            assert obs.features["__global__"][int(i)].values[0, 0] == 0
            assert (
                obs.final.features["Thing"].lengths[k] == previous.features["Thing"].lengths[int(i)]
            )
    assert seen_both


def test_sides_of_a_match_are_adjacent_and_end_together() -> None:
    frames = play(EnvList(Bidding, 6), 3)
    sides = frames[0].features["Purse"].values
    assert sides[:, 1].tolist() == [0, 1, 0, 1, 0, 1]
    assert sides[0, 0] == sides[1, 0] != sides[2, 0]
    assert frames[-1].truncated.all()


def test_environment_errors_name_the_environment_and_keep_the_traceback() -> None:
    with pytest.raises(KeyError, match="a bug of the environment") as caught:
        play(EnvList(FailsLater, 7), 3)
    index = first_failure(7)
    assert caught.value.__notes__ == [f"in environment {index}, episode 0, step 2"]


def first_failure(num_envs: int) -> int:
    envs = EnvList(FailsLater, num_envs)
    envs.seed(5)
    envs.reset(envs.obs_space())
    return next(i for i, m in enumerate(envs.matches) if m.env.fails)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_errors_in_a_worker_have_its_traceback() -> None:
    workers = ParallelEnvList(FailsLater, 7, 2)
    try:
        with pytest.raises(WorkerError) as caught:
            play(workers, 3)
        assert "worlds.py" in str(caught.value)
        assert "KeyError: 'a bug of the environment'" in str(caught.value)
        assert f"in environment {first_failure(7)}, episode 0, step 2" in str(caught.value)
        assert len(play(workers, 1)) == 2, "what the other workers answered was read, too"
    finally:
        workers.close()


@pytest.mark.slow
@pytest.mark.parametrize("processes", [None, 2])
def test_validation_names_environment_and_step(processes: int | None) -> None:
    envs: VecEnv = (
        EnvList(Nan, 7, validate=True)
        if processes is None
        else ParallelEnvList(Nan, 7, processes, validate=True)
    )
    try:
        with pytest.raises(InvalidObservation) as caught:
            play(envs, 3)
        assert (caught.value.env_index, caught.value.step) == (first_failure(7), 2)
        assert "features of 'Goal': expected finite numbers, got x=nan" in str(caught.value)
    finally:
        envs.close()


LAST = "environment 0, episode 1, step 2: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "place", "processes"),
    [
        ("first frame", "environment 0, episode 2, step 0: features of 'Thing'", None),
        ("last frame", f"{LAST}last observation of a truncated episode", None),
        ("reward", f"{LAST}reward", None),
        ("metric", f"{LAST}metrics.'fuel'.", None),
        ("first frame", "environment 0, episode 2, step 0: features of 'Thing'", 1),
        ("last frame", f"{LAST}last observation of a truncated episode", 1),
    ],
)
def test_errors_at_the_end_of_an_episode_name_that_episode(
    wrong: str, place: str, processes: int | None
) -> None:
    create_env = functools.partial(Breaks, wrong)
    envs: VecEnv = (
        EnvList(create_env, 1, validate=True)
        if processes is None
        else ParallelEnvList(create_env, 1, processes, validate=True)
    )
    with contextlib.closing(envs), pytest.raises(InvalidObservation, match=place):
        play(envs, 5)


class ForgetsAnId(Walk):
    def reset(self) -> Observation:
        obs = super().reset()
        obs.ids["Goal"] = []
        return obs


def test_validation_checks_the_number_of_ids() -> None:
    with pytest.raises(
        InvalidObservation, match=r"environment 0, episode 0, step 0: ids.'Goal'.: expected 1"
    ):
        play(EnvList(ForgetsAnId, 2, validate=True), 1)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="a core cannot be chosen")
def test_workers_are_pinned_if_there_is_one_per_core(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    quota = RestartQuota(per_minute=9)
    with contextlib.closing(ParallelEnvList(Walk, 99, len(cores) + 1, restarts=quota)) as workers:

        def used() -> list[set[int]]:
            return [os.sched_getaffinity(worker.process.pid) for worker in workers._workers]

        expected = [{core} for core in [*cores, cores[0]]]
        assert used() == expected
        os.kill(workers._workers[0].process.pid, signal.SIGKILL)
        stepped(workers, workers.reset(SPACE))
        assert used() == expected, "another worker takes the core of the one that was lost"
    assert os.sched_getaffinity(0) == {*cores}, "this process goes where it likes"
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(8)})
    assert cores_of_workers(7) == [None] * 7, "another run would take the same ones"
    assert cores_of_workers(8) == [*range(8)]
    monkeypatch.delattr(os, "sched_getaffinity")
    assert cores_of_workers(8) == [None] * 8


@pytest.mark.alone
@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_its_episodes_are_truncated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with contextlib.closing(ParallelEnvList(Walk, 4, 2)) as workers:
        workers.seed(1)
        before = workers.reset(SPACE)
        os.kill(workers._workers[1].process.pid, signal.SIGKILL)
        obs = stepped(workers, before)
        assert obs.truncated[2:].all()
        assert not obs.terminated[2:].any()
        assert (obs.reward[2:] == 0).all()
        assert obs.final is not None
        assert "worker of environments 2 to 3 was lost" in caplog.text
        stepped(workers, obs)


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.02, 0.1])
def test_starting_workers_ignore_signals_to_the_process_group(
    monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    """Ctrl-C in a terminal goes to all processes of the group."""

    signals = signal.SIGINT, signal.SIGTERM

    class Signalled(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            time.sleep(after_s)
            for number in signals:
                self.send_signal(number)

    monkeypatch.setattr(subprocess, "Popen", Signalled)
    with contextlib.closing(ParallelEnvList(Walk, 2, 1, restarts=RestartQuota(0, 0))) as workers:
        stepped(workers, workers.reset(SPACE))
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {*signals}


@pytest.mark.slow
@pytest.mark.parametrize("kills", [12, pytest.param(100, marks=pytest.mark.soak)])
def test_frames_of_other_workers_do_not_depend_on_a_lost_worker(kills: int) -> None:
    """Kills at random moments: no frame of the other workers is lost or doubled."""
    rng = np.random.default_rng(0)
    quota = RestartQuota(total=1000, per_minute=1000)
    with (
        contextlib.closing(EnvList(Walk, 2)) as alone,
        contextlib.closing(ParallelEnvList(Walk, 3, 2, restarts=quota)) as workers,
    ):
        for envs in (alone, workers):
            envs.seed(5)
        expected, obs = alone.reset(SPACE), workers.reset(SPACE)
        for _ in range(kills):
            choices = random_choices(workers, obs, rng)
            kill = workers._workers[1].process.kill
            timer = threading.Timer(rng.uniform(0, 0.004), kill)
            timer.start()
            obs = workers.act(choices, SPACE)
            timer.join()
            first_two = {name: chosen.take(np.arange(2)) for name, chosen in choices.items()}
            expected = alone.act(first_two, SPACE)
            assert np.array_equal(obs.reward[:2], expected.reward)
            assert np.array_equal(obs.done[:2], expected.done)
            for name, rows in expected.features.items():
                features = obs.features[name].take(np.arange(2))
                assert np.array_equal(features.values, rows.values)
                assert np.array_equal(features.lengths, rows.lengths)


@pytest.mark.slow
def test_a_worker_that_exits_is_replaced_until_the_quota_is_used_up() -> None:
    with (
        contextlib.closing(ParallelEnvList(Dies, 7, 2)) as workers,
        pytest.raises(WorkerError, match="1 restarts a minute are allowed"),
    ):
        play(workers, 20)


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced() -> None:

    def patient(setup: WorkerSetup) -> WorkerProcess:
        """Give a worker all the time that it needs to start."""
        return WorkerProcess(replace(setup, timeout_s=600.0))

    with contextlib.closing(ParallelEnvList(Sleeps, 1, 1, new_worker=patient)) as workers:
        obs = workers.reset(SPACE)
        worker = workers._workers[0]
        process = worker.process
        worker.setup = replace(worker.setup, timeout_s=0.2)
        assert stepped(workers, obs).truncated.all()
        assert process.returncode == -signal.SIGKILL


def test_restart_quota_limits_the_total_and_the_rate() -> None:
    now = [0.0]
    quota = RestartQuota(total=3, per_minute=2, clock=lambda: now[0])
    assert quota.take() is None
    assert quota.take() is None
    assert quota.take() == "2 restarts a minute are allowed"
    now[0] = 60.0
    assert quota.take() is None
    now[0] = 1000.0
    assert quota.take() == "no restarts are left"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize("doing", ["waiting", "hanging", "hanging in C"])
def test_processes_and_memory_are_freed_if_the_parent_is_killed(doing: str) -> None:
    """Neither processes, also in the middle of a step without end, nor named shared memory."""
    program = (
        "import sys, time\n"
        "import numpy as np\n"
        "from entity_env import ParallelEnvList\n"
        "from tests.entity_env.builders import random_choices\n"
        "from tests.entity_env.worlds import SPACE, HoldsTheInterpreter, Sleeps\n"
        "world = HoldsTheInterpreter if sys.argv[1] == 'hanging in C' else Sleeps\n"
        "envs = ParallelEnvList(world, 2, 2)\n"
        "obs = envs.reset(SPACE)\n"
        "if sys.argv[1] != 'waiting':\n"
        "    envs.act_async(random_choices(envs, obs, np.random.default_rng(0)), SPACE)\n"
        "    time.sleep(0.5)\n"
        "print(*[worker.process.pid for worker in envs._workers], flush=True)\n"
        "time.sleep(600)\n"
    )
    named_before = set(Path("/dev/shm").iterdir())
    parent = subprocess.Popen(
        [sys.executable, "-c", program, doing], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert set(Path("/dev/shm").iterdir()) <= named_before


@pytest.mark.slow
def test_errors_of_environments_that_cannot_start_have_the_reason() -> None:
    with pytest.raises(WorkerError, match="masked_choices: expected 1 to 10, got 99"):
        ParallelEnvList(lambda: ENV_REGISTRY["Count"](masked_choices=99), 2, 1)  # type: ignore[call-arg]


def test_errors_of_unpicklable_environments_name_the_attribute() -> None:
    holder = Walk()
    holder.things = [threading.Lock()]  # type: ignore[list-item]
    with pytest.raises(EntityEnvError, match=r"env: expected an .* at holder\.things; create"):
        ParallelEnvList(lambda: holder, 2, 2)


@pytest.mark.slow
def test_a_worker_that_fails_while_it_starts_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A simulator may not get its port at the first attempt."""

    def create_env() -> Walk:
        attempt = tmp_path / "attempted"
        if not attempt.exists():
            attempt.touch()
            raise OSError("the port is taken")
        return Walk()

    with contextlib.closing(ParallelEnvList(create_env, 2, 1)) as workers:
        play(workers, 3)
    assert "worker of environments 0 to 1 was lost, starting another one" in caplog.text
    assert "OSError: the port is taken" in caplog.text


@pytest.mark.slow
def test_close_ends_all_processes_and_can_be_called_twice() -> None:
    workers = ParallelEnvList(Walk, 4, 2)
    processes = [worker.process for worker in workers._workers]
    workers.close()
    workers.close()
    assert [process.returncode for process in processes] == [0, 0]
    with pytest.raises(WorkerError, match="closed"):
        workers.reset(SPACE)


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_killed_on_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = ParallelEnvList(Sleeps, 1, 1)
    process = workers._workers[0].process
    obs = workers.reset(SPACE)
    choices = random_choices(workers, obs, np.random.default_rng(0))
    workers._workers[0].send(["act", [choices, SPACE]])
    wait = process.wait
    monkeypatch.setattr(process, "wait", lambda timeout=None: wait(timeout and 0.1))
    workers.close()
    assert process.returncode == -signal.SIGKILL


def test_env_list_closes_each_environment_once() -> None:
    closed = []

    class Counts(Walk):
        def close(self) -> None:
            closed.append(self)

    envs = EnvList(Counts, 3)
    envs.close()
    envs.close()
    assert len(closed) == 3


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [0, 3])
def test_incomplete_matches_are_rejected(num_envs: int) -> None:
    with pytest.raises(EntityEnvError, match="num_envs: expected a positive multiple of 2"):
        EnvList(Bidding, num_envs)
    with pytest.raises(WorkerError, match="num_envs: expected a positive multiple of 2"):
        ParallelEnvList(Bidding, num_envs, 1)


def test_act_before_reset_raises() -> None:
    with pytest.raises(EntityEnvError, match="call reset first"):
        EnvList(Walk, 1).act({}, SPACE)


@pytest.mark.parametrize(
    ("outcomes", "message"),
    [
        (
            [Observation()],
            "environment 0, episode 0, step 1: act: expected 2 Observations, got",
        ),
        ([Observation()] * 3, "expected 2 Observations, got"),
        ([Observation(done=True), Observation()], r"that end together, got \[True, False\]"),
        (
            [Observation(), None],
            "environment 0, episode 0, step 1: act: expected 2 Observations, got "
            r"\[Observation\(.*\), None\]",
        ),
    ],
)
def test_sides_that_do_not_end_together_are_rejected(outcomes: Any, message: str) -> None:
    class Uneven(Bidding):
        def observe(self, rewards: list[float]) -> list[Observation]:
            return super().observe(rewards) if self.turn == 0 else outcomes

    with pytest.raises(InvalidObservation, match=message):
        play(EnvList(Uneven, 2), 1)


def test_done_in_every_first_frame_raises() -> None:
    class Over(Walk):
        def reset(self) -> Observation:
            obs = super().reset()
            obs.done = True
            return obs

    with pytest.raises(
        InvalidObservation, match="environment 0, episode 0, step 0: done: expected False for"
    ):
        play(EnvList(Over, 2), 1)


def test_episodes_that_end_in_their_first_frame_are_reset_again() -> None:
    """Published worlds put things at random, now and then where there is nothing left to do."""

    class SometimesOver(Walk):
        def reset(self) -> Observation:
            obs = super().reset()
            obs.done = self.cut
            return obs

    def seen() -> list[VecObs]:
        return play(EnvList(SometimesOver, 6), 16)

    frames, again = seen(), seen()
    assert not frames[0].done.any()
    assert sum(frame.done.sum() for frame in frames) > 10
    assert not any(frame.truncated.any() for frame in frames)  # those are what was passed over
    for actual, other in zip(frames, again, strict=True):
        assert_same(actual, other)


@pytest.mark.parametrize(
    ("num_envs", "processes", "sides", "sizes"),
    [(7, 3, 1, [3, 2, 2]), (2, 5, 1, [1, 1]), (10, 3, 2, [4, 4, 2]), (4, 1, 2, [4])],
)
def test_environments_are_split_evenly(
    num_envs: int, processes: int, sides: int, sizes: list[int]
) -> None:
    assert split_evenly(num_envs, processes, sides) == sizes


def test_scalar_and_vectorized_seeds_agree() -> None:
    """One is fast for single episodes, the other for a whole batch."""
    keys = [0, 1, 2**40 + 3, 2**63 - 1]
    np.testing.assert_array_equal(mix(7, np.array(keys)), [mix_ints(7, key) for key in keys])
    assert mix(-1) == mix_ints(-1)
    assert derive_seed("episode", 3) == mix_ints(key_of("episode"), 3) >> 1
    assert len({derive_seed(a, b) for a in range(50) for b in range(50)}) == 2500


@pytest.mark.slow
def test_workers_run_the_main_program_if_they_need_its_modules(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import sys, types\n"
        "from entity_env import ParallelEnvList\n"
        "from entity_env.examples import Xor\n"
        "made = types.ModuleType('made_by_main')\n"
        "exec('from entity_env.examples import Xor\\nclass Mine(Xor): pass', vars(made))\n"
        "sys.modules['made_by_main'] = made\n"
        "if __name__ == '__main__':\n"
        "    envs = ParallelEnvList(made.Mine, 4, 1)\n"
        "    print(len(envs.reset(envs.obs_space())))\n"
        "    envs.close()\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "4\n"


def test_published_arguments_of_parallel_env_list_are_accepted() -> None:
    with contextlib.closing(ParallelEnvList(Walk, 2, 1, "forkserver")) as workers:
        assert len(workers) == 2


def test_workers_outlive_the_thread_that_started_them() -> None:
    """They end with the process, and not before."""
    made: list[ParallelEnvList] = []
    thread = threading.Thread(target=lambda: made.append(ParallelEnvList(Walk, 2, 1)))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with contextlib.closing(made[0]) as workers:
        assert workers._workers[0].process.poll() is None
        play(workers, 3)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="known to Linux alone")
def test_workers_end_if_their_parent_died_before_they_started() -> None:
    """Such a worker cannot watch its parent, and would wait for ever."""
    local, remote = socket.socketpair()  # kept open, as if by somebody else
    number = str(remote.fileno())
    with local, remote:
        done = subprocess.run(
            [sys.executable, "-c", WORKER, "parent", "1", "files", number, number, number],
            pass_fds=[remote.fileno()],
            timeout=60,
            check=False,
        )
    assert done.returncode == 1


WORKER = "from entity_env.vec.worker import main; main()"
