"""Random bots for environments with continuous and autoregressive actions."""

from collections.abc import Mapping
from typing import Any

from entity_env import Bot
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import batch_obs, unbatch_actions
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.numbers_world import Targets


class Lucky(Bot):
    """Makes random legal choices in `Camp`."""

    world: Any = Camp

    def act(self, observation: Any) -> Mapping[str, Any]:
        spaces = self.world().obs_space(), self.world().action_space()
        batch = batch_obs([observation], *spaces)
        chosen = random_choices(batch, spaces[1], self.rng)
        return unbatch_actions(chosen, batch, [observation], *spaces)[0]


class LuckyArcher(Lucky):
    """Makes random legal choices in `Targets`."""

    world = Targets
