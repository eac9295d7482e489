"""Evaluation of the agent of a checkpoint, as `enn eval` reports it."""

import argparse
import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import printable, show_lines, show_table
from enn_trainer.checkpoints.saved_run import SavedRun, read_saved_run
from enn_trainer.cli.arguments import is_writable_at, writable, write_json
from enn_trainer.cli.by_value import (
    RETURN,
    check_options,
    draw_by_value,
    plain_by_value,
    show_by_value,
)
from enn_trainer.cli.load_world import make_any_world, samplers_of, trusted_envs
from enn_trainer.cli.playing_options import BASELINES, with_option_names
from enn_trainer.cli.trust import check_trusted
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.config import EvalConfig, RolloutConfig, TrainConfig
from enn_trainer.config.eval_config import (
    EvalEnvConfig,
    EvalSuiteConfig,
    all_suites,
    is_address,
    with_env,
)
from enn_trainer.evaluation.eval_metrics import SCORE, with_interval
from enn_trainer.evaluation.evaluation import EpisodeCapture, SuiteResult, main_metrics
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.evaluation.opponents import NamedOpponents
from enn_trainer.evaluation.remote import RayEvaluator, cluster
from enn_trainer.evaluation.suite_envs import space_differences
from enn_trainer.evaluation.video import VideoFile, require_writer
from enn_trainer.experience.episodes import Measured
from enn_trainer.runtime.execution import ThreadPool
from enn_trainer.runtime.trust import Trust
from enn_trainer.selfplay.league import POOL
from enn_trainer.tracking.progress import format_duration
from enn_trainer.tracking.track import flatten_config
from enn_trainer.viewer.played import ReplaySettings, SuiteReplay
from enn_trainer.viewer.replay_format import check_replaceable
from entity_env.environment import Environment
from entity_env.errors import EntityEnvError
from entity_env.match import Match
from entity_env.vec.vec_env import VecEnv

MOST_ENVS = 256
"""Default limit of parallel environments; more are hardly faster."""
LINE_EVERY_S = 5.0
UNNAMED = "as trained"


def evaluate(options: argparse.Namespace) -> int:
    """Evaluate, write and print the report, and return the exit status."""
    # The configuration, and the files to write.
    check_ray(options)
    varied = samplers_of(options.vary)
    by, png = check_options(options.by, options.png, varied)
    saved = read_saved_run(Path(options.checkpoint), with_pool=options.opponent == POOL)
    saved_path = saved.path.resolve()  # before an environment can change the folder
    config = config_of(saved.config, options, varied)
    trust = check_trusted(saved, config, options)
    # The default report is in the folder of the save, also if the path is `.`.
    label = f"opponent-{saved.member}" if saved.member else f"step-{saved.step:012d}"
    default_path = saved_path.parent / f"eval-{label}.json"
    path: Path | None = None
    if options.out is not None:
        path = writable(options.out, "--out")
    elif is_writable_at(default_path):
        writable(default_path, "--out")
        path = default_path  # not through a link, which may lead anywhere
    captures: list[EpisodeCapture] = []
    if options.video is not None:
        require_writer(options.video, "--video")
        video = writable(options.video, "--video")
        require_writer(video, "--video")  # a link may lead to another suffix
        captures.append(VideoFile(video))
    if options.replay is not None:
        if options.replay.suffix != ".html":
            raise ConfigError(f"--replay: expected a file named .html, got {options.replay}")
        page = writable(options.replay, "--replay")
        check_replaceable(page)
        captures.append(SuiteReplay(ReplaySettings(page)))

    # Evaluate.
    world = fit_num_envs(saved, config, options, trust)
    threads, device = ThreadPool.of(saved.agent), torch.device("cpu")
    make_envs, make_opponent = trusted_envs(trust), NamedOpponents(trust)
    evaluator = Evaluator(config, make_envs, make_opponent, saved, device, threads)
    evaluator.by_episode = by is not None
    if options.video is not None:
        evaluator.check_rendering()
    note_on_opponent(world, options)
    try:
        with threads, threads.at_work(), eval_progress() as watch:
            if options.ray is None:
                results = evaluator.measure(watch=watch, captures=captures)
            else:
                with cluster(options.ray, config, "--ray") as ray:
                    results = evaluator.measure_remotely(RayEvaluator(ray, device), watch)
    except (ConfigError, CheckpointError, EntityEnvError):
        raise
    except Exception as error:  # of the environment
        notes = [type(error).__name__, str(error), *getattr(error, "__notes__", [])]
        print("error:", ": ".join(" ".join(n.split()) for n in notes if n), file=sys.stderr)
        return 1

    # Report.
    content = report(saved_path, saved.step, config, results)
    if saved.member:
        content["opponent"] = saved.member
    if by is not None:
        for name, result in results.items():
            content["suites"][name]["by"] = plain_by_value(result.played, by)
    problems = write_and_print(path, content, results, options.json, by, options.all)
    if by is not None and png is not None:
        try:
            draw_by_value(results, by, UNNAMED, png)
        except OSError as error:
            problems.append(f"--png: {png} cannot be written: {error.strerror}")
    for problem in problems:
        print(f"error: {with_option_names(problem)}", file=sys.stderr)
    return 1 if problems else 0


