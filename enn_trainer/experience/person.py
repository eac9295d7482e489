"""`PersonPlayers`: a person decides for some actors, and other players for the rest."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from enn_trainer.experience.bot_player import uniform_choices
from enn_trainer.experience.memories import Recurrence
from enn_trainer.experience.players import AgentPlayer, Decisions, Players, SeatPlayer
from enn_trainer.experience.recall import Recall
from entity_env.arrays import BoolArray, IntArray
from entity_env.play.hand import Hand
from entity_env.ragged import Ragged, exclusive_cumsum, row_indices
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.gaussian_numbers import as_drawn
from rogue_net.actions.parts import made, parents_first, rows_before
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device


class PersonPlayers(Players):
    """A person in the places of some actors. The others decide for all, before the person does.

    Agents in whose places the person chooses remember these choices as their own. What depends on
    a choice that the person made otherwise is decided again: it is the most probable choice of the
    agent after that of the person; of a bot the first legal one, or the middle of a range.

    Args:
        others: play where the person does not.
        seats: which of them plays in each of the B environments.
        action_space: the actions.

    Attributes:
        remembered: the recurrent state of each of `seats` before the current step.
    """

    def __init__(
        self,
        others: Players,
        seats: Sequence[SeatPlayer],
        action_space: Mapping[ActionName, ActionSpace],
    ) -> None:
        self.others, self.seats, self.action_space = others, seats, action_space
        self.remembered: list[Recurrence] = []

    @abstractmethod
    def taken(self, obs: VecObs) -> dict[ActionName, BoolArray]:
        """Return the actors that the person decides for, per action (actors,) bool."""

    @abstractmethod
    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Let the person choose; actors without a choice take that of the others.

        After a choice that others depend on, `decided_again` puts those of the others into `hand`.

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
        hand = Hand(obs, self.action_space, self.taken(obs), decisions.chosen_on_host())
        self.ask(obs, batch, decisions, hand)
        decisions = self.decided_again(batch, decisions, hand)
        actions, by_hand = hand.fill()
        chosen, logprobs, numbers = {}, dict(decisions.logprobs), dict(decisions.numbers)
        for name, rows in decisions.chosen.items():
            values = to_device(actions[name].values, rows.values.device)
            if name in numbers:  # as they were typed, and what would have been drawn
                numbers[name] = replace(rows, values=values)
                is_own = to_device(by_hand[name].values, values.device).unsqueeze(1)
                values = torch.where(is_own, as_drawn(values, batch.actions[name]), rows.values)
            chosen[name] = replace(rows, values=values)
            if name in decisions.distributions:
                same = (values == rows.values).unsqueeze(-1).flatten(1).all(dim=1)
                of_choices = decisions.distributions[name].log_prob(values)
                own = torch.where(same, logprobs[name].values, of_choices)
                logprobs[name] = replace(rows, values=own)
        if any(rows.values.any() for rows in by_hand.values()):
            self._remember(batch, chosen)
        rows_of_all = replace(decisions, chosen=chosen, logprobs=logprobs, numbers=numbers)
        return replace(rows_of_all, by_hand=by_hand)

    def decided_again(self, batch: EntityBatch, decisions: Decisions, hand: Hand) -> Decisions:
        """Return what the others decide after the choices of the person.

        Args:
            batch: the frames of all environments, on the device.
            decisions: of the others, before the person chose.
            hand: has the choices of the person, and takes those of the others.
        """
        hand.others, at_first = decisions.chosen_on_host(), decisions
        for name in parents_first(batch.actions):
            action = batch.actions[name]
            if action.after is None:
                continue
            # Actors for whom the choice before this one is another than at first.
            before, given = action.after.action, hand.choices()
            chosen = at_first.chosen[before].values
            is_other = to_device(given[before].values, chosen.device) != chosen
            changed = is_other.index_select(0, rows_before(action, batch.actions))
            if changed.any():
                decided = self._distribution_after(batch, name, given)
                decisions = _with_new(decisions, name, changed, decided)
                hand.others = decisions.chosen_on_host()
        return decisions

    def _distribution_after(
        self, batch: EntityBatch, name: ActionName, given: Mapping[ActionName, Ragged]
    ) -> ActionDistribution:
        """Return the distribution of the others over choices of an action, after other choices.

        Args:
            batch: the frames of all environments.
            name: the action to decide. Choices that it does not depend on may not be legal.
            given: the choices of all actors.
        """
        # The choices that it depends on as they are, and others such that networks can read them.
        action, read, before = batch.actions[name], dict[str, RaggedTensor](), list[str]()
        while (after := batch.actions[before[-1] if before else name].after) is not None:
            before.append(after.action)
        for one, rows in given.items():
            of_all = RaggedTensor.of(rows, action.actors.values.device)
            read[one] = of_all if one in before else replace(of_all, values=made(of_all.values))

        # The networks, each in its frames. Bots cannot be asked twice.
        pieces, places = list[ActionDistribution](), list[IntArray]()
        for player in dict.fromkeys(self.seats):
            theirs = np.array([i for i, seat in enumerate(self.seats) if seat is player])
            some, own = batch.take(theirs), {n: rows.take(theirs) for n, rows in read.items()}
            places.append(theirs)
            if isinstance(player, AgentPlayer):
                remembering = Recall(self.remembered[theirs[0]], theirs)
                frames = remembering.attach(some, np.arange(len(theirs)))
                out = player.agent(frames, actions={n: rows.values for n, rows in own.items()})
                pieces.append(out.distribution(name))
            else:
                pieces.append(uniform_choices(self.action_space, some.actions, own)[name])
        played = np.concatenate(places)
        lengths, order = action.actors.lengths[played], np.argsort(played)
        rows_in_order = row_indices(exclusive_cumsum(lengths)[order], lengths[order])
        joined: ActionDistribution = pieces[0].cat(pieces)
        return joined.take(to_device(rows_in_order, action.actors.values.device))

    def _remember(self, batch: EntityBatch, chosen: Mapping[ActionName, RaggedTensor]) -> None:
        """Let agents remember the choices of a step instead of those that they made."""
        for player in dict.fromkeys(self.seats):
            theirs = np.array([i for i, seat in enumerate(self.seats) if seat is player])
            memory = copy(self.remembered[theirs[0]])
            if isinstance(player, AgentPlayer):
                own = {name: rows.take(theirs).values for name, rows in chosen.items()}
                memory.take_choices(player.agent, batch.take(theirs), theirs, own)
                player.take_memory(memory)

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the values of the others."""
        return self.others.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Take the frames after a step."""
        self.others.after_step(obs)


def _with_new(
    decisions: Decisions, name: ActionName, changed: Tensor, distribution: ActionDistribution
) -> Decisions:
    """Return decisions in which some actors take the most probable choice of a distribution.

    Args:
        decisions: in B frames.
        name: of the action.
        changed: (actors,) bool, those who choose anew.
        distribution: of all actors.
    """
    new = distribution.mode()
    rows = {
        "chosen": new,
        "numbers": distribution.to_env(new),
        "logprobs": distribution.log_prob(new),
        "entropies": distribution.entropy(),
    }
    fields: dict[str, Any] = {}
    for what, values in rows.items():
        named = dict(getattr(decisions, what))
        if name in named:
            is_new = changed.reshape(-1, *[1] * (values.dim() - 1))
            kept = torch.where(is_new, values, named[name].values)
            named[name] = replace(named[name], values=kept)
        fields[what] = named
    if name in decisions.distributions:
        fields["distributions"] = {**decisions.distributions, name: distribution}
    return replace(decisions, **fields)
