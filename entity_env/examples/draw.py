"""Rendering of environments as marks on a plane, in pixels or characters."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Picture: TypeAlias = npt.NDArray[np.uint8]
Point: TypeAlias = tuple[float, float]
Colour: TypeAlias = tuple[int, int, int]

PAPER: Colour = (250, 248, 243)
PALE: Colour = (226, 222, 212)
DARK: Colour = (62, 66, 75)
BLUE: Colour = (66, 120, 196)
RED: Colour = (212, 80, 72)
GREEN: Colour = (84, 160, 98)
GOLD: Colour = (232, 178, 56)
PURPLE: Colour = (142, 100, 176)
TEAL: Colour = (74, 172, 178)
BROWN: Colour = (158, 112, 72)
PINK: Colour = (228, 140, 172)
COLOURS = (BLUE, RED, GREEN, GOLD, PURPLE, TEAL, BROWN, PINK, DARK)

_SIDE = 320  # pixels of the longer side


def as_hex(colour: Colour) -> str:
    """Return a colour as "#rrggbb", for views."""
    return f"#{bytes(colour).hex()}"


class Mark(NamedTuple):
    """A mark on the plane: a disc, a square, or a line with round ends.

    Attributes:
        x: the position, to the right.
        y: the position, upwards.
        char: the character in text, "" for none.
        colour: the colour.
        size: half the width.
        to: the end of a line that starts at the position.
        square: draw a square instead of a disc.
    """

    x: float
    y: float
    char: str
    colour: Colour
    size: float = 0.35
    to: Point | None = None
    square: bool = False


@dataclass(frozen=True)
class Scene:
    """A picture of an environment as marks; later marks cover earlier ones.

    Attributes:
        low: the lower left corner.
        high: the upper right corner.
        marks: the marks.
        floor: the character for an empty cell.
        cell: width and height of a character.
        caption: a line above the text.
    """

    low: Point
    high: Point
    marks: Sequence[Mark]
    floor: str = " "
    cell: float = 1.0
    caption: str = ""


class Drawn(ABC):
    """Base class of environments that render a scene."""

    @abstractmethod
    def scene(self) -> Scene:
        """Return the current scene; its corners are constant."""

    def render(self, **kwargs: Any) -> Picture | str:
        """Return (height, width, 3) uint8 for `mode="rgb_array"`, or a str for `mode="text"`.

        Raises:
            ValueError: another mode.
        """
        return draw(self.scene(), **kwargs)


def board(width: int, height: int, marks: Sequence[Mark], caption: str = "") -> Scene:
    """Return a scene with a grid of cells, centred at the integers from 0."""
    right, top = width - 0.5, height - 0.5
    lines = [
        *(Mark(x - 0.5, -0.5, "", PALE, 0.02, to=(x - 0.5, top)) for x in range(width + 1)),
        *(Mark(-0.5, y - 0.5, "", PALE, 0.02, to=(right, y - 0.5)) for y in range(height + 1)),
    ]
    return Scene((-0.7, -0.7), (right + 0.2, top + 0.2), [*lines, *marks], ".", caption=caption)


def draw(scene: Scene, mode: str = "rgb_array") -> Picture | str:
    """Return a scene as (height, width, 3) uint8 for "rgb_array", or as a str for "text".

    Raises:
        ValueError: another mode.
    """
    (left, bottom), (right, top) = scene.low, scene.high
    if mode == "text":
        width, height = round((right - left) / scene.cell), round((top - bottom) / scene.cell)
        rows = [[scene.floor] * width for _ in range(height)]
        for mark in scene.marks:
            row, column = int((top - mark.y) // scene.cell), int((mark.x - left) // scene.cell)
            if mark.char and 0 <= row < height and 0 <= column < width:
                rows[row][column] = mark.char
        lines = ["".join(row).rstrip() for row in rows]
        return "\n".join([scene.caption, *lines] if scene.caption else lines)
    if mode != "rgb_array":
        raise ValueError(f"mode: expected 'rgb_array' or 'text', got {mode!r}")
    scale = _SIDE / max(right - left, top - bottom)
    # Even sizes, as most video formats need.
    picture = canvas(*(2 * round(size * scale / 2) for size in (right - left, top - bottom)))

    def at(x: float, y: float) -> Point:
        return (x - left) * scale, (top - y) * scale

    for x, y, _, colour, size, to, square in scene.marks:
        if square:
            rectangle(picture, at(x - size, y + size), at(x + size, y - size), colour)
        elif to is None:
            circle(picture, at(x, y), size * scale, colour)
        else:
            line(picture, at(x, y), at(*to), size * scale, colour)
    return picture


def canvas(width: int, height: int) -> Picture:
    """Return an empty picture."""
    return np.full((height, width, 3), PAPER, dtype=np.uint8)


def circle(picture: Picture, centre: Point, radius: float, colour: Colour) -> None:
    """Paint a disc, in pixels from the upper left corner."""
    line(picture, centre, centre, radius, colour)


def line(picture: Picture, start: Point, end: Point, radius: float, colour: Colour) -> None:
    """Paint all pixels within `radius` of a line, in pixels from the upper left corner."""
    rows, columns = _window(picture, start, end, radius)
    x, y = columns[None, :] + 0.5 - start[0], rows[:, None] + 0.5 - start[1]
    along_x, along_y = end[0] - start[0], end[1] - start[1]
    length_squared = (along_x**2 + along_y**2) or 1.0
    along = np.clip((x * along_x + y * along_y) / length_squared, 0, 1)
    distance = np.hypot(x - along * along_x, y - along * along_y)
    _blend(picture, rows, columns, radius - distance, colour)


def rectangle(picture: Picture, start: Point, end: Point, colour: Colour) -> None:
    """Paint a rectangle between two corners, the upper left one first, in pixels."""
    rows, columns = _window(picture, start, end, 0)
    x = np.minimum(columns + 0.5 - start[0], end[0] - columns - 0.5)
    y = np.minimum(rows + 0.5 - start[1], end[1] - rows - 0.5)
    _blend(picture, rows, columns, np.minimum(x[None, :], y[:, None]), colour)


def _window(
    picture: Picture, start: Point, end: Point, margin: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the rows and columns of the picture within `margin` of a line."""
    rows, columns = (
        np.arange(
            max(int(min(start[i], end[i]) - margin - 1), 0),
            min(int(max(start[i], end[i]) + margin + 2), picture.shape[1 - i]),
        )
        for i in (1, 0)
    )
    return rows, columns


def _blend(
    picture: Picture,
    rows: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int64],
    depth: npt.NDArray[np.float64],
    colour: Colour,
) -> None:
    """Paint where `depth`, the distance to the edge in pixels, is positive; edges are smooth."""
    opacity = np.clip(depth + 0.5, 0, 1)[..., None]
    where = np.ix_(rows, columns)
    picture[where] = np.rint(picture[where] * (1 - opacity) + np.array(colour) * opacity)