def check_ray(options: argparse.Namespace) -> None:
    """Raise if `--ray` is not the address of a cluster, or if there are options that need files."""
    if options.ray is None:
        return
    if not is_address(options.ray):
        raise ConfigError(f"--ray: expected auto or HOST:PORT, got {options.ray}")
    for option in ("video", "replay"):
        if getattr(options, option) is not None:
            raise ConfigError(
                f"--{option}: cannot be combined with --ray, because workers of the cluster "
                "cannot write files here; remove one of them"
            )


def config_of(
    trained: TrainConfig, options: argparse.Namespace, vary: Mapping[str, str] = {}
) -> TrainConfig:
    """Return the configuration of a run with the evaluation of the command line.

    Args:
        trained: configuration of the run.
        options: options of the command.
        vary: samplers of arguments that vary between episodes.
    """
    kwargs = parse_kwargs(options.env_kwargs, "--env-kwargs")
    fixed = dataclasses.replace(trained.env, vary={})
    env = with_env(fixed, EvalEnvConfig(json.dumps(kwargs), options.env, vary={**vary}))
    suites: dict[str, EvalSuiteConfig] = {}
    for text in options.suite:
        name = text.strip().replace("/", "_")  # it becomes a part of tags and file names
        if name in suites:
            raise ConfigError(f"--suite: expected different ones, got {text} twice")
        changes = json.dumps(parse_kwargs(text, "--suite"))
        suites[name] = EvalSuiteConfig(env=EvalEnvConfig(kwargs=changes))
    same = ("episodes", "max_steps", "processes", "deterministic", "seed", "opponent")
    settings = {name: getattr(options, name) for name in same}
    num_envs = options.num_envs or _num_envs(trained, options)
    suites |= _baselines(suites, options)
    eval_env = env if env.vary else None
    evaluation = EvalConfig(**settings, num_envs=num_envs, suites=suites, env=eval_env)
    # Evaluations neither record nor follow the curriculum of the run.
    return dataclasses.replace(
        trained,
        env=env,
        eval=evaluation,
        rollout=with_cluster(trained.rollout, getattr(options, "ray", None)),
        curricula={},
        capture_samples=None,
        capture_logits=False,
        capture_samples_subsample=1,
    )


def with_cluster(rollout: RolloutConfig, address: str | None) -> RolloutConfig:
    """Set the address of the Ray cluster; None removes all settings of clusters."""
    if address is None:
        return dataclasses.replace(rollout, ray=None, ray_files=[], ray_env=None)
    return dataclasses.replace(rollout, ray=address)


def _baselines(
    suites: Mapping[str, EvalSuiteConfig], options: argparse.Namespace
) -> dict[str, EvalSuiteConfig]:
    """Return a suite for each pair of baseline and suite, including the unnamed suite, by name.

    Raises:
        ConfigError: a baseline conflicts with other options.
    """
    if "random" in options.baseline and options.opponent is not None:
        raise ConfigError(
            "--baseline random: expected no --opponent, because the random player plays all "
            "sides; use --opponent random to play against it"
        )
    if "greedy" in options.baseline and options.deterministic:
        raise ConfigError("--baseline greedy: expected no --deterministic, which does the same")
    return {
        f"{name} {baseline}".strip(): dataclasses.replace(suite, **BASELINES[baseline])
        for baseline in dict.fromkeys(options.baseline)
        for name, suite in [("", EvalSuiteConfig()), *suites.items()]
    }


def _num_envs(trained: TrainConfig, options: argparse.Namespace, sides: int = 1) -> int:
    """Return as many environments as in training, but no more than there are episodes."""
    agents = (
        1 if options.opponent is None else 2
    )  # with an opponent, half of the environments count
    return fitting_num_envs(trained, agents * options.episodes, sides, agents)


def fitting_num_envs(trained: TrainConfig, most: int, sides: int, agents: int) -> int:
    """Return a number of environments up to that of training, a multiple of `sides`."""
    most = min(trained.rollout.num_envs, MOST_ENVS, most)
    return max(agents if sides == 1 else sides, most - most % sides)


