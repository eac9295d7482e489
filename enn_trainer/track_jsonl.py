"""Scalars as lines of JSON, which any program can read: `metrics.jsonl`.

A line is `{"step": 2048, "time": 1760000000.0, "losses/entropy": 1.5, ...}`, where `time` is in
seconds since 1970. JSON has no word for what is not finite: that is written as the text "nan",
"inf" or "-inf", which `float` reads.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

EVAL_PREFIX = "eval/"
NOT_TAGS = ("step", "time")


@final
class JsonlSink:
    """Appends a line for each call of `write`.

    Each line is one write of the system, so that a killed run leaves whole lines. A run that
    continues writes again what came after its save, so that is dropped when the file is opened.

    Args:
        path: the file; continued if it is there.
        step: where the run begins or continues.
        evaluates: whether the evaluation at this step is about to be done, perhaps again.
        say: prints a line about what is damaged.
    """

    def __init__(
        self, path: Path, step: int, evaluates: bool, say: Callable[[str], None] = print
    ) -> None:
        _drop_after(path, step, evaluates, say)
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append a line.

        Raises:
            OSError: it could not be written as a whole.
        """
        numbers = {tag: _as_json(value) for tag, value in scalars.items()}
        line = json.dumps({"step": step, "time": round(time.time(), 3), **numbers}) + "\n"
        data = line.encode()
        if os.write(self._file, data) != len(data):
            raise OSError(f"{self._path}: a line could not be written; is the disk full?")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Line(NamedTuple):
    """A line of a file.

    Attributes:
        number: from 1.
        text: with its end of line.
        row: what it says; None if it is damaged or torn off.
    """

    number: int
    text: bytes
    row: dict[str, Any] | None


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, one after the other; damaged ones have no row."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except ValueError:
                row = None
            whole = isinstance(row, dict) and isinstance(row.get("step"), int)
            yield Line(number, text, row if whole and text.endswith(b"\n") else None)


def _as_json(value: float) -> float | str:
    value = float(value)  # numpy's and torch's are not JSON's
    return value if math.isfinite(value) else str(value)


def _drop_after(path: Path, step: int, evaluates: bool, say: Callable[[str], None]) -> None:
    """Leave only the lines that the run will not write again."""
    if not path.is_file():
        return
    kept = path.with_name(f"{path.name}.tmp")
    dropped = False
    with kept.open("wb") as file:
        torn = None
        for line in read_lines(path):
            if torn is not None:  # the last line is torn if the run was killed; others never are
                say(f"{path}: line {torn.number} is damaged and was dropped")
            torn = line if line.row is None else None
            if line.row is not None and not _comes_again(line.row, step, evaluates):
                file.write(line.text)
            else:
                dropped = True
        file.flush()
        os.fsync(file.fileno())
    if dropped:
        kept.replace(path)
    else:
        kept.unlink()


def _comes_again(row: Mapping[str, Any], step: int, evaluates: bool) -> bool:
    is_eval = all(tag.startswith(EVAL_PREFIX) for tag in row if tag not in NOT_TAGS)
    return bool(row["step"] > step or (row["step"] == step and is_eval and evaluates))
