"""Command line of the process, and the line to type after an error. Imports nothing large."""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias

Parsers: TypeAlias = Mapping[str, Callable[[], argparse.ArgumentParser]]


class TypedLine(NamedTuple):
    """Command line of the process; see `correct` for its attributes."""

    program: str
    words: Sequence[str]
    parsers: Parsers


_TYPED: ContextVar[TypedLine | None] = ContextVar("typed_line", default=None)


@contextmanager
def typed_line(program: str, words: Sequence[str], parsers: Parsers) -> Iterator[None]:
    """Return a context in which `line_to_type` corrects a command line."""
    token = _TYPED.set(TypedLine(program, words, parsers))
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
    from enn_trainer.cli.guesses.correction import correct  # imports all settings

    try:
        text, mistakes = correct(line.program, line.words, line.parsers)
    except OSError:  # a word that is no valid name of a file
        return ""
    named = (rf"(?<![\w-]){re.escape(word)}(?!\w)" for word in mistakes)
    return f"; type: {text}" if any(re.search(word, message) for word in named) else ""
