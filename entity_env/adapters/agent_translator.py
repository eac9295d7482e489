"""Translators of observations and actions, for one agent and for one side of a match."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from entity_env.actions import Action, ActionMask, EntityID
from entity_env.adapters.action_translators import (
    ActionTranslator,
    ChoiceTranslator,
    Component,
    JoinedFrames,
    Masks,
    build_action,
    components_of,
    cut_mask,
    labels_of,
    split_mask,
)
from entity_env.adapters.gymnasium_api import EnvNames
from entity_env.adapters.gymnasium_spaces import Space, join_path, nodes, value_at
from entity_env.adapters.mapping import (
    ACTION_MASK,
    AGENT,
    AnyAction,
    Choice,
    FieldMap,
    Number,
    Select,
)
from entity_env.adapters.number_translator import NumberTranslator
from entity_env.adapters.observation_reader import Frame, ObservationReader
from entity_env.arrays import BoolArray, Float32Array, real_array
from entity_env.environment import Observation
from entity_env.errors import (
    LONG,
    InvalidObservation,
    InvalidSpace,
    did_you_mean,
    short_repr,
)
from entity_env.names import is_computed
from entity_env.spaces import ActionName, ActionSpace, Entity, EntityName, ObsSpace

AgentName: TypeAlias = Hashable

_AGENT_FEATURES = np.zeros((1, 0), dtype=np.float32)
_AGENT_ROWS = np.zeros(1, dtype=np.int64)


class AgentView(NamedTuple):
    """The translated observation of one agent."""

    frame: Frame
    actions: Mapping[ActionName, ActionMask]  # of entity actions; empty after the episode
    masks: Masks  # of the components of the Gymnasium action; empty after the episode

    def to_observation(self, **outcome: Any) -> Observation:
        """Create the observation; `outcome` has the reward, flags and metrics of the step."""
        frame = self.frame
        return Observation(
            features=frame.features,
            global_features=frame.global_features,
            ids=frame.ids,
            actions=self.actions,
            **outcome,
        )

    def without_actions(self) -> "AgentView":
        """Return a copy without actions, for an episode that has ended."""
        return AgentView(self.frame, {}, [])


class AgentTranslator:
    """Translate one agent's observations and actions between Gymnasium spaces and entity spaces.

    Args:
        obs_space: Gymnasium observation space.
        action_space: Gymnasium action space.
        mapping: mapping of the fields; the fields that it does not name are inferred.
        names: feature names and labels of the environment.
        prefix: prefix of the names of types and actions.
        is_team: the agent is a team member, and an entity of the team's observation.

    Attributes:
        obs_space: entity types and global features.
        action_space: entity actions.
        actions: translator of each action.
        complete: mapping including all inferred fields.
        spaces: Gymnasium observation space and action space.
        num_rows: number of rows of each entity type, None if it varies.
        missing_metrics: paths of metrics that no info has contained so far.
        info_paths: paths in infos, collected while metrics are missing.
        agent_type: entity type of the agent.
        adds_agent: whether frames have an additional entity for the agent.

    Raises:
        InvalidSpace: the mapping does not fit the environment, or a field cannot be inferred.
    """

    def __init__(
        self,
        obs_space: Space,
        action_space: Space,
        mapping: FieldMap | None = None,
        names: EnvNames | None = None,
        prefix: str = "",
        is_team: bool = False,
    ) -> None:
        self.prefix = prefix
        self.mapping = FieldMap() if mapping is None else mapping
        if not isinstance(self.mapping, FieldMap):
            raise InvalidSpace(f"mapping: expected a FieldMap, got {mapping!r}")
        names = EnvNames() if names is None else names
        self.spaces = obs_space, action_space
        self._components = components_of(action_space)
        labels = labels_of(self._components, names.labels)
        self._reader = ObservationReader(obs_space, self.mapping, names.features, prefix)
        self.obs_space, self.num_rows = self._reader.obs_space, self._reader.num_rows

        # Create a translator for each action, in the order of the mapping, then of the components.
        self.actions: dict[ActionName, ActionTranslator] = {}
        self.action_space: dict[ActionName, ActionSpace] = {}
        self._by_slot: dict[int, ActionTranslator] = {}
        complete_actions: dict[ActionName, AnyAction] = {}
        counts = [component.num_choices for component in self._components]
        mask_specs: list[Any] = [(None, self.mapping.action_mask, range(len(counts)), counts)]
        for name, (action, parts) in self._find_actions().items():
            translator: ActionTranslator
            if isinstance(action, Number):
                translator = NumberTranslator(name, action, parts, self.num_rows, prefix, is_team)
            else:
                translator = ChoiceTranslator(
                    name, action, parts, self.num_rows, labels, prefix, is_team
                )
            for slot in translator.slots:
                if slot in self._by_slot:
                    raise InvalidSpace(
                        "FieldMap.actions: expected each component in one action, got "
                        f"{self._components[slot].path!r} in {self._by_slot[slot].name!r} and "
                        f"{name!r}"
                    )
                self._by_slot[slot] = translator
            self.actions[join_path(prefix, name)] = translator
            self.action_space[join_path(prefix, name)] = translator.space
            complete_actions[name] = translator.complete
            counts = [translator.num_choices] * len(parts)
            mask_specs.append((name, action.mask, translator.slots, counts))
        self.complete = replace(
            self.mapping,
            entities=self._reader.entities,
            global_features=self._reader.global_features,
            actions=complete_actions,
        )
        # For each mask: the action (None for all), path, keys (None for a mask in the info), slots
        # and numbers of choices.
        keys_of = {node.path: node.keys for node in nodes(obs_space)}
        self._mask_fields = [
            (name, path, keys_of.get(path), slots, counts)
            for name, path, slots, counts in mask_specs
            if path is not None
        ]

        # Metrics: their names by path, and the state of the check that each is logged.
        paths = self.mapping.metrics
        self._metric_names = {p: f"info/{p}" if is_computed(p) else p for p in paths}
        self.missing_metrics = set(paths)
        self.info_paths: set[str] = set()

        # Add an entity for the agent if it selects entities.
        self.agent_type = join_path(prefix, AGENT)
        selections = [one for one in self.mapping.actions.values() if isinstance(one, Select)]
        self.adds_agent = any(one.actors is None for one in selections)
        if self.adds_agent:
            if self.agent_type in self.obs_space.entities:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is reserved for the selecting agent; "
                    "choose another, or set actors to the type that selects"
                )
            self.obs_space.entities[self.agent_type] = Entity([])

    def translate_observation(
        self, value: Any, info: Mapping[str, Any], is_over: bool = False
    ) -> AgentView:
        """Translate an observation and its action masks.

        Args:
            value: observation of the Gymnasium environment.
            info: info returned with it.
            is_over: the episode has ended, so there are no actions.

        Raises:
            InvalidObservation: the observation or a mask does not fit its space.
        """
        frame = self._reader.read(value)
        frame.rows.setdefault(self.agent_type, _AGENT_ROWS)
        if self.adds_agent:
            frame.features[self.agent_type] = _AGENT_FEATURES
        if is_over:
            return AgentView(frame, {}, [])
        masks = self._masks(value, info)
        actions = {}
        for name, translator in self.actions.items():
            mask = translator.mask(frame, masks)
            if mask is not None:
                actions[name] = mask
        return AgentView(frame, actions, masks)

    def translate_actions(self, view: AgentView, actions: Mapping[ActionName, Action]) -> Any:
        """Translate the entity actions chosen in a view to a Gymnasium action."""
        (choices,) = self.decode(actions, JoinedFrames([view.frame], view.frame.ids))
        return self.build_action(choices, view.masks)

    def decode(
        self, actions: Mapping[ActionName, Action], joined: JoinedFrames
    ) -> list[dict[int, Any]]:
        """Return the choices of each agent, by slot."""
        choices: list[dict[int, Any]] = [{} for _ in joined.frames]
        for name, translator in self.actions.items():
            if name in actions:
                translator.decode(actions[name], joined, choices)
        return choices

    def build_action(self, choices: Mapping[int, Any], masks: Masks | None = None) -> Any:
        """Build a Gymnasium action; components without a choice get their defaults.

        Args:
            choices: chosen values by slot.
            masks: masks of all components; if None, defaults are not checked.
        """
        values = [
            self._by_slot[slot].value(
                component, choices.get(slot), None if masks is None else masks[slot]
            )
            for slot, component in enumerate(self._components)
        ]
        return build_action(self.spaces[1], iter(values))

    def metrics(self, info: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics that the info contains, by their paths.

        A path that is also the name of a computed metric gets the prefix "info/".

        Raises:
            InvalidObservation: a value is not a number.
        """
        paths = self.mapping.metrics
        if not paths:
            return {}
        values = {path: value for path in paths if (value := _info_value(info, path)) is not None}
        if self.missing_metrics:
            self.info_paths.update(_info_paths(info))
            self.missing_metrics -= {p for p in self.missing_metrics if _has_info_value(info, p)}
        try:
            return {
                self._metric_names[path]: float(real_array(value).reshape(()))
                for path, value in values.items()
            }
        except (TypeError, ValueError, OverflowError):
            raise InvalidObservation(
                f"metrics: expected numbers in the info, got {short_repr(values, LONG)}"
            ) from None

    def _find_actions(self) -> dict[ActionName, tuple[AnyAction, list[Component]]]:
        """Return the actions of the mapping, and a global action for each other component."""
        actions: dict[ActionName, tuple[AnyAction, list[Component]]] = {}
        for name, action in self.mapping.actions.items():
            path, argument = action.path, f"FieldMap.actions[{name!r}]"
            paths = [component.path for component in self._components]
            parts = [c for c in self._components if not path or f"{c.path}.".startswith(f"{path}.")]
            if not parts:
                hint = did_you_mean(path, paths)
                raise InvalidSpace(
                    f"{argument}.path: expected one of {paths}, or a prefix of them, got "
                    f"{path!r}{hint}"
                )
            if not 0 <= action.column < action.of or len(parts) % action.of:
                raise InvalidSpace(
                    f"{argument}: expected 0 <= column < of, and of to divide {len(parts)} "
                    f"components, got column={action.column}, of={action.of}"
                )
            actions[name] = action, parts[action.column :: action.of]

        # Infer an action for each component that the mapping does not name.
        used_slots = {component.slot for _, parts in actions.values() for component in parts}
        unmapped = [component for component in self._components if component.slot not in used_slots]
        duplicates = []
        for component in unmapped:
            path = component.path
            name = path or "action"
            if path == "action" or path[:1].isdigit():
                name = f"action.{path}"
            if name in actions:
                duplicates.append(name)
            cls = Choice if component.box is None else Number
            actions[name] = cls(path), [component]
        if duplicates:
            raise InvalidSpace(
                f"FieldMap.actions: expected names that differ from inferred actions, got "
                f"{duplicates}; rename them"
            )
        return actions

    def _masks(self, value: Any, info: Mapping[str, Any]) -> list[BoolArray | None]:
        """Return the mask of each component, None if all choices are allowed."""
        masks: list[BoolArray | None] = [None] * len(self._components)
        for name, path, keys, slots, counts in self._mask_fields:
            mask = _info_value(info, path) if keys is None else value_at(value, keys, "observation")
            if mask is None:
                if name is None and path == ACTION_MASK:
                    continue  # the default mask is optional
                argument = "FieldMap.action_mask" if name is None else f"actions[{name!r}].mask"
                candidates = [*map(str, info), *(node.path for node in nodes(self.spaces[0]))]
                raise InvalidObservation(
                    f"{argument}: expected {path!r} in the info, got {list(info)}"
                    f"{did_you_mean(path, candidates)}"
                )
            if name is None and not isinstance(mask, np.ndarray):
                part_masks = split_mask(self.spaces[1], mask, path)
            else:
                part_masks = cut_mask(mask, counts, path)
            for slot, count, part_mask in zip(slots, counts, part_masks, strict=True):
                masks[slot] = part_mask if count else None  # a Box is not masked
        return masks


