"""Reader of observations as entities and global features."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from entity_env.adapters.gymnasium_spaces import (
    DISCRETE,
    NUMBERS,
    Space,
    children,
    join_path,
    leaves,
    locate,
    number_names,
)
from entity_env.adapters.mapping import FieldMap, Globals, Place, Rows
from entity_env.adapters.row_readers import (
    ROW,
    GlobalsReader,
    PlaceReader,
    RowsOfField,
    RowsReader,
)
from entity_env.adapters.space_fields import (
    OBSERVATION,
    Field,
    FieldKey,
    is_table,
)
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import InvalidSpace
from entity_env.imports.extras import needs_extra
from entity_env.process import warn_once
from entity_env.spaces import Entity, EntityName, ObsSpace

with needs_extra():
    from gymnasium import spaces


class Frame(NamedTuple):
    """Entities and global features of an observation."""

    features: dict[EntityName, Float32Array]  # (n, num_features) per type
    # (n,) per type, the row of each entity in its field; read-only, as frames share these arrays.
    rows: dict[EntityName, IntArray]
    global_features: Float32Array  # (num_global_features,)
    ids: dict[EntityName, list[str]]  # (n,) per type whose fields have an identity


class ObservationReader:
    """Reader of observations of one space.

    Args:
        space: of the observations.
        mapping: the meaning of its fields.
        columns: names of the columns of tables, from the environment.
        prefix: of the names of types.

    Attributes:
        obs_space: the types and global features.
        num_rows: per type the number of rows of its fields if that is fixed, else None; by the
            names of the mapping.
        entities: the fields of each type with all columns named, by the names of the mapping.
        global_features: the fields that belong to no entity, likewise.

    Raises:
        InvalidSpace: the mapping does not fit the space, or a field cannot be inferred.
    """

    def __init__(
        self, space: Space, mapping: FieldMap, columns: Sequence[str] = (), prefix: str = ""
    ) -> None:
        for path in mapping.ignore:
            locate(space, path, "FieldMap.ignore")
        self._space, self._names, self._prefix = space, columns, prefix
        self.obs_space = ObsSpace()
        self.num_rows: dict[EntityName, int | None] = {}
        self.entities: dict[EntityName, list[Rows | Place]] = {}
        self.global_features: list[Globals] = []
        self._entities: dict[EntityName, list[RowsReader | PlaceReader]] = {}
        self._identities: dict[EntityName, str] = {}  # of the types that have one
        self._globals: list[GlobalsReader] = []
        self._fields: dict[FieldKey, Field] = {}  # a field that several show is read once
        self._covered: dict[FieldKey, BoolArray] = {}  # the numbers of flat fields that are named

        # The mapping first, as what it names need not be inferred.
        for name, several in mapping.rows().items():
            self._add_type(name, several)
        for given in mapping.global_features:
            self._add_globals(given)
        inferred, global_features = _infer_fields(space, mapping, columns)
        if twice := sorted(self.entities.keys() & inferred.keys()):
            raise InvalidSpace(
                f"FieldMap.entities: expected other names than those of inferred types, got {twice}"
                "; rename them, or name the fields of that name in the mapping or in ignore"
            )
        for name, rows in inferred.items():
            self._add_type(name, [rows])
        for given in global_features:
            self._add_globals(given)
        self._warn_of_uncovered_numbers(mapping.ignore)

    def read(self, observation: Any) -> Frame:
        """Return the entities and global features of an observation.

        Raises:
            InvalidObservation: the observation is not of the space.
        """
        values = {key: field.read(observation) for key, field in self._fields.items()}
        features, rows, ids = {}, {}, {}
        for name, readers in self._entities.items():
            of_fields = [reader.read(values) for reader in readers]
            first = of_fields[0]
            features[name], rows[name] = first.features, first.rows
            if len(of_fields) > 1:
                starts = np.cumsum([0, *(field.total for field in of_fields)]).tolist()
                each = zip(starts, of_fields, strict=False)
                features[name] = np.concatenate([field.features for field in of_fields])
                rows[name] = np.concatenate([start + field.rows for start, field in each])
            if name in self._identities:
                ids[name] = self._ids(name, of_fields, rows[name])
        # Numbers of all fields, then kinds of all.
        blocks = [reader.read(values) for reader in self._globals]
        if len(blocks) == 1:
            return Frame(features, rows, blocks[0], ids)
        global_features = np.concatenate([np.zeros(0, dtype=np.float32), *blocks])
        if self.obs_space.global_kinds:
            global_features = global_features[self._global_order]
        return Frame(features, rows, global_features, ids)

    def _ids(self, name: EntityName, fields: Sequence[RowsOfField], rows: IntArray) -> list[str]:
        """Return the ids of the entities of a type, which no other type has."""
        if self._identities[name] == ROW:
            return [f"{name} {row}" for row in rows.tolist()]
        # Places have no columns.
        prefixes = [
            f"{name} place" if isinstance(reader, PlaceReader) else name
            for reader in self._entities[name]
        ]
        each = zip(prefixes, fields, strict=True)
        return [f"{prefix} {key}" for prefix, field in each for key in field.keys.tolist()]

    def _add_type(self, name: EntityName, several: Sequence[Rows | Place]) -> None:
        """Add readers of the fields of a type, which show the same features."""
        argument = f"FieldMap.entities[{name!r}]"
        if not several:
            raise InvalidSpace(f"{argument}: expected Rows, got none")
        # Places last, as their labels are those of the rows.
        readers: dict[int, RowsReader | PlaceReader] = {}
        like: Entity | None = None
        for i, rows in sorted(enumerate(several), key=lambda one: isinstance(one[1], Place)):
            if isinstance(rows, Place):
                readers[i] = PlaceReader(rows, argument, like)
            else:
                readers[i] = reader = RowsReader(self._space, rows, argument, self._names, like)
                self._use(reader.field, reader.span, rows.path)
            like = readers[i].entity
        own = [readers[i] for i in range(len(several))]
        identities = {rows.identity for rows in several if isinstance(rows, Rows)} or {None}
        if len(identities) > 1:
            raise InvalidSpace(
                f"{argument}: expected the same identity for every field, got {identities}"
            )
        if (identity := identities.pop()) is not None:
            self._identities[join_path(self._prefix, name)] = identity
        counts = [reader.num_rows for reader in own if reader.num_rows is not None]
        self.num_rows[name] = sum(counts) if len(counts) == len(own) else None
        self.entities[name] = [reader.rows for reader in own]
        self._entities[join_path(self._prefix, name)] = own
        self.obs_space.entities[join_path(self._prefix, name)] = own[0].entity

    def _add_globals(self, given: Globals) -> None:
        """Add the numbers of a field that belong to no entity."""
        reader = GlobalsReader(self._space, given)
        self._use(reader.field, reader.span, given.path)
        self._globals.append(reader)
        self.obs_space.global_features += reader.entity.features
        self.obs_space.global_kinds += reader.entity.kinds
        self.global_features.append(reader.globals)
        are_kinds = [
            i >= len(one.entity.features)
            for one in self._globals
            for i in range(len(one.entity.columns))
        ]
        self._global_order = np.argsort(are_kinds, kind="stable")

    def _use(self, field: Field, span: slice, path: str) -> None:
        """Read a field in every frame, and note the numbers that a span covers if it is flat."""
        self._fields[field.key] = field
        if field.is_flat:
            nothing = np.zeros(len(field.columns), dtype=np.bool_)
            self._covered.setdefault((path, bool(field.choices)), nothing)[span] = True

    def _warn_of_uncovered_numbers(self, ignored: Sequence[str]) -> None:
        """Log the numbers of flat fields that no span covers, once for each field."""
        for (path, _), is_covered in self._covered.items():
            if is_covered.all() or path in ignored:
                continue
            edges = np.flatnonzero(np.diff(~is_covered, prepend=False, append=False))
            left = ", ".join(f"({start}, {end})" for start, end in edges.reshape(-1, 2))
            warn_once(
                f"FieldMap: no span covers {left} of the {len(is_covered)} numbers of "
                f"{path or OBSERVATION!r}, which are not observed; name them in Rows or Globals, "
                f"or {path!r} in ignore as well if they are to be left out"
            )


def _infer_fields(
    space: Space, mapping: FieldMap, columns: Sequence[str]
) -> tuple[dict[EntityName, Rows], list[Globals]]:
    """Make entities of tables and sequences, and global features of all other numbers."""
    entities: dict[EntityName, Rows] = {}
    global_features, problems = [], []
    keys = {key for key, _ in children(space)}
    root = OBSERVATION if keys == {OBSERVATION, mapping.action_mask} else ""
    for path, _, field in leaves(space, known=mapping.paths()):
        name = "" if path == root else path.removeprefix(f"{root}.")
        shape = field.shape if isinstance(field, spaces.Box) else ()
        # A flat field that the columns divide is a table in one row.
        is_flattened = len(shape) == 1 and columns and shape[0] and shape[0] % len(columns) == 0
        if is_table(field) or is_flattened:
            if name in entities:
                problems.append(f"{path!r}, which is the path of two fields")
            entities[name or "entity"] = Rows(path, columns=columns if is_flattened else None)
        elif len(shape) > 2:
            problems.append(f"{path!r}, which looks like an image: {field}")
        elif isinstance(field, (*NUMBERS, *DISCRETE)):
            names = number_names(field, name or OBSERVATION)
            global_features.append(Globals(path, columns=names))
        else:
            problems.append(f"{path!r}: {field}")
    if problems:
        raise InvalidSpace(
            f"observation: expected tables, sequences, graphs and numbers, got "
            f"{'; '.join(problems)}. Name each in a FieldMap: as Rows(path) to make entities of "
            "its rows or cells, or in ignore; or wrap the environment"
        )
    return entities, global_features
