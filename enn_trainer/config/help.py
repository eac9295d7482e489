"""Help texts of the fields of a configuration class, and suggestions for unknown fields."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, is_dataclass
from difflib import SequenceMatcher
from typing import Any

from enn_trainer.config.field_types import ConfigField, entries, strip_optional
from enn_trainer.config.other_libraries import setting_hint
from entity_env.errors import nearest_name, short_repr, truncate

# Least likeness of a match (see _likeness).
_ALIKE = 0.6
_SEPARATORS = re.compile(r"[\s._-]+")

MAX_PATH = 200
"""Largest number of characters of a path in a message and in the search for suggestions."""
MAX_PROBLEMS = 20
"""Largest number of problems in a message, and of suggestions for unknown fields."""
MAX_PROBLEM_LENGTH = 1000
"""Largest number of characters of a problem."""

_SCHEDULES = (
    "A number can follow a schedule: values at steps, and interpolation shapes between them:",
    '"step: 0@0 lin 0.001@1e5 cos 0@1e6" rises from 0 to 0.001, then falls to 0 like a cosine.',
    "Shapes: lin, cos, exp, quad, poly(p), step. With time_used: instead of step: positions are",
    "seconds of training. With repeat after the last value the schedule starts again.",
)


def hps_info(cls: type[Any], query: str | None = None) -> str:
    """Describe the fields of a configuration class.

    Args:
        cls: The dataclass.
        query: Text to search in names, paths and descriptions; None or "" lists every field.

    Returns:
        One line for each field: name, type, default and description. Without a query fields are
        indented by section, followed by the syntax of schedules. With a query the matches are
        sorted by likeness and have full paths.
    """
    settings = list(entries(cls))
    if not query:
        lines = [_describe_field("  " * e.path.count(".") + e.field.name, e) for e in settings]
        return "\n".join([*lines, "", *_SCHEDULES])
    matches = [_describe_field(entry.path, entry) for _, entry in _rank_matches(query, settings)]
    return "\n".join(matches) if matches else f"no field matches {query!r}"


def _describe_field(label: str, entry: ConfigField) -> str:
    line = f"{label}: {entry.type}"
    if not is_dataclass(entry.kind):
        default = entry.default
        line += " (required)" if default is MISSING else f" = {default!r}"
    return f"{line:<52}  # {entry.doc}" if entry.doc else line


def setting_types(config_cls: Any) -> dict[str, Any]:
    """Return the types of the settings by path, without sections, and items of lists and dicts."""
    kinds = {entry.path: strip_optional(entry.kind) for entry in entries(config_cls)}
    return {
        path: kind
        for path, kind in kinds.items()
        if not is_dataclass(kind) and not re.search(r"\[\]|<", path)
    }


def matching_settings(name: str, paths: Iterable[str]) -> list[str]:
    """Return the settings with this path, or else the settings with this last part of the path.

    "-", "_" and "." are equivalent; `env` is `env.id`.
    """
    if name == "env":
        return ["env.id"]

    def is_named(text: str) -> bool:
        return re.sub("[-.]", "_", text) == re.sub("[-.]", "_", name)

    whole = [path for path in paths if is_named(path)]
    return whole or [path for path in paths if is_named(path.rpartition(".")[2])]


def _likeness(query: str, entry: ConfigField) -> float:
    """Return the likeness of a field to a query, from 0 to 1.

    The last part of the path counts most. A query within the description is a likely match,
    weighted by its share of the description.
    """
    query, path = query.lower(), entry.path.lower()
    last = query.rsplit(".", 1)[-1]
    likeness = similarity(last, entry.field.name.lower())
    words_of_query, words_of_path = (_SEPARATORS.sub(" ", part).strip() for part in (query, path))
    if f" {words_of_query}" in f" {words_of_path}":
        likeness = max(likeness, 0.8)
    words = re.escape(last.replace("_", " "))
    if len(last) > 2 and re.search(rf"\b{words}\b", entry.doc.lower()):
        likeness = max(likeness, 0.74 + 0.2 * len(last) / len(entry.doc))
    return 0.9 * likeness + 0.1 * similarity(query, path)


def similarity(first: str, second: str) -> float:
    """Return the similarity of two texts, from 0 to 1."""
    return SequenceMatcher(None, first, second).ratio()


def _rank_matches(query: str, settings: Sequence[ConfigField]) -> list[tuple[float, ConfigField]]:
    """Return the fields that match a query with their likeness, best first."""
    pairs = [(_likeness(query, entry), entry) for entry in settings]
    return sorted((pair for pair in pairs if pair[0] >= _ALIKE), key=lambda pair: -pair[0])


def unknown_field(root: type[Any], path: str, value: object, with_nearest: bool = True) -> str:
    """Return the message about an unknown field.

    Args:
        root: The class of the whole configuration.
        path: Path of the field.
        value: Value of the field.
        with_nearest: Name the closest fields, which takes milliseconds.
    """
    path = truncate(path, MAX_PATH)
    hint = f"; {_nearest_fields(root, path)}" if with_nearest else ""
    return f"{path}={short_repr(value)}: no such field{hint}"


def _nearest_fields(root: type[Any], path: str) -> str:
    """Return the question for the nearest fields, or else the fields of the section.

    Near is a path within a small edit distance; then the same name in other sections, the name of
    another library, or a name within a small edit distance.
    """
    paths = [entry.path for entry in entries(root)]
    parent, _, name = path.rpartition(".")
    likely, last = setting_hint(name), {other: other.rpartition(".")[2] for other in paths}
    nearest = nearest_name(path, [p for p in paths if p.count(".") == path.count(".")])
    near = [nearest] if nearest is not None else [p for p in paths if last[p] == name]
    near = near or [p for p in paths if p == likely]
    near = near or [p for p in paths if last[p] == nearest_name(name, last.values())]
    siblings = [other for other in paths if other.rpartition(".")[0] == parent]
    if near:
        in_section = [other for other in near if other in siblings]
        return f"did you mean {' or '.join((in_section or near)[:3])}?"
    return f"expected {', '.join(siblings)}" if siblings else f"{parent} has no fields"


def listed(problems: Sequence[str]) -> list[str]:
    """Return the first MAX_PROBLEMS problems, truncated, and the number of further ones."""
    first = [truncate(problem, MAX_PROBLEM_LENGTH) for problem in problems[:MAX_PROBLEMS]]
    more = len(problems) - len(first)
    return [*first, f"and {more} more"] if more else first
