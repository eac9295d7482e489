"""Samplers of environment arguments: a line of text with values and their distribution.

Every sampler is a pure function of 64 random bits.
"""

import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from statistics import NormalDist
from typing import Any

from entity_env.errors import InvalidSampler, did_you_mean, short_repr

Number = int | float

_STANDARD_NORMAL = NormalDist()
_INT_64 = 2**63
_WORD = re.compile(r"\S+")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LARGEST = sys.float_info.max
_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_FORMS = {
    "uniform": "uniform LOW HIGH",
    "loguniform": "loguniform LOW HIGH",
    "normal": "normal MEAN STD or normal MEAN STD in LOW HIGH",
    "ranges": "ranges LOW..HIGH LOW..HIGH",
    "int": "int LOW HIGH or int LOW..HIGH LOW..HIGH",
    "choice": "choice VALUE VALUE or choice VALUE:WEIGHT VALUE:WEIGHT",
}


@dataclass(frozen=True)
class Sampler:
    """Distribution of one argument, parsed from text by `read_sampler`.

    Attributes:
        kind: "value" for a constant, or the first word of the text.
        numbers: numbers of the text in their order: bounds, mean and standard deviation, or weights
            of the choices (empty if uniform); for a numeric constant, its value.
        values: the choices, or a constant that is not a number, as JSON.
    """

    kind: str
    numbers: tuple[Number, ...] = ()
    values: tuple[str, ...] = ()

    def draw(self, bits: int) -> Any:
        """Return the value for 64 random bits."""
        numbers = self.numbers
        if self.kind == "value":
            return numbers[0] if numbers else json.loads(self.values[0])
        if self.kind == "int":
            return self._draw_int(bits)
        if self.kind == "choice":
            return json.loads(self.values[self._draw_choice(bits)])
        share = (bits >> 11) * 2.0**-53  # in [0, 1)
        if self.kind == "uniform":
            return _between(numbers[0], numbers[1], share)
        if self.kind == "loguniform":
            low, high = numbers
            number = math.exp(_between(math.log(low), math.log(high), share))
            return min(max(number, float(low)), float(high))
        if self.kind == "normal":
            return self._draw_normal(((bits >> 12) + 0.5) * 2.0**-52)  # in (0, 1)
        return self._draw_range(share)

    @cached_property
    def text(self) -> str:
        """The text from which `read_sampler` makes this sampler."""
        numbers, values = self.numbers, self.values
        if self.kind == "value":
            return _format(numbers[0]) if numbers else values[0]
        words = [*map(_format, numbers)]
        if self.kind == "choice":
            words = [f"{v}:{w}" for v, w in zip(values, words, strict=True)] if words else [*values]
        elif self.kind == "normal" and len(numbers) > 2:
            words.insert(2, "in")
        elif self.kind == "ranges" or len(numbers) > 2:
            words = [f"{low}..{high}" for low, high in _pairs(words)]
        return " ".join([self.kind, *words])

    def possible_values(self, at_most: int = 20) -> list[Any] | None:
        """Return all values that can be drawn, or None if there are more than `at_most`."""
        if self.kind == "value":
            return [self.draw(0)]
        if self.kind == "choice":
            weights = self.numbers or (1,) * len(self.values)
            values = [json.loads(v) for v, w in zip(self.values, weights, strict=True) if w > 0]
        elif self.kind == "int":
            if sum(high - low + 1 for low, high in _pairs(self.numbers)) > at_most:
                return None
            values = [n for a, b in _pairs(self.numbers) for n in range(int(a), int(b) + 1)]
        else:
            return None
        return values if len(values) <= at_most else None

    def extremes(self) -> list[Any]:
        """Return values at the ends of the distribution, to test whether they are accepted."""
        if self.kind in ("value", "choice"):
            return [json.loads(v) for v in self.values] or [*self.numbers]
        return [self.draw(0), self.draw(2**64 - 1)]

    def _draw_int(self, bits: int) -> int:
        pairs = [(int(low), int(high)) for low, high in _pairs(self.numbers)]
        # Position among the n integers of all ranges: floor(bits / 2**64 * n).
        position = bits * sum(high - low + 1 for low, high in pairs) >> 64
        for low, high in pairs:
            if position <= high - low:
                return low + position
            position -= high - low + 1
        raise AssertionError

    def _draw_choice(self, bits: int) -> int:
        if not self.numbers:
            return bits * len(self.values) >> 64
        weights = _summable(self.numbers)
        point, last = (bits >> 11) * 2.0**-53 * math.fsum(weights), 0
        for i, weight in enumerate(weights):
            if weight > 0:
                last = i
                if point < weight:
                    return i
            point -= weight
        return last  # rounding error

    def _draw_normal(self, share: float) -> float:
        mean, deviation, *bounds = self.numbers
        if deviation == 0:
            return float(mean)
        if not bounds:
            number = mean + deviation * _STANDARD_NORMAL.inv_cdf(share)
            return min(max(number, -_LARGEST), _LARGEST)
        # x = mean + std * Phi^-1(Phi(low) * (1 - share) + Phi(high) * share). If both bounds are
        # above the mean, mirror the distribution: shares close to 1 have few digits.
        low, high = ((bound - mean) / deviation for bound in bounds)
        sign = -1.0 if low > 0 else 1.0
        below, above = _normal_share(sign * low), _normal_share(sign * high)
        share = min(max(below * (1 - share) + above * share, 5e-324), 1 - 2.0**-53)
        number = mean + sign * deviation * _STANDARD_NORMAL.inv_cdf(share)
        return min(max(number, float(bounds[0])), float(bounds[1]))

    def _draw_range(self, share: float) -> float:
        pairs = _pairs(self.numbers)
        lengths = [high - low for low, high in pairs]
        if not any(lengths):  # single numbers, all equally likely
            return float(pairs[int(share * len(pairs))][0])
        if not math.isfinite(sum(lengths)):  # scale the ranges down, so that the sum is finite
            scale = 2.0 ** -len(pairs).bit_length() / 2
            return (
                Sampler("ranges", tuple(n * scale for n in self.numbers))._draw_range(share) / scale
            )
        point = share * math.fsum(lengths)
        for (low, _), length in zip(pairs, lengths, strict=True):
            if point < length:
                return float(low + point)
            point -= length
        return float(self.numbers[-1])  # rounding error


