"""Conversion of a batch to names and arrays, and back, to send it to another process."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy.typing as npt

from entity_env.ragged import Ragged
from entity_env.spaces import batch_mask_type
from entity_env.vec.vec_env import VecActionMask, VecObs
from entity_env.workers.channel import Arrays


def take_apart(obs: VecObs) -> tuple[Any, Arrays]:
    """Return the names and arrays of a batch, for `put_together`.

    Returns:
        names: plain data with the names of the arrays.
        arrays: in the order of the names, not copied.
    """
    arrays: Arrays = []
    return _names(obs, arrays), arrays


def put_together(names: Any, arrays: Iterable[npt.NDArray[Any]]) -> VecObs:
    """Return the batch of names and arrays from `take_apart`.

    Args:
        names: of the arrays.
        arrays: in the order of the names; they are not copied.
    """
    return _obs(names, iter(arrays))


def _names(obs: VecObs, arrays: Arrays) -> Any:
    for rows in (*obs.features.values(), *obs.visible.values(), *obs.env_metrics.values()):
        arrays += (rows.values, rows.lengths)
    masks = [(name, *_mask_names(mask, arrays)) for name, mask in obs.action_masks.items()]
    arrays += (obs.reward, obs.done, obs.truncated)
    final = None if obs.final is None else _names(obs.final, arrays)
    return [*obs.features], [*obs.visible], [*obs.env_metrics], masks, obs.metrics, final


def _mask_names(mask: VecActionMask, arrays: Arrays) -> tuple[str, list[str]]:
    given = {name: rows for name, rows in vars(mask).items() if rows is not None}
    for rows in given.values():
        arrays += (rows.values, rows.lengths)
    return type(mask).__name__, [*given]


def _obs(names: Any, arrays: Iterator[npt.NDArray[Any]]) -> VecObs:
    features, visible, env_metrics, masks, metrics, final = names
    return VecObs(
        features={name: _rows(arrays) for name in features},
        visible={name: _rows(arrays) for name in visible},
        env_metrics={name: _rows(arrays) for name in env_metrics},
        action_masks={name: _mask(kind, given, arrays) for name, kind, given in masks},
        reward=next(arrays),
        done=next(arrays),
        truncated=next(arrays),
        metrics=metrics,
        final=None if final is None else _obs(final, arrays),
    )


def _mask(kind: str, given: list[str], arrays: Iterator[npt.NDArray[Any]]) -> VecActionMask:
    cls = batch_mask_type(kind)
    assert cls is not None
    rows: dict[str, Ragged | None] = {"mask": None, **{name: _rows(arrays) for name in given}}
    return cls(**rows)


def _rows(arrays: Iterator[npt.NDArray[Any]]) -> Ragged:
    return Ragged(next(arrays), next(arrays))
