"""Parser and writer of Rusty Object Notation (RON).

    value   read as                     written from
    struct  dict, without its name      Struct
    map     dict                        dict
    list    list                        list, tuple
    tuple   list
    string  str                         str
    char    str
    number  int or float                int or float, by repr, which is exact
    unit    {}, a struct of no fields   Struct of no fields
    None    None                        None
    Some(x) x                           x: an option is written without Some

A bare identifier (an enum variant) is read as its name. Comments and a leading `#![enable(...)]`
are skipped. Parsing never runs code, has bounded recursion, and raises only RonError.

Source: the grammar of github.com/ron-rs/ron, docs/grammar.md.
"""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from enn_trainer.base.errors import RonError
from entity_env.serialization.bounds import MAX_SAME_HASH

__all__ = ["MAX_DEPTH", "RonError", "Struct", "dumps", "in_one_line", "loads"]

MAX_DEPTH = 64
# Below 640 digits Python always converts between int and decimal text.
MAX_NUMBER_LENGTH = 500
TOO_LONG = f"expected a number of at most {MAX_NUMBER_LENGTH} characters"
_TOO_DEEP = f"expected at most {MAX_DEPTH} levels of nesting"

_BLANKS = re.compile(r"(?:\s++|//[^\n]*+)*+")
_COMMENT_MARK = re.compile(r"/\*|\*/")
_ATTRIBUTE = re.compile(r"#!\s*\[\s*enable\s*\([\w\s,]*\)\s*\]")
_NAME = re.compile(r"[^\W\d]\w*")
_FIELD = re.compile(rf"(?:r#)?+({_NAME.pattern})")
_NUMBER = re.compile(
    r"[+-]?(?:(?P<prefixed>0x[\da-fA-F][\da-fA-F_]*+|0b[01][01_]*+|0o[0-7][0-7_]*+)"
    r"|(?P<float>(?:inf|NaN)\b|(?:\d[\d_]*+\.[\d_]*+|\.\d[\d_]*+)(?:[eE][+-]?\d[\d_]*+)?+"
    r"|\d[\d_]*+[eE][+-]?\d[\d_]*+)"
    r"|\d[\d_]*+)",
    re.ASCII,
)
_RAW_STRING = re.compile(r'r(#*)"')
_STRING = re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL)
_CHAR = re.compile(r"'([^\\]|\\(?:x..|u\{[^}']*+\}|.))'", re.DOTALL)
_QUOTED = {
    '"': (_STRING, 'expected " to end this string'),
    "'": (_CHAR, "expected one character between ' and '"),
}
_ESCAPE = re.compile(r"\\(?:x([\da-fA-F]{2})|u\{([\da-fA-F]{1,6})\}|(.))", re.DOTALL)

_WORDS = {"true": True, "false": False, "None": None, "inf": float("inf"), "NaN": float("nan")}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "0": "\0", "\\": "\\", '"': '"', "'": "'"}
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"'}


class Struct(NamedTuple):
    """A struct with a name, whose field names are written without quotes."""

    name: str
    fields: Mapping[str, Any]


def loads(text: str, named: bool = False, starts: dict[int, int] | None = None) -> Any:
    """Parse a RON document.

    Args:
        text: The whole document.
        named: Return structs with a name as `Struct`, to keep the name.
        starts: Filled with the position of the fields of each dict in the text, by id of the dict.

    Returns:
        Plain data: dict, list, str, int, float, bool, None.

    Raises:
        RonError: the text is not RON, repeats a field or key, or nests deeper than MAX_DEPTH.
    """
    reader = _Reader(text, named, {} if starts is None else starts)
    while text.startswith("#!", reader.at):
        reader.match(_ATTRIBUTE, "expected #![enable(...)]")
    value = reader.value()
    if reader.at < len(text):
        raise reader.error("expected the end of the text")
    return value


