"""Jumanji environments with a choice of one table row per step, vectorised in JAX."""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from jumanji.wrappers import AutoResetWrapper, VmapWrapper

from entity_env.adapters.from_gymnasium_vector import FromGymnasiumVector
from entity_env.adapters.mapping import FieldMap, Rows, Select


class Tables(VectorEnv[Any, Any, Any]):
    """Environments that return a table and a mask of selectable rows.

    Args:
        env: environment of jumanji.
        table: converts an observation to (rows, columns).
        num_envs: number of environments.
    """

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 (gymnasium's)

    def __init__(self, env: Any, table: Callable[[Any], Any], num_envs: int) -> None:
        self.num_envs, every, rows = num_envs, VmapWrapper(AutoResetWrapper(env)), jax.vmap(table)
        self.begin, self.go = jax.jit(every.reset), jax.jit(every.step)
        self.show = jax.jit(lambda seen: {"table": rows(seen), "action_mask": seen.action_mask})
        seen = self.reset(seed=0)[0]["table"][0]
        table_space = spaces.Box(-np.inf, np.inf, seen.shape, np.float32)
        fields = spaces.Dict(table=table_space, action_mask=spaces.MultiBinary(len(seen)))
        self.single_observation_space, choice = fields, spaces.Discrete(len(seen))
        self.observation_space = batch_space(fields, num_envs)
        self.single_action_space, self.action_space = choice, batch_space(choice, num_envs)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        key = jax.random.PRNGKey(int(self.np_random.integers(2**31)))
        self.state, step = self.begin(jax.random.split(key, self.num_envs))
        return jax.device_get(self.show(step.observation)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.state, step = self.go(self.state, actions)
        seen = jax.device_get((self.show(step.observation), step.reward, step.last()))
        return *seen, np.zeros(self.num_envs, dtype=np.bool_), {}


def factory(make: Callable[..., Tables], kind: str, columns: list[str]) -> Any:
    rows = Rows("table", columns=columns, presence="here")
    mapping = FieldMap({kind: rows}, actions={"choose": Select("", actees=kind)})
    return lambda config, num_envs, processes, first: FromGymnasiumVector(
        make(num_envs, **json.loads(config.kwargs)), mapping, first
    )
