"""Tables with borders on a terminal, and with aligned columns in files and pipes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from entity_env.errors import truncate

if TYPE_CHECKING:
    from rich.console import Console

    from entity_env.spaces import ActionSpace, Entity, ObsSpace

_WIDEST = 80
"""Maximal number of characters of the labels of a categorical feature."""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line of text for each row, with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def in_bytes(size: int) -> str:
    """Format a number of bytes with a unit, such as `3.2 MB`."""
    value, unit = float(size), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 1000:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: "Console",
    num_left: int = 1,
    by_section: bool = False,
    heading: Sequence[str] = (),
) -> None:
    """Print a table; print nothing if it has no rows.

    Args:
        columns: names of the columns.
        rows: a cell for each column; characters that cannot be displayed are escaped.
        console: console to print to.
        num_left: number of leading text columns; the other columns are numbers.
        by_section: True to separate rows with different first cells by a line, on a terminal.
        heading: lines above the table.
    """
    if not rows:
        return
    show_lines(heading, console)
    columns, *rows = ([printable(cell, console.encoding) for cell in r] for r in (columns, *rows))
    if not console.is_terminal:
        show_lines(aligned([columns, *rows]), console)
        return
    from rich.table import Table

    table = Table()
    for i, column in enumerate(columns):  # long cells continue on the next line
        table.add_column(column, justify="left" if i < num_left else "right", overflow="fold")
    for i, row in enumerate(rows):
        ends = by_section and i + 1 < len(rows) and rows[i + 1][0] != row[0]
        table.add_row(*row, end_section=ends)
    console.print(table, markup=False)


def show_records(
    records: Sequence[Mapping[str, object]],
    console: "Console",
    num_left: int,
    optional: Sequence[str] = (),
) -> None:
    """Print a table with a row for each record and a column for each key.

    Args:
        records: values by column; None and False give an empty cell.
        console: console to print to.
        num_left: number of leading text columns.
        optional: columns that are omitted if no record has a value.
    """
    columns = [c for c in records[0] if c not in optional or any(r[c] is not None for r in records)]
    show_table(columns, [[_cell(r[c]) for c in columns] for r in records], console, num_left)


def _cell(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_lines(lines: Iterable[str], console: "Console") -> None:
    """Print lines of text; characters that cannot be displayed are escaped."""
    for line in lines:
        console.out(printable(line, console.encoding), highlight=False)


def printable(text: str, encoding: str) -> str:
    """Escape characters that an encoding lacks; "±" becomes "+-".

    Control characters are escaped too, as text from a file could move the cursor or set colours.
    """
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("±", "+-").encode(encoding, "backslashreplace").decode(encoding)
    return text


def feature_texts(entity: "Entity") -> list[str]:
    """Return the names of features, categorical ones with their labels: `color (red, green)`.

    Labels that do not fit in a line are truncated, and preceded by their number.
    """
    texts = [*entity.features]
    for kind in entity.kinds:
        labels = ", ".join(kind.labels)
        short = truncate(labels, _WIDEST)
        size = "" if short == labels else f"{len(kind.labels)} labels: "
        texts.append(f"{kind.name} ({size}{short})")
    return texts


def rows_of_spaces(
    obs_space: "ObsSpace", action_space: "Mapping[str, ActionSpace]"
) -> list[tuple[str, str]]:
    """Return rows of name and content for global features, entity types and actions."""
    rows = [("global", ", ".join(feature_texts(obs_space.global_entity)) or "no features")]
    for name, entity in obs_space.entities.items():
        rows.append((f"entity {name}", ", ".join(feature_texts(entity)) or "no features"))
    for name, space in action_space.items():
        bounds = [f"{c} {low:g} to {high:g}" for c, (low, high) in space.bounds_by_name().items()]
        kind = type(space).__name__.removesuffix("ActionSpace")
        labels = ", ".join(space.labels or bounds)
        rows.append((f"action {name}", f"{kind}: {labels}" if labels else kind))
    return rows
