"""The intersection of highway-env: the own car and those around it."""

from typing import Any

import gymnasium
from gymnasium.wrappers import FlattenObservation

from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.mapping import FieldMap, Rows

ENV_ID = "highway_env:intersection-v2"
FAST = {"simulation_frequency": 5}  # steps of physics in a second; "highway-fast-v0" has as many
CARS = FieldMap(entities={"ego": Rows(span=(0, 1)), "car": Rows(span=(1, 15))})
Intersection = FromGymnasium.of(ENV_ID, CARS, config=FAST)


def flat() -> gymnasium.Env[Any, Any]:
    return FlattenObservation(gymnasium.make(ENV_ID, config=FAST))
