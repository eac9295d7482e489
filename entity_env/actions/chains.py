"""Dependent actions: which of them are taken, and labels that are illegal because of them.

An action with `after` is taken by an actor once it has chosen one of `when` in the action before.
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
    """Return the names of all actions, each behind the one that it depends on.

    Raises:
        InvalidSpace: an action depends on itself, or on one that there is not.
    """
    return in_order({name: space.after for name, space in action_space.items()})


def in_order(before: Mapping[ActionName, ActionName | None]) -> list[ActionName]:
    """Return the names of actions, each behind the one that it depends on.

    Args:
        before: for each action the one that it depends on, if any.

    Raises:
        InvalidSpace: an action depends on itself, or on one that there is not.
    """
    if all(name is None for name in before.values()):
        return [*before]
    order: list[ActionName] = []
    while len(order) < len(before):
        left = [name for name in before if name not in order]
        next_ones = [name for name in left if before[name] in (None, *order)]
        if not next_ones:
            raise InvalidSpace(
                f"action_space: expected actions before {left}, got none or a circle"
            )
        order += next_ones
    return order


def chain_problems(action_space: ActionSpaces) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the dependent actions of valid spaces, and what to do about it."""
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
            others = [one for one in action_space if one != name]
            yield f"[{name!r}].after: expected one of {others}, got {space.after!r}", "name another"
        elif parent.components:
            got = f"{space.after!r}, whose actors choose numbers"
            yield f"[{name!r}].after: expected labels or an entity, got {got}", "turn them round"
        elif parent.is_global != space.is_global:
            whose = "the frame" if space.is_global else "entities"
            yield (
                f"[{name!r}].after: expected an action of {whose}, got {space.after!r}",
                "let both be of entities, or both global",
            )
        elif space.when and not parent.labels:
            got = f"{space.when} after the choice of an entity"
            yield f"[{name!r}].when: expected none, got {got}", "leave it out"
        elif unknown := [label for label in space.when if label not in parent.labels]:
            yield (
                f"[{name!r}].when: expected labels among {parent.labels}, got {unknown}",
                "name labels of the action before",
            )
        elif len({*space.when}) < len(space.when):
            yield f"[{name!r}].when: expected each label once, got {space.when}", "name it once"
        elif _is_circle(name, action_space):
            yield f"[{name!r}].after: expected no circle of actions, got one", "cut it"


def _is_circle(name: ActionName, action_space: ActionSpaces) -> bool:
    for _ in action_space:
        before = action_space[name].after
        if before is None or before not in action_space:
            return False
        name = before
    return True


def link(
    masks: Mapping[ActionName, VecActionMask],
    action_space: ActionSpaces,
    check: Callable[[ActionName, ActionName, IntArray], None] | None = None,
) -> dict[ActionName, VecActionMask]:
    """Return masks in which each dependent actor has its place, and every choice a continuation.

    A label after which a dependent action has nothing legal for an actor is itself illegal for it.
    Actors without anything legal are left out.

    Args:
        masks: by action, of B frames.
        action_space: the actions.
        check: raises if actors of a dependent action were not named in the one before; takes the
            two names and the row of the first such actor.
    """
    names = parents_first(action_space)
    dependent = [name for name in names if action_space[name].after is not None]
    linked = dict(masks)
    if not dependent:
        return linked

    # The place of each actor among those of the action before.
    for name in dependent:
        before = action_space[name].after
        assert before is not None
        found = places_among(linked[name].actors, linked[before].actors)
        missing = np.flatnonzero(found < 0)
        if len(missing) and check is not None:
            check(name, before, missing)
        linked[name] = _with_after(linked[name], action_space, name, found)

    # Labels after which nothing is legal, from the last action of each chain on.
    for name in reversed(dependent):
        mask, before = linked[name], action_space[name].after
        assert mask.after is not None
        assert before is not None
        parent = linked[before]
        table = np.zeros((len(parent.actors.values), mask.labels), np.bool_)
        table[_flat_rows(mask.after.rows, parent.actors)] = mask.legal_by_label()
        if not table.all():
            columns = action_space[before].mask_columns
            linked[before] = _restricted(parent, columns, table, mask.after.when)

    # Actors who are left, from the first action of each chain on.
    opened: dict[
        ActionName, BoolArray
    ] = {}  # (actors, labels), labels before that an actor may choose
    for name in names:
        mask, before = linked[name], action_space[name].after
        opens = np.ones((len(mask.actors.values), mask.labels), np.bool_)
        if before is not None:
            parent = linked[before]
            found = places_among(mask.actors, parent.actors)
            assert mask.after is not None
            reached = _reached(parent, mask.after.when, opened[before])
            if mask.labels == 1:
                reached = reached.any(axis=1, keepdims=True)
            rows = _flat_rows(Ragged(found, mask.actors.lengths), parent.actors)
            is_there = found >= 0
            opens[~is_there] = False
            opens[is_there] = reached[rows[is_there]]
            mask = replace(mask, after=replace(mask.after, rows=Ragged(found, mask.actors.lengths)))  # type: ignore[type-var]
        possible = (mask.legal_by_label() & opens).any(axis=1)
        linked[name] = mask if possible.all() else mask.keep(possible)
        opened[name] = opens[possible]
    return linked


