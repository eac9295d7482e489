"""Worker process of a `ParallelEnvList`: an `EnvList` that answers messages.

It is started as a fresh interpreter that imports this module and nothing of the main program, so
a script needs no `if __name__ == "__main__"` and a worker never loads torch unless the
environment does.
"""

import contextlib
import copy
import ctypes
import gc
import os
import runpy
import select
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ObsSpace
from entity_env.standard_streams import reader_may_leave
from entity_env.vec.env_list import EnvList
from entity_env.vec.vec_env import VecObs
from entity_env.workers.channel import Arrays, Channel, ChannelClosedError, FlatArrays
from entity_env.workers.flat_obs import take_apart
from entity_env.workers.shared_memory import SharedMemory

SIGNALS_OF_PARENT = signal.SIGINT, signal.SIGTERM
"""The parent handles them. It starts workers with these blocked, so none ends while it imports."""
_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the parent until it closes the connection.

    The arguments are "parent" and its process id, or 0 if the worker may outlive it; and "files"
    with those of the connection, of the memory of both sides, and of the bell.
    """
    # The parent handles signals to its process group, and ends this process.
    for number in SIGNALS_OF_PARENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS_OF_PARENT)
    files = sys.argv[sys.argv.index("files") + 1 :]
    _set_parent_death_signal(int(sys.argv[sys.argv.index("parent") + 1]))
    # Processes that an environment starts do not inherit the files.
    for file in map(int, files):
        os.set_inheritable(file, False)
    connection, ours, theirs, *bell = map(int, files)
    # Leave the core to the process that wakes this one: it has other workers to wake.
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    threading.Thread(target=_exit_when_closed, args=[connection], daemon=True).start()
    channel = Channel(
        Connection(connection),
        SharedMemory(ours),
        SharedMemory(theirs),
        hears=bell[0] if bell else None,
    )
    with reader_may_leave(), contextlib.suppress(ChannelClosedError):  # the parent is gone
        serve(channel)


def _set_parent_death_signal(parent: int) -> None:
    """Let the system kill this process when its parent dies, even in code that never returns.

    Args:
        parent: its process id; 0 to do nothing.
    """
    if parent == 0 or not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(AttributeError, OSError):  # a C library without it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:  # it died before, so that no signal will come
        os._exit(1)


def _exit_when_closed(connection: int) -> None:
    """End this process when the other end of the connection closes, while other code runs.

    Needs the interpreter's lock, unlike the signal, which not every system has.
    """
    hung_up = select.poll()
    hung_up.register(connection, 0)  # no event but that one
    hung_up.poll()
    os._exit(1)


def serve(channel: Channel) -> None:
    """Make the environments that the first message describes, then answer one message at a time.

    Every answer is ["ok", result], ["obs", names, arrays] where the result is a batch (see
    `flat_obs.py`), or ["error", kind, env_index, episode, step, text].
    """
    setup = channel.receive()
    if setup["core"] is not None:
        with contextlib.suppress(OSError):  # it was taken away since
            os.sched_setaffinity(0, {setup["core"]})
    sys.path[:], sys.argv[:] = setup["sys_path"], setup["argv"]
    envs: list[_WorkerEnvs] = []

    def start() -> Any:
        create_env = _load(setup["create_env"], setup["main"])
        envs.append(_WorkerEnvs(create_env, setup["num_envs"], setup["first"], setup["validate"]))
        return [envs[0].obs_space(), envs[0].action_space(), envs[0].world_code()]

    _answer(channel, start)
    gc.collect()
    gc.freeze()  # what lives as long as the worker is not looked through again: 8% of a step
    gc.set_threshold(100_000)  # a step makes thousands of objects that go without it: up to 15%
    while envs:
        name, arguments = channel.receive()
        if name == "close":
            return _answer(channel, envs[0].close)
        _answer(channel, lambda: getattr(envs[0], name)(*arguments))  # noqa: B023 (called at once)


class _WorkerEnvs(EnvList):
    """`EnvList` that gets the filter only when it changes, and keeps the choices it is sent."""

    def reset(self, obs_config: ObsSpace) -> VecObs:
        self._sent = obs_config
        return super().reset(obs_config)

    def act_on(
        self, names: Sequence[ActionName], arrays: Arrays, obs_filter: ObsSpace | None
    ) -> VecObs:
        """Take a step.

        Args:
            names: of the actions.
            arrays: for each of them the choices, and their number in each frame.
            obs_filter: what to show, if that changes.
        """
        if obs_filter is not None:
            self._sent = obs_filter
        chosen = {  # an environment may keep them, the memory is written again in the next step
            name: Ragged(arrays[2 * k].copy(), arrays[2 * k + 1].copy())
            for k, name in enumerate(names)
        }
        arrays.clear()  # views of the memory, which children that an environment forks give up
        return self.act(chosen, self._sent)

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        self._sent = obs_config
        return super().set_state(copy.deepcopy(state), obs_config)


def _load(create_env: bytes, main: str | None) -> Callable[[], Any]:
    """Return the environment factory of the parent.

    Only if it needs a module that cannot be imported, the main program is run as well (under the
    name `__mp_main__`, as multiprocessing does): it may have made the module.
    """
    try:
        factory: Callable[[], Any] = cloudpickle.loads(create_env)
    except ImportError:
        if main is None:
            raise
        sys.modules["__mp_main__"] = module = types.ModuleType("__mp_main__")
        vars(module).update(runpy.run_path(main, run_name="__mp_main__"))
        factory = cloudpickle.loads(create_env)
    return factory


def _answer(channel: Channel, call: Callable[[], Any]) -> None:
    """Send the result of a call, or any exception that it raises."""
    try:
        result = call()
        if isinstance(result, VecObs):
            names, arrays = take_apart(result)
            return channel.send(["obs", names, FlatArrays(arrays)])
        return channel.send(["ok", result])
    except ChannelClosedError:
        raise
    except InvalidObservation as error:
        text = Exception.__str__(error)
        place = [error.env_index, error.episode, error.step]
        problem = ["InvalidObservation", *place, text]
    except InvalidSpace as error:
        problem = ["InvalidSpace", None, None, None, str(error)]
    except BaseException:  # SIGINT is ignored here, so a KeyboardInterrupt is the environment's too
        problem = ["Exception", None, None, None, traceback.format_exc()]
    channel.send(["error", *problem])
