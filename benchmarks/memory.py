"""Agents with memory: learning results, ablations, and training speed.

    python benchmarks/memory.py learn [ROW ...] [--seeds 3] [--jobs 2] [--sb3 PYTHON]
    python benchmarks/memory.py speed [--updates 20]

Results are in `results/memory.md`. Finished runs are stored as JSON lines next to it and are not
repeated. Agents are evaluated after training, with sampled actions. Controls, and rows without a
target, are trained with one seed. `--sb3` is a Python with sb3-contrib, popgym and this package,
which trains the rows of SB3-contrib; without one they are skipped.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from kept_runs import kept_speed, learn_or_speed, left_to_run, read_kept, run_all
from measured_on import short_revision
from trained import (
    RECENT,
    frames_by_seed,
    results_of_row,
    seconds_in_turns,
    table,
    train_and_measure,
)

from enn_trainer import EvalConfig
from entity_env import EnvList, SelectEntityAction, SelectEntityActionMask
from entity_env.examples import Pairs, VecMinefield
from entity_env.examples.cherry_pick import CherryPick

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks/results/memory.md"
EPISODES = 2000
"""Number of episodes of an evaluation."""
MORE_FRAMES = 1.3
"""Maximal ratio of frames to learn with and without memory, where memory is not needed."""


class Row(NamedTuple):
    """An environment and settings of a training run.

    Attributes:
        name: name on the command line.
        config: file in `configs/`, without ".ron"; None for the default settings.
        overrides: overrides of the configuration.
        bar: target; None if the result is only reported.
        is_control: True for an ablation that should miss the target.
        metric: metric of the result.
        almost: mean return during training, the frames to reach it are reported.
        sb3: arguments of SB3-contrib's `RecurrentPPO`, and "n_envs", for a row of that trainer.
    """

    name: str
    config: str | None
    overrides: tuple[str, ...]
    bar: float | None = None
    is_control: bool = False
    metric: str = "episodic_reward"
    almost: float | None = None
    sb3: Mapping[str, Any] | None = None

    @property
    def has_seeds(self) -> bool:
        """False if one seed is enough."""
        return self.bar is not None and not self.is_control

    @property
    def asked(self) -> str:
        """Target as text."""
        if self.bar is None:
            return ""
        is_less_better = self.metric == "moves"
        if self.is_control:
            return f"{'above' if is_less_better else 'below'} {self.bar}"
        return f"at most {self.bar}" if is_less_better else f"{self.bar}"


_HIDDEN, _NAMED = 'env.kwargs={"hidden": 4}', 'env.kwargs={"named": true}'
_CONTROL = "total_timesteps=100000"
_NO_MEMORY = ("net.memory=None", "ppo.seq_len=None")
_OF_FRAME = 'net.memory=(of: "frame")'

# Environments of popgym reward each step for its own choice. Once nearly all choices are right,
# normalized advantages are mostly noise and undo the learning progress.
_REPEAT = (
    "net.d_model=32",
    "net.n_layer=1",
    "rollout.num_envs=128",
    "ppo.gamma=0",
    "ppo.reward_scaling=true",
    "ppo.norm_adv=false",
    "ppo.ent_coef=0.03",
)
_FIRST, _PREVIOUS = (f"popgym:popgym-Repeat{which}Easy-v0" for which in ("First", "Previous"))
_REPEAT_FIRST = (
    *_REPEAT,
    f"env.id=gymnasium:{_FIRST}",
    "total_timesteps=496128",
    "rollout.steps=51",  # an episode
    "optim.bs=816",
    "optim.lr=0.002",
    "optim.anneal_lr=true",
)
_REPEAT_PREVIOUS = (
    *_REPEAT,
    f"env.id=gymnasium:{_PREVIOUS}",
    "total_timesteps=499712",
    "rollout.steps=32",
    "optim.bs=1024",
    "optim.lr=0.003",
    "optim.anneal_lr=true",
)
_RECURRENT = {"n_envs": 128, "n_epochs": 3, "gamma": 0.0}

ROWS = [
    Row("Shells", "shells", (), 0.98),
    Row("Shells, no memory", "shells", (*_NO_MEMORY, _CONTROL), 0.28, True),
    Row("Shells, of frame", "shells", (_OF_FRAME, _CONTROL), 0.28, True),
    Row("Shells, new ids", "shells", ('env.kwargs={"new_ids": true}', _CONTROL), 0.28, True),
    Row("Shells, seq_len=1", "shells", ("ppo.seq_len=1",)),
    Row("Shells hidden", "shells", (_HIDDEN, "net.memory=(keep_absent: 4)"), 0.98),
    Row(
        "Shells hidden, keep_absent=3",
        "shells",
        (_HIDDEN, "net.memory=(keep_absent: 3)", _CONTROL),
        0.28,
        True,
    ),
    Row("Shells named", "shells", (_NAMED, 'net.memory=(of: "entity")'), 0.98),
    Row(
        "Shells named, keep_absent=0",
        "shells",
        (_NAMED, 'net.memory=(of: "entity", keep_absent: 0)', _CONTROL),
        0.29,
        True,
    ),
    Row("HiddenArm", "hidden_arm", (), 17.0),
    Row("HiddenArm, no inputs", "hidden_arm", (_OF_FRAME,), 6.0, True),
    Row("RepeatFirstEasy", None, (*_REPEAT_FIRST, _OF_FRAME), 0.95),
    Row("RepeatFirstEasy, no memory", None, _REPEAT_FIRST, -0.45, True),
    Row(
        "RepeatFirstEasy, RecurrentPPO",
        None,
        (),
        sb3={"env_id": _FIRST, "frames": 496_128, "n_steps": 51, "batch_size": 816, **_RECURRENT},
    ),
    Row("RepeatPreviousEasy", None, (*_REPEAT_PREVIOUS, _OF_FRAME, "ppo.seq_len=16"), 0.9),
    Row("RepeatPreviousEasy, no memory", None, _REPEAT_PREVIOUS, -0.45, True),
    Row(
        "RepeatPreviousEasy, RecurrentPPO",
        None,
        (),
        sb3={
            "env_id": _PREVIOUS,
            "frames": 499_712,
            "n_steps": 32,
            "batch_size": 1024,
            **_RECURRENT,
        },
    ),
    # No memory needed: frames to 95% of the target are compared.
    Row("MoveToOrigin", "move_to_origin", ("net.memory=()",), 0.98, almost=0.931),
    Row("MoveToOrigin, no memory", "move_to_origin", (), 0.98, almost=0.931),
    Row("FloorIsLava", "floor_is_lava", ("net.memory=()",), 0.99, almost=0.9405),
    Row("FloorIsLava, no memory", "floor_is_lava", (), 0.99, almost=0.9405),
    Row("Pairs", "pairs", (), 14.0, metric="moves"),
    Row("Pairs, no memory", "pairs", _NO_MEMORY, 30.0, True, metric="moves"),
    Row("Pairs, of frame", "pairs", (_OF_FRAME,), 30.0, True, metric="moves"),
    Row("Pairs, seq_len=1", "pairs", ("ppo.seq_len=1",), metric="moves"),
]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Train an agent with one seed in this process and evaluate it."""
    start = time.perf_counter()
    if row.sb3 is not None:
        import memory_sb3

        model = memory_sb3.train(row.sb3, seed)
        done = {"frames": model.num_timesteps, "seconds": time.perf_counter() - start}
        done["value"] = memory_sb3.mean_return(model, row.sb3, EPISODES)
    else:
        settings = EvalConfig(episodes=EPISODES, num_envs=200, seed=1, max_steps=100_000)
        done = train_and_measure(
            row.config, row.overrides, seed, {"value": settings}, row.metric, row.almost
        )
    rounded = {"seconds": round(done["seconds"], 1)}
    return {"row": row.name, "seed": seed, **done, **rounded, "commit": short_revision()}


