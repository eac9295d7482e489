"""Gathering of the states of environments and players from all ranks, and their selection."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.group import Group
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.episode_state import cat_states, split_state

_ENV_ARRAYS, _MATCH_ARRAYS = "episode_totals", "lessons"
"""Entries with arrays by name, over environments and over matches."""
_SHARED = "recording"
"""Entry about all environments, which is equal on all ranks."""
_BOT_ENTRIES = ("bots", "steps", "seeds")
_EPISODE_ENTRIES = {"seed", "episodes", "steps", "frames", "matches", "arguments"}
_ENTRIES = {*_EPISODE_ENTRIES, _ENV_ARRAYS, _MATCH_ARRAYS, _SHARED}


def gather_env_states(local: dict[str, Any] | None, group: Group) -> dict[str, Any] | None:
    """Gather the states of the environments of all ranks; None if they cannot be joined.

    Args:
        local: result of `get_state` on this rank. Only states of environments that step one by one
            can be joined.
        group: processes of the run.
    """
    if group.size == 1:
        return local
    can_join = local is not None and local.keys() <= _ENTRIES
    by_rank = group.gather(local if can_join else None, "saving")
    states: Sequence[dict[str, Any]] = [s for s in by_rank if s is not None]
    if len(states) < group.size:
        return None
    state = cat_states(states)
    for entry in (name for name in (_ENV_ARRAYS, _MATCH_ARRAYS) if name in states[0]):
        arrays = [s[entry] for s in states]
        state[entry] = {n: np.concatenate([s[n] for s in arrays]) for n in arrays[0]}
    return {**state, **_shared_entries(states[0])}


def select_env_states(state: Mapping[str, Any], columns: range) -> dict[str, Any]:
    """Select the state of consecutive environments."""
    start, stop = columns.start, columns.stop
    _, part, _ = split_state(state, [start, stop - start, len(state["steps"]) - stop])
    sides = len(state["steps"]) // len(state["matches"])
    for entry, each in ((_ENV_ARRAYS, 1), (_MATCH_ARRAYS, sides)):
        if entry in state:
            part[entry] = {n: x[start // each : stop // each] for n, x in state[entry].items()}
    return {**part, **_shared_entries(state)}


def _shared_entries(state: Mapping[str, Any]) -> dict[str, Any]:
    return {_SHARED: state[_SHARED]} if _SHARED in state else {}


def gather_memory(state: Mapping[str, Tensor], group: Group, columns: range) -> dict[str, Tensor]:
    """Gather the states of `PlayerMemory` from all ranks.

    Args:
        state: states of this rank, by name.
        group: processes of the run.
        columns: the environments of this rank.
    """
    shifted = {name: x.cpu().numpy() for name, x in _shift_keys(state, columns.start).items()}
    by_rank: list[tuple[int, dict[str, Any]]] = group.gather((len(columns), shifted), "saving")
    names = dict.fromkeys(name for _, tensors in by_rank for name in tensors)
    # A player that is absent from some ranks has no memory in their environments.
    for length, tensors in by_rank:
        for name in names:
            if name.endswith("/begun"):
                tensors.setdefault(name, np.ones(length, np.bool_))
            elif name.endswith("/reward"):
                tensors.setdefault(name, np.zeros(length, np.float32))
    joined = {}
    for name in names:
        parts = [tensors[name] for _, tensors in by_rank if name in tensors]
        joined[name] = torch.from_numpy(np.concatenate(parts, axis=int(_has_keys(name))))
    return joined


def select_memory(state: Mapping[str, Tensor], columns: range) -> dict[str, Tensor]:
    """Select the states of `PlayerMemory` in consecutive environments."""
    part = {}
    for name, x in state.items():
        kind, _, field = name.rpartition("/")
        if field in ("known", "states"):
            environment = state[f"{kind}/known"][0]
            is_selected = (environment >= columns.start) & (environment < columns.stop)
            part[name] = x[:, is_selected] if _has_keys(name) else x[is_selected]
        else:
            part[name] = x[columns.start : columns.stop]
    return _shift_keys(part, -columns.start)


def _shift_keys(state: Mapping[str, Tensor], by: int) -> dict[str, Tensor]:
    """Add an offset to the environment indices in states of `PlayerMemory`."""
    return {
        name: torch.cat([x[:1] + by, x[1:]]) if _has_keys(name) else x for name, x in state.items()
    }


def _has_keys(name: str) -> bool:
    return name.endswith("/known")


def gather_bots(states: Mapping[str, bytes], group: Group, columns: range) -> dict[str, bytes]:
    """Gather the states of `BotPlayer` from all ranks, by the bot's name.

    Args:
        states: states of this rank.
        group: processes of the run.
        columns: the environments of this rank.
    """
    shifted = {name: _shift_bots(unpack(state), columns.start) for name, state in states.items()}
    joined: dict[str, Any] = {}
    for rank_states in group.gather(shifted, "saving"):
        for name, state in rank_states.items():
            for entry in _BOT_ENTRIES:
                joined.setdefault(name, state)[entry].update(state[entry])
    return {name: pack(state, exact=True) for name, state in joined.items()}


def select_bots(state: bytes, columns: range) -> bytes:
    """Select the state of a `BotPlayer` in consecutive environments."""
    all_bots = unpack(state)
    selected = {
        name: {e: x for e, x in all_bots[name].items() if e in columns} for name in _BOT_ENTRIES
    }
    return pack(_shift_bots({**all_bots, **selected}, -columns.start))


def _shift_bots(state: Mapping[str, Any], by: int) -> dict[str, Any]:
    """Add an offset to the environment indices in a state of `BotPlayer`."""
    return {**state, **{name: {e + by: x for e, x in state[name].items()} for name in _BOT_ENTRIES}}
