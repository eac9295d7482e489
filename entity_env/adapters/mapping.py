"""Mapping of an environment's fields to entity types, global features and actions.

A path consists of keys and indices joined by dots, such as "units.0"; "" is the whole observation
or action. The nodes and edges of a graph are its fields "nodes" and "edges".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionName, EntityName

AGENT: EntityName = "agent"
"""Entity type of agents: members of a team, or the default actor of `Select`."""

ACTION_MASK = "action_mask"
"""Default key of action masks."""

Labels: TypeAlias = Sequence[str] | Mapping[str, int]
"""Labels of a column: the names of 0, 1 and so on, or the number of each name."""


def _check_types(mapping: object, **expected: tuple[type, str]) -> None:
    """Raise if an attribute of a mapping is not of the expected class, named in words."""
    for name, (cls, expected_text) in expected.items():
        value = getattr(mapping, name)
        if not isinstance(value, cls):
            owner = type(mapping).__name__
            raise InvalidSpace(f"{owner}.{name}: expected {expected_text}, got {value!r}")


_BY_COLUMN = Mapping, "a dictionary by column"


@dataclass(frozen=True)
class Rows:
    """Field with rows that are entities of one type.

    A flat field is one row, or is split into rows of `columns`. The rows of an image are its cells,
    with the columns "row" and "column" before the channels.

    With `one_hot`, `kinds`, `only` or `leave_out`, a `Discrete` number of the field is one column,
    like in a `Box`, and one-hot encoded unless it is named in `kinds`.

    Attributes:
        path: path of the field.
        columns: names of all numbers of a row, in the order of the field.
        features: columns to use, in this order; by default all but `presence`.
        presence: column, by name or index, that is 0 in rows without an entity; by default the
            column named "presence", if there is one.
        absent: values of a row without an entity.
        span: part [start, end) of a flat field, or of the rows of a table.
        one_hot: labels of integer columns to one-hot encode. Such a column is replaced by columns
            "COLUMN=LABEL"; a number without a label is an error.
        kinds: labels of integer columns that become categorical features (`Kind`), after the
            numbers. They may be `constants`; a number without a label is an error.
        only: labels or numbers of columns in rows that are entities; other rows are ignored.
        leave_out: labels or numbers of columns in rows to ignore.
        numbered: add a column "number" with the row number, which starts at 0 in this part of the
            field and counts rows without an entity.
        constants: columns to append, with a number or label that is the same in all rows.
        identity: id that identifies an entity in later frames: "row" for the row number, if
            entities have fixed rows, or a column with unique values. None for no ids.
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
        """True if columns have labels or filter the rows."""
        return bool(self.one_hot or self.kinds or self.only or self.leave_out)

    def __post_init__(self) -> None:
        columns = dict.fromkeys(("one_hot", "kinds", "only", "leave_out", "constants"), _BY_COLUMN)
        _check_types(self, numbered=(bool, "True or False"), **columns)


@dataclass(frozen=True, init=False, repr=False)
class Place:
    """Entity with constant features in every frame, such as `Place(row=3, column=6)`.

    It represents an agent that the observation is centred on but does not contain. With the same
    position columns as the rows, relative positions can be computed, and it can be an actor.

    Args:
        features: features by name; labels for the kinds of its type.
    """

    features: Mapping[str, float | str]

    def __init__(self, **features: float | str) -> None:
        object.__setattr__(self, "features", features)

    def __repr__(self) -> str:
        return f"Place({', '.join(f'{name}={value!r}' for name, value in self.features.items())})"


@dataclass(frozen=True)
class Globals:
    """Field with global features.

    Attributes:
        path: path of the field.
        columns: names of all numbers, in the order of the field.
        features: columns to use, in this order; by default all.
        span: part [start, end) of a flat field.
        one_hot: labels of columns, as in `Rows`.
        kinds: labels of columns, as in `Rows`.
    """

    path: str = ""
    columns: Sequence[str] | None = None
    features: Sequence[str] | None = None
    span: tuple[int, int] | None = None
    one_hot: Mapping[str, Labels] = field(default_factory=dict)
    kinds: Mapping[str, Labels] = field(default_factory=dict)

    @property
    def names_choices(self) -> bool:
        """True if columns have labels."""
        return bool(self.one_hot or self.kinds)

    def __post_init__(self) -> None:
        _check_types(self, one_hot=_BY_COLUMN, kinds=_BY_COLUMN)


