"""Inference of entities and global features from a Gymnasium space."""

from collections.abc import Collection, Sequence

from gymnasium import spaces

from entity_env.adapters.gymnasium_spaces import Space, join_path, number_names
from entity_env.adapters.mapping import FieldMap, Globals, Rows
from entity_env.adapters.observation_fields import fields_of, is_table
from entity_env.errors import InvalidSpace
from entity_env.spaces import EntityName

OBSERVATION = "observation"
"""The name of an observation without keys, and the usual key beside an action mask."""

_FLAT = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary


def infer_fields(
    space: Space, mapping: FieldMap, columns: Sequence[str]
) -> tuple[dict[EntityName, Rows], list[Globals]]:
    """Make entities of tables and sequences, and global features of all other numbers.

    Args:
        space: of the observation.
        mapping: the fields that need no inference.
        columns: names of the columns of tables, from the environment.

    Raises:
        InvalidSpace: with all fields that are neither.
    """
    entities: dict[EntityName, Rows] = {}
    global_features, problems = [], []
    is_beside_mask = isinstance(space, spaces.Dict) and (
        set(space.spaces) == {OBSERVATION, mapping.action_mask}
    )
    root = OBSERVATION if is_beside_mask else ""
    for path, field in _unnamed_fields(space, mapping.paths()):
        name = "" if path == root else path.removeprefix(f"{root}.")
        shape = field.shape if isinstance(field, spaces.Box) else ()
        # A flat field that the columns divide is a table in one row.
        is_flattened = len(shape) == 1 and columns and shape[0] and shape[0] % len(columns) == 0
        if is_table(field) or is_flattened:
            if name in entities:
                problems.append(f"{path!r}, which is the path of two fields")
            has_columns = is_flattened or (columns and shape[-1:] == (len(columns),))
            entities[name or "entity"] = Rows(path, columns=list(columns) if has_columns else None)
        elif len(shape) > 2:
            problems.append(f"{path!r}, which looks like an image: {field}")
        elif isinstance(field, _FLAT):
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


def _unnamed_fields(
    space: Space, known: Collection[str], path: str = ""
) -> list[tuple[str, Space]]:
    """Return the paths and spaces of all fields but those at known paths."""
    if path in known:
        return []
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.Graph):
        return [
            field
            for key, part in fields_of(space)
            for field in _unnamed_fields(part, known, join_path(path, key))
        ]
    return [(path, space)]
