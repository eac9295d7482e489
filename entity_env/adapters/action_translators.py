"""Translators between entity actions and the components of Gymnasium actions.

The components of an action are the discrete choices that it consists of.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.actions import (
    ActionMask,
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    SelectEntityActionMask,
)
from entity_env.adapters.gymnasium_spaces import (
    Flags,
    Space,
    children,
    choices,
    element_paths,
    join_path,
    leaves,
)
from entity_env.adapters.mapping import AGENT
from entity_env.adapters.observation_reader import Frame
from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    EntityID,
    EntityName,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)

Masks: TypeAlias = Sequence[Flags | None]
"""For each component of an action (choices,) bool, None where everything is allowed."""


class Component(NamedTuple):
    """One discrete choice within an action."""

    path: str  # in the action
    num_choices: int  # 0 for a Box, for which the mapping gives them
    start: int = 0  # the number of the first choice
    box: spaces.Box | None = None  # the space of a Box
    slot: int = 0  # the position among all components of the action


def components_of(space: Space) -> list[Component]:
    """Return the components of an action, in the order of the space.

    Raises:
        InvalidSpace: the action does not consist of choices.
    """
    found: list[Component] = []
    for path, _, leaf in leaves(space):
        if isinstance(leaf, spaces.Box):
            found.append(Component(path, 0, box=leaf))
        elif isinstance(leaf, spaces.Discrete):
            found.append(Component(path, int(leaf.n), int(leaf.start)))
        elif isinstance(leaf, spaces.MultiBinary):
            found += [Component(one, 2) for one in element_paths(leaf.shape, path)]
        elif isinstance(leaf, spaces.MultiDiscrete):
            found += map(Component, element_paths(leaf.shape, path), *choices(leaf))
        else:
            raise InvalidSpace(
                f"action {path!r}: expected Discrete, MultiDiscrete, MultiBinary or a Dict or "
                f"Tuple of them, got {leaf}; wrap the environment so that it takes one of these"
            )
    return [component._replace(slot=slot) for slot, component in enumerate(found)]


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
    return np.asarray(value, dtype=space.dtype).reshape(space.shape)


def split_mask(space: Space, mask: Any, field: str) -> list[Flags | None]:
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
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        if unknown := [key for key in mask if key not in space.spaces]:
            raise InvalidObservation(
                f"{field}: expected masks by the keys {list(space.spaces)}, got {unknown}"
            )
        masks = [mask.get(key) for key in space.spaces]
    elif isinstance(space, spaces.Tuple) and isinstance(mask, list | tuple):
        if len(mask) != len(parts):
            raise InvalidObservation(f"{field}: expected {len(parts)} masks, got {len(mask)}")
        masks = list(mask)
    else:
        counts = [component.num_choices for component in components_of(space)]
        return [None] * len(counts) if mask is None else cut_mask(mask, counts, field)
    return [
        one
        for (key, part), own in zip(parts, masks, strict=True)
        for one in split_mask(part, own, join_path(field, key))
    ]


def cut_mask(mask: Any, counts: Sequence[int], field: str) -> list[Flags | None]:
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
            return [places[self.ids[name].index(one)] for one in wanted]
        return [places[position] for _, position in wanted]


class MappedAction(NamedTuple):
    """An action of a mapping, and what its translator needs to know of the environment."""

    name: ActionName
    action: Any  # Choice or Select
    components: Sequence[Component]
    num_rows: Mapping[EntityName, int | None]  # of each entity type, None if it varies
    labels: Sequence[str]  # of the environment, empty if unknown
    prefix: str  # of the names of types
    is_team: bool  # agents are entities, which choose where the mapping names no actors


class ActionTranslator(ABC):
    """Translate an entity action to components of a Gymnasium action, and their masks back.

    Attributes:
        slots: the slot of each component.
        num_choices: the number of choices of each component.
        space: the space of the entity action.

    Raises:
        InvalidSpace: the action does not fit the environment.
    """

    space: ActionSpace

    def __init__(self, mapped: MappedAction) -> None:
        name, action, components, num_rows, *_ = mapped
        argument = f"FieldMap.actions[{name!r}]"

        # The types and numbers of the mapping.
        for field in ("actors", "actees"):
            wanted: EntityName | None = getattr(action, field, None)
            if wanted is not None and wanted not in num_rows:
                raise InvalidSpace(
                    f"{argument}.{field}: expected a type among {list(num_rows)}, got {wanted!r}"
                )
        self.num_choices = self._count_choices(argument, action, components)
        for field in ("first", "default"):
            value = getattr(action, field, 0)
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

        self.slots = [component.slot for component in components]
        self._starts = [component.start for component in components]
        self._values: Sequence[Any] | None = getattr(action, "values", None)
        self._default: int = action.default
        self._actors = join_path(mapped.prefix, action.actors or AGENT)

    @abstractmethod
    def _count_choices(self, argument: str, action: Any, components: Sequence[Component]) -> int:
        """Return the number of choices of each component."""

    @abstractmethod
    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return one mask for the masks of several agents, of which None allows nothing."""

    @abstractmethod
    def _mask_of(self, allowed: Flags | None) -> ActionMask:
        """Return the mask of the entity action; `allowed` is (actors, choices) bool."""

    @abstractmethod
    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        """Return (actors,), the choice of each actor."""

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None if nothing is allowed."""
        allowed = self._allowed(frame, masks)
        nobody = len(frame.rows[self._actors]) == 0
        if nobody or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return self._mask_of(allowed)

    def decode(self, action: Any, joined: JoinedFrames) -> list[dict[int, int]]:
        """Return the choices that an entity action sets, by component, for each agent."""
        decoded: list[dict[int, int]] = [{} for _ in joined.frames]
        places = joined.locate(self._actors, action.actors)
        for (i, row), choice in zip(places, self._choices(action, joined), strict=True):
            decoded[i][row] = choice
        return decoded

    def values(self, chosen: Mapping[int, int], masks: Masks | None) -> list[Any]:
        """Return the value of each component in the Gymnasium action.

        Args:
            chosen: choices by component. For the others it is the default, or the first choice
                that is allowed if the default is not.
            masks: of the components; without them the defaults need not be allowed.
        """
        values = []
        for i, start in enumerate(self._starts):
            choice = chosen.get(i)
            if choice is None:
                choice, mask = self._default, None if masks is None else masks[i]
                if mask is not None and not mask[choice] and mask.any():
                    choice = int(mask.argmax())
            values.append(start + choice if self._values is None else self._values[choice])
        return values

    def _allowed(self, frame: Frame, masks: Masks) -> Flags | None:
        """Return (actors, choices) bool, None if all is allowed."""
        numbers = frame.rows[self._actors].tolist()
        given = [masks[i] for i in numbers if i < len(masks)]
        if len(given) == len(numbers) == 1:
            return None if given[0] is None else given[0][None, :]
        if len(given) == len(numbers) and all(mask is None for mask in given):
            return None
        allowed = np.zeros((len(numbers), self.num_choices), dtype=np.bool_)
        # Nothing is allowed to rows without a component, which come last, as rows are in order.
        for i, mask in enumerate(given):
            allowed[i] = True if mask is None else mask
        return allowed


class ChoiceTranslator(ActionTranslator):
    """Translate a choice among labels, of entities or of the frame as a whole."""

    def __init__(self, mapped: MappedAction) -> None:
        super().__init__(mapped)
        labels = mapped.action.labels or mapped.labels
        if not mapped.action.labels and len(labels) != self.num_choices:
            labels = [str(self._starts[0] + i) for i in range(self.num_choices)]
        if len(labels) != self.num_choices:
            raise InvalidSpace(
                f"FieldMap.actions[{mapped.name!r}].labels: expected {self.num_choices} labels, "
                f"got {list(labels)}"
            )
        is_global = mapped.action.actors is None and not mapped.is_team
        cls = GlobalCategoricalActionSpace if is_global else CategoricalActionSpace
        self.space = cls(list(labels))

    def _count_choices(self, argument: str, action: Any, components: Sequence[Component]) -> int:
        counts = [component.num_choices for component in components]
        if action.values is not None:
            for component in components:
                _check_values(action.values, component, f"{argument}.values")
            counts = [len(action.values)]
        if not counts[0]:
            raise InvalidSpace(
                f"{argument}.values: expected what the choices stand for in {components[0].box}, "
                "got none; give a list of values, or wrap the environment so that its actions are "
                "discrete"
            )
        if action.actors is not None and len(set(counts)) > 1:
            raise InvalidSpace(
                f"{argument}: expected components with the same number of choices, got {counts}; "
                "use of and column"
            )
        return counts[0]

    def decode(self, action: Any, joined: JoinedFrames) -> list[dict[int, int]]:
        """Return the choices of all actors; a global one is that of the only component."""
        return [{0: action.index}] if self.space.is_global else super().decode(action, joined)

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return the masks of all agents, one below the other."""
        if all(mask is not None and mask.mask is None for mask in masks):
            return self._mask_of(None)
        sizes = joined.num_rows(self._actors)
        return self._mask_of(np.concatenate(_blocks(masks, sizes, [self.num_choices] * len(sizes))))

    def _mask_of(self, allowed: Flags | None) -> ActionMask:
        if self.space.is_global:
            return GlobalCategoricalActionMask(None if allowed is None else allowed[0])
        return CategoricalActionMask(actor_types=[self._actors], mask=allowed)

    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        indices: list[int] = action.indices.tolist()
        return indices


