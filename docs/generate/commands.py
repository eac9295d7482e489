"""Page of commands: the help of each parser."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from enn_trainer.cli import COMMANDS, usage


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of the page."""
    os.environ["COLUMNS"] = "90"
    parts = ["# Commands", block(usage())]
    for name, command in COMMANDS.items():
        parts += sections(command.parser(), f"enn {name}", 2)
    yield "commands.md", "\n\n".join(parts) + "\n"


def sections(parser: argparse.ArgumentParser, name: str, level: int) -> Iterator[str]:
    """Yield the heading and the help of a command, then those of its subcommands."""
    yield f"{'#' * level} {name}"
    yield block(parser.format_help())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from sections(child, f"{name} {word}", level + 1)


def block(text: str) -> str:
    """Return a block that shows text as it is."""
    return f"```text\n{text.rstrip()}\n```"
