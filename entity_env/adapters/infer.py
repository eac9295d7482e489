"""What the fields of an observation mean, where nobody says it."""

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from gymnasium import spaces

from entity_env.adapters.mapping import Globals, Rows
from entity_env.adapters.space_numbers import Space, join, number_names
from entity_env.adapters.tables import is_table, parts_of
from entity_env.errors import InvalidSpace
from entity_env.spaces import EntityName

OBSERVATION = "observation"
"""The name of what has none; and the key beside a mask, where it says no more than that."""


@dataclass
class Inferred:
    """The fields that become entities, by type, those that do not, and those nobody can read."""

    entities: dict[EntityName, Rows] = field(default_factory=dict)
    global_features: list[Globals] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


def infer(space: Space, known: Collection[str], columns: list[str], mask: str | None) -> Inferred:
    """Tables and sequences become entities, other numbers belong to no entity.

    Args:
        space: of the observation.
        known: paths that need no inference.
        columns: names that the world ships for the columns of its tables.
        mask: the path of the mask of all actions, if any.

    Raises:
        InvalidSpace: with everything that cannot be inferred.
    """
    found = Inferred()
    beside_mask = isinstance(space, spaces.Dict) and set(space.spaces) == {OBSERVATION, mask}
    _infer(space, "", known, columns, OBSERVATION if beside_mask else "", found)
    if found.refused:
        raise InvalidSpace(
            f"observation: expected tables, sequences, graphs and numbers, got "
            f"{'; '.join(found.refused)}. Name each in a FieldMap: as Rows(path) to make entities "
            "of its rows or cells, or in ignore; or wrap the world"
        )
    return found


def _infer(
    space: Space, path: str, known: Collection[str], columns: list[str], root: str, found: Inferred
) -> None:
    if path in known:
        return
    parts = parts_of(space)
    for key, part in parts:
        _infer(part, join(path, key), known, columns, root, found)
    if parts:
        return
    name = "" if path == root else path.removeprefix(f"{root}.")
    shape = space.shape if isinstance(space, spaces.Box) else None
    size = int(np.prod(shape)) if shape is not None else 0
    if is_table(space):
        fits = columns if columns and shape is not None and shape[-1] == len(columns) else None
        _add(found, name, Rows(path, columns=fits))
    elif shape is not None and len(shape) == 1 and columns and size and size % len(columns) == 0:
        _add(found, name, Rows(path, columns=columns))
    elif shape is not None and len(shape) > 2:
        found.refused.append(f"{path!r}, which looks like an image: {space}")
    elif isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        names = number_names(space, name or OBSERVATION)
        found.global_features.append(Globals(path, columns=names))
    elif not isinstance(space, spaces.Dict | spaces.Tuple):
        found.refused.append(f"{path!r}: {space}")


def _add(found: Inferred, name: str, rows: Rows) -> None:
    if name in found.entities:
        found.refused.append(f"{rows.path!r}, which is the path of two fields")
    found.entities[name or "entity"] = rows
