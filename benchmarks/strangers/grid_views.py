"""MiniGrid with cells of the agent's view as entities, without floor and most walls."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.wrappers import OneHotPartialObsWrapper

from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.mapping import Choice, FieldMap, Place, Rows

WALL, COLUMNS = OBJECT_TO_IDX["wall"], ["row", "column", "object", "color", "state"]


class View(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Image without irrelevant cells, with colour and kind of Fetch's mission."""

    def __init__(self, env: gymnasium.Env[Any, Any], shows_all: bool) -> None:
        super().__init__(env)
        self.shows_all, self.fetches = shows_all, hasattr(env.unwrapped, "numObjs")
        fields: dict[str, Any] = {"image": env.observation_space["image"]}  # type: ignore[index]
        if self.fetches:
            fields["goal"] = spaces.MultiDiscrete([len(COLOR_TO_IDX), 2])
        self.observation_space = spaces.Dict(fields)

    def observation(self, observation: dict[str, Any]) -> dict[str, Any]:
        image, shown = observation["image"], {}
        if not self.shows_all:  # only objects and, where it hurts to run into them, walls
            kinds, inside = image[..., 0], np.pad(image[..., 0] != WALL, 1)
            reach = inside[:-2, 1:-1] | inside[2:, 1:-1] | inside[1:-1, :-2] | inside[1:-1, 2:]
            walls = (kinds == WALL) & reach & (not self.fetches)
            image = image * ((kinds > WALL) | walls)[..., None]
        if self.fetches:
            *_, color, kind = observation["mission"].split()
            shown["goal"] = np.array([COLOR_TO_IDX[color], kind == "ball"], dtype=np.int64)
        return {"image": image, **shown}


def view(env_id: str) -> gymnasium.Env[Any, Any]:
    return View(gymnasium.make(env_id), shows_all=False)


def flat(env_id: str) -> gymnasium.Env[Any, Any]:
    return FlattenObservation(OneHotPartialObsWrapper(View(gymnasium.make(env_id), True)))


def mapping(*objects: str, **kinds: dict[str, int]) -> FieldMap:
    kinds = {"object": {name: OBJECT_TO_IDX[name] for name in objects}, **kinds}
    cells = Rows("image", COLUMNS, ["row", "column", *kinds], presence="object", one_hot=kinds)
    me = Place(row=3, column=6)
    return FieldMap({"me": me, "cell": cells}, actions={"do": Choice(actors="me")})


Obstacles = FromGymnasium.of(view, mapping("wall", "ball", "goal"))
Fetch = FromGymnasium.of(view, mapping("key", "ball", color=COLOR_TO_IDX))
DoorKey = FromGymnasium.of(view, mapping("wall", "door", "key", "goal", state=STATE_TO_IDX))
LavaGap = FromGymnasium.of(view, mapping("wall", "goal", "lava"))
