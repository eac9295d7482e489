"""Names of metrics, and checks of names in spaces."""

from collections.abc import Collection

COMPUTED = frozenset(
    {"step", "reward", "episodic_reward", "episode_length", "running_length", "entity_count"}
)
"""Metrics that are computed for every environment."""
_COMPUTED_GROUPS = ("entity_count/", "parameters/", "lesson/", "eval/")


def is_text(name: object) -> bool:
    """Return whether a name is text that UTF-8 can encode, without lone surrogates."""
    if not isinstance(name, str):
        return False
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_PREFIX = "env/"
"""Prefix in logs of environment metrics that have the name of a computed metric."""


def is_computed(name: str, computed: Collection[str] = COMPUTED) -> bool:
    """Return whether the name of an environment metric clashes with a computed metric.

    Args:
        name: of the metric; the prefix `env/` is ignored.
        computed: names of computed metrics.
    """
    while name.startswith(_PREFIX):
        name = name.removeprefix(_PREFIX)
    return name in computed or name.startswith(_COMPUTED_GROUPS)


def free_name(name: str) -> str:
    """Return the name in logs of an environment metric that clashes with a computed metric."""
    return f"{_PREFIX}{name}"
