"""Rules that rewrite the values of a configuration file for the next version of its class.

Names and fields are those of hyperstate, which can apply these rules as well. A field is given by
its path, such as `("optim", "lr")`. Where a section on the way is None, rules change nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from enn_trainer.config.hyperstate_door import kind_of_rule, their_rule

WEAK_REF = "!weak ref"
"""Key of a section that the file leaves out, also for hyperstate: it holds old defaults only."""
_ABSENT = object()


class RewriteRule(ABC):
    """Base of the rules; a class of your own needs `apply`."""

    @abstractmethod
    def apply(self, state_dict: Any) -> Any:
        """Return the values of a file after this rule, which may change them in place.

        Raises:
            ValueError: a value means nothing in the next version.
        """

    def apply_to_schema(self, schema: Any) -> None:
        """Apply the rule to a schema of hyperstate, for its schema tools."""
        their_rule(type(self).__name__, vars(self)).apply_to_schema(schema)


@dataclass
class RenameField(RewriteRule):
    """Move a field or section to another path."""

    old_field: Sequence[str]
    new_field: Sequence[str]

    def apply(self, state_dict: Any) -> Any:
        """Move the value, if the file has one."""
        section = _section(state_dict, self.old_field)
        if self.old_field[-1] in section:
            value = section.pop(self.old_field[-1])
            made = {WEAK_REF: _ABSENT} if is_absent(value) else {}
            _section(state_dict, self.new_field, made)[self.new_field[-1]] = value
        return state_dict


@dataclass
class DeleteField(RewriteRule):
    """Drop a field or section."""

    field: Sequence[str]

    def apply(self, state_dict: Any) -> Any:
        """Drop the value, if the file has one."""
        _section(state_dict, self.field).pop(self.field[-1], None)
        return state_dict


@dataclass
class MapFieldValue(RewriteRule):
    """Replace the value of a field by a function of it."""

    field: Sequence[str]
    map_fn: Callable[[Any], Any]
    rendered: str | None = None

    def apply(self, state_dict: Any) -> Any:
        """Replace the value, if the file has one."""
        for value in _given(state_dict, self.field):
            _section(state_dict, self.field)[self.field[-1]] = self.map_fn(value)
        return state_dict


@dataclass
class ChangeDefault(RewriteRule):
    """Keep the old default in files that do not name the field."""

    field: Sequence[str]
    old_default: Any
    new_default: Any

    def apply(self, state_dict: Any) -> Any:
        """Insert the old default, if the file has no value."""
        _insert(state_dict, self.field, self.old_default)
        return state_dict


@dataclass
class AddDefault(RewriteRule):
    """Give a field a value in files that do not name it."""

    field: Sequence[str]
    default: Any

    def apply(self, state_dict: Any) -> Any:
        """Insert the default, if the file has no value."""
        _insert(state_dict, self.field, self.default)
        return state_dict


@dataclass
class CheckValue(RewriteRule):
    """Refuse all but some values of a field."""

    field: Sequence[str]
    allowed_values: Collection[Any]

    def apply(self, state_dict: Any) -> Any:
        """Raise ValueError if the file has another value."""
        allowed = list(self.allowed_values)  # a value may be a list, of which sets know nothing
        for value in _given(state_dict, self.field):
            if value not in allowed:
                raise ValueError(
                    f"Value {value!r} is deprecated for field {'.'.join(self.field)}. "
                    f"Allowed values: {', '.join(sorted(map(repr, allowed)))}"
                )
        return state_dict


@dataclass
class RejectValues(RewriteRule):
    """Refuse some values of a field."""

    field: Sequence[str]
    disallowed_values: Collection[Any]

    def apply(self, state_dict: Any) -> Any:
        """Raise ValueError if the file has one of the values."""
        for value in _given(state_dict, self.field):
            if value in list(self.disallowed_values):
                raise ValueError(f"Value {value!r} is deprecated for field {'.'.join(self.field)}.")
        return state_dict


def rules_since(cls: Any, version: int) -> list[Any]:
    """Return the rules that upgrade a file of a version, in order; hyperstate's become ours."""
    rules = cls.upgrade_rules()
    return [_ours(rule) for v in range(version, cls.version()) for rule in rules.get(v, [])]


def _ours(rule: Any) -> Any:
    kind = kind_of_rule(rule)
    if kind is None:
        return rule
    cls = globals()[kind]
    return cls(*(getattr(rule, field.name) for field in fields(cls)))


def is_absent(value: object) -> bool:
    """Return whether a value is a section that the file leaves out."""
    return isinstance(value, dict) and value.get(WEAK_REF) is _ABSENT


def _section(
    values: dict[str, Any], path: Sequence[str], made: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the section that a field is in; an empty one that belongs to nothing if there is none.

    Args:
        values: Those of the file.
        path: Of the field.
        made: What missing sections begin with, by default they are not made. Where they begin
            empty, those that the file leaves out become sections that it has.
    """
    for name in path[:-1]:
        if made is not None and name not in values:
            values[name] = dict(made)
        section = values.get(name)
        if not isinstance(section, dict):
            return {}
        if made == {}:
            section.pop(WEAK_REF, None)
        values = section
    return values


def _given(values: dict[str, Any], path: Sequence[str]) -> Iterator[Any]:
    """Yield the value of a field, if the file has one."""
    value = _section(values, path).get(path[-1], _ABSENT)
    if value is not _ABSENT and not is_absent(value):
        yield value


def _insert(values: dict[str, Any], path: Sequence[str], default: Any) -> None:
    """Insert a value unless the file has one; sections made for it stay marked as absent."""
    section = _section(values, path, {WEAK_REF: _ABSENT})
    if path[-1] not in section or is_absent(section[path[-1]]):
        section[path[-1]] = deepcopy(default)
