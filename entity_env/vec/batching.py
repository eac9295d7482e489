"""Batches of the observations of many environments, and the way back to their actions.

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
from entity_env.actions.chains import is_taken, link, narrowed, parents_first
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
from entity_env.vec.frames import Frames, given_names, has_len
from entity_env.vec.vec_obs import Metric, VecActionMask, VecObs

_FLOAT32 = np.dtype(np.float32)

LAST = "last observation of a truncated episode"
"""Prefix of messages about that observation."""


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of one step of B environments, in arrays that no environment holds.

    Attributes:
        reward: (B,) float32.
        terminated: (B,) bool.
        truncated: (B,) bool.
        env_metrics: as in `VecObs`.
        final: the last observations of the truncated episodes, as in `VecObs`.
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
        obs_space: the types and features they show.
        action_space: the actions they may offer.

    Raises:
        InvalidObservation: a reward, flag, metric or last observation is not what it should be.
    """
    env_metrics = {}
    for name in dict.fromkeys(chain.from_iterable(o.metrics for o in obs)):
        given = np.array([name in o.metrics for o in obs], dtype=np.int64)
        indices = np.flatnonzero(given).tolist()
        if not is_text(name):
            raise unexpected(indices[0], "metrics", "names that are text", short_repr(name))
        numbers = [obs[i].metrics[name] for i in indices]
        env_metrics[name] = Ragged(as_numbers(numbers, indices, f"metrics[{name!r}]"), given)
    rewards = as_numbers([o.reward for o in obs], range(len(obs)), "reward")
    reward = rewards.astype(np.float32)
    truncated = _flags([o.truncated for o in obs], "truncated")
    terminated = _flags([o.terminated for o in obs], "terminated")
    # Last observations of episodes that were cut off.
    final, cut_off = None, [obs[i] for i in np.flatnonzero(truncated).tolist()]
    if cut_off:
        with_globals = has_global_entity(obs_space, action_space)
        with located_in_last(truncated):
            last, seen, labels = batch_entities(cut_off, obs_space, with_globals)
        blank, ended = np.zeros(len(cut_off), np.float32), np.ones(len(cut_off), np.bool_)
        final = VecObs(last, seen, {}, blank, ended, {}, truncated=ended, kinds=labels)
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
        obs_space: the types and features they show.
        action_space: the actions they may offer.
        outcomes: B observations whose reward, flags and metrics count, where an episode ended
            and `obs` already shows the next one; or what `batch_outcomes` returned for them, if
            environments may reuse their observations. Without it, `obs`.
        strict: refuse ids, and names of entities in masks, that are in no order, as in a set.

    Raises:
        InvalidObservation: an observation, the one at `env_index`, contradicts the spaces.
    """
    # Features, visibility and ids of the frames that are shown.
    with_globals = has_global_entity(obs_space, action_space)
    features, visible, kinds = batch_entities(obs, obs_space, with_globals)
    frames = Frames(obs, list(obs_space.entities), features, visible, strict)
    frames.check_ids()
    given_names([o.actions for o in obs], action_space, "actions: expected some of")
    # Rewards, flags and metrics of the step that was taken.
    if not isinstance(outcomes, Outcomes):
        outcomes = batch_outcomes(obs if outcomes is None else outcomes, obs_space, action_space)
    masks = {name: space.batch_mask(frames, name) for name, space in action_space.items()}
    masks = link(masks, action_space, partial(_check_named, frames, masks))
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


def _check_named(
    frames: Frames,
    masks: Mapping[ActionName, VecActionMask],
    name: ActionName,
    before: ActionName,
    rows: IntArray,
) -> None:
    """Raise if actors of a dependent action are not named in the action before; see `link`."""
    given: list[Any] = [o.actions.get(before) for o in frames.obs]
    ids = [() if mask is None else getattr(mask, "actor_ids", None) for mask in given]
    types = [None if mask is None else getattr(mask, "actor_types", None) for mask in given]
    named = frames.locate(ids, types, f"actions[{before!r}] actors")
    actors = masks[name].actors
    frame = np.repeat(np.arange(len(actors)), actors.lengths)
    for row in rows.tolist():
        i, position = int(frame[row]), int(actors.values[row])
        is_global = position == frames.totals[i]
        if given[i] is not None and not is_global and position not in named[i].values:
            got = f"the entity at position {position}"
            expected = f"actors of {before!r}, which comes before"
            raise unexpected(i, f"actions[{name!r}] actors", expected, got)


def _flags(values: Sequence[Any], name: str) -> BoolArray:
    """Return one flag of each environment, (B,)."""
    if set(map(type, values)) != {bool}:  # an attribute that was set after the constructor
        values = [as_flag(value, name, i) for i, value in enumerate(values)]
    return np.array(values, dtype=np.bool_)


@contextmanager
def located_in_last(truncated: BoolArray) -> Iterator[None]:
    """Name the environment, and the last observation, in errors about those of truncated episodes.

    Args:
        truncated: (B,) the environments whose episode was cut off.
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
    """Concatenate the features and visibility of all frames, once per entity type.

    Returns:
        features: float32 (n, num_features) per frame, for every type and, `with_globals`, GLOBAL.
        visible: bool (n,) per frame, for the types of which any frame hides anything.
        kinds: (n, num_kinds) per frame, the indices of labels, for the types that have kinds.
    """
    features = {}
    for name, entity in obs_space.entities.items():
        blocks, what = [o.features.get(name, ()) for o in obs], f"features of {name!r}"
        features[name] = _cat_features(blocks, len(entity.features), what, entity.kinds)
    given_names([o.features for o in obs], features, "entities: expected types among")
    hiding = given_names([o.visible for o in obs], features, "visible: expected types among")
    visible = {
        name: _cat_visible([o.visible.get(name) for o in obs], features[name].lengths, name)
        for name in features
        if name in hiding
    }
    if with_globals:
        rows = [(o.global_features,) for o in obs]
        width = len(obs_space.global_features)
        features[GLOBAL] = _cat_features(rows, width, "global_features", obs_space.global_kinds)
    kinds = {}
    for name, of_type in obs_space.kinds.items():
        both, num_numbers = features[name], features[name].values.shape[1] - len(of_type)
        features[name] = Ragged(np.ascontiguousarray(both.values[:, :num_numbers]), both.lengths)
        indices = both.values[:, num_numbers:].astype(label_dtype(of_type))
        kinds[name] = Ragged(indices, both.lengths)
    return features, visible, kinds


