"""The agents of a parallel world as the sides of a match: one each, or in teams."""

import re
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import Action, ActionMask
from entity_env.adapters.declared import Declared
from entity_env.adapters.from_gymnasium import observation
from entity_env.adapters.mapping import FieldMap
from entity_env.adapters.port import Port, View
from entity_env.adapters.space_numbers import Numbers, join
from entity_env.environment import Observation
from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionName, ActionSpace, Entity, EntityName, ObsSpace

AgentName: TypeAlias = Hashable


@dataclass(frozen=True)
class Group:
    """Agents with equal spaces.

    Attributes:
        prefix: of the names of their types, features and actions; empty if all are in one group.
        agents: their names.
        port: what they see and do.
    """

    prefix: str
    agents: Sequence[AgentName]
    port: Port

    def name(self, own: str) -> str:
        """The name of something of theirs among those of all groups."""
        return join(self.prefix, own)


class Side(ABC):
    """What one side of a match sees and does."""

    @abstractmethod
    def spaces(self) -> tuple[ObsSpace, dict[ActionName, ActionSpace]]:
        """What the sides of this kind see and do, the same for all of them."""

    @abstractmethod
    def observe(self, views: Mapping[AgentName, View]) -> Observation:
        """What the side sees.

        Args:
            views: of the agents who are there.
        """

    @abstractmethod
    def act(
        self, actions: Mapping[ActionName, Action], views: Mapping[AgentName, View]
    ) -> dict[AgentName, Any]:
        """The actions of the agents who are there, in the world's terms."""

    @property
    @abstractmethod
    def members(self) -> Sequence[AgentName]:
        """The agents of the side."""


class OneAgent(Side):
    """A side that is one agent."""

    def __init__(self, agent: AgentName, groups: Sequence[Group]) -> None:
        self.agent = agent
        self.groups = groups
        self.group = next(group for group in groups if agent in group.agents)
        sizes = [len(group.port.obs_space.global_features) for group in groups]
        own = list(groups).index(self.group)
        start = sum(sizes[:own])
        self._own_globals = slice(start, start + sizes[own])
        self._blank: Numbers = np.zeros(sum(sizes), dtype=np.float32)

    @property
    def members(self) -> Sequence[AgentName]:
        """The agent."""
        return [self.agent]

    def spaces(self) -> tuple[ObsSpace, dict[ActionName, ActionSpace]]:
        """Those of all groups together."""
        obs_space, action_space = ObsSpace(), {}
        for group in self.groups:
            own = group.port.obs_space
            obs_space.global_features += map(group.name, own.global_features)
            obs_space.entities |= {
                group.name(name): Entity(entity.features) for name, entity in own.entities.items()
            }
            for name, space in group.port.action_space.items():
                action_space[group.name(name)] = space
        return obs_space, action_space

    def observe(self, views: Mapping[AgentName, View]) -> Observation:
        """What the agent sees; nothing if it is not there."""
        view = views.get(self.agent)
        if view is None:
            return Observation(global_features=self._blank.copy())
        if len(self.groups) == 1:  # whose names and numbers are those of all
            return observation(view)
        features: dict[EntityName, Numbers] = {
            self.group.name(name): block for name, block in view.frame.features.items()
        }
        global_features = self._blank.copy()
        global_features[self._own_globals] = view.frame.global_features
        return Observation(
            features=features,
            global_features=global_features,
            actions={
                self.group.name(name): self._with_types(mask) for name, mask in view.actions.items()
            },
        )

    def act(
        self, actions: Mapping[ActionName, Action], views: Mapping[AgentName, View]
    ) -> dict[AgentName, Any]:
        """What the agent does, if it is there."""
        view = views.get(self.agent)
        if view is None:
            return {}
        port = self.group.port
        if len(self.groups) == 1:
            return {self.agent: port.act(view, actions)}
        own = {name: self.group.name(name) for name in port.choosers}
        chosen = {name: actions[full] for name, full in own.items() if full in actions}
        return {self.agent: port.act(view, chosen)}

    def _with_types(self, mask: ActionMask) -> ActionMask:
        """A mask that names types as all groups know them."""
        for field in ("actor_types", "actee_types"):
            types = getattr(mask, field, None)
            if types is not None:
                setattr(mask, field, [self.group.name(name) for name in types])
        return mask


def groups_of(env: Any, mapping: FieldMap | Mapping[str, FieldMap] | None) -> list[Group]:
    """The agents of a parallel world in groups with equal spaces.

    Args:
        env: with the methods of a parallel world of PettingZoo.
        mapping: of all agents, or by the name of their group: that of its agents without the
            number at the end.

    Raises:
        InvalidSpace: a mapping does not fit, or is for no group.
    """
    alike: list[tuple[Any, list[AgentName]]] = []
    for agent in env.possible_agents:
        spaces = env.observation_space(agent), env.action_space(agent)
        for known, agents in alike:
            if known == spaces:
                agents.append(agent)
                break
        else:
            alike.append((spaces, [agent]))
    names = [_without_number(agents[0]) for _, agents in alike]
    if len(set(names)) < len(names):
        names = [str(agents[0]) for _, agents in alike]
    by_group = mapping if isinstance(mapping, Mapping) else dict.fromkeys(names, mapping)
    if unknown := [name for name in by_group if name not in names]:
        raise InvalidSpace(f"mapping: expected groups of agents among {names}, got {unknown}")
    declared = Declared.of(env)
    return [
        Group(
            name if len(names) > 1 else "",
            agents,
            Port(shown, done, by_group.get(name), declared),
        )
        for name, ((shown, done), agents) in zip(names, alike, strict=True)
    ]


def _without_number(agent: AgentName) -> str:
    return re.sub(r"[\W_]*\d+$", "", str(agent)) or str(agent)


def refuse_other_agents(teams: Mapping[str, Sequence[AgentName]], agents: Sequence[Any]) -> None:
    """Raise unless each agent is in exactly one team.

    Raises:
        InvalidSpace: an agent is in no team or in several, or a team names others.
    """
    if not isinstance(teams, Mapping):
        raise InvalidSpace(f"teams: expected lists of agents by the name of a team, got {teams!r}")
    named = [agent for members in teams.values() for agent in members]
    if len(set(named)) < len(named) or set(named) != set(agents) or not all(teams.values()):
        raise InvalidSpace(
            f"teams: expected every agent of {list(agents)} in one team, got "
            f"{ {name: list(members) for name, members in teams.items()} }"
        )
