"""Facts about the worlds that ship with this program, a line each in `known_worlds.txt`."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class KnownWorld(NamedTuple):
    """Facts about a world; numbers of training are those of `benchmarks/results/learning.md`.

    Attributes:
        name: name of the world.
        teaches: subject of the world in a few words.
        config: name of its settings in `configs/`; "" without any.
        measure: unit of `learnt`, if that is not the return: then it is the share against `random`.
        best: the highest possible mean return; None if it is not known.
        frames: frames of training with these settings; None without any, like the following.
        minutes: minutes of training, median of three seeds.
        learnt: mean return after training, median of three seeds.
        kwargs: arguments in these settings that are not the default.
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
    """Return the row of a world that has no line in the file."""
    return KnownWorld(name, "", "", "", None, None, None, None, {})


KNOWN_WORLDS = {world.name: world for world in _read()}
