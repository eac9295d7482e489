"""`View`: how replay pages draw an environment, as plain data."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Literal, TypeAlias, get_args

from entity_env.actions import EntityName
from entity_env.errors import InvalidView, did_you_mean, short_repr
from entity_env.observation import GLOBAL, Entity, ObsSpace

Shape: TypeAlias = Literal["circle", "square", "triangle", "diamond", "cross", "hexagon", "star"]

_MOST_AXES = 3
_CELLS = ("column", "row")
_NAMED_POSITIONS = (
    ("x", "y", "z"),
    ("x", "y"),
    ("x_pos", "y_pos", "z_pos"),
    ("x_pos", "y_pos"),
    ("pos_x", "pos_y", "pos_z"),
    ("pos_x", "pos_y"),
    _CELLS,
    *((name,) for name in ("x", "y", "x_pos", "y_pos", "pos_x", "pos_y", *_CELLS)),
)


@dataclass(frozen=True)
class EntityView:
    """Appearance of the entities of one type, by names of their features.

    Attributes:
        position: one to three numeric features: x to the right, y up, and z. () shows the type
            only in a table; None uses common names, such as x and y.
        heading: one feature with the angle in radians, from the first axis to the second; or two
            features with a direction vector of any length; () for none.
        shape: the shape; None for a default of the type.
        colour: "#rrggbb"; or a feature that has one colour per label or integer; None for a default
            of the type.
        size: half the width in units of the position, or a numeric feature with it; None for a
            default.
        label: features with values to print next to the entity.
    """

    position: tuple[str, ...] | None = None
    heading: tuple[str, ...] = ()
    shape: Shape | None = None
    colour: str | None = None
    size: float | str | None = None
    label: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """Appearance of an environment on replay pages.

    Attributes:
        entities: by type, with `GLOBAL` ("__global__") for the global features, drawn as one mark.
            Types that are left out have the defaults of `EntityView`.
        bounds: lowest and highest position along each axis; () to fit the entities.
        y_down: the second axis points down instead of up. True if positions default to "column"
            and "row".
    """

    entities: Mapping[EntityName, EntityView] = field(default_factory=dict)
    bounds: tuple[tuple[float, float], ...] = ()
    y_down: bool = False


def view_of(
    view: View | None,
    obs_space: ObsSpace,
    positions: Sequence[str] = (),
    network_positions: Sequence[str] = (),
) -> View:
    """Complete a view with all entity types, and a position for each.

    The position is that of `view`, else `network_positions`, else features with common names, else
    (). `dataclasses.asdict` converts the result to JSON types.

    Args:
        view: `match_of(world).view()`; None for recordings, and environments without a view.
        obs_space: of the environment.
        positions: one to three features that override all positions. Bounds and headings are
            dropped, as they refer to other axes.
        network_positions: the position features of the network's relative positions or translation.

    Raises:
        InvalidView: lists all errors of `view` and `positions`.
    """
    view = View() if view is None else view
    types = _types(obs_space)
    problems = [*view_problems(view, obs_space)]
    if positions:
        problems += _override_problems(positions, types)
    if problems:
        raise InvalidView("; ".join(f"{what}: {text}" for what, text in problems))
    choices = [tuple(positions)] if positions else [_by_axis(network_positions), *_NAMED_POSITIONS]
    entities, y_down = {}, bool(view.y_down and not positions)
    for name, entity in types.items():
        appearance = view.entities.get(name, EntityView())
        position = appearance.position
        if positions or position is None:
            fitting = (axes for axes in choices if axes and {*axes} <= {*entity.features})
            position = next(fitting, ())
            y_down = y_down or position[-1:] == _CELLS[-1:]
        entities[name] = replace(
            appearance,
            position=tuple(position),
            heading=() if positions else tuple(appearance.heading),
            size=float(appearance.size) if isinstance(appearance.size, Real) else appearance.size,
            label=tuple(appearance.label),
        )
    bounds = () if positions else tuple((float(low), float(high)) for low, high in view.bounds)
    return View(entities, bounds, y_down)


def view_problems(view: Any, obs_space: ObsSpace) -> Iterator[tuple[str, str]]:
    """Yield the field and message of each error of a view."""
    if not isinstance(view, View) or not isinstance(view.entities, Mapping):
        yield "view", f"expected a View of a dictionary, or None, got {short_repr(view)}"
        return
    types = _types(obs_space)
    for name, appearance in view.entities.items():
        what = f"view.entities[{name!r}]"
        if name not in types:
            yield what, f"expected types among {[*types]}{did_you_mean(str(name), types)}"
        elif not isinstance(appearance, EntityView):
            yield what, f"expected an EntityView, got {short_repr(appearance)}"
        else:
            for part, text in _entity_problems(appearance, types[name]):
                yield f"{what}.{part}", text
    bounds: Any = view.bounds
    is_list = isinstance(bounds, tuple | list) and len(bounds) <= _MOST_AXES
    if not is_list or not all(map(_is_range, bounds)):
        expected = f"(low, high) with low < high for up to {_MOST_AXES} axes"
        yield "view.bounds", f"expected {expected}, got {short_repr(bounds)}"


def _entity_problems(appearance: EntityView, entity: Entity) -> Iterator[tuple[str, str]]:
    numbers, columns = entity.features, entity.columns
    position = () if appearance.position is None else appearance.position
    lists: list[tuple[str, Any, int, list[str]]] = [
        ("position", position, _MOST_AXES, numbers),
        ("heading", appearance.heading, 2, numbers),
        ("label", appearance.label, len(columns), columns),
    ]
    for part, names, most, valid in lists:
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            yield part, f"expected a tuple of names of features, got {short_repr(names)}"
        elif unknown := [name for name in names if name not in valid]:
            yield part, f"expected {_unknown_name(unknown[0], valid, columns)}"
        elif len({*names}) < len(names) or len(names) > most:
            yield part, f"expected up to {most} features, each once, got {names}"
    shape, colour, size = appearance.shape, appearance.colour, appearance.size
    shapes: tuple[str, ...] = get_args(Shape)
    if shape is not None and shape not in shapes:
        hint = did_you_mean(str(shape), shapes)
        yield "shape", f"expected one of {', '.join(shapes)}, got {shape!r}{hint}"
    is_hex = re.fullmatch("#[0-9a-fA-F]{6}", str(colour)) is not None
    if colour is not None and not is_hex and colour not in columns:
        yield "colour", f"expected '#rrggbb', or {_unknown_name(colour, columns)}"
    if isinstance(size, str) and size not in numbers:
        yield "size", f"expected a number, or {_unknown_name(size, numbers, columns)}"
    elif not isinstance(size, str | None) and not (_is_finite(size) and size > 0):
        yield "size", f"expected a number above 0 or the name of one, got {short_repr(size)}"


def _override_problems(
    positions: Sequence[str], types: Mapping[EntityName, Entity]
) -> Iterator[tuple[str, str]]:
    numbers = [*dict.fromkeys(name for entity in types.values() for name in entity.features)]
    columns = [name for entity in types.values() for name in entity.columns]
    if unknown := [name for name in positions if name not in numbers]:
        yield "positions", f"expected {_unknown_name(unknown[0], numbers, columns)}"
    elif len({*positions}) < len(positions) or len(positions) > _MOST_AXES:
        yield "positions", f"expected up to {_MOST_AXES} features, each once, got {[*positions]}"
    elif not any({*positions} <= {*entity.features} for entity in types.values()):
        yield "positions", f"expected features that a type has together, got {[*positions]}"


def _unknown_name(name: object, valid: Sequence[str], columns: Sequence[str] = ()) -> str:
    """Return the message for a name that is unknown, or that of a categorical feature."""
    hint = ", which is categorical" if name in columns else did_you_mean(str(name), valid)
    return f"features among {[*valid]}, got {name!r}{hint}"


def _types(obs_space: ObsSpace) -> dict[EntityName, Entity]:
    """Return the entity types, with GLOBAL if there are global features."""
    global_entity = obs_space.global_entity
    return {**obs_space.entities, **({GLOBAL: global_entity} if global_entity.columns else {})}


def _by_axis(names: Sequence[str]) -> tuple[str, ...]:
    """Sort unordered position features of a network by axis."""
    usual = (axes for axes in _NAMED_POSITIONS if sorted(axes) == sorted(names))
    return next(usual, tuple(names[:_MOST_AXES]))


def _is_range(pair: Any) -> bool:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_finite, pair))
    return is_pair and bool(pair[0] < pair[1])


def _is_finite(number: Any) -> bool:
    return isinstance(number, Real) and math.isfinite(number)
