"""simple_spread: agents move to landmarks; observations are relative positions."""

from mpe2 import simple_spread_v3
from pettingzoo import ParallelEnv

from entity_env import Match
from entity_env.adapters.from_pettingzoo import FromPettingZoo
from entity_env.adapters.mapping import Choice, FieldMap, Rows

MOST = 5
MAPPING = FieldMap(
    entities={
        "me": Rows(columns=["vx", "vy", "x", "y"], span=(0, 4)),
        "landmark": Rows(columns=["dx", "dy"], span=(4, 14), absent=(0, 0)),
        "other": Rows(columns=["dx", "dy"], span=(14, 22), absent=(0, 0)),
    },
    actions={"move": Choice(labels=["stay", "left", "right", "down", "up"])},
    ignore=[""],  # messages of other agents, always empty
)


def flat(agents: int = 3) -> ParallelEnv:
    """Return the environment; vectors are sorted by distance and padded for five agents."""
    return simple_spread_v3.parallel_env(
        N=agents, num_agent_neighbors=MOST - 1, num_landmark_neighbors=MOST
    )


def spread(agents: int = 3) -> Match:
    return FromPettingZoo(flat, MAPPING, agents=agents)
