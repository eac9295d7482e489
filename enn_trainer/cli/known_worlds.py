"""Facts about the worlds that ship with this program, one line each."""

from typing import NamedTuple

_TABLE = """\
MoveToOrigin|steering: two actions of one actor|1|move_to_origin|1001472|2.6|0.988||
CherryPick|selecting entities one by one|1|cherry_pick|251904|19.1|0.9916||
PickMatchingBalls|consistency|1|pick_matching_balls|500736|44.9|0.9992||one_hot=true,randomize=true
Minefield|relative positions and headings|1|minefield|2031616|6.9|0.999||
MultiSnake|several actors on a grid|1|multisnake_1snakes11len|5013504|23.6|0.9923||num_snakes=1
MultiArmedBandit|a global action, no entities|1|multi_armed_bandit|32768|0.3|1||
NotHotdog|entity types without features|1|not_hotdog|32768|0.4|1||
Xor|combining two entities|1|xor|501760|1.6|1||
Count|counting entities, masks|1|count|2000|0.2|1||masked_choices=2
FloorIsLava|relative positions|1|floor_is_lava|32768|0.4|0.999||
MineSweeper|two kinds of actors|1||||||
RockPaperScissors|features for the value only|1|rock_paper_scissors|4096|0.1|0.9953||
TreasureHunt|a global action on a grid|5|treasure_hunt|100352|2.2|3.3646||
Duel|self-play, choice of targets|1|duel|200704|1.3|0.9957|of matches won|"""


class KnownWorld(NamedTuple):
    """Facts about a world; numbers of training are those of `benchmarks/results/learning.md`.

    Attributes:
        name: name of the world.
        teaches: subject of the world in a few words.
        best: the highest possible mean return.
        config: name of its settings in `configs/`; "" without any, like the following.
        frames: frames of training with these settings.
        minutes: minutes of training, median of three seeds.
        learnt: mean return after training, median of three seeds.
        measure: unit of `learnt`, if that is not the return: then it is the share against `random`.
        kwargs: arguments in these settings that are not the default.
    """

    name: str
    teaches: str
    best: str
    config: str
    frames: str
    minutes: str
    learnt: str
    measure: str
    kwargs: str


KNOWN_WORLDS = {line.split("|")[0]: KnownWorld(*line.split("|")) for line in _TABLE.splitlines()}
