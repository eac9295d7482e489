"""What one who acts sees and does: a reader of observations and a maker of actions."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from entity_env.actions import Action, ActionMask
from entity_env.adapters.action_parts import Flags, Part, assemble, cut_mask, parts, split_mask
from entity_env.adapters.choose import Chooser, Masks, chooser
from entity_env.adapters.declared import Declared
from entity_env.adapters.mapping import ACTION_MASK, AGENT, Choice, FieldMap, Select
from entity_env.adapters.observe import Frame, Reader
from entity_env.adapters.space_numbers import Space
from entity_env.adapters.tables import locate, value_at
from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.real_numbers import real_array, shown
from entity_env.spaces import ActionName, ActionSpace, Entity, ObsSpace

_ONE_AGENT = np.zeros((1, 0), dtype=np.float32)


class View(NamedTuple):
    """What one who acts sees in one step.

    Attributes:
        frame: the entities and global features.
        actions: who may choose what.
        masks: of each part of the world's action; none where the episode is over.
    """

    frame: Frame
    actions: Mapping[ActionName, ActionMask]
    masks: Masks


class Port:
    """Reads the observations of one who acts, and makes the actions.

    Args:
        obs_space: of the world.
        action_space: of the world.
        mapping: what the fields mean; what it does not name is inferred.
        declared: names that the world ships.

    Attributes:
        obs_space: ours.
        action_space: ours.
        one_agent: the type of the one who acts was added, for actions that select.

    Raises:
        InvalidSpace: the mapping does not fit the world, or something cannot be inferred.
    """

    def __init__(
        self,
        obs_space: Space,
        action_space: Space,
        mapping: FieldMap | None = None,
        declared: Declared | None = None,
    ) -> None:
        self.mapping = FieldMap() if mapping is None else mapping
        if not isinstance(self.mapping, FieldMap):
            raise InvalidSpace(f"mapping: expected a FieldMap, got {mapping!r}")
        declared = Declared() if declared is None else declared
        self._space = action_space
        self._parts = parts(action_space)
        self._counts = [part.num_choices for part in self._parts]
        self._boxes = [i for i, part in enumerate(self._parts) if part.space is not None]
        self._reader = Reader(obs_space, self.mapping, declared.features)
        self.obs_space = self._reader.obs_space
        actions = dict(self.mapping.actions)
        actions |= self._infer(actions)
        self.choosers: dict[ActionName, Chooser] = {
            name: chooser(
                name,
                action,
                self._find(name, action),
                self.obs_space,
                declared.labels,
                self._reader.num_rows,
            )
            for name, action in actions.items()
        }
        self._refuse_overlap()
        self.action_space: dict[ActionName, ActionSpace] = {
            name: one.space for name, one in self.choosers.items()
        }
        self.one_agent = any(
            isinstance(action, Select) and action.actors is None for action in actions.values()
        )
        if self.one_agent:
            if AGENT in self.obs_space.entities:
                raise InvalidSpace(
                    f"FieldMap.entities: the name {AGENT!r} is taken by the one who selects; "
                    "choose another, or name the type that selects in actors"
                )
            self.obs_space = ObsSpace(
                self.obs_space.global_features, {**self.obs_space.entities, AGENT: Entity([])}
            )
        self._masks = {
            name: (action.mask, _mask_keys(obs_space, action.mask))
            for name, action in actions.items()
            if action.mask is not None
        }
        whole = self.mapping.action_mask
        self._all_mask = None if whole is None else _mask_keys(obs_space, whole)

    def see(self, value: Any, info: Mapping[str, Any], over: bool = False) -> View:
        """What an observation shows.

        Args:
            value: the observation.
            info: what came with it.
            over: the episode is over, so nothing can be done.

        Raises:
            InvalidObservation: the observation or a mask is not of the space.
        """
        frame = self._reader.read(value)
        if self.one_agent:
            frame.features[AGENT] = _ONE_AGENT
        if over:
            return View(frame, {}, [])
        masks = self._masks_of(value, info)
        for name in self._masks:
            own = self._own_masks(name, value, info)
            for slot, mask in zip(self.choosers[name].slots, own, strict=True):
                masks[slot] = mask
        actions: dict[ActionName, ActionMask] = {}
        for name, one in self.choosers.items():
            offered = one.offer(frame, [masks[slot] for slot in one.slots])
            if offered is not None:
                actions[name] = offered
        return View(frame, actions, masks)

    def act(self, view: View, actions: Mapping[ActionName, Action]) -> Any:
        """The world's action for what was chosen in a view."""
        values: list[Any] = [None] * len(self._parts)
        for name, one in self.choosers.items():
            chosen = one.chosen(actions[name], view.frame) if name in actions else {}
            for part, slot in enumerate(one.slots):
                choice = chosen.get(part)
                if choice is None:
                    choice = one.default_choice(view.masks[slot])
                values[slot] = one.value(choice, part)
        return assemble(self._space, iter(values))

    def nothing_chosen(self) -> Any:
        """An action for one who does not act."""
        values: list[Any] = [None] * len(self._parts)
        for one in self.choosers.values():
            for part, slot in enumerate(one.slots):
                values[slot] = one.value(one.default, part)
        return assemble(self._space, iter(values))

    def _find(self, name: ActionName, action: Choice | Select) -> list[tuple[int, Part]]:
        path = action.path
        found = [
            (slot, part)
            for slot, part in enumerate(self._parts)
            if not path or part.path == path or part.path.startswith(f"{path}.")
        ]
        if not found:
            raise InvalidSpace(
                f"FieldMap.actions[{name!r}].path: expected one of "
                f"{[part.path for part in self._parts]}, or what they begin with, got {path!r}"
            )
        return found

    def _infer(self, named: Mapping[ActionName, Choice | Select]) -> dict[ActionName, Choice]:
        """A global choice for each part that the mapping does not name."""
        taken = {
            slot
            for name, action in named.items()
            for slot, _ in self._find(name, action)[action.column :: action.of]
        }
        free = [part for slot, part in enumerate(self._parts) if slot not in taken]
        if boxes := [f"{part.path!r}: {part.space}" for part in free if part.space is not None]:
            raise InvalidSpace(
                f"action: expected choices, got {'; '.join(boxes)}. Name each in "
                "FieldMap(actions={name: Choice(path, values=[...])}) with the values to choose "
                "among, or wrap the world so that its actions are discrete"
            )
        found: dict[ActionName, Choice] = {}
        twice = []
        for part in free:
            name = part.path if part.path and not part.path[0].isdigit() else "action"
            if part.path and name == "action":
                name = f"action.{part.path}"
            if name in found or name in named:
                twice.append(name)
            found[name] = Choice(part.path)
        if twice:
            raise InvalidSpace(
                f"FieldMap.actions: expected other names than those of inferred actions, got "
                f"{twice}; rename them"
            )
        return found

    def _refuse_overlap(self) -> None:
        owners: dict[int, ActionName] = {}
        for name, one in self.choosers.items():
            for slot in one.slots:
                if slot in owners:
                    raise InvalidSpace(
                        f"FieldMap.actions: expected every part of the action once, got "
                        f"{self._parts[slot].path!r} in {owners[slot]!r} and {name!r}"
                    )
                owners[slot] = name

    def _masks_of(self, value: Any, info: Mapping[str, Any]) -> list[Flags | None]:
        path = self.mapping.action_mask
        if path is None:
            return [None] * len(self._parts)
        mask = (
            _in_info(info, path)
            if self._all_mask is None
            else value_at(value, self._all_mask, "observation")
        )
        if mask is None and path != ACTION_MASK:
            raise InvalidObservation(
                f"FieldMap.action_mask: expected {path!r} in the info, got {list(info)}"
            )
        if mask is None:
            return [None] * len(self._parts)
        if isinstance(mask, np.ndarray):
            masks = cut_mask(mask, self._counts, path)
        else:
            masks = split_mask(self._space, mask, path)
        for slot in self._boxes:
            masks[slot] = None  # a mask cannot speak of a Box
        return masks

    def _own_masks(self, name: ActionName, value: Any, info: Mapping[str, Any]) -> Masks:
        """The masks of one action that has its own."""
        path, keys = self._masks[name]
        mask = _in_info(info, path) if keys is None else value_at(value, keys, "observation")
        if mask is None:
            raise InvalidObservation(
                f"actions[{name!r}].mask: expected {path!r} in the info, got {list(info)}"
            )
        one = self.choosers[name]
        return cut_mask(mask, [one.num_choices] * len(one.slots), path)


def _mask_keys(space: Space, path: str) -> list[Any] | None:
    """The keys of a mask in the observation, None if it is not there and so in the info."""
    try:
        return locate(space, path, "")[0]
    except InvalidSpace:
        return None


def _in_info(info: Mapping[str, Any], path: str) -> Any:
    """What the info holds at a path, None if nothing."""
    found: Any = info
    for key in path.split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def metrics_of(info: Mapping[str, Any], paths: Sequence[str]) -> dict[str, float]:
    """The numbers to log, of those that are there.

    Raises:
        InvalidObservation: one of them is not a number.
    """
    if not paths:
        return {}
    found = {path: value for path in paths if (value := _in_info(info, path)) is not None}
    try:
        return {path: float(real_array(value).reshape(())) for path, value in found.items()}
    except (TypeError, ValueError, OverflowError):
        raise InvalidObservation(
            f"metrics: expected numbers in the info, got {shown(found)}"
        ) from None
