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
"""Timeout in seconds for a connection to a cluster, and again for its answer."""
GUEST_TIMEOUT_S = 30.0
"""Seconds that the process that started a cluster waits at its end for processes that joined it."""
WATCH_S = 1.0
"""Seconds between two health checks of the head of the cluster."""
ANSWER_S = 5.0
"""Seconds in which the head answers, unless its processor is overloaded."""
CLOSED_S = 5.0
"""Seconds without a connection after which the head counts as lost."""
SILENT_S = 60.0
"""Seconds without an answer after which the head counts as lost, even with a connection."""
_FOREVER_S = 10**6
_PYTHON_FILES = {".txt": "pip", ".yml": "conda", ".yaml": "conda"}
"""Keys of Ray's runtime environment by the suffix of the file that describes it."""


class RuntimeEnv(NamedTuple):
    """Files and Python environment for the hosts of a cluster.

    Attributes:
        files: files and folders in the working folder of workers: under the path that they
            have in `folder`, or by their names.
        python: a conda environment by its name, as a file (.yml), packages of pip (.txt), or the
            path of an interpreter on the hosts; None for the interpreter of the cluster.
        folder: the folder of relative paths.
    """

    files: Sequence[str] = ()
    python: str | None = None
    folder: Path = Path()

    def options(self, staged: Path) -> dict[str, Any]:
        """Return the environment as Ray's `runtime_env`.

        Args:
            staged: an empty folder for links to the files.

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
                    f"rollout.ray_env: expected a file, got {self.python}, which does not exist"
                )
        return options

    def _stage(self, name: str, staged: Path) -> None:
        """Link a file or folder, or each file of the whole folder, into another folder."""
        path = (self.folder / name).resolve()
        if not path.exists():
            raise ClusterError(
                f"rollout.ray_files: expected files and folders, got {name}, which does not exist"
            )
        folder = self.folder.resolve()
        for target in path.iterdir() if path == folder else [path]:
            is_inside = target.is_relative_to(folder)
            link = staged / (target.relative_to(folder) if is_inside else target.name)
            parents = [p for p in link.parents if staged in p.parents]
            if link.exists() or any(p.is_symlink() for p in parents):
                raise ClusterError(
                    f"rollout.ray_files: expected each path once, got {name} for two files; "
                    "leave one of them out"
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


NO_RUNTIME_ENV = RuntimeEnv()


class _Connection(NamedTuple):
    """Connection made by `cluster`: environment of its hosts, and file of its token or ""."""

    runtime: RuntimeEnv = NO_RUNTIME_ENV
    token: str = ""


_connection = _Connection()


@contextmanager
def cluster(
    address: str, field: str, runtime: RuntimeEnv = NO_RUNTIME_ENV, token: str = ""
) -> Iterator[Any]:
    """Return a context with Ray, connected to a cluster: for "auto" the running one, or a new one.

    A new one listens on this machine alone, has no dashboard, reports nothing and asks for a token.
    It ends with the context, once the processes that joined it by an invitation have left.

    Args:
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.
        runtime: environment of the hosts; nested contexts must ask for the same.
        token: file with the token of an invitation.

    Raises:
        ClusterError: Ray is not installed, or there is no such cluster.
    """
    global _connection
    breakpoint_, hook = os.environ.get("PYTHONBREAKPOINT"), sys.breakpointhook
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # 1 replaces print
    try:
        import ray
    except ModuleNotFoundError as error:
        install = remedy(error)
        expected = f"expected the package ray, which is not installed{install}"
        raise ClusterError(f"{field}: {expected}") from None
    with ExitStack() as stack:
        if ray.is_initialized():
            _check_runtime(runtime)
        else:
            temporary = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            folder = Path(stack.enter_context(temporary))
            if token:
                _hold_cluster(ray, field, token, stack)
            stack.callback(_leave, ray)
            try:
                token_file = _join(ray, address, field, folder, runtime)
            finally:
                sys.breakpointhook = hook
                if breakpoint_ is None:
                    os.environ.pop("PYTHONBREAKPOINT", None)
                else:
                    os.environ["PYTHONBREAKPOINT"] = breakpoint_
            _connection = _Connection(runtime, token_file)
            if token_file:
                stack.callback(_wait_for_guests, token_file)
        watch = _HeadWatch(ray, field)
        stack.callback(watch.end)
        yield ray


def _leave(ray: Any) -> None:
    """Leave the cluster, or end it if this process started it, and keep the handler of SIGTERM.

    Ray removes the handler before it waits for the end of its processes.
    """

    def restore_handler(end: Callable[..., None], **options: bool) -> None:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        end(**options)

    global _connection
    _connection = _Connection()
    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes = partial(restore_handler, node.kill_all_processes)
    ray.shutdown()


def invitation(ray: Any) -> tuple[str, str]:
    """Return the address with which other processes of this machine join the same cluster.

    The second value is the file with the token of a cluster that this process started, else "".
    """
    return ray.get_runtime_context().gcs_address, _connection.token


def _hold_cluster(ray: Any, field: str, token: str, stack: ExitStack) -> None:
    """Lock the token of a cluster, so that the process that started it waits for this one.

    Args:
        ray: the module.
        field: the setting with the address, for messages.
        token: file of an invitation. The system unlocks it, too, when this process dies.
        stack: closed as this process leaves.

    Raises:
        ClusterError: the cluster has ended.
    """
    try:
        file = stack.enter_context(Path(token).open())  # noqa: SIM115 (the stack closes it)
    except OSError as error:
        raise ClusterError(f"{field}: expected the cluster of another process: {error}") from None
    fcntl.flock(file, fcntl.LOCK_SH)
    _use_token(ray, file.read())


def _wait_for_guests(token: str) -> None:
    """Wait until no other process uses the cluster, at most `GUEST_TIMEOUT_S`."""
    until_s = time.monotonic() + GUEST_TIMEOUT_S
    with Path(token).open() as file:
        while time.monotonic() < until_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                time.sleep(0.05)


def _use_token(ray: Any, token: str) -> None:
    """Let Ray authenticate with a token."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ["RAY_AUTH_TOKEN"] = token
    # Ray reads the variables once, on import.
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _check_runtime(runtime: RuntimeEnv) -> None:
    """Raise ClusterError if the hosts of the joined cluster have another environment."""
    joined = _connection.runtime
    checks = ("ray_files", runtime.files, joined.files), ("ray_env", runtime.python, joined.python)
    for name, expected, got in checks:
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
        folder: files of a new cluster, where "auto" of other programs does not look.
        runtime: environment of the hosts.

    Returns:
        The file with the token of a new cluster; "" if an existing one is joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # include ignored files
    staged = folder / "files"
    staged.mkdir()
    options = runtime.options(staged)
    init_args = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": options}
    # By default Ray would join any cluster of this machine, also without its token.
    default = os.environ.get("RAY_ADDRESS") or ray._private.services.find_bootstrap_address(None)
    target = address if address != "auto" else default
    if target:
        contexts: list[AbstractContextManager[None]] = [nullcontext()]
        if target.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]"):
            contexts.append(_on_loopback(ray))
        for context in contexts:
            with context:
                problem = _connection_problem(ray, target)
                if problem is None:
                    with _outliving_head():
                        ray.init(address=target, **init_args)
                    return ""
        if address != "auto":
            raise ClusterError(f"{field}: expected a cluster at {address}, got {problem}")
    _use_token(ray, os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    local = {"_node_ip_address": "127.0.0.1", "_temp_dir": str(folder), "include_dashboard": False}
    with _on_loopback(ray), _outliving_head(), _in_new_sessions(ray):
        ray.init(address="local", **local, **init_args)
    token = folder / "token"  # the folder is private
    token.write_text(os.environ["RAY_AUTH_TOKEN"])
    return str(token)


@contextmanager
def _outliving_head() -> Iterator[None]:
    """Return a context in which this process joins a cluster and outlives its head.

    Ray would end this process after a minute, without a save. The variable is not in `os.environ`,
    so processes of the cluster do not inherit it.
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


def _in_new_sessions(ray: Any) -> AbstractContextManager[None]:
    """Let Ray start processes that get no signals of this one's group, such as torchrun's SIGTERM.

    They would end before this process has saved. The system ends them if this process dies, which
    Ray implements on Linux only.
    """
    services, is_linux = ray._private.services, sys.platform == "linux"
    start = partial(services.ConsolePopen, start_new_session=is_linux)
    return _patched(services, "ConsolePopen", start)


def _on_loopback(ray: Any) -> AbstractContextManager[None]:
    """Let Ray use the loopback address, as on systems where it allows no cluster."""
    return _patched(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


@contextmanager
def _patched(module: Any, name: str, value: Any) -> Iterator[None]:
    """Return a context in which an attribute of a module has another value."""
    original = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, original)


def _connection_problem(ray: Any, address: str) -> str | None:
    """Return why a cluster cannot be joined, after seconds; None if it answers.

    Ray itself retries for minutes, even with a wrong token.
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
        OSError: nothing listens there; TimeoutError if there is no answer in time.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


def check_head(is_sure: bool = False) -> None:
    """Raise ClusterLostError if the head of a cluster that this process joined is lost.

    Args:
        is_sure: wait for its next answer; before calls that would block if the head is lost.
    """
    for watch in _watches:
        watch.check(is_sure)


class _HeadWatch(threading.Thread):
    """Thread that checks whether the head of the cluster and this node are alive.

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
        """Check until the context of the cluster ends, or the head is lost."""
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
        """Return False if no process listens at the head's address.

        If it does not answer in time, its processor may be overloaded.
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
        """Raise ClusterLostError if the head is lost, as `check_head`."""
        answers = self._answers
        while is_sure and self._answers == answers and not self._is_lost:
            time.sleep(WATCH_S / 20)
        if self._is_lost:
            raise ClusterLostError(
                f"{self._field}: the head of the cluster at {self._address} is gone; start a "
                "cluster and resume the run"
            )


_watches: list[_HeadWatch] = []
