"""`PersonPlayers`: a person decides for some actors, and other players for the rest."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.experience.memories import PlayerMemory
from enn_trainer.experience.players import (
    AgentPlayer,
    Decisions,
    Environments,
    Players,
    SeatPlayer,
)
from entity_env.play.hand import Hand
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device


class PersonPlayers(Players):
    """A person in the places of some actors. The others decide for all, before the person does.

    Agents in whose places the person chooses remember these choices as their own.

    Args:
        others: play where the person does not.
        seats: which of them plays in each of the B environments.
        action_space: the actions.

    Attributes:
        remembered: the memory of each of `seats` before the current step; None without memory.
    """

    def __init__(
        self,
        others: Players,
        seats: Sequence[SeatPlayer],
        action_space: Mapping[ActionName, ActionSpace],
    ) -> None:
        self.others, self.seats, self.action_space = others, seats, action_space
        self.remembered: list[PlayerMemory | None] = []

    @abstractmethod
    def taken(self, obs: VecObs) -> dict[ActionName, npt.NDArray[np.bool_]]:
        """Return the actors that the person decides for, per action (actors,) bool."""

    @abstractmethod
    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Let the person choose; actors without a choice take that of the others.

        Args:
            obs: the frames of all environments.
            batch: the same on the device.
            decisions: of the others, in these frames.
            hand: to put the choices in.
        """

    @property
    def identifies(self) -> bool:
        """True if one of the others remembers entities."""
        return self.others.identifies

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Take the first frames."""
        self.others.begin(obs, is_resumed)

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Let the others choose, then the person; probabilities are those of the others."""
        self.remembered = [copy(seat.memory) for seat in self.seats]
        decisions = self.others.act(obs, batch, t)
        hand = Hand(obs, self.action_space, self.taken(obs))
        self.ask(obs, batch, decisions, hand)
        actions, by_hand = hand.fill(decisions.chosen_on_host())
        chosen, logprobs = {}, dict(decisions.logprobs)
        for name, rows in decisions.chosen.items():
            values = to_device(actions[name].values, rows.values.device)
            chosen[name] = replace(rows, values=values)
            if name in decisions.distributions:
                of_choices = decisions.distributions[name].log_prob(values)
                own = torch.where(values == rows.values, logprobs[name].values, of_choices)
                logprobs[name] = replace(rows, values=own)
        if any(rows.values.any() for rows in by_hand.values()):
            self._remember(batch, chosen)
        return decisions._replace(chosen=chosen, logprobs=logprobs, by_hand=by_hand)

    def _remember(self, batch: EntityBatch, chosen: Mapping[ActionName, RaggedTensor]) -> None:
        """Let agents remember the choices of a step instead of those that they made."""
        for player in dict.fromkeys(self.seats):
            theirs = np.array([i for i, seat in enumerate(self.seats) if seat is player])
            memory = copy(self.remembered[theirs[0]])
            if isinstance(player, AgentPlayer) and memory is not None:
                made = {name: rows.take(theirs).values for name, rows in chosen.items()}
                memory.take_choices(player.agent, batch.take(theirs), theirs, made)
                player.take_memory(memory)

    def values(self, batch: EntityBatch, environments: Environments) -> Tensor:
        """Return the values of the others."""
        return self.others.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Take the frames after a step."""
        self.others.after_step(obs)
