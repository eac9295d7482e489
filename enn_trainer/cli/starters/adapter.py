"""Source of a world that adapts one of another library, with its mapping written out."""

import dataclasses
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from gymnasium import spaces

from entity_env.adapters.agent_translator import AgentTranslator
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_pettingzoo import FromPettingZoo
from entity_env.adapters.gymnasium_spaces import DISCRETE, Space, locate, nodes
from entity_env.adapters.mapping import (
    ACTION_MASK,
    AnyAction,
    Globals,
    Number,
    Place,
    Rows,
)
from entity_env.errors import short_repr
from entity_env.spaces import ActionName, EntityName

_WIDTH = 88
_Entry: TypeAlias = tuple[str, str, object]
"""A comment, the start of the line below it, and the value that follows."""


def adapter_source(named: str, world: object) -> str:
    """Return the source of `world.py` for `gymnasium:ID` or `pettingzoo:MODULE`.

    Args:
        named: the name of the world.
        world: the adapter that the name stands for, with an inferred mapping.
    """
    assert isinstance(world, FromGymnasium | FromPettingZoo)
    _, _, name = named.partition(":")
    sources = {one.prefix: _mapping_source(one) for one in world.translators}
    mapping, *more = sources.values()
    if more:  # by the group of agents
        entries = [f"{_source(group)}: {one},\n" for group, one in sources.items()]
        mapping = f"{{\n{textwrap.indent(''.join(entries), '    ')}}}"
    code = re.sub("^ *#.*", "", mapping, flags=re.MULTILINE)
    kinds = ("Choice", "FieldMap", "Globals", "Number", "Place", "Rows", "Select")
    used = [kind for kind in kinds if f"{kind}(" in code]
    imports = [f"from entity_env.adapters.mapping import {', '.join(used)}"]
    if isinstance(world, FromGymnasium):
        library, make_env = "Gymnasium", _source(name)
        imports.insert(0, "from entity_env.adapters.from_gymnasium import FromGymnasium")
    else:
        library, make_env = "PettingZoo", "parallel_env"
        full = f"pettingzoo.{name.removeprefix('pettingzoo.')}"
        name = full if full in sys.modules else name
        imports.insert(0, "from entity_env.adapters.from_pettingzoo import FromPettingZoo")
        imports.append(f"from {name} import parallel_env")
    head = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    names = {"name": name, "library": library, "adapter": f"From{library}", "make_env": make_env}
    return head.format(**names, imports="\n".join(imports), mapping=mapping)


def _mapping_source(translator: AgentTranslator) -> str:
    """Return the source of a complete mapping, with a comment on each field."""
    observation, action = translator.spaces
    mapping, lines, counts = translator.complete, ["FieldMap("], translator.num_rows
    sections = {
        "entities={}": [
            _entity(name, rows[0], observation) for name, rows in mapping.rows().items()
        ],
        "global_features=[]": [_globals(part, observation) for part in mapping.global_features],
        "actions={}": [_action(*entry, action, counts) for entry in mapping.actions.items()],
    }
    for section, entries in sections.items():
        lines += [f"    {section[:-1]}"] * bool(entries)
        for comment, head, part in entries:
            words = textwrap.wrap(comment, 78, break_long_words=False, break_on_hyphens=False)
            lines += [*(f"        # {line}" for line in words), *_lay_out(head, part, 8)]
        lines += [f"    {section[-1]},"] * bool(entries)
    if ACTION_MASK in {node.path for node in nodes(observation)}:
        lines.append("    # A field of the observation: the choices that are allowed.")
        lines.append(f"    action_mask={_source(ACTION_MASK)},")
    return "\n".join([*lines, ")"])


def _entity(name: EntityName, rows: Rows | Place, observation: Space) -> _Entry:
    """Return the comment on an entity type, and the head and value of its entry."""
    if isinstance(rows, Place):
        return "An entity with constant features.", f"{_source(name)}: ", rows
    comment = f"{_field(rows.path, observation)}: each row is an entity of the type {name}."
    if _are_numbers(rows.columns):
        comment += " Its columns are named by position: give them names."
    space = locate(observation, rows.path, "path").space
    if rows.columns and space.dtype is not None and space.dtype.kind in "iu":
        kinds = f"kinds={{{_source(rows.columns[-1])}: [...]}}"
        comment += f" If numbers of a column stand for labels, name them: {kinds}."
    if rows.presence is not None:
        comment += f" No entity where the column {rows.presence} is 0."
    comment += " To keep some columns add features=[...]; to cut off rows that are of another kind"
    comment += " write a type for each, with span=(0, 1) and so on."
    return comment, f"{_source(name)}: ", rows


