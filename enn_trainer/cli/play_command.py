"""The command `enn play`."""

import random
import signal
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.cli.arguments import OneLineParser, not_negative, positive
from enn_trainer.cli.load_world import load_world, make_world, samplers_of
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.runtime.interrupt import ended_by
from enn_trainer.runtime.start_folder import located, paths_from
from enn_trainer.runtime.trust import TYPED, bot_class
from entity_env.bot import Bot
from entity_env.errors import InvalidSampler
from entity_env.match import match_of, world_of
from entity_env.named_world import is_bot_name
from entity_env.play.game import Agent, play_by_hand
from entity_env.play.menus import HELP
from entity_env.vec.variation import Variation, check_parameters

_EPILOG = f"""\
input:
{HELP}

With --agent each choice is listed with its probability, and Enter takes the most probable one. In a
match you play all sides in turn, or only --side; then the agent plays the other sides and samples
its actions. The agent can be a bot, file.py:Name or module:Name.

examples:
  enn play Minefield
  enn play MineSweeper orbital_cannon=true nmines=3 --record mines.rec
  enn play Minefield --vary 'max_mines=int 0 20' --seed 3
  enn play Duel --agent runs/duel --side 0
  enn play Duel --agent bots.py:Greedy --side 0"""


def parser() -> OneLineParser:
    """Return the parser of `enn play`."""
    description = "Play an environment by hand."
    parser = OneLineParser(prog="enn play", description=description, epilog=_EPILOG)
    parser.world()
    parser.option("--agent", "CHECKPOINT", "agent or bot that gives advice")
    parser.option("--side", "N", "play only this side of a match", type=int)
    parser.vary()
    parser.option("--record", "FILE", "record to FILE; append if it exists", type=Path)
    parser.option("--episodes", "N", "stop after N (default: ask after each)", type=positive)
    parser.option("--seed", "N", "random seed of the episodes (default: random)", type=not_negative)
    return parser


def play_command(arguments: Sequence[str]) -> None:
    """Run `enn play`: play an environment by hand.

    Raises:
        ConfigError, CheckpointError, EntityEnvError: a mistake in the arguments, or the environment
            or the recording fails.
    """
    options = parser().parse_intermixed_args(arguments)

    # The environment, the agent and the recording.
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    record: Path | None = options.record
    if record is not None and (record.is_dir() or not record.parent.is_dir()):
        raise ConfigError(f"--record: expected a file in a folder that exists, got {record}")
    to = None if record is None else record.absolute()
    agent: Agent | type[Bot] | None = None
    samplers = samplers_of(options.vary)
    with paths_from(Path.cwd()):
        kwargs = parse_kwargs([*options.kwargs, *options.env_kwargs], "KEY=VALUE")
        if both := sorted(samplers.keys() & kwargs.keys()):
            expected = "arguments that are not given as KEY=VALUE"
            raise ConfigError(f"--vary: expected {expected}, got {', '.join(both)}")
        world = make_world(options.env, kwargs, "KEY=VALUE", trust=TYPED)
        create = load_world(options.env, kwargs, "KEY=VALUE", trust=TYPED)
        vary = Variation.of(samplers)
        try:
            check_parameters(world_of(match_of(world)), create, vary)
        except InvalidSampler as error:
            raise ConfigError(f"--vary: {error}") from None
        if options.agent is not None and is_bot_name(options.agent):
            agent = bot_class(options.agent, "--agent", TYPED)
        elif options.agent is not None:
            with ended_by(signal.SIGINT):
                from enn_trainer.cli.work.side_agents import adviser  # imports PyTorch

            try:
                agent = adviser(located(options.agent), seed, world)
            except CheckpointError as error:
                raise CheckpointError(f"--agent: {error}") from None

    # Play.
    print("? lists the input, q quits")
    try:
        played = play_by_hand(
            lambda **drawn: create(**drawn) if drawn else world,
            input,
            print,
            seed=seed,
            episodes=options.episodes,
            agent=agent,
            side=options.side,
            record=to,
            vary=vary if samplers else None,
        )
    except InvalidSampler as error:
        raise ConfigError(f"--vary: {error}") from None

    # Report.
    print()
    if played:
        sides = zip(*(episode.returns for episode in played), strict=True)
        means = ", ".join(f"{sum(returns) / len(played):.4g}" for returns in sides)
        print(f"episodes: {len(played)}, mean return: {means}")
    else:
        print("no episode was finished")
    print(f"--seed {seed} repeats these episodes")
    if record is not None:
        print(f"recorded in {record}; the same --record appends to it")
