"""The command `enn league`."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from rich.console import Console

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import show_lines, show_table
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import new_run_dir
from enn_trainer.checkpoints.saved_state import read_config, read_league
from enn_trainer.cli.arguments import (
    OneLineParser,
    line_with_trust,
    normalize_json_option,
    not_negative,
    positive,
    writable,
    write_json,
)
from enn_trainer.cli.trust import check_trusted
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.config import EvalEnvConfig, TrainConfig
from enn_trainer.config.eval_config import with_env
from enn_trainer.evaluation.payoff import Payoff
from enn_trainer.runtime.interrupt import StoppedAtOnce, ended_by, stopped_by
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.runtime.trust import Trust
from enn_trainer.selfplay.league import POOL_SUFFIX, SNAPSHOT
from entity_env.named_world import is_bot_name

if TYPE_CHECKING:
    from enn_trainer.checkpoints.saved_run import SavedRun
    from enn_trainer.run.tournament import Tournament

Run: TypeAlias = Callable[[argparse.Namespace], int | None]
SHARE = 0.005
"""Smallest probability of a mixture to print."""

_EPILOG = """\
A PLAYER is a save or a run (also RUN@STEP, RUN@best, RUN@opponent:NAME), all opponents of a run
(RUN@opponents), random, or a bot (file.py:Name). The first run determines the environment.

