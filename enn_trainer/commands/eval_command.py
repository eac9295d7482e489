"""The command `enn eval`."""

import argparse
import dataclasses
import json
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from enn_trainer.checkpoints.saved_run import SavedRun, read_saved_run
from enn_trainer.command import OneLineParser, failed
from enn_trainer.commands.check_command import positive
from enn_trainer.commands.eval_report import (
    EvalProgress,
    report,
    writable,
    write_and_print,
)
from enn_trainer.commands.load_world import envs_by_id, make_any_world, parse_kwargs
from enn_trainer.commands.trust import NamedEnv, code_in, find_untrusted, line_with_trust
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import EvalEnvConfig, EvalSuiteConfig, all_suites, with_env
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.evaluation.evaluator import Evaluator, differences
from enn_trainer.evaluation.opponents import create_opponent
from enn_trainer.evaluation.video import require_writer
from enn_trainer.interrupt import StoppedAtOnce, stopped_by
from enn_trainer.lanes import Lanes
from enn_trainer.start_folder import paths_from
from entity_env.errors import EntityEnvError
from entity_env.match import Match

DEFAULT_EPISODES = 256
MOST_ENVS = 256
"""More environments at once are hardly faster."""

_EPILOG = """\
The agent plays whole episodes in the world that it was trained in, or in --env; it samples its
actions, or takes the most probable ones with --deterministic. Against an --opponent it has the
environments with even indices (in a match of two the first side), and only these count. The same
command gives the same numbers, whatever --processes is.

examples:
  enn eval runs/mines --episodes 1000 --suite nmines=5 --suite nmines=10,nrobots=4
  enn eval runs/duel --opponent random
  enn eval runs/orchard --env orchard.py:Orchard --env-kwargs trees=9 --video orchard.gif"""


def eval_command(arguments: Sequence[str]) -> int:
    """Run `enn eval`: evaluate the agent of a checkpoint.

    Returns:
        0, 1 if the environment fails, episodes did not end, or a file could not be written, 2 for
        a mistake in the arguments.
    """
    options = _parser().parse_args(arguments)
    options.line = line_with_trust("enn eval", arguments)
    try:
        # Signals raise, so that incomplete files are removed.
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            return _evaluate(options)
    except (ConfigError, CheckpointError) as error:
        return failed(error, _as_typed(error))
    except EntityEnvError as error:
        return failed(error)
    except StoppedAtOnce:
        print("error: interrupted, nothing was measured", file=sys.stderr)
        return 1


def _evaluate(options: argparse.Namespace) -> int:
    """Evaluate, write the report and print it; return the exit status."""
    # The configuration, and the files to write.
    saved = read_saved_run(Path(options.checkpoint))
    saved_path = saved.path.resolve()  # before an environment can change the folder
    config = _config(saved.config, options)
    assert config.eval is not None
    if not options.trust:
        _check_trusted(saved, config, options)
    # Beside the save, also where the path is `.`.
    beside = saved_path.parent / f"eval-step-{saved.step:012d}.json"
    path = writable(beside if options.json is None else options.json, "--json")
    if options.json is None:
        path = beside  # a link there is replaced: it may lead anywhere, and nobody typed it
    film = None
    if options.video is not None:
        require_writer(options.video, "--video")
        film = writable(options.video, "--video")
        if film.suffix != options.video.suffix:  # a link
            require_writer(film, "--video")
    # Evaluate.
    _fit_num_envs(config.eval, saved.config, options, _sides(saved, config, options))
    lanes, device = Lanes.of(saved.agent), torch.device("cpu")
    evaluator = Evaluator(config, envs_by_id, create_opponent, saved, device, lanes)
    if film is not None:
        evaluator.check_pictures()
    try:
        with lanes, lanes.at_work(), EvalProgress() as progress:
            results = evaluator.measure(watch=progress.watch, film=film)
    except (ConfigError, CheckpointError, EntityEnvError):
        raise
    except Exception as error:  # of the environment
        notes = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        print("error:", ": ".join(" ".join(n.split()) for n in notes if n), file=sys.stderr)
        return 1
    # Report.
    problems = [
        _as_typed(problem)
        for problem in write_and_print(
            path, report(saved_path, saved.step, config, results), results
        )
    ]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def _check_trusted(saved: SavedRun, config: TrainConfig, options: argparse.Namespace) -> None:
    """Raise if the checkpoint names code that the command line does not."""
    trained = saved.config.env
    is_other = config.env.id != trained.id  # then it has none of the saved arguments
    saved_kwargs = {} if is_other else json.loads(trained.kwargs)
    typed = _typed_kwargs(options)
    kwargs = {name: value for name, value in saved_kwargs.items() if name not in typed}
    untrusted = find_untrusted([NamedEnv(("env",), config.env.id, kwargs)], {options.env}, [])
    if untrusted is not None:
        raise untrusted.refusal(saved.path, _remedy(kwargs, options))


