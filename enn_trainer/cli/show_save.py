"""Contents of a checkpoint as text, and the differences of two."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from enn_trainer.callbacks.notices import NOTICES
from enn_trainer.checkpoints.format import METRICS_FILE, folder_of_metrics
from enn_trainer.checkpoints.lookup import Contents, find_member, read_contents, run_of_member
from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.migrate.config_diff import lines_not_default
from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli.trust import measure_command, resume_command, shell_command
from enn_trainer.config import ron
from enn_trainer.config.load import Names, leaves
from enn_trainer.config.ron import in_one_line
from enn_trainer.experience.handed_in import HANDED_IN
from enn_trainer.selfplay.league import SNAPSHOT, Member
from enn_trainer.selfplay.matchmaking import NAMED
from enn_trainer.stop_conditions import Now
from enn_trainer.tables import aligned, in_bytes, rows_of_spaces, show_lines, show_table
from enn_trainer.tracking.track_services import read_notices

_SHOWN_METRICS = re.compile(r"reward\.mean|length\.mean|^losses/")
_OF_THE_SAVE = ("step", "why", "created", "files", "metrics", "sha256", "packages")
"""Fields of a manifest that are about the checkpoint, or are shown apart."""


def show_save(
    path: Path,
    console: Console,
    config: bool = False,
    tensors: bool = False,
    non_default: bool = False,
    run: Path | None = None,
) -> None:
    """Print the contents of a checkpoint.

    Args:
        path: path of the checkpoint, in a form of `lookup.resolve`.
        console: console to print to.
        config: True to print the configuration too.
        tensors: True to print every tensor too.
        non_default: True to print the settings that are not default too.
        run: the folder of the run, to print commands for it; None for commands for the save.

    Raises:
        CheckpointError: the checkpoint is missing or damaged.
    """
    contents = read_contents(path)
    settings, state = contents.settings, contents.state
    show_lines([str(contents.path), *aligned(_facts(contents))], console)
    if non_default and settings is not None:
        show_lines(lines_not_default(settings), console)
    if contents.members:
        console.out("")
        columns = ("opponent", "from", "step", "Elo", "games", "size")
        show_table(columns, rows_of_members(contents.members), console, num_left=2)
    if rows := rows_of_lessons(contents):
        console.out("")
        show_table(("curriculum", "lesson", "began", "why"), rows, console, num_left=4)
    if config:
        console.out(f"\n{contents.config.rstrip()}", highlight=False)
    if tensors:
        rows = []
        for file, found in contents.tensors.items():
            for name, tensor in sorted(found.items()):
                shape = " x ".join(map(str, tensor.shape)) or "a number"
                norm = f"{tensor.double().norm().item():.4g}"
                rows.append((file, name, shape, _dtype(tensor), norm))
        console.out("")
        show_table(("file", "tensor", "shape", "dtype", "norm"), rows, console, 2, by_section=True)

    data_dir = "." if settings is None else settings.data_dir
    run_dir, run_name = run or contents.path.absolute().parent, state.get("run_name", "")
    show_lines(lines_of_notices(folder_of_metrics(run_dir, data_dir, run_name)), console)

    # The commands to type next.
    if settings is None:
        advice = ["only the program that wrote its settings can evaluate it and train from it"]
    elif settings.env.id == HANDED_IN:
        advice = ["its environment was handed in by a program, which can train from it; to measure"]
        advice[0] += " it, give enn eval the environment by --env"
    else:
        metrics = contents.manifest.get("metrics", {})
        metrics = contents.rounds.over_rounds(metrics, contents.rounds.latest)
        reached = Now(state["step"], state.get("time_used", 0.0), metrics, frozenset(), 0)
        where = contents.path if run is None else run
        in_place = run is not None
        resume = resume_command(where, settings, reached, in_place, contents.members)
        advice = [f"to measure it:     {measure_command(where, settings)}"]
        advice.append(f"to train from it:  {resume}")
    if run is not None:
        advice.append(f"to list its saves: {shell_command('enn', 'checkpoints', 'list', str(run))}")
    show_lines(["", *advice], console)


def show_member(path: Path, name: str, console: Console) -> None:
    """Print facts of a member of the league of a save.

    Args:
        path: path of the save, in a form of `lookup.resolve`.
        name: name of the member.
        console: console to print to.

    Raises:
        CheckpointError: the save is missing or damaged, or has no such member.
    """
    saved, member = find_member(path, name)
    facts = [
        ("opponent", name),
        ("from", _origin(member)),
        ("step", "" if member.step == NAMED else str(member.step)),
        ("Elo", f"{member.elo:.0f}"),
        ("games", str(member.games)),
        ("plays", "in the pool" if member.is_in_pool else "to the end of its games"),
        ("size", in_bytes(len(member.weights))),
    ]
    where = f"{path}@opponent:{name}"
    if member.config:
        run = run_of_member(member, saved.path)
        facts += rows_of_spaces(run.obs_space, run.action_space)
    show_lines([str(saved.path), *aligned([fact for fact in facts if fact[1]])], console)
    if member.config and run.config.env.id != HANDED_IN:
        command = measure_command(Path(where), run.config)
        show_lines(["", f"to measure it:     {command}"], console)


def rows_of_members(members: Sequence[Member]) -> list[tuple[str, ...]]:
    """Return rows of a table: name, origin, step, rating, games, and bytes of the weights."""
    return [
        (
            member.name if member.is_in_pool else f"{member.name} (left)",
            _origin(member),
            "" if member.step == NAMED else str(member.step),
            f"{member.elo:.0f}",
            str(member.games),
            in_bytes(len(member.weights)) if member.weights else "",
        )
        for member in members
    ]


def rows_of_lessons(contents: Contents) -> list[tuple[str, ...]]:
    """Return rows of a table: curriculum, lesson, step at which it last began, and the reason.

    Below the present lesson are the bounds at which it ends, and what was measured so far.
    """
    rows: list[tuple[str, ...]] = [
        ("set_parameters", name, "", text) for name, text in contents.lessons.parameters.items()
    ]
    curricula = {} if contents.settings is None else contents.settings.curricula
    step = contents.state["step"]
    for name, progress in contents.lessons.curricula.items():
        lessons = (
            {one.name: one for one in curricula[name].all_lessons()} if name in curricula else {}
        )
        for lesson in dict.fromkeys([*lessons, *progress.begun]):
            began, why = progress.begun.get(lesson, ("", "not yet"))
            is_present = lesson == progress.lesson
            rows.append((name, f"{lesson} (present)" if is_present else lesson, str(began), why))
            if is_present:
                rows.append((name, "", "", f"{progress.episodes} episodes ended"))
                known = progress.lines(lessons[lesson], step) if lesson in lessons else []
                rows += [(name, "", "", line) for line in known]
    return rows


def _origin(member: Member) -> str:
    return "the run" if member.origin == SNAPSHOT else member.origin


def lines_of_notices(folder: Path) -> list[str]:
    """Return lines with the notices in the folder with the metrics of a run; [] without any."""
    lines = [
        f"step {row['step']}: {row['text']}; see {row['page']}"
        for row in read_notices(folder / METRICS_FILE)
    ]
    return ["", "notices:", *lines] if lines else []


def _facts(contents: Contents) -> list[tuple[str, str]]:
    """Return rows of names and values: manifest, state, tensors and spaces."""
    manifest, state = contents.manifest, contents.state
    facts = [("step", str(state["step"]))]

    # The manifest, which enn_trainer 0.1.16 did not write.
    if "created" in manifest:
        size = sum(file["size"] for file in manifest["files"].values())
        packages = {**manifest.get("packages", {}), "python": manifest.get("python")}
        known = ", ".join(f"{name} {v}" for name, v in packages.items() if v)
        metrics = manifest.get("metrics", {})
        facts.append(("saved", f"{manifest['created']}, reason: {manifest['why']}"))
        facts.append(("size", f"{in_bytes(size)} in {len(manifest['files'])} files"))
        facts.append(("packages", known or "unknown"))
        facts += [
            (name, _value(value))
            for name, value in manifest.items()
            if name not in (*_OF_THE_SAVE, "format", "python") and value is not None
        ]
        # Metrics of episodes and losses; the others are in the manifest.
        shown = [tag for tag in sorted(metrics) if _SHOWN_METRICS.search(tag)]
        facts += [(f"metric {tag}", f"{metrics[tag]:.6g}") for tag in shown]
        if len(metrics) > len(shown):
            facts.append(("metrics", f"{len(metrics) - len(shown)} more in {MANIFEST}"))
    else:
        facts.append(("saved", "by enn_trainer 0.1.16"))
    path = contents.path.resolve()
    note = RunDir(path.parent).pins().get(path.name)
    if note is not None:
        facts.append(("pinned", note or "yes"))

    # The state and the tensors.
    facts += [
        (name.replace("_", " "), _value(value))
        for name, value in state.items()
        if name not in ("step", "memory", *manifest) and value not in (None, "", {})
    ]
    tensors = [tensor for found in contents.tensors.values() for tensor in found.values()]
    numbers = sum(tensor.numel() for tensor in tensors)
    facts.append(("tensors", f"{len(tensors)} with {numbers:,} numbers"))

    return facts + rows_of_spaces(contents.obs_space, contents.action_space)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else in_one_line(value)


def diff_saves(one: Path, other: Path, console: Console) -> bool:
    """Print the differences of two checkpoints: settings, environments, versions, state, tensors.

    Time and reason of the saves are not compared.

    Args:
        one: path of the first checkpoint, in a form of `lookup.resolve`.
        other: path of the second one.
        console: console to print to.

    Returns:
        True if there are no differences.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """
    a, b = read_contents(one), read_contents(other)
    worlds = diff_spaces(a.obs_space, a.action_space, b.obs_space, b.action_space).changed
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
        ("configuration", ("field", "A", "B"), _of_dicts(*(ron.loads(c.config) for c in (a, b)))),
        ("made by", ("what", "A", "B"), _of_dicts(_maker(a), _maker(b))),
        ("state", ("what", "A", "B"), _of_dicts(_state(a), _state(b))),
        ("lessons", ("what", "A", "B"), _of_dicts(_lessons(a), _lessons(b))),
        ("world", ("B is different",), [(difference,) for difference in worlds]),
        ("tensors", ("file", "tensor", "difference"), _of_tensors(a, b)),
        ("opponents", ("opponent", "difference"), _of_members(a, b)),
        ("other files", ("file", "difference"), _of_files(a, b)),
    ]
    tables = [table for table in tables if table[2]]
    if not tables:
        count = sum(len(found) for found in a.tensors.values())
        show_lines([f"the same settings, world, state and {count} tensors"], console)
        return True
    show_lines([f"A: {a.path}", f"B: {b.path}"], console)
    for title, columns, rows in tables:
        show_lines(["", title], console)
        show_table(columns, rows, console, num_left=len(columns))
    return False


def _maker(contents: Contents) -> dict[str, Any]:
    """Return the versions that wrote a checkpoint, without what differs between any two saves."""
    manifest, own = contents.manifest, (*_OF_THE_SAVE, "time_used", "command")
    about = {name: value for name, value in manifest.items() if name not in own}
    return {**manifest.get("packages", {}), **about}


def _state(contents: Contents) -> dict[str, Any]:
    """Return the state of a checkpoint; of the notices those that were told, without sums."""
    memory = dict(contents.state.get("memory", {}))
    if isinstance(told := memory.get(NOTICES), dict):
        memory[NOTICES] = told.get("told", [])
    return {**contents.state, "memory": memory}


def _lessons(contents: Contents) -> dict[str, Any]:
    """Return the lessons of a checkpoint, and the arguments that were changed; no measures."""
    known = {
        name: {"lesson": one.lesson, "began": one.step, "episodes": one.episodes}
        for name, one in contents.lessons.curricula.items()
    }
    return {**known, **contents.lessons.parameters}


def _of_dicts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the differences of nested dicts, by dotted paths."""
    one, other = dict(leaves(dict(a))), dict(leaves(dict(b)))

    def shown(values: Mapping[Names, Any], path: Names) -> str:
        return in_one_line(values[path]) if path in values else "-"

    return [
        (".".join(path), shown(one, path), shown(other, path))
        for path in dict.fromkeys([*one, *other])
        if path not in one or path not in other or one[path] != other[path]
    ]