def narrowed(mask: VecActionMask, before: Ragged) -> tuple[VecActionMask, BoolArray]:
    """Return the mask of those who take a dependent action, and who does, (actors,) bool.

    Args:
        mask: of the dependent action.
        before: the choices of the action before.
    """
    taken, label = takers(mask, before)
    return mask.keep(taken, label), taken


def takers(mask: VecActionMask, before: Ragged) -> tuple[BoolArray, IntArray]:
    """Return who takes a dependent action, and after which label.

    Args:
        mask: of the dependent action.
        before: the choices of the action before.

    Returns:
        (actors,) bool; and (actors,) int64, the place of each choice in `after.when`, 0 for those
        who do not take the action.
    """
    after = mask.after
    assert after is not None
    chosen = before.values[rows_before(mask, before)]
    taken, label = chosen >= 0, np.zeros(len(chosen), np.int64)
    if after.when:
        is_label = chosen[:, None] == np.array(after.when)
        taken, label = is_label.any(axis=1), is_label.argmax(axis=1)
    return taken, label


def nothing_of(space: ActionSpace) -> Any:
    """Return what stands for the choice of an actor who does not take an action: -1, or NaN."""
    return np.nan if space.choice_dtype is np.float32 else -1


def rows_before(mask: VecActionMask, before: Ragged) -> IntArray:
    """Return the row of each actor of a dependent action in rows of the action before."""
    assert mask.after is not None
    return _flat_rows(mask.after.rows, before)


def is_taken(choices: npt.NDArray[Any]) -> BoolArray:
    """Return who takes an action, by the choices of all its actors, (actors,) bool."""
    taken: BoolArray = ~np.isnan(choices).all(axis=1) if choices.ndim == 2 else choices != -1
    return taken


def masks_after(
    masks: Mapping[ActionName, VecActionMask], choices: Mapping[ActionName, Ragged]
) -> dict[ActionName, VecActionMask]:
    """Return masks of all actors, with what was legal after the choices that were made before.

    They depend on no action. Those of actors who do not take an action have no meaning.

    Args:
        masks: by action, of B frames.
        choices: of all actors.
    """
    found = dict(masks)
    for name, mask in masks.items():
        if mask.after is not None:
            taken, label = takers(mask, choices[mask.after.action])
            found[name] = mask.keep(np.ones_like(taken), label)
    return found


def spread(space: ActionSpace, choices: Ragged, taken: BoolArray, lengths: IntArray) -> Ragged:
    """Return choices of all actors of a dependent action: -1, or NaN, of those who do not take it.

    Args:
        space: of the action.
        choices: of those who do.
        taken: (actors,) bool, who does.
        lengths: (B,) the actors of each frame.
    """
    rows = np.full((len(taken), *space.choice_columns), nothing_of(space), space.choice_dtype)
    rows[taken] = choices.values
    return Ragged(rows, lengths)


def choose_parts(
    masks: Mapping[ActionName, VecActionMask],
    action_space: ActionSpaces,
    choose: Callable[[ActionName, VecActionMask], Ragged],
) -> Choices:
    """Let actors choose action by action, dependent ones given what was chosen before.

    Args:
        masks: by action, of B frames.
        action_space: the actions.
        choose: returns legal choices of all actors of a mask that depends on nothing.
    """
    chosen: Choices = {}
    for name in parents_first(action_space):
        mask = masks[name]
        if mask.after is None:
            chosen[name] = choose(name, mask)
            continue
        part, taken = narrowed(mask, chosen[mask.after.action])
        rows = choose(name, part)
        chosen[name] = spread(action_space[name], rows, taken, mask.actors.lengths)
    return {name: chosen[name] for name in action_space}


