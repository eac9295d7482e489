"""Connection to a Ray cluster, or a cluster of this machine alone."""

import os
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any

from entity_env.errors import EntityEnvError
from entity_env.extras import remedy


class ClusterError(EntityEnvError):
    """Error of a cluster that is not there, or too small."""


@contextmanager
def cluster(address: str, field: str) -> Iterator[Any]:
    """Return a context with Ray, joined to a cluster: "auto" for the one there is, else a new one.

    A new one listens on this machine alone, has no dashboard, reports nothing and asks for a token.

    Args:
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.

    Raises:
        ClusterError: Ray is not installed, or there is no such cluster.
    """
    breakpoint_, hook = os.environ.get("PYTHONBREAKPOINT"), sys.breakpointhook
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # it would replace print
    try:
        import ray
    except ModuleNotFoundError as error:
        install = remedy(error)
        raise ClusterError(f"{field}: expected the package ray, it is missing{install}") from None
    if ray.is_initialized():
        yield ray
        return
    folder = TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
    try:
        try:
            _join(ray, address, field, folder.name)
        finally:
            sys.breakpointhook = hook
            if breakpoint_ is None:
                os.environ.pop("PYTHONBREAKPOINT", None)
            else:
                os.environ["PYTHONBREAKPOINT"] = breakpoint_
        yield ray
    finally:
        ray.shutdown()
        folder.cleanup()


def _join(ray: Any, address: str, field: str, folder: str) -> None:
    """Join a cluster, or start one for "auto" if there is none.

    Args:
        ray: the module.
        address: "auto" or HOST:PORT.
        field: the setting with the address, for messages.
        folder: files of a cluster that starts here, where "auto" of other programs does not look.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    # Ray itself would join any cluster of this machine, also one whose token it does not have.
    found = os.environ.get("RAY_ADDRESS") or ray._private.services.find_bootstrap_address(None)
    known = address if address != "auto" else found
    if known:
        try:
            ray.init(address=known, **quiet)
            return
        except ConnectionError as error:
            if address != "auto":
                why = " ".join(str(error).split())
                raise ClusterError(f"{field}: expected a cluster at {address}, got {why}") from None
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    # It has read the variables of its tokens already, if it was imported before.
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    here = {"_node_ip_address": "127.0.0.1", "_temp_dir": folder, "include_dashboard": False}
    # Ray takes the address of the network for its own, except where it allows no cluster.
    constants = ray._private.ray_constants
    before, constants.ENABLE_RAY_CLUSTER = constants.ENABLE_RAY_CLUSTER, False
    try:
        ray.init(address="local", **here, **quiet)
    finally:
        constants.ENABLE_RAY_CLUSTER = before


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
