"""Differences between two worlds, by the names of their entity types, features and actions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.wiring import missing_features


@dataclass
class SpaceDiff:
    """Differences between two worlds as text, one line for each list of names.

    Attributes:
        changed: names that were added or removed, and actions of another kind.
        reordered: lists with the same names in another order.
    """

    changed: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join([*self.changed, *self.reordered]) or "no difference"

    def compare(self, what: str, have: Sequence[str], want: Sequence[str]) -> None:
        """Add the differences between two lists of names, described as `what`."""
        names = {
            "added": [name for name in want if name not in have],
            "removed": [name for name in have if name not in want],
        }
        parts = [f"{verb} {some}" for verb, some in names.items() if some]
        if parts:
            hint = _renames(names["removed"], names["added"])
            self.changed.append(f"{what}: {', '.join(parts)}{hint}")
        kept = [name for name in have if name in want]
        kept_now = [name for name in want if name in have]
        if kept != kept_now:
            self.reordered.append(f"{what}: reordered {kept} to {kept_now}")


def diff_spaces(
    have: ObsSpace,
    have_actions: Mapping[str, ActionSpace],
    want: ObsSpace,
    want_actions: Mapping[str, ActionSpace],
) -> SpaceDiff:
    """Return all differences between two worlds.

    Args:
        have: the old observation space.
        have_actions: the old action space.
        want: the new observation space.
        want_actions: the new action space.
    """
    diff = SpaceDiff()
    diff.compare("global features", have.global_features, want.global_features)
    diff.compare("entity types", [*have.entities], [*want.entities])
    for name, entity in have.entities.items():
        if name in want.entities:
            diff.compare(f"features of {name}", entity.features, want.entities[name].features)
    diff.compare("actions", [*have_actions], [*want_actions])
    for name, space in have_actions.items():
        if name not in want_actions:
            continue
        kind, kind_now = space.kind, want_actions[name].kind
        if kind != kind_now:
            diff.changed.append(f"action {name}: kind changed from {kind} to {kind_now}")
        diff.compare(f"labels of {name}", space.labels, want_actions[name].labels)
    return diff


def space_differences(
    have: ObsSpace,
    have_actions: Mapping[str, ActionSpace],
    want: ObsSpace,
    want_actions: Mapping[str, ActionSpace],
) -> list[str]:
    """Return the differences between two worlds as text, ignoring the order of names."""
    return diff_spaces(have, have_actions, want, want_actions).changed


def incompatibilities(
    have: ObsSpace,
    have_actions: Mapping[str, ActionSpace],
    want: ObsSpace,
    want_actions: Mapping[str, ActionSpace],
) -> list[str]:
    """Return the reasons why a network for one world cannot play in another, as text.

    New features and entity types are no obstacle, since the network does not need them.
    """
    missing = [f"expected {one}" for one in missing_features(want, have)]
    return missing + space_differences(ObsSpace(), have_actions, ObsSpace(), want_actions)


def label_orders(
    have_actions: Mapping[str, ActionSpace], want_actions: Mapping[str, ActionSpace]
) -> list[str]:
    """Return, as text, the actions whose labels are in another order in the second world."""
    diff = SpaceDiff()
    for name in have_actions.keys() & want_actions.keys():
        labels = have_actions[name].labels, want_actions[name].labels
        diff.compare(f"labels of {name}", *labels)
    return sorted(diff.reordered)


def _renames(removed: Sequence[str], added: Sequence[str]) -> str:
    """Return a hint for removed names that were probably renamed to added ones, or ""."""
    pairs = [
        f"{name} renamed to {near[0]}"
        for name in removed
        if (near := get_close_matches(name, added, n=1, cutoff=0.5))
    ]
    if not pairs and len(removed) == len(added) == 1:
        pairs = [f"{removed[0]} renamed to {added[0]}"]
    return f" (perhaps {', '.join(pairs)})" if pairs else ""
