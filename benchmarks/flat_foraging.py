"""Level-based foraging for other trainers: one padded vector per player."""

from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

SCALE = 8.0
"""Upper bound of rows, columns and levels."""

Floats = npt.NDArray[np.float32]
Choose = Callable[[Floats], npt.NDArray[np.int64]]
"""(N, features) -> (N,) actions."""


class Outcome(NamedTuple):
    """Result of a step for all players.

    Attributes:
        rewards: (N,) float32, reward of each player.
        ends: (N,) bool, the episode terminated or was truncated.
        truncated: (N,) bool, the episode was truncated.
        last: (N, features), final frames of ended episodes, else the new frames.
    """

    rewards: Floats
    ends: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    last: Floats


class FlatForaging:
    """Vectorised environments of level-based foraging, with one environment per player.

    Args:
        env_id: id in lbforaging.
        num_players: total number of players, N.
        seed: seed of the first environment; the others get consecutive seeds.

    Attributes:
        obs: (N, features) float32, current frame of each player, scaled to about 1.
    """

    def __init__(self, env_id: str, num_players: int, seed: int) -> None:
        def make() -> Any:
            return gymnasium.make(f"lbforaging:{env_id}", disable_env_checker=True)

        self._worlds = [make()]
        self.sides = len(self._worlds[0].action_space)
        self._worlds += [make() for _ in range(num_players // self.sides - 1)]
        self.num_actions = int(self._worlds[0].action_space[0].n)
        self.obs = np.concatenate([w.reset(seed=seed + i)[0] for i, w in enumerate(self._worlds)])
        self.obs /= SCALE

    def step(self, actions: npt.NDArray[np.int64]) -> Outcome:
        """Step all environments and reset the ones that have ended."""
        frames, last, rewards, ends, truncated = [], [], [], [], []
        for world, chosen in zip(self._worlds, actions.reshape(-1, self.sides), strict=True):
            obs, reward, terminated, cut, _ = world.step(tuple(chosen.tolist()))
            last += obs
            rewards += reward
            ends += [terminated or cut] * self.sides
            truncated += [cut and not terminated] * self.sides
            frames += world.reset()[0] if terminated or cut else obs
        self.obs = np.stack(frames) / SCALE
        return Outcome(
            np.array(rewards, dtype=np.float32),
            np.array(ends),
            np.array(truncated),
            np.stack(last) / SCALE,
        )


def mean_return(worlds: FlatForaging, choose: Choose, episodes: int) -> float:
    """Return the mean total return of all players over the first episodes of each environment."""
    num_worlds = len(worlds.obs) // worlds.sides
    running, finished = np.zeros(num_worlds), [list[float]() for _ in range(num_worlds)]
    while any(len(returns) < episodes for returns in finished):
        outcome = worlds.step(choose(worlds.obs))
        running += outcome.rewards.reshape(num_worlds, -1).sum(axis=1)
        for i in np.flatnonzero(outcome.ends[:: worlds.sides]):
            finished[i].append(float(running[i]))
            running[i] = 0.0
    return float(np.mean([returns[:episodes] for returns in finished]))
