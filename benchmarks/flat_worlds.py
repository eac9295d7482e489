"""Vectors of fixed size for other trainers, with the attributes and `step` of `FlatForaging`."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from flat_foraging import Floats, Outcome
from pettingzoo import ParallelEnv

from entity_env.examples import MoveToOrigin


class FlatGymnasium:
    """Environments of Gymnasium with one discrete action.

    Args:
        make: creates an environment.
        num_players: number of environments, N.
        seed: seed of the first environment; the others get consecutive seeds.

    Attributes:
        obs: (N, features) float32, current frames.
    """

    sides = 1

    def __init__(
        self, make: Callable[[], gymnasium.Env[Any, Any]], num_players: int, seed: int
    ) -> None:
        self._worlds: list[Any] = [make() for _ in range(num_players)]
        self.num_actions = int(self._worlds[0].action_space.n)
        self.obs: Floats = np.stack([w.reset(seed=seed + i)[0] for i, w in enumerate(self._worlds)])

    def step(self, actions: Any) -> Outcome:
        """Step all environments and reset the ones that have ended."""
        frames, last, rewards, ends, truncated = [], [], [], [], []
        for world, action in zip(self._worlds, actions.tolist(), strict=True):
            obs, reward, terminated, cut, _ = world.step(action)
            last.append(obs)
            rewards.append(reward)
            ends.append(terminated or cut)
            truncated.append(cut and not terminated)
            frames.append(world.reset()[0] if terminated or cut else obs)
        self.obs = np.stack(frames)
        of_steps = np.array(rewards, np.float32), np.array(ends), np.array(truncated)
        return Outcome(*of_steps, np.stack(last))


class FlatParallel:
    """Environments of PettingZoo with one environment per agent, for `Players`."""

    def __init__(self, make: Callable[[], ParallelEnv], num_players: int, seed: int) -> None:
        first = make()
        self.sides = len(first.possible_agents)
        self._worlds = [first, *(make() for _ in range(num_players // self.sides - 1))]
        self.num_actions = int(first.action_space(first.possible_agents[0]).n)
        starts = [world.reset(seed=seed + i)[0] for i, world in enumerate(self._worlds)]
        self.obs = np.stack([row for start in starts for row in start.values()])

    def step(self, actions: Any) -> Outcome:
        """Step all environments and reset the ones that have ended."""
        parts: list[list[Any]] = [[], [], [], []]
        frames = []
        for world, chosen in zip(self._worlds, actions.reshape(-1, self.sides), strict=True):
            last, *results, _ = world.step(dict(zip(world.agents, chosen.tolist(), strict=True)))
            for part, values in zip(parts, [*results, last], strict=True):
                part += values.values()
            frames += (last if world.agents else world.reset()[0]).values()
        self.obs = np.stack(frames)
        rewards, terminated, truncated, rows = map(np.array, parts)
        return Outcome(rewards, terminated | truncated, truncated & ~terminated, rows)


class SpaceshipVector(gymnasium.Env[Floats, int]):
    """MoveToOrigin with its spaceship as a vector, and one action for each pair of thrusts."""

    _SCALES = np.array([1, 1, 1, 1, 32], dtype=np.float32)  # the last feature counts 32 steps
    _ACCELERATIONS = (0.01, 0.001, 0.0, -0.001, -0.01)
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
    action_space = gymnasium.spaces.Discrete(len(_ACCELERATIONS) ** 2)

    def __init__(self) -> None:
        self._world = MoveToOrigin()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode; a seed determines this and all following episodes."""
        if seed is not None:
            self._world.seed(seed)
        return self._world.reset().features["Spaceship"][0] / self._SCALES, {}

    def step(self, action: int) -> Any:
        """Fly with both thrusts."""
        x, y = divmod(action, len(self._ACCELERATIONS))
        obs = self._world.fly(self._ACCELERATIONS[x], self._ACCELERATIONS[y])
        row = obs.features["Spaceship"][0] / self._SCALES
        return row, obs.reward, obs.terminated, obs.truncated, {}
