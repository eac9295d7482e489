"""A command that is used wrongly says so in one line."""

from collections.abc import Sequence

import pytest

from enn_trainer.cli import run


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run `enn` with a mistake in its arguments; the line that it answers with."""
    capsys.readouterr()
    try:
        status = run(arguments)
    except SystemExit as exit:  # from argparse
        status = int(exit.code or 0)
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1, captured.err
    return captured.err
