"""Level-based foraging as a `Match` written for it: the frames of foraging.py, in less time.

Adapters read what any world shows; what knows the world looks at its players and its board. So the
world need not describe itself in vectors, which takes more than half of its step.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from lbforaging.foraging.environment import Action as Move

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
from entity_env.adapters.bind import bind
from entity_env.adapters.from_gymnasium import world_seed

_MOVES = list(Move)
_ROW = ["row", "column", "level"]


class Foraging(Match):
    """One world, each of whose players is a side.

    Args:
        env_id: of lbforaging, such as "Foraging-8x8-2p-2f-coop-v3".

    Raises:
        ValueError: players see a part of the board only.
    """

    def __init__(self, env_id: str) -> None:
        # Gymnasium's checker knows rewards of one agent only.
        self._env: Any = gymnasium.make(f"lbforaging:{env_id}", disable_env_checker=True)
        self._world: Any = self._env.unwrapped
        if self._world.sight < max(self._world.field_size):
            raise ValueError(f"env.id: expected a world that players see whole, got {env_id!r}")
        self._world._make_gym_obs = tuple  # nobody reads the vectors that it would make
        self._seed: int | None = None

    @classmethod
    def of(cls, env_id: str) -> type[Match]:
        """The class of a world, as `train` takes it.

        Raises:
            ValueError: the id does not say how many players there are.
        """
        players = re.search(r"-(\d+)p-", env_id)
        if players is None:
            raise ValueError(f"env.id: expected one such as Foraging-8x8-2p-3f-v3, got {env_id!r}")
        return bind(cls, {"num_sides": int(players[1])}, env_id)

    def obs_space(self) -> ObsSpace:
        """The player itself, the other players, and the food."""
        return ObsSpace(entities={name: Entity(_ROW) for name in ("me", "other", "food")})

    def action_space(self) -> dict[str, ActionSpace]:
        """Where to go, or whether to load."""
        return {"do": CategoricalActionSpace([move.name for move in _MOVES])}

    def seed(self, seed: int) -> None:
        """Seed the next reset."""
        self._seed = seed

    def reset(self) -> list[Observation]:
        """Begin a match."""
        for player in self._world.players:
            player.position = None  # else no other one could begin there
        seed, self._seed = self._seed, None
        self._env.reset(seed=world_seed(seed))
        return self._observe([0.0] * self.num_sides, terminated=False, truncated=False)

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        """Take a step: everybody at once."""
        _, rewards, terminated, truncated, _ = self._env.step(tuple(map(_move, actions)))
        return self._observe(rewards, terminated, truncated)

    def close(self) -> None:
        """Close the world."""
        self._env.close()

    def _observe(
        self, rewards: Sequence[float], terminated: bool, truncated: bool
    ) -> list[Observation]:
        players, field = self._world.players, self._world.field
        rows = [[*player.position, player.level] for player in players]
        food = [[*place, field[place]] for place in zip(*np.nonzero(field), strict=True)]
        return [
            Observation(
                features={"me": [row], "other": rows[:i] + rows[i + 1 :], "food": food},
                actions={"do": _offered(self._world._valid_actions[player])},
                reward=reward,
                terminated=terminated,
                truncated=truncated,
            )
            for i, (player, row, reward) in enumerate(zip(players, rows, rewards, strict=True))
        ]


def _offered(moves: Sequence[Move]) -> CategoricalActionMask:
    return CategoricalActionMask(actor_types=["me"], mask=[[move in moves for move in _MOVES]])


def _move(actions: Mapping[str, Action]) -> int:
    chosen = actions.get("do")
    assert isinstance(chosen, CategoricalAction)
    return int(chosen.indices[0])
