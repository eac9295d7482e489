"""`enn play` with typed lines."""

from collections.abc import Iterator

import pytest

from enn_trainer.cli import run


def play(monkeypatch: pytest.MonkeyPatch, arguments: list[str], *lines: str) -> int:
    """Play with lines that are typed, then the input ends."""
    rest: Iterator[str] = iter(lines)

    def ask(prompt: str = "") -> str:
        line = next(rest, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", ask)
    return run(["play", *arguments])
