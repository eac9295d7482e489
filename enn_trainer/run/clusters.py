"""Ray clusters of the ranks of a run: one of all, or one of each machine."""

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
    """Join the cluster of `rollout.ray` until the stack is closed, and return the module Ray.

    The first rank of each machine joins it, or starts one; then the others of the machine join.

    Raises:
        ConfigError: a rank has no such cluster, or it is too small for the workers of its ranks; in
            all ranks.
    """
    rollout = config.rollout
    assert rollout.ray is not None
    hosts = group.gather(socket.gethostname(), "start")
    first = hosts.index(hosts[group.rank])
    joined: list[Any] = []

    def enter(address: str, token: str = "") -> list[str]:
        joined.append(stack.enter_context(cluster(address, config, "rollout.ray", token)))
        # Before the cluster ends; those who wait for this rank have to leave it first.
        stack.callback(group.leave_if_failed)
        return [*invitation(joined[0])]

    # Join, one after the other on a machine, so that there is one cluster.
    is_first = first == group.rank
    own = str(rollout.ray)
    invited = group.together(lambda alive: enter(own) if is_first else [], "start")[first]
    group.together(lambda alive: [] if is_first else enter(*invited), "start")
    (ray,) = joined

    # Compare its size with the workers of all ranks in it.
    own_shards = Shards.of(rollout.num_envs, 1, config.scale.shards or 1)
    num_envs = len(own_shards.of_rank(group.rank, group.size).columns)
    name = ray._private.worker.global_worker.node.cluster_id.hex()
    found = group.gather([name, min(rollout.processes, num_envs)], "start")
    count = sum(number for other, number in found if other == name)

    group.together(lambda alive: _check_size(ray, rollout.ray_resources, count), "start")
    return ray


def _check_size(ray: Any, resources: Mapping[str, float], count: int) -> None:
    """Raise ConfigError if a cluster lacks the resources of all workers.

    Args:
        ray: the module, joined to the cluster.
        resources: resources of each worker, by name.
        count: the number of workers.
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
def lost_heads_named(group: Group) -> Iterator[None]:
    """Return a context in which rank 0 notices that the head of its cluster is gone.

    Another rank may have noticed it first, and have left.

    Raises:
        ClusterLostError: it is gone, instead of the loss of the other rank.
    """
    try:
        yield
    except RankError:
        if group.leads:
            check_head(is_sure=True)
        raise
