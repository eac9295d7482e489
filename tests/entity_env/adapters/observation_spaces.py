"""Observation spaces of Gymnasium, and strategies of them."""

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

Space = spaces.Space[Any]


def box(*shape: int) -> spaces.Box:
    return spaces.Box(-5.0, 5.0, shape, np.float32)


def leaves() -> st.SearchStrategy[Space]:
    counts = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    return st.one_of(
        st.builds(box),
        st.builds(box, st.integers(1, 4)),
        st.builds(box, st.integers(1, 4), st.integers(1, 4)),
        st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 5), st.integers(-3, 3)),
        st.builds(lambda n: spaces.MultiDiscrete(n, start=[2] * len(n)), counts),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
        st.just(spaces.MultiBinary([2, 3])),
        st.just(spaces.MultiDiscrete([[2, 3], [4, 3]])),
    )


def elements() -> st.SearchStrategy[Space]:
    flat = st.one_of(
        st.builds(box, st.integers(1, 4)), st.builds(box), st.builds(spaces.Discrete, st.just(3))
    )
    return flat | st.dictionaries(st.sampled_from("pqr"), flat, min_size=1).map(spaces.Dict)


def any_space() -> st.SearchStrategy[Space]:
    sequences = st.builds(lambda e, s: spaces.Sequence(e, stack=s), elements(), st.booleans())
    nodes = st.one_of(st.builds(box, st.integers(1, 3)), st.just(spaces.Discrete(3)))
    graphs = st.builds(spaces.Graph, nodes, nodes | st.none())
    leaf = leaves() | sequences | graphs
    inner = st.dictionaries(st.sampled_from(["a", "b", "c.d"]), leaf, min_size=1).map(
        spaces.Dict
    ) | st.lists(leaf, min_size=1, max_size=3).map(spaces.Tuple)
    return (
        leaf | inner | st.dictionaries(st.sampled_from("xyz"), inner, min_size=1).map(spaces.Dict)
    )
