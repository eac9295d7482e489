"""Contents of a checkpoint as text, and differences between two checkpoints."""

import math
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from enn_trainer.base.tables import aligned, in_bytes, rows_of_spaces, show_lines, show_table
from enn_trainer.checkpoints.format import METRICS_FILE, folder_of_metrics
from enn_trainer.checkpoints.lookup import Contents, find_member, read_contents, split_member
from enn_trainer.checkpoints.manifest import MANIFEST, size_of_save
from enn_trainer.checkpoints.migrate.config_diff import lines_not_default
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli.trust import measure_command, resume_command, shell_command
from enn_trainer.config import ron
from enn_trainer.config.load import leaves
from enn_trainer.config.ron import in_one_line
from enn_trainer.runtime.interrupt import ended_by
from enn_trainer.runtime.trust import is_passed_from_python
from enn_trainer.selfplay.league import SNAPSHOT, Member
from enn_trainer.selfplay.matchmaking import NAMED
from enn_trainer.stop_conditions import Now
from enn_trainer.tracking.track_services import NOTICES, read_notices
from rogue_net.space_diff import diff_spaces

_SHOWN_METRICS = re.compile(r"reward\.mean|length\.mean|^losses/")
_SAVE_FIELDS = ("step", "why", "created", "files", "metrics", "sha256", "packages")
"""Fields of a manifest that describe the checkpoint, or have their own output."""
_COMPARED_PARTS = {"configuration": "field", "made by": "what", "state": "what", "lessons": "what"}
"""Parts of a save that are compared by value, and the title of their column of names."""
_MEMBER_COLUMNS = ("opponent", "from", "step", "Elo", "games", "size")


def show_save(
    path: Path,
    console: Console,
    config: bool = False,
    tensors: bool = False,
    non_default: bool = False,
    run: Path | None = None,
) -> None:
    """Print the contents of a checkpoint, or of an opponent in it.

    Args:
        path: path of the checkpoint, in a form of `lookup.resolve`; or SAVE@opponent:NAME.
        console: console to print to.
        config: also print the configuration.
        tensors: also print every tensor.
        non_default: also print the settings that differ from their defaults.
        run: folder of the run, to print commands for the run; None for commands for the save.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or has no such opponent.
    """
    if (named := split_member(path)) is not None:
        _show_member(named[0], named[1], console)
        return
    contents = read_contents(path)
    settings = contents.settings
    show_lines([str(contents.path), *aligned([*_facts(contents)])], console)
    if non_default and settings is not None:
        show_lines(lines_not_default(settings), console)
    opponents = [_row_of_member(member) for member in contents.members]
    show_table(_MEMBER_COLUMNS, opponents, console, num_left=2, heading=[""])
    lessons = ("curriculum", "lesson", "began", "why")
    show_table(lessons, _rows_of_lessons(contents), console, num_left=4, heading=[""])
    if config:
        console.out(f"\n{contents.config.rstrip()}", highlight=False)
    if tensors:
        with ended_by(signal.SIGINT):
            from enn_trainer.cli.work.tensor_tables import rows_of_tensors  # imports PyTorch

        columns = ("file", "tensor", "shape", "dtype", "norm")
        show_table(columns, rows_of_tensors(contents), console, 2, by_section=True, heading=[""])
    data_dir = "." if settings is None else settings.data_dir
    run_dir, run_name = run or contents.path.absolute().parent, contents.state.get("run_name", "")
    show_lines(lines_of_notices(folder_of_metrics(run_dir, data_dir, run_name)), console)
    show_lines(["", *_advice(contents, run)], console)


def _advice(contents: Contents, run: Path | None) -> list[str]:
    """Return the commands to type next, for the run if its folder is given."""
    settings, state = contents.settings, contents.state
    if settings is None:
        advice = ["only the program that wrote its settings can evaluate it and train from it"]
    elif is_passed_from_python(settings.env.id):
        advice = ["its environment was passed from Python: only that program can train from it"]
        advice.append("to measure it, name an environment with the same spaces: enn eval --env ENV")
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
    return advice


