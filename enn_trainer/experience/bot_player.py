"""`BotPlayer`: player with one bot instance for each environment."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.players import Decisions, SeatPlayer
from entity_env.arrays import IntArray
from entity_env.bot import Bot, bot_choices, bot_observations, bot_state, restore_bot
from entity_env.errors import EntityEnvError
from entity_env.plain_state import non_plain_part
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seeds
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Spaces
from entity_env.vec.vec_obs import VecObs
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import conditional_distribution
from rogue_net.ragged import ActionBatch, EntityBatch, RaggedTensor

T = TypeVar("T")


def uniform_choices(
    action_space: Mapping[ActionName, ActionSpace],
    actions: Mapping[ActionName, ActionBatch],
    chosen: Mapping[ActionName, RaggedTensor],
) -> dict[ActionName, ActionDistribution]:
    """Return the uniform distribution over the legal choices of each action.

    Args:
        action_space: the actions.
        actions: their actors in B frames.
        chosen: the choices of all actors in parent actions, on which the masks depend.
    """
    values = {name: rows.values for name, rows in chosen.items()}
    return {
        name: conditional_distribution(
            name, actions, values, partial(HEADS[type(space)].uniform, space)
        )
        for name, space in action_space.items()
    }


class BotPlayer(SeatPlayer):
    """Player with one instance of a bot in each environment in which it acts.

    The seed of a game is a function of `seed`, the environment and the number of the game. Either
    `begin` and `after_step` count the games of all environments, or `begin_games` begins each.

    Args:
        create_bot: class of the bot.
        seed: seed of the games.
        frame_space: observation space of the frames.
        spaces: spaces of the environments; the bot sees entities and features in their order.
        sides: number of sides of a match, for messages.
        first: index of the first environment among all environments of the run.
    """

    def __init__(
        self,
        create_bot: Callable[[], Bot],
        seed: int,
        frame_space: ObsSpace,
        spaces: Spaces,
        sides: int = 1,
        first: int = 0,
    ) -> None:
        self.create_bot, self.seed, self.sides, self.first = create_bot, seed, sides, first
        self.frame_space, self.spaces = frame_space, spaces
        self._num_games = np.zeros(0, np.int64)  # finished games of each environment
        self._bots: dict[int, Bot] = {}
        self._steps: dict[int, int] = {}  # of the game of each bot
        self._seeds: dict[int, int] = {}  # of games in which the bot has not chosen yet

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Begin the first game in each environment."""
        self._num_games = np.zeros(len(obs), np.int64)
        self._begin_next(np.arange(len(obs)))

    def begin_games(self, environments: IntArray, games: IntArray) -> None:
        """Begin a game in some environments; running games there are abandoned."""
        seeds = derive_seeds(self.seed, "bot", environments + self.first, games)
        self._seeds |= zip(environments.tolist(), seeds, strict=True)

    def after_step(self, obs: VecObs) -> None:
        """Begin the next game in environments where one has ended."""
        ended = np.flatnonzero(obs.done)
        self._num_games[ended] += 1
        self._begin_next(ended)

    def act_in(self, obs: VecObs, batch: EntityBatch, environments: IntArray, t: int) -> Decisions:
        """Choose the actions in the frames of some environments.

        Args:
            obs: the frames of all environments.
            batch: the frames of `environments`, on the device.
            environments: (n,) int64, in any order.
            t: unused, as bots have random number generators.

        Returns:
            Choices with probability 1, and values of NaN.

        Raises:
            InvalidAction: a choice is not legal; the message names the bot, match, step and legal
                choices.
        """
        # Call the bots in running games; frames between two games have no actions.
        playing = environments[~obs.is_padding[environments]]
        bot_obs = obs.take(playing)
        frames = bot_observations(bot_obs, self.frame_space, self.spaces)
        bots = [self._bot(environment) for environment in playing.tolist()]
        chosen_by_bots = bot_choices(
            bots, frames, bot_obs, self.spaces, where=lambda i: self._location(int(playing[i]))
        )
        choices = {
            name: Ragged(rows.values, batch.actions[name].actors.lengths)
            for name, rows in chosen_by_bots.items()
        }
        for environment in playing.tolist():
            self._steps[environment] += 1

        # Decisions of probability 1.
        values = self.values(batch, environments)
        executed = {name: RaggedTensor.of(rows, values.device) for name, rows in choices.items()}
        uniform = uniform_choices(self.spaces.action_space, batch.actions, executed)
        chosen, none, certain, numbers = {}, {}, {}, {}
        for name, rows in executed.items():
            chosen[name] = replace(rows, values=uniform[name].from_env(rows.values))
            none[name] = RaggedTensor(values.new_zeros(len(rows.values)), rows.lengths)
            if (distribution := uniform[name].certain(chosen[name].values)) is not None:
                certain[name] = distribution
            if self.spaces.action_space[name].components:
                numbers[name] = rows
        return Decisions(chosen, none, none, values, certain, numbers=numbers)

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return NaN for each frame, as bots predict no values."""
        device = next(iter(batch.features.values())).values.device
        return torch.full((batch.num_frames,), math.nan, device=device)

    def get_state(self, environments: IntArray | None = None) -> dict[str, Any]:
        """Return the game counts and the states of the bots as plain data.

        Args:
            environments: environments to include, (n,) int64; None for all.

        Raises:
            EntityEnvError: the state of a bot is not plain data.
        """
        running = None if environments is None else {*environments.tolist()}

        def selected(by_environment: Mapping[int, T]) -> dict[int, T]:
            indices = sorted(by_environment)
            return {i: by_environment[i] for i in indices if running is None or i in running}

        bots = {}
        for environment, bot in selected(self._bots).items():
            where = f"bot {type(bot).__name__}: get_state"
            try:
                bots[environment] = bot_state(bot)
            except TypeError as error:
                raise EntityEnvError(f"{where}: {error}") from None
            if wrong := non_plain_part(bots[environment], "state"):
                raise EntityEnvError(f"{where}: expected plain data, got {wrong}")
        return {
            "num_games": self._num_games.copy(),
            "bots": bots,
            "steps": selected(self._steps),
            "seeds": selected(self._seeds),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore the games of a state from `get_state`."""
        self._num_games = state["num_games"].copy()
        self._steps, self._seeds = dict(state["steps"]), dict(state["seeds"])
        self._bots = {}
        for environment, saved in state["bots"].items():
            self._bots[environment] = self.create_bot()
            restore_bot(self._bots[environment], saved)

    def _begin_next(self, environments: IntArray) -> None:
        self.begin_games(environments, self._num_games[environments])

    def _bot(self, environment: int) -> Bot:
        """Return the bot of an environment; create or seed it at the start of a game."""
        if environment not in self._bots:
            self._bots[environment] = self.create_bot()
        bot = self._bots[environment]
        if environment in self._seeds:
            bot.seed(self._seeds.pop(environment))
            self._steps[environment] = 0
        return bot

    def _location(self, environment: int) -> str:
        match, side = divmod(environment + self.first, self.sides)
        where = f"environment {environment + self.first}"
        if self.sides > 1:
            where = f"match {match}, side {side}"
        return f"{where}, step {self._steps[environment]}"
