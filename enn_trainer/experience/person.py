"""`PersonPlayers`: a person decides for some actors, and other players for the rest."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.experience.players import Decisions, Environments, Players
from entity_env.play.hand import Hand
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch, to_device


class PersonPlayers(Players):
    """A person in the places of some actors. The others decide for all, before the person does.

    Args:
        others: play where the person does not.
        action_space: the actions.
    """

    def __init__(self, others: Players, action_space: Mapping[ActionName, ActionSpace]) -> None:
        self.others, self.action_space = others, action_space

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
        return decisions._replace(chosen=chosen, logprobs=logprobs, by_hand=by_hand)

    def values(self, batch: EntityBatch, environments: Environments) -> Tensor:
        """Return the values of the others."""
        return self.others.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Take the frames after a step."""
        self.others.after_step(obs)
