"""From the features and visibility of many observations to one flat array per entity type."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.environment import Observation, as_block
from entity_env.errors import InvalidObservation, invalid_in
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, EntityName, ObsSpace

Indices = npt.NDArray[np.int64]


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
            raise invalid_in(i, f"entities: expected types among {list(features)}, got {unknown}")
    visible = {
        name: _cat_visible([o.visible.get(name) for o in obs], features[name].lengths, name)
        for name in features
        if any(name in o.visible for o in obs)
    }
    for i, o in enumerate(obs):
        if not o.visible.keys() <= visible.keys():
            unknown = [name for name in o.visible if name not in features]
            raise invalid_in(i, f"visible: expected types among {list(features)}, got {unknown}")
    if with_globals:
        features[GLOBAL] = _cat_features(
            [(o.global_features,) for o in obs], len(obs_space.global_features), "global_features"
        )
    return features, visible


def _cat_features(blocks: Sequence[Any], width: int, what: str) -> Ragged:
    """Blocks of (n, width) numbers, as arrays or nested sequences, one per frame."""
    try:
        lengths = np.fromiter(map(len, blocks), dtype=np.int64, count=len(blocks))
    except TypeError:
        i = next(i for i, block in enumerate(blocks) if not _has_len(block))
        raise invalid_in(
            i, f"{what}: expected rows of {width} numbers, got {blocks[i]!r}"
        ) from None
    empty = np.zeros((0, width), dtype=np.float32)
    shown = [block if n else empty for block, n in zip(blocks, lengths.tolist(), strict=True)]
    try:
        rows = np.concatenate([empty, *shown])
    except (TypeError, ValueError):
        rows = empty[:, :0]
    if rows.shape != (lengths.sum(), width) or rows.dtype.kind not in "biuf":
        # Not all are arrays or sequences of this width: look at each one, to say which.
        arrays = [
            _as_block(block, int(n), width, what, i)
            for i, (block, n) in enumerate(zip(shown, lengths, strict=True))
        ]
        rows = np.concatenate([empty, *arrays])
    return Ragged(rows.astype(np.float32, copy=False), lengths)


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


def as_flags(flags: Any, what: str, env_index: int) -> npt.NDArray[np.bool_]:
    """Booleans, given as such or as zeros and ones."""
    try:
        array = np.asarray(flags)
        if array.dtype == np.bool_:
            return array
        if array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
            return array.astype(np.bool_)
    except ValueError:
        pass  # nested sequences of different lengths
    raise invalid_in(env_index, f"{what}: expected booleans, got {flags!r}")


def as_numbers(
    values: Sequence[Any], env_indices: Sequence[int], what: str
) -> npt.NDArray[np.float64]:
    """One number of each environment, (n,); `env_indices` are for the message when one is not."""
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
    raise invalid_in(env_indices[i], f"{what}: expected a number, got {values[i]!r}")


def _cat_visible(flags: Sequence[Any], lengths: Indices, name: str) -> Ragged:
    """Flags of (n,) per frame; a frame that gives none shows everything."""
    blocks = []
    for i, (flag, n) in enumerate(zip(flags, lengths, strict=True)):
        what = f"visible[{name!r}]"
        block = np.ones(n, np.bool_) if flag is None else as_flags(flag, what, i).reshape(-1)
        if len(block) != n:
            raise invalid_in(i, f"{what}: expected {n} flags, got {len(block)}")
        blocks.append(block)
    return Ragged(np.concatenate(blocks), lengths)
