"""The command `enn train`."""

import signal
from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser, line_with_trust, run_parser
from enn_trainer.cli.typed_settings import parse_typed
from enn_trainer.config import TrainConfig
from enn_trainer.config.help import hps_info
from enn_trainer.runtime.interrupt import ended_by


def parser() -> OneLineParser:
    """Return the parser of `enn train`."""
    return run_parser("enn train")


def train_command(
    arguments: Sequence[str], program: str = "enn train", trusting: str | None = None
) -> int:
    """Run `enn train`: train in the environment of `env.id` or of the first argument.

    Args:
        arguments: arguments without the name of the program.
        program: name of the program, for the usage.
        trusting: command line with `--trust` for messages, if another command was typed.
    """
    options = parse_typed(run_parser(program), arguments, TrainConfig)
    if options.hps_info is not None:
        print(hps_info(TrainConfig, options.hps_info or None))
        return 0
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.train import train_as_typed  # imports PyTorch

    return train_as_typed(arguments, program, trusting or line_with_trust(program, arguments))
