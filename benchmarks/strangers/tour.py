"""Travelling salesman of jumanji: cities are visited one by one, finally the first one."""

from typing import Any

import jax.numpy as jnp
from jumanji.environments import TSP
from jumanji.environments.routing.tsp.generator import UniformGenerator
from jumanji_tables import Tables, factory


def cities(seen: Any) -> Any:
    """Return the remaining cities, the current and the first one, with vectors to them."""
    number = jnp.arange(len(seen.coordinates))
    way = seen.coordinates - seen.coordinates[seen.position]
    at, first = number == seen.position, number == seen.trajectory[0]
    columns = [jnp.linalg.norm(way, axis=1), at, first, at | first | seen.action_mask]
    return jnp.concatenate([seen.coordinates, way, jnp.stack(columns, axis=1)], axis=1)


def flat(num_envs: int = 1, size: int = 20) -> Tables:
    return Tables(TSP(UniformGenerator(size)), cities, num_envs)


tour = factory(flat, "city", ["x", "y", "dx", "dy", "far", "at", "first", "here"])
