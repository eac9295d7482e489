"""Translator of the observations and actions of one agent."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from entity_env.actions import Action, ActionMask
from entity_env.adapters.action_components import (
    Component,
    build_action,
    components_of,
    cut_mask,
    split_mask,
)
from entity_env.adapters.action_translators import (
    TRANSLATORS,
    ActionTranslator,
    JoinedFrames,
    MappedAction,
    Masks,
)
from entity_env.adapters.gymnasium_spaces import Flags, Space, join_path
from entity_env.adapters.known_envs import EnvNames
from entity_env.adapters.mapping import ACTION_MASK, AGENT, Choice, FieldMap, Select
from entity_env.adapters.observation_fields import locate, value_at
from entity_env.adapters.observation_reader import Frame, ObservationReader
from entity_env.environment import Observation
from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.real_numbers import real_array
from entity_env.short_repr import LONG, short_repr
from entity_env.spaces import ActionName, ActionSpace, Entity, ObsSpace

_AGENT_FEATURES = np.zeros((1, 0), dtype=np.float32)


class View(NamedTuple):
    """The translated observation of one agent."""

    frame: Frame
    actions: Mapping[ActionName, ActionMask]  # of entity actions; empty after the episode
    masks: Masks  # of the components of the Gymnasium action; empty after the episode

    def to_observation(self, **outcome: Any) -> Observation:
        """Return the observation; `outcome` has the reward, flags and metrics of the step."""
        features, _, global_features = self.frame
        return Observation(
            features=features, global_features=global_features, actions=self.actions, **outcome
        )


class AgentTranslator:
    """Translate one agent's observations and actions between Gymnasium spaces and entity spaces.

    Args:
        obs_space: of the Gymnasium environment.
        action_space: of the Gymnasium environment.
        mapping: the meaning of the fields; what it does not name is inferred.
        names: of features and choices, from the environment.
        prefix: of the names of types and actions.

    Attributes:
        obs_space: the entity types and global features.
        action_space: the entity actions.
        actions: the translators of the actions.
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
    ) -> None:
        self.prefix = prefix
        self.mapping = FieldMap() if mapping is None else mapping
        if not isinstance(self.mapping, FieldMap):
            raise InvalidSpace(f"mapping: expected a FieldMap, got {mapping!r}")
        names = EnvNames() if names is None else names
        self._space = action_space
        components = enumerate(components_of(action_space))
        self._components = [component._replace(slot=slot) for slot, component in components]
        self._counts = [component.num_choices for component in self._components]
        self._boxes = [one.slot for one in self._components if one.box is not None]
        self._reader = ObservationReader(obs_space, self.mapping, names.features, prefix)
        self.obs_space = self._reader.obs_space

        # A translator for each action, in the order of the mapping and then of the components.
        actions = dict(self.mapping.actions)
        actions |= self._infer_actions()
        self.actions: dict[ActionName, ActionTranslator] = {}
        owners: dict[int, ActionName] = {}
        for name, action in actions.items():
            found = self._components_at(name, action)
            translator = TRANSLATORS[action.kind](
                MappedAction(name, action, found, self._reader.num_rows, names.labels, prefix)
            )
            for slot in translator.slots:
                if slot in owners:
                    raise InvalidSpace(
                        f"FieldMap.actions: expected every part of the action once, got "
                        f"{self._components[slot].path!r} in {owners[slot]!r} and {name!r}"
                    )
                owners[slot] = name
            self.actions[join_path(prefix, name)] = translator
        self.action_space: dict[ActionName, ActionSpace] = {
            name: translator.space for name, translator in self.actions.items()
        }

        # The entity that stands for the agent.
        self.agent_type = join_path(prefix, AGENT)
        self.adds_agent = any(translator.adds_agent for translator in self.actions.values())
        if self.adds_agent:
            if self.agent_type in self.obs_space.entities:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the one who selects; "
                    "choose another, or name the type that selects in actors"
                )
            types = {**self.obs_space.entities, self.agent_type: Entity([])}
            self.obs_space = ObsSpace(self.obs_space.global_features, types)

        # Masks by action; the keys of those in the observation, None for those in the info.
        self._masked = {
            name: (action.mask, self.actions[join_path(prefix, name)])
            for name, action in actions.items()
            if action.mask is not None
        }
        self._mask_keys: dict[str, list[Any] | None] = {}
        for path in {self.mapping.action_mask, *(mask for mask, _ in self._masked.values())}:
            if path is not None:
                try:
                    self._mask_keys[path] = locate(obs_space, path, "")[0]
                except InvalidSpace:
                    self._mask_keys[path] = None

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
        if self.adds_agent:
            frame.features[self.agent_type] = _AGENT_FEATURES
        if is_over:
            return View(frame, {}, [])
        masks = self._masks(value, info)
        actions = {
            name: mask
            for name, translator in self.actions.items()
            if (mask := translator.mask(frame, [masks[slot] for slot in translator.slots]))
            is not None
        }
        return View(frame, actions, masks)

    def translate_actions(self, view: View, actions: Mapping[ActionName, Action]) -> Any:
        """Return the Gymnasium action for entity actions that were chosen in a view."""
        joined = JoinedFrames([view.frame], [(self.agent_type, 0)], self.agent_type)
        choices = {
            name: translator.decode(actions[name], joined)[0]
            for name, translator in self.actions.items()
            if name in actions
        }
        return self.build_action(choices, view.masks)

    def build_action(
        self, choices: Mapping[ActionName, Mapping[int, int]], masks: Masks | None = None
    ) -> Any:
        """Return the Gymnasium action for choices by action and component, defaults elsewhere.

        Args:
            choices: of the components that an actor has chosen for.
            masks: of all components; without them the defaults need not be allowed.
        """
        values: list[Any] = [None] * len(self._components)
        for name, translator in self.actions.items():
            chosen = choices.get(name, {})
            for component, slot in enumerate(translator.slots):
                choice = chosen.get(component)
                if choice is None:
                    choice = translator.default_choice(None if masks is None else masks[slot])
                values[slot] = translator.value(choice, component)
        return build_action(self._space, iter(values))

    def _components_at(self, name: ActionName, action: Choice | Select) -> list[Component]:
        """Return the components of an action of the mapping."""
        path, argument = action.path, f"FieldMap.actions[{name!r}]"
        found = [
            one
            for one in self._components
            if not path or one.path == path or one.path.startswith(f"{path}.")
        ]
        if not found:
            raise InvalidSpace(
                f"{argument}.path: expected one of {[one.path for one in self._components]}, or "
                f"what they begin with, got {path!r}"
            )
        if not 0 <= action.column < action.of or len(found) % action.of:
            raise InvalidSpace(
                f"{argument}: expected column below of, and of to divide {len(found)} components, "
                f"got column={action.column}, of={action.of}"
            )
        return found[action.column :: action.of]

    def _infer_actions(self) -> dict[ActionName, Choice]:
        """Return a global choice for each component that the mapping does not name."""
        named = self.mapping.actions
        taken = [one for name, action in named.items() for one in self._components_at(name, action)]
        free = [component for component in self._components if component not in taken]
        if boxes := [f"{one.path!r}: {one.box}" for one in free if one.box is not None]:
            raise InvalidSpace(
                f"action: expected choices, got {'; '.join(boxes)}. Name each in "
                "FieldMap(actions={name: Choice(path, values=[...])}) with the values to choose "
                "among, or wrap the environment so that its actions are discrete"
            )
        inferred: dict[ActionName, Choice] = {}
        twice = []
        for component in free:
            path = component.path
            name = path
            if not path or path[0].isdigit() or path == "action":
                name = join_path("action", path) if path else "action"
            if name in inferred or name in named:
                twice.append(name)
            inferred[name] = Choice(path)
        if twice:
            raise InvalidSpace(
                f"FieldMap.actions: expected other names than those of inferred actions, got "
                f"{twice}; rename them"
            )
        return inferred

    def _masks(self, value: Any, info: Mapping[str, Any]) -> list[Flags | None]:
        """Return the mask of each component, None where everything is allowed."""
        masks: list[Flags | None] = [None] * len(self._components)
        path = self.mapping.action_mask
        if path is not None:
            mask = self._find_mask(path, value, info)
            if mask is None and path != ACTION_MASK:
                raise InvalidObservation(
                    f"FieldMap.action_mask: expected {path!r} in the info, got {list(info)}"
                )
            if isinstance(mask, np.ndarray):
                masks = cut_mask(mask, self._counts, path)
            elif mask is not None:
                masks = split_mask(self._space, mask, path)
            for slot in self._boxes:
                masks[slot] = None  # a mask of the whole action has no choices of a Box
        for name, (path, translator) in self._masked.items():
            mask = self._find_mask(path, value, info)
            if mask is None:
                raise InvalidObservation(
                    f"actions[{name!r}].mask: expected {path!r} in the info, got {list(info)}"
                )
            counts = [translator.num_choices] * len(translator.slots)
            for slot, own in zip(translator.slots, cut_mask(mask, counts, path), strict=True):
                masks[slot] = own
        return masks

    def _find_mask(self, path: str, value: Any, info: Mapping[str, Any]) -> Any:
        keys = self._mask_keys[path]
        return _in_info(info, path) if keys is None else value_at(value, keys, "observation")


def _in_info(info: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path in the info, None if there is none."""
    found: Any = info
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def metrics_of(info: Mapping[str, Any], paths: Sequence[str]) -> dict[str, float]:
    """Return the numbers in the info to log, of those that are there.

    Raises:
        InvalidObservation: a value is not a number.
    """
    if not paths:
        return {}
    found = {path: value for path in paths if (value := _in_info(info, path)) is not None}
    try:
        return {path: float(real_array(value).reshape(())) for path, value in found.items()}
    except (TypeError, ValueError, OverflowError):
        raise InvalidObservation(
            f"metrics: expected numbers in the info, got {short_repr(found, LONG)}"
        ) from None
