"""The command `enn checkpoints`."""

import argparse
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from enn_trainer.checkpoints import legacy_0_1_16
from enn_trainer.checkpoints.format import Checkpoint, is_save, retry_while_gone
from enn_trainer.checkpoints.lookup import find, resolve
from enn_trainer.checkpoints.migrate.upgrade import upgrade_checkpoint
from enn_trainer.checkpoints.run_dir import Entry, RunDir, examine
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.command import OneLineParser, failed
from enn_trainer.commands.check_command import positive
from enn_trainer.commands.diff_saves import diff_saves
from enn_trainer.commands.evolve_command import (
    add_diff_arguments,
    add_evolve_arguments,
    diff_world,
    evolve_command,
)
from enn_trainer.commands.next_steps import resume_command, shell_command
from enn_trainer.commands.show_save import in_bytes, show_save
from enn_trainer.config import CheckpointConfig
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.state_manager import load_checkpoint
from enn_trainer.tables import printable, show_table
from entity_env.errors import EntityEnvError

_EPILOG = """\
A RUN is a --checkpoint-dir. A SAVE is one of the folders in it; or RUN@STEP, RUN@latest, RUN@best;
or a RUN, of which the newest valid one is taken."""
_SHOWN_METRICS = ("eval/episodic_reward.mean", "episodic_reward.mean", "losses/entropy")


def checkpoints_command(arguments: Sequence[str]) -> int:
    """Run `enn checkpoints`: list, verify, delete, pin, show, compare and upgrade saves.

    Returns:
        0, 1 if a save is damaged or two are different, 2 for a mistake in the
        arguments.
    """
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (ConfigError, CheckpointError, EntityEnvError) as error:
        return failed(error)


