"""Names in spaces, and of metrics."""

from collections.abc import Collection

COMPUTED = frozenset(
    {"step", "reward", "episodic_reward", "episode_length", "running_length", "entity_count"}
)
"""Metrics that are computed of every environment."""
_COMPUTED_GROUPS = ("entity_count/", "parameters/", "lesson/", "eval/")


def is_text(name: object) -> bool:
    """Return whether a name is text that can be written to files: lone surrogates cannot."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_computed(name: str, computed: Collection[str] = COMPUTED) -> bool:
    """Return whether a metric of this name is computed, so that an environment's own would be lost.

    Args:
        name: of a metric of the environment.
        computed: names of metrics that are computed.
    """
    return name in computed or name.startswith(_COMPUTED_GROUPS)


def free_name(name: str, given: Collection[str] = ()) -> str:
    """Return the name by which an environment's metric is logged whose own name is computed.

    Args:
        name: of the metric.
        given: names of all metrics of the environment.
    """
    free = f"env/{name}"
    while free in given:
        free = f"env/{free}"
    return free
