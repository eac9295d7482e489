"""Small worlds that can be learnt in seconds to minutes, one per file."""

from entity_env.environment import Environment
from entity_env.examples.count import Count
from entity_env.examples.duel import Duel
from entity_env.examples.move_to_origin import MoveToOrigin
from entity_env.examples.multi_armed_bandit import MultiArmedBandit
from entity_env.examples.not_hotdog import NotHotdog
from entity_env.examples.treasure_hunt import TreasureHunt
from entity_env.examples.xor import Xor
from entity_env.match import Match

ENV_REGISTRY: dict[str, type[Environment] | type[Match]] = {
    "Count": Count,
    "Duel": Duel,
    "MoveToOrigin": MoveToOrigin,
    "MultiArmedBandit": MultiArmedBandit,
    "NotHotdog": NotHotdog,
    "TreasureHunt": TreasureHunt,
    "Xor": Xor,
}

__all__ = [
    "ENV_REGISTRY",
    "Count",
    "Duel",
    "MoveToOrigin",
    "MultiArmedBandit",
    "NotHotdog",
    "TreasureHunt",
    "Xor",
]
