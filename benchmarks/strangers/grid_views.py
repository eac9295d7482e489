"""MiniGrid seen by the agent: the cells of its view are entities, without floor and most walls."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from minigrid.core.constants import COLOR_TO_IDX
from minigrid.wrappers import OneHotPartialObsWrapper

from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.mapping import Choice, FieldMap, Place, Rows

WALL, COLUMNS = 2, ["row", "column", "object", "color", "state"]


class View(gymnasium.ObservationWrapper[Any, Any, Any]):
    """The image, without what does not matter, and the colour and kind of Fetch's mission."""

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


def mapping(**kinds: dict[str, int]) -> FieldMap:
    shown = ["row", "column", *kinds]
    cells = Rows("image", COLUMNS, shown, presence="object", one_hot=kinds)
    me = Place(row=3, column=6)
    return FieldMap({"me": me, "cell": cells}, actions={"do": Choice(actors="me")})


Obstacles = FromGymnasium.of(view, mapping(object={"wall": 2, "ball": 6, "goal": 8}))
Fetch = FromGymnasium.of(view, mapping(object={"key": 5, "ball": 6}, color=COLOR_TO_IDX))
DOORS = {"open": 0, "closed": 1, "locked": 2}
DoorKey = FromGymnasium.of(
    view, mapping(object={"wall": 2, "door": 4, "key": 5, "goal": 8}, state=DOORS)
)
LavaGap = FromGymnasium.of(view, mapping(object={"wall": 2, "goal": 8, "lava": 9}))
