"""Translators between entity actions and components of Gymnasium actions, one class per kind."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from entity_env.actions import (
    ActionMask,
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    SelectEntityActionMask,
)
from entity_env.adapters.action_components import Component, to_box
from entity_env.adapters.gymnasium_spaces import Flags, join_path
from entity_env.adapters.mapping import AGENT
from entity_env.adapters.observation_reader import Frame, Indices
from entity_env.errors import InvalidSpace
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


class JoinedFrames:
    """Frames of one or several agents, whose entities are joined in one observation.

    Args:
        frames: of each agent.
        agents: the ids of the entities that stand for the agents themselves.
        agent_type: their type.
    """

    def __init__(
        self, frames: Sequence[Frame], agents: Sequence[EntityID], agent_type: EntityName
    ) -> None:
        self.frames = frames
        self._agents = agents
        self._agent_type = agent_type

    def num_rows(self, name: EntityName) -> list[int]:
        """Return the number of entities of a type in each frame."""
        if name == self._agent_type:
            return [1] * len(self.frames)
        return [len(frame.features[name]) for frame in self.frames]

    def locator(self, name: EntityName) -> Callable[[Any], tuple[int, int]]:
        """Return a function from the id of an entity of a type to its frame and its row there."""
        if name == self._agent_type:
            return lambda agent: (self._agents.index(agent), 0)
        places = [(i, row) for i, n in enumerate(self.num_rows(name)) for row in range(n)]
        return lambda entity: places[entity[1]]


class MappedAction(NamedTuple):
    """An action of a mapping, and what its translator needs to know of the environment."""

    name: ActionName
    action: Any  # Choice or Select
    components: Sequence[Component]
    num_rows: Mapping[EntityName, int | None]  # of each entity type, None if it varies
    labels: Sequence[str]  # of the environment, empty if unknown
    prefix: str  # of the names of types


class ActionTranslator(ABC):
    """Translate an entity action to components of a Gymnasium action, and their masks back.

    Args:
        mapped: the action.

    Attributes:
        slots: the slot of each component.
        num_choices: the number of choices of each component.
        space: the space of the entity action.
        adds_agent: frames need an entity that stands for the agent.
        team: the translator of the same action if the members of a team take it.

    Raises:
        InvalidSpace: the action does not fit the environment.
    """

    space: ActionSpace
    adds_agent = False

    def __init__(self, mapped: MappedAction) -> None:
        name, action, components, num_rows, _, prefix = mapped
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
        self.team: ActionTranslator = self
        self._is_agent = action.actors is None
        self._actors = join_path(prefix, action.actors or AGENT)
        self._starts = [component.start for component in components]
        self._default: int = action.default

    @abstractmethod
    def _count_choices(self, argument: str, action: Any, components: Sequence[Component]) -> int:
        """Return the number of choices of each component."""

    @abstractmethod
    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None if nothing is allowed.

        Args:
            frame: the entities.
            masks: of the components.
        """

    @abstractmethod
    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return one mask for the masks of several agents, of which None allows nothing."""

    @abstractmethod
    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        """Return (actors,), the choice of each actor."""

    def decode(self, action: Any, joined: JoinedFrames) -> list[dict[int, int]]:
        """Return the choices that an entity action sets, by component, for each agent."""
        decoded: list[dict[int, int]] = [{} for _ in joined.frames]
        rows = [self._actor_rows(frame).tolist() for frame in joined.frames]
        places = map(joined.locator(self._actors), action.actors)
        for (i, row), choice in zip(places, self._choices(action, joined), strict=True):
            decoded[i][rows[i][row]] = choice
        return decoded

    def value(self, choice: int, component: int) -> Any:
        """Return the value of a choice in the Gymnasium action."""
        return self._starts[component] + choice

    def default_choice(self, mask: Flags | None = None) -> int:
        """Return the choice where nobody acts: the first allowed one if the default is not."""
        if mask is None or mask[self._default] or not mask.any():
            return self._default
        return int(mask.argmax())

    def _actor_rows(self, frame: Frame) -> Indices:
        return np.zeros(1, dtype=np.int64) if self._is_agent else frame.rows[self._actors]

    def _allowed(self, rows: Indices, masks: Masks) -> Flags | None:
        """Return (rows, choices) bool, None if all is allowed. Rows without a component have none.

        Args:
            rows: the rows of the actors in the field of the environment.
            masks: of the components.
        """
        numbers = rows.tolist()
        given = [masks[i] for i in numbers if i < len(masks)]
        if len(given) == len(numbers) and all(mask is None for mask in given):
            return None
        if len(numbers) == len(given) == 1 and given[0] is not None:
            allowed: Flags = given[0][None]
            return allowed
        allowed = np.zeros((len(numbers), self.num_choices), dtype=np.bool_)
        for i, mask in enumerate(given):  # rows are in order: those without a component come last
            allowed[i] = True if mask is None else mask
        return allowed


class CategoricalTranslator(ActionTranslator):
    """Translate a choice among labels of each entity of a type, or of each member of a team."""

    def __init__(self, mapped: MappedAction) -> None:
        super().__init__(mapped)
        action, labels = mapped.action, mapped.labels
        if action.labels:
            labels = action.labels
        elif len(labels) != self.num_choices:
            labels = [str(self._starts[0] + i) for i in range(self.num_choices)]
        if len(labels) != self.num_choices:
            raise InvalidSpace(
                f"FieldMap.actions[{mapped.name!r}].labels: expected {self.num_choices} labels, "
                f"got {list(labels)}"
            )
        self.labels = list(labels)
        self.space = CategoricalActionSpace(self.labels)
        self._values = action.values

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

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return a row for each actor; nothing is allowed to those without a component."""
        rows = self._actor_rows(frame)
        allowed = self._allowed(rows, masks)
        if len(rows) == 0 or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return CategoricalActionMask(actor_types=[self._actors], mask=allowed)

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return the masks of all agents, one below the other."""
        if all(mask is not None and mask.mask is None for mask in masks):
            return CategoricalActionMask(actor_types=[self._actors])
        blocks = [
            np.full((n, self.num_choices), mask is not None)
            if mask is None or mask.mask is None
            else np.reshape(mask.mask, (n, self.num_choices))
            for mask, n in zip(masks, joined.num_rows(self._actors), strict=True)
        ]
        return CategoricalActionMask(actor_types=[self._actors], mask=np.concatenate(blocks))

    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        choices: list[int] = action.indices.tolist()
        return choices

    def value(self, choice: int, component: int) -> Any:
        """Return the value of a choice in the Gymnasium action."""
        return super().value(choice, component) if self._values is None else self._values[choice]


class GlobalTranslator(CategoricalTranslator):
    """Translate a choice among labels of the frame as a whole."""

    def __init__(self, mapped: MappedAction) -> None:
        super().__init__(mapped)
        self.team = CategoricalTranslator(mapped)
        self.space = GlobalCategoricalActionSpace(self.labels)

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the only component."""
        mask = masks[0]
        nothing = mask is not None and not np.count_nonzero(mask)
        return None if nothing else GlobalCategoricalActionMask(mask)

    def decode(self, action: Any, joined: JoinedFrames) -> list[dict[int, int]]:
        """Return the choice of the only component."""
        return [{0: action.index}]


