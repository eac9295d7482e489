"""From what the policy may and does choose to the actions of a world, and its masks."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import (
    Action,
    ActionMask,
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.adapters.action_parts import Flags, Part, in_box
from entity_env.adapters.mapping import AGENT, Choice, Select
from entity_env.adapters.observe import Frame, Indices
from entity_env.errors import InvalidSpace
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    EntityName,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)

Masks: TypeAlias = Sequence[Flags | None]
"""For each part of an action (choices,) bool, None where everything is allowed."""


class Chooser(ABC):
    """One of our actions: which parts of the world's action it sets.

    Args:
        found: the parts, with their positions within the world's action.
        num_choices: how many choices each part has.
        default: what the world gets where nobody can choose.
    """

    space: ActionSpace

    def __init__(self, found: list[tuple[int, Part]], num_choices: int, default: int) -> None:
        self.slots = [slot for slot, _ in found]
        self.starts = [part.start for _, part in found]
        self.num_choices = num_choices
        self.default = default

    @abstractmethod
    def offer(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Who may choose what now; None if nobody may anything.

        Args:
            frame: the entities.
            masks: of the parts of this action.
        """

    @abstractmethod
    def chosen(self, action: Action, frame: Frame) -> Mapping[int, int]:
        """What was chosen for the parts, by their numbers within this action."""

    def value(self, choice: int, part: int) -> Any:
        """What a choice is in the world's action."""
        return self.starts[part] + choice

    def default_choice(self, mask: Flags | None) -> int:
        """What is chosen where nobody can: the default, unless only other choices are allowed."""
        if mask is None or mask[self.default] or not mask.any():
            return self.default
        return int(mask.argmax())


class _Labelled(Chooser):
    """One of several labelled choices."""

    def __init__(
        self,
        name: ActionName,
        choice: Choice,
        found: list[tuple[int, Part]],
        shipped: Sequence[str],
    ) -> None:
        what = f"FieldMap.actions[{name!r}]"
        if choice.values is not None:
            _refuse_other_values(choice.values, [part for _, part in found], f"{what}.values")
        n = found[0][1].num_choices if choice.values is None else len(choice.values)
        if not n:
            raise InvalidSpace(
                f"{what}.values: expected what the choices stand for in {found[0][1].space}, got "
                "none; give a list of values, or wrap the world so that its actions are discrete"
            )
        if any(choice.values is None and part.num_choices != n for _, part in found):
            counts = [part.num_choices for _, part in found]
            raise InvalidSpace(
                f"{what}: expected parts with the same number of choices, got {counts}; "
                "use of and column"
            )
        numbers = [str(found[0][1].start + i) for i in range(n)]
        labels = list(choice.labels or (shipped if len(shipped) == n else numbers))
        if len(labels) != n:
            raise InvalidSpace(f"{what}.labels: expected {n} labels, got {labels}")
        if not 0 <= choice.default < n:
            raise InvalidSpace(f"{what}.default: expected 0 to {n - 1}, got {choice.default}")
        super().__init__(found, n, choice.default)
        self.labels = labels
        self._values = choice.values

    def value(self, choice: int, part: int) -> Any:
        return super().value(choice, part) if self._values is None else self._values[choice]


def _refuse_other_values(values: Sequence[Any], found: Sequence[Part], what: str) -> None:
    for part in found:
        if part.space is None:
            raise InvalidSpace(
                f"{what}: expected them for a Box alone, got {part.num_choices} choices at "
                f"{part.path!r}; leave it out"
            )
        for value in values:
            try:
                fits = part.space.contains(in_box(part.space, value))
            except (TypeError, ValueError):
                fits = False
            if not fits:
                raise InvalidSpace(f"{what}: expected values in {part.space}, got {value!r}")