def _globals(part: Globals, observation: Space) -> _Entry:
    """Return the comment on global features, and the head and value of their entry."""
    space, columns = locate(observation, part.path, "path").space, part.columns or ()
    comment = f"{_field(part.path, observation)}: features that belong to no entity."
    if isinstance(space, DISCRETE):
        comment += " One of them is 1 for each choice."
        if isinstance(space, spaces.Discrete) and part.path:
            kind = f"Globals({_source(part.path)}, kinds={{{_source(part.path)}: [...]}})"
            comment += f" To name the choices write {kind}."
    elif _are_numbers(columns):
        comment += " They are named by position: give them names."
    if isinstance(space, spaces.Box) and len(columns) > 3:
        rows = f'"thing": Rows({_source(part.path)}, columns=["x", "y"])'
        comment += f" If they describe several things alike, write entities={{{rows}}} instead: an "
        comment += "entity for each two numbers."
    return comment, "", part


def _action(
    name: ActionName,
    choice: AnyAction,
    action: Space,
    counts: Mapping[EntityName, int | None],
) -> _Entry:
    """Return the comment on an action, and the head and value of its entry.

    Args:
        name: its name.
        choice: its mapping.
        action: the space of the Gymnasium action.
        counts: the number of rows of each entity type, None if it varies.
    """
    labels = getattr(choice, "labels", None) or ()
    path = choice.path if choice.path in {node.path for node in nodes(action)} else ""
    if isinstance(choice, Number):
        names = choice.names or ()
        comment = f"{_field(path, action)}: {len(names)} chosen in a step, within their bounds."
        if _are_numbers(names):
            comment += " Numbers are named by position: give them names."
        for kind in [kind for kind, count in counts.items() if count and not len(names) % count]:
            rows = f"Number({_source(path)}, actors={_source(kind)})"
            comment += f" If each row of {kind} chooses its own, write {rows}."
        values = f"Choice({_source(path)}, values=[...])"
        return f"{comment} To choose among a list write {values}.", f"{_source(name)}: ", choice
    comment = f"{_field(path, action)}: one choice among {len(labels)} in a step."
    if _are_numbers(labels):
        comment += " Its labels are numbers: give them names."
    for kind in [kind for kind, count in counts.items() if count == len(labels)]:
        select = f"Select({_source(choice.path)}, actees={_source(kind)})"
        comment += f" If it is the number of a row of {kind}, select that entity: {select}."
    return comment, f"{_source(name)}: ", choice


def _field(path: str, whole: Space) -> str:
    """Return the path of a field, and its space."""
    space = locate(whole, path, "path").space
    kind = f"Box{space.shape}" if isinstance(space, spaces.Box) else short_repr(space, 60)
    return f"{_source(path)}, {kind}" if path else f"All of it, {kind}"


def _are_numbers(names: Sequence[str] | None) -> bool:
    """Return whether names consist of a position, alone or behind a dot."""
    return bool(names) and all(name.rpartition(".")[2].isdigit() for name in names or ())


def _lay_out(head: str, value: object, indent: int) -> list[str]:
    """Return the lines of an entry, broken like those of a formatter."""
    (opening, parts, closing), blanks = _parts(value), " " * indent
    line = f"{blanks}{head}{_source(value)},"
    if len(line) <= _WIDTH or not parts:
        return [line]
    inside = [line for part in parts for line in _lay_out(*part, indent + 4)]
    return [f"{blanks}{head}{opening}", *inside, f"{blanks}{closing},"]


def _source(value: object) -> str:
    """Return the source of a value on one line, with double quotes."""
    opening, parts, closing = _parts(value)
    return opening + ", ".join(head + _source(part) for head, part in parts) + closing


def _parts(value: Any) -> tuple[str, list[tuple[str, object]], str]:
    """Return the source before the parts of a value, its parts with their heads, and the rest.

    The parts of a mapping are its path, and other arguments that are no default.
    """
    if isinstance(value, list):
        return "[", [("", part) for part in value], "]"
    if isinstance(value, dict):
        return "{", [(f"{_source(key)}: ", part) for key, part in value.items()], "}"
    if isinstance(value, Place):
        return "Place(", [(f"{name}=", part) for name, part in value.features.items()], ")"
    if dataclasses.is_dataclass(value):
        values = [(f.name, getattr(value, f.name), f.default) for f in dataclasses.fields(value)]
        # Dictionaries have no default here, but are empty unless given.
        others = [
            (f"{name}=", part) for name, part, default in values[1:] if part not in (default, {})
        ]
        return f"{type(value).__name__}(", [("", values[0][1]), *others], ")"
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text, [], ""
