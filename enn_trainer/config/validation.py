"""Validation of settings: all problems of a configuration in one error."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, get_args

from enn_trainer.errors import ConfigError
from entity_env.errors import short_repr

JSON_TEXT = {"json_text": True}
"""Metadata of a field whose text is a JSON object, which a file may write as a section."""
COMPUTED = {"computed": True}
"""Metadata of a field whose default depends on how the program was called."""

MAX_PATH_BYTES = 4095
"""Bytes of a path on Linux, the terminating NUL not counted."""
MAX_NAME_BYTES = 255
"""Bytes of a file name on all common file systems."""


class Problems:
    """Problems that are collected, and raised as one `ConfigError` at the end of the context."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self.found:
            raise ConfigError(*self.found)

    def require(self, condition: bool, problem: str) -> None:
        """Add a problem if a condition does not hold."""
        if not condition:
            self.found.append(problem)

    @contextmanager
    def collect(self, prefix: str = "") -> Iterator[None]:
        """Add the problems of a ConfigError that is raised in this context, and go on."""
        try:
            yield
        except ConfigError as error:
            self.found += [prefix + problem for problem in error.problems]


class Validator(Problems):
    """Checks of the fields of a configuration class. A field that is None is not checked.

    Example:
        >>> with Validator(self) as check:
        ...     check.numbers("steps", "num_envs", at_least=1)
        ...     check.require(self.bs <= self.steps, f"bs: expected at most steps, got {self.bs}")

    Args:
        config: Has the fields.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        self._config = config

    def numbers(
        self,
        *names: str,
        at_least: float | None = None,
        above: float | None = None,
        at_most: float | None = None,
        below: float | None = None,
        finite: bool = True,
        values: Mapping[str, float] | None = None,
    ) -> None:
        """Check that numbers lie within limits, and are finite unless `finite` is False.

        Args:
            names: Of fields.
            at_least: The smallest allowed number.
            above: The largest number that is too small.
            at_most: The largest allowed number.
            below: The smallest number that is too large.
            finite: False allows infinity.
            values: Numbers to check in place of fields, by what messages call them.
        """
        # The limits in words.
        if at_least is not None and at_most is not None:
            limits = f" from {at_least} to {at_most}"
        elif above is not None and below is not None:
            limits = f" between {above} and {below}"
        else:
            words = {"of at least": at_least, "above": above, "up to": at_most, "below": below}
            limits = " and".join(f" {word} {x}" for word, x in words.items() if x is not None)
        is_bounded = at_most is not None or below is not None
        expected = f"{'a finite' if finite and not is_bounded else 'a'} number{limits}"

        # The numbers.
        values = values or {name: getattr(self._config, name) for name in names}
        for name, value in values.items():
            is_valid = value is None or (
                (at_least is None or value >= at_least)
                and (above is None or value > above)
                and (at_most is None or value <= at_most)
                and (below is None or value < below)
                and (not finite or -math.inf < value < math.inf)
            )
            self.require(is_valid, f"{name}: expected {expected}, got {value}")

    def only_with(self, name: str, is_used: bool, expected: str, got: str = "none") -> None:
        """Check that a field is left at its default unless the setting that it is for is used.

        Args:
            name: Of the field.
            is_used: True if the other setting is used.
            expected: The other setting, as it should be.
            got: The other setting, as it is.
        """
        default = self._config.__dataclass_fields__[name].default
        self.require(
            is_used or getattr(self._config, name) == default,
            f"{name}: expected {expected}, which it is for, got {got}; leave it out",
        )

    def choices(self, kind: object, *names: str) -> None:
        """Check that fields have one of the values of a `Literal`."""
        values = get_args(kind)
        self._check(names, values.__contains__, " or ".join(map(repr, values)))

    def paths(self, *names: str) -> None:
        """Check that fields are paths that a file could have."""
        self._check(
            names,
            _is_path,
            f"a path of Unicode characters without NUL, of at most {MAX_PATH_BYTES} bytes and "
            f"{MAX_NAME_BYTES} between two slashes",
        )

    def json_object(self, name: str) -> bool:
        """Check that a field is the text of a JSON object, and return whether it is."""
        before = len(self.found)
        with self.collect(f"{name}: "):
            self._check([name], _is_json_object, 'a JSON object such as {"a": 1}')
        return len(self.found) == before

    def _check(self, names: Iterable[str], is_valid: Callable[[Any], bool], expected: str) -> None:
        for name in names:
            value = getattr(self._config, name)
            if value is not None and not is_valid(value):
                self.found.append(f"{name}: expected {expected}, got {short_repr(value)}")


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
        ConfigError: a name is there twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"expected {short_repr(key)} once, it is there twice")
        found[key] = value
    return found


def unwritable(path: Path, error: OSError) -> ConfigError:
    """Return the error of a run that cannot write to its folder."""
    return ConfigError(f"data_dir: cannot write {path}: {error.strerror or error}")
