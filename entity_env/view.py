"""`View`: how a page draws a world, as plain data."""

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
        position: one to three numbers, along the axes: to the right, up, and the third. () shows
            the type in a table alone; None takes features with usual names, such as x and y.
        heading: a number that is the angle in radians, from the first axis towards the second; or
            two numbers that are a direction along these axes, of any length; () for none.
        shape: the shape; None for one that the page chooses for the type.
        colour: "#rrggbb"; or a feature, of which each label or whole number has its own colour;
            None for one that the page chooses for the type.
        size: half the width in units of the position, or a number feature that is it; None leaves
            it to the page.
        label: features whose values are written beside the entity.
    """

    position: tuple[str, ...] | None = None
    heading: tuple[str, ...] = ()
    shape: Shape | None = None
    colour: str | None = None
    size: float | str | None = None
    label: tuple[str, ...] = ()


@dataclass(frozen=True)
class View:
    """Appearance of a world, for pages that show its frames.

    Attributes:
        entities: by type, and under `GLOBAL` ("__global__") that of the global features, which are
            one mark. A type that is left out has all the defaults of `EntityView`.
        bounds: the lowest and highest position along each axis; () to fit what there is.
        y_down: the second axis points down instead of up, as it does where "column" and "row" are
            found as the usual names.
    """

    entities: Mapping[EntityName, EntityView] = field(default_factory=dict)
    bounds: tuple[tuple[float, float], ...] = ()
    y_down: bool = False


def view_of(
    own: View | None,
    obs_space: ObsSpace,
    positions: Sequence[str] = (),
    network_positions: Sequence[str] = (),
) -> View:
    """Return the view of a world with every type of its space, and the position of each.

    A position of `own` comes first, then `network_positions`, then features with usual names. A
    type that has none of these has the position (). `dataclasses.asdict` makes JSON of the result.

    Args:
        own: `match_of(world).view()`; None for a recording, or a world without one.
        obs_space: of the world.
        positions: one to three features to use instead of all of these. Bounds and headings are
            left out, as they belong to other axes.
        network_positions: the position features of the network's relative positions or translation.

    Raises:
        InvalidView: lists everything in `own` and `positions` that does not fit the space.
    """
    own = View() if own is None else own
    types = _types(obs_space)
    problems = [*view_problems(own, obs_space)]
    if positions:
        problems += _override_problems(positions, types)
    if problems:
        raise InvalidView("; ".join(f"{what}: {text}" for what, text in problems))
    choices = [tuple(positions)] if positions else [_in_order(network_positions), *_NAMED_POSITIONS]
    entities, y_down = {}, bool(own.y_down and not positions)
    for name, entity in types.items():
        shown = own.entities.get(name, EntityView())
        position = shown.position
        if positions or position is None:
            fitting = (axes for axes in choices if axes and {*axes} <= {*entity.features})
            position = next(fitting, ())
            y_down = y_down or position[-1:] == _CELLS[-1:]
        entities[name] = replace(
            shown,
            position=tuple(position),
            heading=() if positions else tuple(shown.heading),
            size=float(shown.size) if isinstance(shown.size, Real) else shown.size,
            label=tuple(shown.label),
        )
    bounds = () if positions else tuple((float(low), float(high)) for low, high in own.bounds)
    return View(entities, bounds, y_down)


def view_problems(view: Any, obs_space: ObsSpace) -> Iterator[tuple[str, str]]:
    """Yield field and message of everything in the view of a world that does not fit its space."""
    if not isinstance(view, View) or not isinstance(view.entities, Mapping):
        yield "view", f"expected a View of a dictionary, or None, got {short_repr(view)}"
        return
    types = _types(obs_space)
    for name, shown in view.entities.items():
        what = f"view.entities[{name!r}]"
        if name not in types:
            yield what, f"expected types among {[*types]}{did_you_mean(str(name), types)}"
        elif not isinstance(shown, EntityView):
            yield what, f"expected an EntityView, got {short_repr(shown)}"
        else:
            for part, text in _entity_problems(shown, types[name]):
                yield f"{what}.{part}", text
    bounds: Any = view.bounds
    is_list = isinstance(bounds, tuple | list) and len(bounds) <= _MOST_AXES
    if not is_list or not all(map(_is_range, bounds)):
        expected = f"(low, high) with low < high for up to {_MOST_AXES} axes"
        yield "view.bounds", f"expected {expected}, got {short_repr(bounds)}"


def _entity_problems(shown: EntityView, entity: Entity) -> Iterator[tuple[str, str]]:
    numbers, columns = entity.features, entity.columns
    position = () if shown.position is None else shown.position
    lists: list[tuple[str, Any, int, list[str]]] = [
        ("position", position, _MOST_AXES, numbers),
        ("heading", shown.heading, 2, numbers),
        ("label", shown.label, len(columns), columns),
    ]
    for part, names, most, known in lists:
        if not isinstance(names, tuple | list) or not all(isinstance(n, str) for n in names):
            yield part, f"expected a tuple of names of features, got {short_repr(names)}"
        elif unknown := [name for name in names if name not in known]:
            yield part, f"expected {_not_among(unknown[0], known, columns)}"
        elif len({*names}) < len(names) or len(names) > most:
            yield part, f"expected up to {most} features, each once, got {names}"
    shape, colour, size = shown.shape, shown.colour, shown.size
    shapes: tuple[str, ...] = get_args(Shape)
    if shape is not None and shape not in shapes:
        hint = did_you_mean(str(shape), shapes)
        yield "shape", f"expected one of {', '.join(shapes)}, got {shape!r}{hint}"
    is_hex = re.fullmatch("#[0-9a-fA-F]{6}", str(colour)) is not None
    if colour is not None and not is_hex and colour not in columns:
        yield "colour", f"expected '#rrggbb', or {_not_among(colour, columns)}"
    if isinstance(size, str) and size not in numbers:
        yield "size", f"expected a number, or {_not_among(size, numbers, columns)}"
    elif not isinstance(size, str | None) and not (_is_finite(size) and size > 0):
        yield "size", f"expected a number above 0 or the name of one, got {short_repr(size)}"


def _override_problems(
    positions: Sequence[str], types: Mapping[EntityName, Entity]
) -> Iterator[tuple[str, str]]:
    numbers = [*dict.fromkeys(name for entity in types.values() for name in entity.features)]
    columns = [name for entity in types.values() for name in entity.columns]
    if unknown := [name for name in positions if name not in numbers]:
        yield "positions", f"expected {_not_among(unknown[0], numbers, columns)}"
    elif len({*positions}) < len(positions) or len(positions) > _MOST_AXES:
        yield "positions", f"expected up to {_MOST_AXES} features, each once, got {[*positions]}"
    elif not any({*positions} <= {*entity.features} for entity in types.values()):
        yield "positions", f"expected features that a type has together, got {[*positions]}"


def _not_among(name: object, known: Sequence[str], columns: Sequence[str] = ()) -> str:
    """Return what was expected and came, for a name that is unknown, or of a kind among columns."""
    hint = ", which is a kind" if name in columns else did_you_mean(str(name), known)
    return f"features among {[*known]}, got {name!r}{hint}"


def _types(obs_space: ObsSpace) -> dict[EntityName, Entity]:
    """Return the entity types, and the global features if there are any."""
    of_globals = obs_space.global_entity
    return {**obs_space.entities, **({GLOBAL: of_globals} if of_globals.columns else {})}


def _in_order(names: Sequence[str]) -> tuple[str, ...]:
    """Return position features of a network, whose order says nothing, in the order of the axes."""
    usual = (axes for axes in _NAMED_POSITIONS if sorted(axes) == sorted(names))
    return next(usual, tuple(names[:_MOST_AXES]))


def _is_range(pair: Any) -> bool:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2 and all(map(_is_finite, pair))
    return is_pair and bool(pair[0] < pair[1])


def _is_finite(number: Any) -> bool:
    return isinstance(number, Real) and math.isfinite(number)