class SelectEntityTranslator(ActionTranslator):
    """Translate the selection of an entity: a choice is the number of a row."""

    def __init__(self, mapped: MappedAction) -> None:
        super().__init__(mapped)
        self.space = SelectEntityActionSpace()
        self.adds_agent = self._is_agent
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

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return a row for each actor and a column for each entity that may be selected."""
        actors = self._actor_rows(frame)
        numbers = self._first + frame.rows[self._actees]
        is_choice = numbers < self.num_choices
        allowed = self._allowed(actors, masks)
        if allowed is not None:
            allowed = allowed[:, np.minimum(numbers, self.num_choices - 1)] & is_choice
        elif not is_choice.all():
            allowed = np.tile(is_choice, (len(actors), 1))
        nobody = len(actors) == 0 or len(numbers) == 0
        if nobody or (allowed is not None and not np.count_nonzero(allowed)):
            return None
        return self._mask_of(allowed)

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return a block diagonal mask: agents select among what they see themselves."""
        num_actors, num_actees = map(joined.num_rows, (self._actors, self._actees))
        allowed = np.zeros((sum(num_actors), sum(num_actees)), dtype=np.bool_)
        row = column = 0
        for mask, n, k in zip(masks, num_actors, num_actees, strict=True):
            if mask is not None:
                block = True if mask.mask is None else np.reshape(mask.mask, (n, k))
                allowed[row : row + n, column : column + k] = block
            row, column = row + n, column + k
        return self._mask_of(allowed)

    def _mask_of(self, allowed: Flags | None) -> ActionMask:
        types = {"actor_types": [self._actors], "actee_types": [self._actees]}
        return SelectEntityActionMask(**types, mask=allowed)

    def _choices(self, action: Any, joined: JoinedFrames) -> Sequence[int]:
        rows = [frame.rows[self._actees].tolist() for frame in joined.frames]
        places = map(joined.locator(self._actees), action.actees)
        return [self._first + rows[i][row] for i, row in places]


TRANSLATORS: Mapping[str, type[ActionTranslator]] = {
    "global": GlobalTranslator,
    "categorical": CategoricalTranslator,
    "select": SelectEntityTranslator,
}
"""The translator of each kind of action of a mapping."""


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
            fits = component.box.contains(to_box(component.box, value))
        except (TypeError, ValueError):
            fits = False
        if not fits:
            raise InvalidSpace(f"{argument}: expected values in {component.box}, got {value!r}")
