"""The command `enn envs`."""

from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser
from entity_env.examples import ENV_REGISTRY

_EPILOG = """\
examples:
  enn envs"""


def parser() -> OneLineParser:
    """Return the parser of `enn envs`."""
    about = "List the worlds that ship with this program."
    return OneLineParser(prog="enn envs", description=about, epilog=_EPILOG)


def envs_command(arguments: Sequence[str]) -> None:
    """Run `enn envs`: list the environments that ship with the project."""
    parser().parse_args(arguments)
    for name, env in ENV_REGISTRY.items():
        print(f"{name:20}{(env.__doc__ or '').strip().splitlines()[0]}")
