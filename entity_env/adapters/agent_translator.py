"""Translators of the observations and actions of an agent, and of a side of a match."""

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


class View(NamedTuple):
    """The translated observation of one agent."""

    frame: Frame
    actions: Mapping[ActionName, ActionMask]  # of entity actions; empty after the episode
    masks: Masks  # of the components of the Gymnasium action; empty after the episode

    def to_observation(self, **outcome: Any) -> Observation:
        """Return the observation; `outcome` has the reward, flags and metrics of the step."""
        frame = self.frame
        return Observation(
            features=frame.features,
            global_features=frame.global_features,
            ids=frame.ids,
            actions=self.actions,
            **outcome,
        )

    def after_the_end(self) -> "View":
        """Return the same view without actions, as of an episode that is over."""
        return View(self.frame, {}, [])


class AgentTranslator:
    """Translate one agent's observations and actions between Gymnasium spaces and entity spaces.

    Args:
        obs_space: of the Gymnasium environment.
        action_space: of the Gymnasium environment.
        mapping: the meaning of the fields; what it does not name is inferred.
        names: of features and choices, from the environment.
        prefix: of the names of types and actions.
        is_team: the agent is a member of a team, and an entity of it.

    Attributes:
        obs_space: the entity types and global features.
        action_space: the entity actions.
        actions: the translators of the actions.
        complete: the mapping with everything that was inferred written out.
        spaces: those of the Gymnasium environment, of observations and of actions.
        num_rows: of each entity type, None if it varies.
        missing_metrics: the paths of metrics that were in no info so far.
        info_paths: the paths that were in an info while metrics were missing.
        agent_type: the type of the agent, if it is an entity.
        adds_agent: frames have an entity that stands for the agent.

    Raises:
        InvalidSpace: the mapping does not fit the environment, or something cannot be inferred.
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
        shipped = labels_of(self._components, names.labels)
        self._reader = ObservationReader(obs_space, self.mapping, names.features, prefix)
        self.obs_space, self.num_rows = self._reader.obs_space, self._reader.num_rows

        # A translator for each action, in the order of the mapping and then of the components.
        self.actions: dict[ActionName, ActionTranslator] = {}
        self.action_space: dict[ActionName, ActionSpace] = {}
        self._owners: dict[int, ActionTranslator] = {}  # of each component
        named: dict[ActionName, AnyAction] = {}
        counts = [component.num_choices for component in self._components]
        masked: list[Any] = [(None, self.mapping.action_mask, range(len(counts)), counts)]
        for name, (action, found) in self._find_actions().items():
            translator: ActionTranslator
            if isinstance(action, Number):
                translator = NumberTranslator(name, action, found, self.num_rows, prefix, is_team)
            else:
                translator = ChoiceTranslator(
                    name, action, found, self.num_rows, shipped, prefix, is_team
                )
            for slot in translator.slots:
                if slot in self._owners:
                    raise InvalidSpace(
                        "FieldMap.actions: expected every part of the action once, got "
                        f"{self._components[slot].path!r} in {self._owners[slot].name!r} and "
                        f"{name!r}"
                    )
                self._owners[slot] = translator
            self.actions[join_path(prefix, name)] = translator
            self.action_space[join_path(prefix, name)] = translator.space
            named[name] = translator.complete
            counts = [translator.num_choices] * len(found)
            masked.append((name, action.mask, translator.slots, counts))
        self.complete = replace(
            self.mapping,
            entities=self._reader.entities,
            global_features=self._reader.global_features,
            actions=named,
        )
        # The name of an action or None for all; the path and keys of its mask, no keys for one in
        # the info; its slots, and the number of their choices.
        keys_of = {node.path: node.keys for node in nodes(obs_space)}
        self._mask_fields = [
            (name, path, keys_of.get(path), slots, counts)
            for name, path, slots, counts in masked
            if path is not None
        ]

        # Names of metrics by their paths; metrics that were in no info so far, and until all were,
        # the paths of infos.
        paths = self.mapping.metrics
        self._metric_names = {p: f"info/{p}" if is_computed(p) else p for p in paths}
        self.missing_metrics = set(paths)
        self.info_paths: set[str] = set()

        # The entity that stands for the agent.
        self.agent_type = join_path(prefix, AGENT)
        selects = [one for one in self.mapping.actions.values() if isinstance(one, Select)]
        self.adds_agent = any(one.actors is None for one in selects)
        if self.adds_agent:
            if self.agent_type in self.obs_space.entities:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the one who selects; "
                    "choose another, or name the type that selects in actors"
                )
            self.obs_space.entities[self.agent_type] = Entity([])

    def translate_observation(
        self, value: Any, info: Mapping[str, Any], is_over: bool = False
    ) -> View:
        """Return the view of an observation.

        Args:
            value: the observation.
            info: the info that came with it.
            is_over: the episode is over, so that there are no actions.

        Raises:
            InvalidObservation: the observation or a mask is not of the space.
        """
        frame = self._reader.read(value)
        frame.rows.setdefault(self.agent_type, _AGENT_ROWS)
        if self.adds_agent:
            frame.features[self.agent_type] = _AGENT_FEATURES
        if is_over:
            return View(frame, {}, [])
        masks = self._masks(value, info)
        actions = {}
        for name, translator in self.actions.items():
            mask = translator.mask(frame, masks)
            if mask is not None:
                actions[name] = mask
        return View(frame, actions, masks)

    def translate_actions(self, view: View, actions: Mapping[ActionName, Action]) -> Any:
        """Return the Gymnasium action for entity actions that were chosen in a view."""
        (choices,) = self.decode(actions, JoinedFrames([view.frame], view.frame.ids))
        return self.build_action(choices, view.masks)

    def decode(
        self, actions: Mapping[ActionName, Action], joined: JoinedFrames
    ) -> list[dict[int, Any]]:
        """Return the choices of each agent by component, for the actions of all of them."""
        choices: list[dict[int, Any]] = [{} for _ in joined.frames]
        for name, translator in self.actions.items():
            if name in actions:
                translator.decode(actions[name], joined, choices)
        return choices

    def build_action(self, choices: Mapping[int, Any], masks: Masks | None = None) -> Any:
        """Return the Gymnasium action for choices by component, defaults elsewhere.

        Args:
            choices: of the components that an actor has chosen for.
            masks: of all components; without them the defaults need not be allowed.
        """
        values = [
            self._owners[slot].value(
                component, choices.get(slot), None if masks is None else masks[slot]
            )
            for slot, component in enumerate(self._components)
        ]
        return build_action(self.spaces[1], iter(values))

    def metrics(self, info: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers in the info to log, of those that are there, by their paths.

        A path with the name of a metric that is computed for every environment has "info/" before.

        Raises:
            InvalidObservation: a value is not a number.
        """
        paths = self.mapping.metrics
        if not paths:
            return {}
        found = {path: value for path in paths if (value := _in_info(info, path)) is not None}
        if self.missing_metrics:
            self.info_paths.update(_paths_in(info))
            self.missing_metrics -= {p for p in self.missing_metrics if _is_in_info(info, p)}
        try:
            return {
                self._metric_names[path]: float(real_array(value).reshape(()))
                for path, value in found.items()
            }
        except (TypeError, ValueError, OverflowError):
            raise InvalidObservation(
                f"metrics: expected numbers in the info, got {short_repr(found, LONG)}"
            ) from None

    def _find_actions(self) -> dict[ActionName, tuple[AnyAction, list[Component]]]:
        """Return the actions of the mapping, and a global one for each other component."""
        actions: dict[ActionName, tuple[AnyAction, list[Component]]] = {}
        for name, action in self.mapping.actions.items():
            path, argument = action.path, f"FieldMap.actions[{name!r}]"
            paths = [component.path for component in self._components]
            found = [c for c in self._components if not path or f"{c.path}.".startswith(f"{path}.")]
            if not found:
                hint = did_you_mean(path, paths)
                raise InvalidSpace(
                    f"{argument}.path: expected one of {paths}, or what they begin with, got "
                    f"{path!r}{hint}"
                )
            if not 0 <= action.column < action.of or len(found) % action.of:
                raise InvalidSpace(
                    f"{argument}: expected column below of, and of to divide {len(found)} "
                    f"components, got column={action.column}, of={action.of}"
                )
            actions[name] = action, found[action.column :: action.of]

        # Components that the mapping does not name.
        taken = {component.slot for _, found in actions.values() for component in found}
        free = [component for component in self._components if component.slot not in taken]
        twice = []
        for component in free:
            path = component.path
            name = path or "action"
            if path == "action" or path[:1].isdigit():
                name = f"action.{path}"
            if name in actions:
                twice.append(name)
            kind = Choice if component.box is None else Number
            actions[name] = kind(path), [component]
        if twice:
            raise InvalidSpace(
                f"FieldMap.actions: expected other names than those of inferred actions, got "
                f"{twice}; rename them"
            )
        return actions

    def _masks(self, value: Any, info: Mapping[str, Any]) -> list[BoolArray | None]:
        """Return the mask of each component, None where everything is allowed."""
        masks: list[BoolArray | None] = [None] * len(self._components)
        for name, path, keys, slots, counts in self._mask_fields:
            mask = _in_info(info, path) if keys is None else value_at(value, keys, "observation")
            if mask is None:
                if name is None and path == ACTION_MASK:
                    continue  # it need not be there
                argument = "FieldMap.action_mask" if name is None else f"actions[{name!r}].mask"
                known = [*map(str, info), *(node.path for node in nodes(self.spaces[0]))]
                raise InvalidObservation(
                    f"{argument}: expected {path!r} in the info, got {list(info)}"
                    f"{did_you_mean(path, known)}"
                )
            if name is None and not isinstance(mask, np.ndarray):
                each = split_mask(self.spaces[1], mask, path)
            else:
                each = cut_mask(mask, counts, path)
            for slot, count, own in zip(slots, counts, each, strict=True):
                masks[slot] = own if count else None  # a Box is not masked
        return masks


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
        # The types of all groups; those of a team have a column for each of its members.
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
                if own.global_kinds and len(self._groups) > 1:
                    raise InvalidSpace(
                        "FieldMap.global_features: expected numbers, as agents of other groups "
                        f"have none of these features, got kinds {own.global_kinds}; name them in "
                        "one_hot instead"
                    )
                self.obs_space.global_kinds = own.global_kinds
                self.obs_space.entities |= own.entities
                continue
            if agent_type in own.entities and not group.adds_agent:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the members of teams; "
                    "choose another"
                )
            others = {name: one for name, one in own.entities.items() if name != agent_type}
            for name, entity in {agent_type: own.global_entity, **others}.items():
                features = [*entity.features, *columns]
                self.obs_space.entities[name] = Entity(features, entity.kinds, entity.constants)

    def observation(self, views: Mapping[AgentName, View]) -> Observation:
        """Return the observation of the side for the views of the agents that are alive."""
        if self._is_team:
            return self._team_observation(views)
        # One agent, with nothing to see if it is dead.
        view = views.get(self.members[0])
        obs = Observation() if view is None else view.to_observation()
        if view is None or len(self._groups) > 1:
            num_globals = len(self.obs_space.global_features) + len(self.obs_space.global_kinds)
            obs.global_features = np.zeros(num_globals, dtype=np.float32)
            if view is not None:
                obs.global_features[self._own_globals] = view.frame.global_features
        return obs

    def _team_observation(self, views: Mapping[AgentName, View]) -> Observation:
        """Return an observation of the living members and everything that each of them sees."""
        features: dict[EntityName, Float32Array] = {}
        ids: dict[EntityName, Sequence[EntityID]] = {}
        actions: dict[ActionName, ActionMask] = {}
        for group in self._groups:
            agents, joined = self._join(group, views)
            if not agents:
                continue
            # An entity for each member, with its global features; and the entities that it sees.
            columns = self._member_columns[[self.members.index(agent) for agent in agents]]
            own = np.stack([frame.global_features for frame in joined.frames])
            num_numbers = len(group.obs_space.global_features)
            features[group.agent_type] = _with_columns(own, num_numbers, columns)
            ids |= joined.ids
            for name, entity in group.obs_space.entities.items():
                if name != group.agent_type:
                    rows = np.concatenate([frame.features[name] for frame in joined.frames])
                    seen_by = columns.repeat(joined.num_rows(name), axis=0)
                    features[name] = _with_columns(rows, len(entity.features), seen_by)
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
        if not self._is_team:
            return agents, JoinedFrames(frames, frames[0].ids if frames else {})
        ids: dict[EntityName, Sequence[EntityID]] = {group.agent_type: agents}
        for name in frames[0].ids if frames else ():  # each member sees entities of its own
            of_members = zip(agents, frames, strict=True)
            ids[name] = [f"{agent} {one}" for agent, frame in of_members for one in frame.ids[name]]
        return agents, JoinedFrames(frames, ids)


