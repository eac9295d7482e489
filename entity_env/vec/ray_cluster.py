"""Connection of a process to a Ray cluster: joining or starting one, and watching its head."""

import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from entity_env.errors import ClusterError, ClusterLostError
from entity_env.imports.extras import remedy

CONNECT_S = 2
"""Seconds in which a cluster has to accept a connection, and as long again to answer."""
GUESTS_S = 30.0
"""Seconds that the process which started a cluster waits at its end for others that joined it."""
WATCH_S = 1.0
"""Seconds between two questions to the head of the cluster."""
ANSWER_S = 5.0
"""Seconds in which the head answers, unless it has too little of its processor."""
CLOSED_S = 5.0
"""Seconds after which a head is gone to which there is no connection."""
SILENT_S = 60.0
"""Seconds without an answer after which a head is gone to which there may be a connection."""
_FOREVER_S = 10**6
_PYTHON_FILES = {".txt": "pip", ".yml": "conda", ".yaml": "conda"}
"""Ray's words for files that describe a Python environment."""


class RuntimeEnv(NamedTuple):
    """Files and Python environment that hosts of a cluster get.

    Attributes:
        files: files and folders that workers find in their working folder: under the path that they
            have in `folder`, or by their names.
        python: a conda environment by its name, as a file (.yml), packages of pip (.txt), or the
            path of an interpreter on the hosts; None for that of the cluster.
        folder: the folder of relative paths.
    """

    files: Sequence[str] = ()
    python: str | None = None
    folder: Path = Path()

    def options(self, staged: Path) -> dict[str, Any]:
        """Return the environment in Ray's words.

        Args:
            staged: an empty folder, which gets links to the files.

        Raises:
            ClusterError: a file is missing, or two have one name.
        """
        options: dict[str, Any] = {}
        for name in self.files:
            self._stage(name, staged)
        if self.files:
            options["working_dir"] = str(staged)
        if self.python is not None:
            file = self.folder / self.python
            if file.suffix not in _PYTHON_FILES:
                options["py_executable" if os.sep in self.python else "conda"] = self.python
            elif file.is_file():
                options[_PYTHON_FILES[file.suffix]] = str(file)
            else:
                raise ClusterError(
                    f"rollout.ray_env: expected a file, got {self.python}, which is not there"
                )
        return options

    def _stage(self, name: str, staged: Path) -> None:
        """Link a file or folder, or the files of the whole folder, into another folder."""
        path = (self.folder / name).resolve()
        if not path.exists():
            raise ClusterError(
                f"rollout.ray_files: expected files and folders, got {name}, which is not there"
            )
        folder = self.folder.resolve()
        for target in path.iterdir() if path == folder else [path]:
            is_inside = target.is_relative_to(folder)
            link = staged / (target.relative_to(folder) if is_inside else target.name)
            parents = [p for p in link.parents if staged in p.parents]
            if link.exists() or any(p.is_symlink() for p in parents):
                raise ClusterError(
                    f"rollout.ray_files: expected each path once, got {name}, which another "
                    "one has as well; leave one of them out"
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


NOTHING_BROUGHT = RuntimeEnv()


class _Connection(NamedTuple):
    """Connection that `cluster` made: what its hosts got, and the file of its token, else ""."""

    runtime: RuntimeEnv = NOTHING_BROUGHT
    token: str = ""


_connection = _Connection()


@contextmanager
def cluster(
    address: str, field: str, runtime: RuntimeEnv = NOTHING_BROUGHT, token: str = ""
) -> Iterator[Any]:
    """Return a context with Ray, joined to a cluster: "auto" for the one there is, else a new one.

    A new one listens on this machine alone, has no dashboard, reports nothing and asks for a token.
    It ends with the context, once the processes that joined it by an invitation have left.

    Args:
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.
        runtime: what hosts get; a second context has to ask for the same.
        token: that of an invitation.

    Raises:
        ClusterError: Ray is not installed, or there is no such cluster.
    """
    global _connection
    breakpoint_, hook = os.environ.get("PYTHONBREAKPOINT"), sys.breakpointhook
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # it would replace print
    try:
        import ray
    except ModuleNotFoundError as error:
        install = remedy(error)
        raise ClusterError(f"{field}: expected the package ray, it is missing{install}") from None
    with ExitStack() as left:
        if ray.is_initialized():
            _check_same(runtime)
        else:
            made = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            folder = Path(left.enter_context(made))
            if token:
                _keep_going(ray, field, token, left)
            left.callback(_leave, ray)
            try:
                own = _join(ray, address, field, folder, runtime)
            finally:
                sys.breakpointhook = hook
                if breakpoint_ is None:
                    os.environ.pop("PYTHONBREAKPOINT", None)
                else:
                    os.environ["PYTHONBREAKPOINT"] = breakpoint_
            _connection = _Connection(runtime, own)
            if own:
                left.callback(_await_guests, own)
        watch = _HeadWatch(ray, field)
        left.callback(watch.end)
        yield ray


def _leave(ray: Any) -> None:
    """Leave the cluster, and end it if it started here, with the handler of SIGTERM in place.

    Ray takes it away before it waits for the end of its processes.
    """

    def put_back_and(end: Callable[..., None], **options: bool) -> None:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        end(**options)

    global _connection
    _connection = _Connection()
    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes = partial(put_back_and, node.kill_all_processes)
    ray.shutdown()


def invitation(ray: Any) -> tuple[str, str]:
    """Return the address with which other processes of this machine join the same cluster.

    With it comes the file with the token of a cluster that this process started, else "".
    """
    return ray.get_runtime_context().gcs_address, _connection.token


def _keep_going(ray: Any, field: str, token: str, left: ExitStack) -> None:
    """Let a cluster that another process started go on until this one has left.

    Args:
        ray: the module.
        field: the setting with the address, for messages.
        token: that of an invitation. The system unlocks the file, too, when this process dies.
        left: closed as this process leaves.

    Raises:
        ClusterError: the cluster has ended.
    """
    try:
        file = left.enter_context(Path(token).open())  # noqa: SIM115 (the stack closes it)
    except OSError as error:
        raise ClusterError(f"{field}: expected the cluster of another process: {error}") from None
    fcntl.flock(file, fcntl.LOCK_SH)
    _use_token(ray, file.read())


def _await_guests(token: str) -> None:
    """Wait until no other process uses the cluster that this one started, but not for long."""
    until_s = time.monotonic() + GUESTS_S
    with Path(token).open() as file:
        while time.monotonic() < until_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)


