"""Ray clusters of the ranks of a run: one for all ranks, or one per machine."""

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from enn_trainer.base.errors import ConfigError, RankError
from enn_trainer.base.group import Group
from enn_trainer.config import TrainConfig
from enn_trainer.evaluation.remote import cluster
from enn_trainer.runtime.shards import Shards
from entity_env.vec.ray_cluster import check_head, invitation


def join_cluster(config: TrainConfig, group: Group, stack: ExitStack) -> Any:
    """Join the cluster of `rollout.ray` until the stack is closed, and return the module `ray`.

    The first rank of each machine joins or starts the cluster, then the other ranks join it.

    Raises:
        ConfigError: raised in all ranks if one of them cannot join the cluster, or if the cluster
            is too small for the workers.
    """
    rollout = config.rollout
    assert rollout.ray is not None
    hosts = group.gather(socket.gethostname(), "start")
    first = hosts.index(hosts[group.rank])
    joined: list[Any] = []

    def enter(address: str, token: str = "") -> list[str]:
        joined.append(stack.enter_context(cluster(address, config, "rollout.ray", token)))
        # Release ranks that wait for this one before the cluster shuts down.
        stack.callback(group.leave_if_failed)
        return [*invitation(joined[0])]

    # The first rank of a machine joins before the others, so that they share one cluster.
    is_first = first == group.rank
    ray_address = str(rollout.ray)
    invited = group.together(lambda alive: enter(ray_address) if is_first else [], "start")[first]
    group.together(lambda alive: [] if is_first else enter(*invited), "start")
    (ray,) = joined

    # Check that the cluster can run the workers of all its ranks.
    own_shards = Shards.of(rollout.num_envs, 1, config.scale.shards or 1)
    num_envs = len(own_shards.for_rank(group.rank, group.size).columns)
    name = ray._private.worker.global_worker.node.cluster_id.hex()
    workers = group.gather([name, min(rollout.processes, num_envs)], "start")
    count = sum(number for other, number in workers if other == name)

    group.together(lambda alive: _check_size(ray, rollout.ray_resources, count), "start")
    return ray


def _check_size(ray: Any, resources: Mapping[str, float], count: int) -> None:
    """Raise ConfigError if a cluster lacks resources for the workers.

    Args:
        ray: the module, connected to the cluster.
        resources: resources of each worker, by name.
        count: number of workers.
    """
    for name, amount in resources.items():
        available = ray.cluster_resources().get(name, 0.0)
        if available < amount * count:
            raise ConfigError(
                f"rollout.ray: expected a cluster with {name} {amount * count:g}, for {count} "
                f"workers of {amount:g}, got {available:g}; add hosts, or set rollout.processes "
                "or rollout.ray_resources"
            )


@contextmanager
def report_lost_head(group: Group) -> Iterator[None]:
    """Return a context in which rank 0 reports a lost cluster head instead of a lost rank.

    Another rank may detect the loss first and leave the group.

    Raises:
        ClusterLostError: the head of the cluster is lost.
    """
    try:
        yield
    except RankError:
        if group.leads:
            check_head(is_sure=True)
        raise
