"""Scalars as lines of JSON, which any program can read: `metrics.jsonl`.

A line is `{"step": 2048, "time": 1760000000.0, "kind": "update", "losses/entropy": 1.5, ...}`,
where `time` is in seconds since 1970, and the kind of an evaluation is "eval". JSON has no word for
what is not finite: that is written as the text "nan", "inf" or "-inf", which `float` reads.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from enn_trainer.config_checks import unwritable
from entity_env.plain_open import append_plain, new_file, open_plain

EVAL_PREFIX = "eval/"
EVAL, UPDATE = "eval", "update"
NOT_TAGS = ("step", "time", "kind")


@final
class JsonlSink:
    """Appends a line for each call of `write`.

    Each line is one write of the system, so that a killed run leaves whole lines. A run that
    continues writes again what came after its save, so that is dropped when the file is opened. An
    evaluation at the step of the save is dropped once it comes again.

    Args:
        path: the file; continued if it is there.
        step: where the run begins or continues.
        say: prints a line about what is damaged.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, step: int, say: Callable[[str], None] = print) -> None:
        self._path, self._say = path, say
        self._old_eval: int | None = step
        self._file = -1
        self._reopen(lambda row: row["step"] <= step)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append a line.

        Raises:
            ConfigError: it could not be written as a whole.
        """
        is_eval = bool(scalars) and all(tag.startswith(EVAL_PREFIX) for tag in scalars)
        if is_eval and step == self._old_eval:
            self._old_eval = None
            self._reopen(lambda row: row["step"] < step or row.get("kind") != EVAL)
        row: dict[str, object] = {"step": step, "time": round(time.time(), 3)}
        row["kind"] = EVAL if is_eval else UPDATE
        row |= {tag: _as_json(value) for tag, value in scalars.items()}
        data = (json.dumps(row) + "\n").encode()
        try:
            while data:  # in one go, unless the disk is full: then the next write says so
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise unwritable(self._path, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _reopen(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Go on behind the lines that are kept."""
        try:
            append_plain(self._path).close()  # refuses what is no file of its own
            _drop(self._path, keep, self._say)
            if self._file >= 0:
                os.close(self._file)
            self._file = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise unwritable(self._path, error) from None


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
            except (ValueError, RecursionError):
                row = None
            whole = isinstance(row, dict) and type(row.get("step")) is int
            yield Line(number, text, row if whole and text.endswith(b"\n") else None)


def _as_json(value: float) -> float | str:
    value = float(value)  # numpy's and torch's are not JSON's
    return value if math.isfinite(value) else str(value)


def _drop(path: Path, keep: Callable[[dict[str, Any]], bool], say: Callable[[str], None]) -> None:
    """Leave only the lines that are to be kept."""
    kept = path.with_name(f"{path.name}.tmp")
    dropped = False
    with new_file(kept) as file:
        torn = None
        for line in read_lines(path):
            if torn is not None:  # the last line is torn if the run was killed; others never are
                say(f"{path}: line {torn.number} is damaged and was dropped")
            torn = line if line.row is None else None
            if line.row is not None and keep(line.row):
                file.write(line.text)
            else:
                dropped = True
        file.flush()
        os.fsync(file.fileno())
    if dropped:
        kept.replace(path)
    else:
        kept.unlink()