class SideTranslator:
    """Translate the observations and actions of the agents on one side of a match.

    Args:
        members: agents of the side.
        translators: translator of each agent; agents with equal spaces share one.
        team_size: size of the largest team; members of teams become entities. 0 if each side is one
            agent, with an unchanged observation.

    Attributes:
        obs_space: union of the observation spaces of all groups, shared by all sides.
        action_space: union of the actions of all groups.

    Raises:
        InvalidSpace: the mapping uses the type name of team members.
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
        # Merge the spaces of all groups; in teams each type gets a column for each member.
        columns = [f"member.{i}" for i in range(team_size)]
        for group in self._groups:
            self.action_space |= group.action_space
            space, agent_type = group.obs_space, group.agent_type
            if not self._is_team:
                start = len(self.obs_space.global_features)
                names = [join_path(group.prefix, name) for name in space.global_features]
                if group is translators[self.members[0]]:
                    self._global_slice = slice(start, start + len(names))
                self.obs_space.global_features += names
                if space.global_kinds and len(self._groups) > 1:
                    raise InvalidSpace(
                        "FieldMap.global_features: expected numbers, because other groups of "
                        "agents lack these features, got kinds "
                        f"{space.global_kinds}; name them in one_hot instead"
                    )
                self.obs_space.global_kinds = space.global_kinds
                self.obs_space.entities |= space.entities
                continue
            if agent_type in space.entities and not group.adds_agent:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is reserved for team members; choose "
                    "another"
                )
            entities = {name: one for name, one in space.entities.items() if name != agent_type}
            for name, entity in {agent_type: space.global_entity, **entities}.items():
                features = [*entity.features, *columns]
                self.obs_space.entities[name] = Entity(features, entity.kinds, entity.constants)

    def observation(self, views: Mapping[AgentName, AgentView]) -> Observation:
        """Return the observation of the side from the views of the living agents."""
        if self._is_team:
            return self._team_observation(views)
        # One agent; the observation is empty if it is dead.
        view = views.get(self.members[0])
        obs = Observation() if view is None else view.to_observation()
        if view is None or len(self._groups) > 1:
            num_globals = len(self.obs_space.global_features) + len(self.obs_space.global_kinds)
            obs.global_features = np.zeros(num_globals, dtype=np.float32)
            if view is not None:
                obs.global_features[self._global_slice] = view.frame.global_features
        return obs

    def _team_observation(self, views: Mapping[AgentName, AgentView]) -> Observation:
        """Return an observation of the living members and all entities that they observe."""
        features: dict[EntityName, Float32Array] = {}
        ids: dict[EntityName, Sequence[EntityID]] = {}
        actions: dict[ActionName, ActionMask] = {}
        for group in self._groups:
            agents, joined = self._join(group, views)
            if not agents:
                continue
            # Each member becomes an entity with its global features, followed by observed entities.
            columns = self._member_columns[[self.members.index(agent) for agent in agents]]
            global_features = np.stack([frame.global_features for frame in joined.frames])
            num_numbers = len(group.obs_space.global_features)
            features[group.agent_type] = _insert_columns(global_features, num_numbers, columns)
            ids |= joined.ids
            for name, entity in group.obs_space.entities.items():
                if name != group.agent_type:
                    rows = np.concatenate([frame.features[name] for frame in joined.frames])
                    member_columns = columns.repeat(joined.num_rows(name), axis=0)
                    features[name] = _insert_columns(rows, len(entity.features), member_columns)
            for name, translator in group.actions.items():
                masks = [views[agent].actions.get(name) for agent in agents]
                if any(mask is not None for mask in masks):
                    actions[name] = translator.join_masks(masks, joined)
        return Observation(features=features, ids=ids, actions=actions)

    def translate_actions(
        self, actions: Mapping[ActionName, Action], views: Mapping[AgentName, AgentView]
    ) -> dict[AgentName, Any]:
        """Return the Gymnasium action of each living member."""
        result: dict[AgentName, Any] = {}
        for group in self._groups:
            agents, joined = self._join(group, views)
            choices = group.decode(actions, joined) if agents else []
            for agent, agent_choices in zip(agents, choices, strict=True):
                result[agent] = group.build_action(agent_choices, views[agent].masks)
        return result

    def _join(
        self, group: AgentTranslator, views: Mapping[AgentName, AgentView]
    ) -> tuple[list[AgentName], JoinedFrames]:
        """Return the living members of a group and their joined frames."""
        agents = [a for a in self.members if a in views and self._translators[a] is group]
        frames = [views[agent].frame for agent in agents]
        if not self._is_team:
            return agents, JoinedFrames(frames, frames[0].ids if frames else {})
        ids: dict[EntityName, Sequence[EntityID]] = {group.agent_type: agents}
        for name in frames[0].ids if frames else ():  # members may observe the same entity
            members = zip(agents, frames, strict=True)
            ids[name] = [f"{agent} {one}" for agent, frame in members for one in frame.ids[name]]
        return agents, JoinedFrames(frames, ids)


def check_metrics(translators: Sequence[AgentTranslator]) -> None:
    """Raise at the end of an episode if no info so far has contained a metric.

    Args:
        translators: translators of all agents.

    Raises:
        InvalidObservation: names the path of the metric and the nearest path in an info.
    """
    for path in sorted({path for one in translators for path in one.missing_metrics}):
        relevant = [one for one in translators if path in one.mapping.metrics]
        if all(path in one.missing_metrics for one in relevant):
            logged = sorted({path for one in relevant for path in one.info_paths})
            raise InvalidObservation(
                f"FieldMap.metrics: expected paths that are in an info of an episode, "
                f"{short_repr(logged, LONG)}, got {path!r}{did_you_mean(path, logged)}; correct or "
                "remove it"
            )


def _insert_columns(rows: Float32Array, num_numbers: int, columns: Float32Array) -> Float32Array:
    """Insert columns between the numbers and the kinds of rows."""
    return np.hstack([rows[:, :num_numbers], columns, rows[:, num_numbers:]])


def _info_value(info: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path in the info, None if it is missing."""
    value: Any = info
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _has_info_value(info: Mapping[str, Any], path: str) -> bool:
    """Return whether the info has a value at a path, including None."""
    parent, _, key = path.rpartition(".")
    parent_value = _info_value(info, parent) if parent else info
    return isinstance(parent_value, Mapping) and key in parent_value


def _info_paths(info: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the values in an info."""
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _info_paths(value, join_path(path, key))
        else:
            yield join_path(path, key)
