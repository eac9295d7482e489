"""Differences between the spaces of environments."""

from entity_env import (
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.spaces import Spaces
from rogue_net.space_diff import diff_spaces

OLD = ObsSpace(["hour"], {"Trap": Entity(["x", "y"]), "Unit": Entity(["x", "wool"])})
DO = {
    "move": CategoricalActionSpace(["up", "down"]),
    "pick": SelectEntityActionSpace(),
    "call": GlobalCategoricalActionSpace(["a"]),
}


def test_diff_is_complete_and_suggests_renames() -> None:
    new = ObsSpace(["hours"], {"Unit": Entity(["wool", "x"]), "Traps": Entity([])})
    do = {
        "call": CategoricalActionSpace(["a"]),
        "move": CategoricalActionSpace(["down", "up", "left"]),
        "grab": SelectEntityActionSpace(),
    }
    assert str(diff_spaces(Spaces(OLD, DO), Spaces(new, do))).splitlines() == [
        "global features: added ['hours'], removed ['hour'] (perhaps hour renamed to hours)",
        "entity types: added ['Traps'], removed ['Trap'] (perhaps Trap renamed to Traps)",
        "actions: added ['grab'], removed ['pick'] (perhaps pick renamed to grab)",
        "labels of move: added ['left']",
        "action call: kind changed from global to categorical",
        "features of Unit: reordered ['x', 'wool'] to ['wool', 'x']",
        "actions: reordered ['move', 'call'] to ['call', 'move']",
        "labels of move: reordered ['up', 'down'] to ['down', 'up']",
    ]


def test_reordering_is_not_a_change() -> None:
    new = ObsSpace(["hour"], {"Unit": Entity(["wool", "x"]), "Trap": Entity(["y", "x"])})
    do = {**dict(reversed(DO.items())), "move": CategoricalActionSpace(["down", "up"])}
    diff = diff_spaces(Spaces(OLD, DO), Spaces(new, do))
    assert diff.changed == []
    assert diff.reordered_labels == ["labels of move: reordered ['up', 'down'] to ['down', 'up']"]
    assert str(diff_spaces(Spaces(OLD, DO), Spaces(OLD, DO))) == "no difference"
