"""Batching of the observations of many environments, and unbatching of their actions.

Batching costs a few array operations per entity type and action and a little Python per frame,
never Python per entity. Ids are arbitrary objects: each frame's are put into one set, which shows
that they are unique, and they are looked up, in a dict, only where an action names its entities by
id.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from entity_env.actions import Action, ActionName, EntityName
from entity_env.actions.chains import has_choice, link_to_parents, mask_given_parent, parents_first
from entity_env.arrays import (
    BoolArray,
    Float32Array,
    IntArray,
    as_flag,
    as_flags,
    as_numbers,
    real_rows,
)
from entity_env.errors import LONG, InvalidAction, InvalidObservation, short_repr, unexpected
from entity_env.kinds import Kind, as_rows, encoded_rows, first_unknown, label_dtype
from entity_env.names import is_text
from entity_env.observation import GLOBAL, Observation, ObsSpace
from entity_env.ragged import Ragged
from entity_env.spaces import ActionSpaces, Probabilities, has_global_entity
from entity_env.vec.frames import Frames, checked_names, has_len
from entity_env.vec.vec_obs import Metric, VecActionMask, VecObs

_FLOAT32 = np.dtype(np.float32)

LAST = "last observation of a truncated episode"
"""Prefix of messages about the last observation of a truncated episode."""


@dataclass(frozen=True)
class Outcomes:
    """Rewards, flags and metrics of one step of B environments, copied from their observations.

    Attributes:
        reward: (B,) float32.
        terminated: (B,) bool.
        truncated: (B,) bool.
        env_metrics: as in `VecObs`.
        final: last observations of the truncated episodes, as in `VecObs`.
    """

    reward: Float32Array
    terminated: BoolArray
    truncated: BoolArray
    env_metrics: dict[str, Ragged]
    final: VecObs | None

    @property
    def done(self) -> BoolArray:
        """(B,) bool, the episode ended in this step."""
        return self.terminated | self.truncated


def batch_outcomes(
    obs: Sequence[Observation], obs_space: ObsSpace, action_space: ActionSpaces
) -> Outcomes:
    """Copy the outcomes of a step, before a reset may overwrite the observations.

    Args:
        obs: B observations that the step returned.
        obs_space: entity types and features of the observations.
        action_space: the actions they may offer.

    Raises:
        InvalidObservation: a reward, flag, metric or last observation is invalid.
    """
    env_metrics = {}
    for name in dict.fromkeys(chain.from_iterable(o.metrics for o in obs)):
        lengths = np.array([name in o.metrics for o in obs], dtype=np.int64)
        indices = np.flatnonzero(lengths).tolist()
        if not is_text(name):
            raise unexpected(indices[0], "metrics", "names that are text", short_repr(name))
        numbers = [obs[i].metrics[name] for i in indices]
        env_metrics[name] = Ragged(as_numbers(numbers, indices, f"metrics[{name!r}]"), lengths)
    rewards = as_numbers([o.reward for o in obs], range(len(obs)), "reward")
    reward = rewards.astype(np.float32)
    truncated = _flags([o.truncated for o in obs], "truncated")
    terminated = _flags([o.terminated for o in obs], "terminated")
    # Last observations of episodes that were cut off.
    final, cut_off = None, [obs[i] for i in np.flatnonzero(truncated).tolist()]
    if cut_off:
        with_globals = has_global_entity(obs_space, action_space)
        with located_errors_of_final(truncated):
            last, visible, labels = batch_entities(cut_off, obs_space, with_globals)
        no_rewards, flags = np.zeros(len(cut_off), np.float32), np.ones(len(cut_off), np.bool_)
        final = VecObs(last, visible, {}, no_rewards, flags, {}, truncated=flags, kinds=labels)
    return Outcomes(reward, terminated, truncated, env_metrics, final)


def batch_obs(
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: ActionSpaces,
    outcomes: Sequence[Observation] | Outcomes | None = None,
    strict: bool = False,
) -> VecObs:
    """Batch the observations of B environments.

    Args:
        obs: B observations: entities, masks and visibility.
        obs_space: entity types and features of the observations.
        action_space: the actions they may offer.
        outcomes: B observations with the rewards, flags and metrics of the step, if `obs` shows
            the next episode where one ended; or the result of `batch_outcomes`, if environments
            reuse their observations. By default `obs`.
        strict: reject unordered collections, such as sets, of ids or of entities in masks.

    Raises:
        InvalidObservation: an observation, the one at `env_index`, contradicts the spaces.
    """
    # Features, visibility and ids of the frames.
    with_globals = has_global_entity(obs_space, action_space)
    features, visible, kinds = batch_entities(obs, obs_space, with_globals)
    frames = Frames(obs, list(obs_space.entities), features, visible, strict)
    frames.check_ids()
    checked_names([o.actions for o in obs], action_space, "actions: expected some of")
    # Rewards, flags and metrics of the step.
    if not isinstance(outcomes, Outcomes):
        outcomes = batch_outcomes(obs if outcomes is None else outcomes, obs_space, action_space)
    masks = {name: space.batch_mask(frames, name) for name, space in action_space.items()}
    masks = link_to_parents(masks, action_space, partial(_check_parent_actors, frames, masks))
    env_metrics = outcomes.env_metrics
    metrics = {name: Metric.of(values.values) for name, values in env_metrics.items()}
    return VecObs(
        features,
        visible,
        masks,
        outcomes.reward,
        outcomes.done,
        metrics,
        outcomes.truncated,
        outcomes.final,
        env_metrics,
        kinds,
    )


def _check_parent_actors(
    frames: Frames,
    masks: Mapping[ActionName, VecActionMask],
    name: ActionName,
    parent: ActionName,
    rows: IntArray,
) -> None:
    """Raise if an actor of a dependent action is no actor of the parent; see `link_to_parents`."""
    parent_masks: list[Any] = [o.actions.get(parent) for o in frames.obs]
    ids = [() if mask is None else getattr(mask, "actor_ids", None) for mask in parent_masks]
    types = [None if mask is None else getattr(mask, "actor_types", None) for mask in parent_masks]
    parent_actors = frames.locate(ids, types, f"actions[{parent!r}] actors")
    actors = masks[name].actors
    frame = np.repeat(np.arange(len(actors)), actors.lengths)
    for row in rows.tolist():
        i, position = int(frame[row]), int(actors.values[row])
        is_global = position == frames.totals[i]
        if parent_masks[i] is None or is_global or position in parent_actors[i].values:
            continue
        got = f"the entity at position {position}"
        expected = f"actors of {parent!r}, which comes before"
        raise unexpected(i, f"actions[{name!r}] actors", expected, got)


def _flags(values: Sequence[Any], name: str) -> BoolArray:
    """Return the flag of each environment, (B,) bool."""
    if set(map(type, values)) != {bool}:  # an attribute that was set after the constructor
        values = [as_flag(value, name, i) for i, value in enumerate(values)]
    return np.array(values, dtype=np.bool_)


@contextmanager
def located_errors_of_final(truncated: BoolArray) -> Iterator[None]:
    """Return a context that adds environment and prefix to errors about last observations.

    Args:
        truncated: (B,) bool, environments with a truncated episode.
    """
    try:
        yield
    except InvalidObservation as error:
        error.env_index = int(np.flatnonzero(truncated)[error.env_index or 0])
        error.args = (f"{LAST}: {error.args[0]}",)
        raise


def batch_entities(
    obs: Sequence[Observation], obs_space: ObsSpace, with_globals: bool
) -> tuple[dict[EntityName, Ragged], dict[EntityName, Ragged], dict[EntityName, Ragged]]:
    """Concatenate the features and visibility of all frames, for each entity type.

    Returns:
        features: float32 (n, num_features) per frame, for every type and, `with_globals`, GLOBAL.
        visible: bool (n,) per frame, for the types that have hidden entities in any frame.
        kinds: (n, num_kinds) per frame, label indices, for the types with categorical features.
    """
    features = {}
    for name, entity in obs_space.entities.items():
        blocks, what = [o.features.get(name, ()) for o in obs], f"features of {name!r}"
        features[name] = _cat_features(blocks, len(entity.features), what, entity.kinds)
    checked_names([o.features for o in obs], features, "entities: expected types among")
    hidden = checked_names([o.visible for o in obs], features, "visible: expected types among")
    visible = {
        name: _cat_visible([o.visible.get(name) for o in obs], features[name].lengths, name)
        for name in features
        if name in hidden
    }
    if with_globals:
        rows = [(o.global_features,) for o in obs]
        width = len(obs_space.global_features)
        features[GLOBAL] = _cat_features(rows, width, "global_features", obs_space.global_kinds)
    kinds = {}
    for name, type_kinds in obs_space.kinds.items():
        joint, num_numbers = features[name], features[name].values.shape[1] - len(type_kinds)
        features[name] = Ragged(np.ascontiguousarray(joint.values[:, :num_numbers]), joint.lengths)
        indices = joint.values[:, num_numbers:].astype(label_dtype(type_kinds))
        kinds[name] = Ragged(indices, joint.lengths)
    return features, visible, kinds


def _cat_features(
    blocks: Sequence[Any], num_numbers: int, what: str, kinds: Sequence[Kind]
) -> Ragged:
    """Concatenate blocks of rows, arrays or nested sequences, one per frame.

    A row is `num_numbers` numbers, then a label or its index for each categorical feature.

    Returns:
        float32 (n, num_numbers + num_kinds) per frame, with label indices.
    """
    width = num_numbers + len(kinds)
    try:
        lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    except TypeError:
        i = next(i for i, block in enumerate(blocks) if not has_len(block))
        got = short_repr(blocks[i], LONG)
        expected = f"rows of {width} {'values' if kinds else 'numbers'}"
        raise unexpected(i, what, expected, got) from None
    rows = _cat_uniform(blocks, width, kinds)
    if rows is None or len(rows) != lengths.sum():  # convert block by block; raises for a wrong one
        no_rows = np.zeros((0, width), dtype=np.float32)
        numbered = enumerate(zip(blocks, lengths.tolist(), strict=True))
        arrays = [
            as_rows(b if n else no_rows, n, num_numbers, kinds, what, i) for i, (b, n) in numbered
        ]
        rows = np.concatenate([no_rows, *arrays])
    return Ragged(rows, lengths)


def _cat_uniform(blocks: Sequence[Any], width: int, kinds: Sequence[Kind]) -> Float32Array | None:
    """Concatenate blocks that are all float32 arrays or all nested lists; None for other blocks.

    Joining the bytes of many small arrays takes a third of the time of `np.concatenate`, and
    reading the numbers of all lists in one go a quarter of that of converting each.
    """
    nonempty = list(filter(len, blocks))
    types = set(map(type, nonempty))
    try:
        if types == {np.ndarray}:
            shapes = {b.shape for b in nonempty}
            if {s[1:] for s in shapes} != {(width,)} or {b.dtype for b in nonempty} != {_FLOAT32}:
                return None
            joined = np.frombuffer(bytearray().join(nonempty), _FLOAT32).reshape(-1, width)
            has_labels = not kinds or first_unknown(joined[:, -len(kinds) :], kinds) is None
            return joined if has_labels else None
        if types <= {list, tuple}:
            rows = list(chain.from_iterable(nonempty))
            if set(map(type, rows)) <= {list, tuple} and set(map(len, rows)) <= {width}:
                return real_rows(encoded_rows(rows, kinds) if kinds and rows else rows, width)
    except Exception:  # of any kind: the check of each block raises the right one
        pass
    return None


def _cat_visible(flags: Sequence[Any], lengths: IntArray, name: str) -> Ragged:
    """Concatenate visibility flags, (n,) per frame; a frame without flags shows all entities."""
    blocks = []
    for i, (flag, n) in enumerate(zip(flags, lengths, strict=True)):
        what = f"visible[{name!r}]"
        block = np.ones(n, np.bool_) if flag is None else as_flags(flag, what, i).reshape(-1)
        if len(block) != n:
            raise unexpected(i, what, f"{n} flags", len(block))
        blocks.append(block)
    return Ragged(np.concatenate(blocks), lengths)


def unbatch_actions(
    choices: Mapping[ActionName, Ragged],
    batch: VecObs,
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: ActionSpaces,
    probs: Mapping[ActionName, Probabilities] | None = None,
) -> list[dict[ActionName, Action]]:
    """Return the actions of each environment, with its own ids and labels.

    Args:
        choices: int64 (actors,) per frame for every action, as `VecEnv.act` takes them.
        batch: the batch that the choices were made for.
        obs: the observations that `batch` was made from.
        obs_space: their space.
        action_space: their actions.
        probs: per action and frame, the probabilities to attach.

    Returns:
        For each environment the actions that its frame offered, in new arrays and lists. A global
        action without a legal choice is omitted; another action without a legal choice for any
        actor has no actors.

    Raises:
        InvalidAction: the choices do not fit the actors of the batch, or are not allowed.
    """
    actions: list[dict[ActionName, Action]] = [{} for _ in obs]
    all_chosen: dict[ActionName, Ragged] = {}
    for name in parents_first(action_space):
        space = action_space[name]
        if name not in choices:
            raise InvalidAction(f"actions: expected {list(action_space)}, got {list(choices)}")
        mask = batch.action_masks[name]
        chosen = all_chosen[name] = space.as_choices(choices[name])
        if not np.array_equal(chosen.lengths, mask.actors.lengths):
            counts, got = mask.actors.lengths.tolist(), chosen.lengths.tolist()
            expected = f"{counts} choices per environment"
            raise InvalidAction(f"actions[{name!r}]: expected {expected}, got {got}")
        action_probs: Probabilities = [None] * len(obs) if probs is None else probs[name]
        if mask.after is not None:  # only actors for which the parent action activates it
            mask, is_active = mask_given_parent(mask, all_chosen[mask.after.action])
            _check_inactive(name, chosen, is_active)
            action_probs = _active_rows(action_probs, chosen.lengths, is_active)
            chosen = Ragged(chosen.values[is_active], mask.actors.lengths)
        else:  # a copy, as environments may overwrite their actions
            chosen = Ragged(chosen.values.copy(), chosen.lengths)
        if (violation := space.illegal_choice(chosen.values, mask)) is not None:
            row, choice = violation
            env = int(np.searchsorted(np.cumsum(mask.actors.lengths), row, side="right"))
            actor = f"in environment {env}, by the entity at position {mask.actors.values[row]}"
            raise InvalidAction(f"actions[{name!r}]: {choice} {actor}, is not allowed")
        decoded = space.decode(name, chosen, mask, obs, obs_space, action_probs)
        for env_actions, action in zip(actions, decoded, strict=True):
            if action is not None:
                env_actions[name] = action
    return actions


def _check_inactive(name: ActionName, chosen: Ragged, is_active: BoolArray) -> None:
    """Raise if an actor has a choice in a dependent action that is inactive for it."""
    violations = np.flatnonzero(has_choice(chosen.values) & ~is_active)
    if len(violations):
        row = int(violations[0])
        env_index = int(np.searchsorted(np.cumsum(chosen.lengths), row, side="right"))
        expected = "NaN" if chosen.values.dtype.kind == "f" else "-1"
        raise InvalidAction(
            f"actions[{name!r}]: expected {expected} in environment {env_index}, as the choice in "
            f"the parent action makes this one inactive, got {chosen.values[row]}"
        )


def _active_rows(probs: Probabilities, lengths: IntArray, is_active: BoolArray) -> Probabilities:
    """Return the probabilities of the actors for which a dependent action is active."""
    frame_flags = Ragged(is_active, lengths).of_frames()
    return [None if p is None else p[flags] for p, flags in zip(probs, frame_flags, strict=True)]


def action_index_to_actions(
    obs_space: ObsSpace,
    action_spaces: ActionSpaces,
    actions: Mapping[ActionName, Ragged],
    last_obs: Observation,
    index: int = 0,
    probs: Mapping[ActionName, Float32Array] | None = None,
) -> dict[ActionName, Action]:
    """Return the actions in frame `index` of `actions`, which were chosen for `last_obs`."""
    chosen = {name: action_spaces[name].as_choices(rows)[index] for name, rows in actions.items()}
    batch = batch_obs([last_obs], obs_space, action_spaces)
    frame_probs = None if probs is None else {name: [p] for name, p in probs.items()}
    return unbatch_actions(chosen, batch, [last_obs], obs_space, action_spaces, frame_probs)[0]
