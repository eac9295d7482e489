"""Connection to a Ray cluster, or a cluster of this machine alone."""

import fcntl
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from entity_env.errors import EntityEnvError, WorkerError
from entity_env.extras import remedy

CONNECT_S = 2
"""Seconds in which a cluster has to accept a connection, and as long again to answer."""
WATCH_S = 1.0
"""Seconds between two questions to the head of the cluster."""
ANSWER_S = 5.0
"""Seconds in which the head answers, unless it has too little of its processor."""
CLOSED_S = 5.0
"""Seconds after which a head is gone to which there is no connection."""
SILENT_S = 60.0
"""Seconds without an answer after which a head is gone to which there may be a connection."""
GUESTS_S = 30.0
"""Seconds that the process which started a cluster waits at its end for others that joined it."""
_FOREVER_S = 10**6


class ClusterError(EntityEnvError):
    """Error of a cluster that is not there, or too small."""


class ClusterLostError(WorkerError):
    """Loss of the head of a cluster."""


class RuntimeEnv(NamedTuple):
    """Files and Python environment that hosts of a cluster get.

    Attributes:
        files: files and folders that workers find in their working folder: under the path that they
            have in `folder`, or by their names.
        python: a conda environment by its name, as a file (.yml), packages of pip (.txt), or the
            path of an interpreter on the hosts; None for that of the cluster.
        folder: the folder of relative paths.
        section: prefix of the settings' names, for messages.
    """

    files: Sequence[str] = ()
    python: str | None = None
    folder: Path = Path()
    section: str = "rollout."

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
            kind, value = _kind_of_python(self.python, self.folder)
            if kind in ("pip", "conda") and os.sep in value and not Path(value).is_file():
                raise ClusterError(
                    f"{self.section}ray_env: expected a file, got {self.python}, which is not there"
                )
            options[kind] = value
        return options

    def _stage(self, name: str, staged: Path) -> None:
        """Link a file or folder, or the files of the whole folder, into another folder."""
        path = (self.folder / name).resolve()
        if not path.exists():
            raise ClusterError(
                f"{self.section}ray_files: expected files and folders, got {name}, which is not "
                "there"
            )
        folder = self.folder.resolve()
        inside = path.relative_to(folder) if path.is_relative_to(folder) else Path(path.name)
        pairs = [(staged / inside, path)]
        if path == folder:
            pairs = [(staged / child.name, child) for child in path.iterdir()]
        for link, target in pairs:
            if link.exists() or any(p.is_symlink() for p in link.parents):
                raise ClusterError(
                    f"{self.section}ray_files: expected each path once, got {name}, which another "
                    "one has as well; leave one of them out"
                )
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)


def _kind_of_python(python: str, folder: Path) -> tuple[str, str]:
    """Return the name of a Python environment's kind in Ray's words, and its value there."""
    if python.endswith(".txt"):
        return "pip", str(folder / python)
    if python.endswith((".yml", ".yaml")):
        return "conda", str(folder / python)
    return ("py_executable" if os.sep in python else "conda"), python


NOTHING_BROUGHT = RuntimeEnv()


class Invitation(NamedTuple):
    """Cluster that a process joined, for other processes of its machine.

    Attributes:
        address: "auto" or HOST:PORT.
        token: file with the token of a cluster that the process started, else "".
    """

    address: str
    token: str = ""


class _Connection(NamedTuple):
    """Connection that `cluster` made: what its hosts got, and the file of its token, else ""."""

    runtime: RuntimeEnv
    token: str


_connection: _Connection | None = None


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
    if ray.is_initialized():
        _check_same(runtime)
        with _watched(ray, field):
            yield ray
        return
    with ExitStack() as left:
        made = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
        folder = Path(left.enter_context(made))
        if token:
            left.enter_context(_guest(ray, field, token))
        left.callback(_leave, ray)
        try:
            is_new = _join(ray, address, field, folder, runtime)
        finally:
            sys.breakpointhook = hook
            if breakpoint_ is None:
                os.environ.pop("PYTHONBREAKPOINT", None)
            else:
                os.environ["PYTHONBREAKPOINT"] = breakpoint_
        own = ""
        if is_new:
            (folder / "token").write_text(os.environ["RAY_AUTH_TOKEN"])  # the folder is private
            own = str(folder / "token")
            left.callback(_await_guests, own)
        _connection = _Connection(runtime, own)
        try:
            with _watched(ray, field):
                yield ray
        finally:
            _connection = None


def _leave(ray: Any) -> None:
    """Leave the cluster, and end it if it started here, with the handler of SIGTERM in place.

    Ray takes it away before it waits for the end of its processes.
    """

    def put_back_and(end: Callable[..., None], **options: bool) -> None:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        end(**options)

    node = ray._private.worker._global_node
    if node is not None:
        node.kill_all_processes = partial(put_back_and, node.kill_all_processes)
    ray.shutdown()


def invitation(ray: Any) -> Invitation:
    """Return what other processes of this machine need to join the same cluster."""
    address = ray.get_runtime_context().gcs_address
    return Invitation(address, "" if _connection is None else _connection.token)


