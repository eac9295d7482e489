"""Conversion of Gymnasium observations to entities and global features."""

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
    FieldRows,
    GlobalsReader,
    PlaceReader,
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
    # (n,) per type, row of each entity in its field; read-only, because frames share these arrays.
    rows: dict[EntityName, IntArray]
    global_features: Float32Array  # (num_global_features,)
    ids: dict[EntityName, list[str]]  # (n,) per type with an identity


class ObservationReader:
    """Reader that converts the observations of a space to frames.

    Args:
        space: observation space.
        mapping: mapping of its fields.
        columns: column names of tables, from the environment.
        prefix: prefix of type names.

    Attributes:
        obs_space: entity types and global features.
        num_rows: number of rows of each type, None if it varies; without prefix.
        entities: fields of each type with all column names; without prefix.
        global_features: fields with global features and all column names.

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
        self._identities: dict[EntityName, str] = {}  # by type
        self._globals: list[GlobalsReader] = []
        self._fields: dict[FieldKey, Field] = {}  # a field of several types is read once
        self._covered: dict[FieldKey, BoolArray] = {}  # mapped numbers of flat fields

        # Add the fields of the mapping, then infer the others.
        for name, fields in mapping.rows().items():
            self._add_type(name, fields)
        for part in mapping.global_features:
            self._add_globals(part)
        inferred, global_features = _infer_fields(space, mapping, columns)
        if names := sorted(self.entities.keys() & inferred.keys()):
            raise InvalidSpace(
                f"FieldMap.entities: expected names that differ from inferred types, got {names}"
                "; rename them, or name the fields of that name in the mapping or in ignore"
            )
        for name, rows in inferred.items():
            self._add_type(name, [rows])
        for part in global_features:
            self._add_globals(part)
        self._warn_of_uncovered_numbers(mapping.ignore)

    def read(self, observation: Any) -> Frame:
        """Convert an observation to a frame.

        Raises:
            InvalidObservation: the observation does not fit the space.
        """
        values = {key: field.read(observation) for key, field in self._fields.items()}
        features, rows, ids = {}, {}, {}
        for name, readers in self._entities.items():
            field_rows = [reader.read(values) for reader in readers]
            first = field_rows[0]
            features[name], rows[name] = first.features, first.rows
            if len(field_rows) > 1:
                starts = np.cumsum([0, *(field.total for field in field_rows)]).tolist()
                pairs = zip(starts, field_rows, strict=False)
                features[name] = np.concatenate([field.features for field in field_rows])
                rows[name] = np.concatenate([start + field.rows for start, field in pairs])
            if name in self._identities:
                ids[name] = self._ids(name, field_rows, rows[name])
        # Global features: numbers of all fields, then kinds of all fields.
        blocks = [reader.read(values) for reader in self._globals]
        if len(blocks) == 1:
            return Frame(features, rows, blocks[0], ids)
        global_features = np.concatenate([np.zeros(0, dtype=np.float32), *blocks])
        if self.obs_space.global_kinds:
            global_features = global_features[self._global_order]
        return Frame(features, rows, global_features, ids)

    def _ids(self, name: EntityName, fields: Sequence[FieldRows], rows: IntArray) -> list[str]:
        """Return the ids of the entities of a type, unique among types."""
        if self._identities[name] == ROW:
            return [f"{name} {row}" for row in rows.tolist()]
        # Places have no column with an id.
        prefixes = [
            f"{name} place" if isinstance(reader, PlaceReader) else name
            for reader in self._entities[name]
        ]
        pairs = zip(prefixes, fields, strict=True)
        return [f"{prefix} {key}" for prefix, field in pairs for key in field.keys.tolist()]

    def _add_type(self, name: EntityName, fields: Sequence[Rows | Place]) -> None:
        """Add readers of the fields of a type, which must have equal features."""
        argument = f"FieldMap.entities[{name!r}]"
        if not fields:
            raise InvalidSpace(f"{argument}: expected Rows, got none")
        # Places last, because they use the labels of the rows.
        readers: dict[int, RowsReader | PlaceReader] = {}
        like: Entity | None = None
        for i, rows in sorted(enumerate(fields), key=lambda one: isinstance(one[1], Place)):
            if isinstance(rows, Place):
                readers[i] = PlaceReader(rows, argument, like)
            else:
                readers[i] = reader = RowsReader(self._space, rows, argument, self._names, like)
                self._register_field(reader.field, reader.span, rows.path)
            like = readers[i].entity
        type_readers = [readers[i] for i in range(len(fields))]
        identities = {rows.identity for rows in fields if isinstance(rows, Rows)} or {None}
        if len(identities) > 1:
            raise InvalidSpace(
                f"{argument}: expected the same identity for every field, got {identities}"
            )
        if (identity := identities.pop()) is not None:
            self._identities[join_path(self._prefix, name)] = identity
        counts = [reader.num_rows for reader in type_readers if reader.num_rows is not None]
        self.num_rows[name] = sum(counts) if len(counts) == len(type_readers) else None
        self.entities[name] = [reader.rows for reader in type_readers]
        self._entities[join_path(self._prefix, name)] = type_readers
        self.obs_space.entities[join_path(self._prefix, name)] = type_readers[0].entity

    def _add_globals(self, part: Globals) -> None:
        """Add a reader of a field with global features."""
        reader = GlobalsReader(self._space, part)
        self._register_field(reader.field, reader.span, part.path)
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

    def _register_field(self, field: Field, span: slice, path: str) -> None:
        """Register a field to read in every frame; for a flat one, mark the numbers of the span."""
        self._fields[field.key] = field
        if field.is_flat:
            uncovered = np.zeros(len(field.columns), dtype=np.bool_)
            self._covered.setdefault((path, bool(field.choices)), uncovered)[span] = True

    def _warn_of_uncovered_numbers(self, ignored: Sequence[str]) -> None:
        """Log a warning about numbers of flat fields that no span covers, once for each field."""
        for (path, _), is_covered in self._covered.items():
            if is_covered.all() or path in ignored:
                continue
            edges = np.flatnonzero(np.diff(~is_covered, prepend=False, append=False))
            spans = ", ".join(f"({start}, {end})" for start, end in edges.reshape(-1, 2))
            warn_once(
                f"FieldMap: no span covers {spans} of the {len(is_covered)} numbers of "
                f"{path or OBSERVATION!r}, which are not observed; name them in Rows or Globals, "
                f"or {path!r} in ignore as well if they are to be left out"
            )


def _infer_fields(
    space: Space, mapping: FieldMap, columns: Sequence[str]
) -> tuple[dict[EntityName, Rows], list[Globals]]:
    """Infer entities from tables and sequences, and global features from other numbers."""
    entities: dict[EntityName, Rows] = {}
    global_features, problems = [], []
    keys = {key for key, _ in children(space)}
    root = OBSERVATION if keys == {OBSERVATION, mapping.action_mask} else ""
    for path, _, field in leaves(space, skip=mapping.paths()):
        name = "" if path == root else path.removeprefix(f"{root}.")
        shape = field.shape if isinstance(field, spaces.Box) else ()
        # A flat field of a multiple of the columns is a flattened table.
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
            f"{'; '.join(problems)}. Add each to a FieldMap: as Rows(path), to make entities of "
            "its rows or cells, or in ignore; or wrap the environment"
        )
    return entities, global_features
