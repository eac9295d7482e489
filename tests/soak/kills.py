"""A run that is killed repeatedly, at random or chosen times, and resumed each time.

Processes are forked from one that has torch loaded already, as to load it takes a hundred times
longer than what is killed.
"""

import contextlib
import io
import json
import os
import select
import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from enn_trainer import Callback, State, StateManager, Trainer, load_agent, train
from enn_trainer.base.state_part import full_state
from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import SET_ASIDE, RunDir
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore
from enn_trainer.config import TrainConfig
from enn_trainer.tracking import track
from entity_env.examples import Locks
from tests.enn_trainer.resuming import assert_same, assert_same_clocks, tracked
from tests.enn_trainer.selfplay import joust
from tests.enn_trainer.worlds import Pasture
from tests.soak.children import run_and_exit
from tests.soak.small_saves import LEARNS_MORE, SETTINGS

UPDATES = 12
"""Of a whole run; each of them is saved."""
LIFE_S = 120.0
"""In which a run that is not killed ends."""
OPERATIONS = (
    *("make_dir", "write_file", "link_file", "replace_file"),
    *("sync_dir", "rename", "remove", "exchange"),
)
"""Functions of `enn_trainer.checkpoints.disk`."""
MINIBATCH = "minibatch"
"""A moment that is none of an operation."""
NOTHING = -1
"""Instead of a step, where nothing is saved."""
RECORDING, SAVES, RUN, ERRORS = "rollouts.rec", "saves", "it", "errors"
METRICS = Path(SAVES, "metrics.jsonl")
WRITE_MS = "checkpoint/write_ms"
OTHERS = [f"capture_samples={RECORDING}", "eval.steps=2", "eval.interval=32", "eval.num_envs=2"]


class Case(NamedTuple):
    """A kind of run.

    Attributes:
        world: its environment.
        settings: of it.
        steps: of an update.
    """

    world: Any
    settings: list[str]
    steps: int


ALONE = Case(Pasture, [*SETTINGS, *LEARNS_MORE, "checkpoint.every_seconds=0"], 8)
WITH_POOL = Case(
    joust.Joust,
    [*joust.SETTINGS, *joust.POOL, "selfplay.capacity=3", "ppo.reward_scaling=true"],
    joust.FRAMES,
)
"""Opponents are in files that saves share, and members come and leave."""
_LESSONS = (
    '(name: "a", vary: {"length": "int 1 2"}, until: ["opened.mean >= 0.1"], episodes: 4), '
    '(name: "b", vary: {"length": "3"}, until: ["eval/reward.mean >= 0"], back: ["step >= 80"])'
)
TAUGHT = Case(
    Locks,
    [
        *(*SETTINGS, "checkpoint.every_seconds=0", 'env.vary.keys="int 2 4"'),
        f'curricula={{"c": (lessons: [{_LESSONS}, (name: "z", vary: {{"length": "9"}})], '
        "review: 0.2)}",
    ],
    8,
)
"""Arguments vary, and lessons change."""


class Life(NamedTuple):
    """What a process did before it was killed.

    Attributes:
        begun: the steps of saves that it began.
        done: the steps of saves that were complete.
        ended: it was not killed, but came to the end of the run.
        moment: what it did when it was killed.
        left_something: half written or half deleted.
    """

    begun: list[int]
    done: list[int]
    ended: bool
    moment: str
    left_something: bool


class Summary(NamedTuple):
    """What came of many kills.

    Attributes:
        kills: how many.
        moments: of the kills, and how often each was met.
        runs: that came to their end in spite of them.
        lost: kills that cost the save under way.
        leftovers: kills that left something half written, which was gone at the end.
        seconds: for all of them.
    """

    kills: int
    moments: Counter[str]
    runs: int
    lost: int
    leftovers: int
    seconds: float

    def __str__(self) -> str:
        moments = ", ".join(f"{n} {moment}" for moment, n in sorted(self.moments.items()))
        return (
            f"{self.kills} kills ({moments}), {self.lost} of them lost the save under way, "
            f"{self.leftovers} left something half written, all of which was removed, "
            f"{self.runs} runs ended as if never killed, "
            f"{self.seconds:.0f} s"
        )


