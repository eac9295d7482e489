"""The mapping of a world's fields to entity types, global features and actions.

A path leads to a field by keys and positions joined by dots, such as "units.0"; "" is the whole
observation or action. The nodes and edges of a graph are its fields "nodes" and "edges".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionName, EntityName

AGENT: EntityName = "agent"
"""The type of agents that are entities: members of a team, or one who selects without actors."""

ACTION_MASK = "action_mask"
"""The usual key of the mask of an action."""

Labels: TypeAlias = Sequence[str] | Mapping[str, int]
"""The labels of a column: the names of 0, 1 and so on, or the number of each name."""


def _check_types(mapping: object, **expected: tuple[type, str]) -> None:
    """Raise if an attribute of a mapping is not of its class, which a text describes."""
    for name, (kind, described) in expected.items():
        value = getattr(mapping, name)
        if not isinstance(value, kind):
            owner = type(mapping).__name__
            raise InvalidSpace(f"{owner}.{name}: expected {described}, got {value!r}")


_BY_COLUMN = Mapping, "a dictionary by column"


@dataclass(frozen=True)
class Rows:
    """A field whose rows are entities of one type.

    A field that is not a table is one row, or as many rows as `columns` cut it into. The cells of
    an image are its rows, whose columns are "row" and "column" before the channels.

    With `one_hot`, `kinds`, `only` or `leave_out`, a `Discrete` number of the field is one column,
    as it is in a `Box`, and one-hot encoded unless it is named in `kinds`.

    Attributes:
        path: the path of the field.
        columns: the names of all numbers of a row, in the order of the field.
        features: the columns to keep, in this order; by default all but `presence`.
        presence: the column, by name or number, that is 0 in rows that stand for no entity. A
            column named "presence" is one by default.
        absent: a row with these numbers stands for no entity.
        span: the part [start, end) of a flat field, or of the rows of a table.
        one_hot: the labels of columns of whole numbers that stand for labels. Such a column becomes
            a column "COLUMN=LABEL" for each label, of which one is 1; a number without a label is
            an error.
        kinds: the labels of columns likewise; such a column, which may be one of `constants`,
            becomes a `Kind` with these labels, behind the numbers.
        only: for columns, their labels or numbers in the rows that are entities; all others stand
            for none.
        leave_out: for columns, their labels or numbers in rows that stand for no entity.
        numbered: whether to add a column "number": that of the row, from 0 in this part of the
            field, also counting rows that stand for no entity.
        constants: columns to add at the end, with the number or label that they have in all rows.
        identity: the id of an entity, by which it is known in later frames: "row" is the number of
            its row, as in tables with fixed places; else a column that tells entities of a frame
            apart. None for no ids.
    """

    path: str = ""
    columns: Sequence[str] | None = None
    features: Sequence[str] | None = None
    presence: str | int | None = None
    absent: Sequence[float] | None = None
    span: tuple[int, int] | None = None
    one_hot: Mapping[str, Labels] = field(default_factory=dict)
    numbered: bool = False
    constants: Mapping[str, float | str] = field(default_factory=dict)
    kinds: Mapping[str, Labels] = field(default_factory=dict)
    only: Mapping[str, Sequence[str | int]] = field(default_factory=dict)
    leave_out: Mapping[str, Sequence[str | int]] = field(default_factory=dict)
    identity: str | None = None

    @property
    def names_choices(self) -> bool:
        """True if numbers of the field are named as labels or select its rows."""
        return bool(self.one_hot or self.kinds or self.only or self.leave_out)

    def __post_init__(self) -> None:
        columns = dict.fromkeys(("one_hot", "kinds", "only", "leave_out", "constants"), _BY_COLUMN)
        _check_types(self, numbered=(bool, "True or False"), **columns)


@dataclass(frozen=True, init=False, repr=False)
class Place:
    """An entity with constant features that is in every frame, such as `Place(row=3, column=6)`.

    It stands for the one whose view the observation is and who is not in it: with the columns of
    the rows for its position, relative positions are seen from it, and it can be the actor.

    Args:
        features: its features, by name; a label for a kind of the rows of its type.
    """

    features: Mapping[str, float | str]

    def __init__(self, **features: float | str) -> None:
        object.__setattr__(self, "features", features)

    def __repr__(self) -> str:
        return f"Place({', '.join(f'{name}={value!r}' for name, value in self.features.items())})"


@dataclass(frozen=True)
class Globals:
    """A field whose numbers belong to no entity.

    Attributes:
        path: the path of the field.
        columns: the names of all its numbers, in the order of the field.
        features: the columns to keep, in this order; by default all.
        span: the part [start, end) of a flat field.
        one_hot: the labels of columns, as in `Rows`.
        kinds: the labels of columns, as in `Rows`.
    """

    path: str = ""
    columns: Sequence[str] | None = None
    features: Sequence[str] | None = None
    span: tuple[int, int] | None = None
    one_hot: Mapping[str, Labels] = field(default_factory=dict)
    kinds: Mapping[str, Labels] = field(default_factory=dict)

    @property
    def names_choices(self) -> bool:
        """True if numbers of the field are named as labels."""
        return bool(self.one_hot or self.kinds)

    def __post_init__(self) -> None:
        _check_types(self, one_hot=_BY_COLUMN, kinds=_BY_COLUMN)


@dataclass(frozen=True)
class Choice:
    """A part of the action that is one of several choices.

    Attributes:
        path: its path in the action.
        actors: the type whose entities choose: number `column` of each `of` consecutive components
            belongs to the row of the same number, whether or not the rows before it stand for
            entities. By default the frame as a whole chooses.
        labels: the names of the choices; by default those of the environment, or numbers.
        values: the values of the choices in the action, for a part that is a `Box`.
        mask: the path of its mask in the observation, or else in the info.
        default: the choice for rows that stand for no entity, and where a mask allows nothing, as
            a position in `labels`. By default the first for such rows; a mask that allows nothing
            is an error.
        column: the number of this component among those of a row.
        of: the number of components of a row.
    """

    path: str = ""
    actors: EntityName | None = None
    labels: Sequence[str] | None = None
    values: Sequence[Any] | None = None
    mask: str | None = None
    default: int | None = None
    column: int = 0
    of: int = 1


@dataclass(frozen=True)
class Select:
    """A part of the action that is the number of a row: an entity is selected.

    Attributes:
        path: its path in the action.
        actees: the type whose entities are selected.
        actors: the type whose entities select, as in `Choice`. By default an entity of the type
            "agent", without features, is added to the world.
        first: the number that means the first row.
        mask: the path of its mask in the observation, or else in the info.
        default: the number in the action where nobody selects or nothing can be selected. By
            default 0; a mask that allows nothing is an error.
        column: the number of this component among those of a row.
        of: the number of components of a row.
    """

    path: str
    actees: EntityName
    actors: EntityName | None = None
    first: int = 0
    mask: str | None = None
    default: int | None = None
    column: int = 0
    of: int = 1


@dataclass(frozen=True)
class Number:
    """A part of the action that consists of numbers: a `Box` of floats.

    Attributes:
        path: its path in the action.
        actors: the type whose entities choose them: row i of a `Box` (n, D) or (n * D,) belongs to
            the row of the same number, whether or not the rows before it stand for entities. Rows
            that stand for none get 0, or the bound that is nearest to it. By default the frame as a
            whole chooses all of them.
        names: the names of the D numbers; by default their positions.
    """

    path: str = ""
    actors: EntityName | None = None
    names: Sequence[str] | None = None

    # A Box has no mask and is one component.
    mask = None
    column = 0
    of = 1


AnyAction: TypeAlias = Choice | Select | Number


@dataclass(frozen=True)
class FieldMap:
    """The meaning of the fields of a world. Fields that are not named here are inferred.

    Attributes:
        entities: the fields of each entity type, or its place.
        global_features: the fields that belong to no entity.
        actions: the parts of the action, by the names of our actions.
        ignore: paths of the fields of the observation to leave out. Of a flat field that is also
            mapped, the numbers that no span covers are left out, which is logged otherwise.
        action_mask: the path of the mask of the whole action, in the observation or else in the
            info; None for no mask. A step without "action_mask" allows everything, but another
            path is required to be there.
        metrics: paths of numbers in the info to log. A path that no info of a whole episode has is
            an error.
    """

    entities: Mapping[EntityName, Rows | Place | Sequence[Rows | Place]] = field(
        default_factory=dict
    )
    global_features: Sequence[Globals] = ()
    actions: Mapping[ActionName, AnyAction] = field(default_factory=dict)
    ignore: Sequence[str] = ()
    action_mask: str | None = ACTION_MASK
    metrics: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, paths in (("ignore", self.ignore), ("metrics", self.metrics)):
            if isinstance(paths, str):
                raise InvalidSpace(f"FieldMap.{name}: expected a list of paths, got {paths!r}")
        rows = [one for several in self.rows().values() for one in several]
        is_list = isinstance(self.global_features, Sequence)
        for name, parts, kinds in (
            ("entities", rows, (Rows, Place)),
            ("global_features", self.global_features if is_list else [None], (Globals,)),
            ("actions", self.actions.values(), (Choice, Select, Number)),
        ):
            if not all(isinstance(part, kinds) for part in parts):
                expected = " or ".join(kind.__name__ for kind in kinds)
                raise InvalidSpace(
                    f"FieldMap.{name}: expected {expected} for each, got {getattr(self, name)!r}"
                )

    def rows(self) -> dict[EntityName, list[Rows | Place]]:
        """Return the fields and places of each entity type, as lists."""
        return {
            name: [rows] if isinstance(rows, Rows | Place) else list(rows)
            for name, rows in self.entities.items()
        }

    def paths(self) -> set[str]:
        """Return the paths of the observation that need no inference."""
        several = [rows for rows_of_type in self.rows().values() for rows in rows_of_type]
        mapped = [rows.path for rows in several if isinstance(rows, Rows)]
        mapped += [part.path for part in self.global_features]
        masks = [self.action_mask, *(action.mask for action in self.actions.values())]
        return {*mapped, *(mask for mask in masks if mask is not None), *self.ignore}
