"""Differences between the spaces of two environments, by name."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from entity_env.spaces import GLOBAL, ActionSpace, Entity, ObsSpace, Spaces


@dataclass
class SpaceDiff:
    """Differences between the spaces of two environments as text, one line per list of names.

    Attributes:
        changed: names that were added or removed, and actions of another kind.
        reordered: lists with the same names in another order, except for labels of actions.
        reordered_labels: reordered labels of actions, which changes the meaning of choices.
        bounds: action components with changed bounds.
    """

    changed: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    reordered_labels: list[str] = field(default_factory=list)
    bounds: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [*self.changed, *self.reordered, *self.reordered_labels, *self.bounds]
        return "\n".join(lines) or "no difference"

    def compare(
        self, label: str, old: Sequence[str], new: Sequence[str], are_labels: bool = False
    ) -> None:
        """Add the differences between two lists of names, described as `label`."""
        added = [name for name in new if name not in old]
        removed = [name for name in old if name not in new]
        parts = [
            f"{verb} {names}" for verb, names in (("added", added), ("removed", removed)) if names
        ]
        if parts:
            self.changed.append(f"{label}: {', '.join(parts)}{_renames(removed, added)}")
        old_common = [name for name in old if name in new]
        new_common = [name for name in new if name in old]
        if old_common != new_common:
            lists = self.reordered_labels if are_labels else self.reordered
            lists.append(f"{label}: reordered {old_common} to {new_common}")


def diff_spaces(before: Spaces, after: Spaces) -> SpaceDiff:
    """Compare the spaces of two environments."""
    (old, old_actions), (new, new_actions) = before, after
    diff = SpaceDiff()
    _compare_features(diff, GLOBAL, old.global_entity, new.global_entity)
    diff.compare("entity types", [*old.entities], [*new.entities])
    for name, entity in old.entities.items():
        if name in new.entities:
            _compare_features(diff, name, entity, new.entities[name])
    diff.compare("actions", [*old_actions], [*new_actions])
    for name, space in old_actions.items():
        if name not in new_actions:
            continue
        old_kind, new_kind = space.kind, new_actions[name].kind
        if old_kind != new_kind:
            diff.changed.append(f"action {name}: kind changed from {old_kind} to {new_kind}")
        old_parent, new_parent = space.after, new_actions[name].after
        if old_parent != new_parent:
            diff.changed.append(f"action {name}: after changed from {old_parent} to {new_parent}")
        diff.compare(f"when of {name}", space.when, new_actions[name].when, are_labels=True)
        members = "components" if space.components else "labels"
        diff.compare(f"{members} of {name}", space.names, new_actions[name].names, are_labels=True)
        diff.bounds += _changed_bounds(name, space, new_actions[name])
    return diff


def _changed_bounds(name: str, old: ActionSpace, new: ActionSpace) -> list[str]:
    """Return a line for each action component with changed bounds."""
    before, after = old.bounds_by_name(), new.bounds_by_name()
    return [
        f"bounds of {name}: {component} changed from {before[component]} to {after[component]}"
        for component in before
        if component in after and before[component] != after[component]
    ]


def _compare_features(diff: SpaceDiff, name: str, old: Entity, new: Entity) -> None:
    """Add the differences between the features of a type, or the global features."""
    label = "global features" if name == GLOBAL else f"features of {name}"
    owner = "global" if name == GLOBAL else name
    diff.compare(label, old.columns, new.columns)
    old_labels = {kind.name: kind.labels for kind in old.kinds}
    new_labels = {kind.name: kind.labels for kind in new.kinds}
    for feature in old.columns:
        if feature in old_labels and feature in new_labels:
            diff.compare(f"labels of {owner}.{feature}", old_labels[feature], new_labels[feature])
        elif feature in new.columns and (feature in old_labels) != (feature in new_labels):
            became = "a kind" if feature in new_labels else "a number"
            diff.changed.append(f"{label}: {feature} became {became}")


def incompatibilities(net: Spaces, env: Spaces) -> list[str]:
    """Return the reasons why a network cannot act in an environment with other spaces.

    New features and entity types are allowed, as the network does not need them.

    Args:
        net: spaces of the network.
        env: spaces of the environment.
    """
    missing = [f"expected {one}" for one in missing_features(env.obs_space, net.obs_space)]
    blank = ObsSpace()
    diff = diff_spaces(net._replace(obs_space=blank), env._replace(obs_space=blank))
    return missing + diff.changed


def _renames(removed: Sequence[str], added: Sequence[str]) -> str:
    """Return a hint about removed names that resemble added names, or ""."""
    pairs = [
        f"{name} renamed to {matches[0]}"
        for name in removed
        if (matches := get_close_matches(name, added, n=1, cutoff=0.5))
    ]
    if not pairs and len(removed) == len(added) == 1:
        pairs = [f"{removed[0]} renamed to {added[0]}"]
    return f" (perhaps {', '.join(pairs)})" if pairs else ""


def missing_features(env_space: ObsSpace, net_space: ObsSpace) -> list[str]:
    """Return messages about features of a network that a space lacks, and about unknown labels.

    Features and types that are unknown to the network are no problem.
    """
    if net_space.entities and not net_space.entities.keys() & env_space.entities.keys():
        return [f"some of the entity types {[*net_space.entities]}, got {[*env_space.entities]}"]
    pairs = {
        f"features of {name!r}": (env_space.entities[name], net_space.entities[name])
        for name in net_space.entities
        if name in env_space.entities
    }
    pairs["global features"] = (env_space.global_entity, net_space.global_entity)
    missing = []
    for owner, (env, net) in pairs.items():
        if missing_names := [feature for feature in net.features if feature not in env.features]:
            missing.append(f"{owner} with {missing_names}, got {env.columns}")
        kinds = {kind.name: kind for kind in env.kinds}
        if missing_names := [kind.name for kind in net.kinds if kind.name not in kinds]:
            missing.append(f"{owner} with the kinds {missing_names}, got {env.columns}")
        for kind in net.kinds:
            labels = kinds[kind.name].labels if kind.name in kinds else []
            if unknown := [label for label in labels if label not in kind.labels]:
                missing.append(
                    f"{owner}: labels of {kind.name!r} among {kind.labels}, got {unknown}"
                )
    return missing