def fit_num_envs(
    saved: SavedRun, config: TrainConfig, options: argparse.Namespace, trust: Trust
) -> Environment | Match | VecEnv:
    """Set the number of environments of each suite to a multiple of the sides of its match.

    Returns:
        The environment of the unnamed suite, closed.

    Raises:
        ConfigError: an environment has other spaces than the agent or does not accept its
            arguments, or `--num-envs` does not fit.
    """
    assert config.eval is not None
    trained, field, worlds = saved.config.env, "--env" if options.env else "env.id", {}
    for name, suite in list(all_suites(config.eval, config.env)):
        # Create the environment of the suite, and compare its spaces.
        what, hint = f"--env: {suite.env.id}", ""
        arguments = "--env-kwargs" if options.env_kwargs else "env.kwargs"
        if name:
            what = arguments = f"--suite {name}"
        elif not options.env:
            what = f"env.id: {suite.env.id}, named by the checkpoint,"
            hint = "; if the agent was trained in another environment, name it with --env"
        try:
            kwargs = json.loads(suite.env.kwargs)
            world = make_any_world(suite.env.id, kwargs, arguments, field, trust=trust)
        except ConfigError as error:
            raise ConfigError(*(f"{problem}{hint}" for problem in error.problems)) from None
        different = space_differences(saved, world)
        world.close()
        if different:
            raise ConfigError(f"{what} has other spaces: {'; '.join(different)}{hint}")

        # Its number of environments.
        worlds[name], num_sides = world, sides_of(world)
        if options.num_envs is None:
            settings = config.eval.suites[name] if name else config.eval
            settings.num_envs = _num_envs(saved.config, options, num_sides)
        elif options.num_envs % num_sides:
            why = "the sides of a match" + (f" in {what}" if name else "")
            expected = f"expected multiples of {num_sides}, {why}, got {options.num_envs}"
            hint = "omit it to choose a number for each suite"
            raise ConfigError(f"--num-envs: {expected}; {hint}")

    # Another environment does not get the arguments of the run.
    if config.env.id != trained.id and json.loads(trained.kwargs) and not options.env_kwargs:
        note = f"{config.env.id} does not get the arguments of the run, {trained.kwargs}"
        print(f"note: --env: {note}; set its arguments with --env-kwargs", file=sys.stderr)
    return worlds[""]


def sides_of(world: Environment | Match | VecEnv) -> int:
    """Return the number of sides of a match, 1 for other environments."""
    return world.num_sides if isinstance(world, Match) else 1


def note_on_opponent(world: Environment | Match | VecEnv, options: argparse.Namespace) -> None:
    """Print a note if an opponent is missing, or has no effect."""
    note = None
    if isinstance(world, Match) and options.opponent is None:
        advice = "to measure it against another player, add --opponent random"
        note = f"the agent plays all {world.num_sides} sides of a match; {advice}"
    elif isinstance(world, Environment) and options.opponent is not None:
        note = "--opponent: no effect, because the environment is no match"
    if note is not None:
        print(f"note: {note}", file=sys.stderr)


def table(
    results: Mapping[str, SuiteResult], console: Console | None = None, is_complete: bool = False
) -> None:
    """Print the results: a table on a terminal, plain columns otherwise.

    Args:
        results: results by suite.
        is_complete: print all metrics, also steps and entity counts.
        console: console to print to; standard output by default.
    """
    console = Console() if console is None else console
    rows = []
    for suite, result in results.items():
        title, num_episodes = suite or UNNAMED, str(result.episodes)
        metrics = {name: m for name, m in result.metrics.items() if m.count}
        scores = {n: against["score"] for n, against in result.opponents.items()}
        metrics |= {f"score against {n}": score for n, score in scores.items() if score.count}
        metrics = metrics if is_complete else main_metrics(metrics)
        for name, m in metrics.items():
            low, high = f"{m.min:.4g}", f"{m.max:.4g}"
            rows.append([title, name, with_interval(m), low, high, str(m.count), num_episodes])
        if not metrics:
            missing = f", {result.missing} did not end" if result.missing else ""
            show_lines([f"{title}: no results, because no episode counts{missing}"], console)
    # Scores, then the returns of all suites.
    rows.sort(key=lambda row: (not row[1].startswith(SCORE), row[1] != RETURN))
    columns = ("suite", "metric", "mean ± 95% ci", "min", "max", "values", "episodes")
    show_table(columns, rows, console, num_left=2, by_section=True)


