"""Level-based foraging as a native `Match`: the frames of foraging.py, faster.

It reads players and board directly. Creating vectors for the adapter takes more than half of the
environment's step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from foraging import ACTIONS, ROW, make_world, players_and_food

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Match,
    Observation,
    ObsSpace,
)
from entity_env.adapters.gymnasium_api import partial_class, world_seed


class Foraging(Match):
    """Level-based foraging with one side per player.

    Args:
        env_id: of lbforaging, such as "Foraging-8x8-2p-2f-coop-v3".

    Raises:
        ValueError: players see only a part of the board.
    """

    def __init__(self, env_id: str) -> None:
        self._env: Any = make_world(env_id)
        self._world: Any = self._env.unwrapped
        if self._world.sight < max(self._world.field_size):
            raise ValueError(
                f"env.id: expected an environment with full observability, got {env_id!r}"
            )
        self._world._make_gym_obs = tuple  # skip the vectors, which are not used
        self._seed: int | None = None

    @classmethod
    def of(cls, env_id: str) -> type[Match]:
        """Return the class of an environment for `train`.

        Raises:
            ValueError: the id does not have the numbers of players and of pieces of food.
        """
        num_players, _ = players_and_food(env_id)
        return partial_class(cls, {"num_sides": num_players}, env_id)

    def obs_space(self) -> ObsSpace:
        """Return the types: the player itself, the other players, and the food."""
        return ObsSpace(entities={name: Entity(ROW) for name in ("me", "other", "food")})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the one action: a direction to move in, or to load food."""
        return {"do": CategoricalActionSpace([action.name for action in ACTIONS])}

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def reset(self) -> list[Observation]:
        """Begin a match."""
        seed, self._seed = self._seed, None
        _, info = self._env.reset(seed=world_seed(seed))
        return self._observe(info, [0.0] * self.num_sides, terminated=False, truncated=False)

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Step all players at once."""
        chosen = tuple(map(_chosen, actions))
        _, rewards, terminated, truncated, info = self._env.step(chosen)
        return self._observe(info, rewards, terminated, truncated)

    def close(self) -> None:
        """Close the world."""
        self._env.close()

    def _observe(
        self,
        info: Mapping[str, Any],
        rewards: Sequence[float],
        terminated: bool,
        truncated: bool,
    ) -> list[Observation]:
        field, masks = self._world.field, info["action_mask"]
        rows = [[*player.position, player.level] for player in self._world.players]
        food = [[*place, field[place]] for place in zip(*np.nonzero(field), strict=True)]
        return [
            Observation(
                features={"me": [row], "other": rows[:i] + rows[i + 1 :], "food": food},
                actions={"do": CategoricalActionMask(actor_types=["me"], mask=masks[i : i + 1])},
                reward=reward,
                terminated=terminated,
                truncated=truncated,
            )
            for i, (row, reward) in enumerate(zip(rows, rewards, strict=True))
        ]


def _chosen(actions: Mapping[str, Action]) -> int:
    chosen = actions.get("do")
    assert isinstance(chosen, CategoricalAction)
    return int(chosen.indices[0])
