"""Metric sink that writes lines of JSON: `metrics.jsonl`.

A line is `{"step": 2048, "time": 1760000000.0, "kind": "update", "losses/entropy": 1.5, ...}`,
where `time` is in seconds since 1970, and the kind of an evaluation is "eval". JSON has no numbers
that are not finite: these are written as the strings "nan", "inf" and "-inf", which `float` reads.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, final

from enn_trainer.config.validation import unwritable
from entity_env.serialization.plain_open import append_plain, new_file, open_plain

EVAL_PREFIX = "eval/"
EVAL, UPDATE = "eval", "update"
NOT_TAGS = ("step", "time", "kind")


@final
class JsonlSink:
    """A file to which each call of `write` appends a line.

    Each line is one system call, so that a killed run leaves whole lines. A resumed run writes the
    steps after its save again, so their lines are dropped when the file is opened. The evaluation
    at the step of the save is dropped when it is written again.

    Args:
        path: the file; appended to if it exists.
        step: the first step of the run, or the step of the save that it resumes from.
        say: prints a line about damaged lines.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: Path, step: int, say: Callable[[str], None] = print) -> None:
        self._path, self._say = path, say
        self._saved_eval_step: int | None = step
        self._file = -1
        self._reopen(lambda row: row["step"] <= step)

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Append a line.

        Raises:
            ConfigError: the line could not be written completely.
        """
        is_eval = bool(scalars) and all(tag.startswith(EVAL_PREFIX) for tag in scalars)
        if is_eval and step == self._saved_eval_step:
            self._saved_eval_step = None
            self._reopen(lambda row: row["step"] < step or row.get("kind") != EVAL)
        row: dict[str, object] = {"step": step, "time": round(time.time(), 3)}
        row["kind"] = EVAL if is_eval else UPDATE
        for tag, value in scalars.items():
            number = float(value)  # json does not take numbers of numpy and torch
            row[tag] = number if math.isfinite(number) else str(number)
        data = (json.dumps(row) + "\n").encode()
        try:
            while data:  # one write, unless the disk is full: then the second one raises
                data = data[os.write(self._file, data) :]
        except OSError as error:
            raise unwritable(self._path, error) from None

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _reopen(self, keep: Callable[[dict[str, Any]], bool]) -> None:
        """Drop the other lines and open the file to append to it."""
        try:
            append_plain(self._path).close()  # raises if it is a link or no regular file
            _drop(self._path, keep, self._say)
            if self._file >= 0:
                os.close(self._file)
            self._file = open_plain(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        except OSError as error:
            raise unwritable(self._path, error) from None


class Line(NamedTuple):
    """A line of a file.

    Attributes:
        number: line number, from 1.
        text: the bytes of the line, with its end of line.
        row: the parsed content; None if the line is damaged or incomplete.
    """

    number: int
    text: bytes
    row: dict[str, Any] | None


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of a file; damaged ones have no row."""
    with path.open("rb") as file:
        for number, text in enumerate(file, start=1):
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                row = None
            whole = isinstance(row, dict) and type(row.get("step")) is int
            yield Line(number, text, row if whole and text.endswith(b"\n") else None)


def _drop(path: Path, keep: Callable[[dict[str, Any]], bool], say: Callable[[str], None]) -> None:
    """Remove the lines of a file whose row `keep` rejects, and damaged ones."""
    kept = path.with_name(f"{path.name}.tmp")
    dropped = False
    with new_file(kept) as file:
        damaged = None
        for line in read_lines(path):
            # An incomplete last line is left by a kill: only damage before it is reported.
            if damaged is not None:
                say(f"{path}: line {damaged.number} is damaged and was dropped")
            damaged = line if line.row is None else None
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
