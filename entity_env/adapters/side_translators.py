"""Translators of the sides of a match: one agent each, or teams whose members are entities."""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import Action, ActionMask
from entity_env.adapters.action_translators import JoinedFrames
from entity_env.adapters.agent_translator import AgentTranslator, View
from entity_env.adapters.gymnasium_api import names_of
from entity_env.adapters.gymnasium_spaces import Numbers, join_path
from entity_env.adapters.mapping import AGENT, FieldMap
from entity_env.environment import Observation
from entity_env.errors import InvalidSpace
from entity_env.spaces import ActionName, ActionSpace, Entity, EntityName, ObsSpace

AgentName: TypeAlias = Hashable


class SideTranslator:
    """Translate the observations and actions of the agents on one side of a match.

    Args:
        members: the agents of the side.
        translators: of all agents of the environment; agents with equal spaces share one.
        team_size: the number of members of the largest team, whose members are entities; 0 for a
            side of one agent, which sees what the agent sees.

    Attributes:
        obs_space: of all groups of agents together, which all sides share.
        action_space: of all groups of agents together.

    Raises:
        InvalidSpace: a type has the name of that of the members.
    """

    def __init__(
        self,
        members: Sequence[AgentName],
        translators: Mapping[AgentName, AgentTranslator],
        team_size: int = 0,
    ) -> None:
        self.members = list(members)
        self._translators = translators
        self._groups = list(dict.fromkeys(translators.values()))
        self._is_team = team_size > 0
        self._member_columns = np.eye(team_size, dtype=np.float32)
        self.obs_space = ObsSpace()
        self.action_space: dict[ActionName, ActionSpace] = {}
        columns = [f"member.{i}" for i in range(team_size)]
        for group in self._groups:
            self.action_space |= group.action_space
            own, agent_type = group.obs_space, group.agent_type
            if not self._is_team:
                start = len(self.obs_space.global_features)
                names = [join_path(group.prefix, name) for name in own.global_features]
                if group is translators[self.members[0]]:
                    self._own_globals = slice(start, start + len(names))
                self.obs_space.global_features += names
                self.obs_space.entities |= own.entities
                continue
            if agent_type in own.entities and not group.adds_agent:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the members of teams; "
                    "choose another"
                )
            self.obs_space.entities[agent_type] = Entity([*own.global_features, *columns])
            for name, entity in own.entities.items():
                if name != agent_type:
                    self.obs_space.entities[name] = Entity([*entity.features, *columns])

    def observation(self, views: Mapping[AgentName, View]) -> Observation:
        """Return the observation of the side for the views of the agents that are alive."""
        if self._is_team:
            return self._team_observation(views)
        # One agent, with nothing to see if it is dead.
        view = views.get(self.members[0])
        obs = Observation() if view is None else view.to_observation()
        if view is None or len(self._groups) > 1:
            obs.global_features = np.zeros(len(self.obs_space.global_features), dtype=np.float32)
            if view is not None:
                obs.global_features[self._own_globals] = view.frame.global_features
        return obs

    def _team_observation(self, views: Mapping[AgentName, View]) -> Observation:
        """Return an observation of the living members and everything that each of them sees."""
        features: dict[EntityName, Numbers] = {}
        ids: dict[EntityName, list[AgentName]] = {}
        actions: dict[ActionName, ActionMask] = {}
        for group in self._groups:
            agents, joined = self._join(group, views)
            if not agents:
                continue
            # An entity for each member, with its global features; and the entities that it sees.
            columns = self._member_columns[[self.members.index(agent) for agent in agents]]
            own = np.stack([frame.global_features for frame in joined.frames])
            features[group.agent_type] = np.hstack([own, columns])
            ids[group.agent_type] = agents
            for name in group.obs_space.entities:
                if name != group.agent_type:
                    rows = np.concatenate([frame.features[name] for frame in joined.frames])
                    seen_by = columns.repeat(joined.num_rows(name), axis=0)
                    features[name] = np.hstack([rows, seen_by])
            for name, translator in group.actions.items():
                masks = [views[agent].actions.get(name) for agent in agents]
                if any(mask is not None for mask in masks):
                    actions[name] = translator.join_masks(masks, joined)
        return Observation(features=features, ids=ids, actions=actions)

    def translate_actions(
        self, actions: Mapping[ActionName, Action], views: Mapping[AgentName, View]
    ) -> dict[AgentName, Any]:
        """Return the actions of the members that are alive, for the environment."""
        result: dict[AgentName, Any] = {}
        for group in self._groups:
            agents, joined = self._join(group, views)
            choices = group.decode(actions, joined) if agents else []
            for agent, own in zip(agents, choices, strict=True):
                result[agent] = group.build_action(own, views[agent].masks)
        return result

    def _join(
        self, group: AgentTranslator, views: Mapping[AgentName, View]
    ) -> tuple[list[AgentName], JoinedFrames]:
        """Return the living members of a group, and what they see."""
        agents = [a for a in self.members if a in views and self._translators[a] is group]
        frames = [views[agent].frame for agent in agents]
        return agents, JoinedFrames(frames, {group.agent_type: agents} if self._is_team else {})


def translators_of(
    env: Any, mapping: FieldMap | Mapping[str, FieldMap] | None, is_team: bool
) -> dict[AgentName, AgentTranslator]:
    """Return the translator of each agent; agents with equal spaces share one.

    Args:
        env: with the methods of a parallel environment of PettingZoo.
        mapping: of all agents, or by the name of their group: that of its agents without the
            number at the end.
        is_team: agents are members of teams.

    Raises:
        InvalidSpace: a mapping does not fit, or is for no group.
    """
    # Spaces cannot be hashed, and there are few.
    groups: list[tuple[tuple[Any, Any], list[AgentName]]] = []
    for agent in env.possible_agents:
        spaces = env.observation_space(agent), env.action_space(agent)
        for known, agents in groups:
            if known == spaces:
                agents.append(agent)
                break
        else:
            groups.append((spaces, [agent]))
    firsts = [str(agents[0]) for _, agents in groups]
    names = [re.sub(r"[\W_]*\d+$", "", first) or first for first in firsts]
    if len(set(names)) < len(names):
        names = firsts
    by_group = mapping if isinstance(mapping, Mapping) else dict.fromkeys(names, mapping)
    if unknown := [name for name in by_group if name not in names]:
        raise InvalidSpace(f"mapping: expected groups of agents among {names}, got {unknown}")
    env_names = names_of(env)
    translators: dict[AgentName, AgentTranslator] = {}
    for name, (spaces, agents) in zip(names, groups, strict=True):
        prefix = name if len(groups) > 1 else ""
        translator = AgentTranslator(*spaces, by_group.get(name), env_names, prefix, is_team)
        translators |= dict.fromkeys(agents, translator)
    return translators


def check_teams(teams: Mapping[str, Sequence[AgentName]], agents: Sequence[Any]) -> None:
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
