"""Small worlds that can be learnt in seconds to hours, one per file."""

from entity_env.environment import Environment
from entity_env.examples.cherry_pick import CherryPick
from entity_env.examples.count import Count
from entity_env.examples.duel import Duel
from entity_env.examples.floor_is_lava import FloorIsLava
from entity_env.examples.hidden_arm import HiddenArm
from entity_env.examples.kuhn_poker import KuhnPoker
from entity_env.examples.locks import Locks
from entity_env.examples.medics import Medics
from entity_env.examples.minefield import Minefield
from entity_env.examples.minefield_vec import VecMinefield
from entity_env.examples.minesweeper import MineSweeper
from entity_env.examples.move_to_origin import MoveToOrigin
from entity_env.examples.multi_armed_bandit import MultiArmedBandit
from entity_env.examples.multi_snake import MultiSnake
from entity_env.examples.multi_snake_vec import VecMultiSnake
from entity_env.examples.not_hotdog import NotHotdog
from entity_env.examples.pairs import Pairs
from entity_env.examples.pick_matching_balls import PickMatchingBalls
from entity_env.examples.rock_paper_scissors import RockPaperScissors
from entity_env.examples.shells import Shells
from entity_env.examples.treasure_hunt import TreasureHunt
from entity_env.examples.tugs import Tugs
from entity_env.examples.uneven_throws import UnevenThrows
from entity_env.examples.xor import Xor
from entity_env.match import Match

ENV_REGISTRY: dict[str, type[Environment] | type[Match]] = {
    "MoveToOrigin": MoveToOrigin,
    "CherryPick": CherryPick,
    "PickMatchingBalls": PickMatchingBalls,
    "Minefield": Minefield,
    "MultiSnake": MultiSnake,
    "MultiArmedBandit": MultiArmedBandit,
    "NotHotdog": NotHotdog,
    "Xor": Xor,
    "Count": Count,
    "FloorIsLava": FloorIsLava,
    "MineSweeper": MineSweeper,
    "RockPaperScissors": RockPaperScissors,
    "TreasureHunt": TreasureHunt,
    "Duel": Duel,
    "KuhnPoker": KuhnPoker,
    "UnevenThrows": UnevenThrows,
    "Shells": Shells,
    "Pairs": Pairs,
    "HiddenArm": HiddenArm,
    "Tugs": Tugs,
    "Medics": Medics,
    "Locks": Locks,
}

__all__ = [
    "ENV_REGISTRY",
    "CherryPick",
    "Count",
    "Duel",
    "FloorIsLava",
    "HiddenArm",
    "KuhnPoker",
    "Locks",
    "Medics",
    "MineSweeper",
    "Minefield",
    "MoveToOrigin",
    "MultiArmedBandit",
    "MultiSnake",
    "NotHotdog",
    "Pairs",
    "PickMatchingBalls",
    "RockPaperScissors",
    "Shells",
    "TreasureHunt",
    "Tugs",
    "UnevenThrows",
    "VecMinefield",
    "VecMultiSnake",
    "Xor",
]
