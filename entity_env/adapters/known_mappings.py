"""Mappings of known environments with observations that cannot be inferred."""

import sys
from typing import Any

from entity_env.adapters.mapping import Choice, FieldMap, Globals, Place, Rows
from entity_env.imports.extras import needs_extra

with needs_extra():
    from gymnasium import spaces


_DIRECTIONS = ["right", "down", "left", "up"]  # of MiniGrid, which has no constant for them


def known_mapping(env: Any) -> FieldMap | None:
    """Return the mapping of a Gymnasium environment, None if it is unknown."""
    classes = {(cls.__module__, cls.__name__) for cls in type(env.unwrapped).__mro__}
    if ("minigrid.minigrid_env", "MiniGridEnv") in classes:
        return _view_of_minigrid(env.observation_space)
    return None


def _view_of_minigrid(space: Any) -> FieldMap | None:
    """Return the mapping of MiniGrid's observation, None if a wrapper changed the space."""
    if not isinstance(space, spaces.Dict) or [*space] != ["direction", "image", "mission"]:
        return None
    numbers = sys.modules["minigrid.core.constants"]  # imported by the environment
    rows, columns, _ = space["image"].shape or (0, 0, 0)
    cell = Rows(
        "image",
        columns=["row", "column", "object", "color", "state"],
        kinds={
            "object": numbers.OBJECT_TO_IDX,
            "color": numbers.COLOR_TO_IDX,
            "state": numbers.STATE_TO_IDX,
        },
        leave_out={"object": ["unseen", "empty"]},
    )
    # The agent is in the middle of the last column.
    return FieldMap(
        entities={"me": Place(row=rows // 2, column=columns - 1), "cell": cell},
        global_features=[Globals("direction", kinds={"direction": _DIRECTIONS})],
        actions={"do": Choice(actors="me")},
        ignore=["mission"],
    )
