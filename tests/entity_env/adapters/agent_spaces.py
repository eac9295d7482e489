"""Spaces of agents, and random play of their translators."""

from typing import Any

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

from entity_env.adapters.agent_translator import AgentTranslator, AgentView
from entity_env.adapters.mapping import Rows
from tests.entity_env.adapters.worlds import choose

Space = spaces.Space[Any]
FLAT = spaces.Box(-9, 9, (2,), np.float32)
ROWS = spaces.Box(-9, 9, (4, 2), np.float32)
ANY_ROWS = spaces.Sequence(spaces.Box(-9, 9, (2,), np.float32), stack=True)
UNITS = {"unit": Rows(columns=["here", "x"], presence="here")}


def action_spaces() -> st.SearchStrategy[Space]:
    leaf = st.one_of(
        st.builds(lambda n, s: spaces.Discrete(n, start=s), st.integers(1, 4), st.integers(-2, 2)),
        st.lists(st.integers(1, 3), min_size=1, max_size=3).map(spaces.MultiDiscrete),
        st.just(spaces.MultiDiscrete([[2, 3], [3, 2]], start=[[0, 1], [5, 5]])),
        st.builds(spaces.MultiBinary, st.integers(1, 3)),
    )
    return st.recursive(
        leaf,
        lambda inner: (
            st.dictionaries(st.sampled_from("ab"), inner, min_size=1).map(spaces.Dict)
            | st.lists(inner, min_size=1, max_size=2).map(spaces.Tuple)
        ),
        max_leaves=4,
    )


def play(translator: AgentTranslator, view: AgentView, rng: np.random.Generator) -> Any:
    obs = view.to_observation()
    return translator.translate_actions(
        view, choose(obs, translator.obs_space, translator.action_space, rng)
    )
