"""Shared hypothesis strategies: random worlds, with every way to name entities and to mask."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

FLOATS = st.floats(-1e6, 1e6, width=32)
Names = tuple[Any, Any]  # (ids, types), as the masks take them


@dataclass
class World:
    """Spaces, and frames that fit them."""

    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]
    frames: list[Observation]


@st.composite
def worlds(draw: st.DrawFn, max_frames: int = 4, numbers: bool = False) -> World:
    """Any world, also with actions of numbers if `numbers`."""
    obs_space = draw(obs_spaces())
    action_space = draw(action_spaces(numbers))
    # The same naming in every frame is what most environments do, and has a path of its own.
    habit = st.none() | by_type_or_everyone(obs_space)
    habits = {name: (draw(habit), draw(habit)) for name in action_space}
    count = draw(st.integers(1, max_frames))
    return World(
        obs_space,
        action_space,
        [draw(observations(obs_space, action_space, habits)) for _ in range(count)],
    )


def obs_spaces() -> st.SearchStrategy[ObsSpace]:
    entity = st.builds(Entity, some_of(["x", "y", "hp"]))
    entities = some_of("ABC").flatmap(
        lambda types: st.fixed_dictionaries(dict.fromkeys(types, entity))
    )
    return st.builds(ObsSpace, some_of(["time", "score"]), entities)


def some_of(names: Sequence[Any]) -> st.SearchStrategy[list[Any]]:
    """Any number of names in any order."""
    return st.integers(0, len(names)).flatmap(
        lambda n: st.permutations(names).map(lambda order: order[:n])
    )


def action_spaces(numbers: bool = False) -> st.SearchStrategy[dict[str, ActionSpace]]:
    labels = st.integers(1, 3).map(lambda n: list("xyz"[:n]))
    spaces: dict[str, st.SearchStrategy[ActionSpace]] = {
        "move": st.builds(CategoricalActionSpace, labels),
        "plan": st.builds(GlobalCategoricalActionSpace, labels),
        "attack": st.builds(SelectEntityActionSpace),
        "heal": st.builds(SelectEntityActionSpace),
    }
    if numbers:
        spaces["push"] = st.builds(ContinuousActionSpace, ranges())
        spaces["pay"] = st.builds(GlobalContinuousActionSpace, ranges())
    return some_of(list(spaces)).flatmap(
        lambda names: st.fixed_dictionaries({name: spaces[name] for name in names})
    )


def ranges() -> st.SearchStrategy[dict[str, tuple[float, float]]]:
    """Bounds of one to three components, of all sizes."""
    bounds = st.sampled_from(
        [(-1.0, 1.0), (0.0, 1e6), (-3e-3, 1e-3), (100.0, 101.0), (-np.inf, np.inf)]
    )
    return st.integers(1, 3).flatmap(
        lambda n: st.fixed_dictionaries(dict.fromkeys("pqr"[:n], bounds))
    )


@st.composite
def observations(
    draw: st.DrawFn,
    obs_space: ObsSpace,
    action_space: dict[str, ActionSpace],
    habits: dict[str, tuple[Names | None, Names | None]],
) -> Observation:
    obs = Observation(
        features={
            name: draw(blocks(draw(st.integers(0, 3)), len(entity.features)))
            for name, entity in obs_space.entities.items()
            if draw(st.integers(0, 3)) > 0  # else the type is absent
        },
        global_features=draw(row(len(obs_space.global_features))),
        reward=draw(FLOATS),
        metrics=draw(st.dictionaries(st.sampled_from(["win", "fuel"]), FLOATS)),
        terminated=draw(st.booleans()),
        truncated=draw(st.booleans()),
    )
    obs.ids = draw(ids_of(obs))
    named: set[Any] = set()
    actions: dict[str, Any] = {}
    for name, space in action_space.items():
        if draw(st.integers(0, 3)) > 0:  # else it is not offered
            actions[name] = draw(masks(obs, obs_space, space, named, *habits[name]))
    obs.actions = actions
    obs.visible = {
        name: [(one in named) or draw(st.booleans()) for one in entities_of(obs, [name])]
        for name in obs_space.entities
        if draw(st.integers(0, 2)) == 0
    }
    return obs


def row(width: int) -> st.SearchStrategy[Any]:
    return st.lists(FLOATS, min_size=width, max_size=width)


@st.composite
def blocks(draw: st.DrawFn, rows: int, width: int) -> Any:
    """(rows, width) features: nested lists, or arrays of two precisions and two layouts."""
    values = draw(st.lists(row(width), min_size=rows, max_size=rows))
    if draw(st.booleans()):
        return values
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    order: Any = draw(st.sampled_from("CF"))
    return np.asarray(np.array(values, dtype=dtype).reshape(rows, width), order=order)


@st.composite
def ids_of(draw: st.DrawFn, obs: Observation) -> dict[str, list[Any]]:
    """Ids of some of the types: integers, strings, tuples, no two equal in a frame."""
    kind = draw(st.sampled_from([int, str, lambda i: ("id", i)]))
    numbers = iter(draw(st.permutations(range(20))))
    return {
        name: [kind(next(numbers)) for _ in rows]
        for name, rows in obs.features.items()
        if draw(st.booleans())
    }


@st.composite
def masks(
    draw: st.DrawFn,
    obs: Observation,
    obs_space: ObsSpace,
    space: ActionSpace,
    named: set[Any],
    actor_habit: Names | None,
    actee_habit: Names | None,
) -> Any:
    """A mask of an action; the entities that it names are added to `named`."""
    if isinstance(space, GlobalCategoricalActionSpace):
        return GlobalCategoricalActionMask(draw(flags(len(space))))
    if isinstance(space, GlobalContinuousActionSpace):
        bounds = [None if rows is None else rows[0] for rows in draw(narrowed(space, 1))]
        return GlobalContinuousActionMask(*bounds)
    actor_ids, actor_types = actors = actor_habit or draw(names(obs, obs_space))
    num_actors = len(entities_named(obs, obs_space, *actors))
    named.update(entities_named(obs, obs_space, *actors))
    if isinstance(space, CategoricalActionSpace):
        return CategoricalActionMask(actor_ids, actor_types, draw(matrices(num_actors, len(space))))
    if isinstance(space, ContinuousActionSpace):
        return ContinuousActionMask(actor_ids, actor_types, *draw(narrowed(space, num_actors)))
    actee_ids, actee_types = actees = actee_habit or draw(names(obs, obs_space))
    num_actees = len(entities_named(obs, obs_space, *actees))
    named.update(entities_named(obs, obs_space, *actees))
    return SelectEntityActionMask(
        actor_ids, actor_types, actee_types, actee_ids, draw(matrices(num_actors, num_actees))
    )


@st.composite
def narrowed(draw: st.DrawFn, space: Any, rows: int) -> tuple[Any, Any]:
    """Bounds of actors within the space: None, lists or arrays; some are equal."""
    low, high = (np.full((rows, len(space)), of, np.float32) for of in (space.low, space.high))
    first, last = sorted(draw(st.tuples(*[st.sampled_from([0, 0.25, 1])] * 2)))
    with np.errstate(invalid="ignore"):
        least, most = (low + share * (high - low) for share in (first, last))
    bounds = np.where(np.isfinite(low), [least, most], [low, high])
    form: Any = draw(st.sampled_from([lambda x: None, np.ndarray.tolist, np.array]))
    return form(np.clip(bounds[0], low, high)), form(np.clip(bounds[1], low, high))


def names(obs: Observation, obs_space: ObsSpace) -> st.SearchStrategy[Names]:
    """Entities by id, or by type and row where they have none; by type; or everyone."""
    by_id = some_of(obs.index_to_id(obs_space)).map(lambda ids: (ids, None))
    return by_id | by_type_or_everyone(obs_space)


def by_type_or_everyone(obs_space: ObsSpace) -> st.SearchStrategy[Names]:
    by_type = some_of(list(obs_space.entities)).map(lambda types: (None, types))
    return by_type | st.just((None, None))


def flags(n: int) -> st.SearchStrategy[Any]:
    given = st.lists(st.booleans(), min_size=n, max_size=n)
    return st.one_of(st.none(), given, given.map(np.array))


def matrices(rows: int, columns: int) -> st.SearchStrategy[Any]:
    given = st.lists(
        st.lists(st.booleans(), min_size=columns, max_size=columns), min_size=rows, max_size=rows
    )
    as_array = given.map(lambda m: np.array(m, dtype=np.bool_).reshape(rows, columns))
    return st.one_of(st.none(), given, as_array)


def entities_of(obs: Observation, types: Any) -> list[Any]:
    """The names of all entities of some types: their ids, or (type, row)."""
    entities = []
    for name in types:
        for i in range(len(obs.features.get(name, []))):
            entities.append(obs.ids[name][i] if name in obs.ids else (name, i))
    return entities


def entities_named(obs: Observation, obs_space: ObsSpace, ids: Any, types: Any) -> list[Any]:
    """What a mask's `ids` and `types` mean, one entity at a time."""
    if ids is not None:
        return list(ids)
    return entities_of(obs, obs_space.entities if types is None else types)
