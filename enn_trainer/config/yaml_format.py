"""Parser and writer of YAML.

Plain scalars follow the core schema of YAML 1.2, not 1.1 as in PyYAML: 1e-3 is a number; on, off,
yes, no and dates are text. There are two exceptions: 010 and 0o17 are text, because parsers
disagree about them; and digits may be grouped, as in 1_000_000. Fields of other types reject text.
"""

import math
import re
from collections.abc import Hashable
from functools import partial
from typing import Any

import yaml

from enn_trainer.config.ron import MAX_NUMBER_LENGTH
from entity_env.errors import short_repr
from entity_env.serialization.bounds import check_hashes

_TAG = "tag:yaml.org,2002:"
_WORDS = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
]


def loads(text: str) -> Any:
    """Parse one YAML document.

    Raises:
        ValueError: the text is not YAML, repeats a key or has unknown tags; names the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    except (KeyError, IndexError, TypeError):
        raise ValueError("expected a value that fits its tag (!!), got another one") from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # has no types
    """Loader with the scalars of `_WORDS`, which rejects repeated keys."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (filled below)

    def construct_yaml_int(self, node: Any) -> int:
        # With a tag !!int, PyYAML reads 1:30:00 as base 60, in quadratic time.
        value = self.construct_scalar(node)
        if ":" in value or len(value) > MAX_NUMBER_LENGTH:
            raise _error(f"expected a number, got {short_repr(value)}", node)
        return int(super().construct_yaml_int(node))

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [
            (self.construct_object(key_node, deep=True), key_node) for key_node, _ in node.value
        ]
        # The base class rejects unhashable keys.
        keys = [(key, key_node) for key, key_node in keys if isinstance(key, Hashable)]
        try:
            check_hashes(key for key, _ in keys)
        except ValueError as error:
            raise _error(str(error), node) from None
        unique = set()
        for key, key_node in keys:
            if key == "<<" and key_node.style is None:  # in quotes it is an ordinary name
                raise _error("expected no merge key (<<); write out its fields", key_node)
            if key in unique:
                raise _error(f"expected {short_repr(key)} once, got it twice", key_node)
            unique.add(key)
        return dict(super().construct_mapping(node, deep))


def _error(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
for _kind in ("timestamp", "binary", "omap", "pairs", "set"):  # treated as unknown tags
    del _Loader.yaml_constructors[_TAG + _kind]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Dumper that omits quotes of text that is parsed back unchanged."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (filled below)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> Any:
        # In single quotes, Unicode line breaks would be folded into spaces.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(f"{_TAG}str", text, style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _kind, _pattern, _first in _WORDS:
    for _class in (_Loader, _Dumper):
        _regex = re.compile(f"(?:{_pattern})$")
        _class.add_implicit_resolver(_TAG + _kind, _regex, _first)


dumps = partial(
    yaml.dump, Dumper=_Dumper, sort_keys=False, allow_unicode=True, indent=4, width=math.inf
)
"""Format plain data as YAML that `loads` parses to the same data."""
