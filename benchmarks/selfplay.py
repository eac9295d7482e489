"""Self-play in games: opponent pools and the magnet compared with mirror play.

    python benchmarks/selfplay.py [ROW ...] [--seeds 3] [--jobs 2] [--results FILE.md]

In `UnevenThrows` and `KuhnPoker` the exploitability of the trained policy is computed exactly
(`selfplay_exact.py`). In other games agents play against each other. Finished runs are stored as
JSON lines next to the table and are not repeated.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import board_games
import numpy as np
import torch
from kept_runs import left_to_run, read_kept, run_all
from learning_curves import Line, draw
from measured_on import short_revision
from selfplay_exact import WORLDS, Worlds, exploitability, policy_of

from enn_trainer import StateManager, load_agent, train
from enn_trainer.base.policy import eval_mode
from enn_trainer.callbacks import Callback
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.saved_state import read_members
from enn_trainer.evaluation.load_agent import RogueNetAgent
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.run.tournament import exploit, play_league, players_of
from enn_trainer.selfplay.play_games import play_games
from entity_env import EnvList
from entity_env.examples import ENV_REGISTRY
from entity_env.spaces import Spaces

ROOT = Path(__file__).parent.parent
POINTS = 40
"""Number of points of a curve."""
BOARD_GAMES = {"tic-tac-toe": board_games.TicTacToe, "connect four": board_games.ConnectFour}
GAMES = 400
"""Number of games per pair, or against a bot in each seat."""
EXPLOITED_FOR = 300_000
"""Number of training frames of an exploiter."""

Values = dict[str, float]


class Row(NamedTuple):
    """An environment and settings of a training run.

    Attributes:
        world: name of the environment.
        setting: name of the settings.
        config: file in `configs/`, without ".ron".
        overrides: overrides of the configuration.
        bars: targets by value, and True if lower is better.
    """

    world: str
    setting: str
    config: str
    overrides: tuple[str, ...] = ()
    bars: Mapping[str, tuple[float, bool]] = {}

    @property
    def name(self) -> str:
        """Name on the command line."""
        return f"{self.world} {self.setting}"


LAST, MIXTURE = "last policy", "mixture of the pool"
WORST = "against each of them, least upper end of an interval"
_THROWS = (
    *("rollout.num_envs=1024", "rollout.steps=1"),
    *("optim.bs=512", "total_timesteps=1000000"),
)
_MAGNET = ("ppo.magnet.coef=0.5", "ppo.magnet.every=20000", "ppo.ent_coef=0.0")
_NO_MAGNET = ("ppo.magnet=None", "ppo.ent_coef=0.01")
_POOL = ("selfplay.share=0.5", "selfplay.snapshot_every=50000", "selfplay.capacity=40")


def _settings(
    world: str, bar: float, world_settings: tuple[str, ...], magnet: tuple[str, ...]
) -> list[Row]:
    """Return the rows of an environment with known exploitability."""
    settings = {
        "mirror": _NO_MAGNET,
        "pool, uniform": (*_NO_MAGNET, *_POOL, "selfplay.choose=uniform"),
        "pool, pfsp": (*_NO_MAGNET, *_POOL, "selfplay.choose=pfsp"),
        "magnet": magnet,
    }
    return [
        Row(
            world,
            name,
            "kuhn_poker",
            (*world_settings, *changes),
            {LAST: (bar, True)} if name == "magnet" else {},
        )
        for name, changes in settings.items()
    ]


_CONNECT_FOUR = (
    "total_timesteps=1000000",
    "selfplay.snapshot_every=100000",
    "ppo.ent_coef=step: 0.3@0 lin 0.03@1e6",
)
ROWS = [
    *_settings("UnevenThrows", 0.25, _THROWS, _MAGNET),
    *_settings("KuhnPoker", 0.05, (), ()),
    Row(
        "Duel",
        "pool and mirror",
        "duel_pool",
        (),
        {WORST: (0.5, False)},
    ),
    Row(
        "tic-tac-toe",
        "pool",
        "tic_tac_toe",
        (),
        {"lost, first seat": (0.05, True), "lost, second seat": (0.05, True)},
    ),
    Row(
        "connect four",
        "pool",
        "tic_tac_toe",
        _CONNECT_FOUR,
        {"against random": (0.95, False), "against a bot": (0.5, False)},
    ),
]


class Curve(Callback):
    """Callback that evaluates a value of the run periodically.

    Args:
        value: function of the run and the metrics of an update; None for no value.
        every: number of frames between two points.
    """

    def __init__(
        self, value: Callable[[RunningTrainer, Mapping[str, float]], float | None], every: float
    ) -> None:
        self.value, self.every = value, every
        self.points: list[list[float]] = []

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Add a point when enough frames have passed."""
        step = trainer.state.step
        if step < (len(self.points) + 1) * self.every:
            return
        if (value := self.value(trainer, metrics)) is not None:
            self.points.append([step, round(value, 4)])