def _row_of_member(member: Member) -> list[str]:
    """Return the cells of an opponent, for the columns `_MEMBER_COLUMNS`."""
    return [
        member.name if member.is_in_pool else f"{member.name} (removed)",
        "the run" if member.origin == SNAPSHOT else member.origin,
        "" if member.step == NAMED else str(member.step),
        f"{member.elo:.0f}",
        str(member.games),
        in_bytes(len(member.weights)) if member.weights else "",
    ]


def _show_member(path: Path, name: str, console: Console) -> None:
    """Print a pool member of a save."""
    saved, member = find_member(path, name)
    facts = [*zip(_MEMBER_COLUMNS, [name, *_row_of_member(member)[1:]], strict=True)]
    facts.insert(-1, ("plays", "in the pool" if member.is_in_pool else "until its games end"))
    advice = []
    if member.config:
        with ended_by(signal.SIGINT):
            from enn_trainer.checkpoints.saved_run import run_of_member  # imports PyTorch

        run = run_of_member(member, saved.path)
        facts += rows_of_spaces(run.obs_space, run.action_space)
        if not is_passed_from_python(run.config.env.id):
            command = measure_command(Path(f"{path}@opponent:{name}"), run.config)
            advice = ["", f"to measure it:     {command}"]
    filled = [(fact, text) for fact, text in facts if text]
    show_lines([str(saved.path), *aligned(filled), *advice], console)


def _rows_of_lessons(contents: Contents) -> list[tuple[str, ...]]:
    """Return rows of a table: curriculum, stage, step of its last start, and the reason.

    Below the current stage are the conditions that end it, and the current measurements.
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
            is_current = lesson == progress.lesson
            rows.append((name, f"{lesson} (current)" if is_current else lesson, str(began), why))
            if is_current:
                rows.append((name, "", "", f"{progress.episodes} episodes ended"))
                details = progress.lines(lessons[lesson], step) if lesson in lessons else []
                rows += [(name, "", "", line) for line in details]
    return rows


def lines_of_notices(folder: Path) -> list[str]:
    """Return the warnings of learning diagnostics in a folder of metrics as lines; [] if none."""
    lines = [
        f"step {row['step']}: {row['text']}; see {row['page']}"
        for row in read_notices(folder / METRICS_FILE)
    ]
    return ["", "notices:", *lines] if lines else []


def _facts(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield (name, value) rows of the manifest, the state, the tensors and the spaces."""
    manifest, state = contents.manifest, contents.state
    yield "step", str(state["step"])

    # The manifest; enn_trainer 0.1.16 wrote none.
    if "created" in manifest:
        packages = {**manifest.get("packages", {}), "python": manifest.get("python")}
        versions = ", ".join(f"{name} {v}" for name, v in packages.items() if v)
        yield "saved", f"{manifest['created']}, reason: {manifest['why']}"
        yield "size", f"{in_bytes(size_of_save(manifest))} in {len(manifest['files'])} files"
        yield "packages", versions or "unknown"
        for name, value in manifest.items():
            if name not in (*_SAVE_FIELDS, "format", "python") and value is not None:
                yield name, _value(value)
        # Metrics of episodes and losses; the others are in the manifest.
        metrics = manifest.get("metrics", {})
        tags = [tag for tag in sorted(metrics) if _SHOWN_METRICS.search(tag)]
        yield from ((f"metric {tag}", f"{metrics[tag]:.6g}") for tag in tags)
        if len(metrics) > len(tags):
            yield "metrics", f"{len(metrics) - len(tags)} more in {MANIFEST}"
    else:
        yield "saved", "by enn_trainer 0.1.16"
    path = contents.path.resolve()
    pins = RunDir(path.parent).pins()
    if path.name in pins:
        yield "pinned", pins[path.name] or "yes"

    # The state, the tensors and the spaces.
    for name, value in state.items():
        if name not in ("step", "memory", *manifest) and value not in (None, "", {}):
            yield name.replace("_", " "), _value(value)
    shapes = [shape for by_name in contents.shapes.values() for shape in by_name.values()]
    yield "tensors", f"{len(shapes)} with {sum(map(math.prod, shapes)):,} numbers"
    yield from rows_of_spaces(contents.obs_space, contents.action_space)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else in_one_line(value)