class _Reader:
    """Parser with a position in a text; methods advance it past a token and following blanks."""

    def __init__(self, text: str, named: bool, starts: dict[int, int]) -> None:
        self.text = text
        self.named = named
        self.starts = starts
        self.move(0)

    def error(self, problem: str, at: int | None = None) -> RonError:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        got = repr(self.text[at]) if at < len(self.text) else "the end"
        return RonError(f"{problem}, got {got}", line, column)

    def move(self, to: int) -> None:
        """Move to a position and skip white space and comments; /* */ comments may be nested."""
        self.at = to
        while True:
            blanks = _BLANKS.match(self.text, self.at)
            self.at = blanks.end() if blanks else self.at
            if not self.text.startswith("/*", self.at):
                return
            depth = 0
            for mark in _COMMENT_MARK.finditer(self.text, self.at):
                depth += 1 if mark.group() == "/*" else -1
                if depth == 0:
                    self.at = mark.end()
                    break
            else:
                raise self.error("expected */ to end this comment")

    def match(self, pattern: re.Pattern[str], problem: str) -> re.Match[str]:
        """Consume a match of a pattern, or raise an error."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise self.error(problem)
        self.move(match.end())
        return match

    def take(self, token: str) -> bool:
        is_here = self.text.startswith(token, self.at)
        if is_here:
            self.move(self.at + len(token))
        return is_here

    def expect(self, token: str, why: str) -> None:
        if not self.take(token):
            raise self.error(f"expected '{token}' {why}")

    def name(self) -> str | None:
        """Consume an identifier, if there is one; reserved words are written `r#name`."""
        match = _FIELD.match(self.text, self.at)
        if match is None:
            return None
        self.move(match.end())
        return match[1]

    def value(self, depth: int = 0) -> Any:
        """Parse a value at a depth of nesting."""
        if depth == MAX_DEPTH:
            raise self.error(_TOO_DEEP)
        start = self.at
        char = self.text[start : start + 1]
        if char == "(":
            return self.struct_or_tuple(depth)
        if self.take("["):
            return self.sequence("]", depth)
        if self.take("{"):
            return self.entries("}", depth, start + 1)
        if char in _QUOTED:
            return self.unescaped(self.match(*_QUOTED[char]))
        if opening := _RAW_STRING.match(self.text, start):
            return self.raw_string(opening)
        # Unicode digits other than 0 to 9 are not part of RON numbers.
        if char and char in "+-.0123456789":
            return self.number()
        return self.word(depth)

    def word(self, depth: int) -> Any:
        """Parse a constant, an option, a struct with a name, or an enum variant."""
        is_raw = self.text.startswith("r#", self.at)
        name = self.name()
        if name is None:
            raise self.error("expected a value")
        if name in _WORDS and not is_raw:
            return _WORDS[name]
        if name == "Some" and not is_raw:
            self.expect("(", "after Some")
            value = self.value(depth + 1)
            self.take(",")
            self.expect(")", "after the value of Some")
            return value
        if self.text.startswith("(", self.at):
            inside = self.struct_or_tuple(depth)
            return Struct(name, inside) if self.named and isinstance(inside, dict) else inside
        return name

    def struct_or_tuple(self, depth: int) -> dict[str, Any] | list[Any]:
        start = self.at + 1
        self.move(start)
        inside = self.at
        is_struct = self.name() is not None and self.text.startswith(":", self.at)
        self.at = inside
        if is_struct or self.text.startswith(")", inside):
            return self.entries(")", depth, start)
        return self.sequence(")", depth)

    def sequence(self, end: str, depth: int) -> list[Any]:
        items = []
        while not self.take(end):
            items.append(self.value(depth + 1))
            if not self.take(",") and not self.text.startswith(end, self.at):
                raise self.error(f"expected ',' or '{end}' after this item")
        return items

    def entries(self, end: str, depth: int, opened: int) -> dict[Any, Any]:
        """Parse the fields of a struct, which ends with ")", or the items of a map."""
        items: dict[Any, Any] = {}
        same_hash: Counter[int] = Counter()
        self.starts[id(items)] = opened
        while not self.take(end):
            start = self.at
            key = self.name() if end == ")" else self.value(depth + 1)
            if key is None and end == ")":
                raise self.error("expected the name of a field or ')'")
            if isinstance(key, dict | list | Struct):
                raise self.error("expected a key that is a string, a number or a word", start)
            if not isinstance(key, str):
                same_hash[hash(key)] += 1
                if same_hash[hash(key)] > MAX_SAME_HASH:  # a dict would take quadratic time
                    raise self.error("expected keys with different hashes", start)
            if key in items:
                raise self.error(f"expected {key!r} once, got it twice", start)
            self.expect(":", f"after {key!r}")
            items[key] = self.value(depth + 1)
            if not self.take(",") and not self.text.startswith(end, self.at):
                raise self.error(f"expected ',' or '{end}' after the value of {key!r}")
        return items

    def number(self) -> int | float:
        start = self.at
        number = self.match(_NUMBER, "expected a number")
        if re.match(r"[\w.]", self.text[number.end() : number.end() + 1]):
            raise self.error("expected the end of this number", number.end())
        if number.end() - start > MAX_NUMBER_LENGTH:
            raise self.error(TOO_LONG, start)
        digits = number.group().replace("_", "")
        if number["float"]:
            return float(digits)
        value = int(digits, base=0 if number["prefixed"] else 10)
        if not is_writable(value):
            raise self.error(f"expected at most {MAX_NUMBER_LENGTH} decimal digits", start)
        return value

    def unescaped(self, quoted: re.Match[str]) -> str:
        """Return the text between quotes, with escapes replaced."""

        def character(escape: re.Match[str]) -> str:
            point = int(escape[1] or escape[2] or "0", 16)
            if point > 0x10FFFF or (escape[3] and escape[3] not in _ESCAPES):
                expected = r"expected one of \n \r \t \0 \\ \" \' \x41 \u{1F600}"
                raise self.error(expected, quoted.start(1) + escape.start())
            return _ESCAPES[escape[3]] if escape[3] else chr(point)

        return _ESCAPE.sub(character, quoted[1])

    def raw_string(self, opening: re.Match[str]) -> str:
        closing = '"' + opening[1]
        end = self.text.find(closing, opening.end())
        if end < 0:
            raise self.error(f"expected {closing} to end this string")
        self.move(end + len(closing))
        return self.text[opening.end() : end]


def dumps(value: Any, one_line: bool = False, depth: int = 0) -> str:
    """Format plain data as RON, one field or item per line.

    Args:
        value: A tree of Struct, Mapping, list, tuple, str, int, float, bool and None.
        one_line: Omit line breaks and names of structs.
        depth: Depth of nesting.

    Returns:
        Text that `loads` parses to the same data, each Struct as the dict of its fields.

    Raises:
        RonError: a value has another type, a name is invalid, a number is too large, or values nest
            deeper than MAX_DEPTH.
    """
    if depth == MAX_DEPTH:
        raise RonError(_TOO_DEEP)

    def inner(item: Any) -> str:
        return dumps(item, one_line, depth + 1)

    # Containers: text of the items.
    if isinstance(value, Struct):
        opening, closing = "(" if one_line else f"{_checked_name(value.name)}(", ")"
        items = [f"{_checked_name(k)}: {inner(v)}" for k, v in value.fields.items()]
    elif isinstance(value, Mapping):
        opening, closing = "{", "}"
        items = [f"{_scalar(k)}: {inner(v)}" for k, v in value.items()]
    elif isinstance(value, list | tuple):
        opening, closing = "[", "]"
        items = [inner(item) for item in value]
    else:
        return _scalar(value)

    # Layout in one line, or one item per line.
    if one_line or not items:
        return f"{opening}{', '.join(items)}{closing}"
    indent = "    " * depth
    body = "".join(f"{indent}    {item},\n" for item in items)
    return f"{opening}\n{body}{indent}{closing}"


def in_one_line(value: Any) -> str:
    """Format plain data like `dumps`, without line breaks and names of structs."""
    return dumps(value, one_line=True)


def is_writable(number: int) -> bool:
    """Return whether an integer has at most MAX_NUMBER_LENGTH characters."""
    # repr raises for integers of thousands of digits.
    is_short = number.bit_length() <= 4 * MAX_NUMBER_LENGTH
    return is_short and len(int.__repr__(number)) <= MAX_NUMBER_LENGTH


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "None", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    # Not repr(value): subclasses such as numpy scalars override it.
    if isinstance(value, float):
        return float.__repr__(value).replace("nan", "NaN")
    if isinstance(value, int):
        if not is_writable(value):
            raise RonError(TOO_LONG)
        return int.__repr__(value)
    raise RonError(f"expected plain data, got {type(value).__name__}")


def _escaped(char: str) -> str:
    return _ESCAPED.get(char) or (char if char.isprintable() else f"\\u{{{ord(char):x}}}")


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise RonError(f"expected a name, got {name!r}")
    return name
