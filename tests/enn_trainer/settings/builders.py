"""Configurations: published ones, and a small one of sections."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

GOLDEN = Path(__file__).parents[2] / "golden"
PUBLISHED = sorted((GOLDEN / "configs").glob("*.ron"))


@dataclass
class Inner:
    """An inner section.

    Attributes:
        rate: How fast
            it goes.
        kind: Which one.
    """

    rate: float = 0.5
    kind: Literal["a", "b", None] = "a"


@dataclass
class Outer:
    """A whole configuration."""

    inner: Inner
    count: int = 1
    flag: bool = False
    text: str = ""
    maybe: str | None = None
    limit: int | None = None
    names: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    extra: Inner | None = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")