def places_among(actors: Ragged, others: Ragged) -> IntArray:
    """Return the number of each actor among others of its frame, -1 for one who is not there."""
    most = 1 + max(int(rows.values.max(initial=0)) for rows in (actors, others))
    own, theirs = (
        np.repeat(np.arange(len(rows)), rows.lengths) * most + rows.values
        for rows in (actors, others)
    )
    order = np.argsort(theirs)
    if len(theirs) == 0:
        return np.full(len(own), -1)
    found = order[np.searchsorted(theirs, own, sorter=order).clip(max=len(theirs) - 1)]
    first = np.repeat(others.starts, actors.lengths)
    places: IntArray = np.where(theirs[found] == own, found - first, -1)
    return places


def after_of(action_space: ActionSpaces, name: ActionName, rows: Ragged) -> After | None:
    """Return the action before a dependent one, with the places of actors; None if there is none.

    Args:
        action_space: the actions.
        name: of the action.
        rows: int64 (actors,) per frame, as in `After`.
    """
    before = action_space[name].after
    if before is None:
        return None
    labels = action_space[before].labels
    return After(before, rows, [labels.index(label) for label in action_space[name].when])


def check_linked(
    masks: Mapping[ActionName, VecActionMask], action_space: ActionSpaces, where: str = ""
) -> None:
    """Raise unless masks are as `link` returns them.

    Args:
        masks: by action, each of which fits its space.
        action_space: the actions.
        where: the beginning of messages.

    Raises:
        InvalidObservation: names the action.
    """
    for name, mask in link(masks, action_space).items():
        given = masks[name]
        if mask is given:
            continue
        columns = action_space[name].mask_columns
        rows = [(given.actors, mask.actors), (given.full_mask(columns), mask.full_mask(columns))]
        if given.after is not None and mask.after is not None:
            rows.append((given.after.rows, mask.after.rows))
        fits = all(
            np.array_equal(one.values, other.values) and np.array_equal(one.lengths, other.lengths)
            for one, other in rows
        )
        expected = "actors and choices that something legal follows, in the places of the actors"
        expect(fits, f"{where}actions[{name!r}]", expected, "others")


def _with_after(
    mask: VecActionMask, action_space: ActionSpaces, name: ActionName, found: IntArray
) -> VecActionMask:
    """Return the mask of those who are among the actors of the action before, with their places."""
    after = after_of(action_space, name, Ragged(found, mask.actors.lengths))
    linked = replace(mask, after=after)  # type: ignore[type-var]
    return linked if (found >= 0).all() else linked.keep(found >= 0)


def _flat_rows(places: Ragged, others: Ragged) -> IntArray:
    """Return the rows of the actors at some places of their frames."""
    rows: IntArray = np.repeat(others.starts, places.lengths) + places.values
    return rows


def _restricted(
    mask: VecActionMask, columns: tuple[int, ...], table: BoolArray, when: list[int]
) -> VecActionMask:
    """Return a mask without the choices that nothing can follow.

    Args:
        mask: of an action that others depend on.
        columns: `ActionSpace.mask_columns`.
        table: (actors, labels) bool, True where something is legal after a label of `when`.
        when: the labels, by their number; all choices if empty.
    """
    full = mask.full_mask(columns)
    if mask.actees is not None:
        sizes = np.repeat(mask.actees.lengths, mask.actors.lengths) * mask.labels
        allowed = full.values & np.repeat(table[:, 0], sizes)
    else:
        allowed = full.values.copy()
        by_label = allowed.reshape(len(table), mask.labels, *columns)
        of_labels = when or slice(None)
        by_label[:, :, of_labels] &= table[:, None]
    return replace(mask, mask=Ragged(allowed, full.lengths))  # type: ignore[type-var]


def _reached(mask: VecActionMask, when: list[int], opens: BoolArray) -> BoolArray:
    """Return which labels each actor may choose, after those before that it may choose.

    Args:
        mask: of an action that others depend on.
        when: the labels, by their number; all choices if empty.
        opens: (actors, labels) bool, labels of the action before that an actor may choose.

    Returns:
        (actors, when) bool; (actors, 1), for any choice, if `when` is empty.
    """
    if not when:
        return np.asarray((mask.legal_by_label() & opens).any(axis=1, keepdims=True))
    if mask.mask is None:
        return np.repeat(opens.any(axis=1, keepdims=True), len(when), axis=1)
    by_label = mask.mask.values.reshape(*opens.shape, mask.mask.values.shape[1])[:, :, when]
    return np.asarray((by_label & opens[:, :, None]).any(axis=1))
