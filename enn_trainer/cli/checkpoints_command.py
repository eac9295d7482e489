"""The command `enn checkpoints`."""

import argparse
import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import in_bytes, printable, show_records, show_table
from enn_trainer.checkpoints.format import OPPONENT, retry_while_gone
from enn_trainer.checkpoints.lookup import find, resolve
from enn_trainer.checkpoints.manifest import size_of_save
from enn_trainer.checkpoints.migrate.evolve_rules import Rules
from enn_trainer.checkpoints.run_dir import RunDir, RunEntry, examine, is_any_save
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.cli.arguments import OneLineParser, add_rename_arguments, positive
from enn_trainer.cli.show_save import diff_saves, show_save
from enn_trainer.cli.trust import shell_command
from enn_trainer.config import CheckpointConfig
from enn_trainer.runtime.interrupt import ended_by

Run: TypeAlias = Callable[[argparse.Namespace], int | None]
_EPILOG = """\
A RUN is a --checkpoint-dir. A SAVE is a folder in it, RUN@STEP, RUN@latest or RUN@best; a RUN
stands for its newest valid save.

examples:
  enn checkpoints """
_SHOWN_METRICS = ("eval/episodic_reward.mean", "episodic_reward.mean", "losses/entropy")
_POLICY = ("keep", "keep_every_steps", "keep_every_minutes", "best", "keep_best")
"""Options of `prune` that are fields of `CheckpointConfig`."""


def checkpoints_command(arguments: Sequence[str]) -> int:
    """Run `enn checkpoints`: list, verify, delete, pin, show, compare and upgrade saves.

    Returns:
        0, or 1 if a save is damaged or two saves differ.

    Raises:
        ConfigError, CheckpointError, EntityEnvError: a mistake in the arguments.
    """
    options = parser().parse_args(arguments)
    run: Run = options.run
    return run(options) or 0


def _list(options: argparse.Namespace) -> None:
    run_dir = _run_dir(options.path)
    entries, pins = RunDir(run_dir).entries(), RunDir(run_dir).pins()
    if options.json:
        listed = []
        for entry in entries:
            name, manifest = entry.path.name, entry.manifest
            fields = {"name": name, "is": entry.kind, "step": entry.step, "size": entry.size}
            fields |= {key: manifest.get(key) for key in ("created", "why", "metrics")}
            rest = {"pinned": pins.get(name), "problems": entry.problems}
            listed.append({**fields, "opponents": _opponents(entry), **rest})
        print(json.dumps(listed, indent=1))
        return
    if not entries:
        print(f"{run_dir}: no saves here; {shell_command('enn', 'runs', str(run_dir))} lists runs")
        return

    # A row for each save.
    rows = []
    for entry in entries:
        name, manifest = entry.path.name, entry.manifest
        row = {"name": name, "status": entry.kind, "saved": manifest.get("created")}
        row |= {"reason": manifest.get("why"), "pinned": name in pins and (pins[name] or "yes")}
        row |= {"step": entry.step, "size": in_bytes(entry.size)}
        row |= {"opponents": len(_opponents(entry)) or None}
        rows.append(row | {tag: manifest.get("metrics", {}).get(tag) for tag in _SHOWN_METRICS})
    show_records(rows, Console(), num_left=5, optional=("opponents", *_SHOWN_METRICS))

    # Advice for damaged saves.
    if any(entry.kind == "damaged" for entry in entries):
        verify = shell_command("enn", "checkpoints", "verify", str(run_dir))
        print(f"\nto list the problems: {verify}")