def _use_token(ray: Any, token: str) -> None:
    """Let Ray ask for a token, and show it."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_AUTH_TOKEN"] = token
    # It has read the variables of its tokens already, if it was imported before.
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _check_same(runtime: RuntimeEnv) -> None:
    """Raise ClusterError if hosts of a cluster that is joined already got something else."""
    has = _connection.runtime
    asked = ("ray_files", runtime.files, has.files), ("ray_env", runtime.python, has.python)
    for name, expected, got in asked:
        if expected and expected != got:
            raise ClusterError(
                f"rollout.{name}: expected no connection to Ray before the run, got one "
                f"without {expected}; name them in runtime_env where the program calls ray.init"
            )


def _join(ray: Any, address: str, field: str, folder: Path, runtime: RuntimeEnv) -> str:
    """Join a cluster, or start one for "auto" if there is none.

    Args:
        ray: the module.
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.
        folder: files of a cluster that starts here, where "auto" of other programs does not look.
        runtime: what hosts get.

    Returns:
        The file with the token of a new cluster; "" for one that is joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # whatever is named is meant
    staged = folder / "files"
    staged.mkdir()
    options = runtime.options(staged)
    told = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": options}
    # Ray itself would join any cluster of this machine, also one whose token it does not have.
    found = os.environ.get("RAY_ADDRESS") or ray._private.services.find_bootstrap_address(None)
    known = address if address != "auto" else found
    if known:
        ways: list[AbstractContextManager[None]] = [nullcontext()]
        if known.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
            ways.append(_on_loopback(ray))
        for way in ways:
            with way:
                problem = _problem(ray, known)
                if problem is None:
                    with _outliving_head():
                        ray.init(address=known, **told)
                    return ""
        if address != "auto":
            raise ClusterError(f"{field}: expected a cluster at {address}, got {problem}")
    _use_token(ray, os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    here = {"_node_ip_address": "127.0.0.1", "_temp_dir": str(folder), "include_dashboard": False}
    with _on_loopback(ray), _outliving_head(), _in_sessions_of_their_own(ray):
        ray.init(address="local", **here, **told)
    token = folder / "token"  # the folder is private
    token.write_text(os.environ["RAY_AUTH_TOKEN"])
    return str(token)


@contextmanager
def _outliving_head() -> Iterator[None]:
    """Return a context in which this process joins a cluster whose head it can outlive.

    Ray would end it after a minute, without a save. Processes of the cluster are to end as ever,
    and have their variables from `os.environ`.
    """
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    if name in os.environ:
        yield
        return
    os.putenv(name, str(_FOREVER_S))
    try:
        yield
    finally:
        os.unsetenv(name)


def _in_sessions_of_their_own(ray: Any) -> AbstractContextManager[None]:
    """Let Ray start processes that get no signals of this one's group, such as torchrun's SIGTERM.

    They would end before this process has saved. The system ends them if this process dies, which
    Ray asks of Linux alone.
    """
    services, is_linux = ray._private.services, sys.platform == "linux"
    start = partial(services.ConsolePopen, start_new_session=is_linux)
    return _changed(services, "ConsolePopen", start)


def _on_loopback(ray: Any) -> AbstractContextManager[None]:
    """Let Ray take the loopback address for its own, as where it allows no cluster."""
    return _changed(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


@contextmanager
def _changed(module: Any, name: str, value: Any) -> Iterator[None]:
    """Return a context in which a name of a module stands for another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def _problem(ray: Any, address: str) -> str | None:
    """Return why a cluster cannot be joined, after seconds; None if it answers.

    Ray itself tries for minutes, also with a wrong token.
    """
    address = ray._private.services.canonicalize_bootstrap_address(address)
    try:
        connect(address, CONNECT_S)
    except OSError as error:
        return f"nothing that listens at {address}: {error}"
    config = ray._raylet.Config
    limits = {"py_gcs_connect_timeout_s": CONNECT_S, "gcs_rpc_server_connect_timeout_s": CONNECT_S}
    config.initialize(json.dumps(limits))
    try:
        ray._raylet.GcsClient(address=address)
    except Exception as error:
        return " ".join(str(error).split(". ")[0].split())
    finally:
        config.initialize("")
    return None


def connect(address: str, timeout_s: float) -> None:
    """Connect to HOST:PORT, and close the connection.

    Raises:
        OSError: nothing listens there; a TimeoutError if nothing answers in time.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


def check_head(is_sure: bool = False) -> None:
    """Raise ClusterLostError if the head of a cluster that this process joined is gone.

    Args:
        is_sure: wait for its next answer; before calls that would wait for a head that is gone.
    """
    for watch in _watches:
        watch.check(is_sure)


class _HeadWatch(threading.Thread):
    """Thread that asks the head of the cluster whether it and this node are alive.

    Args:
        ray: the module, joined to the cluster.
        field: the setting with the address, for messages.
    """

    def __init__(self, ray: Any, field: str) -> None:
        super().__init__(name="ray-head", daemon=True)
        self._ended = threading.Event()
        self._field, self._answers, self._is_lost = field, 0, False
        context = ray.get_runtime_context()
        self._address = context.gcs_address
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._head = ray._private.worker.global_worker.gcs_client
        self.start()
        _watches.append(self)

    def run(self) -> None:
        """Ask until the context of the cluster ends, or the head is gone."""
        answered_s = listened_s = time.monotonic()
        while not (self._is_lost or self._ended.wait(WATCH_S)):
            try:
                self._is_lost = not all(self._head.check_alive([self._node], timeout=ANSWER_S))
                answered_s = listened_s = time.monotonic()
                self._answers += 1
            except Exception:
                if self._may_listen():
                    listened_s = time.monotonic()
                now_s = time.monotonic()
                self._is_lost = now_s - listened_s > CLOSED_S or now_s - answered_s > SILENT_S

    def _may_listen(self) -> bool:
        """Return False if nothing listens at the head's address.

        A head that does not answer in time may have too little of its processor.
        """
        try:
            connect(self._address, ANSWER_S)
        except OSError as error:
            return isinstance(error, TimeoutError)
        return True

    def end(self) -> None:
        """End the thread."""
        self._ended.set()
        _watches.remove(self)

    def check(self, is_sure: bool) -> None:
        """Raise ClusterLostError if the head is gone, as `check_head`."""
        answers = self._answers
        while is_sure and self._answers == answers and not self._is_lost:
            time.sleep(WATCH_S / 20)
        if self._is_lost:
            raise ClusterLostError(
                f"{self._field}: the head of the cluster at {self._address} is gone; start a "
                "cluster and resume the run"
            )


_watches: list[_HeadWatch] = []
