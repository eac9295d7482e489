"""Command line of the process, and the line to type after an error. Imports nothing large."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

RUNS = Path("runs")
"""Folder of runs by default."""


class TypedLine(NamedTuple):
    """Command line of the process.

    Attributes:
        program: `enn`, or `python FILE` for a program of the user, which trains.
        words: arguments of the program.
    """

    program: str
    words: Sequence[str]


_TYPED: ContextVar[TypedLine | None] = ContextVar("typed_line", default=None)


@contextmanager
def typed_line(program: str, words: Sequence[str]) -> Iterator[None]:
    """Return a context in which `line_to_type` corrects a command line."""
    token = _TYPED.set(TypedLine(program, words))
    try:
        yield
    finally:
        _TYPED.reset(token)


def line_to_type(message: str) -> str:
    """Return "; type: LINE" with the corrected command line, "" without a correction.

    Args:
        message: the error, which has to name a word that is corrected.
    """
    line = _TYPED.get()
    if line is None or not line.words:
        return ""
    from enn_trainer.cli.guesses.correction import Correction  # imports all settings

    correction = Correction(line)
    try:
        text = correction.text()
    except OSError:  # a word that is no valid name of a file
        return ""
    named = (rf"(?<![\w-]){re.escape(word)}(?!\w)" for word in correction.mistakes)
    return f"; type: {text}" if any(re.search(word, message) for word in named) else ""


def run_path(text: str) -> Path:
    """Return the path of a run: a name that is not in this folder is looked up in `runs`."""
    name = text.partition("@")[0]
    try:
        return RUNS / text if not Path(name).exists() and (RUNS / name).is_dir() else Path(text)
    except OSError:  # the name is too long
        return Path(text)