def _verify(options: argparse.Namespace) -> int:
    num_damaged, console = 0, Console()
    for path in map(resolve, options.path):
        # The saves of a run, or a single one.
        if not path.is_dir():
            raise CheckpointError(f"{path}: expected a save or a run, got a path without one")
        entries = [examine(path)] if is_any_save(path) else RunDir(path).entries()
        saves = [e for e in entries if is_any_save(e.path) or e.kind == "damaged"]
        if not saves:
            raise CheckpointError(f"{path}: expected a save, or a run with saves, got neither")

        # Problems and a summary of each.
        for entry in saves:
            for line in [*entry.problems, *entry.notes]:
                print(printable(line, console.encoding))
            files = entry.manifest.get("files", {})
            summary = f", {len(files)} files, {in_bytes(entry.size)}" if files else ""
            if opponents := _opponents(entry):
                summary += f", opponents: {len(opponents)}"
            print(printable(f"{entry.path}: {entry.kind}{summary}", console.encoding))
            num_damaged += bool(entry.problems)
    if num_damaged:
        use = "resuming, evaluating and playing a run use its newest valid save automatically"
        print(f"\n{num_damaged} damaged; {use}")
    return 1 if num_damaged else 0


def _opponents(entry: RunEntry) -> list[str]:
    """Return the names of the opponents with files in a save."""
    files = [Path(name).stem for name in entry.manifest.get("files", {})]
    return [name.removeprefix(OPPONENT) for name in files if name.startswith(OPPONENT)]


def _prune(options: argparse.Namespace) -> None:
    # The keep policy: from the options, else from the run.
    run_dir = RunDir(_run_dir(options.path))
    if options.keep_best and not options.best:
        raise ConfigError("--keep-best: expected --best METRIC as well, got none")
    overrides = {n: getattr(options, n) for n in _POLICY if getattr(options, n) is not None}
    saved, policy = run_dir.newest(), CheckpointConfig()
    if overrides:
        try:
            policy = CheckpointConfig(**{"keep": 1, **overrides})
        except ValueError as error:
            raise ConfigError(f"prune: {error}") from None
    elif saved is not None:
        policy = read_config(saved).checkpoint

    # Delete.
    with contextlib.nullcontext() if options.dry_run else run_dir.lock():
        pruned = run_dir.prune(policy, options.dry_run)

    # Report.
    saves = {**pruned.manifests, **pruned.deleted}
    sizes = {name: size_of_save(manifest) for name, manifest in saves.items()}
    word = "would be deleted" if options.dry_run else "deleted"
    rows = [
        (name, "; ".join(pruned.reasons.get(name, [word])), in_bytes(sizes[name]))
        for name in sorted(saves)
    ]
    show_table(("name", "status", "size"), rows, Console(), num_left=2)
    deleted = pruned.deleted
    print(
        f"{len(deleted)} of {len(saves)} {word}, {in_bytes(sum(sizes[name] for name in deleted))}"
    )
    if options.dry_run and deleted:
        pin = "enn checkpoints pin SAVE keeps one permanently"
        print(f"run without --dry-run to delete them; {pin}")


def _pin(options: argparse.Namespace) -> None:
    def pin() -> Path:
        path = find(options.path).path
        RunDir(path.resolve().parent).pin(path.resolve().name, options.note)
        return path

    path = retry_while_gone(options.path, pin)
    undo = shell_command("enn", "checkpoints", "unpin", str(path))
    print(f"{path}: pinned, will never be deleted; undo with {undo}")


def _unpin(options: argparse.Namespace) -> None:
    path = resolve(options.path)
    RunDir(path.resolve().parent).unpin(path.resolve().name)
    print(f"{path}: no longer pinned")


def _show(options: argparse.Namespace) -> None:
    show_save(options.path, Console(), options.config, options.tensors)


def _diff(options: argparse.Namespace) -> int:
    """Compare a save with another one or with an environment; 0 if only orders differ."""
    if (options.other is None) == (options.env is None):
        raise ConfigError("diff: expected a second save or --env ENV, got both or neither")
    if options.env is None:
        return 0 if diff_saves(options.path, options.other, Console()) else 1
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.upgrades import environment_diff  # imports PyTorch

    diff = environment_diff(options)
    print(diff)
    return 1 if diff.changed else 0


def _evolve(options: argparse.Namespace) -> None:
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.upgrades import evolve_save  # imports PyTorch

    evolve_save(options)


