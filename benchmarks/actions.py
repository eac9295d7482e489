"""Continuous and dependent actions: learning results and training speed.

    python benchmarks/actions.py learn [ROW ...] [--seeds 3] [--jobs 2]
    python benchmarks/actions.py speed [--updates 20]

Results are in `results/actions.md`. Finished runs are stored as JSON lines next to it and are not
repeated.
"""

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from kept_runs import train_or_measure
from measured_on import processor, short_revision
from trained import (
    RECENT,
    frames_by_seed,
    results_of_row,
    seconds_in_turns,
    table,
    train_and_measure,
)

from enn_trainer import CloneRunConfig, EvalConfig, clone
from enn_trainer.config.eval_config import EvalEnvConfig
from enn_trainer.config.load import load_config
from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    EnvList,
    Observation,
    ObsSpace,
    PlainState,
    Ragged,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.mapping import Choice, FieldMap
from entity_env.examples import Medics, MoveToOrigin, Tugs
from entity_env.recording.record import RecordingVecEnv

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/actions.md"
EPISODES = 2000
"""Number of episodes in which an agent, a script or the best choices are measured."""
SHIPS = 12
"""Number of tugs in the generalisation test; agents are trained with 1 to 6."""
OF_BEST = 0.95
"""Share of the best return in Medics up to which frames are counted."""
FEWER = 0.7
"""Maximal number of frames relative to independent actions."""
TORQUES = [[-2.0], [-1.0], [0.0], [1.0], [2.0]]

_MANY = EvalConfig(episodes=EPISODES, num_envs=200, seed=1, max_steps=100_000)
_GREEDY = EvalConfig(episodes=100, num_envs=100, seed=1, max_steps=100_000, deterministic=True)


# -- Worlds ------------------------------------------------------------------------------------


class Post(PlainState, Environment):
    """A single unit that heals a or attacks b; its two actions are dependent if `chained`."""

    def __init__(self, chained: bool = True) -> None:
        self.chained = chained

    def obs_space(self) -> ObsSpace:
        """Return the space of the acting unit and the targets a and b."""
        return ObsSpace(entities={"Unit": Entity(["x"]), "Aim": Entity(["is_b"])})

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: a command and its target."""
        whom = SelectEntityActionSpace()
        if self.chained:
            whom = SelectEntityActionSpace(after="do", when=["heal", "attack"])
        return {"do": CategoricalActionSpace(["heal", "attack"]), "whom": whom}

    def reset(self) -> Observation:
        """Start an episode of one step."""
        return self._observe(done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """End the episode."""
        return self._observe(done=True)

    def _observe(self, done: bool) -> Observation:
        return Observation(
            features={"Unit": [[self.rng.random()]], "Aim": [[0.0], [1.0]]},
            actions={
                "do": CategoricalActionMask(actor_types=["Unit"]),
                "whom": SelectEntityActionMask(actor_types=["Unit"], actee_types=["Aim"]),
            },
            done=done,
        )


class Thrust(MoveToOrigin):
    """MoveToOrigin with two continuous components instead of ten labels."""

    masks: ClassVar[Mapping[str, Any]] = {"thrust": ContinuousActionMask()}

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the action: accelerations along both axes."""
        return {"thrust": ContinuousActionSpace({"x": (-0.01, 0.01), "y": (-0.01, 0.01)})}

    def act(self, actions: Mapping[str, Action]) -> Observation:
        """Fly with these accelerations."""
        thrust = actions["thrust"]
        assert isinstance(thrust, ContinuousAction)
        ((x, y),) = thrust.values.tolist()
        return self.fly(x, y)


class Untold(Medics):
    """Medics without informative masks, so that both kinds of actions have equal costs."""

    def __init__(self, is_chain: bool) -> None:
        super().__init__(chained=False)
        self.is_chain = is_chain

    def action_space(self) -> dict[str, ActionSpace]:
        """Return the actions: a command and its target."""
        return Medics(self.is_chain).action_space()


@cache
def return_of_script(ships: int) -> float:
    """Return the mean return of the scripted controller of `Tugs`."""
    return statistics.mean(_played(Tugs(ships), lambda world: {"push": world.scripted()}))


