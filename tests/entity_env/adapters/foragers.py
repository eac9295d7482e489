"""Match of Level-Based Foraging."""

from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents
from tests.entity_env.adapters.worlds import FORAGING, FORAGING_ID

FORAGERS = FromGymnasiumAgents.of(FORAGING_ID, FORAGING)
