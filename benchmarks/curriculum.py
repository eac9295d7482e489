"""Varying arguments and curricula: learning results with and without them, and training speed.

    python benchmarks/curriculum.py learn [ROW ...] [--seeds 3] [--jobs 2]
    python benchmarks/curriculum.py speed [--updates 20]

Results are in `results/curriculum.md`, with a figure. Finished runs are stored as JSON lines next
to it and are not repeated.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kept_runs import train_or_measure
from measured_on import processor, short_revision
from trained import relative_speed, results_of_row, table, times_in_turns

from enn_trainer import EvalConfig, StateManager, Trainer, train
from enn_trainer.callbacks import Callback
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.cli.plot_command import Curve, draw
from enn_trainer.config import EnvConfig
from enn_trainer.evaluation.eval_metrics import t_quantile_975
from enn_trainer.run.tournament import play_league
from entity_env import Match
from entity_env.examples import Duel, Locks, Minefield

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/curriculum.md"
EPISODES = 2000
"""Number of episodes of an evaluation."""
MINES = (0, 5, 10, 20, 40)
OF_A_MATCH = "return of a match"
MATCHES = 670
"""Number of foraging matches in an evaluation, with three players each."""
GAMES = 400
"""Number of games per pair of agents."""
SPEED_FRAMES = 2048
"""Number of frames per update in the speed measurement."""
SPEED_NETWORK = (
    "optim.bs=2048",
    "optim.update_epochs=1",
    "net.d_model=32",
    "net.n_layer=1",
    "cuda=false",
)
"""Network settings of the speed measurement, small enough that environments dominate."""


class Row(NamedTuple):
    """Settings of a training run.

    Attributes:
        name: name on the command line; rows with the same part before the comma share a figure.
        config: file in `configs/`, without ".ron".
        overrides: overrides of the configuration.
        asked: target, as text.
        reaches: predicate on results; None if there is no target.
    """

    name: str
    config: str
    overrides: tuple[str, ...] = ()
    asked: str = ""
    reaches: Callable[[Mapping[str, float]], bool] | None = None

    @property
    def world(self) -> str:
        """Name of the environment."""
        return self.name.partition(",")[0]


def lessons(name: str, *settings: str, more: str = "") -> str:
    """Return the setting of a curriculum with one sequence of stages."""
    written = ", ".join(f"({one})" for one in settings)
    return f'curricula={{"{name}": (lessons: [{written}]{more})}}'


def at_length(value: float) -> Callable[[Mapping[str, float]], bool]:
    """Return a predicate for a mean return of at least a value."""
    return lambda values: values["return"] >= value


_LOCKS = ("total_timesteps=500000", "eval.interval=25000")
# With rollouts of 64 steps some seeds avoid no mines for half of the frames.
_MINES = ("eval=None", "rollout.steps=32")
_FORAGING = ("eval=None",)
_BOARDS = [
    f'name: "{size} cells, {food} food", vary: {{"size": "{size}", "food": "{food}"}}'
    for size, food in ((6, 1), (8, 2), (10, 3))
]
_UP = ', until: ["episodic_reward.mean >= 0.25"]'
# Squads of one have nothing to choose, so that their rating does not rise.
_ELO = {1: "lesson_step >= 20000", 2: "selfplay/elo >= 1250", 3: "selfplay/elo >= 1300"}
_SQUADS = [
    f'name: "{n} units", vary: {{"squad": "{n}"}}, until: {json.dumps([_ELO[n]] if n < 4 else [])}'
    for n in (1, 2, 3, 4)
]
ROWS = [
    Row(
        "Locks, as it is",
        "locks_lessons",
        (*_LOCKS, "curricula={}"),
        "at most 0.05",
        lambda values: values["return"] <= 0.05,
    ),
    Row("Locks, lessons 2, 4, 8, 12", "locks_lessons", _LOCKS, "0.95", at_length(0.95)),
    Row("Locks, ramp from 1 to 12", "locks_ramp", _LOCKS, "0.95", at_length(0.95)),
    Row(
        "Locks, int 1 12", "locks_lessons", (*_LOCKS, "curricula={}", 'env.vary.length="int 1 12"')
    ),
    Row("Minefield, 10 mines", "minefield", _MINES),
    Row(
        "Minefield, int 0 20",
        "minefield",
        (*_MINES, "env.kwargs={}", 'env.vary.max_mines="int 0 20"'),
    ),
    Row(
        "Minefield, ramp to int 0 40",
        "minefield",
        (
            *_MINES,
            "env.kwargs={}",
            lessons(
                "mines",
                'name: "wider", ramp: {"max_mines": ["int 0 0", "int 0 40"]}, count: 9, '
                'until: ["episodic_reward.mean >= 0.9"], episodes: 500',
            ),
        ),
    ),
    Row("Foraging 10x10-3p-3f, as it is", "foraging_10x10", _FORAGING, "shown"),
    Row(
        "Foraging 10x10-3p-3f, lessons",
        "foraging_10x10",
        (*_FORAGING, lessons("board", _BOARDS[0] + _UP, _BOARDS[1] + _UP, _BOARDS[2])),
        "0.8 is the aim",
    ),
    Row("Duel, full size", "duel_pool"),
    Row(
        "Duel, lessons by rating", "duel_pool", (lessons("squad", *_SQUADS, more=", review: 0.1"),)
    ),
]


class Evaluated(Callback):
    """Callback that records evaluation returns and curriculum stages.

    Attributes:
        curve: (step, mean return) of each evaluation.
        reached: (step, index) of each change of the stage.
    """

    def __init__(self) -> None:
        self.curve: list[tuple[int, float]] = []
        self.reached: list[tuple[int, int]] = []

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Record the mean return."""
        self.curve.append((trainer.state.step, metrics["eval/episodic_reward.mean"]))

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Record the stage of the last update, if it has changed."""
        tags = [tag for tag in trainer.metrics if tag.startswith("curriculum/")]
        lesson = next((trainer.metrics[tag] for tag in tags if tag.endswith("/lesson")), None)
        if lesson is not None and (not self.reached or self.reached[-1][1] != lesson):
            self.reached.append((trainer.state.step, int(lesson)))


def world_of(row: Row) -> Any:
    """Return the environment of a row."""
    if row.world == "Foraging 10x10-3p-3f":
        return varied_foraging()
    return {"Locks": Locks, "Minefield": Minefield, "Duel": Duel}[row.world]


def varied_foraging() -> type[Match]:
    """Return level-based foraging with 3 players, with board size and food as arguments."""
    from foraging import foraging

    base: Any = foraging("Foraging-10x10-3p-3f-v3")

    class VariedForaging(base):
        """Foraging on a board of `size` cells a side with `food` pieces of food, at most 3."""

        def set_parameters(self, size: int = 10, food: int = 3) -> None:
            """Change the board, from the next episode on."""
            world = self.env.unwrapped
            world.field = np.zeros((size, size), np.int32)
            spawn = type(world).spawn_food

            def spawn_food(_: int, min_levels: Any, max_levels: Any) -> None:
                spawn(world, food, min_levels[:food], max_levels[:food])

            world.spawn_food = spawn_food

    return VariedForaging


def train_row(row: Row, seed: int) -> dict[str, Any]:
    """Train an agent and return its results."""
    start, values = time.perf_counter(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        path, watched = Path(folder) / "run", Evaluated()
        manager = manager_of(row, seed, path)
        with Trainer(manager, world_of(row), callbacks=[watched]) as trainer:
            trainer.run()
            seconds = round(time.perf_counter() - start, 1)
            for name, settings in evaluations_of(row).items():
                mean = trainer.evaluate(settings)["eval/episodic_reward.mean"]
                # The return of a match is the sum over its three players.
                values[name] = mean if name != OF_A_MATCH else 3 * mean
        if row.name == "Duel, lessons by rating":
            other = Path(folder) / "full size"
            full = next(one for one in ROWS if one.name == "Duel, full size")
            train(manager_of(full, seed, other), Duel)
            payoff = play_league([str(path), str(other)], Duel, GAMES, seed).payoff
            values["score against full size"] = float(payoff.mean[0, 1])
    done = {"row": row.name, "seed": seed, "frames": manager.state.step, "seconds": seconds}
    measured = {"values": values, "curve": watched.curve, "reached": watched.reached}
    return {**done, **measured, "commit": short_revision()}


def manager_of(row: Row, seed: int, path: Path) -> StateManager:
    """Create the state manager of a run in one process."""
    settings = (f"seed={seed}", f"data_dir={path.parent}", "rollout.processes=1", "cuda=false")
    file = ROOT / "configs" / f"{row.config}.ron"
    return StateManager(init_path=file, checkpoint_dir=path, overrides=[*row.overrides, *settings])


def evaluations_of(row: Row) -> dict[str, EvalConfig]:
    """Return the settings of evaluations after training, by name of the result."""
    if row.world == "Locks":
        env = EnvConfig(id="Locks")
        return {
            "return": EvalConfig(
                episodes=EPISODES, num_envs=min(200, EPISODES), env=env, deterministic=True
            )
        }
    if row.world == "Minefield":
        envs = {n: EnvConfig(id="Minefield", kwargs=json.dumps({"max_mines": n})) for n in MINES}
        return {
            f"{n} mines": EvalConfig(
                episodes=EPISODES, num_envs=min(200, EPISODES), env=env, seed=1
            )
            for n, env in envs.items()
        }
    if row.world == "Duel":
        return {}
    return {OF_A_MATCH: EvalConfig(episodes=3 * MATCHES, num_envs=3 * min(67, MATCHES), seed=1)}


# -- Results -----------------------------------------------------------------------------------


def document(results: Sequence[dict[str, Any]], speed: str) -> str:
    """Return the document with all results."""
    lines = [
        "# Arguments that vary, and lessons",
        "",
        "`python benchmarks/curriculum.py` trains with the settings in `configs/` and the changes "
        "in `benchmarks/curriculum.py`. Each run has one thread; up to two run at a time. Returns "
        f"are means over {EPISODES} episodes after training, of Locks with twelve locks and the "
        "most probable choices, else with sampled ones. Intervals are 95% of the mean over "
        "seeds (Student's t).",
        "",
    ]
    if any(results_of_row(row.name, results) for row in ROWS if row.world == "Locks"):
        lines += [
            "![Locks](curriculum.svg)",
            "",
            "By chance, twelve locks are opened once in 531,441 episodes. A run that plays them "
            "alone has about 333,000 episodes, and one that succeeds is enough to learn from: so "
            "about half of the seeds open the locks without lessons as well.",
            "",
        ]
    rows = [["row", "frames", "value", "to reach", "seeds: result", "mean", "lessons", "seconds"]]
    for row in ROWS:
        runs = results_of_row(row.name, results) if row.world != "Minefield" else []
        for value in runs[0]["values"] if runs else ():
            numbers = [run["values"][value] for run in runs]
            each = zip(runs, numbers, strict=True)
            rows.append(
                [
                    row.name,
                    f"{runs[0]['frames']:,}",
                    value,
                    row.asked,
                    ", ".join(f"{run['seed']}: {x:.3f}" for run, x in each),
                    with_interval(numbers),
                    *lessons_and_seconds(runs),
                ]
            )
    lines += table(rows) + minefield_lines(results)
    commits = sorted({run["commit"] for run in results})
    lines += [
        "",
        f"*lessons* is the number of lessons that were begun. Commits: {', '.join(commits)}.",
    ]
    return "\n".join([*lines, "", *([speed] if speed else [])]).rstrip() + "\n"


def minefield_lines(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the table of agents in Minefield, by number of mines in the evaluation."""
    rows = [["trained with", "frames", *(f"{n} mines" for n in MINES), "lessons", "seconds"]]
    for row in ROWS:
        runs = results_of_row(row.name, results) if row.world == "Minefield" else []
        if runs:
            by_mines = (with_interval([run["values"][f"{n} mines"] for run in runs]) for n in MINES)
            frames = f"{runs[0]['frames']:,}"
            name = row.name.partition(", ")[2]
            rows.append([name, frames, *by_mines, *lessons_and_seconds(runs)])
    asked = "Target relative to 10 mines: at 10 at most 0.01 less, at 40 more."
    longer = (
        "With rollouts of 64 steps, as in `configs/minefield.ron`, instead of 32, two seeds of "
        "int 0 20 avoided no mines for half of the frames. Returns with 10 and with 40 mines were "
        "then 0.988 and 0.918, against 0.996 and 0.967 of 10 mines, and 0.998 and 0.981 of the "
        "ramp (commit 1862ffc)."
    )
    lines = ["", "## Minefield", "", asked, "", *table(rows), "", longer]
    return lines if len(rows) > 1 else []