examples:
  enn league """


def league_command(arguments: Sequence[str]) -> int:
    """Run `enn league`: show, play and exploit opponents.

    Returns:
        0, or the status of the signal that ended it.

    Raises:
        ConfigError, CheckpointError, EntityEnvError: a mistake in the arguments, or the
            environment fails.
    """
    arguments = normalize_json_option(arguments)
    options = parser().parse_args(arguments)
    options.line = line_with_trust(f"enn league {arguments[0]}", arguments[1:])
    run: Run = options.run
    try:
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            return run(options) or 0
    except StoppedAtOnce as stop:
        print("interrupted", file=sys.stderr)
        return int(stop.status)


def _show(options: argparse.Namespace) -> None:
    saved = find(Path(options.path))
    league, config = read_league(saved), read_config(saved)
    if not league.members:
        raise CheckpointError(f"{saved.path}: expected a save with opponents, got none in it")
    weights = np.ones(len(league.pool))
    if config.selfplay is not None:
        weights = league.weights(config.selfplay, None, saved.step)
    share = dict(zip((m.name for m in league.pool), weights / (weights.sum() or 1.0), strict=True))
    if options.json:
        listed: list[dict[str, Any]] = [
            {
                **{name: getattr(m, name) for name in ("name", "origin", "kind", "elo", "ci95")},
                "step": None if m.origin != SNAPSHOT else m.step,
                "games": m.games,
                "results": m.results.tolist(),
                "score": m.score,
                "weight": share.get(m.name, 0.0),
            }
            for m in league.members
        ]
        agent = {"elo": league.elo, "ci95": league.ci95, "step": saved.step}
        print(json.dumps({"agent": agent, "members": listed}, indent=1))
        return
    rows = [["the agent", f"{saved.step:,}", _elo(league.elo, league.ci95), *[""] * 6]]
    for m in league.members:
        wins, draws, losses = (f"{x:.1f}" for x in m.results.sum(axis=0))
        step = f"{m.step:,}" if m.origin == SNAPSHOT else ""
        weight = f"{share[m.name]:.1%}" if m.name in share else "left"
        numbers = [str(m.games), wins, draws, losses, f"{m.score:.2f}", weight]
        rows.append([m.name, step, _elo(m.elo, m.ci95), *numbers])
    columns = ("player", "step", "Elo", "games", "wins", "draws", "losses", "score", "weight")
    show_table(columns, rows, Console(), num_left=1)
    print(
        "wins, draws and losses are of the agent, with decay; Elo accumulates estimates; to "
        f"measure it: enn league play {options.path}@opponents {options.path}"
    )


def _play(options: argparse.Namespace) -> None:
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.load_world import trusted_envs
        from enn_trainer.cli.work.evaluate import eval_progress  # imports PyTorch
        from enn_trainer.run.tournament import play_league

    config, trust, saved = _config(options, options.players)
    for flag, path in ("--out", options.out), ("--png", options.png):
        if path is not None:
            writable(path, flag)
    if options.png is not None and options.png.suffix != ".png":
        raise ConfigError(f"--png: expected a file named .png, got {options.png}")
    if options.png is not None:
        import matplotlib  # noqa: F401 (fail before the games if the extra is missing)
    with eval_progress() as watch:
        played = play_league(
            options.players,
            trusted_envs(trust),
            options.games,
            config.seed if options.seed is None else options.seed,
            config=config,
            metric=options.metric,
            processes=options.processes,
            max_steps=options.max_steps,
            watch=lambda share: watch("games", share),
            trust=options.trust,
            saved=saved,
        )
    if options.out is not None:
        write_json(options.out, as_plain(played))
    if options.png is not None:
        draw(played, options.png)
    if options.json:
        print(json.dumps(as_plain(played), indent=1))
        return
    show(played)
    for path in options.out, options.png:
        if path is not None:
            print(f"written to {path}")


def _exploit(options: argparse.Namespace) -> None:
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.load_world import trusted_envs
        from enn_trainer.run.tournament import (  # imports PyTorch
            ExploitResult,
            exploit,
            pool_player,
        )

    config, trust, by_path = _config(options, [options.path], is_trained=True)
    saved = by_path[options.path]
    timesteps = options.timesteps or config.total_timesteps
    config = replace(config, total_timesteps=timesteps, stop=[])
    results, envs = list[ExploitResult](), trusted_envs(trust)
    parent = saved.path.parent if options.into is None else options.into
    player: str = options.path
    for seed in range(config.seed + 1, config.seed + 1 + options.seeds):
        folder = new_run_dir(Path(parent, "exploits"), f"seed-{seed}")
        seed_config = replace(config, seed=seed)
        results.append(exploit(player, envs, seed_config, folder, options.games))
        player = pool_player(folder, player)
    rows = [[r.path.name, f"{r.score:.3f} ± {r.ci95:.3f}", str(r.path)] for r in results]
    show_table(("agent", "score ± 95% ci", "run"), rows, Console(), num_left=1)
    best = max(results, key=lambda r: r.score)
    print(
        f"{best.path} beats {options.path} with a score of {best.score:.3f} (0.5 is even), a lower "
        "bound of its exploitability"
    )


def _config(
    options: argparse.Namespace, players: Sequence[str], is_trained: bool = False
) -> tuple[TrainConfig, Trust, "dict[str, SavedRun]"]:
    """Return the configuration of the first run of the players, with the typed environment.

    Args:
        options: options of the command.
        players: paths and names of players.
        is_trained: True if a run with the configuration starts.

    Returns:
        The configuration, the trust in code that saves name, and the save of that run by player,
        with its pool for RUN@opponents (read at once, because the run may delete the save).

    Raises:
        ConfigError: no player is a run, or a save names code that is not trusted.
    """
    with ended_by(signal.SIGINT):
        from enn_trainer.checkpoints.saved_run import read_saved_run  # imports PyTorch
        from enn_trainer.cli.work.evaluate import with_cluster

    runs = [p for p in players if p != "random" and not is_bot_name(p)]
    if not runs:
        raise ConfigError(
            "PLAYER: expected at least one run or save, which names the environment, got none"
        )
    path = Path(runs[0].removesuffix(POOL_SUFFIX))
    saved = read_saved_run(path, with_pool=runs[0].endswith(POOL_SUFFIX))
    kwargs = parse_kwargs(options.env_kwargs, "--env-kwargs")
    # Matches neither evaluate, record, nor follow the curriculum of the run.
    config = replace(
        saved.config,
        env=with_env(saved.config.env, EvalEnvConfig(json.dumps(kwargs), options.env)),
        eval=None,
        rollout=with_cluster(saved.config.rollout, saved.config.rollout.ray),
        checkpoint=replace(saved.config.checkpoint, best=[]),
        curricula={},
        capture_samples=None,
        capture_logits=False,
        capture_samples_subsample=1,
    )
    return config, check_trusted(saved, config, options, players, is_trained), {runs[0]: saved}


def show(played: "Tournament") -> None:
    """Print the tables of a round robin."""
    console, names = Console(), played.names
    payoff, ratings, mixture = played.payoff, played.ratings, played.mixture
    columns = ["player", *(["Elo", "mixture"] if ratings is not None else []), *names]
    rows = []
    for i, name in enumerate(names):
        row = [name]
        if ratings is not None and mixture is not None:
            row += [_elo(ratings.elo[i], ratings.ci95[i])]
            row += [f"{mixture[i]:.1%}" if mixture[i] > SHARE else ""]
        rows.append([*row, *(_cell(payoff, i, j) for j in range(len(names)))])
    show_table(columns, rows, console, num_left=1)
    count = f"{played.games:,} games of each pair, {played.deals:,} deals"
    show_lines([f"{count}, each deal played from every seat; intervals are over deals"], console)
    for ring in played.rings:
        first, second, third = (names[i] for i in ring)
        show_lines([f"ring: {first} beats {second} beats {third} beats {first}"], console)


def as_plain(played: "Tournament") -> dict[str, Any]:
    """Return the results of a round robin as plain data for JSON."""
    fields = {name: _lists(values) for name, values in played.payoff._asdict().items()}
    counts = {"games": played.games, "deals": played.deals}
    content: dict[str, Any] = {"players": [*played.names], **counts, **fields}
    if played.ratings is not None and played.mixture is not None:
        content |= {
            "elo": _lists(played.ratings.elo),
            "elo_ci95": _lists(played.ratings.ci95),
            "rings": [[played.names[i] for i in ring] for ring in played.rings],
            "mixture": _lists(played.mixture),
        }
    return content


def draw(played: "Tournament", path: Path) -> None:
    """Plot the payoff matrix of a round robin; needs the extra `plot`.

    Raises:
        ConfigError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    names, payoff = played.names, played.payoff
    size = 2.5 + 0.55 * len(names)
    figure = Figure(figsize=(size + 1.5, size), layout="constrained")
    ax = figure.subplots()
    is_score = played.ratings is not None
    low, high = (0.0, 1.0) if is_score else (None, None)
    image = ax.imshow(payoff.mean, cmap="RdBu", vmin=low, vmax=high)
    ax.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    for i, j in np.argwhere(np.isfinite(payoff.mean)).tolist():
        ax.text(j, i, f"{payoff.mean[i, j]:.2f}", ha="center", va="center", fontsize=7)
    what = "score" if is_score else "mean"
    ax.set_title(f"{what} of the player of a row against that of a column", fontsize=10)
    figure.colorbar(image, ax=ax, label=what)
    try:
        figure.savefig(path, dpi=150)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"--png: {path} cannot be written: {reason}") from None


