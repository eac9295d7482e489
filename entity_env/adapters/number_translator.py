"""Translator between numbers of actors and a `Box` of a Gymnasium action."""

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
    """Translate numbers of entities, or of the frame as a whole, to a `Box` of floats.

    Args:
        name: of the action in the mapping.
        action: its meaning.
        components: that it sets; only one `Box` is right.
        num_rows: of each entity type, None if it varies.
        prefix: of the names of types.
        is_team: agents are entities, which choose where the mapping names no actors.

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
            remedy = "name one of these paths, or use Choice or Select for choices"
            raise InvalidSpace(f"{argument}: expected one Box, got parts at {paths}; {remedy}")
        if box.dtype is None or box.dtype.kind != "f":
            remedy = f"name the choices with Choice({path!r}, values=[...])"
            raise InvalidSpace(f"action {path!r}: expected a Box of floats, got {box}; {remedy}")

        rows = None if action.actors is None else num_rows[action.actors]
        num_actors, names = _cut(argument, action, box.shape, rows)
        if rows not in (None, num_actors):
            raise InvalidSpace(
                f"{argument}.actors: expected numbers for each of the {rows} rows of "
                f"{action.actors!r}, got those of {num_actors}; name with span the rows that act, "
                "or leave actors out where the frame as a whole chooses"
            )

        # The bounds of each row, (actors, numbers); those of the space hold for all of them.
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
        self.space = cls(names, self._low.min(axis=0).tolist(), self._high.max(axis=0).tolist())
        self.complete = replace(action, path=path, names=names)
        finite = np.finfo(np.float32)
        self._least = np.maximum(self._low, finite.min).tolist()  # so that all below are finite
        self._most = np.minimum(self._high, finite.max).tolist()
        self._box, self._rounds = box, box.dtype != np.float32
        self._default = np.clip(np.zeros_like(self._low), self._low, self._high).tolist()
        self._names = self.space.components

    def mask(self, frame: Frame, masks: Masks) -> ActionMask | None:
        """Return the mask of the entity action, None if nobody acts."""
        if self._is_global:
            return GlobalContinuousActionMask()
        if not (frame.rows[self._actors] < len(self._low)).any():
            return None
        return self.join_masks([True], JoinedFrames([frame], frame.ids))

    def join_masks(self, masks: Sequence[Any], joined: JoinedFrames) -> ActionMask:
        """Return one mask for several agents, of which None has nobody who acts."""
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
        """Set the numbers of each agent that an entity action stands for.

        Raises:
            InvalidAction: a number is none, or beyond its bounds.
        """
        (slot,) = self.slots
        numbers = np.asarray(action.values, np.float32)
        if action.names != self._names:
            columns = [component(action.names, name) for name in self._names]
            numbers = numbers[..., columns]
        # Lists, as calls of numpy take longer for a few numbers.
        if self._is_global:
            self._check_shape(numbers, (len(self._names),))
            own = numbers.tolist()
            self._check_bounds(action, 0, 0, own)
            choices[0][slot] = own
            return
        places = joined.locate(self._actors, action.actors)
        self._check_shape(numbers, (len(places), len(self._names)))
        for i, ((agent, row), own) in enumerate(zip(places, numbers.tolist(), strict=True)):
            self._check_bounds(action, i, row, own)
            choices[agent].setdefault(slot, [*self._default])[row] = own

    def value(self, component: Component, choice: Any, mask: BoolArray | None) -> Any:
        """Return the value of the `Box`; without numbers 0, or the bound that is nearest to it."""
        numbers = self._default if choice is None else choice
        if not self._rounds:
            return numbers
        # Bounds may be further apart as float32.
        value = np.array(numbers, self._box.dtype).reshape(self._box.shape)
        return np.minimum(np.maximum(value, self._box.low), self._box.high)

    def _check_shape(self, numbers: Float32Array, shape: tuple[int, ...]) -> None:
        if numbers.shape != shape:
            got = f"numbers of the shape {numbers.shape}"
            raise InvalidAction(f"actions[{self.name!r}]: expected the shape {shape}, got {got}")

    def _check_bounds(self, action: Any, i: int, row: int, numbers: list[float]) -> None:
        """Raise unless the numbers of actor `i` are within the bounds of a row.

        Raises:
            InvalidAction: names the first that is not.
        """
        if all(map(le, self._least[row], numbers)) and all(map(le, numbers, self._most[row])):
            return
        who = "" if self._is_global else f", actor {action.actors[i]!r}"
        bounds = zip(self._names, self._low[row], self._high[row], strict=True)
        name, expected, got = next(
            (name, f"a number from {low:g} to {high:g}", f"{number:g}")
            for (name, low, high), number in zip(bounds, numbers, strict=True)
            if not (math.isfinite(number) and low <= number <= high)
        )
        raise InvalidAction(f"actions[{self.name!r}]{who}, {name}: expected {expected}, got {got}")


def _cut(
    argument: str, action: Number, shape: tuple[int, ...], num_rows: int | None
) -> tuple[int, list[str]]:
    """Return how many actors choose numbers of a `Box`, and the names of the numbers of each.

    Args:
        argument: that names the action, for messages.
        action: its meaning.
        shape: of the `Box`.
        num_rows: of the actors' type, None if it varies or the frame as a whole chooses.

    Raises:
        InvalidSpace: the numbers cannot be cut like this.
    """
    size, given = math.prod(shape), action.names
    if size == 0:
        raise InvalidSpace(f"{argument}.path: expected a Box with numbers, got the shape {shape}")
    if action.actors is None:
        num_actors, columns = 1, shape
    elif len(shape) > 1:
        num_actors, columns = shape[0], shape[1:]
    else:
        width = len(given or ())
        if not width and num_rows:
            width = size // num_rows if size % num_rows == 0 else 1
        if not width or size % width:
            raise InvalidSpace(f"{argument}.names: expected a divisor of {size} names, got {given}")
        num_actors, columns = size // width, (width,)
    names = [one or "0" for one in element_paths(columns, "")]
    if given is not None and (isinstance(given, str) or len(given) != len(names)):
        raise InvalidSpace(f"{argument}.names: expected {len(names)} names, got {given!r}")
    return num_actors, names if given is None else [*given]
