"""What a user says about a world: which field holds entities of which type, who takes which action.

A path leads to a field by keys and positions joined by dots, such as "units.0"; "" is the whole
observation or action. The nodes and edges of a graph are its fields "nodes" and "edges".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionName, EntityName

AGENT: EntityName = "agent"
"""The type of who acts: the members of a team, or the one who selects in a world without actors."""

ACTION_MASK = "action_mask"
"""Where worlds say what is allowed."""


@dataclass(frozen=True)
class Rows:
    """A field whose rows are entities of one type.

    A field that is not a table is one row, or as many rows as `columns` cut it into.

    Attributes:
        path: where the field is.
        columns: the names of all numbers of a row, in the world's order.
        features: the columns to keep, in this order; without it all but `presence`.
        presence: the column, by name or number, that is 0 in rows that stand for nothing. A
            column with the name "presence" is one without being named here.
        absent: a row that equals this stands for nothing.
        span: the part [start, end) of a flat field, or of the rows of a table.
    """

    path: str = ""
    columns: Sequence[str] | None = None
    features: Sequence[str] | None = None
    presence: str | int | None = None
    absent: Sequence[float] | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Globals:
    """A field whose numbers belong to no entity.

    Attributes:
        path: where the field is.
        columns: the names of all its numbers, in the world's order.
        features: the columns to keep, in this order; without it all.
        span: the part [start, end) of a flat field.
    """

    path: str = ""
    columns: Sequence[str] | None = None
    features: Sequence[str] | None = None
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Choice:
    """A part of the action that is one of several choices.

    Attributes:
        path: where it is in the action.
        actors: the type whose entities choose: number `column` of each `of` consecutive components
            belongs to the row of the same number, whether or not the rows before it stand for
            anything. Without it the frame as a whole chooses.
        labels: the names of the choices; without it those that the world ships, or numbers.
        values: what the choices stand for in the world's action, for a part that is a `Box`.
        mask: where in the observation, or else in the info, it says what is allowed.
        default: what the world gets for rows that stand for nothing, as a position in `labels`.
        column: which of the components of a row this is.
        of: how many components a row has.
    """

    path: str = ""
    actors: EntityName | None = None
    labels: Sequence[str] | None = None
    values: Sequence[Any] | None = None
    mask: str | None = None
    default: int = 0
    column: int = 0
    of: int = 1


@dataclass(frozen=True)
class Select:
    """A part of the action that is the number of a row: an entity is selected.

    Attributes:
        path: where it is in the action.
        actees: the type whose entities are selected.
        actors: the type whose entities select, as in `Choice`. Without it one who acts, of the type
            "agent" without features, is added to the world.
        first: the number that means the first row.
        mask: where in the observation, or else in the info, it says what is allowed.
        default: the number that the world gets where nobody or nothing can be selected.
        column: which of the components of a row this is.
        of: how many components a row has.
    """

    path: str
    actees: EntityName
    actors: EntityName | None = None
    first: int = 0
    mask: str | None = None
    default: int = 0
    column: int = 0
    of: int = 1


@dataclass(frozen=True)
class FieldMap:
    """What the fields of a world mean. Fields that nothing here names are inferred.

    Attributes:
        entities: the fields of each entity type.
        global_features: the fields that belong to no entity.
        actions: what each action does.
        ignore: paths of the fields of the observation to leave out.
        action_mask: where in the observation, or else in the info, it says what is allowed, for
            all of the action at once; None for nowhere. Where "action_mask" is missing everything
            is allowed; another path must be there.
        metrics: paths of numbers in the info to log.
    """

    entities: Mapping[EntityName, Rows | Sequence[Rows]] = field(default_factory=dict)
    global_features: Sequence[Globals] = ()
    actions: Mapping[ActionName, Choice | Select] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    action_mask: str | None = ACTION_MASK
    metrics: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("ignore", "metrics"):
            if isinstance(getattr(self, name), str):
                raise InvalidSpace(
                    f"FieldMap.{name}: expected a list of paths, got {getattr(self, name)!r}"
                )
        _refuse_others("entities", self.entities, Rows, [*self.rows().values()])
        _refuse_others("global_features", self.global_features, Globals, [self.global_features])
        _refuse_others("actions", self.actions, Choice | Select, [[*self.actions.values()]])

    def rows(self) -> dict[EntityName, list[Rows]]:
        """The fields of each entity type, as lists."""
        return {
            name: [rows] if isinstance(rows, Rows) else list(rows)
            for name, rows in self.entities.items()
        }

    def paths(self) -> set[str]:
        """The paths of the observation that are spoken for."""
        mapped = [rows.path for several in self.rows().values() for rows in several]
        mapped += [part.path for part in self.global_features]
        masks = [action.mask for action in self.actions.values() if action.mask is not None]
        masks += [] if self.action_mask is None else [self.action_mask]
        return {*mapped, *masks, *self.ignore}


def _refuse_others(name: str, given: Any, kind: Any, several: Sequence[Any]) -> None:
    """Raise unless what a `FieldMap` lists under a name is of this kind."""
    if not all(isinstance(ones, Sequence) for ones in several) or not all(
        isinstance(one, kind) for ones in several for one in ones
    ):
        wanted = getattr(kind, "__name__", "Choice or Select")
        raise InvalidSpace(f"FieldMap.{name}: expected {wanted} for each, got {given!r}")


def column_index(names: Sequence[str], wanted: Sequence[str], what: str) -> list[int]:
    """The positions of the wanted names.

    Raises:
        InvalidSpace: one of them is not among `names`.
    """
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InvalidSpace(f"{what}: expected columns among {list(names)}, got {missing}")
    return [list(names).index(name) for name in wanted]