def _cat_features(
    blocks: Sequence[Any], num_numbers: int, what: str, kinds: Sequence[Kind]
) -> Ragged:
    """Concatenate blocks of rows, arrays or nested sequences, one per frame.

    A row has as many numbers, then a label or its index for each kind.

    Returns:
        float32 (n, num_numbers + num_kinds) per frame, with the indices of labels.
    """
    width = num_numbers + len(kinds)
    try:
        lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    except TypeError:
        i = next(i for i, block in enumerate(blocks) if not has_len(block))
        got = short_repr(blocks[i], LONG)
        expected = f"rows of {width} {'values' if kinds else 'numbers'}"
        raise unexpected(i, what, expected, got) from None
    rows = _cat_alike(blocks, width, kinds)
    if rows is None or len(rows) != lengths.sum():  # look at each one, to convert it or to complain
        nothing = np.zeros((0, width), dtype=np.float32)
        given = enumerate(zip(blocks, lengths.tolist(), strict=True))
        arrays = [
            as_rows(b if n else nothing, n, num_numbers, kinds, what, i) for i, (b, n) in given
        ]
        rows = np.concatenate([nothing, *arrays])
    return Ragged(rows, lengths)


def _cat_alike(blocks: Sequence[Any], width: int, kinds: Sequence[Kind]) -> Float32Array | None:
    """Concatenate blocks that are all float32 arrays or all nested lists; None for others.

    Joining the bytes of many small arrays takes a third of the time of `np.concatenate`, and
    reading the numbers of all lists in one go a quarter of that of converting each.
    """
    given = list(filter(len, blocks))
    types = set(map(type, given))
    try:
        if types == {np.ndarray}:
            shapes = {b.shape for b in given}
            if {s[1:] for s in shapes} != {(width,)} or {b.dtype for b in given} != {_FLOAT32}:
                return None
            joined = np.frombuffer(bytearray().join(given), _FLOAT32).reshape(-1, width)
            has_labels = not kinds or first_unknown(joined[:, -len(kinds) :], kinds) is None
            return joined if has_labels else None
        if types <= {list, tuple}:
            rows = list(chain.from_iterable(given))
            if set(map(type, rows)) <= {list, tuple} and set(map(len, rows)) <= {width}:
                return real_rows(encoded_rows(rows, kinds) if kinds and rows else rows, width)
    except Exception:  # of any kind: the check of each block raises the right one
        pass
    return None


