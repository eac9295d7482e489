"""The command `enn eval`."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from enn_trainer.check_command import positive
from enn_trainer.command import USAGE_ERROR, OneLineParser
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.eval_config import EvalEnvConfig, EvalSuiteConfig, all_suites
from enn_trainer.eval_report import EvalProgress, refuse_unwritable, report, table, write_report
from enn_trainer.evaluate import create_opponents, evaluate
from enn_trainer.load_world import envs_by_id, make_world
from enn_trainer.opponents import create_opponent, space_differences
from enn_trainer.play_command import parse_kwargs
from enn_trainer.saved_run import SavedRun, read_saved_run
from enn_trainer.video import require_writer
from entity_env.errors import EntityEnvError

DEFAULT_EPISODES = 256
MOST_ENVS = 256
"""More at once hardly make it faster."""

_EPILOG = """\
The agent plays whole episodes in the world that it was trained in, or in --env; it samples its
actions, or takes the most probable ones with --deterministic. Against an --opponent it has the
environments with even indices (the first side of each match), and only these count. The same
command gives the same numbers, whatever --processes is.

examples:
  enn eval runs/mines --episodes 1000 --suite nmines=5 --suite nmines=10,nrobots=4
  enn eval runs/duel --opponent random
  enn eval runs/orchard --env orchard.py:Orchard --video orchard.gif"""


def eval_command(arguments: Sequence[str]) -> int:
    """`enn eval`: measure the agent of a checkpoint.

    Returns:
        0 if it was measured, 1 if the environment fails or episodes did not end, 2 for a mistake
        in the arguments.
    """
    options = _parser().parse_args(arguments)
    try:
        saved = read_saved_run(Path(options.checkpoint))
        config = _config(saved.config, options)
        assert config.eval is not None
        path = options.json or saved.path.parent / f"eval-step-{saved.step:012d}.json"
        refuse_unwritable(path, "--json")
        if options.video is not None:
            require_writer(options.video, "--video")
            refuse_unwritable(options.video, "--video")
        _refuse_other_world(saved, config, options.env)
        device = torch.device("cpu")
        opponents = create_opponents(config, create_opponent, saved, device)
        with EvalProgress() as progress:
            results = evaluate(
                config,
                envs_by_id,
                saved,
                opponents,
                device,
                watch=progress.watch,
                film=options.video,
            )
    except (ConfigError, CheckpointError) as error:
        print(f"error: {_as_typed(str(error))}", file=sys.stderr)
        return USAGE_ERROR
    except EntityEnvError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted, nothing was measured", file=sys.stderr)
        return 1
    table(results)
    write_report(path, report(saved.path, saved.step, config, results))
    print(f"written to {path}")
    unfinished = [f"{name or 'unnamed'}: {r.missing}" for name, r in results.items() if r.missing]
    if unfinished:
        print(
            f"error: episodes that were not over within {config.eval.max_steps} steps and are left "
            f"out ({', '.join(unfinished)}); raise --max-steps",
            file=sys.stderr,
        )
        return 1
    return 0


def _config(trained: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """The configuration of the run, with an evaluation as the arguments say."""
    env = trained.env
    if options.env is not None and options.env != env.id:
        env = dataclasses.replace(env, id=options.env)
    suites: dict[str, EvalSuiteConfig] = {}
    for text in options.suite:
        if text in suites:
            raise ConfigError(f"--suite: expected different ones, got {text} twice")
        kwargs = parse_kwargs(_pairs(text), "--suite")
        suites[text] = EvalSuiteConfig(env=EvalEnvConfig(kwargs=json.dumps(kwargs)))
    num_envs = options.num_envs or min(trained.rollout.num_envs, MOST_ENVS)
    evaluation = EvalConfig(
        episodes=options.episodes,
        max_steps=options.max_steps,
        num_envs=num_envs,
        processes=options.processes,
        deterministic=options.deterministic,
        seed=options.seed,
        opponent=options.opponent,
        suites=suites,
    )
    # What is recorded and tracked is the run's.
    return dataclasses.replace(
        trained,
        env=env,
        eval=evaluation,
        capture_samples=None,
        capture_logits=False,
        capture_samples_subsample=1,
    )


def _pairs(text: str) -> list[str]:
    """The parts between commas, but for those inside brackets and quotes."""
    parts, depth, quoted = [""], 0, False
    for char in text:
        quoted ^= char == '"'
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _refuse_other_world(saved: SavedRun, config: TrainConfig, given: str | None) -> None:
    """Say what to do if the world is not the one of the agent."""
    assert config.eval is not None
    for name, suite in all_suites(config.eval, config.env):
        hint = "" if given or name else "; if it was trained in another one, name that with --env"
        world_name = suite.env.id
        what = f"--env: {world_name}" if given else f"env.id: {world_name}, as the checkpoint says,"
        try:
            world = make_world(
                suite.env.id,
                json.loads(suite.env.kwargs),
                f"--suite {name}" if name else "env.kwargs",
                "--env" if given else "env.id",
            )
        except ConfigError as error:
            raise ConfigError(*(f"{problem}{hint}" for problem in error.problems)) from None
        different = space_differences(
            saved.obs_space, saved.action_space, world.obs_space(), world.action_space()
        )
        world.close()
        if different:
            what = f"--suite {name}" if name else what
            raise ConfigError(f"{what} is another world: {'; '.join(different)}{hint}")


def _as_typed(message: str) -> str:
    """Settings by the names that they have on the command line."""
    for setting, option in (
        ("eval.opponent", "--opponent"),
        ("eval.num_envs", "--num-envs"),
        ("eval.capture_videos", "--video"),
        ("eval.suites", "--suite"),
    ):
        message = message.replace(setting, option)
    return message


def _not_negative(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {number}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn eval",
        description="Measure the agent of a checkpoint.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a run's folder")
    parser.add_argument("--opponent", metavar="PATH", help='a checkpoint, or "random"')
    parser.add_argument(
        "--episodes",
        type=positive,
        default=DEFAULT_EPISODES,
        metavar="N",
        help=f"of each suite, {DEFAULT_EPISODES} if not given",
    )
    parser.add_argument(
        "--suite",
        action="append",
        default=[],
        metavar="KEY=VALUE[,...]",
        help="measure with these arguments of the environment as well; may be repeated",
    )
    parser.add_argument(
        "--env", metavar="ENV", help="file.py:Name, package.module:Name, or one of `enn envs`"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="take the most probable action"
    )
    parser.add_argument("--seed", type=_not_negative, metavar="N", help="else that of the run")
    parser.add_argument("--num-envs", type=positive, metavar="N", help="that run side by side")
    parser.add_argument("--processes", type=positive, default=1, metavar="N", help="1 if not given")
    parser.add_argument(
        "--max-steps",
        type=positive,
        default=EvalConfig.max_steps,
        metavar="N",
        help="in each environment, then it is given up",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="else eval-step-....json beside the checkpoint"
    )
    parser.add_argument("--video", type=Path, metavar="FILE", help="the first episodes: .mp4, .gif")
    return parser
