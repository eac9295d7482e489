"""States of the environments of all ranks, and memory of players in them, as one; and parts."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.group import Group
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.episode_state import cat_states, split_state

_OF_ENVS, _OF_MATCHES = "episode_totals", "lessons"
"""Entries with arrays by name, of environments and of matches."""
_OF_RUN = "recording"
"""Entry that every rank has of all environments."""
_OF_BOTS = ("bots", "steps", "seeds")
_OF_EPISODES = {"seed", "episodes", "steps", "frames", "matches", "arguments"}
_KNOWN = {*_OF_EPISODES, _OF_ENVS, _OF_MATCHES, _OF_RUN}


def state_of_ranks(own: dict[str, Any] | None, group: Group) -> dict[str, Any] | None:
    """Return the state of the environments of all ranks; None if it is not known.

    Args:
        own: what `get_state` returned in this rank; that of environments which do not step one by
            one cannot be joined with others.
        group: processes of the run.
    """
    if group.size == 1:
        return own
    found = group.gather(own if own is not None and own.keys() <= _KNOWN else None, "saving")
    states: Sequence[dict[str, Any]] = [one for one in found if one is not None]
    if len(states) < group.size:
        return None
    state = cat_states(states)
    for entry in (name for name in (_OF_ENVS, _OF_MATCHES) if name in states[0]):
        arrays = [one[entry] for one in states]
        state[entry] = {n: np.concatenate([one[n] for one in arrays]) for n in arrays[0]}
    return {**state, **_of_run(states[0])}


def part_of_state(state: Mapping[str, Any], columns: range) -> dict[str, Any]:
    """Return the part of a state that is of consecutive environments."""
    start, stop = columns.start, columns.stop
    _, part, _ = split_state(state, [start, stop - start, len(state["steps"]) - stop])
    sides = len(state["steps"]) // len(state["matches"])
    for entry, each in ((_OF_ENVS, 1), (_OF_MATCHES, sides)):
        if entry in state:
            part[entry] = {n: x[start // each : stop // each] for n, x in state[entry].items()}
    return {**part, **_of_run(state)}


def _of_run(state: Mapping[str, Any]) -> dict[str, Any]:
    return {_OF_RUN: state[_OF_RUN]} if _OF_RUN in state else {}


def memory_of_ranks(own: Mapping[str, Tensor], group: Group, columns: range) -> dict[str, Tensor]:
    """Return the states of `PlayerMemory` in the environments of all ranks.

    Args:
        own: those of this rank, by name.
        group: processes of the run.
        columns: the environments of this rank.
    """
    moved = {name: x.cpu().numpy() for name, x in _moved(own, columns.start).items()}
    found: list[tuple[int, dict[str, Any]]] = group.gather((len(columns), moved), "saving")
    names = dict.fromkeys(name for _, one in found for name in one)
    # A player that is seated in some ranks alone remembers nothing in the others.
    for length, one in found:
        for name in names:
            if name.endswith("/begun"):
                one.setdefault(name, np.ones(length, np.bool_))
            elif name.endswith("/reward"):
                one.setdefault(name, np.zeros(length, np.float32))
    joined = {}
    for name in names:
        parts = [one[name] for _, one in found if name in one]
        joined[name] = torch.from_numpy(np.concatenate(parts, axis=int(_is_known(name))))
    return joined


def part_of_memory(state: Mapping[str, Tensor], columns: range) -> dict[str, Tensor]:
    """Return the part of states of `PlayerMemory` that is of consecutive environments."""
    part = {}
    for name, x in state.items():
        kind, _, field = name.rpartition("/")
        if field in ("known", "states"):
            environment = state[f"{kind}/known"][0]
            kept = (environment >= columns.start) & (environment < columns.stop)
            part[name] = x[:, kept] if _is_known(name) else x[kept]
        else:
            part[name] = x[columns.start : columns.stop]
    return _moved(part, -columns.start)


def _moved(state: Mapping[str, Tensor], by: int) -> dict[str, Tensor]:
    """Return states whose environments have other numbers."""
    return {
        name: torch.cat([x[:1] + by, x[1:]]) if _is_known(name) else x for name, x in state.items()
    }


def _is_known(name: str) -> bool:
    return name.endswith("/known")


def bots_of_ranks(own: Mapping[str, bytes], group: Group, columns: range) -> dict[str, bytes]:
    """Return the states of `BotPlayer` in the environments of all ranks, by the bot's name.

    Args:
        own: those of this rank.
        group: processes of the run.
        columns: the environments of this rank.
    """
    moved = {name: _moved_bot(unpack(state), columns.start) for name, state in own.items()}
    joined: dict[str, Any] = {}
    for of_rank in group.gather(moved, "saving"):
        for name, state in of_rank.items():
            for entry in _OF_BOTS:
                joined.setdefault(name, state)[entry].update(state[entry])
    return {name: pack(state, exact=True) for name, state in joined.items()}


def part_of_bot(state: bytes, columns: range) -> bytes:
    """Return the part of a state of `BotPlayer` that is of consecutive environments."""
    of_all = unpack(state)
    own = {name: {e: x for e, x in of_all[name].items() if e in columns} for name in _OF_BOTS}
    return pack(_moved_bot({**of_all, **own}, -columns.start))


def _moved_bot(state: Mapping[str, Any], by: int) -> dict[str, Any]:
    """Return a state of `BotPlayer` whose environments have other numbers."""
    return {**state, **{name: {e + by: x for e, x in state[name].items()} for name in _OF_BOTS}}
