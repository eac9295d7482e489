"""States of the environments of all ranks as one, and the part of one rank."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from enn_trainer.scale.group import Group
from entity_env.vec.episode_state import cat_states, split_state

_TOTALS = "episode_totals"
_KNOWN = {"seed", "episodes", "steps", "frames", "matches", "arguments", _TOTALS}


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
    if _TOTALS in states[0]:
        totals = [one[_TOTALS] for one in states]
        state[_TOTALS] = {n: np.concatenate([one[n] for one in totals]) for n in totals[0]}
    return state


def part_of_state(state: Mapping[str, Any], columns: range) -> dict[str, Any]:
    """Return the part of a state that is of consecutive environments."""
    start, stop = columns.start, columns.stop
    counts = [start, stop - start, len(state["steps"]) - stop]
    pieces = split_state(state, [count for count in counts if count > 0])
    part = pieces[1 if start else 0]
    if _TOTALS in state:
        part[_TOTALS] = {name: x[start:stop] for name, x in state[_TOTALS].items()}
    return part
