"""Facts about the built-in environments, one line each in `known_worlds.txt`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class KnownWorld(NamedTuple):
    """Facts about a built-in environment. Source of numbers: `benchmarks/results/learning.md`.

    Attributes:
        name: name of the environment.
        teaches: subject of the environment in a few words.
        config: name of its settings in `configs/`; "" without any.
        measure: unit of `learnt` if it is the score against `random`, not the return.
        best: highest possible mean return; None if unknown.
        frames: frames of training; None without settings, like `minutes` and `learnt`.
        minutes: minutes of training, median of three seeds.
        learnt: mean return after training, median of three seeds.
        kwargs: arguments in the settings that differ from their defaults.
    """

    name: str
    teaches: str
    config: str
    measure: str
    best: float | None
    frames: int | None
    minutes: float | None
    learnt: float | None
    kwargs: dict[str, Any]


def _read() -> Iterator[KnownWorld]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        cells = line.split("|")
        yield KnownWorld._make([*cells[:4], *map(json.loads, cells[4:])])


def without_facts(name: str) -> KnownWorld:
    """Return the row of an environment without a line in the file."""
    return KnownWorld(name, "", "", "", None, None, None, None, {})


KNOWN_WORLDS = {world.name: world for world in _read()}
