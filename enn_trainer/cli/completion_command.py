"""The command `enn completion`."""

from collections.abc import Sequence
from pathlib import Path

from enn_trainer.cli.arguments import OneLineParser

SCRIPTS = {"bash": "enn.bash", "zsh": "_enn"}
"""Completion script of each shell, in `completion/`; `make generated` writes them."""
_EPILOG = """\
Completes commands, options, environments and settings. In ~/.bashrc:
  source <(enn completion bash)
For zsh, write the script to a file _enn in a folder of fpath.

examples:
  enn completion bash
  enn completion zsh"""


def parser() -> OneLineParser:
    """Return the parser of `enn completion`."""
    description = "Print a script that completes the arguments of enn in a shell."
    parser = OneLineParser(prog="enn completion", description=description, epilog=_EPILOG)
    parser.add_argument("shell", choices=list(SCRIPTS), help="the shell")
    return parser


def completion_command(arguments: Sequence[str]) -> None:
    """Run `enn completion`: print the completion script of a shell."""
    name = SCRIPTS[parser().parse_args(arguments).shell]
    text = (Path(__file__).parent / "completion" / name).read_text(encoding="utf-8")
    print(text, end="")
