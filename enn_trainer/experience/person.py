"""`PersonPlayers`: a person controls some actors, and other players control the rest."""

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
from enn_trainer.experience.recall import FrameStates
from entity_env.arrays import BoolArray, IntArray
from entity_env.play.hand import Hand
from entity_env.ragged import Ragged, exclusive_cumsum, row_indices
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.actions.distributions import ActionDistribution
from rogue_net.actions.gaussian_numbers import unsquash
from rogue_net.actions.parts import parent_rows, parents_first, zero_inactive
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device


class PersonPlayers(Players):
    """Players that let a person override the choices of some actors.

    The base players choose for all actors first. The recurrent state of an agent is updated with
    the person's choices. If the person changes a parent action, dependent actions get the most
    probable choice of the agent after it, or for bots the first legal choice or the middle of the
    range.

    Args:
        base_players: players that choose where the person does not.
        seats: (B,), the base player in each environment.
        action_space: the actions.

    Attributes:
        previous_states: recurrent state of each of `seats` before the current step.
    """

    def __init__(
        self,
        base_players: Players,
        seats: Sequence[SeatPlayer],
        action_space: Mapping[ActionName, ActionSpace],
    ) -> None:
        self.base_players, self.seats, self.action_space = base_players, seats, action_space
        self.previous_states: list[Recurrence] = []

    @abstractmethod
    def controlled_actors(self, obs: VecObs) -> dict[ActionName, BoolArray]:
        """Return a mask of the actors that the person controls, per action (actors,) bool."""

    @abstractmethod
    def ask(self, obs: VecObs, batch: EntityBatch, decisions: Decisions, hand: Hand) -> None:
        """Ask the person for choices; actors without one take that of the base players.

        After a change of a parent action, `decide_dependent` updates the base players' choices in
        `hand`.

        Args:
            obs: the frames of all environments.
            batch: the same frames on the device.
            decisions: decisions of the base players in these frames.
            hand: receives the choices.
        """

    @property
    def needs_identity(self) -> bool:
        """True if a base player has memory of entities."""
        return self.base_players.needs_identity

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Start in the first frames."""
        self.base_players.begin(obs, is_resumed)

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions; log-probabilities of the person's choices are the base players'."""
        self.previous_states = [copy(seat.memory) for seat in self.seats]
        decisions = self.base_players.act(obs, batch, t)
        hand = Hand(obs, self.action_space, self.controlled_actors(obs), decisions.chosen_on_host())
        self.ask(obs, batch, decisions, hand)
        decisions = self.decide_dependent(batch, decisions, hand)
        actions, by_hand = hand.fill()
        chosen, logprobs, numbers = {}, dict(decisions.logprobs), dict(decisions.numbers)
        for name, rows in decisions.chosen.items():
            values = to_device(actions[name].values, rows.values.device)
            if name in numbers:  # in environment units, and as samples of the policy
                numbers[name] = replace(rows, values=values)
                is_manual = to_device(by_hand[name].values, values.device).unsqueeze(1)
                values = torch.where(is_manual, unsquash(values, batch.actions[name]), rows.values)
            chosen[name] = replace(rows, values=values)
            if name in decisions.distributions:
                same = (values == rows.values).unsqueeze(-1).flatten(1).all(dim=1)
                new_logprobs = decisions.distributions[name].log_prob(values)
                merged = torch.where(same, logprobs[name].values, new_logprobs)
                logprobs[name] = replace(rows, values=merged)
        if any(rows.values.any() for rows in by_hand.values()):
            self._store_choices(batch, chosen)
        updated = replace(decisions, chosen=chosen, logprobs=logprobs, numbers=numbers)
        return replace(updated, by_hand=by_hand)

    def decide_dependent(self, batch: EntityBatch, decisions: Decisions, hand: Hand) -> Decisions:
        """Update the base players' choices in actions that depend on the person's choices.

        Args:
            batch: the frames of all environments, on the device.
            decisions: decisions of the base players before the person's choices.
            hand: the choices of the person; `hand.defaults` is set to the base players' choices.
        """
        hand.defaults, original = decisions.chosen_on_host(), decisions
        for name in parents_first(batch.actions):
            action = batch.actions[name]
            if action.after is None:
                continue
            # Actors with another choice in the parent action.
            parent, choices = action.after.action, hand.choices()
            chosen = original.chosen[parent].values
            is_changed = to_device(choices[parent].values, chosen.device) != chosen
            changed = is_changed.index_select(0, parent_rows(action, batch.actions))
            if changed.any():
                distribution = self._conditional_distribution(batch, name, choices)
                decisions = _replace_choices(decisions, name, changed, distribution)
                hand.defaults = decisions.chosen_on_host()
        return decisions

    def _conditional_distribution(
        self, batch: EntityBatch, name: ActionName, choices: Mapping[ActionName, Ragged]
    ) -> ActionDistribution:
        """Return the base players' distribution of an action given the choices in parent actions.

        Args:
            batch: the frames of all environments.
            name: the action. Choices of actions other than its ancestors may be illegal.
            choices: the choices of all actors.
        """
        # Keep the choices in ancestors; zero the others where they are inactive, so that networks
        # accept them.
        action, chosen, ancestors = batch.actions[name], dict[str, RaggedTensor](), list[str]()
        while (link := batch.actions[ancestors[-1] if ancestors else name].after) is not None:
            ancestors.append(link.action)
        for other, rows in choices.items():
            tensor = RaggedTensor.of(rows, action.actors.values.device)
            chosen[other] = (
                tensor
                if other in ancestors
                else replace(tensor, values=zero_inactive(tensor.values))
            )

        # Evaluate each network in its frames. Bots cannot be called twice.
        distributions, env_lists = list[ActionDistribution](), list[IntArray]()
        for player in dict.fromkeys(self.seats):
            envs = np.array([i for i, seat in enumerate(self.seats) if seat is player])
            part, inputs = batch.take(envs), {n: rows.take(envs) for n, rows in chosen.items()}
            env_lists.append(envs)
            if isinstance(player, AgentPlayer):
                states = FrameStates(self.previous_states[envs[0]], envs)
                frames = states.attach(part, np.arange(len(envs)))
                out = player.agent(frames, actions={n: rows.values for n, rows in inputs.items()})
                distributions.append(out.distribution(name))
            else:
                distributions.append(uniform_choices(self.action_space, part.actions, inputs)[name])
        env_order = np.concatenate(env_lists)
        lengths, order = action.actors.lengths[env_order], np.argsort(env_order)
        rows_in_order = row_indices(exclusive_cumsum(lengths)[order], lengths[order])
        joined: ActionDistribution = distributions[0].cat(distributions)
        return joined.take(to_device(rows_in_order, action.actors.values.device))

    def _store_choices(self, batch: EntityBatch, chosen: Mapping[ActionName, RaggedTensor]) -> None:
        """Update the recurrent state of agents with the choices that were executed."""
        for player in dict.fromkeys(self.seats):
            envs = np.array([i for i, seat in enumerate(self.seats) if seat is player])
            memory = copy(self.previous_states[envs[0]])
            if isinstance(player, AgentPlayer):
                inputs = {name: rows.take(envs).values for name, rows in chosen.items()}
                memory.take_choices(player.agent, batch.take(envs), envs, inputs)
                player.set_memory(memory)

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the values of the base players."""
        return self.base_players.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Record the frames after a step."""
        self.base_players.after_step(obs)


def _replace_choices(
    decisions: Decisions, name: ActionName, changed: Tensor, distribution: ActionDistribution
) -> Decisions:
    """Replace the choices of some actors by the most probable choice of a distribution.

    Args:
        decisions: decisions in B frames.
        name: name of the action.
        changed: (actors,) bool, True for actors with a new choice.
        distribution: distribution of all actors.
    """
    modes = distribution.mode()
    rows = {
        "chosen": modes,
        "numbers": distribution.to_env(modes),
        "logprobs": distribution.log_prob(modes),
        "entropies": distribution.entropy(),
    }
    fields: dict[str, Any] = {}
    for field, values in rows.items():
        by_action = dict(getattr(decisions, field))
        if name in by_action:
            is_new = changed.reshape(-1, *[1] * (values.dim() - 1))
            merged = torch.where(is_new, values, by_action[name].values)
            by_action[name] = replace(by_action[name], values=merged)
        fields[field] = by_action
    if name in decisions.distributions:
        fields["distributions"] = {**decisions.distributions, name: distribution}
    return replace(decisions, **fields)
