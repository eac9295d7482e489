"""The command `enn resume`."""

from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser, add_ways_to_run, line_with_trust
from enn_trainer.cli.train_command import train_command
from enn_trainer.cli.typed_settings import parse_typed
from enn_trainer.config import TrainConfig

_EPILOG = """\
The run continues from its newest valid save, with its settings and the overrides given here; the
same as enn train --checkpoint-dir RUN --resume.

examples:
  enn resume runs/xor total_timesteps=2000"""


def parser() -> OneLineParser:
    """Return the parser of `enn resume`."""
    description = "Continue a run in its folder."
    parser = OneLineParser(prog="enn resume", description=description, epilog=_EPILOG)
    parser.run("run", "RUN", "the folder of a run")
    settings = "settings to change, such as total_timesteps=2000000"
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE", help=settings, default=[])
    add_ways_to_run(parser)
    return parser


def resume_command(arguments: Sequence[str]) -> int:
    """Run `enn resume`: continue a run, with changed settings if given."""
    options = parse_typed(parser(), arguments, TrainConfig)
    flags = ("trust", "dry_run", "print_config", "verbose")
    flag_arguments = [f"--{name.replace('_', '-')}" for name in flags if vars(options)[name]]
    words = ["--checkpoint-dir", str(options.run), "--resume", *flag_arguments, *options.overrides]
    return train_command(words, "enn resume", line_with_trust("enn resume", arguments))
