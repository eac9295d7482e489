"""The command `enn config`."""

import argparse
import difflib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.config.schema import dump_schema, load_schema, report, schema_changes, schema_of
from enn_trainer.config.upgrade_files import upgraded_file, write_whole
from enn_trainer.config.versioned import Versioned
from enn_trainer.runtime.trust import TYPED, import_named
from entity_env.errors import UnknownWorld

_EPILOG = """\
examples:
  enn config dump-schema schema.ron
  enn config check-schema schema.ron
  enn config upgrade-schema schema.ron
  enn config upgrade-config mine.ron"""


def config_command(arguments: Sequence[str]) -> int:
    """Run `enn config`: write and check schemas, and upgrade configuration files.

    Returns:
        0, or 1 if a schema needs rules or a file could not be upgraded.

    Raises:
        ConfigError: a mistake in the arguments.
    """
    options = parser().parse_args(arguments)
    chosen: Callable[[type[Versioned], argparse.Namespace], int] = options.run
    return chosen(_config_class(options.config_class), options)


def parser() -> OneLineParser:
    """Return the parser of `enn config`."""
    description = "Schemas and upgrades of configuration files."
    parser = OneLineParser(prog="enn config", description=description, epilog=_EPILOG)
    help = "a custom configuration class, package.module:Class or file.py:Class"
    parser.option("--class", "CLASS", help, dest="config_class", default="enn_trainer:TrainConfig")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, run, text in (
        ("dump-schema", _dump_schema, "write the fields of the class, their types and defaults"),
        ("check-schema", _check_schema, "list changes since the schema, and the rules they need"),
        ("upgrade-schema", _upgrade_schema, "update the schema, if no rule is missing"),
    ):
        command = commands.add_parser(name, help=text, description=text, epilog=_EPILOG)
        command.add_argument("file", type=Path, metavar="FILE")
        command.set_defaults(run=run)
    text = "rewrite configuration files for the current version"
    upgrade = commands.add_parser("upgrade-config", help=text, description=text, epilog=_EPILOG)
    upgrade.add_argument("files", type=Path, nargs="+", metavar="FILE")
    upgrade.add_argument("--include-defaults", action="store_true", help="name every setting")
    upgrade.add_argument("--dry-run", action="store_true", help="show a diff, write nothing")
    upgrade.set_defaults(run=_upgrade_config)
    return parser


def _config_class(name: str) -> type[Versioned]:
    if ":" not in name:
        raise ConfigError(f"--class: expected package.module:Class or file.py:Class, got {name!r}")
    try:
        cls = import_named(name, "--class", TYPED)
    except UnknownWorld as error:
        raise ConfigError(f"--class: {error}") from None
    if not inspect.isclass(cls) or not issubclass(cls, Versioned):
        raise ConfigError(f"--class: expected a subclass of TrainConfig, got {name}: {cls!r}")
    return cls


def _dump_schema(cls: type[Versioned], options: argparse.Namespace) -> int:
    write_whole(options.file, dump_schema(schema_of(cls)))
    print(f"wrote {options.file}: {cls.__name__}, version {cls.version()}")
    return 0


def _check_schema(cls: type[Versioned], options: argparse.Namespace) -> int:
    schema = load_schema(options.file)
    changes = schema_changes(schema, cls)
    print(report(schema, cls, changes))
    return int(any(change.severity != "INFO" for change in changes))


def _upgrade_schema(cls: type[Versioned], options: argparse.Namespace) -> int:
    status = _check_schema(cls, options)
    if status:
        print(f"error: {options.file}: not updated; add the rules above first", file=sys.stderr)
        return status
    return _dump_schema(cls, options)


def _upgrade_config(cls: type[Versioned], options: argparse.Namespace) -> int:
    status = 0
    for path in options.files:
        try:
            upgrade = upgraded_file(cls, path, options.include_defaults)
            if upgrade.after == upgrade.before:
                print(f"{path}: nothing to do, it has version {upgrade.version}")
                continue
            if options.dry_run:
                before, after = upgrade.before.splitlines(), upgrade.after.splitlines()
                diff = difflib.unified_diff(before, after, str(path), str(path), lineterm="")
                print(*diff, sep="\n")
            else:
                write_whole(path, upgrade.after)
        except ConfigError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
            continue
        would = "would be upgraded" if options.dry_run else "upgraded"
        lost = "; comments inside it are lost" if upgrade.loses_comments else ""
        print(f"{path}: {would} from version {upgrade.version} to {cls.version()}{lost}")
    return status