def read_sampler(text: str, field: str = "sampler") -> Sampler:
    """Parse the text of a sampler.

    Args:
        text: a value as JSON has it (`7`, `true`, `"maze"`); `uniform LOW HIGH`,
            `loguniform LOW HIGH`; `normal MEAN STD`, also with `in LOW HIGH`; `ranges LOW..HIGH`;
            `int LOW HIGH` or `int LOW..HIGH ...`; `choice VALUE ...` or `choice VALUE:WEIGHT ...`.
        field: the name of the setting, for errors.

    Raises:
        InvalidSampler: the text cannot be parsed; with the field and the character.
    """
    if not isinstance(text, str):
        raise InvalidSampler(f"{field}: expected text, as in 'int 0 20', got {short_repr(text)}")
    try:
        return _parse(text)
    except InvalidSampler as error:
        raise InvalidSampler(f"{field}: {error}, in {short_repr(text)}") from None


def interpolate(first: Sampler, last: Sampler, share: float) -> Sampler:
    """Interpolate the numbers of two samplers linearly.

    Numbers are rounded for `int`, and for constants if both are integers.

    Args:
        first: the sampler at share 0.
        last: the sampler at share 1, of the same kind and form, with the same values.
        share: from 0 to 1.

    Raises:
        InvalidSampler: the samplers differ in kind or form.
    """
    kinds = first.kind, len(first.numbers), first.values
    if kinds != (last.kind, len(last.numbers), last.values):
        got = f"{first.text!r} and {last.text!r}"
        raise InvalidSampler(f"expected two samplers of the same kind and form, got {got}")
    if share in (0, 1):
        return last if share else first
    numbers: list[Number] = []
    for a, b in zip(first.numbers, last.numbers, strict=True):
        number = a + (b - a) * share
        if not math.isfinite(number):
            number = _between(a, b, share)
        is_integer = first.kind == "int" or (first.kind == "value" and type(a) is type(b) is int)
        numbers.append(math.floor(number + 0.5) if is_integer else number)
    return _validated(replace(first, numbers=tuple(numbers)), 1)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Sampler:
    words = [(match.group(), match.start() + 1) for match in _WORD.finditer(text)]
    if not words:
        raise _error(1, "a value or a sampler", "nothing")
    kind, place = words[0]
    if kind not in _FORMS:
        return _parse_value(text, kind, place)
    arguments = words[1:]
    if kind == "choice":
        return _parse_choices(text, place + len(kind) - 1)
    if not arguments:
        raise _error(len(text) + 1, _FORMS[kind], "nothing more")
    if kind == "normal" and len(arguments) > 2:
        if arguments[2][0] != "in":
            raise _error(arguments[2][1], "in LOW HIGH", repr(arguments[2][0]))
        del arguments[2]
        _check_count(arguments, 4, kind, text)
    elif kind == "ranges" or (kind == "int" and ".." in arguments[0][0]):
        arguments = [end for word, at in arguments for end in _parse_range(word, at)]
    else:
        _check_count(arguments, 2, kind, text)
    numbers = [_parse_number(word, at, integer=kind == "int") for word, at in arguments]
    return _validated(Sampler(kind, tuple(numbers)), *[at for _, at in arguments])


