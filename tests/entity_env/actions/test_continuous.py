"""Continuous action spaces: initial means."""

import math
from typing import Any

import pytest

from entity_env import ContinuousActionSpace, GlobalContinuousActionSpace, InvalidSpace
from entity_env.serialization.messages import pack, unpack

BOUNDS = {"gas": (0.0, 5.0), "steer": (-1.0, 1.0), "bid": (-math.inf, math.inf)}


def logit(share: float) -> float:
    return math.log(share / (1 - share))


@pytest.mark.parametrize("cls", [ContinuousActionSpace, GlobalContinuousActionSpace])
def test_means_begin_at_start_or_in_the_middle(cls: Any) -> None:
    space = cls(BOUNDS, start={"gas": 1, "bid": -7})
    assert [space.initial_value(name) for name in BOUNDS] == [1.0, 0.0, -7.0]
    assert space.initial_means().tolist() == pytest.approx([logit(0.2), 0.0, -7.0])
    assert cls(BOUNDS).initial_means().tolist() == [0.0, 0.0, 0.0]
    assert cls(["gas"], [0], [5], start={"gas": 4}).initial_value("gas") == 4.0


def test_initial_means_near_a_bound_are_moved_from_it() -> None:
    space = ContinuousActionSpace(BOUNDS, start={"gas": 0, "steer": 1})
    assert space.initial_means().tolist() == pytest.approx([logit(0.02), logit(0.98), 0.0])


def test_initial_means_follow_their_components_and_do_not_distinguish_spaces() -> None:
    space = ContinuousActionSpace(BOUNDS, start={"gas": 1})
    assert space == ContinuousActionSpace(BOUNDS)
    renamed = space.renamed({"gas": "thrust", "steer": "steer", "bid": "bid"})
    assert renamed.initial_value("thrust") == 1.0
    received = unpack(pack(space))
    assert received.initial_value("gas") == 1.0


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"gas": 5.1}, r"start\['gas'\]: expected a finite number from 0 to 5, got 5.1"),
        ({"bid": math.nan}, r"start\['bid'\]: expected a finite number from -inf to inf, got nan"),
        ({"bid": math.inf}, r"start\['bid'\]: expected a finite number"),
        ({"gas": True}, r"start\['gas'\]: expected a finite number"),
        ({"gas": "1"}, r"start\['gas'\]: expected a finite number"),
        ({"gsa": 1}, r"start\['gsa'\]: expected one of the components \['gas', 'steer', 'bid'\]"),
    ],
)
def test_invalid_initial_means_are_refused(start: Any, message: str) -> None:
    with pytest.raises(InvalidSpace, match=message):
        ContinuousActionSpace(BOUNDS, start=start)
