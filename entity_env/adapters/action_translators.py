"""Translators between entity actions and the components of Gymnasium actions.

Each discrete choice and each `Box` of a Gymnasium action is one component.
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
"""For each component of an action, (choices,) bool; None if all choices are allowed."""


class Component(NamedTuple):
    """One discrete choice or one `Box` of a Gymnasium action."""

    path: str  # in the action
    num_choices: int  # 0 for a Box
    start: int = 0  # number of the first choice
    box: spaces.Box | None = None
    slot: int = 0  # position among all components of the action


def components_of(space: Space) -> list[Component]:
    """Return the components of an action space, in order.

    Raises:
        InvalidSpace: a part is neither discrete nor a `Box`.
    """
    components: list[Component] = []
    for path, _, leaf in leaves(space):
        if isinstance(leaf, spaces.Box):
            components.append(Component(path, 0, box=leaf))
        elif isinstance(leaf, spaces.MultiBinary):
            components += [Component(one, 2) for one in element_paths(leaf.shape, path)]
        elif isinstance(leaf, DISCRETE):
            components += map(Component, element_paths(leaf.shape, path), *choices(leaf))
        else:
            raise InvalidSpace(
                f"action {path!r}: expected Discrete, MultiDiscrete, MultiBinary, Box or a Dict or "
                f"Tuple of them, got {leaf}; wrap the environment so that it takes one of these"
            )
    return [component._replace(slot=slot) for slot, component in enumerate(components)]


def labels_of(components: Sequence[Component], labels: Sequence[str]) -> Sequence[str]:
    """Select the labels of the available choices from the labels of an environment.

    Label i belongs to number i. A single-component action may have fewer choices than there are
    labels, such as a task that uses the first members of an enumeration.
    """
    if len(components) != 1 or not 0 < components[0].num_choices < len(labels):
        return labels
    start, end = components[0].start, components[0].start + components[0].num_choices
    return labels[start:end] if start >= 0 else labels


def build_action(space: Space, values: Iterator[Any]) -> Any:
    """Build a Gymnasium action from the values of its components, in the order of the space."""
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
    # Copied, because environments may overwrite the values of a mapping.
    return np.array(value, dtype=space.dtype).reshape(space.shape)


def split_mask(space: Space, mask: Any, field: str) -> list[BoolArray | None]:
    """Split the mask of an action into the masks of its components.

    Args:
        space: action space.
        mask: (choices,) for a `Discrete`; several components have concatenated masks, one row each,
            or a tuple; a `Dict` or `Tuple` has a mask by key. None allows everything.
        field: name of the mask, for messages.

    Returns:
        For each component (choices,) bool, or None if all choices are allowed.

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
        for (key, part), part_mask in zip(parts, masks, strict=True)
        for one in split_mask(part, part_mask, join_path(field, key))
    ]


def cut_mask(mask: Any, counts: Sequence[int], field: str) -> list[BoolArray | None]:
    """Split a mask of several components by their numbers of choices.

    Args:
        mask: 0 or 1 for each choice, in arrays or lists of any shape; in a list with one mask per
            component, None allows everything.
        counts: (components,) number of choices of each.
        field: name of the mask, for messages.

    Raises:
        InvalidObservation: the mask has another number of choices.
    """
    ends = list(accumulate(counts))
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (sum(counts),):
        flags = mask.copy()  # fast path for the most frequent format
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
    """Flatten nested lists of masks; a list of numbers is one mask."""
    if not isinstance(mask, list | tuple) or not any(
        one is None or isinstance(one, list | tuple | np.ndarray) for one in mask
    ):
        return [mask]
    return [one for item in mask for one in _flatten(item)]


class JoinedFrames(NamedTuple):
    """Frames of one or several agents that share one observation."""

    frames: Sequence[Frame]
    ids: Mapping[EntityName, Sequence[EntityID]]  # of types that are not identified by (type, row)

    def num_rows(self, name: EntityName) -> list[int]:
        """Return the number of entities of a type in each frame."""
        return [len(frame.rows[name]) for frame in self.frames]

    def locate(self, name: EntityName, entities: Sequence[Any]) -> list[tuple[int, int]]:
        """Return the frame index and row of each entity, by type and id."""
        locations = [
            (i, row) for i, frame in enumerate(self.frames) for row in frame.rows[name].tolist()
        ]
        if name in self.ids:
            location_of = dict(zip(self.ids[name], locations, strict=True))
            return [location_of[one] for one in entities]
        return [locations[position] for _, position in entities]