@cache
def best_return() -> float:
    """Return the mean return in `Medics` of a player that always treats the most severe ailment."""

    def treat(world: Medics) -> dict[str, Action]:
        worst = max(range(len(world.units)), key=lambda i: world.units[i][0])
        command = CategoricalAction([0], np.array([world.units[worst][1]]), [])
        return {"command": command, "whom": SelectEntityAction([0], [worst])}

    return statistics.mean(_played(Medics(chained=False), treat))


def _played(world: Any, choose: Callable[[Any], dict[str, Action]]) -> list[float]:
    """Return the returns of `EPISODES` episodes, (EPISODES,)."""
    returns = []
    for seed in range(EPISODES):
        world.seed(seed)
        obs, total = world.reset(), 0.0
        while not obs.done:
            obs = world.act(choose(world))
            total += obs.reward
        returns.append(total)
    return returns


# -- Learning ----------------------------------------------------------------------------------


def pendulum(overrides: Sequence[str], seed: int, world: Any = None) -> dict[str, Any]:
    """Train in Pendulum-v1 and evaluate greedily."""
    return train_and_measure("pendulum", overrides, seed, {"value": _GREEDY}, world=world)


def tugs(overrides: Sequence[str], seed: int, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Train tugs; return their score relative to the script, also with more ships."""
    more = EvalEnvConfig(kwargs=json.dumps({**kwargs, "ships": SHIPS}))
    evaluations = {"value": _MANY, "unseen": replace(_MANY, env=more)}
    settings = [*overrides, f"env.kwargs={json.dumps(kwargs)}"]
    done = train_and_measure("tugs", settings, seed, evaluations)
    done["value"] /= return_of_script(0)
    done["unseen"] /= return_of_script(SHIPS)
    return done


def medics(overrides: Sequence[str], seed: int) -> dict[str, Any]:
    """Train medics; return their share of the best return, and the frames to reach most of it."""
    almost = OF_BEST * best_return()
    done = train_and_measure("medics", overrides, seed, {"value": _MANY}, almost=almost)
    done["value"] /= best_return()
    return done


def cloning(overrides: Sequence[str], seed: int, chained: bool, steps: int = 600) -> dict[str, Any]:
    """Clone an expert that does (heal, a) or (attack, b) evenly; return the loss per decision."""
    start, num_envs = time.perf_counter(), 64
    small = ("clone.epochs=2", "clone.value_coef=0", "clone.lr=0.003", "clone.patience=None")
    world = partial(Post, chained)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        envs = RecordingVecEnv(EnvList(world, num_envs), path)
        envs.seed(seed)
        envs.reset(envs.obs_space())
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            choices = Ragged(rng.integers(2, size=num_envs), np.ones(num_envs, np.int64))
            envs.act({"do": choices, "whom": choices}, envs.obs_space())
        envs.close()
        config = load_config(CloneRunConfig, None, [*small, *overrides, f"seed={seed}"])
        score = clone(path, config, say=lambda message: None).test
    assert score is not None
    decisions = score.decisions / (1 if chained else 2)
    seconds = round(time.perf_counter() - start, 1)
    return {
        "frames": num_envs * steps,
        "value": float(score.imitation) / decisions,
        "seconds": seconds,
    }


class Row(NamedTuple):
    """An environment and its training function.

    Attributes:
        name: name on the command line.
        train: function of overrides and a seed that trains and returns the results.
        shows: description of the result.
        asked: target, as text; "" for a control.
        overrides: overrides of the configuration.
    """

    name: str
    train: Callable[..., dict[str, Any]]
    shows: str
    asked: str = ""
    overrides: tuple[str, ...] = ()


_FIVE = FieldMap(actions={"action": Choice(values=TORQUES)})
_TORQUES = FromGymnasium.of("Pendulum-v1", _FIVE)
_UNCHAINED = ('env.kwargs={"chained": false}',)
ROWS = [
    Row("Pendulum", pendulum, "return, greedy, 100 episodes", "-230 (aim -180)"),
    Row("Pendulum, 5 values", partial(pendulum, world=_TORQUES), "return, greedy, 100 episodes"),
    Row("Tugs", partial(tugs, kwargs={}), "share of the script", "0.9; 12 ships 0.8"),
    Row(
        "Tugs, bounds not in the mask",
        partial(tugs, kwargs={"bounded": False}),
        "share of the script",
    ),
    Row("Medics", medics, "share of the best", f"{OF_BEST} in {FEWER} of the frames"),
    Row("Medics, independent", medics, "share of the best", overrides=_UNCHAINED),
    Row("Cloning", partial(cloning, chained=True), "loss of a decision", "0.693 ± 0.02"),
    Row(
        "Cloning, independent",
        partial(cloning, chained=False),
        "loss of a decision",
        "never below 1.386",
    ),
]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Train with one seed in this process."""
    done = row.train(row.overrides, seed)
    return {"row": row.name, "seed": seed, **done, "commit": short_revision()}


# -- Speed -------------------------------------------------------------------------------------

_SMALL = ("rollout.num_envs=128", "rollout.steps=32", "rollout.processes=1", "optim.bs=512")
CASES = {
    "MoveToOrigin, 2 numbers against 10 labels": (Thrust, MoveToOrigin, "0.9"),
    "Medics, a chain against two independent actions": (
        partial(Untold, True),
        partial(Untold, False),
        "0.85",
    ),
    "Medics, a chain with masks by label, made by the environment, against two without masks": (
        partial(Medics, True),
        partial(Medics, False),
        "",
    ),
}


def speed_text(updates: int) -> str:
    """Measure the speed and return its section of the document."""
    rows = [["world", "ratio", "to reach"]]
    for name, (world, baseline, bar) in CASES.items():
        seconds = seconds_in_turns({"": (baseline, _SMALL), "new": (world, _SMALL)}, updates)
        rows.append([name, f"{seconds[''] / seconds['new']:.2f}", bar])
    return "\n".join(
        [
            "## Speed",
            "",
            f"`python benchmarks/actions.py speed` at {short_revision()}: frames a second of "
            f"training in ratios ({processor()}); runs of one thread take turns, the median of "
            f"{updates} updates.",
            "",
            *table(rows),
        ]
    )


# -- Results -----------------------------------------------------------------------------------


def document(results: Sequence[dict[str, Any]], speed: str) -> str:
    """Return the document with the results."""
    rows = [["world", "frames", "result", "to reach", "seeds: result", "median", "seconds"]]
    for row in ROWS:
        runs = results_of_row(row.name, results)
        for key, more in (("value", ""), ("unseen", f", {SHIPS} ships")):
            if measured := [r for r in runs if key in r]:
                by_seed = ", ".join(f"{r['seed']}: {r[key]:.4g}" for r in measured)
                median = f"{statistics.median(r[key] for r in measured):.4g}"
                seconds = ", ".join(f"{r['seconds']:.0f}" for r in measured)
                frames = f"{measured[0]['frames']:,}"
                rows.append(
                    [row.name + more, frames, row.shows, row.asked, by_seed, median, seconds]
                )
    sides = [results_of_row(name, results) for name in ("Medics", "Medics, independent")]
    faster = []
    if all(sides):
        (chained, chain), (independent, separate) = map(frames_by_seed, sides)
        faster = [
            "",
            f"Medics: frames after which the mean return while training, of {RECENT} updates, "
            f"first is {OF_BEST} of the best: {chained} as a chain, {independent} independently; "
            f"the ratio of medians is {chain / separate:.2f} (at most {FEWER}, aim 0.5).",
        ]
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    return "\n".join(
        [
            "# Continuous and dependent actions",
            "",
            f"`python benchmarks/actions.py learn` at {commits}. Settings are those in "
            "`configs/`. Runs have one thread and run in parallel with others, cloning on a slower "
            f"machine; {EPISODES:,} episodes with sampled actions, if not greedy. The "
            f"script gets {return_of_script(0):.3f} in Tugs, {return_of_script(SHIPS):.3f} with "
            f"{SHIPS} ships; the best return in Medics is {best_return():.3f}. Two parts of a "
            f"cloned decision have ln 2 = {math.log(2):.3f} as a chain, and 2 ln 2 = "
            f"{2 * math.log(2):.3f} independently, at best; on few frames the loss may be lower by "
            "chance.",
            "",
            *table(rows),
            *faster,
            "",
            speed.strip(),
            "",
        ]
    )


if __name__ == "__main__":
    rows = {row.name: row for row in ROWS}
    train_or_measure(__doc__, __file__, RESULTS, rows, run, speed_text, document)