def _list(options: argparse.Namespace) -> int:
    run_dir = _run_dir(options.path)
    found, pinned = RunDir(run_dir).entries(), RunDir(run_dir).pins()
    if options.json:
        print(json.dumps([_as_json(entry, pinned) for entry in found], indent=1))
        return 0
    if not found:
        print(f"{run_dir}: no saves here")
        return 0

    # A row for each save; a column for each metric that any of them has.
    metrics = [
        key for key in _SHOWN_METRICS if any(key in e.manifest.get("metrics", {}) for e in found)
    ]
    columns = ["name", "status", "saved", "reason", "pinned", "step", "size", *metrics]
    rows = [
        [
            *[entry.path.name, entry.kind, _text(entry, "created"), _text(entry, "why")],
            "" if entry.path.name not in pinned else pinned[entry.path.name] or "yes",
            "" if entry.step is None else str(entry.step),
            in_bytes(entry.size),
            *(_number(entry, key) for key in metrics),
        ]
        for entry in found
    ]
    show_table(columns, rows, Console(), num_left=5)

    # Advice for damaged saves.
    damaged = [entry for entry in found if entry.kind == "damaged"]
    if damaged:
        verify = shell_command("enn", "checkpoints", "verify", str(run_dir))
        print(f"\nto list the problems: {verify}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    bad: list[Entry] = []
    console = Console()
    for path in map(resolve, options.paths):
        # The saves of a run, or a single one.
        is_run = path.is_dir() and not _is_save(path)
        found = (
            [e for e in RunDir(path).entries() if _is_save(e.path) or e.kind == "damaged"]
            if is_run
            else []
        )
        if is_run and not found:
            raise CheckpointError(f"{path}: expected a save, or a run with saves, found neither")
        if not is_run and not path.is_dir():
            raise CheckpointError(f"{path}: expected a save or a run, got a path without one")

        # Problems and a summary of each.
        for entry in found if is_run else [examine(path)]:
            for line in [*entry.problems, *entry.notes]:
                print(printable(line, console.encoding))
            num_files = len(entry.manifest.get("files", {}))
            what = f", {num_files} files, {in_bytes(entry.size)}" if num_files else ""
            print(printable(f"{entry.path}: {entry.kind}{what}", console.encoding))
            bad += [entry] if entry.problems else []
    if bad:
        print(
            f"\n{len(bad)} damaged; resuming, evaluating and playing a run use its newest valid "
            "save automatically"
        )
    return 1 if bad else 0


def _prune(options: argparse.Namespace) -> int:
    # The policy: that of the options, else that of the run.
    run_dir = RunDir(_run_dir(options.path))
    given = {
        "keep": options.keep,
        "keep_every_steps": options.keep_every_steps,
        "keep_every_minutes": options.keep_every_minutes,
        "best": options.best,
        "keep_best": options.keep_best,
    }
    if options.keep_best and not options.best:
        raise ConfigError("--keep-best: expected --best beside it, got none")
    given = {name: value for name, value in given.items() if value is not None}
    saved = run_dir.newest()
    policy = CheckpointConfig()
    if given:
        policy = _policy({"keep": 1, **given})
    elif saved is not None:
        policy = read_config(saved).checkpoint

    # Delete.
    with contextlib.nullcontext() if options.dry_run else run_dir.lock():
        pruned = run_dir.prune(policy, options.dry_run)

    # Report.
    saves = {**pruned.manifests, **pruned.deleted}
    sizes = {name: sum(f["size"] for f in m["files"].values()) for name, m in saves.items()}
    word = "would be deleted" if options.dry_run else "deleted"
    rows = [
        (name, "; ".join(pruned.reasons.get(name, [word])), in_bytes(sizes[name]))
        for name in sorted(saves)
    ]
    if rows:
        show_table(("name", "status", "size"), rows, Console(), num_left=2)
    gone = pruned.deleted
    print(f"{len(gone)} of {len(saves)} {word}, {in_bytes(sum(sizes[name] for name in gone))}")
    if options.dry_run and gone:
        print(
            "run without --dry-run to delete them; enn checkpoints pin SAVE keeps one permanently"
        )
    return 0


def _policy(given: Mapping[str, Any]) -> CheckpointConfig:
    try:
        return CheckpointConfig(**given)
    except ValueError as error:
        raise ConfigError(f"prune: {error}") from None


def _pin(options: argparse.Namespace) -> int:
    def pin() -> Checkpoint:
        saved = find(options.path)
        path = saved.path.resolve()
        RunDir(path.parent).pin(path.name, options.note)
        return saved

    saved = retry_while_gone(options.path, pin)
    undo = shell_command("enn", "checkpoints", "unpin", str(saved.path))
    print(f"{saved.path}: pinned, will never be deleted; undo with {undo}")
    return 0


def _unpin(options: argparse.Namespace) -> int:
    path = resolve(options.path)
    RunDir(path.resolve().parent).unpin(path.resolve().name)
    print(f"{path}: no longer pinned")
    return 0


def _show(options: argparse.Namespace) -> int:
    show_save(options.path, Console(), options.config, options.tensors)
    return 0


def _diff(options: argparse.Namespace) -> int:
    if (options.other is None) == (options.env is None):
        raise ConfigError("diff: expected either a second save or --env ENV beside the first")
    if options.env is not None:
        return diff_world(options)
    return 0 if diff_saves(options.one, options.other, Console()) else 1


def _upgrade(options: argparse.Namespace) -> int:
    saved = upgrade_checkpoint(resolve(options.one), options.to)
    manager = load_checkpoint(saved.path)
    resume = resume_command(options.to, manager.config, manager.state)
    print(f"saved {saved.path}; to continue: {resume}")
    return 0


def _run_dir(path: Path) -> Path:
    if not path.is_dir() or _is_save(path):
        raise ConfigError(f"RUN: expected the folder of a run, got {path}")
    return path


def _is_save(path: Path) -> bool:
    """Return True if a folder is a save, which may be damaged."""
    return is_save(path) or legacy_0_1_16.is_published(path)


def _text(entry: Entry, key: str) -> str:
    return str(entry.manifest.get(key, ""))


def _number(entry: Entry, key: str) -> str:
    value = entry.manifest.get("metrics", {}).get(key)
    return f"{value:.4g}" if isinstance(value, int | float) else ""


def _as_json(entry: Entry, pinned: dict[str, str]) -> dict[str, object]:
    about = {key: entry.manifest.get(key) for key in ("created", "why", "metrics")}
    return {
        "name": entry.path.name,
        "is": entry.kind,
        "step": entry.step,
        "size": entry.size,
        **about,
        "pinned": pinned.get(entry.path.name),
        "problems": entry.problems,
    }


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn checkpoints",
        description="List, verify, delete, pin, show, compare and upgrade saves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], int], text: str) -> OneLineParser:
        command: OneLineParser = commands.add_parser(
            name,
            help=text,
            description=f"{text[0].upper()}{text[1:]}.",
            epilog=_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.set_defaults(run=run)
        return command

    # Listing, verifying and deleting.
    listing = add("list", _list, "list the saves and other entries of the folder of a run")
    listing.add_argument("path", type=Path, metavar="RUN")
    listing.add_argument("--json", action="store_true", help="print JSON")
    verify = add("verify", _verify, "compare every file with the manifest")
    verify.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="saves or runs")
    pruning = add("prune", _prune, "delete the saves that the keep policy does not retain")
    pruning.add_argument("path", type=Path, metavar="RUN")
    pruning.add_argument("--keep", type=positive, metavar="N", help="keep the N newest")
    pruning.add_argument(
        "--keep-every-steps", type=positive, metavar="N", help="keep one every N steps"
    )
    pruning.add_argument(
        "--best", action="append", metavar='"METRIC max"', help="keep the best; may be repeated"
    )
    pruning.add_argument(
        "--keep-every-minutes",
        type=float,
        metavar="N",
        help="keep one every N minutes of training",
    )
    pruning.add_argument("--keep-best", type=positive, metavar="N", help="keep N of each --best")
    pruning.add_argument("--dry-run", action="store_true", help="list them without deleting")

    # Pinning.
    pinning = add("pin", _pin, "protect a save from deletion")
    pinning.add_argument("path", type=Path, metavar="SAVE")
    pinning.add_argument("--note", default="", metavar="TEXT", help="reason, shown by list")
    unpinning = add("unpin", _unpin, "allow the deletion of a pinned save again")
    unpinning.add_argument("path", type=Path, metavar="SAVE")

    # Showing and comparing.
    showing = add("show", _show, "print the contents of a save")
    showing.add_argument("path", type=Path, metavar="SAVE")
    showing.add_argument("--config", action="store_true", help="print the configuration")
    showing.add_argument("--tensors", action="store_true", help="print every tensor")
    diffing = add(
        "diff", _diff, "compare a save with another save or a world; status 1 if they differ"
    )
    diffing.add_argument("one", type=Path, metavar="A")
    diffing.add_argument("other", type=Path, metavar="B", nargs="?")
    add_diff_arguments(diffing)

    # Upgrading.
    evolving = add("evolve", evolve_command, "upgrade a save to a world that was changed")
    add_evolve_arguments(evolving)
    upgrading = add("upgrade", _upgrade, "write a save of an older version in the current format")
    upgrading.add_argument("one", type=Path, metavar="SAVE")
    upgrading.add_argument("--to", type=Path, required=True, metavar="RUN")
    return parser