def write_and_print(
    path: Path | None,
    content: Mapping[str, Any],
    results: Mapping[str, SuiteResult],
    as_json: bool = False,
    by: str | None = None,
    is_complete: bool = False,
) -> list[str]:
    """Write the report, then print the results; a closed pipe loses no result.

    Args:
        path: path of the report; None if the folder of the run is read-only.
        content: content of the report.
        results: results by suite.
        as_json: print the content instead of tables.
        by: argument to compare returns by, in an additional table.
        is_complete: print all metrics.

    Returns:
        Messages about problems.
    """
    problems = []
    # Write, then print.
    try:
        if path is not None:
            write_json(path, content)
    except OSError as error:
        problems.append(f"--out: {path} cannot be written: {error.strerror}")
    try:
        if as_json:
            print(json.dumps(content, indent=1))
        else:
            table(results, is_complete=is_complete)
            if by is not None:
                show_by_value(results, by, UNNAMED)
        if path is None:
            note = "no report written: the folder of the run is read-only; use --out FILE"
            print(note, file=sys.stderr)
        elif not problems and not as_json:
            print(printable(f"written to {path}", sys.stdout.encoding))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the exit flushes it again
        where = "nowhere" if path is None else f"in {path}"
        problems.append(f"standard output: {error.strerror}; the numbers are {where}")
    # Failed videos and replay pages, and unfinished episodes.
    for name, result in results.items():
        for problem in result.video_problem, result.page_problem:
            if problem is not None:
                problems.append(f"{problem} (suite: {name or UNNAMED})")
    unfinished = {name or "unnamed": r for name, r in results.items() if r.missing}
    if unfinished:
        limit = f"{next(iter(results.values())).max_steps} steps"
        left_out = ", ".join(f"{name}: {r.missing}" for name, r in unfinished.items())
        problem = f"episodes that did not end within {limit} and are left out ({left_out})"
        problems.append(f"{problem}; raise --max-steps")
    return problems


def report(
    path: Path, step: int, config: TrainConfig, results: Mapping[str, SuiteResult]
) -> dict[str, Any]:
    """Return results and settings of an evaluation as plain data for JSON.

    Args:
        path: path of the checkpoint.
        step: step of the checkpoint.
        config: configuration with the evaluation.
        results: results by suite.
    """
    assert config.eval is not None

    def finite(value: object) -> object:  # None for NaN and infinity, as the mean of no values
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def plain(metrics: Mapping[str, Measured]) -> dict[str, Any]:
        return {
            tag: {key: finite(value) for key, value in vars(m).items()}
            for tag, m in metrics.items()
        }

    suites = {}
    for name, suite in all_suites(config.eval, config.env):
        metrics = plain(results[name].metrics)
        counts: dict[str, Any] = {
            "episodes": results[name].episodes,
            "missing": results[name].missing,
        }
        if against := results[name].opponents:
            counts["opponents"] = {member: plain(measured) for member, measured in against.items()}
        suites[name] = {"config": flatten_config(suite), **counts, "metrics": metrics}
    seed = config.seed if config.eval.seed is None else config.eval.seed
    return {"checkpoint": str(path.resolve()), "step": step, "seed": seed, "suites": suites}


@contextmanager
def eval_progress(console: Console | None = None) -> Iterator[Callable[[str, float], None]]:
    """Display the progress of an evaluation: a bar on a terminal, else a line every few seconds.

    Args:
        console: console to print to; standard error by default, so that the results can be piped.

    Yields:
        A function of a suite and its finished share, from 0 to 1.
    """
    console = Console(stderr=True) if console is None else console
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn()
    # Drawn by `watch`, not by a thread: environments may fork processes.
    bars = Progress(*columns, console=console, auto_refresh=False, transient=True)
    every_s = 0.1 if console.is_terminal else LINE_EVERY_S
    start_s: dict[str, float] = {}
    shown_s = time.monotonic()

    def watch(suite: str, share: float) -> None:
        nonlocal shown_s
        now, name, is_new = time.monotonic(), suite or UNNAMED, suite not in start_s
        start = start_s.setdefault(suite, now)
        is_full = share >= 1 and console.is_terminal
        if not (is_new or is_full or now - shown_s >= every_s):
            return
        shown_s = now
        if not console.is_terminal:
            remaining = format_duration((now - start) * (1 - share) / share) if share else "?"
            line = f"{name}: {share:.0%}" + ("" if is_new else f", left {remaining}")
            show_lines([line], console)
            return
        if is_new:
            bars.add_task(name, total=1.0)
        bars.update(bars.task_ids[-1], completed=share, refresh=True)

    with bars if console.is_terminal else nullcontext():
        yield watch