def _cat_visible(flags: Sequence[Any], lengths: IntArray, name: str) -> Ragged:
    """Concatenate flags of (n,) per frame; a frame that gives none shows everything."""
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
    """Return the actions of each environment, in terms of its own ids and labels.

    Args:
        choices: int64 (actors,) per frame for every action, as `VecEnv.act` takes them.
        batch: the batch that the choices were made for.
        obs: the observations that `batch` was made from.
        obs_space: their space.
        action_space: their actions.
        probs: per action and frame, the probabilities to attach.

    Returns:
        For each environment the actions that its frame offered, in arrays and lists of its own. A
        global action with nothing legal is left out; an action without a legal choice for any
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
        given: Probabilities = [None] * len(obs) if probs is None else probs[name]
        if mask.after is not None:  # those who take it
            mask, taken = narrowed(mask, all_chosen[mask.after.action])
            _check_not_taken(name, chosen, taken)
            given = _taken_rows(given, chosen.lengths, taken)
            chosen = Ragged(chosen.values[taken], mask.actors.lengths)
        else:  # a copy, as environments may overwrite what they are given
            chosen = Ragged(chosen.values.copy(), chosen.lengths)
        if (found := space.illegal_choice(chosen.values, mask)) is not None:
            row, choice = found
            env_index = int(np.searchsorted(np.cumsum(mask.actors.lengths), row, side="right"))
            who = f"in environment {env_index}, by the entity at position {mask.actors.values[row]}"
            raise InvalidAction(f"actions[{name!r}]: {choice} {who}, is not allowed")
        decoded = space.decode(name, chosen, mask, obs, obs_space, given)
        for of_frame, action in zip(actions, decoded, strict=True):
            if action is not None:
                of_frame[name] = action
    return actions


def _check_not_taken(name: ActionName, chosen: Ragged, taken: BoolArray) -> None:
    """Raise if an actor has a choice in a dependent action that it does not take."""
    wrong = np.flatnonzero(is_taken(chosen.values) & ~taken)
    if len(wrong):
        row = int(wrong[0])
        env_index = int(np.searchsorted(np.cumsum(chosen.lengths), row, side="right"))
        expected = "NaN" if chosen.values.dtype.kind == "f" else "-1"
        raise InvalidAction(
            f"actions[{name!r}]: expected {expected} in environment {env_index}, for an actor that "
            f"chose something else before it, got {chosen.values[row]}"
        )


def _taken_rows(probs: Probabilities, lengths: IntArray, taken: BoolArray) -> Probabilities:
    """Return the probabilities of those who take a dependent action."""
    of_frames = Ragged(taken, lengths).of_frames()
    return [None if p is None else p[own] for p, own in zip(probs, of_frames, strict=True)]


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
    given = None if probs is None else {name: [p] for name, p in probs.items()}
    return unbatch_actions(chosen, batch, [last_obs], obs_space, action_spaces, given)[0]
