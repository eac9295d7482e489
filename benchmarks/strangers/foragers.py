"""Level-based foraging with action masks also for other trainers."""

from typing import Any

import numpy as np
from flat_foraging import FlatForaging
from foraging import ACTIONS
from foraging_match import Foraging

from entity_env import Match


def foraging(env_id: str) -> Match:
    return Foraging.of(env_id)()  # the class knows the number of players


class MaskedForaging(FlatForaging):
    """Vectors of `FlatForaging` with action masks."""

    @property
    def action_masks(self) -> Any:
        """(N, actions) bool, actions that have an effect."""
        worlds = [world.unwrapped for world in self._worlds]
        legal = [world._valid_actions[player] for world in worlds for player in world.players]
        return np.array([[action in own for action in ACTIONS] for own in legal])
