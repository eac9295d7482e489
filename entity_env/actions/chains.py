"""Autoregressive actions: masks given the parent action, and the active actors of each action.

An action with a parent, `after`, is active for an actor that chose one of `when` in the parent.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import ActionName
from entity_env.actions.action_space import ActionSpace
from entity_env.arrays import BoolArray, IntArray
from entity_env.errors import InvalidSpace
from entity_env.ragged import Ragged
from entity_env.spaces import ActionSpaces
from entity_env.vec.row_checks import expect
from entity_env.vec.vec_obs import After, Choices, VecActionMask


def parents_first(action_space: ActionSpaces) -> list[ActionName]:
    """Return the names of all actions, each after its parent.

    Raises:
        InvalidSpace: a parent is missing, or the actions form a cycle.
    """
    return topological_order({name: space.after for name, space in action_space.items()})


def topological_order(parents: Mapping[ActionName, ActionName | None]) -> list[ActionName]:
    """Sort actions topologically, each after its parent.

    Args:
        parents: the parent of each action, None for an action without one.

    Raises:
        InvalidSpace: a parent is missing, or the actions form a cycle.
    """
    if all(name is None for name in parents.values()):
        return [*parents]
    order: list[ActionName] = []
    while len(order) < len(parents):
        remaining = [name for name in parents if name not in order]
        ready = [name for name in remaining if parents[name] in (None, *order)]
        if not ready:
            raise InvalidSpace(
                f"action_space: expected parent actions of {remaining}, got none or a cycle"
            )
        order += ready
    return order


def dependency_problems(action_space: ActionSpaces) -> Iterator[tuple[str, str]]:
    """Yield an error message and a fix for each invalid parent (`after`) or label (`when`)."""
    for name, space in action_space.items():
        if space.after is None:
            if space.when:
                yield (
                    f"[{name!r}].when: expected none without after, got {space.when}",
                    "leave it out",
                )
            continue
        parent = action_space.get(space.after)
        if parent is None or space.after == name:
            names = [one for one in action_space if one != name]
            yield f"[{name!r}].after: expected one of {names}, got {space.after!r}", "name another"
        elif parent.components:
            got = f"discrete action, got the continuous action {space.after!r}"
            yield f"[{name!r}].after: expected a {got}", "swap parent and child"
        elif parent.is_global != space.is_global:
            level = "global" if space.is_global else "per-entity"
            yield (
                f"[{name!r}].after: expected a {level} action, got {space.after!r}",
                "make both per-entity or both global",
            )
        elif space.when and not parent.labels:
            got = f"{space.when} with the select-entity action {space.after!r} as parent"
            yield f"[{name!r}].when: expected none, got {got}", "leave it out"
        elif unknown := [label for label in space.when if label not in parent.labels]:
            yield (
                f"[{name!r}].when: expected labels among {parent.labels}, got {unknown}",
                "name labels of the parent action",
            )
        elif len({*space.when}) < len(space.when):
            yield f"[{name!r}].when: expected each label once, got {space.when}", "name it once"
        elif _has_cycle(name, action_space):
            yield f"[{name!r}].after: expected no cycle of actions, got one", "break the cycle"


def _has_cycle(name: ActionName, action_space: ActionSpaces) -> bool:
    for _ in action_space:
        parent = action_space[name].after
        if parent is None or parent not in action_space:
            return False
        name = parent
    return True


def link_to_parents(
    masks: Mapping[ActionName, VecActionMask],
    action_space: ActionSpaces,
    check: Callable[[ActionName, ActionName, IntArray], None] | None = None,
) -> dict[ActionName, VecActionMask]:
    """Link masks to their parent actions, and mask choices without a legal continuation.

    A choice is masked if an action that depends on it has no legal choice for the actor. Actors
    without legal choices are removed.

    Args:
        masks: by action, of B frames.
        action_space: the actions.
        check: raises for actors that the parent action lacks; gets the names of the action and of
            its parent, and the rows of these actors.
    """
    names = parents_first(action_space)
    dependent = [name for name in names if action_space[name].after is not None]
    linked = dict(masks)
    if not dependent:
        return linked

    # Find the position of each actor among the actors of its parent action.
    for name in dependent:
        parent_name = action_space[name].after
        assert parent_name is not None
        index = positions_among(linked[name].actors, linked[parent_name].actors)
        missing = np.flatnonzero(index < 0)
        if len(missing) and check is not None:
            check(name, parent_name, missing)
        linked[name] = _with_after(linked[name], action_space, name, index)

    # Mask parent choices without a legal continuation, children first.
    for name in reversed(dependent):
        mask, parent_name = linked[name], action_space[name].after
        assert mask.after is not None
        assert parent_name is not None
        parent = linked[parent_name]
        table = np.zeros((len(parent.actors.values), mask.labels), np.bool_)
        table[_flat_rows(mask.after.rows, parent.actors)] = mask.legal_by_label()
        if not table.all():
            columns = action_space[parent_name].mask_columns
            linked[parent_name] = _mask_dead_ends(parent, columns, table, mask.after.when)

    # Remove actors without legal choices, parents first.
    reachable: dict[ActionName, BoolArray] = {}  # (actors, parent labels)
    for name in names:
        mask, parent_name = linked[name], action_space[name].after
        allowed_after = np.ones((len(mask.actors.values), mask.labels), np.bool_)
        if parent_name is not None:
            parent = linked[parent_name]
            index = positions_among(mask.actors, parent.actors)
            assert mask.after is not None
            parent_labels = _reachable_labels(parent, mask.after.when, reachable[parent_name])
            if mask.labels == 1:
                parent_labels = parent_labels.any(axis=1, keepdims=True)
            rows = _flat_rows(Ragged(index, mask.actors.lengths), parent.actors)
            is_present = index >= 0
            allowed_after[~is_present] = False
            allowed_after[is_present] = parent_labels[rows[is_present]]
            mask = replace(mask, after=replace(mask.after, rows=Ragged(index, mask.actors.lengths)))  # type: ignore[type-var]
        possible = (mask.legal_by_label() & allowed_after).any(axis=1)
        linked[name] = mask if possible.all() else mask.keep(possible)
        reachable[name] = allowed_after[possible]
    return linked


def mask_given_parent(mask: VecActionMask, choices: Ragged) -> tuple[VecActionMask, BoolArray]:
    """Return the mask of the active actors given the parent's choices, and (actors,) bool flags.

    Args:
        mask: of an action with a parent.
        choices: the choices of the parent action.
    """
    active, label = active_actors(mask, choices)
    return mask.keep(active, label), active


def active_actors(mask: VecActionMask, parent_choices: Ragged) -> tuple[BoolArray, IntArray]:
    """Return the actors that are active given the parent's choices, and the index of their label.

    Args:
        mask: of an action with a parent.
        parent_choices: the choices of the parent action.

    Returns:
        (actors,) bool, True for active actors; and (actors,) int64, the index of the parent's
        choice in `after.when`, 0 for inactive actors.
    """
    after = mask.after
    assert after is not None
    chosen = parent_choices.values[parent_rows(mask, parent_choices)]
    active, label = chosen >= 0, np.zeros(len(chosen), np.int64)
    if after.when:
        is_label = chosen[:, None] == np.array(after.when)
        active, label = is_label.any(axis=1), is_label.argmax(axis=1)
    return active, label


def inactive_choice(space: ActionSpace) -> Any:
    """Return the placeholder for the choice of an inactive actor: -1, or NaN if continuous."""
    return np.nan if space.choice_dtype is np.float32 else -1


def parent_rows(mask: VecActionMask, parent_choices: Ragged) -> IntArray:
    """Return the row of each actor among the rows of the parent action, (actors,) int64."""
    assert mask.after is not None
    return _flat_rows(mask.after.rows, parent_choices)


def has_choice(choices: npt.NDArray[Any]) -> BoolArray:
    """Return True for active actors, with a choice that is no placeholder, (actors,) bool."""
    active: BoolArray = ~np.isnan(choices).all(axis=1) if choices.ndim == 2 else choices != -1
    return active


def masks_given_choices(
    masks: Mapping[ActionName, VecActionMask], choices: Mapping[ActionName, Ragged]
) -> dict[ActionName, VecActionMask]:
    """Return the masks of all actors given the choices of their parent actions.

    The masks have no parents. Rows of inactive actors are meaningless.

    Args:
        masks: by action, of B frames.
        choices: of all actors.
    """
    all_masks = dict(masks)
    for name, mask in masks.items():
        if mask.after is not None:
            active, label = active_actors(mask, choices[mask.after.action])
            all_masks[name] = mask.keep(np.ones_like(active), label)
    return all_masks


def spread(space: ActionSpace, choices: Ragged, active: BoolArray, lengths: IntArray) -> Ragged:
    """Scatter the choices of active actors to all actors; inactive ones get -1, or NaN.

    Args:
        space: of the action.
        choices: of the active actors.
        active: (actors,) bool, True for active actors.
        lengths: (B,) number of actors of each frame.
    """
    rows = np.full((len(active), *space.choice_columns), inactive_choice(space), space.choice_dtype)
    rows[active] = choices.values
    return Ragged(rows, lengths)


def choose_parts(
    masks: Mapping[ActionName, VecActionMask],
    action_space: ActionSpaces,
    choose: Callable[[ActionName, VecActionMask], Ragged],
) -> Choices:
    """Choose actions autoregressively, each given the choices of its parent.

    Args:
        masks: by action, of B frames.
        action_space: the actions.
        choose: returns legal choices for all actors of a mask without a parent.

    Returns:
        By action, the choices of all actors.
    """
    chosen: Choices = {}
    for name in parents_first(action_space):
        mask = masks[name]
        if mask.after is None:
            chosen[name] = choose(name, mask)
            continue
        active_mask, active = mask_given_parent(mask, chosen[mask.after.action])
        rows = choose(name, active_mask)
        chosen[name] = spread(action_space[name], rows, active, mask.actors.lengths)
    return {name: chosen[name] for name in action_space}


def positions_among(actors: Ragged, candidates: Ragged) -> IntArray:
    """Return the index of each actor among the candidates of its frame, -1 if it is missing."""
    stride = 1 + max(int(rows.values.max(initial=0)) for rows in (actors, candidates))
    queries, keys = (
        np.repeat(np.arange(len(rows)), rows.lengths) * stride + rows.values
        for rows in (actors, candidates)
    )
    order = np.argsort(keys)
    if len(keys) == 0:
        return np.full(len(queries), -1)
    matches = order[np.searchsorted(keys, queries, sorter=order).clip(max=len(keys) - 1)]
    first = np.repeat(candidates.starts, actors.lengths)
    positions: IntArray = np.where(keys[matches] == queries, matches - first, -1)
    return positions


def after_of(action_space: ActionSpaces, name: ActionName, rows: Ragged) -> After | None:
    """Return the link to the parent of an action, None without a parent.

    Args:
        action_space: the actions.
        name: of the action.
        rows: int64 (actors,) per frame, as in `After`.
    """
    parent = action_space[name].after
    if parent is None:
        return None
    labels = action_space[parent].labels
    return After(parent, rows, [labels.index(label) for label in action_space[name].when])


def check_parent_links(
    masks: Mapping[ActionName, VecActionMask], action_space: ActionSpaces, where: str = ""
) -> None:
    """Check that masks are as `link_to_parents` returns them.

    Args:
        masks: by action, valid for their spaces.
        action_space: the actions.
        where: the beginning of messages.

    Raises:
        InvalidObservation: names the action.
    """
    for name, mask in link_to_parents(masks, action_space).items():
        actual = masks[name]
        if mask is actual:
            continue
        columns = action_space[name].mask_columns
        rows = [(actual.actors, mask.actors), (actual.full_mask(columns), mask.full_mask(columns))]
        if actual.after is not None and mask.after is not None:
            rows.append((actual.after.rows, mask.after.rows))
        fits = all(
            np.array_equal(one.values, other.values) and np.array_equal(one.lengths, other.lengths)
            for one, other in rows
        )
        expected = "rows that match the parent action, and choices with a legal continuation"
        expect(fits, f"{where}actions[{name!r}]", expected, "others")


def _with_after(
    mask: VecActionMask, action_space: ActionSpaces, name: ActionName, positions: IntArray
) -> VecActionMask:
    """Return the mask linked to its parent action, without actors that the parent lacks."""
    after = after_of(action_space, name, Ragged(positions, mask.actors.lengths))
    linked = replace(mask, after=after)  # type: ignore[type-var]
    return linked if (positions >= 0).all() else linked.keep(positions >= 0)


def _flat_rows(positions: Ragged, parent_actors: Ragged) -> IntArray:
    """Convert positions within frames to rows of all frames."""
    rows: IntArray = np.repeat(parent_actors.starts, positions.lengths) + positions.values
    return rows


def _mask_dead_ends(
    mask: VecActionMask, columns: tuple[int, ...], table: BoolArray, when: list[int]
) -> VecActionMask:
    """Mask the choices of a parent action that have no legal continuation.

    Args:
        mask: of the parent action.
        columns: `ActionSpace.mask_columns`.
        table: (actors, labels) bool, True where the child action has a legal choice.
        when: indices of these labels; all choices if empty.
    """
    full = mask.full_mask(columns)
    if mask.actees is not None:
        sizes = np.repeat(mask.actees.lengths, mask.actors.lengths) * mask.labels
        allowed = full.values & np.repeat(table[:, 0], sizes)
    else:
        allowed = full.values.copy()
        by_label = allowed.reshape(len(table), mask.labels, *columns)
        label_columns = when or slice(None)
        by_label[:, :, label_columns] &= table[:, None]
    return replace(mask, mask=Ragged(allowed, full.lengths))  # type: ignore[type-var]


def _reachable_labels(mask: VecActionMask, when: list[int], allowed_after: BoolArray) -> BoolArray:
    """Return the labels of a parent action that each actor can reach.

    Args:
        mask: of the parent action.
        when: indices of labels; all choices if empty.
        allowed_after: (actors, labels) bool, reachable labels of the parent's own parent.

    Returns:
        (actors, when) bool; (actors, 1), for any choice, if `when` is empty.
    """
    if not when:
        return np.asarray((mask.legal_by_label() & allowed_after).any(axis=1, keepdims=True))
    if mask.mask is None:
        return np.repeat(allowed_after.any(axis=1, keepdims=True), len(when), axis=1)
    by_label = mask.mask.values.reshape(*allowed_after.shape, mask.mask.values.shape[1])[:, :, when]
    return np.asarray((by_label & allowed_after[:, :, None]).any(axis=1))
