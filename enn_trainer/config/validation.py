"""Validation of settings: one error with all problems of a configuration."""

import dataclasses
import json
import math
import operator
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, get_args, get_origin

from enn_trainer.base.errors import ConfigError
from entity_env.errors import short_repr
from entity_env.strict_fields import StrictFields

JSON_TEXT = {"json_text": True}
"""Metadata of text fields that hold a JSON object; files may have a section instead."""
PATH = {"path": True}
"""Metadata of text fields that hold the path of a file."""
COMPUTED = {"computed": True}
"""Metadata of fields with a default that depends on the command line."""

MAX_PATH_BYTES = 4095
"""Largest length of a path on Linux, without the terminating NUL."""
MAX_NAME_BYTES = 255
"""Largest length of a file name on common file systems."""


class Bound(NamedTuple):
    """Bound of a number.

    Attributes:
        holds: Function of a number and the bound; True if the number is within the bound.
        word: Word before the bound in messages.
    """

    holds: Callable[[float, float], bool]
    word: str


BOUNDS = {
    "at_least": Bound(operator.ge, "of at least"),
    "above": Bound(operator.gt, "above"),
    "at_most": Bound(operator.le, "up to"),
    "below": Bound(operator.lt, "below"),
}
"""Bounds of `limited` and `Validator.number`."""


class Problems:
    """Collector of problems, which are raised as one `ConfigError` at the end of the context."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.messages:
            raise ConfigError(*self.messages)

    def require(self, condition: bool, problem: str) -> None:
        """Add a problem if a condition does not hold."""
        if not condition:
            self.messages.append(problem)

    @contextmanager
    def collect(self, prefix: str = "") -> Iterator[None]:
        """Suppress a ConfigError raised in this context, and add its problems."""
        try:
            yield
        except ConfigError as error:
            self.messages += [prefix + problem for problem in error.problems]


class Validator(Problems):
    """Validator of the fields of a configuration class; fields that are None are not checked.

    Args:
        config: The instance to check.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def fields(self) -> None:
        """Check the fields by their metadata, and `Literal` fields by their choices."""
        for field in dataclasses.fields(self._config):
            name, value = field.name, getattr(self._config, field.name)
            choices = get_args(field.type) if get_origin(field.type) is Literal else ()
            if value is None:
                continue
            if "limits" in field.metadata:
                self.number(name, value, **field.metadata["limits"])
            if "path" in field.metadata and not _is_path(value):
                self._unexpected(
                    name,
                    f"a path of Unicode characters without NUL, of at most {MAX_PATH_BYTES} bytes "
                    f"and {MAX_NAME_BYTES} between two slashes",
                )
            if choices and value not in choices:
                self._unexpected(name, " or ".join(map(repr, choices)))
            with self.collect(f"{name}: "):
                if "json_text" in field.metadata and not _is_json_object(value):
                    self._unexpected(name, 'a JSON object such as {"a": 1}')

    def _unexpected(self, name: str, expected: str) -> None:
        value = getattr(self._config, name)
        self.messages.append(f"{name}: expected {expected}, got {short_repr(value)}")

    def number(self, name: str, value: float | None, finite: bool = True, **bounds: float) -> None:
        """Check that a number lies within bounds, and is finite unless `finite` is False.

        Args:
            name: Name of the number in messages.
            value: The number; None is not checked.
            finite: False allows infinity.
            bounds: Any of `at_least`, `above`, `at_most` and `below`.
        """
        if value is None:
            return
        is_within = all(BOUNDS[key].holds(value, bound) for key, bound in bounds.items())
        if is_within and (not finite or -math.inf < value < math.inf):
            return
        if bounds.keys() == {"at_least", "at_most"}:
            limits = " from {at_least} to {at_most}".format_map(bounds)
        elif bounds.keys() == {"above", "below"}:
            limits = " between {above} and {below}".format_map(bounds)
        else:
            words = [f" {word} {bounds[key]}" for key, (_, word) in BOUNDS.items() if key in bounds]
            limits = " and".join(words)
        kind = "a" if not finite or bounds.keys() & {"at_most", "below"} else "a finite"
        self.messages.append(f"{name}: expected {kind} number{limits}, got {value}")

    def only_with(
        self, name: str, is_used: bool, expected: str, got: str = "none", *neutral: Any
    ) -> None:
        """Check that a field has its default unless a setting that it depends on is used.

        Args:
            name: Name of the field.
            is_used: True if the other setting is used.
            expected: The other setting and its value that would use the field.
            got: Actual value of the other setting.
            neutral: Values of the field without effect, in addition to the default.
        """
        allowed = (self._config.__dataclass_fields__[name].default, *neutral)
        self.require(
            is_used or getattr(self._config, name) in allowed,
            f"{name}: expected {expected}, got {got}; remove {name}, which has no effect",
        )


class Section(StrictFields):
    """Base class of the sections of a configuration, which are validated on construction.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class BatchConfig(Section):
        ...     steps: int = limited(16, at_least=1)
        ...     bs: int = limited(8, at_least=1)
        ...
        ...     def _check(self, check: Validator) -> None:
        ...         check.require(self.bs <= self.steps, f"bs: expected up to steps, got {self.bs}")
    """

    def __post_init__(self) -> None:
        with Validator(self) as check:
            check.fields()
            self._check(check)

    def _check(self, check: Validator) -> None:
        """Check conditions beyond the types and limits of single fields."""


def limited(default: Any, **limits: Any) -> Any:
    """Return a dataclass field for a number with limits; see `Validator.number`."""
    return dataclasses.field(default=default, metadata={"limits": limits})


def _is_path(text: str) -> bool:
    try:
        path = os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate
        return False
    is_short = len(path) <= MAX_PATH_BYTES and max(map(len, path.split(b"/"))) <= MAX_NAME_BYTES
    return is_short and b"\0" not in path


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text, object_pairs_hook=dict_of_unique), dict)
    except ConfigError:
        raise
    except (ValueError, RecursionError):
        return False


def dict_of_unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object, as `object_pairs_hook` of `json.loads`.

    Raises:
        ConfigError: a name is repeated.
    """
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise ConfigError(f"expected {short_repr(key)} once, got it twice")
        fields[key] = value
    return fields


def unwritable(path: Path, error: OSError) -> ConfigError:
    """Return the error of a run that cannot write to its folder."""
    return ConfigError(
        f"--checkpoint-dir, data_dir: cannot write {path}: {error.strerror or error}"
    )
