"""Tables: drawn on a terminal, aligned columns elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of rows whose columns begin below each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console,
    num_left: int = 1,
    by_section: bool = False,
) -> None:
    """Show rows of cells.

    Args:
        columns: their names.
        rows: a cell for each column; what a terminal or an encoding cannot show is escaped.
        console: where.
        num_left: so many of the first columns are text, the others are numbers.
        by_section: on a terminal a line separates rows of which the first cells differ.
    """
    columns, *rows = ([printable(cell, console.encoding) for cell in r] for r in (columns, *rows))
    if not console.is_terminal:
        for line in aligned([columns, *rows]):
            console.out(line, highlight=False)
        return
    shown = Table()
    for i, column in enumerate(columns):  # what does not fit goes on in the next line
        shown.add_column(column, justify="left" if i < num_left else "right", overflow="fold")
    for i, row in enumerate(rows):
        ends = by_section and i + 1 < len(rows) and rows[i + 1][0] != row[0]
        shown.add_row(*row, end_section=ends)
    console.print(shown, markup=False)


def printable(text: str, encoding: str) -> str:
    """A line in an encoding that may know less: "+-" for "±", and escapes for the rest.

    What moves the cursor or changes colours is escaped as well: it may come from a file.
    """
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("±", "+-").encode(encoding, "backslashreplace").decode(encoding)
    return text
