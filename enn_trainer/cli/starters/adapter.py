"""Source of an adapter of a third-party environment, with an explicit mapping of its fields."""

import dataclasses
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from gymnasium import spaces

from entity_env.adapters.agent_translator import AgentTranslator
from entity_env.adapters.from_gymnasium import FromGymnasium
from entity_env.adapters.from_pettingzoo import (
    FromGymnasiumAgents,
    FromPettingZoo,
    has_several_agents,
)
from entity_env.adapters.from_pettingzoo_turns import FromPettingZooTurns
from entity_env.adapters.gymnasium_api import make_gymnasium
from entity_env.adapters.gymnasium_spaces import DISCRETE, Space, locate, nodes
from entity_env.adapters.known_mappings import known_mapping
from entity_env.adapters.mapping import (
    ACTION_MASK,
    AnyAction,
    FieldMap,
    Globals,
    Number,
    Place,
    Rows,
)
from entity_env.errors import short_repr
from entity_env.spaces import ActionName, EntityName

_WIDTH = 88
_ADAPTERS = FromGymnasium, FromGymnasiumAgents, FromPettingZoo, FromPettingZooTurns
"""Classes of adapters, subclasses first."""
_Entry: TypeAlias = tuple[str, str, object]
"""Entry of a mapping: comment, source before the value, and value."""


Adapter: TypeAlias = FromGymnasium | FromPettingZoo | FromPettingZooTurns
"""Environment of another library with a mapping."""


def adapt(env_id: str) -> Adapter:
    """Adapt a Gymnasium environment, with a predefined or an inferred mapping.

    Args:
        env_id: id of the environment, `ID` or `MODULE:ID`.

    Raises:
        EntityEnvError: the environment cannot be created, or its mapping cannot be inferred.
    """
    with closing(make_gymnasium(env_id)) as env:
        mapping, has_several = known_mapping(env), has_several_agents(env)
    if has_several:
        return FromGymnasiumAgents(partial(make_gymnasium, env_id))
    return FromGymnasium(env_id, mapping)


def settings_of(world: Adapter) -> str:
    """Return settings for an adapted environment, without its name.

    Args:
        world: the environment; with a viewpoint, its network encodes relative positions.
    """
    net = ""
    for translator in world.translators:
        rows = translator.complete.rows()
        at = next((one for each in rows.values() for one in each if isinstance(one, Place)), None)
        seen = next((one for each in rows.values() for one in each if isinstance(one, Rows)), None)
        if at is not None and seen is not None:
            shape = locate(translator.spaces[0], seen.path, "path").space.shape or ()
            columns, extent = ", ".join(map(_source, at.features)), [n - 1 for n in shape[:-1]]
            net = f"""
    // Positions of entities relative to each other, within this distance in each direction.
    net: (relpos_encoding: (extent: {extent}, position_features: [{columns}])),"""
    return f"""{net}
    // The defaults fit most environments. Train for longer if the return still rises.
    total_timesteps: 100000,"""


def adapter_source(name: str, world: Adapter) -> str:
    """Return the source of `world.py` for a Gymnasium or PettingZoo environment.

    Args:
        name: `ID` or `MODULE:ID` of Gymnasium, or the module of PettingZoo.
        world: environment with an inferred or predefined mapping.
    """
    sources = {one.prefix: _mapping_source(one) for one in world.translators}
    mapping, *more = sources.values()
    if more:  # by the group of agents
        entries = [f"{_source(group)}: {one},\n" for group, one in sources.items()]
        mapping = f"{{\n{textwrap.indent(''.join(entries), '    ')}}}"
    code = re.sub("^ *#.*", "", mapping, flags=re.MULTILINE)
    kinds = ("Choice", "FieldMap", "Globals", "Number", "Place", "Rows", "Select")
    used = [kind for kind in kinds if f"{kind}(" in code]
    imports = [f"from entity_env.adapters.mapping import {', '.join(used)}"]
    adapter = next(c for c in _ADAPTERS if isinstance(world, c))
    imports.insert(0, f"from {adapter.__module__} import {adapter.__name__}")
    if adapter in (FromGymnasium, FromGymnasiumAgents):
        library, make_env = "Gymnasium", _source(name)
    else:
        library = "PettingZoo"
        make_env = "env" if adapter is FromPettingZooTurns else "parallel_env"
        full = f"pettingzoo.{name.removeprefix('pettingzoo.')}"
        name = full if full in sys.modules else name
        ignored = "  # type: ignore[import-untyped, unused-ignore]"
        imports.append(f"from {name} import {make_env}{ignored}")
    head = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    is_known = any(one.mapping != FieldMap() for one in world.translators)
    names = {
        "name": name,
        "library": library,
        "adapter": adapter.__name__,
        "make_env": make_env,
        "origin": "known for it" if is_known else "the one that is inferred without it",
    }
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
        "actions={}": [
            _action(name, part, action, counts) for name, part in mapping.actions.items()
        ],
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
    if mapping.ignore:
        lines.append("    # Fields that are left out: wrap the environment where they matter.")
        lines.append(f"    ignore={_source([*mapping.ignore])},")
    return "\n".join([*lines, ")"])