class SelectTranslator(ActionTranslator):
    """Translate the selection of an entity: a choice is the number of a row."""

    def __init__(self, mapped: MappedAction) -> None:
        super().__init__(mapped)
        self.space = SelectEntityActionSpace()
        self._actees = join_path(mapped.prefix, mapped.action.actees)
        self._first = mapped.action.first

    def _count_choices(self, argument: str, action: Any, components: Sequence[Component]) -> int:
        counts = {component.num_choices for component in components}
        if len(counts) != 1 or 0 in counts:
            raise InvalidSpace(
                f"{argument}: expected components with the same number of choices, got "
                f"{sorted(counts)}"
            )
        return counts.pop()

    def _allowed(self, frame: Frame, masks: Masks) -> Flags | None:
        """Return a column for each entity that may be selected."""
        numbers = self._first + frame.rows[self._actees]
        is_choice = numbers < self.num_choices
        allowed = super()._allowed(frame, masks)
        if allowed is not None:
            columns: Flags = allowed[:, np.minimum(numbers, self.num_choices - 1)] & is_choice
            return columns
        if len(numbers) > 0 and is_choice.all():
            return None
        return np.tile(is_choice, (len(frame.rows[self._actors]), 1))

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return a block diagonal mask: agents select among what they see themselves."""
        num_actors, num_actees = map(joined.num_rows, (self._actors, self._actees))
        allowed = np.zeros((sum(num_actors), sum(num_actees)), dtype=np.bool_)
        row = column = 0
        for block in _blocks(masks, num_actors, num_actees):
            n, k = block.shape
            allowed[row : row + n, column : column + k] = block
            row, column = row + n, column + k
        return self._mask_of(allowed)

    def _mask_of(self, allowed: Flags | None) -> ActionMask:
        types = {"actor_types": [self._actors], "actee_types": [self._actees]}
        return SelectEntityActionMask(**types, mask=allowed)

    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        return [self._first + row for _, row in joined.locate(self._actees, action.actees)]


def _blocks(
    masks: Sequence[Any], num_rows: Sequence[int], num_columns: Sequence[int]
) -> list[Flags]:
    """Return the masks of agents as (rows, columns) bool each; None allows nothing."""
    return [
        np.full((n, k), mask is not None)
        if mask is None or mask.mask is None
        else np.reshape(mask.mask, (n, k))
        for mask, n, k in zip(masks, num_rows, num_columns, strict=True)
    ]


def _check_values(values: Sequence[Any], component: Component, argument: str) -> None:
    """Raise if values are not those of a `Box`.

    Raises:
        InvalidSpace: the component has choices of its own, or a value is not in its space.
    """
    if component.box is None:
        raise InvalidSpace(
            f"{argument}: expected them for a Box alone, got {component.num_choices} choices at "
            f"{component.path!r}; leave it out"
        )
    for value in values:
        try:
            fits = component.box.contains(_to_box(component.box, value))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise InvalidSpace(f"{argument}: expected values in {component.box}, got {value!r}")
