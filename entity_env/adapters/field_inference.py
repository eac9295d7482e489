"""Inference of entities and global features from a Gymnasium space."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from gymnasium import spaces

from entity_env.adapters.gymnasium_spaces import Space, join_path, number_names
from entity_env.adapters.mapping import Globals, Rows
from entity_env.adapters.observation_fields import fields_of, is_table
from entity_env.errors import InvalidSpace
from entity_env.spaces import EntityName

OBSERVATION = "observation"
"""The name of an observation without keys, and the usual key beside an action mask."""


@dataclass
class InferredFields:
    """The fields that become entities or global features, and messages about all others."""

    entities: dict[EntityName, Rows] = field(default_factory=dict)
    global_features: list[Globals] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def infer_fields(
    space: Space, known: Collection[str], columns: Sequence[str], mask: str | None
) -> InferredFields:
    """Make entities of tables and sequences, and global features of all other numbers.

    Args:
        space: of the observation.
        known: paths that need no inference.
        columns: names of the columns of tables, from the environment.
        mask: the path of the mask of all actions, if any.

    Raises:
        InvalidSpace: with all fields that are neither.
    """
    inferred = InferredFields()
    is_beside_mask = isinstance(space, spaces.Dict) and set(space.spaces) == {OBSERVATION, mask}
    _infer(space, "", known, list(columns), OBSERVATION if is_beside_mask else "", inferred)
    if inferred.problems:
        raise InvalidSpace(
            f"observation: expected tables, sequences, graphs and numbers, got "
            f"{'; '.join(inferred.problems)}. Name each in a FieldMap: as Rows(path) to make "
            "entities of its rows or cells, or in ignore; or wrap the environment"
        )
    return inferred


def _infer(
    space: Space,
    path: str,
    known: Collection[str],
    columns: list[str],
    root: str,
    inferred: InferredFields,
) -> None:
    if path in known:
        return
    fields = fields_of(space)
    for key, part in fields:
        _infer(part, join_path(path, key), known, columns, root, inferred)
    if fields or isinstance(space, spaces.Dict | spaces.Tuple):
        return

    name = "" if path == root else path.removeprefix(f"{root}.")
    shape = () if not isinstance(space, spaces.Box) else space.shape
    # A flat field is a table if the columns divide it.
    is_flattened = len(shape) == 1 and columns and shape[0] and shape[0] % len(columns) == 0
    if is_table(space) or is_flattened:
        if name in inferred.entities:
            inferred.problems.append(f"{path!r}, which is the path of two fields")
        has_columns = is_flattened or (columns and shape[-1:] == (len(columns),))
        rows = Rows(path, columns=columns if has_columns else None)
        inferred.entities[name or "entity"] = rows
    elif len(shape) > 2:
        inferred.problems.append(f"{path!r}, which looks like an image: {space}")
    elif isinstance(
        space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
    ):
        names = number_names(space, name or OBSERVATION)
        inferred.global_features.append(Globals(path, columns=names))
    else:
        inferred.problems.append(f"{path!r}: {space}")
