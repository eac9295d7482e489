"""Translator between continuous entity actions and a `Box` of a Gymnasium action."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import le
from typing import Any

import numpy as np

from entity_env.actions import (
    ActionMask,
    ContinuousActionMask,
    GlobalContinuousActionMask,
    component,
)
from entity_env.adapters.action_translators import (
    ActionTranslator,
    Component,
    JoinedFrames,
    Masks,
)
from entity_env.adapters.gymnasium_spaces import element_paths
from entity_env.adapters.mapping import Number
from entity_env.adapters.observation_reader import Frame
from entity_env.arrays import BoolArray, Float32Array
from entity_env.errors import InvalidAction, InvalidSpace
from entity_env.spaces import (
    ActionName,
    ContinuousActionSpace,
    EntityName,
    GlobalContinuousActionSpace,
)


class NumberTranslator(ActionTranslator):
    """Translate continuous actions of entities, or a global one, to a `Box` of floats.

    Args:
        name: action name in the mapping.
        action: mapping of the action.
        components: components that the action sets; must be a single `Box`.
        num_rows: number of rows of each entity type, None if it varies.
        prefix: prefix of type names.
        is_team: agents are entities, and the default actors.

    Raises:
        InvalidSpace: the action does not fit the environment.
    """

    num_choices = 0

    def __init__(
        self,
        name: ActionName,
        action: Number,
        components: Sequence[Component],
        num_rows: Mapping[EntityName, int | None],
        prefix: str,
        is_team: bool,
    ) -> None:
        super().__init__(name, action, components, num_rows, prefix, is_team)
        argument, path, box = f"FieldMap.actions[{name!r}]", components[0].path, components[0].box
        if len(components) > 1 or box is None:
            paths = [one.path for one in components]
            remedy = "set path to one of these, or use Choice or Select for choices"
            raise InvalidSpace(f"{argument}: expected one Box, got parts at {paths}; {remedy}")
        if box.dtype is None or box.dtype.kind != "f":
            remedy = f"name the choices with Choice({path!r}, values=[...])"
            raise InvalidSpace(f"action {path!r}: expected a Box of floats, got {box}; {remedy}")

        rows = None if action.actors is None else num_rows[action.actors]
        num_actors, names = _split_box(argument, action, box.shape, rows)
        if rows not in (None, num_actors):
            raise InvalidSpace(
                f"{argument}.actors: expected numbers for each of the {rows} rows of "
                f"{action.actors!r}, got numbers for {num_actors}; limit the rows with span, or "
                "omit actors for a global action"
            )

        # Bounds of each row, (actors, numbers); the action space has the widest ones.
        with np.errstate(over="ignore"):
            self._low, self._high = (
                bound.astype(np.float32).reshape(num_actors, -1) for bound in (box.low, box.high)
            )
        fits = np.isfinite(self._low) == np.isfinite(self._high)
        fits &= self._low.min(axis=0) < self._high.max(axis=0)
        if not fits.all():
            row, column = np.argwhere(~fits)[0].tolist()
            got = f"{self._low[row, column]:g} and {self._high[row, column]:g}"
            raise InvalidSpace(
                f"action {path!r}, {names[column]}: expected a smallest and a larger number, both "
                f"finite or both infinite, got {got}; wrap the environment, or list what to choose "
                f"among in Choice({path!r}, values=[...])"
            )
        self._varies = bool(
            (self._low != self._low[0]).any() or (self._high != self._high[0]).any()
        )
        cls = GlobalContinuousActionSpace if self._is_global else ContinuousActionSpace
        lows, highs = self._low.min(axis=0).tolist(), self._high.max(axis=0).tolist()
        self.space = cls(names, lows, highs, start=action.start)
        self.complete = replace(action, path=path, names=names)
        finite = np.finfo(np.float32)
        self._least = np.maximum(self._low, finite.min).tolist()  # so that valid numbers are finite
        self._most = np.minimum(self._high, finite.max).tolist()
        self._box, self._casts = box, box.dtype != np.float32
        self._default = np.clip(np.zeros_like(self._low), self._low, self._high).tolist()
        self._names = self.space.components

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None without actors."""
        if self._is_global:
            return GlobalContinuousActionMask()
        if not (frame.rows[self._actors] < len(self._low)).any():
            return None
        return self.join_masks([True], JoinedFrames([frame], frame.ids))

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Combine the masks of several agents; None stands for an agent that cannot act."""
        rows = np.concatenate([frame.rows[self._actors] for frame in joined.frames])
        offered = np.repeat([mask is not None for mask in masks], joined.num_rows(self._actors))
        acts = offered & (rows < len(self._low))  # other rows have no numbers in the action
        low, high = None, None
        if self._varies:
            low, high = self._low[rows[acts]], self._high[rows[acts]]
        if acts.all():
            return ContinuousActionMask(actor_types=[self._actors], low=low, high=high)
        ids = joined.ids.get(self._actors, [(self._actors, i) for i in range(len(rows))])
        acting = [ids[i] for i in np.flatnonzero(acts).tolist()]
        return ContinuousActionMask(actor_ids=acting, low=low, high=high)

    def decode(self, action: Any, joined: JoinedFrames, choices: Sequence[dict[int, Any]]) -> None:
        """Write an entity action to the choices of each agent, by slot.

        Raises:
            InvalidAction: a number is NaN or out of bounds.
        """
        (slot,) = self.slots
        numbers = np.asarray(action.values, np.float32)
        if action.names != self._names:
            columns = [component(action.names, name) for name in self._names]
            numbers = numbers[..., columns]
        # Lists, because NumPy is slower for a few numbers.
        if self._is_global:
            self._check_shape(numbers, (len(self._names),))
            values = numbers.tolist()
            self._check_bounds(action, 0, 0, values)
            choices[0][slot] = values
            return
        locations = joined.locate(self._actors, action.actors)
        self._check_shape(numbers, (len(locations), len(self._names)))
        for i, ((agent, row), values) in enumerate(zip(locations, numbers.tolist(), strict=True)):
            self._check_bounds(action, i, row, values)
            choices[agent].setdefault(slot, [*self._default])[row] = values

    def value(self, component: Component, choice: Any, mask: BoolArray | None) -> Any:
        """Return the value of the `Box`; by default 0, clipped to the bounds."""
        numbers = self._default if choice is None else choice
        if not self._casts:
            return numbers
        # Clip, because bounds rounded to float32 may be wider.
        value = np.array(numbers, self._box.dtype).reshape(self._box.shape)
        return np.minimum(np.maximum(value, self._box.low), self._box.high)

    def _check_shape(self, numbers: Float32Array, shape: tuple[int, ...]) -> None:
        if numbers.shape != shape:
            got = f"numbers of the shape {numbers.shape}"
            raise InvalidAction(f"actions[{self.name!r}]: expected the shape {shape}, got {got}")

    def _check_bounds(self, action: Any, i: int, row: int, numbers: list[float]) -> None:
        """Check the numbers of actor `i` against the bounds of a row.

        Raises:
            InvalidAction: names the first number that is out of bounds.
        """
        if all(map(le, self._least[row], numbers)) and all(map(le, numbers, self._most[row])):
            return
        actor = "" if self._is_global else f", actor {action.actors[i]!r}"
        bounds = zip(self._names, self._low[row], self._high[row], strict=True)
        name, expected, got = next(
            (name, f"a number from {low:g} to {high:g}", f"{number:g}")
            for (name, low, high), number in zip(bounds, numbers, strict=True)
            if not (math.isfinite(number) and low <= number <= high)
        )
        raise InvalidAction(
            f"actions[{self.name!r}]{actor}, {name}: expected {expected}, got {got}"
        )


def _split_box(
    argument: str, action: Number, shape: tuple[int, ...], num_rows: int | None
) -> tuple[int, list[str]]:
    """Return the number of actors of a `Box`, and the names of the numbers of each actor.

    Args:
        argument: name of the mapping, for messages.
        action: mapping of the action.
        shape: shape of the `Box`.
        num_rows: number of rows of the actor type, None if it varies or the action is global.

    Raises:
        InvalidSpace: the size is not divisible by the number of rows or names.
    """
    size, names = math.prod(shape), action.names
    if size == 0:
        raise InvalidSpace(f"{argument}.path: expected a Box with numbers, got the shape {shape}")
    if action.actors is None:
        num_actors, columns = 1, shape
    elif len(shape) > 1:
        num_actors, columns = shape[0], shape[1:]
    else:
        width = len(names or ())
        if not width and num_rows:
            width = size // num_rows if size % num_rows == 0 else 1
        if not width or size % width:
            raise InvalidSpace(f"{argument}.names: expected a divisor of {size} names, got {names}")
        num_actors, columns = size // width, (width,)
    default_names = [one or "0" for one in element_paths(columns, "")]
    if names is not None and (isinstance(names, str) or len(names) != len(default_names)):
        raise InvalidSpace(f"{argument}.names: expected {len(default_names)} names, got {names!r}")
    return num_actors, default_names if names is None else [*names]
