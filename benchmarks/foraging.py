"""Level-based foraging, a third-party environment, with entities.

    python benchmarks/foraging.py --config configs/foraging_8x8.ron

Every player is a separate side with its own observation, action and reward; one policy plays all of
them. A frame is the observation of one player, so a step of the environment has one frame per
player.
"""

import functools
import re
from typing import Any

import gymnasium
import numpy as np
from lbforaging.foraging.environment import Action

from enn_trainer import StateManager, command, train
from entity_env import Match
from entity_env.adapters.from_pettingzoo import FromGymnasiumAgents
from entity_env.adapters.mapping import Choice, FieldMap, Rows

ROW = ["row", "column", "level"]
_NOBODY = (-1, -1, 0)
ACTIONS = list(Action)  # iterating over the enum costs as much as all masks


class WithMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper with a mask of the actions that have an effect; others do nothing.

    Episodes are independent, so the environment can be reused for all of them.
    """

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        world: Any = self.env.unwrapped
        for player in world.players:
            player.position = None  # free the cells of the last episode
        values, info = self.env.reset(**kwargs)
        return values, info | {"action_mask": self._masks()}

    def step(self, action: Any) -> Any:
        """Take a step."""
        values, rewards, terminated, truncated, info = self.env.step(action)
        return values, rewards, terminated, truncated, info | {"action_mask": self._masks()}

    def _masks(self) -> Any:
        """Return the mask, (players, actions) bool, from the cached legal actions."""
        world: Any = self.env.unwrapped
        legal = map(world._valid_actions.__getitem__, world.players)
        return np.array([[action in own for action in ACTIONS] for own in legal])


def make_world(env_id: str, **kwargs: Any) -> WithMasks:
    """Create an environment of lbforaging."""
    # Gymnasium's checker expects the reward of a single agent.
    world = gymnasium.make(f"lbforaging:{env_id}", disable_env_checker=True, **kwargs)
    return WithMasks(world)


def players_and_food(env_id: str) -> tuple[int, int]:
    """Return the number of players and of pieces of food.

    Raises:
        ValueError: the id does not contain these numbers.
    """
    numbers = re.search(r"-(\d+)p-(\d+)f", env_id)
    if numbers is None:
        raise ValueError(f"env.id: expected one such as Foraging-8x8-2p-3f-v3, got {env_id!r}")
    return int(numbers[1]), int(numbers[2])


def foraging(env_id: str) -> type[Match]:
    """Return the class of an environment for `train`.

    The observation of a player is a flat vector: food, itself, other players. The actor is the
    entity "me" instead of the frame as a whole, because only entities have positions.

    Args:
        env_id: of lbforaging, such as "Foraging-8x8-2p-2f-coop-v3".

    Raises:
        ValueError: the id does not have the numbers of players and of pieces of food.
    """
    players, food = players_and_food(env_id)
    me, end = 3 * food, 3 * (food + players)
    mapping = FieldMap(
        entities={
            "me": Rows(columns=ROW, span=(me, me + 3)),
            "other": Rows(columns=ROW, span=(me + 3, end), absent=_NOBODY),
            "food": Rows(columns=ROW, span=(0, me), absent=_NOBODY),
        },
        actions={"do": Choice(actors="me", labels=[action.name for action in ACTIONS])},
    )
    return FromGymnasiumAgents.of(functools.partial(make_world, env_id), mapping, remake=False)


@command()
def main(state_manager: StateManager) -> None:
    train(state_manager, foraging(state_manager.config.env.id))


if __name__ == "__main__":
    main()
