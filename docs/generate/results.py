"""Pages of measurements: those of `benchmarks/results`, where the pictures stay."""

import re
from collections.abc import Iterator
from pathlib import Path


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    paths = sorted((root / "benchmarks/results").glob("*.md"))
    for path in paths:
        yield (
            f"results/{path.name}",
            re.sub(r"\]\((\w+\.svg)\)", r"](../../../../benchmarks/results/\1)", path.read_text()),
        )
    listed = "\n".join(path.stem for path in paths)
    yield "results/index.md", f"# Measurements\n\n```{{toctree}}\n{listed}\n```\n"
