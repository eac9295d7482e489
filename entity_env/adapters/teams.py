"""A side of several agents, each of whom is an entity of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from entity_env.actions import (
    Action,
    ActionMask,
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.adapters.action_parts import Flags
from entity_env.adapters.choose import EntityChooser, GlobalChooser, Selector
from entity_env.adapters.mapping import AGENT
from entity_env.adapters.port import View
from entity_env.adapters.sides import AgentName, Group, Side
from entity_env.adapters.space_numbers import Numbers
from entity_env.environment import Observation
from entity_env.errors import InvalidSpace
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    EntityName,
    ObsSpace,
)


class Team(Side):
    """A side whose members are entities.

    Args:
        members: names of the agents.
        groups: all agents of the world.
        size: how many members the largest team has.

    Raises:
        InvalidSpace: a type has the name of that of the members.
    """

    def __init__(self, members: Sequence[AgentName], groups: Sequence[Group], size: int) -> None:
        for group in groups:
            if AGENT in group.port.obs_space.entities and not group.port.one_agent:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the members of teams; "
                    "choose another"
                )
        self._members = list(members)
        self._groups = groups
        self._who = np.eye(size, dtype=np.float32)

    @property
    def members(self) -> Sequence[AgentName]:
        """The agents of the team."""
        return self._members

    def spaces(self) -> tuple[ObsSpace, dict[ActionName, ActionSpace]]:
        """Those of all groups together, with columns that say whose a row is."""
        who = [f"member.{i}" for i in range(len(self._who))]
        obs_space, action_space = ObsSpace(), {}
        for group in self._groups:
            own = group.port.obs_space
            types = {AGENT: own.global_features} | {
                name: entity.features for name, entity in own.entities.items() if name != AGENT
            }
            obs_space.entities |= {
                group.name(name): Entity([*features, *who]) for name, features in types.items()
            }
            for name, chooser in group.port.choosers.items():
                action_space[group.name(name)] = (
                    CategoricalActionSpace(chooser.labels)
                    if isinstance(chooser, GlobalChooser)
                    else chooser.space
                )
        return obs_space, action_space

    def observe(self, views: Mapping[AgentName, View]) -> Observation:
        """The members who are there and what each of them sees."""
        obs = Observation()
        actions: dict[ActionName, ActionMask] = {}
        for group in self._groups:
            here = _Here(group, self._present(group, views))
            if here.agents:
                features, actions_of_group = self._show(here)
                obs.features |= features
                obs.ids[group.name(AGENT)] = here.agents
                actions |= actions_of_group
        obs.actions = actions
        return obs

    def act(
        self, actions: Mapping[ActionName, Action], views: Mapping[AgentName, View]
    ) -> dict[AgentName, Any]:
        """What the members who are there do."""
        chosen: dict[AgentName, Any] = {}
        for group in self._groups:
            here = _Here(group, self._present(group, views))
            own = [
                (name, actions[group.name(name)])
                for name in group.port.choosers
                if group.name(name) in actions
            ]
            each: dict[AgentName, dict[ActionName, Action]] = {a: {} for a in here.agents}
            for name, action in own:
                for agent, part in here.split(name, action).items():
                    each[agent][name] = part
            for agent in here.agents:
                chosen[agent] = group.port.act(views[agent], each[agent])
        return chosen

    def _present(self, group: Group, views: Mapping[AgentName, View]) -> dict[AgentName, View]:
        return {a: views[a] for a in self._members if a in views and a in group.agents}

    def _show(
        self, here: "_Here"
    ) -> tuple[dict[EntityName, Numbers], dict[ActionName, ActionMask]]:
        group = here.group
        who = self._who[[self._members.index(agent) for agent in here.agents]]
        flat = np.stack([view.frame.global_features for view in here.views])
        features = {group.name(AGENT): np.hstack([flat, who])}
        for name in group.port.obs_space.entities:
            if name != AGENT:
                blocks = [view.frame.features[name] for view in here.views]
                saw = np.repeat(who, [len(block) for block in blocks], axis=0)
                features[group.name(name)] = np.hstack([np.concatenate(blocks), saw])
        masks = {group.name(name): here.merge(name) for name in group.port.choosers}
        return features, {name: mask for name, mask in masks.items() if mask is not None}


class _Here:
    """The members of one group that are there, and their rows among those of all of them."""

    def __init__(self, group: Group, views: Mapping[AgentName, View]) -> None:
        self.group = group
        self.agents = list(views)
        self.views = list(views.values())

    def merge(self, name: ActionName) -> ActionMask | None:
        """One mask for the masks of all members, None if nobody may anything."""
        chooser = self.group.port.choosers[name]
        given: list[Any] = [view.actions.get(name) for view in self.views]
        if all(mask is None for mask in given):
            return None
        one_each = np.ones(len(given), dtype=np.int64)
        if isinstance(chooser, GlobalChooser):
            allowed = _stack(given, one_each, chooser.num_choices)
            return CategoricalActionMask(actor_ids=self.agents, mask=allowed)
        if isinstance(chooser, EntityChooser):
            allowed = _stack(given, self._counts(chooser.actors), chooser.num_choices)
            return CategoricalActionMask(
                actor_types=[self.group.name(chooser.actors)], mask=allowed
            )
        assert isinstance(chooser, Selector)
        actees = self._counts(chooser.actees)
        actors = one_each if chooser.actors == AGENT else self._counts(chooser.actors)
        return SelectEntityActionMask(
            actor_types=[self.group.name(chooser.actors)],
            actee_types=[self.group.name(chooser.actees)],
            mask=_diagonal(given, actors, actees),
        )

    def split(self, name: ActionName, action: Action) -> dict[AgentName, Action]:
        """What each member chose."""
        chooser = self.group.port.choosers[name]
        if isinstance(chooser, GlobalChooser):
            assert isinstance(action, CategoricalAction)
            return {
                agent: GlobalCategoricalAction(index, action.index_to_label[index])
                for agent, index in zip(action.actors, action.indices.tolist(), strict=True)
            }
        assert isinstance(chooser, EntityChooser | Selector)
        assert isinstance(action, CategoricalAction | SelectEntityAction)
        locate = self._locator(chooser.actors)
        places = [locate(actor) for actor in action.actors]
        split: dict[AgentName, Action] = {}
        for number in sorted({member for member, _ in places}):
            mine = [i for i, (member, _) in enumerate(places) if member == number]
            actors = [(chooser.actors, places[i][1]) for i in mine]
            split[self.agents[number]] = (
                replace(action, actors=actors, indices=action.indices[mine], probs=None)
                if isinstance(action, CategoricalAction)
                else replace(
                    action, actors=actors, actees=self._own(chooser, action, mine), probs=None
                )
            )
        return split

    def _own(self, chooser: Any, action: SelectEntityAction, mine: Sequence[int]) -> list[Any]:
        """The selected entities as the member that selects them knows them."""
        locate = self._locator(chooser.actees)
        return [(chooser.actees, locate(action.actees[i])[1]) for i in mine]

    def _counts(self, name: EntityName) -> Any:
        return np.array([len(view.frame.features[name]) for view in self.views], dtype=np.int64)

    def _locator(self, name: EntityName) -> Callable[[Any], tuple[int, int]]:
        """From an id to the number of a member and its own row."""
        if name == AGENT:
            return lambda agent: (self.agents.index(agent), 0)
        ends = np.cumsum(self._counts(name))
        starts = ends - self._counts(name)

        def locate(entity: Any) -> tuple[int, int]:
            member = int(np.searchsorted(ends, entity[1], side="right"))
            return member, int(entity[1] - starts[member])

        return locate


def _stack(given: Sequence[Any], counts: Any, num_choices: int) -> Flags | None:
    """(actors of all members, choices) bool; nothing is allowed to those who were offered none."""
    if all(mask is not None and mask.mask is None for mask in given):
        return None
    rows = [
        np.full((n, num_choices), mask is not None)
        if mask is None or mask.mask is None
        else np.reshape(mask.mask, (n, num_choices))
        for mask, n in zip(given, counts.tolist(), strict=True)
    ]
    allowed: Flags = np.concatenate(rows)
    return allowed


def _diagonal(given: Sequence[Any], actors: Any, actees: Any) -> Flags:
    """(actors, actees) bool: members select among what they see themselves."""
    allowed: Flags = np.zeros((int(actors.sum()), int(actees.sum())), dtype=np.bool_)
    row = column = 0
    for mask, n, k in zip(given, actors.tolist(), actees.tolist(), strict=True):
        if mask is not None:
            block = True if mask.mask is None else np.reshape(mask.mask, (n, k))
            allowed[row : row + n, column : column + k] = block
        row, column = row + n, column + k
    return allowed