def _of_tensors(a: Contents, b: Contents) -> list[tuple[str, str, str]]:
    rows = []
    for file in dict.fromkeys([*a.tensors, *b.tensors]):
        one, other = a.tensors.get(file, {}), b.tensors.get(file, {})
        names = sorted({*one, *other})
        found = [(file, n, text) for n in names if (text := _difference(one.get(n), other.get(n)))]
        rows += found
        if found and len(found) < len(names):
            rows.append((file, f"{len(names) - len(found)} others", "identical"))
    return rows


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    """Return the difference of two tensors as text, "" if they are equal."""
    if one is None or other is None:
        return f"only in {'B' if one is None else 'A'}"
    if one.shape != other.shape or one.dtype != other.dtype:
        before, after = (f"{_dtype(tensor)} {tuple(tensor.shape)}" for tensor in (one, other))
        return f"{before} became {after}"
    if torch.equal(one, other):
        return ""
    a, b = one.double(), other.double()
    far = (a - b).norm().item() / max(a.norm().item(), b.norm().item())
    return f"{far:.3g} of its norm apart"


def _of_members(a: Contents, b: Contents) -> list[tuple[str, str]]:
    """Return the members that only one of two leagues has, and those with other weights."""
    one, other = ({member.name: member for member in each.members} for each in (a, b))
    rows = [(name, "left") for name in one if name not in other]
    rows += [(name, "came") for name in other if name not in one]
    rows += [
        (name, "other weights")
        for name, member in one.items()
        if name in other and other[name].weights != member.weights
    ]
    return rows


def _of_files(a: Contents, b: Contents) -> list[tuple[str, str]]:
    """Return the differences of files whose format is not known here."""
    files = {member.file for contents in (a, b) for member in contents.members}
    one, other = (
        {
            name: file["sha256"]
            for name, file in contents.manifest.get("files", {}).items()
            if name not in (*contents.tensors, *files, "config.ron", "state.ron")
        }
        for contents in (a, b)
    )
    return [
        (file, "only in B" if in_a == "-" else "only in A" if in_b == "-" else "other bytes")
        for file, in_a, in_b in sorted(_of_dicts(one, other))
    ]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