def moves_of_script(games: int) -> float:
    """Return the mean number of moves in `Pairs` of a player with perfect memory.

    It turns known pairs first, then unknown cards.
    """
    moves = []
    for seed in range(games):
        game = Pairs()
        game.seed(seed)
        obs = game.reset()
        faces: dict[Any, str] = {}  # picture of each card seen so far, by id
        while not obs.done:
            mask = obs.actions["turn"]
            assert isinstance(mask, SelectEntityActionMask)
            free = [*mask.actee_ids]
            unknown = [card for card in free if card not in faces]
            known_faces = [faces[card] for card in free if card in faces]
            up = [card for card in obs.ids["Card"] if card not in free]
            target_faces = {faces[card] for card in up} or {
                face for face in known_faces if known_faces.count(face) == 2
            }
            card = next((card for card in free if faces.get(card) in target_faces), None)
            choice = (unknown or free)[0] if card is None else card
            obs = game.act({"turn": SelectEntityAction(["player"], [choice])})
            for card, (face,) in zip(obs.ids["Card"], obs.features["Card"], strict=True):
                if face != "down":
                    faces[card] = face
        moves.append(obs.metrics["moves"])
    return statistics.mean(moves)


# -- Speed -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Environment and settings to compare training with and without memory, at equal depth.

    Attributes:
        world: environment class.
        settings: settings of both.
        bars: target ratio by the kind of memory.
    """

    world: Any
    settings: tuple[str, ...]
    bars: Mapping[str, float]


CASES = {
    "Minefield, d_model 32": Case(
        VecMinefield,
        ("net.d_model=32", "rollout.num_envs=128", "rollout.processes=1"),
        {"both": 0.55, "frame": 0.75},
    ),
    "CherryPick, d_model 128": Case(
        CherryPick,
        ("net.d_model=128", "rollout.num_envs=64", "rollout.processes=1"),
        {"both": 0.75},
    ),
}


def measure_speed(case: Case, updates: int) -> dict[str, float]:
    """Return the median seconds of an update by kind of memory; runs alternate update by update."""
    kinds = {"": ("net.n_layer=2",)}
    kinds |= {kind: ("net.n_layer=1", f'net.memory=(of: "{kind}")') for kind in case.bars}
    cases = {kind: (case.world, (*case.settings, *more)) for kind, more in kinds.items()}
    return seconds_in_turns(cases, updates)


def measure_tracking(steps: int = 300, num_envs: int = 64) -> float:
    """Return the relative cost of `track` in environments with 4 types and 32 entities."""
    from entity_env import (
        CategoricalActionMask,
        CategoricalActionSpace,
        Entity,
        Environment,
        Observation,
        ObsSpace,
        PlainState,
        Ragged,
    )

    class Crowd(PlainState, Environment):
        """Four types of eight walkers."""

        names = ("Cat", "Dog", "Cow", "Hen")

        def obs_space(self) -> ObsSpace:
            """Return the space of the walkers."""
            return ObsSpace(entities={name: Entity(["x", "y", "age"]) for name in self.names})

        def action_space(self) -> dict[str, Any]:
            """Return the action of cats."""
            return {"go": CategoricalActionSpace(["left", "right"])}

        def reset(self) -> Observation:
            """Place the walkers at random."""
            self.places = self.rng.choices(range(100), k=32)
            self.step = 0
            return self.observe()

        def act(self, actions: Any) -> Observation:
            """Move all walkers."""
            self.step += 1
            moves = self.rng.choices((-1, 0, 1), k=32)
            self.places = [x + dx for x, dx in zip(self.places, moves, strict=True)]
            return self.observe()

        def observe(self) -> Observation:
            """Return the observation of all walkers."""
            rows = [[float(x), float(x % 7), float(self.step)] for x in self.places]
            parts = {name: slice(8 * i, 8 * i + 8) for i, name in enumerate(self.names)}
            return Observation(
                features={name: rows[part] for name, part in parts.items()},
                ids={name: [*range(part.start, part.stop)] for name, part in parts.items()},
                actions={"go": CategoricalActionMask(actor_types=["Cat"])},
                done=self.step == 50,
            )

    envs = [EnvList(Crowd, num_envs), EnvList(Crowd, num_envs)]
    envs[1].track()
    choices = Ragged(np.zeros(8 * num_envs, np.int64), np.full(num_envs, 8))
    best = [float("inf")] * 2
    for env in envs:
        env.seed(1)
        env.reset(env.obs_space())
    for _ in range(steps):
        for i, env in enumerate(envs):
            start = time.perf_counter()
            env.act({"go": choices}, env.obs_space())
            best[i] = min(best[i], time.perf_counter() - start)
    return best[1] / best[0] - 1


# -- Results -----------------------------------------------------------------------------------


def document(results: Sequence[dict[str, Any]], speed: str) -> str:
    """Return the document with the results."""
    head = ["world and settings", "frames", "metric", "to reach", "seeds: result", "median"]
    rows = [[*head, "seconds"]]
    for row in ROWS:
        if runs := results_of_row(row.name, results):
            by_seed = ", ".join(f"{r['seed']}: {r['value']:.3f}" for r in runs)
            median = f"{statistics.median(r['value'] for r in runs):.3f}"
            seconds = ", ".join(f"{r['seconds']:.0f}" for r in runs)
            frames = f"{runs[0]['frames']:,}"
            rows.append([row.name, frames, row.metric, row.asked, by_seed, median, seconds])
    script = f"{moves_of_script(EPISODES):.3f}"
    rows.append(["Pairs, a script that remembers every card", "", "moves", "", "", script, ""])
    commits = ", ".join(dict.fromkeys(r["commit"] for r in results))
    return "\n".join(
        [
            "# Memory",
            "",
            f"`python benchmarks/memory.py learn` at {commits}. Settings are those in `configs/`, "
            f"with the changes in `benchmarks/memory.py`; {EPISODES:,} episodes with sampled "
            "actions. Runs have one thread and run in parallel with others, on two kinds of "
            "machines; one is four times as fast. *Below* and *above* are for controls, which lack "
            "the memory that is needed; rows without a target are for comparison. Fewer "
            "`moves` are better. RepeatFirstEasy and RepeatPreviousEasy are worlds of popgym; "
            "RecurrentPPO is SB3-contrib's, with the same number of environments, steps, epochs "
            "and frames per minibatch, the same discount, and otherwise default settings.",
            "",
            *table(rows),
            *_nothing_to_remember(results),
            "",
            speed.strip(),
            "",
        ]
    )


def _nothing_to_remember(results: Sequence[dict[str, Any]]) -> list[str]:
    """Return the section about environments that need no memory, [] without results."""
    rows = [["world", "return", "with memory", "without", "ratio of medians", "to reach"]]
    for row in ROWS:
        both = [results_of_row(name, results) for name in (row.name, f"{row.name}, no memory")]
        if row.almost is None or not all(both):
            continue
        by_seed, frames = zip(*map(frames_by_seed, both), strict=True)
        ratio = f"{frames[0] / frames[1]:.2f}"
        rows.append([row.name, f"{row.almost:g}", *by_seed, ratio, f"at most {MORE_FRAMES}"])
    if len(rows) == 1:
        return []
    return [
        "",
        "## Nothing to remember",
        "",
        f"Frames after which the mean return while training, of {RECENT} updates, first is 95% of "
        "the target, by seed.",
        "",
        *table(rows),
    ]


def speed_text(updates: int) -> str:
    """Measure the speed and return its section of the document."""
    lines = [
        "## Speed",
        "",
        f"`python benchmarks/memory.py speed` at {short_revision()}: frames a second of training "
        "relative to no memory, at equal numbers of blocks (1 + 1 against 2); runs of one thread "
        f"alternate, the median of {updates} updates.",
        "",
        "| world | memory of | ratio | to reach |",
        "| --- | --- | --- | --- |",
    ]
    for name, case in CASES.items():
        seconds = measure_speed(case, updates)
        for kind, bar in case.bars.items():
            lines.append(f"| {name} | {kind} | {seconds[''] / seconds[kind]:.2f} | {bar} |")
    lines += ["", f"`track` adds {measure_tracking():.1%} to a step of `EnvList` (at most 10%)."]
    return "\n".join(lines)


def has_sb3(python: str) -> bool:
    """Return True if a Python has the packages for the rows of SB3-contrib."""
    needs = [python, "-c", "import sb3_contrib, popgym"]
    return subprocess.run(needs, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Train missing runs, or measure the speed, and write the results."""
    by_name = {row.name: row for row in ROWS}
    parser = learn_or_speed(__doc__, [*by_name])
    parser.add_argument("--sb3", default=sys.executable, metavar="PYTHON")
    options = parser.parse_intermixed_args()
    if options.one:
        print(json.dumps(run(by_name[options.one[0]], int(options.one[1]))))
        return
    runs_file = RESULTS.with_suffix(".jsonl")
    speed = kept_speed(RESULTS)
    if options.what == "speed":
        speed = speed_text(options.updates)
    else:
        seeds = {row.name: options.seeds if row.has_seeds else 1 for row in ROWS}
        todo = left_to_run(parser, options.rows, seeds, runs_file)
        sb3_runs = [args for args in todo if by_name[args[0]].sb3 is not None]
        run_all(__file__, [args for args in todo if args not in sb3_runs], runs_file, options.jobs)
        if sb3_runs and not has_sb3(options.sb3):
            print(f"RecurrentPPO is skipped: {options.sb3} lacks sb3-contrib or popgym; pass --sb3")
        elif sb3_runs:
            run_all(__file__, sb3_runs, runs_file, options.jobs, options.sb3)
    RESULTS.write_text(document(read_kept(runs_file), speed))
    print(RESULTS.read_text())


if __name__ == "__main__":
    main()