class GlobalChooser(_Labelled):
    """The frame as a whole chooses."""

    def __init__(
        self,
        name: ActionName,
        choice: Choice,
        found: list[tuple[int, Part]],
        shipped: Sequence[str],
    ) -> None:
        if len(found) != 1:
            raise InvalidSpace(
                f"FieldMap.actions[{name!r}]: expected one choice, got {len(found)} at "
                f"{[part.path for _, part in found]}; name the type whose entities choose in "
                "actors, or one of these paths"
            )
        super().__init__(name, choice, found, shipped)
        self.space = GlobalCategoricalActionSpace(self.labels)

    def offer(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Everything, or what the mask allows."""
        mask = masks[0]
        return (
            None
            if mask is not None and not np.count_nonzero(mask)
            else GlobalCategoricalActionMask(mask)
        )

    def chosen(self, action: Action, frame: Frame) -> Mapping[int, int]:
        """What the frame chose."""
        assert isinstance(action, GlobalCategoricalAction)
        return {0: action.index}


class EntityChooser(_Labelled):
    """The entities of a type choose."""

    def __init__(
        self,
        name: ActionName,
        choice: Choice,
        found: list[tuple[int, Part]],
        shipped: Sequence[str],
    ) -> None:
        assert choice.actors is not None
        super().__init__(name, choice, found, shipped)
        self.actors = choice.actors
        self.space = CategoricalActionSpace(self.labels)

    def offer(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """A row for each entity; nothing is allowed to those without a part of the action."""
        rows = frame.rows[self.actors]
        allowed = _allowed(rows, masks, self.num_choices)
        if len(rows) == 0 or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return CategoricalActionMask(actor_types=[self.actors], mask=allowed)

    def chosen(self, action: Action, frame: Frame) -> Mapping[int, int]:
        """What each entity chose, by the number of its row."""
        assert isinstance(action, CategoricalAction)
        parts = raw_rows(action.actors, frame.rows[self.actors])
        return dict(zip(parts, action.indices.tolist(), strict=True))


class Selector(Chooser):
    """Entities of a type, or the one who acts, select entities of another type."""

    def __init__(self, name: ActionName, select: Select, found: list[tuple[int, Part]]) -> None:
        what = f"FieldMap.actions[{name!r}]"
        counts = {part.num_choices for _, part in found}
        if len(counts) != 1 or 0 in counts:
            raise InvalidSpace(
                f"{what}: expected parts with the same number of choices, got {sorted(counts)}"
            )
        num_choices = counts.pop()
        if select.actors is None and len(found) != 1:
            raise InvalidSpace(
                f"{what}: expected one choice, got {len(found)}; name the type whose entities "
                "select in actors"
            )
        for field in ("first", "default"):
            if not 0 <= getattr(select, field) < num_choices:
                raise InvalidSpace(
                    f"{what}.{field}: expected 0 to {num_choices - 1}, got {getattr(select, field)}"
                )
        super().__init__(found, num_choices, select.default)
        self.actors = select.actors or AGENT
        self.actees = select.actees
        self._is_one = select.actors is None
        self._first = select.first
        self.space = SelectEntityActionSpace()

    def offer(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """A row for each actor and a column for each entity that may be selected."""
        actors = self._actor_rows(frame)
        numbers = self._first + frame.rows[self.actees]
        reachable = numbers < self.num_choices
        allowed = _allowed(actors, masks, self.num_choices)
        if allowed is not None:
            allowed = allowed[:, np.minimum(numbers, self.num_choices - 1)] & reachable
        elif not reachable.all():
            allowed = np.tile(reachable, (len(actors), 1))
        nobody = len(actors) == 0 or len(numbers) == 0
        if nobody or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return SelectEntityActionMask(
            actor_types=[self.actors], actee_types=[self.actees], mask=allowed
        )

    def chosen(self, action: Action, frame: Frame) -> Mapping[int, int]:
        """The number that means the selected row, by the number of the actor's row."""
        assert isinstance(action, SelectEntityAction)
        parts = raw_rows(action.actors, self._actor_rows(frame))
        selected = raw_rows(action.actees, frame.rows[self.actees])
        return {part: self._first + row for part, row in zip(parts, selected, strict=True)}

    def _actor_rows(self, frame: Frame) -> Indices:
        return np.zeros(1, dtype=np.int64) if self._is_one else frame.rows[self.actors]


def chooser(
    name: ActionName,
    action: Choice | Select,
    found: list[tuple[int, Part]],
    obs_space: ObsSpace,
    shipped: Sequence[str],
    num_rows: Callable[[EntityName], int | None],
) -> Chooser:
    """What plays the part of an action of the mapping.

    Args:
        name: of the action.
        action: what the mapping says.
        found: the parts of the world's action that it means, with their positions in it.
        obs_space: what can be observed.
        shipped: labels that the world ships.
        num_rows: returns how many rows a type always has, None if that varies.

    Raises:
        InvalidSpace: the action does not fit the world.
    """
    what = f"FieldMap.actions[{name!r}]"
    if not 0 <= action.column < action.of or len(found) % action.of:
        raise InvalidSpace(
            f"{what}: expected column below of, and of to divide {len(found)} parts, got "
            f"column={action.column}, of={action.of}"
        )
    found = found[action.column :: action.of]
    for field in ("actors", "actees"):
        wanted: EntityName | None = getattr(action, field, None)
        if wanted is not None and wanted not in obs_space.entities:
            raise InvalidSpace(
                f"{what}.{field}: expected a type among {list(obs_space.entities)}, got {wanted!r}"
            )
    made: Chooser
    if isinstance(action, Select):
        made = Selector(name, action, found)
    else:
        kind = GlobalChooser if action.actors is None else EntityChooser
        made = kind(name, action, found, shipped)
    rows = None if action.actors is None else num_rows(action.actors)
    if rows is not None and rows != len(found):
        raise InvalidSpace(
            f"{what}.actors: expected a component for each of the {rows} rows of "
            f"{action.actors!r}, got {len(found)}; name with span the rows that act, or leave "
            "actors out where the frame as a whole chooses"
        )
    return made


def raw_rows(ids: Sequence[Any], rows: Indices) -> list[int]:
    """The numbers in the world's field of entities that are referred to by `(type, row)`."""
    kept: list[int] = rows.tolist()
    return [kept[row] for _, row in ids]


def _allowed(rows: Indices, masks: Masks, num_choices: int) -> Flags | None:
    """(rows, choices) bool, False for rows without a part; None if everything is allowed."""
    numbers = rows.tolist()
    given = [masks[i] for i in numbers if i < len(masks)]
    if len(given) == len(numbers) and all(mask is None for mask in given):
        return None
    allowed: Flags
    if len(numbers) == len(given) == 1 and given[0] is not None:
        allowed = given[0][None]
        return allowed
    allowed = np.zeros((len(numbers), num_choices), dtype=np.bool_)
    for i, mask in enumerate(given):  # rows are in order, so those without a part come last
        allowed[i] = True if mask is None else mask
    return allowed
