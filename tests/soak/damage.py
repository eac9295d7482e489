"""Damage to saves, one file after the other, and what the loaders make of it."""

import contextlib
import functools
import io
import itertools
import math
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from enn_trainer import (
    CheckpointError,
    RogueNetAgent,
    StateManager,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.saved_state import REST
from entity_env import (
    CategoricalActionMask,
    EntityEnvError,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)
from tests.enn_trainer.worlds import Pasture
from tests.soak.mutations import flipped, mutated
from tests.soak.small_saves import copy_of_published, new_save, save_with_pool, write_whole

SECONDS_PER_FILE = 60
MORE_MEMORY = 1 << 30
"""Address space that loaders may take besides what the process has; saves here are of 20 kB."""
NEXT = "next"
"""Folder of a run that goes on from a save."""
_NEVER = ("pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "subprocess.Popen")


class Summary(NamedTuple):
    """Results of one kind of damage.

    Attributes:
        tried: damaged saves.
        refused: of these, with a clear error.
        still_good: of these, loaded as agents that act.
        reasons: error messages without their values, and their counts.
        seconds: for all of them.
        peak_mb: by which the memory of this process grew.
    """

    tried: int
    refused: int
    still_good: int
    reasons: Counter[str]
    seconds: float
    peak_mb: float

    def __str__(self) -> str:
        return (
            f"{self.tried} tried, {self.refused} refused for {len(self.reasons)} reasons, "
            f"{self.still_good} still good, {self.seconds:.0f} s, {self.peak_mb:.0f} MB more"
        )


def flips(folder: Path, seed: int, every: int = 1, pool: bool = False) -> Summary:
    """Flip a random bit of each byte of a checkpoint.

    Args:
        folder: to work in.
        seed: of the choices.
        every: stride in bytes.
        pool: damage opponents, which runs continue without, but must report.
    """
    rng = Random(seed)
    save = save_with_pool(folder) if pool else new_save(folder)

    def damages() -> Iterator[tuple[Path, str]]:
        for file in sorted(save.glob("opponent-*" if pool else "*")):
            whole = file.read_bytes()
            for at in range(rng.randrange(every), len(whole), every):
                file.write_bytes(flipped(whole, at, rng.randrange(8)))
                yield save, file.name
            file.write_bytes(whole)

    return _summed_up(damages(), True, [_load_agent, _restore] if pool else None)


def truncations(folder: Path, seed: int, count: int) -> Summary:
    """Cut files of a save, and once each remove them."""
    rng = Random(seed)
    save = new_save(folder)

    def damages() -> Iterator[tuple[Path, str]]:
        files = {file: file.read_bytes() for file in sorted(save.iterdir())}
        for file, whole in files.items():
            file.unlink()
            yield save, file.name
            file.write_bytes(whole)
        for _ in range(count - len(files)):
            file, whole = rng.choice([*files.items()])
            file.write_bytes(whole[: rng.randrange(len(whole))])
            yield save, file.name
            file.write_bytes(whole)

    return _summed_up(damages(), must_refuse=True)


def mutations(folder: Path, seed: int, count: int) -> Summary:
    """Change files of saves and make all hashes right again, so that what reads them is reached."""
    rng = Random(seed)
    saves = {
        save: {file.name: file.read_bytes() for file in sorted(save.iterdir())}
        for save in (new_save(folder), copy_of_published(folder))
    }
    choices = [(save, name) for save, files in saves.items() for name in files]
    others = [data for files in saves.values() for data in files.values()]

    def damages() -> Iterator[tuple[Path, str]]:
        for _ in range(count):
            save, name = rng.choice(choices)
            files = saves[save]
            write_whole(save, files, name, mutated(rng, name, files[name], others))
            yield save, ""
            for one in {name, MANIFEST} & files.keys():
                (save / one).write_bytes(files[one])

    return _summed_up(damages(), must_refuse=False)


def episodes(folder: Path, seed: int, count: int) -> Summary:
    """Change the running episodes of a save, make the hashes right again, and go on with them."""
    rng = Random(seed)
    save = new_save(folder)
    files = {file.name: file.read_bytes() for file in sorted(save.iterdir())}

    def damages() -> Iterator[tuple[Path, str]]:
        for _ in range(count):
            write_whole(save, files, REST, mutated(rng, REST, files[REST], [*files.values()]))
            yield save, ""
            shutil.rmtree(folder / NEXT, ignore_errors=True)

    return _summed_up(damages(), must_refuse=False, loaders=[_go_on])


def _summed_up(
    damages: Iterator[tuple[Path, str]],
    must_refuse: bool,
    loaders: Sequence[Callable[[Path], None]] | None = None,
) -> Summary:
    """Load each save, by one way after the other.

    Args:
        damages: saves, and the file in each that the error must name.
        must_refuse: none may load.
        loaders: the ways.
    """
    ways = itertools.cycle(loaders or _LOADERS)
    tried = still_good = 0
    reasons: Counter[str] = Counter()
    start, before_mb = time.monotonic(), _peak_mb()
    with _bounded_memory():
        for save, file in damages:
            tried += 1
            load = next(ways)
            try:
                with _guarded(save.parent.parent if load is _go_on else save):
                    load(save)
            except (CheckpointError, EntityEnvError) as error:
                said = str(error)
                names_it = save.name in said or re.match(r"environment \d+\b", said)
                assert names_it, f"names no save: {said}"
                assert file in said, f"expected {file} to be named: {said}"
                reasons[_without_values(said.replace(str(save), ""))] += 1
            except BaseException as error:
                if load is _go_on and _is_of_the_world(error):
                    reasons["the world itself fails, which says in which environment"] += 1
                    continue
                kept = Path(tempfile.mkdtemp(prefix="found-by-soak-")) / save.name
                (shutil.copytree if save.is_dir() else shutil.copy)(save, kept)
                print(f"the save that brought this about is kept as {kept}", file=sys.stderr)
                raise
            else:
                assert not must_refuse, f"{save}/{file}: damage was not found"
                still_good += 1
    seconds, more_mb = time.monotonic() - start, _peak_mb() - before_mb
    return Summary(tried, tried - still_good, still_good, reasons, seconds, more_mb)


def _is_of_the_world(error: BaseException) -> bool:
    """Whether it is an error of a world that took a wrong state of itself for a right one."""
    return any(note.startswith("in environment ") for note in getattr(error, "__notes__", ()))


def _load_agent(save: Path) -> None:
    _act(load_agent(save))


def _restore(save: Path) -> None:
    """As a run continues; where there is nothing to continue, as it is played."""
    if (save / MANIFEST).exists():
        state = load_checkpoint(save).state
        _act(RogueNetAgent(state.agent))
    else:
        _load_agent(save)


def _load_of_run(save: Path) -> None:
    _act(load_agent(save if save.name == "published" else save.parent))


def _go_on(save: Path) -> None:
    """Train on, and save that."""
    run = save.parent.parent / NEXT
    manager = StateManager(
        init_path=save,
        overrides=["total_timesteps=32", f"data_dir={run}"],
        checkpoint_dir=run / "saves",
    )
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        # The world shows a number that is too large, which is refused as such.
        warnings.filterwarnings("ignore", "overflow encountered in cast")
        train(manager, Pasture)


_LOADERS: list[Callable[[Path], None]] = [_load_agent, _restore, _load_of_run]


def _act(agent: RogueNetAgent) -> None:
    """Let an agent act in a frame of the spaces it says it is for."""
    rng = np.random.default_rng(0)
    entities = {
        name: rng.normal(size=(2, len(entity.features)))
        for name, entity in agent.obs_space.entities.items()
    }
    types = [*entities]
    masks: dict[str, Any] = {}
    for name, space in agent.action_space.items():
        if isinstance(space, GlobalCategoricalActionSpace):
            masks[name] = GlobalCategoricalActionMask()
        elif isinstance(space, SelectEntityActionSpace):
            masks[name] = SelectEntityActionMask(actor_types=types, actee_types=types)
        else:
            masks[name] = CategoricalActionMask(actor_types=types)
    frame = Observation(
        entities=entities,  # type: ignore[arg-type]
        global_features=[0.5] * len(agent.obs_space.global_features),
        actions=masks,
        reward=0.0,
    )
    acting = agent.act(frame)
    assert math.isfinite(acting.value), "a loaded agent says a value that is no number"
    assert acting.actions.keys() == masks.keys()
    for name, action in acting.actions.items():
        probs: Any = action.probs
        assert np.isfinite(np.asarray(probs, dtype=float)).all(), f"{name}: no probabilities"


@contextlib.contextmanager
def _guarded(save: Path) -> Iterator[None]:
    """Nothing runs, nothing else is opened, and nothing takes long."""
    global _allowed
    _install_audit()
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS_PER_FILE)
    _allowed = save
    try:
        yield
    finally:
        _allowed = None
        signal.alarm(0)


_allowed: Path | None = None


@functools.cache
def _install_audit() -> None:
    sys.addaudithook(_audit)  # stays as long as the process


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _allowed is None:
        return
    if event in _NEVER:
        raise AssertionError(f"{event} {args} while a save was loaded")
    if event == "open" and isinstance(args[0], str | os.PathLike):
        path = os.path.realpath(args[0])
        ours = path.startswith(os.path.realpath(_allowed))
        # Modules that are imported late, their versions, and what torch asks about the machine.
        others = path.endswith((".py", ".pyc", ".so", "METADATA", "PKG-INFO")) or path.startswith(
            ("/proc/", "/sys/")
        )
        assert ours or others, f"{path} was opened while {_allowed} was loaded"


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"took more than {SECONDS_PER_FILE} seconds")


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """What takes much more memory than a save has fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MORE_MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _without_values(message: str) -> str:
    """What kind of error it is."""
    return re.sub(r"'.*|\".*|\d+.*|got .*", "", message)[:60]