def _elo(elo: float, ci95: float) -> str:
    return f"{elo:.0f}" + (f" ± {ci95:.0f}" if ci95 else "")


def _cell(payoff: Payoff, i: int, j: int) -> str:
    mean, half = payoff.mean[i, j], (payoff.high[i, j] - payoff.low[i, j]) / 2
    return f"{mean:.3g} ± {half:.2g}" if np.isfinite(mean) else ""


def _lists(values: Any) -> Any:
    """Convert an array to nested lists, with None for NaN."""
    return [_lists(v) if np.ndim(v) else float(v) if np.isfinite(v) else None for v in values]


def parser() -> OneLineParser:
    """Return the parser of `enn league`."""
    description = "Show the opponents of a run, play them against each other, and exploit one."
    parser = OneLineParser(
        prog="enn league", description=description, epilog=f"{_EPILOG}show runs/duel"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Run, help: str, example: str) -> OneLineParser:
        epilog = f"{_EPILOG}{example}"
        added: OneLineParser = commands.add_parser(name, help=help, description=help, epilog=epilog)
        added.set_defaults(run=run)
        return added

    # enn league show
    sub = command("show", _show, "members, results and ratings of a run", "show runs/duel")
    sub.run("path", "RUN", "a run, or one of its saves")
    sub.flag("--json", "print as JSON")

    # enn league play
    example = "play runs/duel@opponents runs/duel random --games 20 --png payoff.png"
    sub = command("play", _play, "a round robin of players", example)
    sub.add_argument("players", metavar="PLAYER", nargs="+", help="see below")
    many = "games of each pair, rounded up to whole deals, played from all seats (default: 200)"
    sub.option("--games", "N", many, type=positive, default=200)
    sub.option("--metric", "NAME", "compare this metric instead, such as episodic_reward")
    sub.option("--seed", "N", "random seed (default: the run's)", type=not_negative)
    sub.option(
        "--processes", "N", "number of worker processes (default: 1)", type=positive, default=1
    )
    steps = "limit of the steps of all games of a match (default: 1000000)"
    sub.option("--max-steps", "N", steps, type=positive, default=1_000_000)
    sub.option("--out", "FILE", "write the results as JSON; also --json FILE.json", type=Path)
    sub.flag("--json", "print as JSON")
    sub.option("--png", "FILE", "picture of the matrix", type=Path)
    sub.env_options("another environment", "its arguments")
    sub.flag("--trust", "import the code that the checkpoint names, such as its environment")

    # enn league exploit
    help = "train new agents against a fixed player; their score bounds its exploitability"
    sub = command("exploit", _exploit, help, "exploit runs/duel --timesteps 10000 --games 100")
    sub.add_argument("path", metavar="PLAYER", help="a run or a save")
    sub.option("--timesteps", "N", "frames per agent (default: as in training)", type=positive)
    sub.option("--seeds", "N", "number of agents (default: 1)", type=positive, default=1)
    sub.option(
        "--games", "N", "games to measure the score (default: 400)", type=positive, default=400
    )
    sub.option("--into", "FOLDER", "folder of the new runs (default: the run's)", type=Path)
    sub.env_options("another environment", "its arguments")
    sub.flag("--trust", "import the code that the checkpoint names, such as its environment")
    return parser