def kill_runs(
    folder: Path, seed: int, count: int, case: Case = ALONE, at_operations: bool = False
) -> Summary:
    """Kill runs `count` times, and check their folder after each kill.

    Args:
        folder: to work in.
        seed: of the moments.
        count: number of kills.
        case: kind of run.
        at_operations: kill in minibatches and before operations on the disk, of each kind in turn,
            which is a function of the seed; else after a random time.

    Raises:
        AssertionError: a save was lost that had been complete, no save was found that should be
            there, a run ended otherwise than one that was never killed, or left more behind.
    """
    assert torch.get_num_threads() == 1, "threads do not survive a fork"
    track._new_run_name = _always_the_same_name  # as names are in recordings
    rng, start = Random(seed), time.monotonic()
    straight = folder / "straight"
    pace = _straight(straight, case)

    def next_kill() -> "_KillTime | _KillAt | None":
        if kills >= count:
            return None
        return _next_operation(rng, pace, kills) if at_operations else _kill_time(rng, pace)

    moments: Counter[str] = Counter()
    runs = lost = leftovers = kills = 0
    while kills < count:
        run_dir = folder / f"run-{runs}"
        had, ended = NOTHING, False
        while not ended:
            life = _lived(run_dir, next_kill(), case)
            ended = life.ended
            moments[life.moment] += not ended
            kills += not ended
            found = _found(run_dir)
            begun, done = [had, *life.begun], [had, *life.done]
            assert found >= max(done), f"step {found} is left, {max(done)} had been saved"
            assert found in begun[-2:], f"step {found} is left, of saves at {begun[-2:]}"
            lost += found != begun[-1]
            leftovers += life.left_something
            had = found
        _check_identical(straight, run_dir, case)
        runs += 1
    return Summary(kills, moments, runs, lost, leftovers, time.monotonic() - start)


class _Pace(NamedTuple):
    """How long a whole run and a save in the middle of it take here, and what they do how often."""

    run_s: float
    save_s: float
    operations: dict[str, int]


class _KillTime(NamedTuple):
    """Time of a kill: seconds after a process started its nth save, or itself started if n is 0."""

    save: int
    seconds: float


class _KillAt(NamedTuple):
    """When a process kills itself: before its nth operation of a kind."""

    operation: str
    number: int