def _remedy(kwargs: Mapping[str, Any], options: argparse.Namespace) -> str:
    """Return advice for a checkpoint that names code, in its environment or these arguments."""
    trust = f"if you trust the save, type: {options.line}"
    if options.env is None:
        return f"{trust}; if it was trained in an environment of yours, name that with --env"
    names = [name for name, value in kwargs.items() if any(code_in({name: value}))]
    if not all(map(str.isidentifier, names)):  # `--env-kwargs` gives no argument such a name
        return trust
    return f"give --env-kwargs {','.join(f'{name}=...' for name in names)}; or, {trust}"


def _config(trained: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """Return the configuration of the run with the evaluation of the command line."""
    kwargs = _typed_kwargs(options)
    env = with_env(trained.env, EvalEnvConfig(json.dumps(kwargs), options.env))
    suites: dict[str, EvalSuiteConfig] = {}
    for text in options.suite:
        name = text.strip().replace("/", "_")  # it becomes a part of tags and file names
        if name in suites:
            raise ConfigError(f"--suite: expected different ones, got {text} twice")
        changes = parse_kwargs(_pairs(text), "--suite")
        suites[name] = EvalSuiteConfig(env=EvalEnvConfig(kwargs=json.dumps(changes)))
    evaluation = EvalConfig(
        episodes=options.episodes,
        max_steps=options.max_steps,
        num_envs=options.num_envs or _num_envs(trained, options),
        processes=options.processes,
        deterministic=options.deterministic,
        seed=options.seed,
        opponent=options.opponent,
        suites=suites,
    )
    # Recordings are those of the run, not of this command.
    return dataclasses.replace(
        trained,
        env=env,
        eval=evaluation,
        capture_samples=None,
        capture_logits=False,
        capture_samples_subsample=1,
    )


def _typed_kwargs(options: argparse.Namespace) -> dict[str, Any]:
    if not options.env_kwargs:
        return {}
    return parse_kwargs(_pairs(options.env_kwargs), "--env-kwargs")


def _num_envs(trained: TrainConfig, options: argparse.Namespace, sides: int = 1) -> int:
    """Return the number of environments: that of training, if each has an episode that counts."""
    each = 1 if options.opponent is None else 2  # environments of which one counts
    most: int = min(trained.rollout.num_envs, MOST_ENVS, each * options.episodes)
    return max(each if sides == 1 else sides, most - most % sides)


def _fit_num_envs(
    evaluation: EvalConfig,
    trained: TrainConfig,
    options: argparse.Namespace,
    sides: Mapping[str, int],
) -> None:
    """Set the number of environments of each suite to a multiple of the sides of its match.

    Args:
        evaluation: settings of the evaluation; its suites are changed.
        trained: configuration of the run.
        options: parsed arguments.
        sides: number of sides of the match of each suite; 1 for an environment.

    Raises:
        ConfigError: `--num-envs` does not fit.
    """
    for name, n in sides.items():
        if options.num_envs is None:
            settings = evaluation.suites[name] if name else evaluation
            settings.num_envs = _num_envs(trained, options, n)
        elif options.num_envs % n:
            where = f" in --suite {name}" if name else ""
            raise ConfigError(
                f"--num-envs: expected multiples of {n}, the sides of a match{where}, got "
                f"{options.num_envs}; leave it out, then each suite has as many as fit"
            )


def _pairs(text: str) -> list[str]:
    """Split a text at commas that are not within brackets or quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _sides(saved: SavedRun, config: TrainConfig, options: argparse.Namespace) -> dict[str, int]:
    """Return the number of sides of the match of each suite, 1 for an environment.

    Raises:
        ConfigError: its spaces are not those of the agent.
    """
    assert config.eval is not None
    # Make the world of each suite, and compare its spaces.
    given, sides = options.env, {}
    for name, suite in all_suites(config.eval, config.env):
        hint = "" if given or name else "; if it was trained in another one, name that with --env"
        world_name = suite.env.id
        what = f"--env: {world_name}" if given else f"env.id: {world_name}, as the checkpoint says,"
        arguments = "--env-kwargs" if options.env_kwargs else "env.kwargs"
        try:
            world = make_any_world(
                suite.env.id,
                json.loads(suite.env.kwargs),
                f"--suite {name}" if name else arguments,
                "--env" if given else "env.id",
            )
        except ConfigError as error:
            raise ConfigError(*(f"{problem}{hint}" for problem in error.problems)) from None
        different = differences(saved, world)
        world.close()
        if different:
            what = f"--suite {name}" if name else what
            raise ConfigError(f"{what} is another world: {'; '.join(different)}{hint}")
        sides[name] = world.num_sides if isinstance(world, Match) else 1

    # Another world does not get the arguments of the run.
    trained = saved.config.env
    if config.env.id != trained.id and json.loads(trained.kwargs) and not options.env_kwargs:
        note = f"{config.env.id} has its own arguments, not those of the run, {trained.kwargs}"
        print(f"note: --env: {note}; --env-kwargs gives it others", file=sys.stderr)
    return sides


def _as_typed(error: object) -> str:
    """Return a message in which the settings that it begins with are options of the command."""
    problems = error.problems if isinstance(error, ConfigError) else [str(error)]
    typed = []
    for problem in problems:
        for setting, option in _OPTIONS.items():
            problem = re.sub(rf"^((?:rollout\.num_envs, )?){re.escape(setting)}", option, problem)
        typed.append(" ".join(problem.splitlines()))
    return "; ".join(typed)


_OPTIONS = {
    "eval.opponent": "--opponent",
    "eval.num_envs": "--num-envs",
    "eval.capture_videos": "--video",
    "eval.suites": "--suite",
}


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn eval",
        description="Evaluate the agent of a checkpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # The agent, its opponent and the episodes.
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder")
    parser.add_argument("--opponent", metavar="PATH", help='a checkpoint, or "random"')
    parser.add_argument(
        "--episodes",
        type=positive,
        default=DEFAULT_EPISODES,
        metavar="N",
        help=f"episodes of each suite (default: {DEFAULT_EPISODES})",
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="KEY=VALUE[,...]",
        help="also evaluate with these arguments of the environment; may be repeated",
    )

    # The environment.
    parser.add_argument(
        "--env", metavar="ENV", help="file.py:Name, package.module:Name, or one of `enn envs`"
    )
    parser.add_argument(
        "--env-kwargs",
        metavar="KEY=VALUE[,...]",
        help="its arguments: override those of training, or replace all with another --env",
    )
    parser.add_argument(
        "--trust", action="store_true", help="import the environment that the checkpoint names"
    )

    # Choices, speed and output.
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most probable action"
    )
    parser.add_argument(
        "--seed", type=_not_negative, metavar="N", help="random seed (default: the run's)"
    )
    parser.add_argument(
        "--num-envs", type=positive, metavar="N", help="number of parallel environments"
    )
    parser.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="number of worker processes (default: 1)",
    )
    parser.add_argument(
        "--max-steps",
        type=positive,
        default=EvalConfig.max_steps,
        metavar="N",
        help=f"maximal steps in each environment (default: {EvalConfig.max_steps})",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="report (default: eval-step-....json beside the checkpoint)",
    )
    parser.add_argument(
        "--video", type=Path, metavar="FILE", help="video of the first episodes: .mp4, .gif"
    )
    return parser