@contextmanager
def _guest(ray: Any, field: str, token: str) -> Iterator[None]:
    """Return a context in which a cluster that another process started goes on.

    The system ends it, too, when this process dies.
    """
    try:
        file = Path(token).open()  # noqa: SIM115 (the next line closes it)
    except OSError as error:
        raise ClusterError(f"{field}: expected the cluster of another process: {error}") from None
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)
        _use_token(ray, file.read())
        yield


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
        self._field, self._ended = field, threading.Event()
        self._answers, self._lost = 0, False
        context = ray.get_runtime_context()
        self._address = context.gcs_address
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._head = ray._private.worker.global_worker.gcs_client

    def run(self) -> None:
        """Ask until the context of the cluster ends, or the head is gone."""
        answered_s = listened_s = time.monotonic()
        while not self._ended.wait(WATCH_S):
            is_node_alive, listens = self._ask()
            now_s = time.monotonic()
            if is_node_alive:
                self._answers += 1
                answered_s = listened_s = now_s
            elif listens:
                listened_s = now_s
            is_closed, is_silent = now_s - listened_s > CLOSED_S, now_s - answered_s > SILENT_S
            if is_node_alive is False or is_closed or is_silent:
                self._lost = True
                return

    def _ask(self) -> tuple[bool | None, bool]:
        """Return if this node is alive, None without an answer, and if the head may still listen.

        A head that does not answer in time may have too little of its processor.
        """
        try:
            return all(self._head.check_alive([self._node], timeout=ANSWER_S)), True
        except Exception:
            pass
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_S).close()
        except TimeoutError:
            return None, True
        except OSError:
            return None, False
        return None, True

    def check(self, is_sure: bool = False) -> None:
        """Raise ClusterLostError if the head is gone, as `check_head`."""
        answers = self._answers
        while is_sure and self._answers == answers and not self._lost:
            time.sleep(WATCH_S / 20)
        if self._lost:
            raise ClusterLostError(
                f"{self._field}: the head of the cluster at {self._address} is gone; start a "
                "cluster and resume the run"
            )

    def end(self) -> None:
        """End the thread."""
        self._ended.set()


_watches: list[_HeadWatch] = []


@contextmanager
def _watched(ray: Any, field: str) -> Iterator[None]:
    """Return a context in which `check_head` knows of the cluster."""
    watch = _HeadWatch(ray, field)
    watch.start()
    _watches.append(watch)
    try:
        yield
    finally:
        watch.end()
        _watches.remove(watch)


def _check_same(runtime: RuntimeEnv) -> None:
    """Raise ClusterError if hosts of a cluster that is joined already got something else."""
    wanted, has = runtime, NOTHING_BROUGHT if _connection is None else _connection.runtime
    for name, expected, got in (
        ("ray_files", wanted.files, has.files),
        ("ray_env", wanted.python, has.python),
    ):
        if expected and expected != got:
            raise ClusterError(
                f"{runtime.section}{name}: expected no connection to Ray before the run, got one "
                f"without {expected}; name them in runtime_env where the program calls ray.init"
            )


def _join(ray: Any, address: str, field: str, folder: Path, runtime: RuntimeEnv) -> bool:
    """Join a cluster, or start one for "auto" if there is none; return True for a new one.

    Args:
        ray: the module.
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.
        folder: files of a cluster that starts here, where "auto" of other programs does not look.
        runtime: what hosts get.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # whatever is named is meant
    staged = folder / "files"
    staged.mkdir()
    told: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False}
    if options := runtime.options(staged):
        told["runtime_env"] = options
    # Ray itself would join any cluster of this machine, also one whose token it does not have.
    found = os.environ.get("RAY_ADDRESS") or ray._private.services.find_bootstrap_address(None)
    known = address if address != "auto" else found
    if known:
        is_here = known.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")
        problem: str | None = None
        ways: list[AbstractContextManager[None]] = [nullcontext()]
        for way in [*ways, _on_loopback(ray)] if is_here else ways:
            with way:
                problem = _problem(ray, known)
                if problem is None:
                    with _outliving_head():
                        ray.init(address=known, **told)
                    return False
        if address != "auto":
            raise ClusterError(f"{field}: expected a cluster at {address}, got {problem}")
    _use_token(ray, os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    here = {"_node_ip_address": "127.0.0.1", "_temp_dir": str(folder), "include_dashboard": False}
    with _on_loopback(ray), _outliving_head(), _in_sessions_of_their_own(ray):
        ray.init(address="local", **here, **told)
    return True


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


@contextmanager
def _in_sessions_of_their_own(ray: Any) -> Iterator[None]:
    """Let Ray start processes that get no signals of this one's group, such as torchrun's SIGTERM.

    They would end before this process has saved. The system ends them if this process dies, which
    Ray asks of Linux alone.
    """
    services = ray._private.services
    before = services.ConsolePopen
    if sys.platform == "linux":
        services.ConsolePopen = partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Let Ray take the loopback address for its own, as where it allows no cluster."""
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _problem(ray: Any, address: str) -> str | None:
    """Return why a cluster cannot be joined, after seconds; None if it answers.

    Ray itself tries for minutes, also with a wrong token.
    """
    address = ray._private.services.canonicalize_bootstrap_address(address)
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
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


def check_size(ray: Any, resources: Mapping[str, float], count: int, field: str) -> None:
    """Raise ClusterError if a cluster has not the resources of so many workers.

    Args:
        ray: the module, joined to the cluster.
        resources: what each worker takes, by name.
        count: the number of workers.
        field: the setting that asks for them, for messages.
    """
    has: Mapping[str, float] = ray.cluster_resources()
    for name, each in resources.items():
        if has.get(name, 0.0) < each * count:
            expected = f"a cluster with {name} {each * count:g}, for {count} workers of {each:g}"
            fix = "add hosts, or set rollout.processes or rollout.ray_resources"
            raise ClusterError(f"{field}: expected {expected}, got {has.get(name, 0.0):g}; {fix}")
