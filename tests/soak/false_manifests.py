"""False manifests, well formed and with the right sums, and each reader of them."""

import contextlib
import copy
import io
import itertools
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from enn_trainer import CheckpointError, StateManager, load_agent, load_checkpoint, train
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.manifest import MANIFEST, own_hash
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import run
from tests.enn_trainer.worlds import Pasture
from tests.soak.damage import Summary, _peak_mb, _without_values
from tests.soak.small_saves import LEARNS_MORE, SETTINGS

VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        7,
        2**31,
        2**63 - 1,
        2**63,
        10**400,
        10**4000,
        0.5,
        -0.0,
        1e308,
        -5.0,
    ),
    *(float("nan"), float("inf"), float("-inf"), "", "a", "\x00", "\x1b[31m", "../x", "\ud800"),
    *("line\nbreak", "w" * 20_000, "2026-01-01T00:00:00Z", "step-000000000008", "f" * 64, "1"),
    *([], {}, [[]], {"": {}}, {"a": None}, {"a": "b"}, {"a": float("nan")}, {"a": 10**400}),
    *({"size": 0, "sha256": ""}, {"size": -1, "sha256": "f" * 64}, [1, 2], [{"a": [{}]}]),
]


def false_manifests(folder: Path, seed: int, count: int) -> Summary:
    """Change the manifest of a save, make its sums right again, and let each reader read it.

    A reader gives a result or one clear error, and no save that is damaged is deleted.

    Args:
        folder: to work in.
        seed: of the choices.
        count: how many manifests.
    """
    rng = Random(seed)
    whole, run_dir = _new_run(folder), folder / "run"
    newest = RunDir(whole).saved_paths()[0].name
    before = json.loads((whole / newest / MANIFEST).read_text())
    readers = itertools.cycle(_READERS)
    reasons: Counter[str] = Counter()
    start, before_mb, still_good = time.monotonic(), _peak_mb(), 0
    shutil.copytree(whole, run_dir)
    for _ in range(count):
        save = run_dir / rng.choice([newest] * 9 + ["step-000000000024", "elsewhere"])
        if save.name != newest:
            (run_dir / newest).rename(save)
        content = _changed(rng, before)
        content["sha256"] = own_hash(content)
        (save / MANIFEST).write_bytes(json.dumps(content, indent=1).encode())
        read = next(readers)
        try:
            read(save)
        except CheckpointError as error:
            said = str(error)
            assert "\n" not in said, said
            reasons[_without_values(said.replace(str(save), "").replace(str(run_dir), ""))] += 1
        except BaseException:
            print(f"{read.__name__} of {save.name}: {json.dumps(content)[:2000]}")
            raise
        else:
            still_good += 1
        is_there = save.is_dir()
        assert is_there or read is _prune, "only pruning deletes"
        if not is_there or save.name != newest:
            shutil.rmtree(run_dir)
            shutil.copytree(whole, run_dir)
    seconds, more_mb = time.monotonic() - start, _peak_mb() - before_mb
    return Summary(count, count - still_good, still_good, reasons, seconds, more_mb)


def _new_run(folder: Path) -> Path:
    """Return the folder of a run with three saves."""
    steps = ["total_timesteps=16", "checkpoint.every_seconds=0", "checkpoint.keep=9"]
    overrides = [*SETTINGS, *LEARNS_MORE, *steps, f"data_dir={folder}"]
    manager = StateManager(overrides=overrides, checkpoint_dir=folder / "whole")
    with contextlib.redirect_stdout(io.StringIO()):
        train(manager, Pasture)
    return folder / "whole"


def _changed(rng: Random, manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with other values, fields or names somewhere in it."""
    changed = copy.deepcopy(manifest)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        where = changed
        while True:
            key = rng.choice([*where, "another"])
            inner = where.get(key)
            if not isinstance(inner, dict) or not inner or rng.random() < 0.3:
                break
            where = inner
        way = rng.randrange(4)
        if way == 0:
            where.pop(key, None)
        elif way == 1:
            where[rng.choice([*where, "another", "", "\x00"])] = where.pop(key, None)
        else:
            where[key] = copy.deepcopy(rng.choice(VALUES))
    return changed


def _command(*typed: str) -> None:
    """Run `enn checkpoints`; raise the one line that it refuses with."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["checkpoints", *typed])
    said = err.getvalue()
    if status != 2:
        assert not said, said
        return
    assert said.startswith("error: "), said
    assert said.count("\n") == 1, said
    raise CheckpointError(said.strip())


def _show(save: Path) -> None:
    _command("show", str(save))


def _list(save: Path) -> None:
    _command("list", str(save.parent))


def _list_json(save: Path) -> None:
    _command("list", str(save.parent), "--json")


def _verify(save: Path) -> None:
    _command("verify", str(save))


def _diff(save: Path) -> None:
    _command("diff", str(save), str(save.parent / "step-000000000008"))


def _prune(save: Path) -> None:
    was_valid = checkpoint.is_valid(save)
    _command("prune", str(save.parent), "--keep", "1")
    assert was_valid or save.is_dir(), "a damaged save was deleted"


def _load_agent(save: Path) -> None:
    load_agent(save)


def _load_latest(save: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        load_agent(f"{save.parent}@latest")


def _resume(save: Path) -> None:
    """Continue the run: from this save, or with a word from an earlier one."""
    with contextlib.redirect_stdout(io.StringIO()):
        step = load_checkpoint(save.parent).state.step
    assert step in (8, 16)


_READERS: list[Callable[[Path], None]] = [
    *(_show, _list, _list_json, _verify, _diff, _prune, _load_agent, _load_latest, _resume)
]
