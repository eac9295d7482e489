"""Rules that rewrite the values of a configuration file for the next version of its class.

The names and fields are the same as in hyperstate, which can apply these rules, too. A field is
identified by its path, such as `("optim", "lr")`. Rules change nothing in a section that is None.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

from enn_trainer.config.hyperstate_door import hyperstate_rule, kind_of_rule

WEAK_REF = "!weak ref"
"""Key that marks a section absent from the file, with old defaults only; as in hyperstate."""
_ABSENT = object()


class RewriteRule(ABC):
    """Base class of rules; subclasses implement `apply`."""

    @abstractmethod
    def apply(self, state_dict: Any) -> Any:
        """Apply the rule to the values of a file, possibly in place, and return them.

        Raises:
            ValueError: a value is not supported in the next version.
        """

    def apply_to_schema(self, schema: Any) -> None:
        """Apply the rule to a schema of hyperstate, for the schema tools of hyperstate."""
        hyperstate_rule(type(self).__name__, vars(self)).apply_to_schema(schema)


@dataclass
class RenameField(RewriteRule):
    """Move a field or section to another path."""

    old_field: Sequence[str]
    new_field: Sequence[str]

    def apply(self, state_dict: Any) -> Any:
        """Move the value, if it is present."""
        section = _section(state_dict, self.old_field)
        if self.old_field[-1] in section:
            value = section.pop(self.old_field[-1])
            initial = {WEAK_REF: _ABSENT} if is_absent(value) else {}
            _section(state_dict, self.new_field, initial)[self.new_field[-1]] = value
        return state_dict


@dataclass
class DeleteField(RewriteRule):
    """Delete a field or section."""

    field: Sequence[str]

    def apply(self, state_dict: Any) -> Any:
        """Delete the value, if it is present."""
        _section(state_dict, self.field).pop(self.field[-1], None)
        return state_dict


@dataclass
class MapFieldValue(RewriteRule):
    """Replace the value of a field by a function of it."""

    field: Sequence[str]
    map_fn: Callable[[Any], Any]
    rendered: str | None = None

    def apply(self, state_dict: Any) -> Any:
        """Replace the value, if it is present."""
        for value in _present_value(state_dict, self.field):
            _section(state_dict, self.field)[self.field[-1]] = self.map_fn(value)
        return state_dict


@dataclass
class ChangeDefault(RewriteRule):
    """Keep the old default in files without the field."""

    field: Sequence[str]
    old_default: Any
    new_default: Any

    def apply(self, state_dict: Any) -> Any:
        """Insert the old default, if the value is missing."""
        _insert(state_dict, self.field, self.old_default)
        return state_dict


@dataclass
class AddDefault(RewriteRule):
    """Set a field in files without it."""

    field: Sequence[str]
    default: Any

    def apply(self, state_dict: Any) -> Any:
        """Insert the default, if the value is missing."""
        _insert(state_dict, self.field, self.default)
        return state_dict


@dataclass
class CheckValue(RewriteRule):
    """Reject all values of a field except the allowed ones."""

    field: Sequence[str]
    allowed_values: Collection[Any]

    def apply(self, state_dict: Any) -> Any:
        """Raise ValueError if the value is not allowed."""
        allowed = list(self.allowed_values)  # values may be unhashable lists
        for value in _present_value(state_dict, self.field):
            if value not in allowed:
                raise ValueError(
                    f"Value {value!r} is deprecated for field {'.'.join(self.field)}. "
                    f"Allowed values: {', '.join(sorted(map(repr, allowed)))}"
                )
        return state_dict


@dataclass
class RejectValues(RewriteRule):
    """Reject some values of a field."""

    field: Sequence[str]
    disallowed_values: Collection[Any]

    def apply(self, state_dict: Any) -> Any:
        """Raise ValueError if the value is disallowed."""
        for value in _present_value(state_dict, self.field):
            if value in list(self.disallowed_values):
                raise ValueError(f"Value {value!r} is deprecated for field {'.'.join(self.field)}.")
        return state_dict


def rules_since(cls: Any, version: int) -> list[Any]:
    """Return the rules that upgrade a file from a version, in order; converts hyperstate's."""
    rules = cls.upgrade_rules()
    return [_convert(rule) for v in range(version, cls.version()) for rule in rules.get(v, [])]


def _convert(rule: Any) -> Any:
    kind = kind_of_rule(rule)
    if kind is None:
        return rule
    cls = globals()[kind]
    return cls(*(getattr(rule, field.name) for field in fields(cls)))


def is_absent(value: object) -> bool:
    """Return whether a value is a section that is absent from the file."""
    return isinstance(value, dict) and value.get(WEAK_REF) is _ABSENT


def _section(
    values: dict[str, Any], path: Sequence[str], initial: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the section of a field, or a detached empty dict if the section is missing.

    Args:
        values: Values of the file.
        path: Path of the field.
        initial: Initial content of missing sections; None to create none. With {}, absent
            sections on the path are marked as present.
    """
    for name in path[:-1]:
        if initial is not None and name not in values:
            values[name] = dict(initial)
        section = values.get(name)
        if not isinstance(section, dict):
            return {}
        if initial == {}:
            section.pop(WEAK_REF, None)
        values = section
    return values


def _present_value(values: dict[str, Any], path: Sequence[str]) -> Iterator[Any]:
    """Yield the value of a field, if it is present."""
    value = _section(values, path).get(path[-1], _ABSENT)
    if value is not _ABSENT and not is_absent(value):
        yield value


def _insert(values: dict[str, Any], path: Sequence[str], default: Any) -> None:
    """Insert a value if it is missing; sections created for it are marked as absent."""
    section = _section(values, path, {WEAK_REF: _ABSENT})
    if path[-1] not in section or is_absent(section[path[-1]]):
        section[path[-1]] = deepcopy(default)
