"""Example environments that train in seconds to hours, one per file, imported lazily."""

import sys
from collections import UserDict
from typing import TYPE_CHECKING, Any, TypeAlias

from entity_env.environment import Environment
from entity_env.imports import export_lazily
from entity_env.match import Match

if TYPE_CHECKING:
    from entity_env.examples.cherry_pick import CherryPick as CherryPick
    from entity_env.examples.count import Count as Count
    from entity_env.examples.duel import Duel as Duel
    from entity_env.examples.floor_is_lava import FloorIsLava as FloorIsLava
    from entity_env.examples.hidden_arm import HiddenArm as HiddenArm
    from entity_env.examples.kuhn_poker import KuhnPoker as KuhnPoker
    from entity_env.examples.locks import Locks as Locks
    from entity_env.examples.medics import Medics as Medics
    from entity_env.examples.minefield import Minefield as Minefield
    from entity_env.examples.minefield_vec import VecMinefield as VecMinefield
    from entity_env.examples.minesweeper import MineSweeper as MineSweeper
    from entity_env.examples.move_to_origin import MoveToOrigin as MoveToOrigin
    from entity_env.examples.multi_armed_bandit import MultiArmedBandit as MultiArmedBandit
    from entity_env.examples.multi_snake import MultiSnake as MultiSnake
    from entity_env.examples.multi_snake_vec import VecMultiSnake as VecMultiSnake
    from entity_env.examples.not_hotdog import NotHotdog as NotHotdog
    from entity_env.examples.pairs import Pairs as Pairs
    from entity_env.examples.pick_matching_balls import PickMatchingBalls as PickMatchingBalls
    from entity_env.examples.rock_paper_scissors import RockPaperScissors as RockPaperScissors
    from entity_env.examples.shells import Shells as Shells
    from entity_env.examples.treasure_hunt import TreasureHunt as TreasureHunt
    from entity_env.examples.tugs import Tugs as Tugs
    from entity_env.examples.uneven_throws import UnevenThrows as UnevenThrows
    from entity_env.examples.xor import Xor as Xor

World: TypeAlias = type[Environment] | type[Match]
_NOT_IMPORTED: Any = None


class ExampleRegistry(UserDict[str, World]):
    """Registry of environment classes by name, which imports examples on first access."""

    def __getitem__(self, name: str) -> World:
        if self.data[name] is _NOT_IMPORTED:
            self.data[name] = getattr(sys.modules[__name__], name)
        return self.data[name]


_NAMES = (
    "MoveToOrigin CherryPick PickMatchingBalls Minefield MultiSnake MultiArmedBandit NotHotdog Xor "
    "Count FloorIsLava MineSweeper RockPaperScissors TreasureHunt Duel KuhnPoker UnevenThrows "
    "Shells Pairs HiddenArm Tugs Medics Locks"
)
ENV_REGISTRY = ExampleRegistry(dict.fromkeys(_NAMES.split(), _NOT_IMPORTED))

export_lazily(
    __name__,
    {
        __name__: "ENV_REGISTRY",
        "entity_env.examples.cherry_pick": "CherryPick",
        "entity_env.examples.count": "Count",
        "entity_env.examples.duel": "Duel",
        "entity_env.examples.floor_is_lava": "FloorIsLava",
        "entity_env.examples.hidden_arm": "HiddenArm",
        "entity_env.examples.kuhn_poker": "KuhnPoker",
        "entity_env.examples.locks": "Locks",
        "entity_env.examples.medics": "Medics",
        "entity_env.examples.minefield": "Minefield",
        "entity_env.examples.minefield_vec": "VecMinefield",
        "entity_env.examples.minesweeper": "MineSweeper",
        "entity_env.examples.move_to_origin": "MoveToOrigin",
        "entity_env.examples.multi_armed_bandit": "MultiArmedBandit",
        "entity_env.examples.multi_snake": "MultiSnake",
        "entity_env.examples.multi_snake_vec": "VecMultiSnake",
        "entity_env.examples.not_hotdog": "NotHotdog",
        "entity_env.examples.pairs": "Pairs",
        "entity_env.examples.pick_matching_balls": "PickMatchingBalls",
        "entity_env.examples.rock_paper_scissors": "RockPaperScissors",
        "entity_env.examples.shells": "Shells",
        "entity_env.examples.treasure_hunt": "TreasureHunt",
        "entity_env.examples.tugs": "Tugs",
        "entity_env.examples.uneven_throws": "UnevenThrows",
        "entity_env.examples.xor": "Xor",
    },
)
