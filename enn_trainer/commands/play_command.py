"""The command `enn play`."""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.command import OneLineParser, failed
from enn_trainer.commands.check_command import positive
from enn_trainer.commands.load_world import make_world, parse_kwargs
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.load_agent import load_agent
from enn_trainer.start_folder import located, paths_from
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError
from entity_env.match import Match
from entity_env.play_by_hand import Agent, PlayedEpisode, play_by_hand
from entity_env.typed_choices import HELP

_EPILOG = f"""\
what can be typed:
{HELP}

With --agent its probabilities stand beside the choices, and Enter takes the most probable one. In a
match you play all sides in turn, or --side alone; then the agent plays the others and draws its
actions by their probabilities.

examples:
  enn play Minefield
  enn play MineSweeper orbital_cannon=true nmines=3 --record mines.rec
  enn play Duel --agent runs/duel --side 0"""


def play_command(arguments: Sequence[str]) -> int:
    """`enn play`: play an environment by hand.

    Returns:
        0 after playing, 1 if the environment or the recording fails, 2 for a mistake in the
        arguments.
    """
    options = _parser().parse_intermixed_args(arguments)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    try:
        _refuse_unwritable(options.record)
        record = None if options.record is None else options.record.absolute()
        with paths_from(Path.cwd()):
            world = make_world(options.env, parse_kwargs(options.kwargs, "KEY=VALUE"), "KEY=VALUE")
            agent = None if options.agent is None else _agent(options.agent, world, seed)
        print("? tells what can be typed, q quits")
        played = play_by_hand(
            lambda: world,
            input,
            print,
            seed=seed,
            episodes=options.episodes,
            agent=agent,
            side=options.side,
            record=record,
        )
    except (ConfigError, CheckpointError, EntityEnvError) as error:
        return failed(error)
    print(_summary(played, options.record, seed))
    return 0


def _agent(path: str, world: Environment | Match, seed: int) -> Agent:
    try:
        agent = load_agent(located(path), seed=seed, env=world)
    except CheckpointError as error:
        raise CheckpointError(f"--agent: {error}") from None
    return agent.act


def _refuse_unwritable(record: Path | None) -> None:
    if record is not None and (record.is_dir() or not record.parent.is_dir()):
        raise ConfigError(f"--record: expected a file in a folder that exists, got {record}")


def _summary(played: Sequence[PlayedEpisode], record: Path | None, seed: int) -> str:
    """What was done, and what can be typed next."""
    lines = ["", "no episode was played to its end"]
    if played:
        means = [sum(side) / len(played) for side in zip(*(e.returns for e in played), strict=True)]
        mean = ", ".join(f"{value:.4g}" for value in means)
        lines[1] = f"episodes: {len(played)}, mean return: {mean}"
    lines.append(f"--seed {seed} shows the same episodes again")
    if record is not None:
        lines.append(f"recorded in {record}; the same --record adds to it")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn play",
        description="Play an environment by hand.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "env", metavar="ENV", help="file.py:Name, package.module:Name, or one of `enn envs`"
    )
    parser.add_argument("kwargs", nargs="*", metavar="KEY=VALUE", help="arguments of ENV")
    parser.add_argument("--agent", metavar="CHECKPOINT", help="whose advice is shown")
    parser.add_argument("--side", type=int, metavar="N", help="the only side of a match you play")
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="record what is played; a file is continued"
    )
    parser.add_argument(
        "--episodes", type=positive, metavar="N", help="how many; else you are asked after each"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the episodes; else drawn")
    return parser