def diff_saves(first: Path, second: Path, console: Console) -> bool:
    """Print the differences of two checkpoints: settings, spaces, versions, state, tensors.

    The times and reasons of the saves are not compared.

    Args:
        first: path of the first checkpoint, in a form of `lookup.resolve`.
        second: path of the second checkpoint.
        console: console to print to.

    Returns:
        True if there are no differences.

    Raises:
        CheckpointError: a checkpoint is missing or damaged.
    """
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.tensor_tables import tensor_differences  # imports PyTorch

    a, b = read_contents(first), read_contents(second)
    in_a, in_b = _as_plain(a), _as_plain(b)
    worlds = diff_spaces(a.spaces, b.spaces).changed
    members = _name_differences(
        in_a["members"], in_b["members"], "removed", "added", "other weights"
    )
    files = _name_differences(in_a["files"], in_b["files"], "only in A", "only in B", "other bytes")
    tables: list[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = [
        (title, (name, "A", "B"), _dict_differences(in_a[title], in_b[title]))
        for title, name in _COMPARED_PARTS.items()
    ]
    tables += [
        ("environment", ("difference of B",), [(difference,) for difference in worlds]),
        ("tensors", ("file", "tensor", "difference"), tensor_differences(a, b)),
        ("opponents", ("opponent", "difference"), members),
        ("other files", ("file", "difference"), sorted(files)),
    ]
    is_same = not any(rows for _, _, rows in tables)
    count = sum(map(len, a.shapes.values()))
    same = f"the same settings, environment, state and {count} tensors"
    show_lines([same] if is_same else [f"A: {a.path}", f"B: {b.path}"], console)
    for title, columns, rows in tables:
        show_table(columns, rows, console, num_left=len(columns), heading=["", title])
    return is_same


def _as_plain(contents: Contents) -> dict[str, dict[str, Any]]:
    """Return the values of a checkpoint to compare, except for its spaces and tensors.

    Excludes values that differ between any two saves: time and reason, sums of learning
    diagnostics, and measurements of curriculum stages.
    """
    manifest, memory = contents.manifest, dict(contents.state.get("memory", {}))
    if isinstance(notices := memory.get(NOTICES), dict):
        memory[NOTICES] = notices.get("told", [])
    lessons = {
        name: {"lesson": one.lesson, "began": one.step, "episodes": one.episodes}
        for name, one in contents.lessons.curricula.items()
    }
    save_fields = (*_SAVE_FIELDS, "time_used", "command")
    compared = {"config.ron", "state.ron", *contents.shapes, *(m.file for m in contents.members)}
    files = manifest.get("files", {})
    return {
        "configuration": ron.loads(contents.config),
        "made by": manifest.get("packages", {})
        | {name: value for name, value in manifest.items() if name not in save_fields},
        "state": {**contents.state, "memory": memory},
        "lessons": {**lessons, **contents.lessons.parameters},
        "members": {member.name: member.weights for member in contents.members},
        "files": {name: files[name]["sha256"] for name in files if name not in compared},
    }


def _dict_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the differences of nested dicts: dotted path, old and new value."""
    old, new = (
        {".".join(path): in_one_line(value) for path, value in leaves(dict(values))}
        for values in (a, b)
    )
    return [(path, old.get(path, "-"), new.get(path, "-")) for path in _changed_names(old, new)]


def _name_differences(
    a: Mapping[str, Any], b: Mapping[str, Any], only_in_a: str, only_in_b: str, changed: str
) -> list[tuple[str, str]]:
    """Return the differences of dicts: name, and one of three descriptions."""
    return [
        (name, only_in_a if name not in b else only_in_b if name not in a else changed)
        for name in _changed_names(a, b)
    ]


def _changed_names(a: Mapping[str, object], b: Mapping[str, object]) -> list[str]:
    """Return the names that are in only one of two dicts, or have different values."""
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