@dataclass(frozen=True)
class Choice:
    """Part of the action that is a choice among labels.

    Attributes:
        path: path in the action.
        actors: entity type that acts. Component `column` of each `of` consecutive components
            belongs to the row of the same number; rows without an entity count. None for a global
            action.
        labels: names of the choices; by default the labels of the environment, or numbers.
        values: values of the choices in the action, if the part is a `Box`.
        mask: path of the mask, in the observation or else in the info.
        default: choice for rows without an entity, and for masks that allow nothing, as an index of
            `labels`. By default 0 for such rows, and an error for such masks.
        column: index of this component among the components of a row.
        of: number of components of a row.
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
    """Part of the action that is a row number and selects an entity.

    Attributes:
        path: path in the action.
        actees: entity type that is selected.
        actors: entity type that acts, as in `Choice`. By default an entity of type "agent", without
            features, is added to the frame.
        first: number of the first row.
        mask: path of the mask, in the observation or else in the info.
        default: number for rows without an entity, and for masks that allow nothing. By default 0
            for such rows, and an error for such masks.
        column: index of this component among the components of a row.
        of: number of components of a row.
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
    """Part of the action that is continuous: a `Box` of floats.

    Attributes:
        path: path in the action.
        actors: entity type that acts: row i of a `Box` (n, D) or (n * D,) belongs to row i of the
            field; rows without an entity count, and get 0 or the nearest bound. None for a global
            action.
        names: names of the D numbers; by default their indices.
        start: as in `ContinuousActionSpace`.
    """

    path: str = ""
    actors: EntityName | None = None
    names: Sequence[str] | None = None
    start: Mapping[str, float] | None = None

    # A Box has no mask and is one component.
    mask = None
    column = 0
    of = 1


AnyAction: TypeAlias = Choice | Select | Number


@dataclass(frozen=True)
class FieldMap:
    """Mapping of the fields of an environment. Fields that are not named are inferred.

    Attributes:
        entities: fields of each entity type, or its place.
        global_features: fields with global features.
        actions: parts of the action, by action name.
        ignore: paths of observation fields to omit. For a flat field that is also mapped, it
            silences the warning about numbers that no span covers.
        action_mask: path of the mask of the whole action, in the observation or else in the info;
            None for no mask. The default is optional, and everything is allowed without it; any
            other path is required.
        metrics: paths of numbers in the info to log. A path that is in no info of an episode is an
            error.
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
        rows = [one for fields in self.rows().values() for one in fields]
        is_list = isinstance(self.global_features, Sequence)
        for name, parts, classes in (
            ("entities", rows, (Rows, Place)),
            ("global_features", self.global_features if is_list else [None], (Globals,)),
            ("actions", self.actions.values(), (Choice, Select, Number)),
        ):
            if not all(isinstance(part, classes) for part in parts):
                expected = " or ".join(kind.__name__ for kind in classes)
                raise InvalidSpace(
                    f"FieldMap.{name}: expected {expected} for each, got {getattr(self, name)!r}"
                )

    def rows(self) -> dict[EntityName, list[Rows | Place]]:
        """Return the fields and places of each entity type as a list."""
        return {
            name: [rows] if isinstance(rows, Rows | Place) else list(rows)
            for name, rows in self.entities.items()
        }

    def paths(self) -> set[str]:
        """Return the paths of the observation that are not inferred."""
        fields = [rows for rows_of_type in self.rows().values() for rows in rows_of_type]
        paths = [rows.path for rows in fields if isinstance(rows, Rows)]
        paths += [part.path for part in self.global_features]
        masks = [self.action_mask, *(action.mask for action in self.actions.values())]
        return {*paths, *(mask for mask in masks if mask is not None), *self.ignore}