def exploitability_in(
    worlds: Worlds, trainer: RunningTrainer, metrics: Mapping[str, float]
) -> float:
    """Compute the exploitability of a run's agent."""
    state = trainer.state
    with eval_mode(state.agent):
        agent = RogueNetAgent(state.agent, False, 0, state.obs_space, state.action_space)
        return exploitability([policy_of(agent, worlds[0][0])], worlds)


def rating_of(trainer: RunningTrainer, metrics: Mapping[str, float]) -> float | None:
    """Return the rating of the agent in thousands of Elo; None without opponents."""
    elo = metrics.get("selfplay/elo")
    return None if elo is None else elo / 1000


def world_of(row: Row) -> Any:
    """Return the environment class of a row."""
    return BOARD_GAMES.get(row.world) or ENV_REGISTRY[row.world]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Train an agent with one seed in this process and evaluate it."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        path = Path(folder) / "run"
        manager = new_manager(row, seed, path)
        every = manager.config.total_timesteps / POINTS
        worlds = WORLDS.get(row.world)
        curve = Curve(partial(exploitability_in, worlds) if worlds else rating_of, every)
        train(manager, world_of(row), callbacks=[curve])
        seconds = time.perf_counter() - start
        return {
            "row": row.name,
            "seed": seed,
            "frames": manager.state.step,
            "values": MEASURES.get(row.world, measure_exactly)(path, row, seed),
            "seconds": round(seconds, 1),
            "curve": curve.points,
            "commit": short_revision(),
        }


def new_manager(row: Row, seed: int, path: Path, *overrides: str) -> StateManager:
    """Create the state manager of a row's run."""
    run_settings = (f"seed={seed}", f"data_dir={path.parent}", "rollout.processes=1")
    config = ROOT / "configs" / f"{row.config}.ron"
    changes = [*row.overrides, *run_settings, *overrides]
    return StateManager(init_path=config, checkpoint_dir=path, overrides=changes)


def snapshots(path: Path) -> list[str]:
    """Return the paths of the snapshots in a run's pool; [] without a pool."""
    pool = [member for member in read_members(find(path)) if member.is_in_pool]
    return [f"{path}@opponent:{member.name}" for member in pool]


# -- Measures ----------------------------------------------------------------------------------


def measure_exactly(path: Path, row: Row, seed: int) -> Values:
    """Return the exploitability of the last policy, and of the uniform mixture of the pool."""
    worlds = WORLDS[row.world]
    world = worlds[0][0]

    def of(paths: Sequence[str | Path]) -> float:
        return exploitability([policy_of(load_agent(p, env=world), world) for p in paths], worlds)

    pool = snapshots(path)
    return {LAST: of([path]), **({MIXTURE: of(pool)} if pool else {})}


def measure_duel(path: Path, row: Row, seed: int) -> Values:
    """Return the agent's scores against its snapshots and a mirror-play agent.

    An exploiter is trained against each of the two agents.
    """
    world, mirror = world_of(row), path.parent / "mirror"
    manager = new_manager(row, seed, mirror, "selfplay=None")
    train(manager, world)
    opponents = [str(mirror), *snapshots(path)]
    values = {}
    for other in opponents:
        payoff = play_league([str(path), other], world, GAMES, seed).payoff
        values[other] = float(payoff.mean[0, 1]), float(payoff.high[0, 1])
    exploited = {}
    for name, agent in (("pool", path), ("mirror", mirror)):
        folder = path.parent / f"against-{name}"
        config = new_manager(row, seed + 100, folder, f"total_timesteps={EXPLOITED_FOR}").config
        exploited[f"{name} is exploited by"] = exploit(agent, world, config, folder).score
    snapshot_scores = [mean for other, (mean, _) in values.items() if other != str(mirror)]
    return {
        "against mirror": values[str(mirror)][0],
        "against its snapshots, mean": float(np.mean(snapshot_scores)),
        "against its snapshots, least": min(snapshot_scores),
        WORST: min(high for _, high in values.values()),
        **exploited,
    }


def measure_tic_tac_toe(path: Path, row: Row, seed: int) -> Values:
    """Return the fraction of games lost by the greedy agent against a perfect player, by seat."""
    results = results_against(path, board_games.TicTacToe, board_games.Perfect, seed, greedy=True)
    lost = [float(np.mean(returns < 0)) for returns in results]
    return dict(zip(("lost, first seat", "lost, second seat"), lost, strict=True))