def _entity(name: EntityName, rows: Rows | Place, observation: Space) -> _Entry:
    """Return the entry of an entity type."""
    if isinstance(rows, Place):
        return "An entity with constant features.", f"{_source(name)}: ", rows
    comment = f"{_field(rows.path, observation)}: each row is an entity of the type {name}."
    if _are_numbers(rows.columns):
        comment += " Its columns are named by position: give them names."
    space = locate(observation, rows.path, "path").space
    if rows.columns and not rows.kinds and space.dtype is not None and space.dtype.kind in "iu":
        kinds = f"kinds={{{_source(rows.columns[-1])}: [...]}}"
        comment += f" If numbers of a column stand for labels, name them: {kinds}."
    if rows.presence is not None:
        comment += f" No entity where the column {rows.presence} is 0."
    comment += " To keep some columns add features=[...]; if rows are of different kinds, write a"
    comment += " type for each, with span=(0, 1) and so on."
    return comment, f"{_source(name)}: ", rows


def _globals(part: Globals, observation: Space) -> _Entry:
    """Return the entry of global features."""
    space, columns = locate(observation, part.path, "path").space, part.columns or ()
    comment = f"{_field(part.path, observation)}: features that belong to no entity."
    if part.kinds:
        comment += f" The choices of {', '.join(part.kinds)} are labels."
    elif isinstance(space, DISCRETE):
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
    """Return the entry of an action.

    Args:
        name: name of the action.
        choice: mapping of the action.
        action: space of the Gymnasium action.
        counts: number of rows of each entity type, None if it varies.
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
    """Return the path and the space of a field as text."""
    space = locate(whole, path, "path").space
    kind = f"Box{space.shape}" if isinstance(space, spaces.Box) else short_repr(space, 60)
    return f"{_source(path)}, {kind}" if path else f"All of it, {kind}"


def _are_numbers(names: Sequence[str] | None) -> bool:
    """Return whether names are positions, with or without a dotted prefix."""
    return bool(names) and all(name.rpartition(".")[2].isdigit() for name in names or ())


def _lay_out(head: str, value: object, indent: int) -> list[str]:
    """Return the lines of an entry, wrapped like by a formatter."""
    (opening, parts, closing), blanks = _parts(value), " " * indent
    line = f"{blanks}{head}{_source(value)},"
    if len(line) <= _WIDTH or not parts:
        return [line]
    inside = [line for head, part in parts for line in _lay_out(head, part, indent + 4)]
    return [f"{blanks}{head}{opening}", *inside, f"{blanks}{closing},"]


def _source(value: object) -> str:
    """Return the source of a value on one line, with double quotes."""
    opening, parts, closing = _parts(value)
    return opening + ", ".join(head + _source(part) for head, part in parts) + closing


def _parts(value: Any) -> tuple[str, list[tuple[str, object]], str]:
    """Split the source of a value: opening, parts with their heads, and closing.

    The parts of a mapping are its path and the arguments that differ from their defaults.
    """
    if isinstance(value, list):
        return "[", [("", part) for part in value], "]"
    if isinstance(value, dict):
        return "{", [(f"{_source(key)}: ", part) for key, part in value.items()], "}"
    if isinstance(value, Place):
        return "Place(", [(f"{name}=", part) for name, part in value.features.items()], ")"
    if dataclasses.is_dataclass(value):
        values = [(f.name, getattr(value, f.name), f.default) for f in dataclasses.fields(value)]
        # Fields with a default factory are empty dictionaries by default.
        arguments = [
            (f"{name}=", part) for name, part, default in values[1:] if part not in (default, {})
        ]
        return f"{type(value).__name__}(", [("", values[0][1]), *arguments], ")"
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text, [], ""