def lessons_and_seconds(runs: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return the number of stages that were started, and the seconds, of each seed."""
    lessons_begun = ", ".join(str(len(run["reached"]) or "-") for run in runs)
    return lessons_begun, ", ".join(f"{run['seconds']:.0f}" for run in runs)


def with_interval(numbers: Sequence[float]) -> str:
    """Format a mean with its 95% confidence interval."""
    mean, count = statistics.mean(numbers), len(numbers)
    if count < 2:
        return f"{mean:.3f}"
    half = t_quantile_975(count - 1) * statistics.stdev(numbers) / math.sqrt(count)
    return f"{mean:.3f} ± {half:.3f}"


def draw_locks(results: Sequence[dict[str, Any]], path: Path) -> None:
    """Plot evaluations of Locks during training, as means over seeds."""
    curves = []
    for row in ROWS:
        curves_of_row = [
            curve["curve"] for curve in results_of_row(row.name, results) if row.world == "Locks"
        ]
        if curves_of_row and curves_of_row[0]:
            steps = np.array([step for step, _ in curves_of_row[0]], np.float64)
            values = np.array([[value for _, value in curve] for curve in curves_of_row])
            curves.append(Curve(row.name.partition(", ")[2], steps, values.mean(axis=0), None))
    if curves:
        draw({"return with twelve locks": curves}, path)


class RemadeMinefield(Minefield):
    """Minefield without `set_parameters`, which is constructed again for each episode."""

    def __init__(self, max_mines: int = 10) -> None:
        super().__init__(max_mines)
        self.set_parameters = None  # type: ignore[assignment]


def speed_text(updates: int) -> str:
    """Measure the speed and return its section of the document."""
    small = ("rollout.num_envs=512", f"rollout.steps={SPEED_FRAMES // 512}", *SPEED_NETWORK)
    varied = 'env.vary.max_mines="int 10 10"'
    taught = lessons(
        "mines",
        'name: "a", vary: {"max_mines": "int 10 10"}, until: ["episodic_reward.mean >= 9"]',
        'name: "b", vary: {"max_mines": "10"}',
    )
    head = ["processes", "arguments", "frames/s", "relative: wall, processor", "to reach"]
    rows = [head]
    for processes in (1, 2):
        settings = (*small, f"rollout.processes={processes}")
        cases: dict[str, tuple[Any, Sequence[str]]] = {
            "fixed": (Minefield, settings),
            "fixed, again": (Minefield, settings),
            "env.vary, by set_parameters": (Minefield, (*settings, varied)),
            "env.vary, by the constructor": (RemadeMinefield, (*settings, varied)),
            "a curriculum": (Minefield, (*settings, taught)),
        }
        times = times_in_turns(cases, updates)
        fixed, by_set = times["fixed"], times["env.vary, by set_parameters"]
        asked = {"env.vary, by set_parameters": "0.98", "env.vary, by the constructor": ""}
        for name, seconds in times.items():
            speed = f"{SPEED_FRAMES / statistics.median(seconds.wall):,.0f}"
            ratio = "{:.3f}, {:.3f}".format(*relative_speed(fixed, seconds))
            rows.append([str(processes), name, speed, ratio, asked.get(name, "")])
        ratio = "{:.3f}, {:.3f}".format(*relative_speed(by_set, times["a curriculum"]))
        rows.append([str(processes), "a curriculum, relative to env.vary", "", ratio, "0.99"])
    lines = [
        "## Speed",
        "",
        f"`python benchmarks/curriculum.py speed` at {short_revision()} on {processor()}: "
        f"Minefield with 512 environments, one thread for learning, {updates} updates of each run, "
        "which take turns. Ratios are medians over adjacent rounds, in wall-clock time and in "
        "processor time of all processes; *fixed, again* shows the noise. All runs "
        "see the same frames, as the samplers draw the value that the argument has anyway.",
        "",
        *table(rows),
    ]
    return "\n".join(lines)


def drawn_document(results: Sequence[dict[str, Any]], speed: str) -> str:
    """Draw the figure of the document and return the document."""
    draw_locks(results, RESULTS.with_suffix(".svg"))
    return document(results, speed)


if __name__ == "__main__":
    rows = {row.name: row for row in ROWS}
    train_or_measure(__doc__, __file__, RESULTS, rows, train_row, speed_text, drawn_document)