def measure_connect_four(path: Path, row: Row, seed: int) -> Values:
    """Return the agent's scores against random play and a bot."""
    world, bot = board_games.ConnectFour, board_games.WinOrBlock
    scores: Values = {}
    for greedy, how in ((False, ""), (True, ", greedy")):
        for opponent, name in (("random", "against random"), (bot, "against a bot")):
            results = results_against(path, world, opponent, seed, greedy)
            scores[name + how] = float(np.mean((np.sign(np.concatenate(results)) + 1) / 2))
    return scores


def results_against(path: Path, world: Any, opponent: Any, seed: int, greedy: bool) -> list[Any]:
    """Return the returns of an agent in each seat against an opponent, (games,) each."""
    match = world()
    spaces = Spaces.of(match)
    opponent_player = RandomAgent(spaces[1]) if opponent == "random" else opponent
    players = players_of({"other": opponent_player}, seed, spaces, 2)
    network = load_agent(path).agent
    players["agent"] = AgentPlayer(network, None if greedy else seed)
    deals = [[["agent", "other"], ["other", "agent"]]] * GAMES
    envs = EnvList(world, 2 * 64)
    results = play_games(envs, players, deals, "episodic_reward", seed)
    return [results[:, 0, 0], results[:, 1, 1]]


MEASURES: dict[str, Callable[[Path, Row, int], Values]] = {
    "Duel": measure_duel,
    "tic-tac-toe": measure_tic_tac_toe,
    "connect four": measure_connect_four,
}


# -- Results -----------------------------------------------------------------------------------


def table(results: list[dict[str, Any]]) -> str:
    """Return the document with the results."""
    lines = [
        "# Games",
        "",
        f"`python benchmarks/selfplay.py` on {os.cpu_count()} cores "
        f"({platform.processor() or platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}. Each run has one thread; up to two run at a time, next to "
        "other work: the seconds are a rough measure. The settings are those in `configs/`, with "
        "the changes in `benchmarks/selfplay.py`.",
        "",
        "*last policy* and *mixture of the pool* are exploitabilities: the mean payoff of the best "
        "response in the two seats, computed exactly; the mixture draws one of the snapshots "
        "for each game, uniformly. All others are scores or shares of games, in both "
        f"seats equally often, {GAMES} of a pair and in each seat against a bot, with sampled "
        "actions except in tic-tac-toe and where marked greedy. "
        f"*is exploited by* is the score of an agent trained for {EXPLOITED_FOR:,} frames against "
        "this agent only. Uniform play has 1.0 in UnevenThrows (only rock 5, only paper 2, only "
        "scissors 1) and 11/24 in KuhnPoker.",
        "",
        "| world | setting | frames | value | to reach | seeds: result | seconds | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        runs = [r for r in results if r["row"] == row.name]
        for value in runs[0]["values"] if runs else ():
            bar = ""
            if value in row.bars:
                least, is_most = row.bars[value]
                bar = f"at most {least}" if is_most else f"{least}"
            by_seed = ", ".join(f"{r['seed']}: {r['values'][value]:.3f}" for r in runs)
            seconds = ", ".join(f"{r['seconds']:.0f}" for r in runs)
            commits = ", ".join(dict.fromkeys(r["commit"] for r in runs))
            lines.append(
                f"| {row.world} | {row.setting} | {runs[0]['frames']:,} | {value} | {bar} | "
                f"{by_seed} | {seconds} | {commits} |"
            )
    lines += [
        "",
        "Exploitability of the policy while training, and the agent's rating in thousands of Elo "
        "where there is no exact value, against the frames of the agent; the bars are dashed.",
        "",
        "![curves](selfplay.svg)",
        "",
    ]
    return "\n".join(lines)


def picture(results: list[dict[str, Any]]) -> str:
    """Return a figure of the curves, with a panel for each environment."""
    panels: dict[str, list[Line]] = {}
    for row in ROWS:
        curves = [r["curve"] for r in results if r["row"] == row.name and r["curve"]]
        if curves:
            bar = row.bars.get(LAST, (None, True))[0]
            panels.setdefault(row.world, []).append(Line(row.setting, curves, bar))
    return draw(panels)


def main() -> None:
    """Train missing runs and write the results."""
    by_name = {row.name: row for row in ROWS}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(by_name))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/selfplay.md")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(by_name[options.one[0]], int(options.one[1]))))
        return
    runs_file = options.results.with_suffix(".jsonl")
    todo = left_to_run(parser, options.rows, dict.fromkeys(by_name, options.seeds), runs_file)
    run_all(__file__, todo, runs_file, options.jobs)
    results = sorted(read_kept(runs_file), key=lambda r: r["seed"])
    options.results.write_text(table(results))
    options.results.with_suffix(".svg").write_text(picture(results))
    print(options.results.read_text())


if __name__ == "__main__":
    main()