def _upgrade(options: argparse.Namespace) -> None:
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.upgrades import upgrade_save  # imports PyTorch

    upgrade_save(options)


def _run_dir(path: Path) -> Path:
    if not path.is_dir() or is_any_save(path):
        raise ConfigError(f"RUN: expected the folder of a run, got {path}")
    return path


def parser() -> OneLineParser:
    """Return the parser of `enn checkpoints`."""
    summary = "List, verify, delete, pin, show, compare and upgrade saves."
    parser = OneLineParser(
        prog="enn checkpoints", description=summary, epilog=f"{_EPILOG}list runs/xor"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Run, path: str, text: str, example: str, **more: Any) -> OneLineParser:
        description = f"{text[0].upper()}{text[1:]}."
        command: OneLineParser = commands.add_parser(
            name, help=text, description=description, epilog=f"{_EPILOG}{name} {example}"
        )
        command.run("path", path, **more)
        command.set_defaults(run=run)
        return command

    def add_world(command: OneLineParser, required: bool) -> None:
        command.env_options("the new environment", "arguments of ENV, also as JSON", required)
        add_rename_arguments(command)

    # Listing, verifying and deleting.
    listing = add(
        "list", _list, "RUN", "list the saves and other entries of the folder of a run", "runs/xor"
    )
    listing.flag("--json", "print JSON")
    text = "compare every file with the manifest"
    add("verify", _verify, "PATH", text, "runs/xor runs/duel", nargs="+", help="saves or runs")
    text = "delete the saves that the keep policy does not retain"
    pruning = add("prune", _prune, "RUN", text, "runs/xor --keep 2 --dry-run")
    pruning.option("--keep", "N", "keep the N newest", type=positive)
    pruning.option("--keep-every-steps", "N", "keep one every N steps", type=positive)
    text = "keep the best; may be repeated"
    pruning.option("--best", '"METRIC max"', text, action="append")
    text = "keep one every N minutes of training"
    pruning.option("--keep-every-minutes", "N", text, type=float)
    pruning.option("--keep-best", "N", "keep N of each --best", type=positive)
    pruning.flag("--dry-run", "list them without deleting")

    # Pinning.
    pinning = add("pin", _pin, "SAVE", "protect a save from deletion", "runs/xor@latest")
    pinning.option("--note", "TEXT", "reason, shown by list", default="")
    add("unpin", _unpin, "SAVE", "allow the deletion of a pinned save again", "runs/xor@latest")

    # Showing and comparing.
    showing = add("show", _show, "SAVE", "print the contents of a save", "runs/xor --tensors")
    showing.flag("--config", "print the configuration")
    showing.flag("--tensors", "print every tensor")
    text = "compare a save with another save or an environment; status 1 if they differ"
    diffing = add("diff", _diff, "A", text, "runs/mines --env MineSweeper --env-kwargs nmines=5")
    diffing.add_argument("other", type=Path, metavar="B", nargs="?")
    add_world(diffing, required=False)
    diffing.set_defaults(new_label_prob=Rules().new_label_prob)

    # Upgrading.
    text = "upgrade a save to a changed environment"
    example = "runs/orchard --env orchard.py:Orchard --to runs/new"
    evolving = add("evolve", _evolve, "SAVE", text, example)
    add_world(evolving, required=True)
    evolving.option("--to", "RUN", "the folder of the new run", type=Path, required=True)
    text = "maximal total probability of the labels that are added to an action"
    evolving.option("--new-label-prob", "P", text, type=float, default=Rules().new_label_prob)
    text = "settings of the new run, such as net.n_layer=3"
    evolving.option("--set", "FIELD=VALUE", text, dest="overrides", nargs="*", default=[])
    text = "write a save of an older version in the current format"
    upgrading = add("upgrade", _upgrade, "SAVE", text, "runs/old --to runs/upgraded")
    upgrading.option("--to", "RUN", "the folder of the new run", type=Path, required=True)
    return parser
