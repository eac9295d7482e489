"""Padded vectors of entity environments, for Stable-Baselines3."""

from typing import Any

import gymnasium
from gymnasium.wrappers import FlattenObservation
from job_shop import JobShop

from entity_env.adapters.to_gymnasium import ToGymnasium


def job_shop(jobs: int = 6, machines: int = 6, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    sizes = {"job": jobs, "later": jobs * (machines - 1), "machine": machines, "shop": 1}
    world = JobShop(jobs, machines, **kwargs)
    return FlattenObservation(ToGymnasium(world, sizes, actors={"dispatch": ["shop"]}))
