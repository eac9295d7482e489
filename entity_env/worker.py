"""The process on the other side of a `ParallelEnvList`: an `EnvList` that answers messages.

It is started as a fresh interpreter that imports this module and nothing of the main program, so
a script needs no `if __name__ == "__main__"` and a worker never loads torch unless the
environment does.
"""

import contextlib
import runpy
import signal
import sys
import traceback
import types
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from entity_env.env_list import EnvList
from entity_env.errors import InvalidObservation
from entity_env.messages import pack, unpack


def main() -> None:
    """Serve the connection whose file descriptor is the last argument, until it closes."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent handles what its group is sent
        signal.signal(number, signal.SIG_IGN)
    parent_gone = (EOFError, BrokenPipeError, ConnectionResetError)
    with Connection(int(sys.argv[-1])) as connection, contextlib.suppress(*parent_gone):
        serve(connection)


def serve(connection: Connection) -> None:
    """Make the environments that the first message describes, then answer one message at a time.

    Every answer is ["ok", result] or ["error", kind, env_index, step, text].
    """
    setup = unpack(connection.recv_bytes())
    sys.path[:], sys.argv[:] = setup["sys_path"], setup["argv"]
    envs: list[EnvList] = []

    def start() -> Any:
        create_env = _load(setup["create_env"], setup["main"])
        envs.append(EnvList(create_env, setup["num_envs"], setup["first"], setup["validate"]))
        return [envs[0].obs_space(), envs[0].action_space(), envs[0].sides]

    connection.send_bytes(_answer(start))
    while envs:
        name, arguments = unpack(connection.recv_bytes())
        answer = _answer(lambda: getattr(envs[0], name)(*arguments))  # noqa: B023 (called at once)
        if name == "close":
            return
        connection.send_bytes(answer)


def _load(create_env: bytes, main: str | None) -> Callable[[], Any]:
    """The environment factory of the parent.

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


def _answer(call: Callable[[], Any]) -> bytes:
    try:
        return pack(["ok", call()])
    except InvalidObservation as error:
        text = Exception.__str__(error)
        return pack(["error", "InvalidObservation", error.env_index, error.step, text])
    except Exception:
        return pack(["error", "Exception", None, None, traceback.format_exc()])