def check_metrics(translators: Sequence[AgentTranslator]) -> None:
    """Raise at the end of an episode if a metric was in no info so far.

    Args:
        translators: of all agents.

    Raises:
        InvalidObservation: names the path and the nearest one that an info had.
    """
    for path in sorted({path for one in translators for path in one.missing_metrics}):
        naming = [one for one in translators if path in one.mapping.metrics]
        if all(path in one.missing_metrics for one in naming):
            known = sorted({path for one in naming for path in one.info_paths})
            raise InvalidObservation(
                f"FieldMap.metrics: expected paths that are in an info of an episode, "
                f"{short_repr(known, LONG)}, got {path!r}{did_you_mean(path, known)}; correct or "
                "remove it"
            )


def _with_columns(rows: Float32Array, num_numbers: int, columns: Float32Array) -> Float32Array:
    """Return rows with further columns behind their numbers, in front of their kinds."""
    return np.hstack([rows[:, :num_numbers], columns, rows[:, num_numbers:]])


def _in_info(info: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path in the info, None if there is none."""
    found: Any = info
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _is_in_info(info: Mapping[str, Any], path: str) -> bool:
    """Return whether there is a value, which may be None, at a path in the info."""
    parent, _, key = path.rpartition(".")
    found = _in_info(info, parent) if parent else info
    return isinstance(found, Mapping) and key in found


def _paths_in(info: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the values in an info."""
    for key, value in info.items():
        if isinstance(value, Mapping):
            yield from _paths_in(value, join_path(path, key))
        else:
            yield join_path(path, key)