class ActionTranslator(ABC):
    """Base class of translators from an entity action to components of a Gymnasium action.

    Masks are translated in the other direction.

    Args:
        name: action name in the mapping.
        action: mapping of the action.
        components: components that the action sets.
        num_rows: number of rows of each entity type, None if it varies.
        prefix: prefix of type names.
        is_team: agents are entities, and the default actors.

    Attributes:
        name: action name in the mapping.
        slots: slot of each component.
        num_choices: number of choices of each component; 0 for a `Box`.
        space: entity action space.
        complete: mapping of the action, including inferred values.

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
            entity_type: EntityName | None = getattr(action, field, None)
            if entity_type is not None and entity_type not in num_rows:
                raise InvalidSpace(
                    f"FieldMap.actions[{name!r}].{field}: expected a type among {list(num_rows)}, "
                    f"got {entity_type!r}{did_you_mean(str(entity_type), map(str, num_rows))}"
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
        """Combine the masks of several agents; None stands for an agent that cannot act."""

    @abstractmethod
    def decode(self, action: Any, joined: JoinedFrames, choices: Sequence[dict[int, Any]]) -> None:
        """Write an entity action to the choices of each agent, by slot."""

    @abstractmethod
    def value(self, component: Component, choice: Any, mask: BoolArray | None) -> Any:
        """Return the value of a component in the Gymnasium action.

        Args:
            component: component of this action.
            choice: chosen value, None if no actor chose one.
            mask: mask of its choices.
        """


class ChoiceTranslator(ActionTranslator):
    """Translate categorical actions, and select-entity actions to row numbers.

    Args:
        name: action name in the mapping.
        action: mapping of the action.
        components: components that the action sets.
        num_rows: number of rows of each entity type, None if it varies.
        labels: labels of the environment, empty if unknown.
        prefix: prefix of type names.
        is_team: agents are entities, and the default actors.

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

        # Validate first and default.
        self.num_choices = _count_choices(argument, action, components)
        for field in ("first", "default"):
            value = getattr(action, field, None) or 0
            if not 0 <= value < self.num_choices:
                raise InvalidSpace(
                    f"{argument}.{field}: expected 0 to {self.num_choices - 1}, got {value}"
                )

        # A global action has one component, actors have one for each row.
        if action.actors is None and len(components) != 1:
            raise InvalidSpace(
                f"{argument}: expected one choice, got {len(components)} at "
                f"{[component.path for component in components]}; set actors to the type that "
                "acts, or path to one of these"
            )
        rows = None if action.actors is None else num_rows[action.actors]
        if rows is not None and rows != len(components):
            raise InvalidSpace(
                f"{argument}.actors: expected a component for each of the {rows} rows of "
                f"{action.actors!r}, got {len(components)}; limit the rows with span, or omit "
                "actors for a global action"
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
        has_no_actors = len(frame.rows[self._actors]) == 0
        if has_no_actors or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return self._to_mask(allowed)

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Combine the masks of several agents; None stands for an agent that cannot act."""
        is_unmasked = [mask is not None and mask.mask is None for mask in masks]
        num_rows = joined.num_rows(self._actors)
        num_columns = [self.num_choices] * len(masks)
        if self._actees is not None:
            num_columns = joined.num_rows(self._actees)
        elif all(is_unmasked):
            return self._to_mask(None)
        blocks = [
            np.full((n, k), unmasked) if unmasked or mask is None else np.reshape(mask.mask, (n, k))
            for mask, unmasked, n, k in zip(masks, is_unmasked, num_rows, num_columns, strict=True)
        ]
        if self._actees is None:
            return self._to_mask(np.concatenate(blocks))
        # Block diagonal: each agent selects among the entities that it observes itself.
        agents = np.arange(len(masks))
        allowed = np.repeat(agents, num_rows)[:, None] == np.repeat(agents, num_columns)
        allowed[allowed] = np.concatenate([block.reshape(-1) for block in blocks])
        return self._to_mask(allowed)

    def decode(self, action: Any, joined: JoinedFrames, choices: Sequence[dict[int, Any]]) -> None:
        """Write an entity action to the choices of each agent, by slot."""
        if self.space.is_global:
            choices[0][self.slots[0]] = action.index
            return
        if self._actees is None:
            chosen = action.indices.tolist()
        else:
            rows = joined.locate(self._actees, action.actees)
            chosen = [self._first + row for _, row in rows]
        locations = joined.locate(self._actors, action.actors)
        for (agent, row), choice in zip(locations, chosen, strict=True):
            choices[agent][self.slots[row]] = choice

    def value(self, component: Component, choice: int | None, mask: BoolArray | None) -> Any:
        """Return the value of a component in the Gymnasium action.

        Args:
            component: component of this action.
            choice: chosen position; None for the default, or the first allowed choice if the
                default is not allowed.
            mask: mask of its choices.
        """
        if choice is None:
            choice = self._default or 0
            if mask is not None and not mask[choice] and mask.any():
                choice = int(mask.argmax())
        return component.start + choice if self._values is None else self._values[choice]

    def _allowed(self, frame: Frame, masks: Masks) -> BoolArray | None:
        """Return (actors, choices or actees) bool, None if everything is allowed."""
        rows = frame.rows[self._actors].tolist()
        actor_masks = [masks[self.slots[i]] for i in rows if i < len(self.slots)]
        if self._default is None and any(m is not None and not m.any() for m in actor_masks):
            raise InvalidObservation(
                f"actions[{self.name!r}]: expected a mask that allows a choice, got all False; "
                "allow a no-op, or set default to the choice that is sent instead"
            )
        allowed: BoolArray | None = None
        if len(actor_masks) == len(rows) == 1:
            allowed = None if actor_masks[0] is None else actor_masks[0][None, :]
        elif len(actor_masks) < len(rows) or any(mask is not None for mask in actor_masks):
            allowed = np.zeros((len(rows), self.num_choices), dtype=np.bool_)
            # Rows beyond the components cannot act; they come last, because rows are in order.
            for i, mask in enumerate(actor_masks):
                allowed[i] = True if mask is None else mask
        if self._actees is None:
            return allowed

        # Select the columns of the actees.
        choices = self._first + frame.rows[self._actees]
        is_choice = choices < self.num_choices
        if allowed is not None:
            columns: BoolArray = allowed[:, np.minimum(choices, self.num_choices - 1)] & is_choice
            return columns
        if len(choices) > 0 and is_choice.all():
            return None
        return np.tile(is_choice, (len(rows), 1))

    def _to_mask(self, allowed: BoolArray | None) -> ActionMask:
        """Convert (actors, choices) bool to the mask of the entity action."""
        if self.space.is_global and allowed is not None:
            allowed = allowed[0]
        mask: ActionMask = self._mask_type(mask=allowed)
        return mask


def _count_choices(argument: str, action: Choice | Select, components: Sequence[Component]) -> int:
    """Return the number of choices of each component.

    Raises:
        InvalidSpace: the numbers differ; or `values` are set for a component other than a `Box`, do
            not fit the `Box`, or are missing.
    """
    # Values of a Box must be in its space.
    counts = [component.num_choices for component in components]
    if isinstance(action, Choice) and action.values is not None:
        for component in components:
            if component.box is None:
                raise InvalidSpace(
                    f"{argument}.values: expected a Box, got {component.num_choices} choices at "
                    f"{component.path!r}; omit values"
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
            f"{argument}.values: expected a list of values in {components[0].box}, got none; or "
            "use Number"
        )
    # Several actors share one list of choices.
    is_global = isinstance(action, Choice) and action.actors is None
    if not counts[0] or (len(set(counts)) > 1 and not is_global):
        raise InvalidSpace(
            f"{argument}: expected components with the same number of choices, got {counts}; "
            "select components with `of` and `column`"
        )
    return counts[0]
