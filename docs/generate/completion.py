"""Completion scripts that `enn completion` prints.

Made from the parsers of all commands, the names of the environments and the settings. Needs shtab,
which users do not.
"""

import argparse
from pathlib import Path

import shtab

from enn_trainer.cli import COMMANDS
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.completion_command import SCRIPTS
from enn_trainer.config import CloneRunConfig, TrainConfig
from enn_trainer.config.schema import schema_of
from enn_trainer.runtime.start_folder import path_of_run
from entity_env.examples import ENV_REGISTRY

NO_SPACE = """
# A setting goes on with its value.
_enn() {
  _shtab_enn
  [[ "${COMPREPLY-}" == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}

complete -o bashdefault -F _enn enn
"""


def settings(fields: list[str]) -> list[str]:
    """Return `optim.lr=` for each setting that a command line can give a value."""
    sections = {field.rpartition(".")[0] for field in fields}
    return [
        f"{one}=" for one in fields if one not in sections and "[" not in one and "{" not in one
    ]


def whole_parser() -> argparse.ArgumentParser:
    """Return the parser of `enn` with all commands, and with the words that complete arguments."""
    parser = OneLineParser(prog="enn")
    parser.flag("--version", "print the version")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, command in COMMANDS.items():
        own = command.parser()
        _add_words(own, name)
        commands.add_parser(name, help=command.help, parents=[own], add_help=False)
    return parser


def _add_words(parser: argparse.ArgumentParser, command: str) -> None:
    fields = [*schema_of(CloneRunConfig if command == "clone" else TrainConfig).fields]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for subparser in action.choices.values():
                _add_words(subparser, command)
        elif action.metavar == "ENV":
            action.choices = [*ENV_REGISTRY]
        elif "FIELD=VALUE" in str(action.metavar):
            action.choices = [*settings(fields), *ENV_REGISTRY]
        elif action.type in (Path, path_of_run):
            action.complete = shtab.FILE  # type: ignore[attr-defined]


def scripts() -> dict[str, str]:
    """Return the text of each script by its name."""
    texts = {name: shtab.complete(whole_parser(), shell) for shell, name in SCRIPTS.items()}
    bash, _, _ = texts["enn.bash"].rpartition("complete -o")
    return texts | {"enn.bash": bash.rstrip() + "\n" + NO_SPACE}