def _parse_value(text: str, word: str, place: int) -> Sampler:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (json.JSONDecodeError, ValueError, RecursionError) as error:
        hint = did_you_mean(word, _FORMS, separator="; ")
        if text.strip() in _PYTHON_LITERALS:
            hint = f"; did you mean {_PYTHON_LITERALS[text.strip()]}?"
        elif not hint and re.fullmatch(r"\w+", text.strip()):
            word = text.strip()
            hint = f'; text is written as "{word}", in the quotes of a setting as "\\"{word}\\""'
        at = error.pos + 1 if isinstance(error, json.JSONDecodeError) and error.pos else place
        got = short_repr([*text[at - 1 :].split(), word][0])
        expected = f"a value as JSON has it or one of {', '.join(_FORMS)}"
        raise InvalidSampler(f"character {at}: expected {expected}, got {got}{hint}") from None
    if type(value) in (int, float):
        return Sampler("value", (_parse_number(text.strip(), place),))
    return Sampler("value", (), (_json(value, place),))


def _parse_choices(text: str, position: int) -> Sampler:
    values, weights, places = [], [], []
    decoder = json.JSONDecoder(parse_constant=_no_constant)
    position = _skip_spaces(text, position)
    while position < len(text):
        places.append(position + 1)
        try:
            value, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            word = text[position:].split()[0]
            raise _error(places[-1], 'a value, as in 4 or "open"', repr(word)) from None
        values.append(_json(value, places[-1]))
        if text[position : position + 1] == ":":
            match = _WORD.match(text, position + 1)
            word = match.group() if match else ""
            weights.append(_parse_number(word, position + 2))
            if weights[-1] < 0:
                raise _error(position + 2, "a weight of at least 0", word)
            position += 1 + len(word)
        elif position < len(text) and not text[position].isspace():
            raise _error(position + 1, "a space or a weight, as in 4:0.5", repr(text[position]))
        position = _skip_spaces(text, position)
    if not values:
        raise _error(len(text) + 1, _FORMS["choice"], "nothing more")
    if weights and len(weights) < len(values):
        raise _error(places[0], "a weight for every value or for none", f"{len(weights)}")
    if weights and not sum(weights) > 0:
        raise _error(places[0], "a weight above 0", "weights that are all 0")
    return Sampler("choice", tuple(weights), tuple(values))


