"""From the observations of many environments to one batch, and from chosen indices to actions.

Everything here costs a few array operations per entity type and action and a little Python per
frame, never Python per entity. Ids are arbitrary objects: they are looked up, in a dict, only
where an action names its entities by id.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    Action,
    ActionMask,
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.environment import Observation, as_block
from entity_env.errors import InvalidAction, InvalidObservation
from entity_env.ragged import Ragged, exclusive_cumsum, from_ragged_buffer, row_indices
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    EntityID,
    EntityName,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
    has_global_entity,
)
from entity_env.vec_env import (
    Metric,
    VecActionMask,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
)

Indices = npt.NDArray[np.int64]
MASK_OF_SPACE: dict[type, type] = {
    CategoricalActionSpace: CategoricalActionMask,
    GlobalCategoricalActionSpace: GlobalCategoricalActionMask,
    SelectEntityActionSpace: SelectEntityActionMask,
}


def batch_obs(
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    outcomes: Sequence[Observation] | None = None,
) -> VecObs:
    """One batch of the observations of B environments.

    Args:
        obs: B observations, whose entities, masks and visibility are shown.
        obs_space: the types and features they show.
        action_space: the actions they may offer.
        outcomes: B observations whose reward, flags and metrics count, where an episode ended
            and `obs` already shows the next one; without it, `obs`.

    Raises:
        InvalidObservation: something contradicts the spaces; `env_index` says which observation.
    """
    outcomes = obs if outcomes is None else outcomes
    features, visible = batch_entities(
        obs, obs_space, with_globals=has_global_entity(obs_space, action_space)
    )
    frames = _Frames(obs, list(obs_space.entities), features, visible)
    for i, o in enumerate(obs):
        if not o.actions.keys() <= action_space.keys():
            unknown = [name for name in o.actions if name not in action_space]
            raise _invalid(i, f"actions: expected some of {list(action_space)}, got {unknown}")
    env_metrics = _env_metrics(outcomes)
    truncated = np.array([o.truncated for o in outcomes], dtype=np.bool_)
    return VecObs(
        features=features,
        visible=visible,
        action_masks={
            name: _BATCH_MASKS[type(space)](frames, name, space)
            for name, space in action_space.items()
        },
        reward=_numbers([o.reward for o in outcomes], range(len(obs)), "reward").astype(np.float32),
        done=np.array([o.done for o in outcomes], dtype=np.bool_),
        metrics={name: Metric.of(values.values) for name, values in env_metrics.items()},
        truncated=truncated,
        final=_batch_final(outcomes, truncated, obs_space, GLOBAL in features),
        env_metrics=env_metrics,
    )


def batch_entities(
    obs: Sequence[Observation], obs_space: ObsSpace, with_globals: bool
) -> tuple[dict[EntityName, Ragged], dict[EntityName, Ragged]]:
    """Features and visibility of all frames, one concatenation per entity type.

    Returns:
        features: float32 (n, num_features) per frame, for every type and, `with_globals`, GLOBAL.
        visible: bool (n,) per frame, for the types of which any frame hides anything.
    """
    features = {
        name: _cat_features(
            [o.features.get(name, ()) for o in obs], len(entity.features), f"features of {name!r}"
        )
        for name, entity in obs_space.entities.items()
    }
    for i, o in enumerate(obs):
        if not o.features.keys() <= features.keys():
            unknown = [name for name in o.features if name not in features]
            raise _invalid(i, f"entities: expected types among {list(features)}, got {unknown}")
    visible = {
        name: _cat_visible([o.visible.get(name) for o in obs], features[name].lengths, name)
        for name in features
        if any(name in o.visible for o in obs)
    }
    for i, o in enumerate(obs):
        if not o.visible.keys() <= visible.keys():
            unknown = [name for name in o.visible if name not in features]
            raise _invalid(i, f"visible: expected types among {list(features)}, got {unknown}")
    if with_globals:
        features[GLOBAL] = _cat_features(
            [(o.global_features,) for o in obs], len(obs_space.global_features), "global_features"
        )
    return features, visible


def _batch_final(
    outcomes: Sequence[Observation],
    truncated: npt.NDArray[np.bool_],
    obs_space: ObsSpace,
    with_globals: bool,
) -> VecObs | None:
    cut_off = np.flatnonzero(truncated)
    if len(cut_off) == 0:
        return None
    try:
        features, visible = batch_entities([outcomes[i] for i in cut_off], obs_space, with_globals)
    except InvalidObservation as error:
        error.env_index = int(cut_off[error.env_index or 0])
        raise
    n, ended = len(cut_off), np.ones(len(cut_off), dtype=np.bool_)
    return VecObs(features, visible, {}, np.zeros(n, np.float32), ended, {}, truncated=ended)


def _invalid(env_index: int, message: str) -> InvalidObservation:
    error = InvalidObservation(message)
    error.env_index = env_index
    return error


def _cat_features(blocks: Sequence[Any], width: int, what: str) -> Ragged:
    """Blocks of (n, width) numbers, as arrays or nested sequences, one per frame."""
    try:
        lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    except TypeError:
        i = next(i for i, block in enumerate(blocks) if not _has_len(block))
        raise _invalid(i, f"{what}: expected rows of {width} numbers, got {blocks[i]!r}") from None
    arrays = [
        block
        if isinstance(block, np.ndarray) and block.shape == (n, width) and block.dtype == np.float32
        else _as_block(block, int(n), width, what, i)
        for i, (block, n) in enumerate(zip(blocks, lengths, strict=True))
        if n > 0
    ]
    if not arrays:
        return Ragged(np.zeros((0, width), dtype=np.float32), lengths)
    return Ragged(np.concatenate(arrays), lengths)


def _as_block(block: Any, n: int, width: int, what: str, env_index: int) -> npt.NDArray[np.float32]:
    try:
        return as_block(block, n, width, what)
    except InvalidObservation as error:
        error.env_index = env_index
        raise


def _has_len(value: Any) -> bool:
    try:
        len(value)
    except TypeError:
        return False
    return True


def _as_flags(flags: Any, what: str, env_index: int) -> npt.NDArray[np.bool_]:
    """Booleans, given as such or as zeros and ones."""
    try:
        array = np.asarray(flags)
        if array.dtype == np.bool_:
            return array
        if array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
            return array.astype(np.bool_)
    except ValueError:
        pass  # nested sequences of different lengths
    raise _invalid(env_index, f"{what}: expected booleans, got {flags!r}")


def _numbers(
    values: Sequence[Any], env_indices: Sequence[int], what: str
) -> npt.NDArray[np.float64]:
    try:
        numbers = np.array(values, dtype=np.float64)
        if numbers.shape == (len(values),):
            return numbers
    except (TypeError, ValueError):
        pass
    i = next(
        i
        for i, value in enumerate(values)
        if not isinstance(value, (int, float, np.number, np.bool_))
    )
    raise _invalid(env_indices[i], f"{what}: expected a number, got {values[i]!r}")


def _cat_visible(flags: Sequence[Any], lengths: Indices, name: str) -> Ragged:
    """Flags of (n,) per frame; a frame that gives none shows everything."""
    blocks = []
    for i, (flag, n) in enumerate(zip(flags, lengths, strict=True)):
        what = f"visible[{name!r}]"
        block = np.ones(n, np.bool_) if flag is None else _as_flags(flag, what, i).reshape(-1)
        if len(block) != n:
            raise _invalid(i, f"{what}: expected {n} flags, got {len(block)}")
        blocks.append(block)
    return Ragged(np.concatenate(blocks), lengths)


def _env_metrics(outcomes: Sequence[Observation]) -> dict[str, Ragged]:
    env_metrics = {}
    for name in dict.fromkeys(name for o in outcomes for name in o.metrics):
        given = [name in o.metrics for o in outcomes]
        values = _numbers(
            [o.metrics[name] for o in outcomes if name in o.metrics],
            np.flatnonzero(given).tolist(),
            f"metrics[{name!r}]",
        )
        env_metrics[name] = Ragged(values, np.array(given, dtype=np.int64))
    return env_metrics


@dataclass(frozen=True)
class _Frames:
    """The entities of B frames, located: by type, by id, or all of them."""

    obs: Sequence[Observation]
    types: list[EntityName]
    features: Mapping[EntityName, Ragged]
    visible: Mapping[EntityName, Ragged]

    @cached_property
    def counts(self) -> Indices:
        """(types + 1, B): entities per type; the last row makes `type_starts` end in totals."""
        rows = [self.features[name].lengths for name in self.types]
        return np.stack([*rows, np.zeros(len(self.obs), dtype=np.int64)])

    @cached_property
    def type_starts(self) -> Indices:
        """(types + 1, B): position in its frame of the first entity of each type."""
        return np.cumsum(self.counts, axis=0) - self.counts

    @property
    def totals(self) -> Indices:
        """(B,): entities per frame."""
        totals: Indices = self.type_starts[-1]
        return totals

    @cached_property
    def visible_rows(self) -> npt.NDArray[np.bool_]:
        """(entities,): visibility in the order of the frames."""
        flags = np.ones(int(self.totals.sum()), dtype=np.bool_)
        frame_starts = exclusive_cumsum(self.totals)
        for k, name in enumerate(self.types):
            if name in self.visible:
                rows = row_indices(frame_starts + self.type_starts[k], self.counts[k])
                flags[rows] = self.visible[name].values
        return flags

    def locate(self, who: Sequence[tuple[Any, Any] | None], what: str) -> Ragged:
        """Positions of the named entities.

        Args:
            who: per frame None (nobody), or (ids, types), where (None, None) names everybody.
            what: the field, for messages.

        Returns:
            int64 (named,) per frame, in the order named.
        """
        namings = {w if w is None or w[0] is None else "ids" for w in map(_hashable, who)}
        if len(namings) == 1 and isinstance(naming := namings.pop(), tuple):
            return self._locate_types(naming[1], what)  # the same naming everywhere
        positions = [
            _NOBODY if w is None else self._locate_in_frame(i, w[0], w[1], what)
            for i, w in enumerate(who)
        ]
        lengths = np.fromiter(map(len, positions), dtype=np.int64, count=len(positions))
        return Ragged(np.concatenate(positions), lengths)

    def _locate_types(self, types: tuple[EntityName, ...] | None, what: str) -> Ragged:
        if types is None:
            return Ragged(row_indices(np.zeros_like(self.totals), self.totals), self.totals)
        ks = [self._type_index(name, what, 0) for name in types]
        starts, counts = self.type_starts[ks].T, self.counts[ks].T  # (B, named types)
        return Ragged(row_indices(starts.reshape(-1), counts.reshape(-1)), counts.sum(axis=1))

    def _locate_in_frame(self, i: int, ids: Any, types: Any, what: str) -> Indices:
        if ids is not None:
            position = self._positions_by_id[i]
            try:
                return np.fromiter(map(position.__getitem__, ids), np.int64, count=len(ids))
            except (KeyError, TypeError):
                raise _invalid(
                    i, f"{what}: expected ids among {list(position)}, got {ids!r}"
                ) from None
        if types is None:
            return np.arange(self.totals[i])
        ks = [self._type_index(name, what, i) for name in types]
        return row_indices(self.type_starts[ks, i], self.counts[ks, i])

    def _type_index(self, name: EntityName, what: str, i: int) -> int:
        if name not in self.types:
            raise _invalid(i, f"{what}: expected types among {self.types}, got {name!r}")
        return self.types.index(name)

    @cached_property
    def _positions_by_id(self) -> "_LazyPositions":
        return _LazyPositions(self)

    def refuse_invisible(self, positions: Ragged, what: str) -> None:
        """Raise where a position is that of an entity hidden from the policy."""
        if not self.visible:
            return
        frame = np.repeat(np.arange(len(positions)), positions.lengths)
        rows = exclusive_cumsum(self.totals)[frame] + positions.values
        hidden = np.flatnonzero(~self.visible_rows[rows])
        if len(hidden):
            i = int(frame[hidden[0]])
            names = {n: None for n in self.types for _ in range(self.features[n].lengths[i])}
            raise _invalid(
                i,
                f"{what}: entity {int(positions.values[hidden[0]])} of the frame (types "
                f"{list(names)}) is invisible; what is hidden can neither act nor be selected",
            )


class _LazyPositions(dict[int, dict[EntityID, int]]):
    """Frame -> id -> position, made for the frames in which an action names ids."""

    def __init__(self, frames: _Frames) -> None:
        super().__init__()
        self.frames = frames

    def __missing__(self, i: int) -> dict[EntityID, int]:
        positions: dict[EntityID, int] = {}
        for k, name in enumerate(self.frames.types):
            ids = self.frames.obs[i].ids.get(name)
            if ids is not None:
                n = int(self.frames.counts[k, i])
                start = int(self.frames.type_starts[k, i])
                before = len(positions)
                try:
                    positions.update(zip(ids, range(start, start + n), strict=True))
                except (TypeError, ValueError):
                    raise _invalid(
                        i, f"ids[{name!r}]: expected {n} hashable ids, got {ids!r}"
                    ) from None
                if len(positions) != before + n:
                    raise _invalid(i, f"ids[{name!r}]: expected unique ids, got {list(ids)}")
        self[i] = positions
        return positions


_NOBODY: Indices = np.zeros(0, dtype=np.int64)


def _hashable(who: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
    return (None, tuple(who[1])) if who is not None and who[1] is not None else who


def _batch_categorical(
    frames: _Frames, name: ActionName, space: CategoricalActionSpace
) -> VecCategoricalActionMask:
    masks = _masks_of(frames, name, space)
    actors = frames.locate(
        [None if m is None else (m.actor_ids, m.actor_types) for m in masks],
        f"actions[{name!r}] actors",
    )
    frames.refuse_invisible(actors, f"actions[{name!r}] actors")
    given = [None if m is None else m.mask for m in masks]
    return _with_legal_actors(actors, given, len(space), name)


def _batch_global(
    frames: _Frames, name: ActionName, space: GlobalCategoricalActionSpace
) -> VecCategoricalActionMask:
    masks = _masks_of(frames, name, space)
    offered = np.array([m is not None for m in masks], dtype=np.bool_)
    actors = Ragged(frames.totals[offered], offered.astype(np.int64))
    given = [
        None
        if m is None or m.mask is None
        else np.atleast_2d(_as_flags(m.mask, f"actions[{name!r}].mask", i))
        for i, m in enumerate(masks)
    ]
    return _with_legal_actors(actors, given, len(space), name)


def _batch_select_entity(
    frames: _Frames, name: ActionName, space: SelectEntityActionSpace
) -> VecSelectEntityActionMask:
    masks = _masks_of(frames, name, space)
    where = f"actions[{name!r}]"
    actors = frames.locate(
        [None if m is None else (m.actor_ids, m.actor_types) for m in masks], f"{where} actors"
    )
    actees = frames.locate(
        [
            None if m is None or n == 0 else (m.actee_ids, m.actee_types)
            for m, n in zip(masks, actors.lengths, strict=True)
        ],
        f"{where} actees",
    )
    frames.refuse_invisible(actors, f"{where} actors")
    frames.refuse_invisible(actees, f"{where} actees")
    allowed = _cat_masks(
        [None if m is None else m.mask for m in masks], actors.lengths, actees.lengths, name
    )
    frame_of_actor = np.repeat(np.arange(len(actors)), actors.lengths)
    row_lengths = actees.lengths[frame_of_actor]
    if allowed is None:
        return VecSelectEntityActionMask(_keep_rows(actors, row_lengths > 0), actees)
    row_of_pair = np.repeat(np.arange(len(row_lengths)), row_lengths)
    legal = np.bincount(row_of_pair, weights=allowed, minlength=len(row_lengths)) > 0
    kept = _keep_rows(actors, legal)
    pairs = Ragged(allowed[legal[row_of_pair]], kept.lengths * actees.lengths)
    return VecSelectEntityActionMask(kept, actees, pairs)


def _masks_of(frames: _Frames, name: ActionName, space: ActionSpace) -> list[Any]:
    """The mask each frame gives for an action, None where the action is not offered."""
    masks: list[ActionMask | None] = [o.actions.get(name) for o in frames.obs]
    expected = MASK_OF_SPACE[type(space)]
    for i, mask in enumerate(masks):
        if mask is not None and not isinstance(mask, expected):
            raise _invalid(
                i,
                f"actions[{name!r}]: expected a {expected.__name__}, got {type(mask).__name__}",
            )
    return masks


def _with_legal_actors(
    actors: Ragged, given: Sequence[Any], num_choices: int, name: ActionName
) -> VecCategoricalActionMask:
    choices = np.full(len(actors), num_choices)
    flat = _cat_masks(given, actors.lengths, choices, name)
    if flat is None:
        return VecCategoricalActionMask(actors, None)
    mask = flat.reshape(-1, num_choices)
    legal = mask.any(axis=1)
    kept = _keep_rows(actors, legal)
    return VecCategoricalActionMask(
        kept, Ragged(mask if legal.all() else mask[legal], kept.lengths)
    )


def _cat_masks(
    given: Sequence[Any], rows: Indices, columns: Indices, name: ActionName
) -> npt.NDArray[np.bool_] | None:
    """The masks of all frames, flat and row by row; None if no frame gives one."""
    if all(mask is None for mask in given):
        return None
    blocks = []
    for i, (mask, m, n) in enumerate(zip(given, rows, columns, strict=True)):
        what = f"actions[{name!r}].mask"
        block = np.ones((m, n), np.bool_) if mask is None else _as_flags(mask, what, i)
        if block.shape != (m, n) and not block.size == m * n == 0:
            raise _invalid(i, f"{what}: expected shape ({m}, {n}), got {block.shape}")
        blocks.append(block.reshape(-1))
    flat: npt.NDArray[np.bool_] = np.concatenate(blocks)
    return flat


def _keep_rows(rows: Ragged, keep: npt.NDArray[np.bool_]) -> Ragged:
    if keep.all():
        return rows
    frame = np.repeat(np.arange(len(rows)), rows.lengths)
    return Ragged(rows.values[keep], np.bincount(frame[keep], minlength=len(rows)))


_BATCH_MASKS: dict[type, Callable[[_Frames, ActionName, Any], VecActionMask]] = {
    CategoricalActionSpace: _batch_categorical,
    GlobalCategoricalActionSpace: _batch_global,
    SelectEntityActionSpace: _batch_select_entity,
}


def unbatch_actions(
    choices: Mapping[ActionName, Ragged],
    batch: VecObs,
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    probs: Mapping[ActionName, Sequence[npt.NDArray[np.float32]]] | None = None,
) -> list[dict[ActionName, Action]]:
    """The way back: what was chosen for each environment, in terms of its own ids and labels.

    Args:
        choices: int64 (actors,) per frame for every action, as `VecEnv.act` takes them.
        batch: the batch that the choices were made for.
        obs: the observations that `batch` was made from.
        obs_space: their space.
        action_space: their actions.
        probs: per action and frame, the probabilities to attach.

    Returns:
        For each environment the actions that its frame offered. A global action with nothing
        legal is left out; an action none of whose actors could do anything has no actors.

    Raises:
        InvalidAction: the choices do not fit the actors of the batch, or are not allowed.
    """
    actions: list[dict[ActionName, Action]] = [{} for _ in obs]
    for name, space in action_space.items():
        if name not in choices:
            raise InvalidAction(f"actions: expected {list(action_space)}, got {list(choices)}")
        mask = batch.action_masks[name]
        chosen = from_ragged_buffer(choices[name])
        if not np.array_equal(chosen.lengths, mask.actors.lengths):
            raise InvalidAction(
                f"actions[{name!r}]: expected {mask.actors.lengths.tolist()} choices per "
                f"environment, got {chosen.lengths.tolist()}"
            )
        ends = np.cumsum(chosen.lengths).tolist()
        values = chosen.values.reshape(-1)
        _refuse_illegal(values, mask, space, name)
        start = 0
        for i, (o, end) in enumerate(zip(obs, ends, strict=True)):
            if name in o.actions and (start < end or not isinstance(space, _GLOBAL_SPACE)):
                actions[i][name] = _to_action(
                    space,
                    o.actions[name],
                    o,
                    obs_space,
                    mask.actors.values[start:end],
                    values[start:end],
                    None if probs is None else probs[name][i],
                )
            start = end
    return actions


_GLOBAL_SPACE = GlobalCategoricalActionSpace


def _refuse_illegal(
    choices: Indices, mask: VecActionMask, space: ActionSpace, name: ActionName
) -> None:
    if isinstance(mask, VecSelectEntityActionMask):
        num_choices = np.repeat(mask.actees.lengths, mask.actors.lengths)
    else:
        assert not isinstance(space, SelectEntityActionSpace)
        num_choices = np.full(len(choices), len(space))
    legal: npt.NDArray[np.bool_] = (choices >= 0) & (choices < num_choices)
    if mask.mask is not None and legal.all():
        legal = mask.mask.values.reshape(-1)[exclusive_cumsum(num_choices) + choices]
    if not legal.all():
        row = int(np.flatnonzero(~legal)[0])
        env_index = int(np.searchsorted(np.cumsum(mask.actors.lengths), row, side="right"))
        raise InvalidAction(
            f"actions[{name!r}]: choice {choices[row]} in environment {env_index}, by the entity "
            f"at position {mask.actors.values[row]}, is not allowed"
        )


def _to_action(
    space: ActionSpace,
    mask: Any,
    obs: Observation,
    obs_space: ObsSpace,
    actors: Indices,
    chosen: Indices,
    probs: npt.NDArray[np.float32] | None,
) -> Action:
    if isinstance(space, GlobalCategoricalActionSpace):
        index = int(chosen[0])
        return GlobalCategoricalAction(
            index, space.index_to_label[index], None if probs is None else probs.reshape(-1)
        )
    named = _named_ids(obs, obs_space, mask.actor_ids, mask.actor_types)
    if len(named) != len(actors):  # some had nothing legal and were left out
        all_ids = obs.index_to_id(obs_space)
        named = [all_ids[i] for i in actors]
    if isinstance(space, CategoricalActionSpace):
        return CategoricalAction(named, chosen, space.index_to_label, probs)
    if len(named) == 0:
        return SelectEntityAction([], [], probs)
    actees = _named_ids(obs, obs_space, mask.actee_ids, mask.actee_types)
    return SelectEntityAction(named, [actees[k] for k in chosen], probs)


def _named_ids(obs: Observation, obs_space: ObsSpace, ids: Any, types: Any) -> Sequence[EntityID]:
    if ids is not None:
        named: Sequence[EntityID] = ids
        return named
    if types is None:
        return obs.index_to_id(obs_space)
    if len(types) == 1:
        return obs.ids_of_type(types[0])
    return [entity_id for name in types for entity_id in obs.ids_of_type(name)]


def action_index_to_actions(
    obs_space: ObsSpace,
    action_spaces: Mapping[ActionName, ActionSpace],
    actions: Mapping[ActionName, Ragged],
    last_obs: Observation,
    index: int = 0,
    probs: Mapping[ActionName, npt.NDArray[np.float32]] | None = None,
) -> dict[ActionName, Action]:
    """The actions of one environment: frame `index` of `actions`, chosen for `last_obs`."""
    return unbatch_actions(
        {name: from_ragged_buffer(chosen)[index] for name, chosen in actions.items()},
        batch_obs([last_obs], obs_space, action_spaces),
        [last_obs],
        obs_space,
        action_spaces,
        None if probs is None else {name: [p] for name, p in probs.items()},
    )[0]
