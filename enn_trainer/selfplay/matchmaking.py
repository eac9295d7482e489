"""Matchmaking: sampling of opponents from a pool, and seats of the agent; stateless."""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from enn_trainer.base.errors import ConfigError
from entity_env.arrays import FloatArray, IntArray
from entity_env.errors import short_repr
from entity_env.seeding import derive_seed, mix, uniforms_f64

Choose = Literal["uniform", "latest", "pfsp", "even"]
NAMED = -1
"""Step of a member that is not a snapshot of this run."""


def member_weights(choose: Choose, expected: FloatArray, steps: IntArray) -> FloatArray:
    """Return the sampling weights of members.

    Args:
        choose: "uniform", equal weights; "latest", the newest snapshot only; "pfsp", (1 - p)^2,
            which prefers members that beat the agent; "even", p(1 - p), which prefers members as
            strong as the agent.
        expected: (M,) float, p, the agent's expected score against each member.
        steps: (M,) int64, the steps of snapshots; `NAMED` for other members.

    Returns:
        (M,) float64, at least 0.

    Source: Vinyals et al. 2019, https://doi.org/10.1038/s41586-019-1724-z, prioritized fictitious
    self-play with f_hard(p) = (1 - p)^2 and f_var(p) = p(1 - p).
    """
    if choose == "uniform":
        return np.ones(len(expected))
    if choose == "latest":
        newest = steps.max(initial=NAMED)
        return np.asarray((steps == newest) & (steps > NAMED), dtype=np.float64)
    if choose == "pfsp":
        return np.asarray(np.square(1 - expected))
    return expected * (1 - expected)


def validated_weights(weights: object, names: Sequence[str], step: int) -> FloatArray:
    """Validate the result of a matchmaker, and convert it to an array.

    Args:
        weights: one number for each member.
        names: names of the members.
        step: frames of the run, for messages.

    Returns:
        (M,) float64, finite, at least 0 and not all 0.

    Raises:
        ConfigError: the weights are invalid; the message has the member and the step.
    """
    place = f"matchmaker at step {step}"
    expected = f"{place}: expected {len(names)} weights, one for each member"
    try:
        array = np.array(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{expected}, got {short_repr(weights)}") from None
    if array.shape != (len(names),):
        raise ConfigError(f"{expected}, got an array of shape {array.shape}")
    is_wrong = ~(np.isfinite(array) & (array >= 0))
    if is_wrong.any():
        i = int(is_wrong.argmax())
        raise ConfigError(
            f"{place}: weight of {names[i]!r}: expected a finite number of at least 0, got "
            f"{array[i]}"
        )
    if not array.any():
        raise ConfigError(
            f"{place}: expected a weight above 0 for at least one member, all {len(names)} are 0"
        )
    return array


def draw_in_play(weights: FloatArray, count: int, seed: int, step: int) -> IntArray:
    """Sample the members in play in an update by weight, without replacement.

    The result is a function of the arguments only.

    Args:
        weights: (M,) float, at least 0.
        count: maximal number of members; only members with a weight above 0 are drawn.
        seed: seed of the run.
        step: frames of the run at the start of the update.

    Returns:
        (min(count, number of weights above 0),) int64, ascending.

    Source: Efraimidis and Spirakis 2006, https://doi.org/10.1016/j.ipl.2005.11.003.
    """
    positive = np.flatnonzero(weights)
    bits = mix(derive_seed(seed, "opponents in play"), step, positive)
    # The smallest -log(u_i) / w_i, in logarithms, as weights may be tiny.
    u = np.maximum(uniforms_f64(bits), 2.0**-54)
    times = np.log(-np.log(u)) - np.log(weights[positive])
    return np.sort(positive[np.argsort(times, kind="stable")[:count]])


def draw_opponents(
    weights: FloatArray, seed: int, matches: IntArray, games: IntArray, seats: IntArray
) -> IntArray:
    """Sample the opponents of the seats of new games, independently of each other.

    The result is a function of the arguments only.

    Args:
        weights: (K,) float, sampling weights of the members in play; at least 0 and not all 0.
        seed: seed of the run.
        matches: (n,) int64, the match of each seat.
        games: (n,) int64, number of the game in that match.
        seats: (n,) int64, the seats.

    Returns:
        (n,) int64, positions in `weights`; a position with weight 0 is never drawn.
    """
    upper = np.cumsum(weights / weights.max())
    u = uniforms_f64(mix(derive_seed(seed, "opponents"), matches, games, seats))
    # The first k with u < (w_0 + ... + w_k) / (w_0 + ... + w_{K-1}). The last quotient is 1.
    return np.searchsorted(upper / upper[-1], u, side="right")


def agent_seats(sides: IntArray, matches: IntArray, games: IntArray) -> IntArray:
    """Return the seats of the agent in matches against the pool.

    Seats rotate from game to game and from match to match, so that each is used equally often.

    Args:
        sides: (K,) int64, the seats that the agent may have.
        matches: (n,) int64, matches.
        games: (n,) int64, number of the game in each match.

    Returns:
        (n,) int64, out of `sides`.
    """
    return np.asarray(sides[(matches + games) % len(sides)])


def snapshot_to_evict(steps: IntArray) -> int:
    """Return the snapshot to evict from a full pool: the one with the closest neighbours in step.

    The distance between its neighbours is minimal. The oldest snapshot, which has one neighbour, is
    evicted last, so that snapshots are spread over the whole run; the newest is never evicted. Ties
    go to the older snapshot.

    Args:
        steps: (M,) int64, ascending, M of at least 2.

    Returns:
        Position in `steps`.
    """
    assert len(steps) >= 2
    gaps = np.full(len(steps) - 1, np.inf)
    gaps[1:] = steps[2:] - steps[:-2]
    return int(gaps.argmin())
