"""Knapsack of jumanji: items are packed one by one while they fit."""

from typing import Any

import jax.numpy as jnp
from jumanji.environments import Knapsack
from jumanji.environments.packing.knapsack.generator import RandomGenerator
from jumanji_tables import Tables, factory


def flat(num_envs: int = 1, size: int = 50) -> Tables:
    def items(seen: Any) -> Any:
        room = jnp.full_like(seen.weights, size / 4 - seen.packed_items @ seen.weights)
        return jnp.stack([seen.values, seen.weights, room, ~seen.packed_items], axis=1)

    return Tables(Knapsack(RandomGenerator(size, size / 4)), items, num_envs)


knapsack = factory(flat, "item", ["value", "weight", "room", "here"])
