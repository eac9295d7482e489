"""The command `enn clone`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.clone import CloneResult, clone
from enn_trainer.clone_config import CloneRunConfig
from enn_trainer.command import USAGE_ERROR, OneLineParser
from enn_trainer.config_help import hps_info
from enn_trainer.config_io import load_config
from enn_trainer.errors import CheckpointError, ConfigError, NotFiniteError
from entity_env.errors import EntityEnvError

_EPILOG = """\
Settings are those of enn train, for the network and for the run that continues from the clone, and
those that begin with clone. such as clone.epochs=5; --hps-info lists them.

examples:
  enn clone mine.rec env.id=Minefield --checkpoint-dir runs/mine
  enn train --checkpoint-dir runs/mine"""


def clone_command(arguments: Sequence[str]) -> int:
    """`enn clone`: train a network to do what was done in recordings.

    Returns:
        0 after cloning, also if it was asked to stop; 1 if it fails or a recording is damaged; 2
        for a mistake in the arguments; 130 if it is interrupted while it reads, or twice.
    """
    options = _parser().parse_intermixed_args(arguments)
    if options.hps_info is not None:
        print(hps_info(CloneRunConfig, options.hps_info or None))
        return 0
    files = [a for a in options.arguments if "=" not in a or Path(a).is_file()]
    overrides = [a for a in options.arguments if a not in files]
    try:
        if options.checkpoint_dir is None:
            raise ConfigError("--checkpoint-dir: expected a folder to save the clone in, got none")
        if options.config and not options.config.is_file():
            raise ConfigError(f"--config: expected a configuration file, got {options.config}")
        config = load_config(CloneRunConfig, options.config, overrides)
        result = clone(files, config, options.checkpoint_dir)
    except (ConfigError, CheckpointError) as error:
        print(f"error: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (NotFiniteError, EntityEnvError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was saved", file=sys.stderr)
        return 130
    print(_summary(result, options.checkpoint_dir, config.env.id))
    return 0


def _summary(result: CloneResult, run_dir: Path, env_id: str) -> str:
    """What came of it, and what can be typed next."""
    lines = [f"{'interrupted, ' if result.interrupted else ''}saved {result.checkpoint}"]
    if result.test is not None:
        lines.append(f"on episodes set apart: {result.test.in_words()}")
    lines += ["", "next:", f"  enn train --checkpoint-dir {run_dir} env.id={env_id}"]
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn clone",
        description="Train a network to do what was done in recordings.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RECORDING | FIELD=VALUE",
        help="files of one world, also of entity-gym; and settings, such as clone.loss=kl",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a configuration file (RON)")
    parser.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="save the clone here; a new folder"
    )
    parser.add_argument(
        "--hps-info", nargs="?", const="", metavar="QUERY", help="list the settings, or search them"
    )
    return parser