def _next_operation(rng: Random, pace: _Pace, kills: int) -> _KillAt:
    """Choose one of the first three updates of a process."""
    operation, in_run = [*pace.operations.items()][kills % len(pace.operations)]
    return _KillAt(operation, rng.randint(1, max(1, 3 * in_run // UPDATES)))


class _Operations:
    """Counts operations of this process, and kills it at a moment."""

    def __init__(self, kill: _KillAt | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._kill = kill

    def begin(self, operation: str) -> None:
        """Count an operation, or end here."""
        self.counts[operation] += 1
        if self._kill == (operation, self.counts[operation]):
            os.kill(os.getpid(), signal.SIGKILL)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Return a context in which operations on the disk are counted."""
        with contextlib.ExitStack() as stack:
            for name in OPERATIONS:
                stack.enter_context(patch.object(disk, name, self._counted(name)))
            yield

    def _counted(self, name: str) -> Callable[..., Any]:
        function = getattr(disk, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.begin(name)
            return function(*args, **kwargs)

        return call


def _kill_time(rng: Random, pace: _Pace) -> _KillTime:
    if rng.random() < 0.4:  # anywhere: while it starts, reads the save, collects or learns
        return _KillTime(0, rng.uniform(0, pace.run_s / 2))
    # While it saves, renames, deletes old saves.
    return _KillTime(rng.choice((1, 1, 2, 3)), rng.uniform(0, 1.2 * pace.save_s))


def _straight(run_dir: Path, case: Case) -> _Pace:
    """Run in this process without any kill, after which its children have all that they import."""
    run_dir.mkdir()
    reader, writer = os.pipe()
    begin, operations = time.monotonic(), _Operations()
    with contextlib.redirect_stdout(io.StringIO()), operations.watched():
        _train(run_dir, writer, case, operations)
    os.close(reader)
    os.close(writer)
    run_s = time.monotonic() - begin
    rows = [json.loads(line) for line in (run_dir / METRICS).read_text().splitlines()]
    writes_ms = [row[WRITE_MS] for row in rows if WRITE_MS in row]
    return _Pace(run_s, statistics.median(writes_ms) / 1e3, dict(sorted(operations.counts.items())))


def _lived(run_dir: Path, kill: "_KillTime | _KillAt | None", case: Case) -> Life:
    """Let a process continue a run until it ends or is killed."""
    own_kill = kill if isinstance(kill, _KillAt) else None

    def live() -> None:
        operations = _Operations(own_kill)
        with operations.watched():
            _train(run_dir, writer, case, operations)

    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reader)
        run_and_exit(run_dir / ERRORS, live)
    os.close(writer)
    try:
        said = _listened(reader, process, kill if isinstance(kill, _KillTime) else None)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
    lines = [line.split() for line in said.split(b"\n")[:-1]]
    begun, done = (
        [int(step) for word, step in lines if word == which] for which in (b"begun", b"done")
    )
    ended = os.WIFEXITED(status)
    assert not ended or os.WEXITSTATUS(status) == 0, (run_dir / ERRORS).read_text()
    left = _half_done(run_dir)
    moment = _moment(lines, left) if own_kill is None else f"at {own_kill.operation}"
    return Life(begun, done, ended, moment, bool(left))


def _listened(reader: int, process: int, kill: _KillTime | None) -> bytes:
    """What a process says until it ends; it is killed when its time has come."""
    said, end = b"", time.monotonic() + LIFE_S
    kill_at = end
    if kill is not None and kill.save == 0:
        kill_at = time.monotonic() + kill.seconds
    killed = False
    while True:
        left = max(0.0, kill_at - time.monotonic())
        if not killed and not select.select([reader], [], [], left)[0]:
            os.kill(process, signal.SIGKILL)
            killed = True
        heard = os.read(reader, 1 << 16)
        if not heard:
            assert killed or time.monotonic() < end, "a run took too long"
            return said
        said += heard
        begins = kill is not None and kill_at == end and said.count(b"begun") >= kill.save
        if kill is not None and begins:
            kill_at = time.monotonic() + kill.seconds


def _moment(lines: list[list[bytes]], left: set[str]) -> str:
    """What a process did when it was killed, by what it said last and what it left."""
    if not lines:
        return "starting"
    kinds = {name.split("-")[0] for name in left}
    meanwhile = "" if lines[-1][0] == b"begun" else " while it goes on"
    if ".writing" in kinds:
        return f"writing a save{meanwhile}"
    if kinds & {".deleting", ".index.json"}:
        return f"deleting old saves{meanwhile}"
    if meanwhile:
        return "collecting, learning or evaluating"
    return "before or after writing a save"


def _train(run_dir: Path, writer: int, case: Case, operations: _Operations) -> State:
    """Begin or continue a run that is saved after each update, and says so beforehand."""
    overrides = [*case.settings, *OTHERS, f"total_timesteps={UPDATES * case.steps}"]
    manager = StateManager(
        overrides=[*overrides, f"data_dir={run_dir}"], checkpoint_dir=run_dir / SAVES
    )
    with manager.call_before_saves(lambda: _say(writer, f"begun {manager.state.step}")):
        train(manager, case.world, callbacks=[_Tells(writer, operations)])
    return manager.state


def _say(writer: int, line: str) -> None:
    os.write(writer, f"{line}\n".encode())


class _Tells(Callback):
    """Prints the completed checkpoints."""

    def __init__(self, writer: int, operations: _Operations) -> None:
        self._writer, self._operations = writer, operations

    def on_minibatch(self, trainer: Trainer, losses: Mapping[str, float]) -> None:
        self._operations.begin(MINIBATCH)

    def on_update_start(self, trainer: Trainer) -> None:
        _say(self._writer, f"update {trainer.state.step}")

    def on_checkpoint(self, trainer: Trainer, path: Path) -> None:
        _say(self._writer, f"done {int(path.name.removeprefix('step-'))}")


def _always_the_same_name(runs: Path | None, config: TrainConfig) -> str:
    return RUN


def _half_done(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / SAVES).glob(".*")} - {".lock"}


def _found(run_dir: Path) -> int:
    """The step at which a run would continue."""
    said: list[str] = []
    saved = RunDir(run_dir / SAVES).newest(said.append)
    assert not said, f"a save is damaged: {said}"
    if saved is None:
        return NOTHING
    load_agent(saved.path)
    return saved.step


def _state_of(run_dir: Path) -> State:
    saved = find(run_dir / SAVES)
    return restore(saved, read_config(saved))


def _check_identical(straight: Path, run_dir: Path, case: Case) -> None:
    """Episodes go on where they were, so nothing may differ; nor may anything be left over."""
    expected, got = _state_of(straight), _state_of(run_dir)
    assert got.step == UPDATES * case.steps
    for name, part in expected.parts.items():
        if name != "algorithm":
            assert repr(full_state(got.parts[name])) == repr(full_state(part)), name
    assert_same(expected, got)
    assert_same_clocks(expected, got)
    assert got.envs is not None
    more, fewer = _files(run_dir), _files(straight)
    assert more == fewer, f"files of one of them only: {sorted({*more} ^ {*fewer})}"
    assert tracked(run_dir / METRICS) == tracked(straight / METRICS)
    assert (run_dir / RECORDING).read_bytes() == (straight / RECORDING).read_bytes()


def _files(run_dir: Path) -> list[str]:
    """The files of a run, without those of single processes.

    A run that is killed before its first save begins anew, and sets the metrics until then aside.
    """
    paths = [str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if path.name != ERRORS]
    aside = [path for path in paths if SET_ASIDE in path]
    assert not any("step-" in path for path in aside), f"a save was set aside: {aside}"
    return sorted(path for path in paths if "tfevents" not in path and path not in aside)