def _validated(sampler: Sampler, *places: int) -> Sampler:
    """Return a sampler, or raise for swapped bounds and invalid numbers."""
    kind, numbers, place = sampler.kind, sampler.numbers, places[0]
    bounds: Sequence[Number] = numbers[2:] if kind == "normal" else numbers
    if kind == "normal" and numbers[1] < 0:
        raise _error(places[-1], "a standard deviation of at least 0", _format(numbers[1]))
    if kind in ("uniform", "loguniform", "normal", "ranges", "int"):
        for low, high in _pairs(bounds):
            if low > high:
                expected = f"a bound of at least {_format(low)}"
                raise _error(places[-1], expected, _format(high))
    if kind == "loguniform" and numbers[0] <= 0:
        raise _error(place, "a number above 0", _format(numbers[0]))
    if kind == "normal" and bounds:
        mean, deviation, low, high = numbers
        is_within = low <= mean <= high
        if deviation > 0 and not is_within:
            distance = min(abs(low - mean), abs(high - mean)) / deviation
            is_within = distance < 37 and low < high
        if not is_within:
            raise _error(places[-1], "bounds around some of the distribution", "none of it")
    return sampler


def _parse_number(word: str, place: int, integer: bool = False) -> Number:
    what = "a whole number" if integer else "a number"
    if not _NUMBER.fullmatch(word) or len(word) > 100:
        raise _error(place, what, repr(word[:100]) if word else "nothing")
    number: Number = int(word) if re.fullmatch(r"[+-]?\d+", word) else float(word)
    if integer and not isinstance(number, int):
        raise _error(place, what, repr(word))
    if not math.isfinite(number) or (isinstance(number, int) and not abs(number) < _INT_64):
        raise _error(place, f"{what} of 64 bits", repr(word))
    return number


def _parse_range(word: str, place: int) -> list[tuple[str, int]]:
    low, dots, high = word.partition("..")
    if not dots or high.startswith("."):  # 0...5 is ambiguous: 0..5 or 0..0.5
        raise _error(place, "a range, as in 0..1", repr(word))
    return [(low, place), (high, place + len(low) + 2)]


def _check_count(words: Sequence[tuple[str, int]], count: int, kind: str, text: str) -> None:
    if len(words) > count:
        raise _error(words[count][1], _FORMS[kind], repr(words[count][0]))
    if len(words) < count:
        raise _error(len(text) + 1, _FORMS[kind], "nothing more")


def _error(place: int, expected: str, got: str) -> InvalidSampler:
    return InvalidSampler(f"character {place}: expected {expected}, got {got}")


def _json(value: Any, place: int) -> str:
    """Return a value as JSON; raise for numbers and text that cannot be serialized."""
    parts = [value]
    for part in parts:  # grows by the parts of containers
        if isinstance(part, dict):
            parts += [*part, *part.values()]
        elif isinstance(part, list):
            parts += part
        elif isinstance(part, str):
            if not part.isascii() and part != part.encode(errors="replace").decode():
                raise _error(place, "text without unpaired surrogates", ascii(part))
        elif type(part) in (int, float):
            is_finite = math.isfinite(part) if isinstance(part, float) else abs(part) < _INT_64
            if not is_finite:
                raise _error(place, "numbers of 64 bits", short_repr(part))
    return json.dumps(value, ensure_ascii=False)


def _summable(weights: Sequence[Number]) -> Sequence[Number]:
    """Scale weights so that their sum does not overflow."""
    return weights if math.isfinite(sum(weights)) else [w / len(weights) for w in weights]


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _skip_spaces(text: str, position: int) -> int:
    return len(text) - len(text[position:].lstrip())


def _between(low: Number, high: Number, share: float) -> float:
    # Neither difference nor result overflows.
    return min(max(low * (1 - share) + high * share, float(low)), float(high))


def _normal_share(number: float) -> float:
    """Return the standard normal distribution function at a number, accurate to all digits."""
    return 0.5 * math.erfc(-number / math.sqrt(2))


def _pairs(numbers: Sequence[Any]) -> list[tuple[Any, Any]]:
    return [*zip(numbers[::2], numbers[1::2], strict=True)]


def _format(number: Number) -> str:
    return repr(number)
