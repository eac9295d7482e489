"""Page of settings: every field of the configuration of `enn train` and of `enn clone`."""

import re
from collections.abc import Iterator
from pathlib import Path

from enn_trainer.config import CloneRunConfig, TrainConfig
from enn_trainer.config.help import hps_info

INTRODUCTION = """\
# Settings

Every setting of `enn train`, and below them the further ones of `enn clone`.
[Configuration](../../configuration.md) explains files and command lines;
`enn train --hps-info WORD` searches this list.
"""
LINE = re.compile(r"( *)([^:]+): (.*?)(?: = (.*?)| \(required\))?(?: +# (.*))?")


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the page."""
    tables = {}
    for config in (TrainConfig, CloneRunConfig):
        path = []
        for line in hps_info(config).partition("\n\n")[0].splitlines():
            indent, name, kind, default, meaning = LINE.fullmatch(line).groups()
            path[len(indent) // 2 :] = [name]
            rows = tables.setdefault(".".join(path[:-1]), {})
            cells = [f"`{name}`", f"`{kind}`", f"`{default}`" if default else "", meaning or ""]
            rows.setdefault(name, " | ".join(cell.replace("|", "\\|") for cell in cells))
    parts = [INTRODUCTION]
    for section, rows in tables.items():
        # The class lets site.css lay the table out, so that the last column is always in view.
        parts += [f"\n## {section or 'Run'}\n", "```{rst-class} settings\n```\n"]
        parts += ["| setting | type | default | meaning |"]
        parts += ["| --- | --- | --- | --- |", *(f"| {row} |" for row in rows.values())]
    yield "settings.md", "\n".join(parts) + "\n"
