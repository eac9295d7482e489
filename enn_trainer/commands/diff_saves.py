"""Comparison of two checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from enn_trainer.checkpoints.migrate.space_diff import space_differences
from enn_trainer.checkpoints.saved_run import Contents, read_contents
from enn_trainer.config import ron
from enn_trainer.config.load import Names, leaves
from enn_trainer.config.ron import in_one_line
from enn_trainer.tables import printable, show_table

_NOTHING = "-"
_OF_THE_SAVE = (
    "why",
    "created",
    "files",
    "metrics",
    "sha256",
    "step",
    "packages",
    "time_used",
    "command",
)
"""Fields of a manifest that are about the checkpoint, not about the run that saved it."""


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
    is_same = True
    for title, columns, rows in (
        ("configuration", ("field", "A", "B"), _of_dicts(_settings(a), _settings(b))),
        ("made by", ("what", "A", "B"), _of_dicts(_maker(a), _maker(b))),
        ("state", ("what", "A", "B"), _of_dicts(a.state, b.state)),
        ("world", ("B is different",), _of_worlds(a, b)),
        ("tensors", ("file", "tensor", "difference"), _of_tensors(a, b)),
        ("other files", ("file", "difference"), _of_files(a, b)),
    ):
        if rows:
            if is_same:
                for name, contents in (("A", a), ("B", b)):
                    _print(f"{name}: {contents.path}", console)
            _print(f"\n{title}", console)
            show_table(columns, rows, console, num_left=len(columns))
            is_same = False
    count = sum(len(found) for found in a.tensors.values())
    if is_same:
        _print(f"the same settings, world, state and {count} tensors", console)
    return is_same


def _print(line: str, console: Console) -> None:
    for part in line.split("\n"):
        console.out(printable(part, console.encoding), highlight=False)


def _settings(contents: Contents) -> dict[str, Any]:
    settings: dict[str, Any] = ron.loads(contents.config)
    return settings


def _maker(contents: Contents) -> dict[str, Any]:
    manifest = contents.manifest
    about = {name: value for name, value in manifest.items() if name not in _OF_THE_SAVE}
    return {**manifest.get("packages", {}), **about}


def _of_dicts(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return the differences of nested dicts, by dotted paths."""
    one, other = dict(leaves(dict(a))), dict(leaves(dict(b)))
    return [
        (".".join(path), _shown(one, path), _shown(other, path))
        for path in dict.fromkeys([*one, *other])
        if path not in one or path not in other or one[path] != other[path]
    ]


def _shown(values: Mapping[Names, Any], path: Names) -> str:
    return in_one_line(values[path]) if path in values else _NOTHING


def _of_worlds(a: Contents, b: Contents) -> list[tuple[str]]:
    found = space_differences(a.obs_space, a.action_space, b.obs_space, b.action_space)
    return [(difference,) for difference in found]


def _of_tensors(a: Contents, b: Contents) -> list[tuple[str, str, str]]:
    rows = []
    for file in dict.fromkeys([*a.tensors, *b.tensors]):
        one, other = a.tensors.get(file, {}), b.tensors.get(file, {})
        different = [
            (file, name, _difference(one.get(name), other.get(name)))
            for name in sorted({*one, *other})
        ]
        found = [row for row in different if row[2]]
        rows += found
        if found and len(found) < len(different):
            rows.append((file, f"{len(different) - len(found)} others", "identical"))
    return rows


def _difference(one: Tensor | None, other: Tensor | None) -> str:
    """Return the difference of two tensors as text, "" if they are equal."""
    if one is None or other is None:
        return f"only in {'B' if one is None else 'A'}"
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{_kind(one)} became {_kind(other)}"
    if torch.equal(one, other):
        return ""
    a, b = one.double(), other.double()
    far = (a - b).norm().item() / max(a.norm().item(), b.norm().item())
    return f"{far:.3g} of its norm apart"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _of_files(a: Contents, b: Contents) -> Sequence[tuple[str, str]]:
    """Return the differences of files whose format is not known here."""
    one, other = _other_files(a), _other_files(b)
    return [
        (file, "other bytes" if file in one and file in other else _only(file in one))
        for file in sorted({*one, *other})
        if one.get(file) != other.get(file)
    ]


def _only(in_a: bool) -> str:
    return f"only in {'A' if in_a else 'B'}"


def _other_files(contents: Contents) -> dict[str, str]:
    files = contents.manifest.get("files", {})
    known = (*contents.tensors, "config.ron", "state.ron")
    return {name: file["sha256"] for name, file in files.items() if name not in known}
