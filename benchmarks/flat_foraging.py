"""Level-based foraging for other trainers: a vector for each player, padded by the environment."""

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
        rewards: (N,) float32, the player's own.
        ends: (N,) bool, the episode ended or was cut off.
        truncated: (N,) bool, it was cut off.
        last: (N, features), the last frames of the episodes that are over, else the new ones.
    """

    rewards: Floats
    ends: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    last: Floats


class FlatForaging:
    """Vectorised environments of level-based foraging, with one for each player.

    Args:
        env_id: of lbforaging.
        num_players: in all worlds together, N.
        seed: of the first world; others follow.

    Attributes:
        obs: (N, features) float32, what each player sees now, scaled to numbers around 1.
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
        """Take a step in all environments; those whose episode ended are reset."""
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
    """Return the mean return of all players together, over the first episodes of each world."""
    num_worlds = len(worlds.obs) // worlds.sides
    running, finished = np.zeros(num_worlds), [list[float]() for _ in range(num_worlds)]
    while any(len(returns) < episodes for returns in finished):
        outcome = worlds.step(choose(worlds.obs))
        running += outcome.rewards.reshape(num_worlds, -1).sum(axis=1)
        for i in np.flatnonzero(outcome.ends[:: worlds.sides]):
            finished[i].append(float(running[i]))
            running[i] = 0.0
    return float(np.mean([returns[:episodes] for returns in finished]))
