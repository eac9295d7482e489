"""Translators between entity actions and the components of Gymnasium actions.

The components of an action are the discrete choices and the numbers of each `Box` in it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import ActionMask
from entity_env.adapters.gymnasium_spaces import (
    DISCRETE,
    Space,
    children,
    choices,
    element_paths,
    join_path,
    leaves,
)
from entity_env.adapters.mapping import AGENT, AnyAction, Choice, Select
from entity_env.adapters.observation_reader import Frame
from entity_env.arrays import BoolArray
from entity_env.errors import InvalidObservation, InvalidSpace, did_you_mean
from entity_env.imports.extras import needs_extra
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    EntityID,
    EntityName,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)

with needs_extra():
    from gymnasium import spaces

Masks: TypeAlias = Sequence[BoolArray | None]
"""For each component of an action (choices,) bool, None where everything is allowed."""


class Component(NamedTuple):
    """One discrete choice, or one Box of numbers, within an action."""

    path: str  # in the action
    num_choices: int  # 0 for a Box
    start: int = 0  # the number of the first choice
    box: spaces.Box | None = None  # the space of a Box
    slot: int = 0  # the position among all components of the action


def components_of(space: Space) -> list[Component]:
    """Return the components of an action, in the order of the space.

    Raises:
        InvalidSpace: the action consists of something else.
    """
    found: list[Component] = []
    for path, _, leaf in leaves(space):
        if isinstance(leaf, spaces.Box):
            found.append(Component(path, 0, box=leaf))
        elif isinstance(leaf, spaces.MultiBinary):
            found += [Component(one, 2) for one in element_paths(leaf.shape, path)]
        elif isinstance(leaf, DISCRETE):
            found += map(Component, element_paths(leaf.shape, path), *choices(leaf))
        else:
            raise InvalidSpace(
                f"action {path!r}: expected Discrete, MultiDiscrete, MultiBinary, Box or a Dict or "
                f"Tuple of them, got {leaf}; wrap the environment so that it takes one of these"
            )
    return [component._replace(slot=slot) for slot, component in enumerate(found)]


def labels_of(components: Sequence[Component], labels: Sequence[str]) -> Sequence[str]:
    """Return the labels of an environment without those beyond the choices of its action.

    Label i is that of the number i. More labels than choices are those of an action of one
    component, such as an enumeration of which a task uses the first members.
    """
    if len(components) != 1 or not 0 < components[0].num_choices < len(labels):
        return labels
    start, end = components[0].start, components[0].start + components[0].num_choices
    return labels[start:end] if start >= 0 else labels


def build_action(space: Space, values: Iterator[Any]) -> Any:
    """Return the action with these values of its components, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return {key: build_action(part, values) for key, part in children(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(build_action(part, values) for _, part in children(space))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return np.array([next(values) for _ in range(size)], space.dtype).reshape(space.shape)
    value = next(values)
    return _to_box(space, value) if isinstance(space, spaces.Box) else np.int64(value)


def _to_box(space: spaces.Box, value: Any) -> npt.NDArray[Any]:
    # A copy, as environments may overwrite the values of a mapping.
    return np.array(value, dtype=space.dtype).reshape(space.shape)


def split_mask(space: Space, mask: Any, field: str) -> list[BoolArray | None]:
    """Split the mask of an action into the masks of its components.

    Args:
        space: of the action.
        mask: (choices,) for a `Discrete`; for several components their masks concatenated, or as
            rows, or in a tuple; for a `Dict` or `Tuple` a mask by key. None allows everything.
        field: the field with the mask, for messages.

    Returns:
        For each component (choices,) bool, or None where everything is allowed.

    Raises:
        InvalidObservation: the mask does not fit the action.
    """
    parts = children(space)
    masks: Sequence[Any]
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        if unknown := [key for key in mask if key not in space.spaces]:
            raise InvalidObservation(
                f"{field}: expected masks by the keys {list(space.spaces)}, got {unknown}"
            )
        masks = [mask.get(key) for key in space.spaces]
    elif isinstance(space, spaces.Tuple) and isinstance(mask, list | tuple):
        if len(mask) != len(parts):
            raise InvalidObservation(f"{field}: expected {len(parts)} masks, got {len(mask)}")
        masks = mask
    else:
        counts = [component.num_choices for component in components_of(space)]
        return [None] * len(counts) if mask is None else cut_mask(mask, counts, field)
    return [
        one
        for (key, part), own in zip(parts, masks, strict=True)
        for one in split_mask(part, own, join_path(field, key))
    ]


def cut_mask(mask: Any, counts: Sequence[int], field: str) -> list[BoolArray | None]:
    """Cut a mask into one for each component.

    Args:
        mask: 0 or 1 for each choice, in arrays or lists of any shape; in a list of the masks of
            all components, None allows everything.
        counts: (components,) the number of choices of each.
        field: the field with the mask, for messages.

    Raises:
        InvalidObservation: the mask does not have this many choices.
    """
    ends = list(accumulate(counts))
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (sum(counts),):
        flags = mask.copy()  # the most frequent kind, which needs no checks
    else:
        masks = _flatten(mask)
        is_one_each = len(masks) == len(counts)
        if is_one_each:
            masks = [np.ones(n) if m is None else m for m, n in zip(masks, counts, strict=True)]
        try:
            flats = [np.asarray(one).reshape(-1) for one in masks]
            flat = flats[0] if len(flats) == 1 else np.concatenate(flats)
            flags = flat.astype(np.bool_)
            is_valid = bool((flat == flags).all()) and len(flat) == sum(counts)
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid or (is_one_each and [len(one) for one in flats] != list(counts)):
            raise InvalidObservation(
                f"{field}: expected {sum(counts)} times 0 or 1, for {list(counts)} choices, got "
                f"{mask!r}"
            )
    return [flags[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _flatten(mask: Any) -> list[Any]:
    """Return the masks in nested lists; a list of numbers is one mask."""
    if not isinstance(mask, list | tuple) or not any(
        one is None or isinstance(one, list | tuple | np.ndarray) for one in mask
    ):
        return [mask]
    return [one for nested in mask for one in _flatten(nested)]


class JoinedFrames(NamedTuple):
    """Frames of one or several agents, whose entities are joined in one observation."""

    frames: Sequence[Frame]
    ids: Mapping[EntityName, Sequence[EntityID]]  # of entities not known by (type, row)

    def num_rows(self, name: EntityName) -> list[int]:
        """Return the number of entities of a type in each frame."""
        return [len(frame.rows[name]) for frame in self.frames]

    def locate(self, name: EntityName, wanted: Sequence[Any]) -> list[tuple[int, int]]:
        """Return the frame and the row in the field there of entities of a type, by their ids."""
        places = [
            (i, row) for i, frame in enumerate(self.frames) for row in frame.rows[name].tolist()
        ]
        if name in self.ids:
            place_of = dict(zip(self.ids[name], places, strict=True))
            return [place_of[one] for one in wanted]
        return [places[position] for _, position in wanted]


class ActionTranslator(ABC):
    """Translate an entity action to components of a Gymnasium action, and their masks back.

    Args:
        name: of the action in the mapping.
        action: its meaning.
        components: that it sets.
        num_rows: of each entity type, None if it varies.
        prefix: of the names of types.
        is_team: agents are entities, which choose where the mapping names no actors.

    Attributes:
        name: of the action in the mapping.
        slots: the slot of each component.
        num_choices: the number of choices of each component; 0 for numbers.
        space: the space of the entity action.
        complete: its meaning with everything that was inferred written out.

    Raises:
        InvalidSpace: the action does not fit the environment.
    """

    num_choices: int
    space: ActionSpace
    complete: AnyAction

    def __init__(
        self,
        name: ActionName,
        action: AnyAction,
        components: Sequence[Component],
        num_rows: Mapping[EntityName, int | None],
        prefix: str,
        is_team: bool,
    ) -> None:
        for field in ("actors", "actees"):
            wanted: EntityName | None = getattr(action, field, None)
            if wanted is not None and wanted not in num_rows:
                raise InvalidSpace(
                    f"FieldMap.actions[{name!r}].{field}: expected a type among {list(num_rows)}, "
                    f"got {wanted!r}{did_you_mean(str(wanted), map(str, num_rows))}"
                )
        self.name = name
        self.slots = [component.slot for component in components]
        self._is_global = action.actors is None and not is_team
        self._actors = join_path(prefix, action.actors or AGENT)

    @abstractmethod
    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None if nothing is allowed."""

    @abstractmethod
    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return one mask for the masks of several agents, of which None allows nothing."""

    @abstractmethod
    def decode(self, action: Any, joined: JoinedFrames, choices: Sequence[dict[int, Any]]) -> None:
        """Set the choices of each agent, by slot, that an entity action stands for."""

    @abstractmethod
    def value(self, component: Component, choice: Any, mask: BoolArray | None) -> Any:
        """Return the value of a component in the Gymnasium action.

        Args:
            component: one of this action.
            choice: what was chosen for it, None for nothing.
            mask: of its choices.
        """


class ChoiceTranslator(ActionTranslator):
    """Translate a choice among labels, or the selection of an entity: the number of its row.

    Args:
        name: of the action in the mapping.
        action: its meaning.
        components: that it sets.
        num_rows: of each entity type, None if it varies.
        labels: of the environment, empty if unknown.
        prefix: of the names of types.
        is_team: agents are entities, which choose where the mapping names no actors.

    Raises:
        InvalidSpace: the action does not fit the environment.
    """

    def __init__(
        self,
        name: ActionName,
        action: Choice | Select,
        components: Sequence[Component],
        num_rows: Mapping[EntityName, int | None],
        labels: Sequence[str],
        prefix: str,
        is_team: bool,
    ) -> None:
        super().__init__(name, action, components, num_rows, prefix, is_team)
        argument = f"FieldMap.actions[{name!r}]"

        # The numbers of the mapping.
        self.num_choices = _count_choices(argument, action, components)
        for field in ("first", "default"):
            value = getattr(action, field, None) or 0
            if not 0 <= value < self.num_choices:
                raise InvalidSpace(
                    f"{argument}.{field}: expected 0 to {self.num_choices - 1}, got {value}"
                )

        # The number of components: one for the agent, or one for each row.
        if action.actors is None and len(components) != 1:
            raise InvalidSpace(
                f"{argument}: expected one choice, got {len(components)} at "
                f"{[component.path for component in components]}; name the type whose entities "
                "choose or select in actors, or one of these paths"
            )
        rows = None if action.actors is None else num_rows[action.actors]
        if rows is not None and rows != len(components):
            raise InvalidSpace(
                f"{argument}.actors: expected a component for each of the {rows} rows of "
                f"{action.actors!r}, got {len(components)}; name with span the rows that act, or "
                "leave actors out where the frame as a whole chooses"
            )

        self._default = action.default
        self._values: Sequence[Any] | None = getattr(action, "values", None)
        self._actees: EntityName | None = None  # for a choice among labels
        self.space, self.complete = SelectEntityActionSpace(), action
        types: dict[str, Any] = {"actor_types": [self._actors]}
        if isinstance(action, Select):
            self._actees, self._first = join_path(prefix, action.actees), action.first
            types["actee_types"] = [self._actees]
        else:
            cls = GlobalCategoricalActionSpace if self._is_global else CategoricalActionSpace
            if not action.labels and len(labels) != self.num_choices:
                labels = [str(components[0].start + i) for i in range(self.num_choices)]
            elif len(action.labels or labels) != self.num_choices:
                raise InvalidSpace(
                    f"{argument}.labels: expected {self.num_choices} labels, got "
                    f"{list(action.labels or labels)}"
                )
            self.space = cls(list(action.labels or labels))
            self.complete = replace(action, labels=self.space.labels)
            types = {} if self._is_global else types
        self._mask_type: Callable[..., Any] = partial(self.space.mask_type, **types)

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None if nothing is allowed."""
        allowed = self._allowed(frame, masks)
        nobody = len(frame.rows[self._actors]) == 0
        if nobody or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return self._mask_of(allowed)

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return one mask for the masks of several agents, of which None allows nothing."""
        is_free = [mask is not None and mask.mask is None for mask in masks]
        num_rows = joined.num_rows(self._actors)
        num_columns = [self.num_choices] * len(masks)
        if self._actees is not None:
            num_columns = joined.num_rows(self._actees)
        elif all(is_free):
            return self._mask_of(None)
        blocks = [
            np.full((n, k), free) if free or mask is None else np.reshape(mask.mask, (n, k))
            for mask, free, n, k in zip(masks, is_free, num_rows, num_columns, strict=True)
        ]
        if self._actees is None:
            return self._mask_of(np.concatenate(blocks))
        # Block diagonal: agents select among what they see themselves.
        agents = np.arange(len(masks))
        allowed = np.repeat(agents, num_rows)[:, None] == np.repeat(agents, num_columns)
        allowed[allowed] = np.concatenate([block.reshape(-1) for block in blocks])
        return self._mask_of(allowed)

    def decode(self, action: Any, joined: JoinedFrames, choices: Sequence[dict[int, Any]]) -> None:
        """Set the choices of each agent, by slot, that an entity action stands for."""
        if self.space.is_global:
            choices[0][self.slots[0]] = action.index
            return
        if self._actees is None:
            chosen = action.indices.tolist()
        else:
            rows = joined.locate(self._actees, action.actees)
            chosen = [self._first + row for _, row in rows]
        places = joined.locate(self._actors, action.actors)
        for (agent, row), choice in zip(places, chosen, strict=True):
            choices[agent][self.slots[row]] = choice

    def value(self, component: Component, choice: int | None, mask: BoolArray | None) -> Any:
        """Return the value of a component in the Gymnasium action.

        Args:
            component: one of this action.
            choice: what was chosen for it; None for the default, or the first choice that is
                allowed if the default is not.
            mask: of its choices.
        """
        if choice is None:
            choice = self._default or 0
            if mask is not None and not mask[choice] and mask.any():
                choice = int(mask.argmax())
        return component.start + choice if self._values is None else self._values[choice]

    def _allowed(self, frame: Frame, masks: Masks) -> BoolArray | None:
        """Return (actors, choices or actees) bool, None if all is allowed."""
        numbers = frame.rows[self._actors].tolist()
        given = [masks[self.slots[i]] for i in numbers if i < len(self.slots)]
        if self._default is None and any(m is not None and not m.any() for m in given):
            raise InvalidObservation(
                f"actions[{self.name!r}]: expected a mask that allows a choice, got one that "
                "allows none; allow what does nothing, or name in default what is sent then"
            )
        allowed: BoolArray | None = None
        if len(given) == len(numbers) == 1:
            allowed = None if given[0] is None else given[0][None, :]
        elif len(given) < len(numbers) or any(mask is not None for mask in given):
            allowed = np.zeros((len(numbers), self.num_choices), dtype=np.bool_)
            # Nothing is allowed to rows without a component, which come last, as rows are in order.
            for i, mask in enumerate(given):
                allowed[i] = True if mask is None else mask
        if self._actees is None:
            return allowed

        # A column for each entity that may be selected.
        choices = self._first + frame.rows[self._actees]
        is_choice = choices < self.num_choices
        if allowed is not None:
            columns: BoolArray = allowed[:, np.minimum(choices, self.num_choices - 1)] & is_choice
            return columns
        if len(choices) > 0 and is_choice.all():
            return None
        return np.tile(is_choice, (len(numbers), 1))

    def _mask_of(self, allowed: BoolArray | None) -> ActionMask:
        """Return the mask of the entity action; `allowed` is (actors, choices) bool."""
        if self.space.is_global and allowed is not None:
            allowed = allowed[0]
        mask: ActionMask = self._mask_type(mask=allowed)
        return mask


def _count_choices(argument: str, action: Choice | Select, components: Sequence[Component]) -> int:
    """Return the number of choices of each component.

    Raises:
        InvalidSpace: they differ; or values are given for other components than a `Box`, are not
            in its space, or are missing.
    """
    # Values in place of the choices of a component: all of them must be in its space.
    counts = [component.num_choices for component in components]
    if isinstance(action, Choice) and action.values is not None:
        for component in components:
            if component.box is None:
                raise InvalidSpace(
                    f"{argument}.values: expected them for a Box alone, got "
                    f"{component.num_choices} choices at {component.path!r}; leave it out"
                )
            for value in action.values:
                try:
                    fits = component.box.contains(_to_box(component.box, value))
                except (TypeError, ValueError):
                    fits = False
                if not fits:
                    raise InvalidSpace(
                        f"{argument}.values: expected values in {component.box}, got {value!r}"
                    )
        counts = [len(action.values)]
    if isinstance(action, Choice) and not counts[0]:
        raise InvalidSpace(
            f"{argument}.values: expected what the choices stand for in {components[0].box}, got "
            "none; give a list of values, or use Number"
        )
    # Several actors share one list of choices.
    acts_once = isinstance(action, Choice) and action.actors is None
    if not counts[0] or (len(set(counts)) > 1 and not acts_once):
        raise InvalidSpace(
            f"{argument}: expected components with the same number of choices, got {counts}; use "
            "of and column"
        )
    return counts[0]
