"""Episode statistics of any vectorised environment."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.spaces import GLOBAL, ObsSpace
from entity_env.vec.vec_env import Metric, VecEnv, VecEnvWrapper, VecObs


class AddMetricsWrapper(VecEnvWrapper):
    """Wrapper that adds episode returns and lengths, and numbers of entities, to the metrics.

    The metrics are `episodic_reward`, `episode_length`, `reward` (of each step), `step` (how far
    the running episodes are), `entity_count` and `entity_count/<type>`; what is global is no
    entity.

    Args:
        env: the environments.
        filter: (B,) bool, the environments that count; all of them by default. Metrics that a
            vectorised environment gives without `VecObs.env_metrics` cannot be separated and
            count all.
    """

    def __init__(self, env: VecEnv, filter: npt.NDArray[np.bool_] | None = None) -> None:
        super().__init__(env)
        self.filter = np.ones(len(env), dtype=np.bool_) if filter is None else np.asarray(filter)
        self.total_reward = np.zeros(len(env), dtype=np.float64)
        self.total_steps = np.zeros(len(env), dtype=np.int64)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        self.total_reward[:] = 0
        self.total_steps[:] = 0
        return self.env.reset(obs_config)

    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, and the totals of the running episodes."""
        state = self.env.get_state()
        if state is None:
            return None
        totals = {"reward": self.total_reward.copy(), "steps": self.total_steps.copy()}
        return {**state, "episode_totals": totals}

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue the running episodes of a state."""
        obs = self.env.set_state(state, obs_config)
        if obs is not None:
            self.total_reward[:] = state["episode_totals"]["reward"]
            self.total_steps[:] = state["episode_totals"]["steps"]
        return obs

    def wait(self) -> VecObs:
        """Return the frames after a step, with the metrics."""
        obs = self.env.wait()
        self.total_reward += obs.reward
        self.total_steps += 1
        # Metrics of the environments, without those that do not count.
        counted = self.filter
        if not counted.all():
            obs.metrics |= {
                name: Metric.of(values.values[np.repeat(counted, values.lengths)])
                for name, values in obs.env_metrics.items()
            }
        # Entities of each type and of all types, one row for each metric.
        ended = obs.done & counted
        counts = {
            f"entity_count/{name}": rows.lengths
            for name, rows in obs.features.items()
            if name != GLOBAL
        }
        rows = np.array([self.total_steps, *counts.values()])  # (1 + types, B)
        rows = np.concatenate([rows, rows[1:].sum(axis=0, keepdims=True)])[:, counted]
        names = ["step", *counts, "entity_count"]
        of_counts = dict(zip(names, Metric.of_each(rows), strict=True))
        # Returns and lengths of the episodes that ended.
        obs.metrics["step"] = of_counts.pop("step")
        obs.metrics["reward"] = Metric.of(obs.reward[counted])
        obs.metrics["episodic_reward"] = Metric.of(self.total_reward[ended])
        obs.metrics["episode_length"] = Metric.of(self.total_steps[ended])
        obs.metrics |= of_counts
        self.total_reward[obs.done] = 0
        self.total_steps[obs.done] = 0
        return obs
