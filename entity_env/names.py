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


_OWN = "env/"
"""Begins the names by which metrics of an environment are logged whose own names are computed."""


def is_computed(name: str, computed: Collection[str] = COMPUTED) -> bool:
    """Return whether a metric of this name is computed, so that an environment's own would be lost.

    Args:
        name: of a metric of the environment. One that begins like the free name of a computed one
            would be lost as well.
        computed: names of metrics that are computed.
    """
    while name.startswith(_OWN):
        name = name.removeprefix(_OWN)
    return name in computed or name.startswith(_COMPUTED_GROUPS)


def free_name(name: str) -> str:
    """Return the name by which an environment's metric is logged whose own name is computed."""
    return f"{_OWN}{name}"
