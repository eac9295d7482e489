"""Lessons in training: when they change, for which episodes, and after a resume."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import ConfigError, NotFiniteError, StateManager, Trainer, load_checkpoint, train
from enn_trainer.callbacks import Callback
from enn_trainer.curriculum.lessons import LessonProgress, Lessons
from enn_trainer.curriculum.rounds import ROUNDS, metric_of
from entity_env import Observation
from entity_env.errors import InvalidSampler
from entity_env.examples import Duel, Locks, Minefield
from entity_env.recording.read_recording import Recording
from tests.enn_trainer.builders import POOL
from tests.enn_trainer.callbacks.lesson_worlds import (
    Crowded,
    Forgetful,
    Slow,
    Stateless,
    Uneven,
)
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, go, tracked
from tests.enn_trainer.worlds import Meadow

TINY = [
    "rollout.num_envs=6",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=16",
    "net.d_model=8",
    "net.n_layer=1",
    "cuda=false",
]
PER_UPDATE = 48
EVAL = ["eval.episodes=12", "eval.num_envs=6", "eval.interval=96"]


def lessons_in(folder: Path) -> list[float]:
    """The lesson in each update of a run."""
    rows = tracked(folder / "run/metrics.jsonl")
    return [row["curriculum/c/lesson"] for row in rows if "curriculum/c/lesson" in row]


def recorded(folder: Path) -> list[tuple[int, list[int], Mapping[str, Any]]]:
    """Number, steps and arguments of the episodes that a run recorded."""
    episodes = Recording.open(folder / "a.rec").episodes()
    return [(one.number, one.steps.tolist(), one.parameters) for one in episodes]


def taught(*lessons: str, more: str = "", name: str = "c") -> str:
    """A setting with one curriculum of the lessons."""
    return f'curricula={{"{name}": (lessons: [{", ".join(f"({one})" for one in lessons)}]{more})}}'


def lesson(name: str, length: str, rest: str = "") -> str:
    return f'name: "{name}", vary: {{"length": "{length}"}}{rest}'


SHORT = lesson("short", "int 1 2", ', until: ["opened.mean >= 0.4"], episodes: 30')
LONG = lesson("long", "int 3 9")
LATER = lesson("first", "1", f', until: ["step >= {3 * PER_UPDATE}"]')


class Watched(Callback):
    """Metrics of each update, by tag."""

    def __init__(self) -> None:
        self.updates: list[dict[str, float]] = []
        self.ended: list[list[tuple[int, float]]] = []

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        metrics = rollout.episodes.metrics
        (length, *_) = [v for name, v in metrics.items() if name.startswith("parameters/")] or [[]]
        self.ended.append([*zip(metrics.get("lesson/c", []), length, strict=True)])

    def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        self.updates.append(metrics)

    def of(self, tag: str) -> list[float]:
        return [metrics.get(f"curriculum/c/{tag}", -1.0) for metrics in self.updates]


def run(
    folder: Path, *settings: str, updates: int = 8, env: Any = Locks
) -> tuple[Watched, Mapping[str, LessonProgress]]:
    """Some updates of a run."""
    watched = Watched()
    manager = StateManager(overrides=[*TINY, f"data_dir={folder}", *settings])
    with Trainer(manager, env, callbacks=[watched]) as trainer:
        for _ in range(updates):
            trainer.step()
    return watched, progress_of(manager)


def progress_of(manager: StateManager) -> Mapping[str, LessonProgress]:
    part = manager.state.parts["curriculum"]
    assert isinstance(part, Lessons)
    return part.curricula


@pytest.mark.slow
def test_a_stage_begins_once_the_previous_stage_is_mastered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watched, state = run(tmp_path, taught(SHORT, LONG), updates=6)
    changed = watched.of("lesson").index(1)
    assert changed >= 1
    assert watched.of("measure")[changed - 1] >= 0.4
    assert watched.of("episodes")[changed - 1] >= 30
    step = changed * PER_UPDATE
    at, why = state["c"].begun["long"]
    assert (state["c"].lesson, at) == ("long", step)
    assert why.startswith("opened.mean >= 0.4: 0.")
    assert why.endswith(" over 30 episodes")
    assert f"curriculum c: lesson long begins after short, as {why}" in capsys.readouterr().out


@pytest.mark.slow
def test_only_episodes_that_began_in_the_stage_count(tmp_path: Path) -> None:
    """Those that go on over a change, and over ends of rollouts, have the arguments of before."""
    long = 'name: "{}", vary: {{"max_steps": "{}"}}'
    lessons = [long.format("a", 40) + f', until: ["step >= {PER_UPDATE}"]', long.format("b", 3)]
    still = 'env.kwargs={"max_mines": 0, "width": 9000}'
    watched, _ = run(tmp_path, taught(*lessons), still, env=Minefield, updates=7)
    assert watched.of("lesson") == [0, 1, 1, 1, 1, 1, 1]
    # Episodes of 40 steps take five rollouts; then there are two or three of three steps in one.
    assert watched.of("episodes")[:5] == [0] * 5
    assert watched.of("episodes")[5:] == [12, 30]


LEVELS = ['name: "easy", vary: {"level": "0"}', 'name: "hard", vary: {"level": "1"}']


@pytest.mark.parametrize(
    "bound", ["win.mean >= 0.9", "win.min >= 1", "episodic_reward.mean >= 0.9"]
)
def test_a_stage_does_not_end_because_short_episodes_end_first(tmp_path: Path, bound: str) -> None:
    """Those that win do so at once, and the others lose 40 steps later."""
    lessons = taught(f'{LEVELS[0]}, until: ["{bound}"], episodes: 5', LEVELS[1])
    watched, state = run(tmp_path, lessons, env=Uneven, updates=6)
    assert watched.updates[0]["win.mean"] > 0.6  # logged as it is
    assert watched.of("lesson") == [0] * 6
    assert watched.of("measure")[0] == -1  # not known
    assert state["c"].episodes > 10
    assert state["c"].num_episodes("win.mean") in (0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [[], ["rollout.processes=2"]])
def test_unfinished_rounds_resume_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    lessons = taught(f'{LEVELS[0]}, until: ["win.mean >= 0.5"], episodes: 9', LEVELS[1])
    both = [*TINY, lessons, "total_timesteps=576", 'stop=["win.mean >= 2"]', *settings]
    one = go(tmp_path / "one", Uneven, *both)
    go(tmp_path / "two", Uneven, *both, stops=3 * PER_UPDATE)
    rounds = load_checkpoint(tmp_path / "two/run").state.parts[ROUNDS]
    assert rounds.rounds.tallies["win"].any()  # type: ignore[attr-defined]
    other = go(tmp_path / "two", Uneven)
    logs = [tracked(tmp_path / name / "run/metrics.jsonl") for name in ("one", "two")]
    assert logs[0] == logs[1]
    for part in ("curriculum", ROUNDS):
        first, second = (manager.state.parts[part].state_dict() for manager in (one, other))
        assert repr(first) == repr(second)
    assert_same(one.state, other.state)


@pytest.mark.slow
def test_arguments_are_drawn_from_the_stage_at_the_start_of_an_episode(tmp_path: Path) -> None:
    watched, _ = run(tmp_path, taught(LATER, lesson("b", "2")))
    pairs = [pair for ended in watched.ended for pair in ended]
    assert {*pairs} == {(0.0, 1.0), (1.0, 2.0)}
    assert watched.of("lesson") == [0, 0, 0, 1, 1, 1, 1, 1]
    # In the first rollout of the new lesson, those that had begun before end as they began.
    assert {number for number, _ in watched.ended[4]} == {1.0}


@pytest.mark.slow
def test_stages_advance_by_evaluations_with_fixed_arguments(tmp_path: Path) -> None:
    until = ', until: ["eval/opened.mean >= 0"]'
    settings = [taught(lesson("a", "1", until), lesson("b", "9")), *EVAL, "total_timesteps=240"]
    settings += ['eval.env.vary.length="int 2 3"', "eval.deterministic=true"]
    one = go(tmp_path / "one", Locks, *TINY, *settings)
    # The evaluation at the begin decides after the first update, as a lesson lasts for one.
    assert lessons_in(tmp_path / "one") == [0, 1, 1, 1, 1]
    assert progress_of(one)["c"].begun["b"][0] == PER_UPDATE

    # What is measured of one agent is the same in any lesson.
    still = []
    for first in ("a", "b"):
        lessons_of = taught(lesson(first, "1" if first == "a" else "7"))
        manager = StateManager(overrides=[*TINY, *settings, lessons_of, f"data_dir={tmp_path}"])
        with Trainer(manager, Locks) as trainer:
            still.append(trainer.evaluate())
    assert still[0] == still[1]


@pytest.mark.slow
def test_a_curriculum_can_depend_on_the_stage_of_another(tmp_path: Path) -> None:
    """Of one that comes before or after it in the settings."""
    other = 'lessons: [(name: "x", vary: {"keys": "2"}, until: ["step >= 48"]), '
    other += '(name: "y", vary: {"keys": "3"})]'
    for tag, begins in ("lesson", 2 * PER_UPDATE), ("episodes", PER_UPDATE):
        one = lesson("a", "1", f', until: ["curriculum/other/{tag} >= 1"]')
        both = [f'"c": (lessons: [({one}), ({LONG})])', f'"other": ({other})']
        for pair in both, both[::-1]:
            _, state = run(tmp_path, f"curricula={{{', '.join(pair)}}}", updates=3)
            assert state["c"].begun["long"][0] == begins


@pytest.mark.slow
def test_an_extra_evaluation_at_the_end_does_not_advance_stages(tmp_path: Path) -> None:
    until = ', until: ["eval/opened.mean >= 0"]'
    lessons = taught(lesson("a", "1", until), lesson("b", "9"))
    settings = [*TINY, lessons, *EVAL, "eval.run_on_first_step=false"]
    one = go(tmp_path, Locks, *settings, "total_timesteps=48")
    assert "eval/opened.mean" in one.state.metrics
    assert progress_of(one)["c"].lesson == "a"
    assert progress_of(go(tmp_path, Locks, "total_timesteps=192"))["c"].begun["b"][0] == 96


@pytest.mark.slow
def test_a_stage_can_go_back(tmp_path: Path) -> None:
    back = f', back: ["lesson_step >= {2 * PER_UPDATE}"]'
    first = lesson("a", "1", f', until: ["lesson_step >= {PER_UPDATE}"]')
    watched, state = run(tmp_path, taught(first, lesson("b", "2", back)), updates=7)
    assert watched.of("lesson") == [0, 1, 1, 0, 1, 1, 0]
    assert state["c"].begun["a"] == [6 * PER_UPDATE, "lesson_step >= 96: 96"]


@pytest.mark.slow
def test_review_episodes_have_a_share_and_do_not_count(tmp_path: Path) -> None:
    lessons = [
        lesson("a", "1", ', until: ["step >= 48"]'),
        lesson("b", "2", ', until: ["step >= 96"]'),
        lesson("c", "3"),
    ]
    watched, state = run(tmp_path, taught(*lessons, more=", review: 0.4"), updates=20)
    pairs = [pair for ended in watched.ended[4:] for pair in ended]
    reviewed = [length for number, length in pairs if number == -1]
    assert abs(len(reviewed) / len(pairs) - 0.4) < 4 * np.sqrt(0.24 / len(pairs))
    assert abs(np.mean(reviewed) - 1.5) < 4 * 0.5 / np.sqrt(len(reviewed))
    assert {length for number, length in pairs if number == 2} == {3}
    counted = sum(number == 2 for ended in watched.ended for number, _ in ended)
    assert watched.of("episodes")[-1] == state["c"].episodes == counted


@pytest.mark.slow
def test_a_ramp_equals_explicit_stages(tmp_path: Path) -> None:
    rest = ', until: ["opened.mean >= 0.3"], back: ["opened.mean <= 0.1"], episodes: 9'
    ramp = f'name: "wider", ramp: {{"length": ["int 1 1", "int 2 6"]}}, count: 3{rest}'
    written = [lesson("wider 1", "int 1 1", rest.replace(', back: ["opened.mean <= 0.1"]', ""))]
    written += [lesson("wider 2", "int 2 4", rest)]
    written += [lesson("wider 3", "int 2 6", rest.replace(', until: ["opened.mean >= 0.3"]', ""))]
    one, other = (
        go(tmp_path / name, Locks, *TINY, setting, "total_timesteps=480")
        for name, setting in (("ramp", taught(ramp)), ("written", taught(*written)))
    )
    assert len(progress_of(one)["c"].begun) > 1
    assert one.numbers == other.numbers  # type: ignore[attr-defined]
    assert (
        one.state.parts["curriculum"].state_dict() == other.state.parts["curriculum"].state_dict()
    )


BOTH = [
    *TINY,
    'env.vary.keys="int 2 4"',
    taught(SHORT.replace("30", "9"), lesson("mid", "int 2 4", ', until: ["step >= 288"]'), LONG)[
        :-1
    ]
    + ', "other": (lessons: [(name: "x", vary: {"slow": "1"}, until: ["losses/entropy <= 9"]), '
    + '(name: "y", vary: {"slow": "choice 1 2"})], review: 0.3, restart: true)}',
    "total_timesteps=432",
]


def assert_same_progress(one: StateManager, other: StateManager) -> None:
    assert (
        one.state.parts["curriculum"].state_dict() == other.state.parts["curriculum"].state_dict()
    )


@pytest.fixture(scope="module")
def straight_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[StateManager, Path]:
    """A run with the settings `BOTH` that nothing stopped, and its folder."""
    folder = tmp_path_factory.mktemp("straight")
    return go(folder, Slow, *BOTH), folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "stops", "first", "second"),
    [
        *((1, -PER_UPDATE, 1, 1), (2, 0, 1, 1), (0, 0, 1, 1)),
        *((1, -PER_UPDATE, 2, 3), (2, 0, 1, 2)),
    ],
)
def test_a_resumed_curriculum_equals_an_uninterrupted_one(
    straight_run: tuple[StateManager, Path],
    tmp_path: Path,
    change: int,
    stops: int,
    first: int,
    second: int,
) -> None:
    """After a SIGTERM, with arguments that vary and two curricula, before and after a change."""
    one, straight = straight_run
    changes = sorted(step for step, _ in progress_of(one)["c"].begun.values())
    assert len(changes) == 3
    assert changes[2] > changes[1] > 0
    stop = changes[change] + stops
    go(tmp_path, Slow, *BOTH, f"rollout.processes={first}", stops=stop)
    assert load_checkpoint(tmp_path / "run").state.step == stop + PER_UPDATE
    other = go(tmp_path, Slow, f"rollout.processes={second}")
    logs = [tracked(path / "run/metrics.jsonl") for path in (tmp_path, straight)]
    assert logs[0] == logs[1]
    assert_same_progress(one, other)
    assert_same(one.state, other.state)
    assert_same_clocks(one.state, other.state)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("restart", "stops"), [("false", [(1, -144), (2, 0)]), ("true", [(2, -144)])]
)
def test_a_run_with_a_pool_and_memory_resumes_across_stages(
    tmp_path: Path, restart: str, stops: list[tuple[int, int]]
) -> None:
    """The world is made anew for each episode, and a lesson is decided by the rating."""
    units = [f'name: "{n}", vary: {{"units": "int 1 {n}"}}' for n in (1, 2, 3)]
    units[0] += ', until: ["win.mean >= 0"], episodes: 5'
    units[1] += ', until: ["selfplay/elo >= 0", "lesson_step >= 200"]'
    settings = [
        *(*POOL, 'net.memory=(of: "both", inputs: ["action", "reward"])', "ppo.seq_len=4"),
        *("selfplay.capacity=1", "selfplay.snapshot_every=144", "total_timesteps=720"),
        *('env.vary.turns="choice 4"', "optim.bs=36", "capture_samples=a.rec"),
        taught(*units, more=f", review: 0.2, restart: {restart}"),
    ]
    one = go(tmp_path / "one", Crowded, *settings)
    changes = sorted(step for step, _ in progress_of(one)["c"].begun.values())
    assert 0 < changes[1] < changes[2] < 720 - 144
    for change, after in stops:
        stop = changes[change] + after
        folder = tmp_path / f"other {stop}"
        go(folder, Crowded, *settings, "rollout.processes=2", stops=stop)
        other = go(folder, Crowded, "rollout.processes=1")
        logs = [tracked(path / "run/metrics.jsonl") for path in (folder, tmp_path / "one")]
        assert logs[0] == logs[1]
        assert_same_progress(one, other)
        assert_same(one.state, other.state)
        assert_same_clocks(one.state, other.state)
        assert recorded(folder) == recorded(tmp_path / "one")


@pytest.mark.slow
@pytest.mark.parametrize("env", [Forgetful, Stateless])
def test_episodes_without_saved_state_restart_in_the_current_stage(
    tmp_path: Path, env: Any
) -> None:
    settings = [*TINY, taught(LATER, lesson("b", "5")), "total_timesteps=288"]
    go(tmp_path / "one", env, *settings, stops=3 * PER_UPDATE)
    other = go(tmp_path / "one", env)
    rows = [r for r in tracked(tmp_path / "one/run/metrics.jsonl") if "parameters/length.min" in r]
    tags = [(row["curriculum/c/lesson"], row["parameters/length.min"]) for row in rows]
    assert tags[-2:] == [(1.0, 5.0)] * 2
    assert progress_of(other)["c"].episodes > 0


@pytest.mark.slow
def test_a_failed_update_does_not_change_stages(tmp_path: Path) -> None:
    class Fails(Callback):
        def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
            if trainer.state.step == PER_UPDATE and not self.has_failed:
                self.has_failed = True
                raise OSError("once")

        has_failed = False

    settings = [*TINY, taught(SHORT, LONG, more=", review: 0.5"), f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings)
    with Trainer(manager, Locks, callbacks=[Fails()]) as trainer:
        trainer.step()
        before = manager.state.parts["curriculum"].state_dict()
        with pytest.raises(OSError, match="once"):
            trainer.step()
        assert manager.state.parts["curriculum"].state_dict() == before
        for _ in range(5):
            trainer.step()
        assert progress_of(manager)["c"].lesson == "long"


class Lopsided(Duel):
    """A duel that gives its sides a metric of their own."""

    def act(self, actions: Any) -> list[Observation]:
        sides = super().act(actions)
        for i, one in enumerate(sides):
            one.metrics = {**(one.metrics or {}), "side": float(i)}
        return sides


@pytest.mark.slow
def test_only_seats_of_the_agent_count_in_matches_against_a_pool(tmp_path: Path) -> None:
    squads = [f'name: "{n}", vary: {{"squad": "{n}"}}' for n in (1, 2)]
    lessons = taught(squads[0] + ', until: ["side.mean >= 2", "selfplay/elo >= 0"]', squads[1])
    pool = [*POOL, f"data_dir={tmp_path}", "selfplay.share=1", "selfplay.sides=[1]", "optim.bs=32"]
    manager = StateManager(overrides=[*pool, lessons])
    own, ended = 0, 0
    watched = Watched()
    with Trainer(manager, Lopsided, callbacks=[watched]) as trainer:
        for _ in range(6):
            trainer.step()
            metrics = watched.updates[-1]
            own += int(metrics.get("episodic_reward.count", 0))
            ended += len(watched.ended[-1])
        progress = progress_of(manager)["c"]
    assert 0 < progress.episodes == own
    measured = metric_of(progress.complete["side.mean"])
    assert measured.min == measured.max == 1.0  # the seat that the agent has
    assert progress.newest["selfplay/elo"] == trainer.metrics["selfplay/elo"]


def test_sides_of_a_match_have_the_same_stage(tmp_path: Path) -> None:
    lessons = taught('name: "a", vary: {"squad": "int 1 3"}', more="")
    watched, _ = run(tmp_path, lessons, env=Duel, updates=4)
    assert watched.of("episodes")[-1] > 0


@pytest.mark.slow
def test_a_new_stage_can_cut_off_running_episodes(tmp_path: Path) -> None:
    long = 'name: "{}", vary: {{"max_steps": "{}"}}'
    lessons = [long.format("a", 40) + f', until: ["step >= {PER_UPDATE}"]', long.format("b", 3)]
    still = 'env.kwargs={"max_mines": 0, "width": 9000}'
    settings = [taught(*lessons, more=", restart: true"), still]
    watched, _ = run(tmp_path, *settings, env=Minefield, updates=3)
    assert watched.of("episodes") == [0, 12, 30]


def test_set_parameters_refuses_arguments_of_curricula(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*TINY, taught(SHORT, LONG), f"data_dir={tmp_path}"])
    with Trainer(manager, Locks) as trainer:
        trainer.set_parameters({"keys": "2"})
        trainer.step()
        with pytest.raises(ConfigError, match=r"that curricula\['c'\] does not set, got length"):
            trainer.set_parameters({"length": "2"})
        assert trainer.metrics["parameters/keys.max"] == 2


class ThreeKeys(Callback):
    def on_train_start(self, trainer: Any) -> None:
        trainer.set_parameters({"keys": "3"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "drawn", "told"),
    [
        (['env.vary.keys="2"'], 3, "env.vary.keys: not used, as set_parameters replaced it by '3'"),
        (['env.kwargs={"keys": 2}'], None, "keys is forgotten, as env.kwargs sets it now"),
        (
            ['curricula={"k": (lessons: [(name: "a", vary: {"keys": "2"})])}'],
            2,
            "keys is forgotten, as curricula['k'] sets it now",
        ),
    ],
)
def test_settings_of_a_resumed_run_and_set_parameters_do_not_set_an_argument_twice(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    settings: list[str],
    drawn: int | None,
    told: str,
) -> None:
    with Trainer(
        StateManager(overrides=[*TINY, *settings[:1], f"data_dir={tmp_path}"]), Locks
    ) as t:
        if drawn != 3:
            with pytest.raises(ConfigError, match="does not set, got keys"):
                t.set_parameters({"keys": "3"})
    start = StateManager(
        overrides=[*TINY, "total_timesteps=48", f"data_dir={tmp_path}"],
        checkpoint_dir=tmp_path / "run",
    )
    train(start, Locks, callbacks=[ThreeKeys()])
    resumed = go(tmp_path, Locks, *settings, "total_timesteps=144")
    assert told in capsys.readouterr().out
    row = tracked(tmp_path / "run/metrics.jsonl")[-1]
    assert row.get("parameters/keys.max") == drawn
    assert resumed.state.parts["curriculum"].state_dict().get("parameters") == (
        {"keys": "3"} if drawn == 3 else None
    )


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        (taught(lesson("a", "int 1")), r"curricula\['c'\].lessons\[0\].vary.length: character 6: "),
        (taught('name: "a", vary: {"lenght": "1"}'), r"curricula\['c'\]: .*did you mean length"),
        (taught(lesson("a", "1")) + '|env.kwargs={"length": 3}', "not in env.kwargs, got length"),
        (taught(lesson("a", "1")) + '|env.vary.length="3"', "length, also in env.vary"),
        (
            f'{taught(lesson("a", "1"))[:-1]}, "d": (lessons: [({lesson("a", "1")})])}}',
            r"curricula\['d'\]: .* got length, also in curricula\['c'\]",
        ),
        (
            taught(SHORT, 'name: "b", vary: {"keys": "2"}'),
            r"lessons\[1\]: expected the arguments of the first stage, length, got keys",
        ),
        (taught(SHORT, SHORT), "expected unique names, got 'short' twice"),
        (taught(LONG, SHORT), r"lessons\[0\].until: expected conditions to start the next"),
        (taught(SHORT, lesson("b", "1", ', until: ["step >= 1"]')), "none in the last stage"),
        (taught(lesson("a", "1", ', back: ["step >= 1"]')), "none in the first stage"),
        (taught(lesson("a", "1", ', until: ["step > 1"]'), LONG), r"until\[0\]: expected a metric"),
        (
            taught('name: "r", ramp: {"length": ["1", "int 1 2"]}, count: 2, until: ["step >= 1"]'),
            r"ramp.length: expected two samplers of the same kind and form, got '1' and 'int 1 2'",
        ),
        (
            taught('name: "r", ramp: {"length": ["1"]}, count: 2'),
            "expected two samplers, the first and",
        ),
        (taught('name: "r", ramp: {"length": ["1", "2"]}'), "count: expected the number of"),
        (taught('name: "r"'), "vary, ramp: expected one of them, got neither"),
        (taught(lesson("a", "1", ", count: 3")), "count: expected a ramp, got none"),
        (taught(lesson("a", "int 3 1")), "character 7: expected a bound of at least 3"),
        (taught(lesson("a", "choice 1:0 2:0")), "weights that are all 0"),
        (
            taught(lesson("a", "1"), more=", review: 1"),
            "review: expected a number from 0 to|below 1",
        ),
        (taught(lesson("a", "1", ', until: ["eval/x >= 1"]'), LONG), "expected evaluations for"),
        ('curricula={"a/b": (lessons: [])}', "lessons: expected 1 to 1000 stages, got 0"),
        (taught(LONG, name="a/b"), "expected printable names without '/', got 'a/b'"),
    ],
)
def test_invalid_curricula_are_reported_in_one_line_at_the_start(
    tmp_path: Path, setting: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem) as error:
        run(tmp_path, *setting.split("|"), updates=0)
    assert "\n" not in str(error.value)


def test_environments_without_varying_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"curricula\['c'\]: expected an argument of Meadow"):
        run(tmp_path, taught(LONG), env=Meadow, updates=0)


def test_arguments_refused_by_the_environment_are_reported(tmp_path: Path) -> None:
    later = lesson("b", "0")
    with pytest.raises(InvalidSampler, match=r"episode .*Locks does not take {'length': 0}: "):
        run(tmp_path, taught(LATER, later))


def test_metrics_that_are_not_finite_end_the_run(tmp_path: Path) -> None:
    class Infinite(Locks):
        def _observe(self, fits: bool) -> Observation:
            obs = super()._observe(fits)
            obs.metrics = {"opened": float("inf")} if obs.done else {}
            return obs

    with pytest.raises(NotFiniteError, match="lesson 'short': expected finite values of 'opened"):
        run(tmp_path, taught(SHORT, LONG), "env.validate=false", env=Infinite)


def test_a_metric_that_is_never_logged_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unknown = lesson("a", "1", ', until: ["opend.mean >= 1"]')
    go(tmp_path, Locks, *TINY, taught(unknown, LONG), "total_timesteps=192")
    text = capsys.readouterr().out
    assert text.count("curricula: no metric 'opend.mean' so far") == 1
    assert "did you mean 'opened.mean'" in text


@pytest.mark.slow
def test_changed_stages_are_reported_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lessons = [LATER, lesson("b", "2")]
    go(tmp_path, Locks, *TINY, taught(*lessons), "total_timesteps=192")
    changed = [
        lesson("new", "4", ', until: ["step >= 1"]'),
        lesson("b", "2", ', until: ["step >= 999"]'),
    ]
    more = lesson("z", "9")
    capsys.readouterr()
    go(tmp_path, Locks, taught(*changed, more, more=", review: 0.5"), "total_timesteps=240")
    text = capsys.readouterr().out
    expected = "c: added new, z; removed first; changed b; review 0.0 -> 0.5"
    assert f"changed from the save: curricula: {expected}" in text
    assert lessons_in(tmp_path)[4:] == [1]
    message = "expected 'b', the current lesson of the run, among them"
    with pytest.raises(ConfigError, match=message):
        go(tmp_path, Locks, taught(more), "total_timesteps=288")
