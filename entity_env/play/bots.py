"""Bots in games with a person."""

from collections.abc import Sequence

from entity_env.actions import Action, ActionName
from entity_env.bot import Bot, bot_choices, bot_observations
from entity_env.observation import Observation, ObsSpace
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionSpaces, Spaces
from entity_env.vec.batching import unbatch_actions
from entity_env.vec.vec_obs import VecObs


class SideBots:
    """One instance of a bot for each side of a match.

    Args:
        create_bot: bot class.
        num_sides: number of sides.
        seed: seed of all games.
    """

    def __init__(self, create_bot: type[Bot], num_sides: int, seed: int) -> None:
        self._bots = [create_bot() for _ in range(num_sides)]
        self._seed, self._games, self._steps = seed, 0, 0

    def begin(self) -> None:
        """Start the next game, with a new seed for each bot."""
        for side, bot in enumerate(self._bots):
            bot.seed(derive_seed(self._seed, "bot", side, self._games))
        self._games, self._steps = self._games + 1, 0

    def act(
        self,
        obs: Sequence[Observation],
        batch: VecObs,
        obs_space: ObsSpace,
        action_space: ActionSpaces,
    ) -> list[dict[ActionName, Action]]:
        """Return the actions of each side, with probability 1.

        Args:
            obs: frame of each side.
            batch: the same frames as a batch.
            obs_space: observation space.
            action_space: action spaces.

        Raises:
            InvalidAction: a choice is not legal.
        """
        spaces, step = Spaces(obs_space, action_space), self._steps
        frames = bot_observations(batch, obs_space, spaces)
        choices = bot_choices(
            self._bots, frames, batch, spaces, where=lambda side: f"side {side}, step {step}"
        )
        self._steps += 1
        certain = {
            name: space.certain(choices[name], batch.action_masks[name])
            for name, space in action_space.items()
        }
        return unbatch_actions(choices, batch, obs, obs_space, action_space, certain)
