"""The table of limits in `docs/architecture.md`."""

import importlib.util
from pathlib import Path
from typing import Any

PAGE = "docs/architecture.md"
BEGIN, END = "<!-- limits of the structure -->\n", "<!-- end of the limits -->\n"


def with_limits(root: Path) -> str:
    """Return the text of the page with the table of today's limits.

    Raises:
        ValueError: the page has no place for it.
    """
    text = (root / PAGE).read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE}: expected a table between {BEGIN!r} and {END!r}")
    return f"{before}{begin}{_table(root)}{end}{after}"


def _table(root: Path) -> str:
    path = root / "benchmarks/structure_limits.py"
    spec = importlib.util.spec_from_file_location("structure_limits", path)
    assert spec is not None
    assert spec.loader is not None
    limits: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(limits)
    lines = [f"| | {' | '.join(limits.BEFORE)} | limit |", "| --- | --- | --- | --- |"]
    for name, values in limits.HISTORY.items():
        limit = limits.LIMITS.get(name)
        lines.append(
            f"| {name} | {' | '.join(values)} | {'' if limit is None else f'{limit:,g}'} |"
        )
    return "\n".join(lines) + "\n"
