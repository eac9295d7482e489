"""Configurations: published ones, and a small one of sections."""

# hyperstate's type reader, which is tested with these classes, supports only these annotations.
# ruff: noqa: UP006, UP035, UP045

from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Literal, Optional

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
    maybe: Optional[str] = None
    limit: Optional[int] = None
    names: List[str] = field(default_factory=list)
    weights: Dict[str, float] = field(default_factory=dict)
    extra: Optional[Inner] = None

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")
