"""Batching of features and visibility: one flat array per entity type."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.errors import InvalidObservation, invalid_in
from entity_env.obs_space import GLOBAL, EntityName, ObsSpace
from entity_env.observation import Observation, as_block
from entity_env.ragged import Ragged
from entity_env.real_numbers import has_mask, real_array, real_rows
from entity_env.short_repr import LONG, short_repr

Indices = npt.NDArray[np.int64]
_FLOAT32 = np.dtype(np.float32)


def batch_entities(
    obs: Sequence[Observation], obs_space: ObsSpace, with_globals: bool
) -> tuple[dict[EntityName, Ragged], dict[EntityName, Ragged]]:
    """Concatenate the features and visibility of all frames, once per entity type.

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
    given_names([o.features for o in obs], features, "entities: expected types among")
    hiding = given_names([o.visible for o in obs], features, "visible: expected types among")
    visible = {
        name: _cat_visible([o.visible.get(name) for o in obs], features[name].lengths, name)
        for name in features
        if name in hiding
    }
    if with_globals:
        features[GLOBAL] = _cat_features(
            [(o.global_features,) for o in obs], len(obs_space.global_features), "global_features"
        )
    return features, visible


def given_names(
    given: Sequence[Collection[str]], known: Collection[str], expected: str
) -> set[str]:
    """Return the names that any frame gives.

    Raises:
        InvalidObservation: one is not among those known; `expected` begins the message.
    """
    names: set[str] = set().union(*given)
    if names <= set(known):
        return names
    i = next(i for i, frame in enumerate(given) if not set(frame) <= set(known))
    unknown = [name for name in given[i] if name not in known]
    raise invalid_in(i, f"{expected} {list(known)}, got {unknown}")


def all_none(values: Sequence[Any]) -> bool:
    """Return whether all values are None; an array would compare its elements with None."""
    return set(map(type, values)) <= {type(None)}


def _cat_features(blocks: Sequence[Any], width: int, what: str) -> Ragged:
    """Concatenate blocks of (n, width) numbers, arrays or nested sequences, one per frame."""
    try:
        lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    except TypeError:
        i = next(i for i, block in enumerate(blocks) if not _has_len(block))
        raise invalid_in(
            i, f"{what}: expected rows of {width} numbers, got {short_repr(blocks[i], LONG)}"
        ) from None
    rows = _cat_alike(blocks, width)
    if rows is None or len(rows) != lengths.sum():  # look at each one, to convert it or to complain
        arrays = [
            _as_block(block if n else np.zeros((0, width)), n, width, what, i)
            for i, (block, n) in enumerate(zip(blocks, lengths.tolist(), strict=True))
        ]
        rows = np.concatenate([np.zeros((0, width), dtype=np.float32), *arrays])
    return Ragged(rows, lengths)


def _cat_alike(blocks: Sequence[Any], width: int) -> npt.NDArray[np.float32] | None:
    """Concatenate blocks that are all float32 arrays or all nested lists; None for others.

    Joining the bytes of many small arrays takes a third of the time of `np.concatenate`, and
    reading the numbers of all lists in one go a quarter of that of converting each.
    """
    given = list(filter(len, blocks))
    kinds = set(map(type, given))
    try:
        if kinds == {np.ndarray}:
            shapes = {b.shape for b in given}
            if {s[1:] for s in shapes} != {(width,)} or {b.dtype for b in given} != {_FLOAT32}:
                return None
            return np.frombuffer(bytearray().join(given), _FLOAT32).reshape(-1, width)
        if kinds <= {list, tuple}:
            rows = list(chain.from_iterable(given))
            if set(map(type, rows)) <= {list, tuple} and set(map(len, rows)) <= {width}:
                return real_rows(rows, width)
    except Exception:  # of any kind: the check of each block raises the right one
        pass
    return None


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


def as_flags(flags: Any, what: str, env_index: int | None = None) -> npt.NDArray[np.bool_]:
    """Return booleans that are given as such or as zeros and ones.

    Raises:
        InvalidObservation: they are something else, or a masked array.
    """
    try:
        if not has_mask(flags):
            array = np.asarray(flags)
            if array.dtype == np.bool_:
                return array
            if array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
                return array.astype(np.bool_)
    except Exception:  # nested sequences of different lengths, or an object's own conversion
        pass
    error = InvalidObservation(f"{what}: expected booleans, got {short_repr(flags, LONG)}")
    error.env_index = env_index
    raise error


def as_numbers(
    values: Sequence[Any], env_indices: Sequence[int], what: str
) -> npt.NDArray[np.float64]:
    """Return one number of each environment, (n,).

    Args:
        values: (n,) real numbers.
        env_indices: (n,) of the environments, for the message.
        what: the field, for the message.

    Raises:
        InvalidObservation: one of them is not a real number.
    """
    try:
        numbers = real_array(values).astype(np.float64)
        if numbers.shape == (len(values),):
            return numbers
    except (TypeError, ValueError, OverflowError):
        pass
    i = next(i for i, value in enumerate(values) if not _is_number(value))
    raise invalid_in(
        env_indices[i], f"{what}: expected a number, got {short_repr(values[i], LONG)}"
    )


def _is_number(value: Any) -> bool:
    try:
        return real_array(value).shape == ()
    except (TypeError, ValueError, OverflowError):
        return False


def _cat_visible(flags: Sequence[Any], lengths: Indices, name: str) -> Ragged:
    """Concatenate flags of (n,) per frame; a frame that gives none shows everything."""
    blocks = []
    for i, (flag, n) in enumerate(zip(flags, lengths, strict=True)):
        what = f"visible[{name!r}]"
        block = np.ones(n, np.bool_) if flag is None else as_flags(flag, what, i).reshape(-1)
        if len(block) != n:
            raise invalid_in(i, f"{what}: expected {n} flags, got {len(block)}")
        blocks.append(block)
    return Ragged(np.concatenate(blocks), lengths)
