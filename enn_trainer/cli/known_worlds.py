"""Facts about the worlds that ship with this program, one line each."""

import json
from typing import Any, NamedTuple

_TABLE = """\
MoveToOrigin|steering: two actions of one actor|move_to_origin||1|1001472|2.6|0.988|{}
CherryPick|selecting entities one by one|cherry_pick||1|251904|19.1|0.9916|{}
PickMatchingBalls|consistency|pick_matching_balls||1|500736|44.9|0.9992|{"one_hot":true,"randomize":true}
Minefield|relative positions and headings|minefield||1|2031616|6.9|0.999|{}
MultiSnake|several actors on a grid|multisnake_1snakes11len||1|5013504|23.6|0.9923|{"num_snakes":1}
MultiArmedBandit|a global action, no entities|multi_armed_bandit||1|32768|0.3|1|{}
NotHotdog|entity types without features|not_hotdog||1|32768|0.4|1|{}
Xor|combining two entities|xor||1|501760|1.6|1|{}
Count|counting entities, masks|count||1|2000|0.2|1|{"masked_choices":2}
FloorIsLava|relative positions|floor_is_lava||1|32768|0.4|0.999|{}
MineSweeper|two kinds of actors|||1|null|null|null|{}
RockPaperScissors|features for the value only|rock_paper_scissors||1|4096|0.1|0.9953|{}
TreasureHunt|a global action on a grid|treasure_hunt||5|100352|2.2|3.3646|{}
Duel|self-play, choice of targets|duel|of matches won|1|200704|1.3|0.9957|{}"""


class KnownWorld(NamedTuple):
    """Facts about a world; numbers of training are those of `benchmarks/results/learning.md`.

    Attributes:
        name: name of the world.
        teaches: subject of the world in a few words.
        config: name of its settings in `configs/`; "" without any.
        measure: unit of `learnt`, if that is not the return: then it is the share against `random`.
        best: the highest possible mean return.
        frames: frames of training with these settings; None without any, like the following.
        minutes: minutes of training, median of three seeds.
        learnt: mean return after training, median of three seeds.
        kwargs: arguments in these settings that are not the default.
    """

    name: str
    teaches: str
    config: str
    measure: str
    best: float
    frames: int | None
    minutes: float | None
    learnt: float | None
    kwargs: dict[str, Any]


def _read(line: str) -> KnownWorld:
    cells = line.split("|")
    return KnownWorld(*cells[:4], *map(json.loads, cells[4:]))


KNOWN_WORLDS = {world.name: world for world in map(_read, _TABLE.splitlines())}
