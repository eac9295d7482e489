"""Differences between two worlds, by the names of their entity types, features and actions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from entity_env.spaces import GLOBAL, ActionSpace, Entity, ObsSpace, Spaces
from rogue_net.wiring import missing_features


@dataclass
class SpaceDiff:
    """Differences between two worlds as text, one line for each list of names.

    Attributes:
        changed: names that were added or removed, and actions of another kind.
        reordered: lists with the same names in another order, but for labels of actions.
        reordered_labels: the same for the labels of actions, which stand for numbers.
        bounds: components of actions whose bounds changed.
    """

    changed: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    reordered_labels: list[str] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [*self.changed, *self.reordered, *self.reordered_labels, *self.bounds]
        return "\n".join(lines) or "no difference"

    def compare(
        self, what: str, have: Sequence[str], want: Sequence[str], are_labels: bool = False
    ) -> None:
        """Add the differences between two lists of names, described as `what`."""
        added = [name for name in want if name not in have]
        removed = [name for name in have if name not in want]
        parts = [
            f"{verb} {some}" for verb, some in (("added", added), ("removed", removed)) if some
        ]
        if parts:
            self.changed.append(f"{what}: {', '.join(parts)}{_renames(removed, added)}")
        kept = [name for name in have if name in want]
        kept_now = [name for name in want if name in have]
        if kept != kept_now:
            lists = self.reordered_labels if are_labels else self.reordered
            lists.append(f"{what}: reordered {kept} to {kept_now}")


def diff_spaces(before: Spaces, after: Spaces) -> SpaceDiff:
    """Return all differences between the spaces of two environments."""
    (have, have_actions), (want, want_actions) = before, after
    diff = SpaceDiff()
    _compare_features(diff, GLOBAL, have.global_entity, want.global_entity)
    diff.compare("entity types", [*have.entities], [*want.entities])
    for name, entity in have.entities.items():
        if name in want.entities:
            _compare_features(diff, name, entity, want.entities[name])
    diff.compare("actions", [*have_actions], [*want_actions])
    for name, space in have_actions.items():
        if name not in want_actions:
            continue
        kind, kind_now = space.kind, want_actions[name].kind
        if kind != kind_now:
            diff.changed.append(f"action {name}: kind changed from {kind} to {kind_now}")
        was, now = space.after, want_actions[name].after
        if was != now:
            diff.changed.append(f"action {name}: after changed from {was} to {now}")
        diff.compare(f"when of {name}", space.when, want_actions[name].when, are_labels=True)
        what = "components" if space.components else "labels"
        diff.compare(f"{what} of {name}", space.names, want_actions[name].names, are_labels=True)
        diff.bounds += _changed_bounds(name, space, want_actions[name])
    return diff


def _changed_bounds(name: str, have: ActionSpace, want: ActionSpace) -> list[str]:
    """Return a line for each component of an action whose bounds changed."""
    before, now = have.bounds_by_name(), want.bounds_by_name()
    return [
        f"bounds of {name}: {component} changed from {before[component]} to {now[component]}"
        for component in before
        if component in now and before[component] != now[component]
    ]


def _compare_features(diff: SpaceDiff, name: str, have: Entity, want: Entity) -> None:
    """Add the differences between the features of a type, or of the global ones."""
    what = "global features" if name == GLOBAL else f"features of {name}"
    owner = "global" if name == GLOBAL else name
    diff.compare(what, have.columns, want.columns)
    before = {kind.name: kind.labels for kind in have.kinds}
    now = {kind.name: kind.labels for kind in want.kinds}
    for feature in have.columns:
        if feature in before and feature in now:
            diff.compare(f"labels of {owner}.{feature}", before[feature], now[feature])
        elif feature in want.columns and (feature in before) != (feature in now):
            became = "a kind" if feature in now else "a number"
            diff.changed.append(f"{what}: {feature} became {became}")


def incompatibilities(known: Spaces, shown: Spaces) -> list[str]:
    """Return the reasons why a network cannot play in another environment, as text.

    New features and entity types are no obstacle, since the network does not need them.

    Args:
        known: spaces of the network.
        shown: spaces of the environment.
    """
    missing = [f"expected {one}" for one in missing_features(shown.obs_space, known.obs_space)]
    blank = ObsSpace()
    diff = diff_spaces(known._replace(obs_space=blank), shown._replace(obs_space=blank))
    return missing + diff.changed


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
